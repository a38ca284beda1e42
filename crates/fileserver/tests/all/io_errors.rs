//! A partition whose disk fails: every call refuses changes with EIO, to every kind of client, and
//! reads continue. The store returns "stopped" after the first failed write; clients must not get
//! "read-only".

use crate::common;

use std::sync::atomic::Ordering;

use crate::common::volser::{NEW, RO, Volser};
use crate::common::{Cell, Machine, OPEN, code, mode, name, quota, run};
use cellar_volume::disk::Fault;
use cellar_wire::afsvol::{
    self, Clone, CreateVolume, DeleteVolume, EndTrans, IT_BUSY, IT_OFFLINE, SetFlags, SetIdsTypes,
};
use cellar_wire::ids::{Fid, VolumeId};
use cellar_wire::rxafs;

const EIO: i32 = 5;
const UAEIO: i32 = 49_733_380;

/// Every call with which a client changes something. The first meets the failing disk, the others
/// the partition that takes no more changes.
#[test]
fn clients_hear_eio_from_a_partition_that_takes_no_more_changes() {
    for (translates, eio) in [(false, EIO), (true, UAEIO)] {
        for fault in [Fault::Write(1), Fault::Sync(1), Fault::Dead(1)] {
            let cell = Cell::start();
            let machine = Machine::new(&cell, 1);
            let service = &machine.service;
            service
                .translates_errors
                .store(translates, Ordering::Relaxed);
            run(async {
                let root = Fid::root(OPEN);
                let dir = machine.make_dir(root, "dir").await;
                let file = machine.create(dir, "file").await;
                machine.store(file, 0, b"bytes").await.unwrap();
                let kept = machine.create(root, "kept").await;
                machine.store(kept, 0, b"bytes").await.unwrap();
                cell.disk.set_fault(fault);
                let mut codes = Vec::new();
                macro_rules! changes {
                    ($($call:expr),* $(,)?) => { $(
                        let call = $call;
                        let what = format!("{call:?}").split(' ').next().unwrap().to_owned();
                        codes.push((what, machine.code(&call).await));
                    )* };
                }
                changes! {
                    rxafs::CreateFile { dir_fid: dir, name: name("new"), in_status: mode(0o644) },
                    rxafs::MakeDir { dir_fid: dir, name: name("sub"), in_status: mode(0o755) },
                    rxafs::Symlink {
                        dir_fid: dir,
                        name: name("link"),
                        link_contents: "x".try_into().unwrap(),
                        in_status: mode(0o755),
                    },
                    rxafs::Link { dir_fid: dir, name: name("again"), existing_fid: file },
                    rxafs::Rename {
                        old_dir_fid: dir,
                        old_name: name("file"),
                        new_dir_fid: dir,
                        new_name: name("other"),
                    },
                    rxafs::StoreStatus { fid: file, in_status: mode(0o600) },
                    rxafs::StoreACL {
                        fid: dir,
                        access_list: rxafs::AfsOpaque::try_from("1\n0\nsystem:anyuser\t127\n\0").unwrap(),
                    },
                    rxafs::RemoveFile { dir_fid: dir, name: name("file") },
                    rxafs::RemoveDir { dir_fid: root, name: name("dir") },
                }
                let small = machine.store(file, 0, b"others").await;
                codes.push(("StoreData64".into(), code(small, "StoreData64")));
                let large = machine.store(file, 0, &vec![7; 300_000]).await;
                codes.push(("StoreData64, large".into(), code(large, "StoreData64")));
                let admin = cell.admin().await;
                let changed = admin.call(&quota(1000)).await;
                let plain = changed.unwrap_err().code().to_plain().0;
                assert_eq!(plain, EIO, "SetVolumeStatus");
                for (what, code) in codes {
                    assert_eq!(code, eio, "{what} after {fault:?}");
                }
                // Reads continue. Only the directory of the failed change is in doubt, so it gives
                // EIO too.
                assert_eq!(machine.lookup(root, "kept").await, kept);
                assert_eq!(machine.lookup(root, "dir").await, dir);
                for fid in [kept, file] {
                    assert_eq!(machine.fetch(fid, 0, 100).await.unwrap(), b"bytes");
                    assert_eq!(machine.status(fid).await.status.length, 5);
                }
                assert_eq!(machine.code(&rxafs::FetchStatus { fid: dir }).await, eio);
            });
        }
    }
}

/// The same for the calls of `vos`: never read-only, never off-line.
#[test]
fn administrators_hear_eio_from_a_partition_that_takes_no_more_changes() {
    let cell = Cell::start();
    run(async {
        let source = Volser(cell.admin().await);
        let admin = &source.0;
        let busy = source.begin(OPEN, IT_BUSY).await;
        let offline = source.begin(common::SHUT, IT_OFFLINE).await;
        cell.disk.set_fault(Fault::Dead(1));
        let create = CreateVolume {
            partition: 0,
            name: "new".try_into().unwrap(),
            volume_type: afsvol::READWRITE,
            parent: VolumeId(0),
            volume: NEW,
        };
        assert_eq!(code(admin.call(&create).await, "CreateVolume"), EIO);
        let clone = Clone {
            trans: busy,
            purge_volume: VolumeId(0),
            new_type: afsvol::READONLY,
            new_name: "scratch.readonly".try_into().unwrap(),
            new_volume: RO,
        };
        assert_eq!(code(admin.call(&clone).await, "Clone"), EIO);
        let ids = SetIdsTypes {
            trans: offline,
            name: "renamed".try_into().unwrap(),
            volume_type: afsvol::READWRITE,
            parent: common::SHUT,
            clone: VolumeId(0),
            backup: VolumeId(0),
        };
        assert_eq!(code(admin.call(&ids).await, "SetIdsTypes"), EIO);
        let flags = SetFlags {
            trans: offline,
            flags: 3,
        };
        let flags = admin.call(&flags).await;
        assert!(flags.is_ok() || code(flags, "SetFlags") == EIO);
        let delete = DeleteVolume { trans: offline };
        assert_eq!(code(admin.call(&delete).await, "DeleteVolume"), EIO);
        // Reads continue, so the volumes can be moved away from the disk.
        let whole = source.dump(busy, 0).await;
        assert!(!whole.is_empty());
        for trans in [busy, offline] {
            let _ended = admin.call(&EndTrans { trans }).await;
        }
    });
}
