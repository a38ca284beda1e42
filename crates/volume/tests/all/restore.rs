//! The contents of a restore appear exactly and at once, or not at all.

use crate::common;
use crate::common::restoring;

use std::sync::Arc;

use crate::common::{World, at, new};
use bytes::Bytes;
use cellar_volume::{
    AccessList, Error, FileType, Partition, Restore, RestoreMode, SnapshotSpec, StoreSpec, Volume,
    VolumeKind,
};
use cellar_wire::ids::{AfsTime, Fid, Uniquifier, VnodeId, VolumeId};
use restoring::*;

const TARGET: VolumeId = VolumeId(90);

fn pattern(length: usize, seed: u8) -> Bytes {
    (0..length)
        .map(|n| (n / 7) as u8 ^ seed | 1)
        .collect::<Vec<_>>()
        .into()
}

fn begin(world: &World, mode: RestoreMode) -> Restore {
    world.partition.begin_restore(TARGET, mode).unwrap()
}

fn make_file(volume: &Volume, dir: Fid, name: &str, bytes: &Bytes) -> Fid {
    let made = volume
        .create_file(dir, name.as_bytes(), &new(), at(100))
        .unwrap();
    let fid = made.outcome.status.fid;
    store(volume, fid, 0, bytes);
    fid
}

fn store(volume: &Volume, fid: Fid, position: u64, bytes: &Bytes) {
    let stored = volume.store(
        fid,
        &StoreSpec::at(position),
        std::slice::from_ref(bytes),
        at(101),
    );
    let _ = stored.unwrap();
}

/// A bit of everything: deep directories, links, mount points, small and large files, holes.
fn fill(volume: &Volume) {
    let root = volume.root();
    for (name, length) in [
        ("empty", 0),
        ("one", 1),
        ("inline", 4000),
        ("block", 4096),
        ("more", 4097),
        ("piece", 256 << 10),
        ("large", 3_000_001),
    ] {
        make_file(volume, root, name, &pattern(length, length as u8));
    }
    let sparse = make_file(volume, root, "sparse", &pattern(100, 3));
    store(volume, sparse, 5_000_000_000, &pattern(10_000, 4));
    let hole = make_file(volume, root, "hole", &Bytes::new());
    let longer = StoreSpec {
        file_length: i64::MAX as u64,
        ..StoreSpec::at(1 << 20)
    };
    let _ = volume.store(hole, &longer, &[], at(102)).unwrap();
    let mut dir = root;
    for level in 0..4 {
        let made = volume
            .make_dir(dir, format!("dir{level}").as_bytes(), &new(), at(103))
            .unwrap();
        dir = made.outcome.status.fid;
        for n in 0..60 {
            make_file(volume, dir, &format!("file{n}"), &pattern(n * 50, n as u8));
        }
        let inside = volume.lookup(dir, b"file1").unwrap();
        let _ = volume.link(dir, b"again", inside, at(104)).unwrap();
    }
    let link = [
        (&b"link"[..], &b"dir0/file1"[..]),
        (b"mount", b"#root.cell."),
    ];
    for (name, target) in link {
        let _ = volume.symlink(root, name, target, &new(), at(105)).unwrap();
    }
    let _ = volume
        .set_acl(dir, AccessList::administrators_only(), at(106))
        .unwrap();
    // A directory below one with a higher number.
    let early = volume.lookup(root, b"dir0").unwrap();
    let late = volume.make_dir(root, b"late", &new(), at(107)).unwrap();
    let late = late.outcome.status.fid;
    assert!(early.vnode < late.vnode);
    let _ = volume
        .rename(root, b"dir0", late, b"moved", at(108))
        .unwrap();
}

/// Contents without the very large sparse file.
fn filled() -> (World, Arc<Volume>, Contents) {
    let world = World::with_capacity(256 << 20);
    let volume = world.volume();
    fill(&volume);
    let sparse = volume.lookup(volume.root(), b"sparse").unwrap();
    // 5 GB of zeros are compared separately.
    let status = volume.status(sparse).unwrap();
    assert!(status.length > 5_000_000_000);
    let _ = volume
        .remove_file(volume.root(), b"sparse", at(109))
        .unwrap();
    let contents = contents(&volume);
    (world, volume, contents)
}

