//! The tables of `vos examine -extended`: each operation of a client is counted in the same cells
//! as in OpenAFS.

use crate::common::{CLONE, Cell, Machine, OPEN, SHUT, name, run, store};
use cellar_rpc::Connection;
use cellar_wire::afsvol::{VolumeInfoX, XListOneVolume};
use cellar_wire::ids::{Fid, VolumeId};
use cellar_wire::rxafs::{self, AfsStoreStatus};

async fn examined(admin: &Connection, volume: VolumeId) -> VolumeInfoX {
    let call = XListOneVolume {
        partition: 0,
        volume,
    };
    admin.call(&call).await.unwrap().entries[0].clone()
}

#[test]
fn reads_writes_and_authors_are_counted_as_openafs_does() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    let alice = machine.user("alice");
    let root = Fid::root(OPEN);
    let file = run(async {
        let admin = cell.admin().await;
        // The root is 1000 seconds old and of another author. A creation is two writes.
        let file = machine.create(root, "file").await;
        let info = examined(&admin, OPEN).await;
        assert_eq!((info.stat_reads, info.stat_writes), ([0; 4], [2, 0, 0, 0]));
        assert_eq!(info.stat_dir_diff_author, [0, 0, 1, 0, 0, 0]);
        assert_eq!(info.stat_dir_same_author, [0; 6]);
        assert_eq!(info.stat_file_diff_author, [0; 6]);
        // Stores, by the same and another user, small and large, at several ages.
        machine.store(file, 0, b"one").await.unwrap();
        cell.wait_secs(60);
        store(&alice, file, 0, b"two").await.unwrap();
        cell.wait_secs(86_400);
        store(&alice, file, 0, &[7; 200_000]).await.unwrap();
        let info = examined(&admin, OPEN).await;
        assert_eq!(info.stat_writes, [5, 2, 0, 0]);
        assert_eq!(info.stat_file_same_author, [1, 0, 0, 0, 1, 0]);
        assert_eq!(info.stat_file_diff_author, [0, 1, 0, 0, 0, 0]);
        // A change of attributes is a write, and no change of contents.
        let in_status = AfsStoreStatus::default();
        let touch = rxafs::StoreStatus {
            fid: file,
            in_status,
        };
        alice.call(&touch).await.unwrap();
        // A rename in one directory is two changes of it.
        let rename = rxafs::Rename {
            old_dir_fid: root,
            old_name: name("file"),
            new_dir_fid: root,
            new_name: name("other"),
        };
        alice.call(&rename).await.unwrap();
        let remove = rxafs::RemoveFile {
            dir_fid: root,
            name: name("nothing"),
        };
        assert!(alice.call(&remove).await.is_err());
        let info = examined(&admin, OPEN).await;
        assert_eq!(info.stat_writes, [8, 5, 0, 0]);
        assert_eq!(info.stat_dir_diff_author, [0, 0, 1, 0, 1, 0]);
        assert_eq!(info.stat_dir_same_author, [1, 0, 0, 0, 0, 0]);
        assert_eq!(info.stat_file_same_author, [1, 0, 0, 0, 1, 0]);
        // Reads of files and directories, even refused ones; reading a status is not counted.
        machine.fetch(file, 0, 10).await.unwrap();
        machine.fetch(root, 0, 10_000).await.unwrap();
        machine.status(file).await;
        let fetch = rxafs::FetchData {
            fid: file,
            position: 0,
            length: 0,
        };
        let mut call = alice.open(&fetch).await.unwrap();
        let length: u32 = call.read().await.unwrap();
        assert_eq!(length, 0);
        let _: rxafs::FetchDataReply = call.results().await.unwrap();
        assert_eq!(
            examined(&admin, OPEN).await.stat_reads,
            [3, 1, 0, 0],
            "and those of a user"
        );
        assert!(machine.fetch(Fid::root(SHUT), 0, 10).await.is_err());
        assert_eq!(examined(&admin, SHUT).await.stat_reads, [1, 0, 0, 0]);
        file
    });
    // The tables survive a restart, and a clone has its own.
    let cell = cell.restart(true);
    cell.make_clone();
    let machine = Machine::new(&cell, 2);
    run(async {
        let admin = cell.admin().await;
        let info = examined(&admin, OPEN).await;
        assert_eq!(info.stat_reads, [3, 1, 0, 0]);
        assert_eq!(info.stat_writes, [8, 5, 0, 0]);
        assert_eq!(info.stat_file_diff_author, [0, 1, 0, 0, 0, 0]);
        assert_eq!(examined(&admin, CLONE).await.stat_reads, [0; 4]);
        let in_clone = Fid {
            volume: CLONE,
            ..file
        };
        machine.fetch(in_clone, 0, 10).await.unwrap();
        assert_eq!(examined(&admin, CLONE).await.stat_reads, [1, 0, 0, 0]);
    });
    // A clone that replaces the old one continues its tables.
    cell.make_clone();
    run(async {
        let admin = cell.admin().await;
        assert_eq!(examined(&admin, CLONE).await.stat_reads, [1, 0, 0, 0]);
    });
}
