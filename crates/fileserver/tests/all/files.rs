//! Files and directories through RXAFS: the usual operations of clients, and the answer of each
//! step.

use crate::common::{CLONE, Cell, Machine, NOW, OPEN, mode, name, run, with_file};
use cellar_wire::acl::Rights;
use cellar_wire::ids::{AfsTime, Fid};
use cellar_wire::rxafs::{self, AfsStoreStatus, Callback, FileType};

#[test]
fn a_file_is_made_stored_fetched_and_removed() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let root = Fid::root(OPEN);
        let made = machine
            .ok(&rxafs::CreateFile {
                dir_fid: root,
                name: name("f"),
                in_status: mode(0o640),
            })
            .await;
        assert_eq!(made.status.file_type, FileType::File);
        assert_eq!((made.status.unix_mode, made.status.link_count), (0o640, 1));
        assert_eq!((made.status.data_version, made.status.length), (0, 0));
        assert_eq!(
            (made.status.parent_vnode, made.status.parent_uniquifier),
            (root.vnode, root.uniquifier)
        );
        assert_eq!(made.status.owner.0, 32766);
        assert!(
            made.status.caller_access.contains(Rights::ADMINISTER),
            "the caller owns it"
        );
        assert_eq!(
            made.dir_status.data_version, 2,
            "a new volume's root starts at 1"
        );
        assert_eq!(made.callback, Callback::shared(4 * 3600));
        assert_eq!(made.sync.creation_date, AfsTime(NOW as u32 - 1000));
        let fid = made.fid;
        for bytes in [&b"hello"[..], &[7; 200_000], &[9; 3_000_001]] {
            let before = machine.status(fid).await.status.data_version;
            let status = machine.store(fid, 0, bytes).await.unwrap();
            assert_eq!(status.length, bytes.len() as u64);
            assert_eq!(status.data_version, before + 1);
            assert_eq!(status.client_mod_time, AfsTime(NOW as u32));
            assert_eq!(
                machine.fetch(fid, 0, i64::from(i32::MAX)).await.unwrap(),
                bytes
            );
        }
        assert_eq!(machine.fetch(fid, 3_000_000, 10).await.unwrap(), [9]);
        assert_eq!(machine.fetch(fid, 4_000_000, 10).await.unwrap(), [0; 0]);
        machine
            .ok(&rxafs::RemoveFile {
                dir_fid: root,
                name: name("f"),
            })
            .await;
        assert_eq!(machine.code(&rxafs::FetchStatus { fid }).await, 102);
    });
}

#[test]
fn the_old_form_of_fetch_and_store() {
    with_file(async |_, [machine], fid| {
        let call = rxafs::StoreData {
            fid,
            in_status: AfsStoreStatus {
                client_mod_time: Some(AfsTime(77)),
                ..AfsStoreStatus::default()
            },
            position: 2,
            length: 3,
            file_length: 5,
        };
        let mut call = machine.connection.open(&call).await.unwrap();
        call.write("abc".into()).await.unwrap();
        call.finish();
        let reply: rxafs::StoreDataReply = call.read().await.unwrap();
        assert_eq!(
            (reply.status.length, reply.status.client_mod_time),
            (5, AfsTime(77))
        );
        let call = rxafs::FetchData {
            fid,
            position: 1,
            length: 100,
        };
        let mut call = machine.connection.open(&call).await.unwrap();
        assert_eq!(call.read::<u32>().await.unwrap(), 4);
        let mut bytes = Vec::new();
        call.read_exact(4, |chunk| bytes.extend_from_slice(&chunk))
            .await
            .unwrap();
        assert_eq!(bytes, b"\0abc");
        let reply: rxafs::FetchDataReply = call.read().await.unwrap();
        assert_eq!(reply.status.data_version, 1);
        assert_eq!(
            machine
                .code(&rxafs::FetchData {
                    fid,
                    position: -1,
                    length: 1
                })
                .await,
            27
        );
    });
}

#[test]
fn directories_links_and_renames() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let root = Fid::root(OPEN);
        let (a, b) = (
            machine.make_dir(root, "a").await,
            machine.make_dir(root, "b").await,
        );
        let status = machine.status(a).await.status;
        assert_eq!(
            (status.file_type, status.link_count),
            (FileType::Directory, 2)
        );
        assert_eq!(
            (status.parent_vnode, status.parent_uniquifier),
            (a.vnode, a.uniquifier),
            "itself"
        );
        assert_eq!(machine.status(root).await.status.link_count, 4);
        let pages = machine.fetch(root, 0, 1 << 20).await.unwrap();
        assert!(pages.len() % 2048 == 0 && pages.len() >= 2048);
        let file = machine.create(a, "one").await;
        let linked = machine
            .ok(&rxafs::Link {
                dir_fid: a,
                name: name("two"),
                existing_fid: file,
            })
            .await;
        assert_eq!(linked.status.link_count, 2);
        let across = rxafs::Link {
            dir_fid: b,
            name: name("three"),
            existing_fid: file,
        };
        assert_eq!(machine.code(&across).await, 18);
        let link = machine
            .ok(&rxafs::Symlink {
                dir_fid: a,
                name: name("link"),
                link_contents: "../b".try_into().unwrap(),
                in_status: mode(0o755),
            })
            .await;
        assert_eq!(link.status.file_type, FileType::Symlink);
        assert_eq!(machine.fetch(link.fid, 0, 100).await.unwrap(), b"../b");
        // A file with two names stays in its directory.
        let moved = |old, new_dir, new| rxafs::Rename {
            old_dir_fid: a,
            old_name: name(old),
            new_dir_fid: new_dir,
            new_name: name(new),
        };
        assert_eq!(machine.code(&moved("one", b, "x")).await, 18);
        machine
            .ok(&rxafs::RemoveFile {
                dir_fid: a,
                name: name("two"),
            })
            .await;
        let renamed = machine.ok(&moved("one", b, "x")).await;
        assert!(renamed.new_dir_status.data_version > 0);
        assert_eq!(machine.status(file).await.status.parent_vnode, b.vnode);
        assert_eq!(
            machine
                .code(&rxafs::RemoveDir {
                    dir_fid: root,
                    name: name("b")
                })
                .await,
            17
        );
        machine
            .ok(&rxafs::RemoveFile {
                dir_fid: b,
                name: name("x"),
            })
            .await;
        machine
            .ok(&rxafs::RemoveDir {
                dir_fid: root,
                name: name("b"),
            })
            .await;
        assert_eq!(machine.status(root).await.status.link_count, 3);
    });
}

