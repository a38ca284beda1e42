//! The operations and their rules, on a disk in memory.

use crate::common::*;
use bytes::Bytes;
use cellar_volume::{Error, FileType, SetStatus, StoreSpec, VolumeKind, nonblocking};
use cellar_wire::ids::{Fid, ViceId, VnodeId};

#[test]
fn a_tree_is_made_read_and_removed() {
    let world = World::new();
    let volume = world.volume();
    let root = volume.root();
    let dir = volume.make_dir(root, b"d", &new(), at(5)).unwrap().outcome;
    assert_eq!(dir.status.link_count, 2);
    assert_eq!(dir.dir.link_count, 3);
    assert_eq!(dir.dir.data_version, 2);
    let file = volume
        .create_file(dir.status.fid, b"f", &new(), at(6))
        .unwrap()
        .outcome;
    assert_eq!((file.status.data_version, file.status.length), (0, 0));
    let fid = file.status.fid;
    assert_eq!(volume.lookup(dir.status.fid, b"f").unwrap(), fid);
    let stored = volume.store(
        fid,
        &StoreSpec::at(0),
        &[Bytes::from_static(b"hello")],
        at(7),
    );
    assert_eq!(stored.unwrap().wait().unwrap().data_version, 1);
    assert_eq!(volume.read(fid, 0, 100).unwrap(), "hello");
    assert_eq!(volume.read(fid, 3, 100).unwrap(), "lo");
    assert_eq!(
        volume.remove_dir(root, b"d", at(8)).unwrap_err(),
        Error::NotEmpty
    );
    let removed = volume
        .remove_file(dir.status.fid, b"f", at(9))
        .unwrap()
        .outcome;
    assert_eq!(removed.status.link_count, 0);
    assert_eq!(volume.status(fid).unwrap_err(), Error::NoVnode(fid));
    let removed = volume.remove_dir(root, b"d", at(9)).unwrap();
    assert_eq!(removed.outcome.dir.link_count, 2);
    removed.wait().unwrap();
    world.check();
    assert_eq!(volume.info().files, 1);
    assert_eq!(volume.info().blocks_used, 2);
}

#[test]
fn everything_is_there_after_reopening() {
    let world = World::new();
    let volume = world.volume();
    let root = volume.root();
    let large: Vec<u8> = (0..3_000_000u32).map(|n| ((n * 7) >> 3) as u8).collect();
    let file = volume
        .create_file(root, b"large", &new(), at(1))
        .unwrap()
        .outcome
        .status
        .fid;
    volume
        .store(file, &StoreSpec::at(0), &[large.clone().into()], at(2))
        .unwrap()
        .wait()
        .unwrap();
    let link = volume
        .symlink(root, b"l", b"#root.cell.", &new(), at(2))
        .unwrap();
    let link = link.wait().unwrap().status.fid;
    let world = world.reopen();
    let volume = world.volume();
    assert_eq!(volume.read(file, 0, 4_000_000).unwrap(), large);
    assert_eq!(
        volume.read(file, 1_000_001, 5000).unwrap(),
        large[1_000_001..1_005_001]
    );
    assert_eq!(volume.read(link, 0, 100).unwrap(), "#root.cell.");
    assert_eq!(volume.status(link).unwrap().kind, FileType::Symlink);
    let next = volume
        .create_file(root, b"next", &new(), at(3))
        .unwrap()
        .outcome
        .status
        .fid;
    assert!(next.vnode > file.vnode && next.uniquifier > link.uniquifier);
    world.check();
}

#[test]
fn store_length_rule_and_holes() {
    let world = World::new();
    let volume = world.volume();
    let fid = volume
        .create_file(volume.root(), b"f", &new(), at(1))
        .unwrap()
        .outcome
        .status
        .fid;
    let store = |position, file_length, data: &[u8]| {
        let spec = StoreSpec {
            file_length,
            ..StoreSpec::at(position)
        };
        let data = Bytes::copy_from_slice(data);
        volume
            .store(fid, &spec, &[data], at(2))
            .unwrap()
            .outcome
            .length
    };
    assert_eq!(store(10, 10, b"abc"), 13);
    assert_eq!(volume.read(fid, 0, 99).unwrap(), "\0\0\0\0\0\0\0\0\0\0abc");
    assert_eq!(store(0, 11, b""), 11);
    assert_eq!(store(20, 20, b""), 20);
    assert_eq!(volume.read(fid, 9, 99).unwrap(), "\0a\0\0\0\0\0\0\0\0\0");
    assert_eq!(store(1 << 40, 0, b"end"), (1 << 40) + 3);
    assert_eq!(volume.read(fid, 0, 20).unwrap(), [0; 20][..]);
    assert_eq!(volume.read(fid, 1 << 40, 20).unwrap(), "end");
    assert_eq!(store(0, 5, b""), 5);
    assert_eq!(
        store(i64::MAX as u64 - 1, u64::MAX >> 1, b"x"),
        i64::MAX as u64
    );
    let spec = StoreSpec::at(i64::MAX as u64);
    let beyond = volume
        .store(fid, &spec, &[Bytes::from_static(b"x")], at(2))
        .unwrap_err();
    assert_eq!(beyond, Error::FileTooBig);
    assert_eq!(store(0, 0, b""), 0);
    assert_eq!(volume.status(fid).unwrap().data_version, 7);
    world.check();
}