#[test]
fn a_full_restore_brings_everything() {
    let (world, volume, wanted) = filled();
    for kind in [VolumeKind::ReadOnly, VolumeKind::ReadWrite] {
        let id = VolumeId(TARGET.0 + kind as u32);
        empty_volume(&world.partition, id, kind);
        let restored = restore_over(&world.partition, id, &Contents::new(), &wanted).unwrap();
        assert!(contents(&restored) == wanted);
        let (is, was) = (restored.info(), volume.info());
        assert_eq!((is.blocks_used, is.files), (was.blocks_used, was.files));
        assert_eq!((is.updated, is.update_counter), (AfsTime(777), 7));
        assert_eq!(is.kind, kind);
        world.check();
    }
    world.partition.reap_now().unwrap();
    world.check_clean();
    let world = world.reopen();
    for id in [TARGET, VolumeId(TARGET.0 + 1)] {
        let restored = world.partition.volume(id);
        if let Some(restored) = restored.unwrap() {
            assert!(contents(&restored) == wanted);
        }
    }
    world.check_clean();
}

#[test]
fn new_files_of_a_restored_volume_get_numbers_that_were_never_used() {
    let (world, _, wanted) = filled();
    empty_volume(&world.partition, TARGET, VolumeKind::ReadWrite);
    let restored = restore_over(&world.partition, TARGET, &Contents::new(), &wanted).unwrap();
    let uniquifiers = wanted.values().map(|item| item.image.uniquifier.0);
    let highest = uniquifiers.max().unwrap();
    let made = restored
        .create_file(restored.root(), b"new", &new(), at(200))
        .unwrap();
    let fid = made.outcome.status.fid;
    assert!(!wanted.contains_key(&fid.vnode.0) && fid.uniquifier.0 > highest);
    let made = restored.make_dir(restored.root(), b"newdir", &new(), at(200));
    assert!(!wanted.contains_key(&made.unwrap().outcome.status.fid.vnode.0));
    store(&restored, fid, 0, &pattern(500_000, 1));
    world.partition.reap_now().unwrap();
    world.check_clean();
}

#[test]
fn an_incremental_restore_changes_what_changed() {
    let (world, volume, old) = filled();
    empty_volume(&world.partition, TARGET, VolumeKind::ReadOnly);
    restore_over(&world.partition, TARGET, &Contents::new(), &old).unwrap();
    let root = volume.root();
    let large = volume.lookup(root, b"large").unwrap();
    store(&volume, large, 1_000_000, &pattern(10_000, 99));
    let _ = volume.remove_file(root, b"piece", at(201)).unwrap();
    let _ = volume.remove_file(root, b"inline", at(201)).unwrap();
    make_file(&volume, root, "other", &pattern(700_000, 5));
    let late = volume.lookup(root, b"late").unwrap();
    let _ = volume
        .rename(late, b"moved", root, b"back", at(202))
        .unwrap();
    let _ = volume.remove_dir(root, b"late", at(203)).unwrap();
    let new = contents(&volume);
    let restored = restore_over(&world.partition, TARGET, &old, &new).unwrap();
    assert!(contents(&restored) == new);
    let (is, was) = (restored.info(), volume.info());
    assert_eq!((is.blocks_used, is.files), (was.blocks_used, was.files));
    drop(restored);
    world.check();
    world.partition.reap_now().unwrap();
    world.check_clean();
    // Back again, with a full restore: nothing is kept.
    let restored = restore_over(&world.partition, TARGET, &Contents::new(), &old).unwrap();
    assert!(contents(&restored) == old);
    drop(restored);
    world.partition.reap_now().unwrap();
    world.reopen().check_clean();
}