#[test]
fn bulk_status_answers_each_fid_in_its_place() {
    let cell = Cell::start();
    let machine = Machine::new(&cell, 1);
    run(async {
        let root = Fid::root(OPEN);
        let mut fids = vec![root];
        for number in 0..48 {
            fids.push(machine.create(root, &format!("f{number}")).await);
        }
        fids.push(Fid::new(OPEN.0, 99_998, 1));
        let list = rxafs::Fids::from_iter_cut(fids.iter().copied());
        let bulk = machine
            .ok(&rxafs::InlineBulkStatus { fids: list.clone() })
            .await;
        assert_eq!((bulk.statuses.len(), bulk.callbacks.len()), (50, 50));
        assert_eq!(bulk.statuses[0].file_type, FileType::Directory);
        assert_eq!(bulk.statuses[48].file_type, FileType::File);
        assert_eq!(
            bulk.callbacks[1].expires_in_secs, 1800,
            "shorter for one of many"
        );
        assert_eq!(bulk.statuses[49].error_code.0, 102);
        assert_eq!(bulk.callbacks[49], Callback::NONE);
        assert_eq!(bulk.sync.creation_date, AfsTime(NOW as u32 - 1000));
        assert_eq!(machine.code(&rxafs::BulkStatus { fids: list }).await, 102);
        let good = rxafs::Fids::from_iter_cut(fids[..49].iter().copied());
        assert_eq!(
            machine
                .ok(&rxafs::BulkStatus { fids: good })
                .await
                .statuses
                .len(),
            49
        );
        let none = rxafs::Fids::new();
        assert_eq!(
            machine
                .code(&rxafs::BulkStatus { fids: none.clone() })
                .await,
            22
        );
        assert_eq!(
            machine.code(&rxafs::InlineBulkStatus { fids: none }).await,
            22
        );
    });
}

#[test]
fn a_read_only_volume_is_promised_whole_and_changes_nothing() {
    with_file(async |cell, [machine], fid| {
        machine.store(fid, 0, b"before").await.unwrap();
        cell.make_clone();
        machine.store(fid, 0, b"after!").await.unwrap();
        let copy = Fid {
            volume: CLONE,
            ..fid
        };
        let status = machine.status(copy).await;
        assert_eq!(status.callback.expires_in_secs, 2 * 3600);
        assert_eq!(
            status.sync.creation_date,
            AfsTime(NOW as u32),
            "the clone's date"
        );
        assert_eq!(machine.fetch(copy, 0, 100).await.unwrap(), b"before");
        assert_eq!(
            machine
                .code(&rxafs::RemoveFile {
                    dir_fid: Fid::root(CLONE),
                    name: name("f")
                })
                .await,
            30
        );
        assert_eq!(machine.store(copy, 0, b"x").await.unwrap_err().code().0, 30);
        machine
            .ok(&rxafs::SetLock {
                fid: copy,
                lock_type: 0,
            })
            .await;
        assert_eq!(
            machine
                .code(&rxafs::SetLock {
                    fid: copy,
                    lock_type: 1
                })
                .await,
            30
        );
        machine.ok(&rxafs::ReleaseLock { fid: copy }).await;
    });
}

#[test]
fn times_modes_and_owners() {
    with_file(async |cell, [machine], fid| {
        let set = |in_status| rxafs::StoreStatus { fid, in_status };
        let status = machine
            .ok(&set(AfsStoreStatus {
                client_mod_time: Some(AfsTime(5)),
                unix_mode: Some(0o1777),
                owner: Some(cellar_wire::ViceId::ANONYMOUS),
                ..AfsStoreStatus::default()
            }))
            .await
            .status;
        assert_eq!(
            (status.client_mod_time, status.unix_mode),
            (AfsTime(5), 0o777)
        );
        assert_eq!(status.data_version, 0);
        let owner = AfsStoreStatus {
            owner: Some(cellar_wire::ViceId(7)),
            ..AfsStoreStatus::default()
        };
        assert_eq!(machine.code(&set(owner)).await, 1);
        // Its owner is finishing the file: bits that it may not set are omitted.
        let reply = machine.ok(&set(mode(0o4755))).await;
        assert_eq!(reply.status.unix_mode, 0o755);
        let admin = cell.admin().await;
        let reply = admin.call(&set(owner)).await.unwrap();
        assert_eq!(reply.status.owner.0, 7);
        assert_eq!(machine.code(&set(mode(0o4755))).await, 13);
        let reply = admin.call(&set(mode(0o4755))).await.unwrap();
        assert_eq!(reply.status.unix_mode, 0o4755);
        // A store by another user removes the set-id bits.
        let status = machine.store(fid, 0, b"x").await.unwrap();
        assert_eq!(status.unix_mode, 0o755);
    });
}