#[test]
fn a_rename_to_a_free_name_replaces_nothing() {
    let world = World::new();
    let volume = world.volume();
    let root = volume.root();
    for name in [b"f", b"g"] {
        let made = volume.create_file(root, name, &new(), at(1));
        assert!(made.is_ok());
    }
    let rename = |new: &[u8]| {
        let renamed = volume.rename_to_free_name(root, b"f", root, new, at(2));
        renamed.map(|changed| changed.outcome.replaced.is_some())
    };
    assert_eq!(rename(b"g").unwrap_err(), Error::Exists);
    assert_eq!(rename(b"h"), Ok(false));
    assert!(volume.lookup(root, b"g").is_ok());
}

#[test]
fn renames_follow_the_matrix() {
    let world = World::new();
    let volume = world.volume();
    let root = volume.root();
    let dir = |parent: Fid, name: &[u8]| {
        volume
            .make_dir(parent, name, &new(), at(1))
            .unwrap()
            .outcome
            .status
            .fid
    };
    let file = |parent: Fid, name: &[u8]| {
        volume
            .create_file(parent, name, &new(), at(1))
            .unwrap()
            .outcome
            .status
            .fid
    };
    let (a, b) = (dir(root, b"a"), dir(root, b"b"));
    let (f, g) = (file(root, b"f"), file(root, b"g"));
    let sub = dir(a, b"sub");
    let rename = |od, o: &[u8], nd, n: &[u8]| volume.rename(od, o, nd, n, at(2)).map(|c| c.outcome);
    assert_eq!(rename(root, b"a", sub, b"x").unwrap_err(), Error::Loop);
    assert_eq!(rename(root, b"a", a, b"x").unwrap_err(), Error::Loop);
    assert_eq!(
        rename(root, b"f", root, b"a").unwrap_err(),
        Error::IsDirectory
    );
    assert_eq!(
        rename(root, b"a", root, b"f").unwrap_err(),
        Error::NotDirectory
    );
    assert_eq!(rename(root, b"b", root, b"a").unwrap_err(), Error::NotEmpty);
    assert_eq!(
        rename(root, b"none", root, b"x").unwrap_err(),
        Error::NotFound
    );
    assert!(matches!(
        rename(root, b"f", root, b"f"),
        Err(Error::Invalid(_))
    ));
    assert!(matches!(
        rename(root, b"f", root, b"x/y"),
        Err(Error::Invalid(_))
    ));
    let before = volume.status(root).unwrap();
    let done = rename(root, b"f", root, b"h").unwrap();
    assert_eq!(done.new_dir.data_version, before.data_version + 1);
    assert_eq!(done.moved.data_version, 0);
    let done = rename(root, b"h", root, b"g").unwrap();
    assert_eq!(done.replaced.unwrap().fid, g);
    assert_eq!(volume.lookup(root, b"g").unwrap(), f);
    let done = rename(a, b"sub", b, b"sub").unwrap();
    assert_eq!(
        done.moved.data_version,
        volume.status(sub).unwrap().data_version
    );
    assert_eq!((done.old_dir.link_count, done.new_dir.link_count), (2, 3));
    assert_eq!(volume.lookup(sub, b"..").unwrap(), b);
    volume.link(root, b"g2", f, at(3)).unwrap().wait().unwrap();
    assert_eq!(rename(root, b"g", b, b"g").unwrap_err(), Error::CrossDevice);
    assert_eq!(
        volume.link(a, b"x", f, at(3)).unwrap_err(),
        Error::CrossDevice
    );
    assert_eq!(
        volume.link(root, b"x", a, at(3)).unwrap_err(),
        Error::IsDirectory
    );
    world.check();
}