#[test]
fn readers_see_the_old_contents_until_the_commit_and_go_on_with_them() {
    let (world, volume, old) = filled();
    let root = volume.root();
    make_file(&volume, root, "added", &pattern(400_000, 5));
    let new = contents(&volume);
    empty_volume(&world.partition, TARGET, VolumeKind::ReadWrite);
    restore_over(&world.partition, TARGET, &Contents::new(), &old).unwrap();
    let before = world.partition.volume(TARGET).unwrap().unwrap();
    let large = before.lookup(before.root(), b"large").unwrap();
    let reader = before.read_file(large, 0, u64::MAX).unwrap();
    let mut restore = begin(&world, RestoreMode::Incremental);
    for item in in_order(&new) {
        put(&mut restore, item).unwrap();
        assert!(before.lookup(before.root(), b"added").is_err());
    }
    let during = world.partition.volume(TARGET).unwrap().unwrap();
    assert!(contents(&during) == old && during.is_restoring());
    let refused = during.create_file(during.root(), b"x", &common::new(), at(300));
    assert_eq!(refused.unwrap_err(), Error::Busy(TARGET));
    let again = world.partition.begin_restore(TARGET, RestoreMode::Full);
    assert_eq!(again.unwrap_err(), Error::Busy(TARGET));
    // A clone made now has the old contents.
    let kind = VolumeKind::Backup;
    let spec = SnapshotSpec::new(TARGET, VolumeId(95), "clone", kind, AfsTime(9));
    let clone = world.partition.snapshot(&spec).unwrap().wait().unwrap();
    let after = finish(restore).unwrap();
    assert!(contents(&after) == new && contents(&clone) == old);
    // A caller that had it open reads on, whatever the background removal does.
    world.partition.reap_now().unwrap();
    assert!(before.is_gone() && contents(&before) == old);
    drop((during, reader));
    assert!(contents(&before) == old);
    drop(before);
    world
        .partition
        .delete_volume(VolumeId(95))
        .unwrap()
        .wait()
        .unwrap();
    drop(clone);
    world.partition.reap_now().unwrap();
    world.check_clean();
    assert!(contents(&after) == new);
}

#[test]
fn a_restore_that_stops_anywhere_leaves_the_volume_as_it_was() {
    let (world, volume, old) = filled();
    empty_volume(&world.partition, TARGET, VolumeKind::ReadWrite);
    restore_over(&world.partition, TARGET, &Contents::new(), &old).unwrap();
    let root = volume.root();
    let _ = volume.remove_file(root, b"large", at(201)).unwrap();
    make_file(&volume, root, "other", &pattern(700_000, 5));
    let new = contents(&volume);
    world.partition.reap_now().unwrap();
    let blocks = world.partition.check().unwrap().blocks;
    let target = world.partition.volume(TARGET).unwrap().unwrap();
    let items = in_order(&new);
    for steps in [0, 1, 3, 20, 150, items.len()] {
        let mut restore = begin(&world, RestoreMode::Incremental);
        for item in items.iter().take(steps) {
            put(&mut restore, item).unwrap();
        }
        if steps % 2 == 0 {
            restore.abort().unwrap();
        } else {
            drop(restore);
            assert!(contents(&target) == old, "{steps}");
            world.partition.reap_now().unwrap();
        }
        assert!(contents(&target) == old, "{steps}");
        assert!(!target.is_restoring());
        world.check_clean();
        assert_eq!(world.partition.check().unwrap().blocks, blocks);
    }
    let made = target.create_file(target.root(), b"after", &common::new(), at(5));
    made.unwrap().wait().unwrap();
    world.check_clean();
}

#[test]
fn a_restart_undoes_a_restore_that_was_under_way() {
    let (world, volume, old) = filled();
    empty_volume(&world.partition, TARGET, VolumeKind::ReadWrite);
    restore_over(&world.partition, TARGET, &Contents::new(), &old).unwrap();
    let root = volume.root();
    make_file(&volume, root, "other", &pattern(700_000, 5));
    let new = contents(&volume);
    let mut restore = begin(&world, RestoreMode::Incremental);
    for item in in_order(&new) {
        put(&mut restore, item).unwrap();
    }
    world.partition.flush().unwrap();
    let crashed = world.disk.power_cut(None);
    let partition = Partition::open(Arc::new(crashed), common::options()).unwrap();
    let target = partition.volume(TARGET).unwrap().unwrap();
    assert!(contents(&target) == old);
    partition.reap_now().unwrap();
    let report = partition.check().unwrap();
    assert!(report.faults.is_empty(), "{:#?}", report.faults);
    assert_eq!(report.unseen, 0, "{:#?}", report.unseen_keys);
    let made = target.create_file(target.root(), b"after", &common::new(), at(5));
    made.unwrap().wait().unwrap();
}