#[test]
fn quotas_hold_to_the_block() {
    let world = World::new();
    let volume = world.volume();
    volume
        .update_info(at(1).now, |info| info.max_quota = 10)
        .unwrap()
        .wait()
        .unwrap();
    let fid = volume
        .create_file(volume.root(), b"f", &new(), at(1))
        .unwrap()
        .outcome
        .status
        .fid;
    let spec = StoreSpec {
        quota_slack: 0,
        ..StoreSpec::at(0)
    };
    let store = |bytes: usize| volume.store(fid, &spec, &[vec![1; bytes].into()], at(2));
    store(8 << 10).unwrap().wait().unwrap();
    assert_eq!(store((8 << 10) + 1).unwrap_err(), Error::OverQuota);
    assert_eq!(volume.status(fid).unwrap().data_version, 1);
    assert_eq!(
        volume
            .create_file(volume.root(), b"g", &new(), at(1))
            .unwrap_err(),
        Error::OverQuota
    );
    let slack = StoreSpec {
        quota_slack: 1024,
        ..spec
    };
    volume
        .store(fid, &slack, &[vec![1; 9 << 10].into()], at(2))
        .unwrap()
        .wait()
        .unwrap();
    volume
        .remove_file(volume.root(), b"f", at(3))
        .unwrap()
        .wait()
        .unwrap();
    assert_eq!(volume.info().blocks_used, 2);
    world.check();
}

#[test]
fn a_clone_keeps_what_was_and_goes_without_a_trace() {
    let world = World::new();
    let volume = world.volume();
    let root = volume.root();
    let big = vec![3u8; 600_000];
    let f = volume
        .create_file(root, b"f", &new(), at(1))
        .unwrap()
        .outcome
        .status
        .fid;
    let g = volume
        .create_file(root, b"g", &new(), at(1))
        .unwrap()
        .outcome
        .status
        .fid;
    volume
        .store(f, &StoreSpec::at(0), &[big.clone().into()], at(1))
        .unwrap()
        .wait()
        .unwrap();
    volume
        .store(g, &StoreSpec::at(0), &[Bytes::from_static(b"old")], at(1))
        .unwrap()
        .wait()
        .unwrap();
    let clone = world.clone_of(&volume, 12, VolumeKind::Backup);
    volume
        .store(
            f,
            &StoreSpec::at(300_000),
            &[Bytes::from_static(b"new")],
            at(2),
        )
        .unwrap()
        .wait()
        .unwrap();
    volume
        .store(g, &StoreSpec::at(0), &[Bytes::from_static(b"newer")], at(2))
        .unwrap()
        .wait()
        .unwrap();
    volume
        .create_file(root, b"h", &new(), at(2))
        .unwrap()
        .wait()
        .unwrap();
    volume
        .remove_file(root, b"g", at(2))
        .unwrap()
        .wait()
        .unwrap();
    let in_clone = |fid: Fid| Fid {
        volume: clone.id(),
        ..fid
    };
    let look = |clone: &cellar_volume::Volume| {
        assert_eq!(clone.read(in_clone(f), 0, 1 << 20).unwrap(), big);
        assert_eq!(clone.read(in_clone(g), 0, 1 << 20).unwrap(), "old");
        assert_eq!(
            clone.lookup(clone.root(), b"h").unwrap_err(),
            Error::NotFound
        );
        assert_eq!(clone.lookup(clone.root(), b"g").unwrap(), in_clone(g));
    };
    look(&clone);
    assert_eq!(
        clone
            .create_file(clone.root(), b"x", &new(), at(1))
            .unwrap_err(),
        Error::ReadOnly
    );
    assert_eq!(volume.status(g).unwrap_err(), Error::NoVnode(g));
    world.check();
    let world = world.reopen();
    let volume = world.volume();
    look(&world.partition.volume(clone.id()).unwrap().unwrap());
    world
        .partition
        .delete_volume(clone.id())
        .unwrap()
        .wait()
        .unwrap();
    assert!(world.partition.volume(clone.id()).unwrap().is_none());
    world.partition.reap_now().unwrap();
    world.check_clean();
    let mut expected = big.clone();
    expected[300_000..300_003].copy_from_slice(b"new");
    assert_eq!(volume.read(f, 0, 1 << 20).unwrap(), expected);
    world
        .partition
        .delete_volume(volume.id())
        .unwrap()
        .wait()
        .unwrap();
    world.partition.reap_now().unwrap();
    world.check_clean();
}

#[test]
fn a_vnode_in_memory_answers_without_waiting_and_others_do_not() {
    let world = World::new();
    let volume = world.volume();
    let fid = volume
        .create_file(volume.root(), b"f", &new(), at(1))
        .unwrap()
        .outcome
        .status
        .fid;
    volume
        .store(fid, &StoreSpec::at(0), &[Bytes::from_static(b"x")], at(2))
        .unwrap()
        .wait()
        .unwrap();
    nonblocking(|| volume.status_and_acl(fid)).unwrap();
    assert_eq!(nonblocking(|| volume.read(fid, 0, 1)).unwrap(), "x");
    nonblocking(|| volume.create_file(volume.root(), b"g", &new(), at(1)))
        .unwrap()
        .wait()
        .unwrap();
    let world = world.reopen();
    let volume = world.volume();
    assert_eq!(
        nonblocking(|| volume.status(fid)).unwrap_err(),
        Error::WouldBlock
    );
    volume.status(fid).unwrap();
    nonblocking(|| volume.status(fid)).unwrap();
    let large = volume
        .create_file(volume.root(), b"large", &new(), at(1))
        .unwrap()
        .outcome;
    let large = large.status.fid;
    let data = Bytes::from(vec![6; 1_000_000]);
    volume
        .store(large, &StoreSpec::at(0), &[data], at(2))
        .unwrap()
        .wait()
        .unwrap();
    world.partition.flush().unwrap();
    assert_eq!(
        nonblocking(|| volume.read(large, 0, 5)).unwrap_err(),
        Error::WouldBlock
    );
    volume.read(large, 0, 5).unwrap();
    assert_eq!(
        nonblocking(|| volume.read(large, 100_000, 3)).unwrap(),
        [6; 3][..]
    );
}

#[test]
fn stale_and_foreign_fids_are_refused() {
    let world = World::new();
    let volume = world.volume();
    let fid = volume
        .create_file(volume.root(), b"f", &new(), at(1))
        .unwrap()
        .outcome
        .status
        .fid;
    let stale = Fid {
        uniquifier: cellar_wire::ids::Uniquifier(77),
        ..fid
    };
    assert_eq!(volume.status(stale).unwrap_err(), Error::NoVnode(stale));
    let none = Fid {
        vnode: VnodeId(4444),
        ..fid
    };
    assert_eq!(volume.read(none, 0, 1).unwrap_err(), Error::NoVnode(none));
    let foreign = Fid {
        volume: cellar_wire::ids::VolumeId(999),
        ..fid
    };
    assert_eq!(volume.status(foreign).unwrap_err(), Error::CrossDevice);
    assert_eq!(volume.lookup(fid, b"x").unwrap_err(), Error::NotDirectory);
    assert_eq!(
        volume
            .store(volume.root(), &StoreSpec::at(0), &[], at(1))
            .unwrap_err(),
        Error::IsDirectory
    );
}

#[test]
fn the_owner_of_the_root_owns_the_volume() {
    let world = World::new();
    let volume = world.volume();
    let set = SetStatus {
        owner: Some(ViceId(77)),
        ..SetStatus::default()
    };
    volume
        .set_status(volume.root(), &set, at(9))
        .unwrap()
        .wait()
        .unwrap();
    assert_eq!(volume.owner(), ViceId(77));
    let edit = |info: &mut cellar_volume::VolumeInfo| {
        assert_eq!(info.updated, at(9).now);
        info.updated = at(5).now;
        info.blocks_used = 99;
    };
    let info = volume.update_info(at(9).now, edit).unwrap().wait().unwrap();
    assert_eq!((info.updated, info.blocks_used), (at(5).now, 2));
    let world = world.reopen();
    assert_eq!(world.volume().owner(), ViceId(77));
    assert_eq!(world.volume().info(), info);
}

#[test]
fn a_directory_takes_thirty_thousand_names() {
    let world = World::with_capacity(256 << 20);
    let volume = world.volume();
    let root = volume.root();
    for n in 0..30_000 {
        let name = format!("name-{n}");
        drop(
            volume
                .create_file(root, name.as_bytes(), &new(), at(1))
                .unwrap(),
        );
    }
    assert_eq!(volume.entries(root).unwrap().len(), 30_002);
    let world = world.reopen();
    let volume = world.volume();
    assert!(volume.lookup(root, b"name-29999").is_ok());
    assert_eq!(volume.info().files, 30_001);
    let length = volume.status(root).unwrap().length;
    assert_eq!(volume.read(root, 0, 4 << 20).unwrap().len() as u64, length);
}