#[test]
fn files_beyond_4_gib_keep_their_holes() {
    let world = World::new();
    empty_volume(&world.partition, TARGET, VolumeKind::ReadOnly);
    let volume = world.volume();
    let wanted = contents(&volume);
    let mut restore = begin(&world, RestoreMode::Full);
    // The volume has a directory with the file's name; only the file's contents are invented.
    let sparse = make_file(&volume, volume.root(), "sparse", &Bytes::new());
    let with_file = contents(&volume);
    let mut image = with_file[&sparse.vnode.0].image.clone();
    image.length = 6_000_000_123;
    put(&mut restore, &with_file[&1]).unwrap();
    restore.put(&image).unwrap();
    restore.push(pattern(5000, 1)).unwrap();
    restore.push(Bytes::from(vec![0; 1 << 20])).unwrap();
    restore.skip(5_000_000_000).unwrap();
    restore.push(pattern(100_000, 2)).unwrap();
    let left = image.length - 5000 - (1 << 20) - 5_000_000_000 - 100_000;
    restore.zeros(left - 1).unwrap();
    restore.push(pattern(1, 3)).unwrap();
    assert!(restore.push(pattern(1, 3)).is_err(), "one byte too many");
    let restored = finish(restore).unwrap();
    let file = fid(&restored, image.vnode.0, image.uniquifier.0);
    assert_eq!(restored.status(file).unwrap().length, image.length);
    assert_eq!(restored.read(file, 0, 5000).unwrap(), pattern(5000, 1));
    let at = 5000 + (1 << 20) + 5_000_000_000;
    assert_eq!(
        restored.read(file, at, 100_000).unwrap(),
        pattern(100_000, 2)
    );
    let end = restored.read(file, image.length - 10, 100).unwrap();
    assert_eq!((&end[..9], &end[9..]), (&[0; 9][..], &pattern(1, 3)[..]));
    assert!(
        restored
            .read(file, 10_000, 1 << 20)
            .unwrap()
            .iter()
            .all(|&b| b == 0)
    );
    // Two blocks at the start, at most 26 in the middle, one at the end.
    let blocks = world.partition.check().unwrap().blocks;
    assert!(blocks <= 29, "{blocks}");
    assert_eq!(restored.info().files, wanted.len() as u64 + 1);
    world.check();
}

#[test]
fn a_delta_for_another_base_is_refused() {
    let (world, volume, old) = filled();
    let begin = |mode| begin(&world, mode);
    empty_volume(&world.partition, TARGET, VolumeKind::ReadWrite);
    let root = Uniquifier(1);
    let refused = |result: cellar_volume::Result<()>| {
        assert!(matches!(result, Err(Error::WrongBase(_))), "{result:?}");
    };
    refused(begin(RestoreMode::Incremental).keep(VnodeId(1), root));
    world.partition.reap_now().unwrap();
    restore_over(&world.partition, TARGET, &Contents::new(), &old).unwrap();
    let mut restore = begin(RestoreMode::Incremental);
    restore.keep(VnodeId(1), root).unwrap();
    refused(restore.keep(VnodeId(3), Uniquifier(9999)));
    refused(restore.keep(VnodeId(99_999), root));
    refused(restore.remove(VnodeId(99_998)));
    let mut other = old[&1].image.clone();
    other.uniquifier = Uniquifier(4);
    refused(restore.patch(&other));
    restore.abort().unwrap();
    refused(begin(RestoreMode::Full).keep(VnodeId(1), root));
    world.partition.reap_now().unwrap();
    let clone = world.clone_of(&volume, 96, VolumeKind::ReadOnly);
    let beside = world.partition.begin_restore(clone.id(), RestoreMode::Full);
    assert!(matches!(beside, Err(Error::Invalid(_))));
    let nobody = world
        .partition
        .begin_restore(VolumeId(4), RestoreMode::Full);
    assert_eq!(nobody.unwrap_err(), Error::NoVolume(VolumeId(4)));
    drop(clone);
    world.check();
}