#[test]
fn a_reader_sees_one_version_while_others_store() {
    let world = World::new();
    let volume = world.volume();
    let root = volume.root();
    for (name, length) in [("small", 3000), ("large", 2_000_000)] {
        let made = volume
            .create_file(root, name.as_bytes(), &new(), at(1))
            .unwrap();
        let fid = made.outcome.status.fid;
        let old: Vec<u8> = (0..length).map(|n| (n / 5) as u8).collect();
        let stored = volume.store(fid, &StoreSpec::at(0), &[old.clone().into()], at(1));
        stored.unwrap().wait().unwrap();
        let mut reader = volume.read_file(fid, 100, u64::MAX).unwrap();
        assert_eq!(reader.length(), length as u64 - 100);
        let mut read = reader.next(1000).unwrap().unwrap().to_vec();
        for n in 0..20u8 {
            let data = Bytes::from(vec![n; length + 5]);
            let stored = volume
                .store(fid, &StoreSpec::at(0), &[data], at(2))
                .unwrap();
            stored.wait().unwrap();
        }
        volume
            .remove_file(root, name.as_bytes(), at(3))
            .unwrap()
            .wait()
            .unwrap();
        let again = volume
            .create_file(root, b"again", &new(), at(1))
            .unwrap()
            .outcome
            .status
            .fid;
        let data = Bytes::from(vec![255; 8_000_000]);
        volume
            .store(again, &StoreSpec::at(0), &[data], at(2))
            .unwrap()
            .wait()
            .unwrap();
        while let Some(bytes) = reader.next(300_000).unwrap() {
            read.extend_from_slice(&bytes);
        }
        assert!(read == old[100..], "{name}");
        volume
            .remove_file(root, b"again", at(3))
            .unwrap()
            .wait()
            .unwrap();
    }
    world.check();
}

#[test]
fn a_large_body_goes_in_the_background() {
    let world = World::with_capacity(256 << 20);
    let volume = world.volume();
    let root = volume.root();
    let fid = volume
        .create_file(root, b"f", &new(), at(1))
        .unwrap()
        .outcome
        .status
        .fid;
    let data = Bytes::from(vec![8; 40_000_000]);
    volume
        .store(fid, &StoreSpec::at(0), &[data], at(1))
        .unwrap()
        .wait()
        .unwrap();
    let report = world.partition.check().unwrap();
    assert_eq!(report.blocks, 40_000_000u64.div_ceil(4096));
    // Cut to length 0, and used again at once.
    let spec = StoreSpec {
        file_length: 0,
        ..StoreSpec::at(0)
    };
    let data = Bytes::from(vec![9; 100_000]);
    volume
        .store(fid, &spec, std::slice::from_ref(&data), at(2))
        .unwrap()
        .wait()
        .unwrap();
    assert_eq!(volume.read(fid, 0, 1 << 20).unwrap(), data);
    for _ in 0..100 {
        if world.partition.check().unwrap().blocks == 25 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(world.partition.check().unwrap().blocks, 25);
    world.check_clean();
    assert_eq!(volume.read(fid, 0, 1 << 20).unwrap(), data);
}

/// A caller that still holds a removed clone must not get what another clone sees.
#[test]
fn a_removed_clone_answers_nothing_that_is_not_its_own() {
    let world = World::new();
    let volume = world.volume();
    let root = volume.root();
    let fids: Vec<_> = ["small", "large"]
        .iter()
        .map(|name| {
            let made = volume.create_file(root, name.as_bytes(), &new(), at(1));
            made.unwrap().outcome.status.fid
        })
        .collect();
    let write = |byte: u8| {
        for (fid, length) in fids.iter().zip([10, 300_000]) {
            let data = Bytes::from(vec![byte; length]);
            let stored = volume.store(*fid, &StoreSpec::at(0), &[data], at(2));
            stored.unwrap().wait().unwrap();
        }
    };
    write(1);
    let _first = world.clone_of(&volume, 11, VolumeKind::ReadOnly);
    write(2);
    let second = world.clone_of(&volume, 12, VolumeKind::Backup);
    write(3);
    let large = Fid {
        volume: second.id(),
        ..fids[1]
    };
    // The vnode is in memory, its pieces are not.
    assert_eq!(second.status(large).unwrap().length, 300_000);
    world
        .partition
        .delete_volume(second.id())
        .unwrap()
        .wait()
        .unwrap();
    world.partition.reap_now().unwrap();
    for fid in &fids {
        let fid = Fid {
            volume: second.id(),
            ..*fid
        };
        let read = second.read(fid, 0, 1 << 20);
        assert_eq!(read.unwrap_err(), Error::NoVolume(second.id()));
    }
    world.check_clean();
}