#[test]
fn an_impossible_volume_is_refused_and_leaves_the_old_one() {
    let (world, _, old) = filled();
    empty_volume(&world.partition, TARGET, VolumeKind::ReadWrite);
    restore_over(&world.partition, TARGET, &Contents::new(), &old).unwrap();
    let small = old.iter().find(|(vnode, _)| *vnode % 2 == 0).unwrap().1;
    let root = &old[&1];
    let changed = |change: fn(&mut Item)| {
        let mut item = small.clone();
        change(&mut item);
        vec![item]
    };
    let page = |at: usize, byte: u8| {
        let mut item = root.clone();
        let mut bytes = item.bytes.to_vec();
        bytes[at] ^= byte;
        item.bytes = bytes.into();
        vec![item]
    };
    let mut hostile = vec![
        changed(|item| item.image.vnode = VnodeId(0)),
        changed(|item| item.image.vnode = VnodeId(u32::MAX - 1)),
        changed(|item| item.image.vnode = VnodeId(11)),
        changed(|item| item.image.uniquifier = Uniquifier(0)),
        changed(|item| item.image.uniquifier = Uniquifier(u32::MAX)),
        changed(|item| item.image.kind = FileType::Directory),
        changed(|item| item.image.length = u64::MAX),
        changed(|item| {
            item.image.kind = FileType::Symlink;
            item.image.length = 5000;
        }),
        vec![small.clone(), small.clone()],
        // Without a root directory.
        vec![small.clone()],
        vec![],
    ];
    let mut bare = root.clone();
    bare.image.acl = None;
    let mut odd = root.clone();
    odd.image.length = 2047;
    let mut long = root.clone();
    long.image.length = 2048 * 1024;
    hostile.extend([vec![bare], vec![odd], vec![long]]);
    for (at, byte) in [
        (0, 1),
        (6, 0x40),
        (32, 1),
        (40, 0xff),
        (170, 0x7f),
        (333, 9),
    ] {
        hostile.push(page(at, byte));
    }
    let mut refused = 0;
    for items in &hostile {
        let mut restore = begin(&world, RestoreMode::Full);
        let brought = items.iter().try_for_each(|item| put(&mut restore, item));
        let ended = match brought {
            Ok(()) => finish(restore).map(drop),
            Err(error) => {
                restore.abort().unwrap();
                Err(error)
            }
        };
        if let Err(error) = ended {
            assert!(matches!(error, Error::Unsound(_)), "{error}");
            refused += 1;
        }
        world.partition.reap_now().unwrap();
        let target = world.partition.volume(TARGET).unwrap().unwrap();
        assert!(contents(&target) == old);
        drop(target);
        world.check_clean();
    }
    assert_eq!(refused, hostile.len());
    // The same after a restart.
    let world = world.reopen();
    let target = world.partition.volume(TARGET).unwrap().unwrap();
    assert!(contents(&target) == old);
}

#[test]
fn a_full_partition_refuses_the_restore_and_keeps_the_volume() {
    let world = World::with_capacity(24 << 20);
    let volume = world.volume();
    make_file(&volume, volume.root(), "some", &pattern(3_000_000, 1));
    let old = contents(&volume);
    empty_volume(&world.partition, TARGET, VolumeKind::ReadOnly);
    restore_over(&world.partition, TARGET, &Contents::new(), &old).unwrap();
    let mut restore = begin(&world, RestoreMode::Full);
    put(&mut restore, &old[&1]).unwrap();
    let mut image = old.values().find(|item| item.image.length > 1 << 20);
    let image = &mut image.take().unwrap().image.clone();
    image.length = 100 << 20;
    restore.put(image).unwrap();
    let mut full = None;
    for n in 0..100 {
        if let Err(error) = restore.push(pattern(1 << 20, n)) {
            full = Some(error);
            break;
        }
    }
    assert_eq!(full, Some(Error::DiskFull));
    drop(restore);
    world.partition.reap_now().unwrap();
    let target = world.partition.volume(TARGET).unwrap().unwrap();
    assert!(contents(&target) == old && !target.is_restoring());
    world.check_clean();
    restore_over(&world.partition, TARGET, &old, &old).unwrap();
    world.check();
}

#[test]
fn directories_may_come_after_what_is_in_them() {
    let (world, _, wanted) = filled();
    empty_volume(&world.partition, TARGET, VolumeKind::ReadOnly);
    let mut restore = begin(&world, RestoreMode::Full);
    for item in in_order(&wanted).into_iter().rev() {
        put(&mut restore, item).unwrap();
    }
    let restored = finish(restore).unwrap();
    assert!(contents(&restored) == wanted);
    world.check();
}

#[test]
fn a_volume_deleted_during_its_restore_leaves_nothing() {
    let (world, volume, wanted) = filled();
    empty_volume(&world.partition, TARGET, VolumeKind::ReadOnly);
    let mut restore = begin(&world, RestoreMode::Full);
    let items = in_order(&wanted);
    for item in &items[..100] {
        put(&mut restore, item).unwrap();
    }
    let deleted = world.partition.delete_volume(TARGET).unwrap();
    deleted.wait().unwrap();
    world.partition.reap_now().unwrap();
    for item in &items[100..] {
        if put(&mut restore, item).is_err() {
            break;
        }
    }
    let info = info_of(&volume);
    assert_eq!(restore.commit(info).unwrap_err(), Error::NoVolume(TARGET));
    world.partition.reap_now().unwrap();
    world.check_clean();
}
