//! Volumes that are heads, clones of all kinds, and how one becomes the other.

use crate::common;
use crate::common::restoring;

use std::any::Any;
use std::sync::Arc;

use crate::common::{VOLUME, World, at, new};
use bytes::Bytes;
use cellar_volume::{
    Error, IdsSpec, Options, Partition, RestoreMode, SnapshotSpec, StoreSpec, Volume, VolumeKind,
    VolumeSpec,
};
use cellar_wire::ids::{AfsTime, ViceId, VolumeId};
use restoring::*;

const RO: VolumeId = VolumeId(11);

fn write(volume: &Volume, name: &str, byte: u8) {
    let known = volume.lookup(volume.root(), name.as_bytes());
    let fid = known.unwrap_or_else(|_| {
        let made = volume.create_file(volume.root(), name.as_bytes(), &new(), at(10));
        made.unwrap().outcome.status.fid
    });
    let bytes = Bytes::from(vec![byte; 30_000]);
    let _ = volume
        .store(fid, &StoreSpec::at(0), &[bytes], at(11))
        .unwrap();
}

fn read(volume: &Volume, name: &str) -> Option<u8> {
    let fid = volume.lookup(volume.root(), name.as_bytes()).ok()?;
    Some(volume.read(fid, 20_000, 1).unwrap()[0])
}

fn clone(
    partition: &Partition,
    source: VolumeId,
    id: VolumeId,
) -> cellar_volume::Result<Arc<Volume>> {
    let kind = VolumeKind::ReadOnly;
    let name = format!("clone{id}");
    partition
        .snapshot(&SnapshotSpec::new(source, id, name, kind, AfsTime(20)))?
        .wait()
}

fn create(partition: &Partition, spec: &VolumeSpec) -> Arc<Volume> {
    partition.create_volume(spec).unwrap().wait().unwrap()
}

/// The read-only site of a volume that may be elsewhere.
fn site(root: bool) -> VolumeSpec {
    VolumeSpec {
        kind: VolumeKind::ReadOnly,
        parent: VOLUME,
        root,
        ..VolumeSpec::new(RO, "vol.readonly", ViceId(1), AfsTime(5))
    }
}

fn set_ids(partition: &Partition, id: VolumeId, ids: &IdsSpec) {
    partition.set_ids(id, ids).unwrap().wait().unwrap();
}

fn delete(partition: &Partition, id: VolumeId) {
    partition.delete_volume(id).unwrap().wait().unwrap();
}

fn done(world: World) {
    world.partition.reap_now().unwrap();
    world.check_clean();
    world.reopen().check_clean();
}

#[test]
fn clones_of_clones_share_what_they_see() {
    let world = World::new();
    let rw = world.volume();
    write(&rw, "a", 1);
    let first = clone(&world.partition, VOLUME, RO).unwrap();
    write(&rw, "a", 2);
    let second = clone(&world.partition, RO, VolumeId(12)).unwrap();
    let third = clone(&world.partition, VolumeId(12), VolumeId(13)).unwrap();
    write(&rw, "a", 3);
    for volume in [&first, &second, &third] {
        assert_eq!(read(volume, "a"), Some(1));
        assert_eq!(volume.info().parent, VOLUME);
        assert_eq!(volume.info().files, 2);
    }
    drop((first, third));
    world.check();
    delete(&world.partition, RO);
    delete(&world.partition, VolumeId(13));
    world.partition.reap_now().unwrap();
    assert_eq!((read(&second, "a"), read(&rw, "a")), (Some(1), Some(3)));
    world.check_clean();
    // Made again from its own source, in one step.
    let again = clone(&world.partition, VOLUME, VolumeId(12)).unwrap();
    assert_eq!((read(&second, "a"), read(&again, "a")), (Some(1), Some(3)));
    drop((second, again));
    done(world);
}

#[test]
fn a_clone_takes_the_place_of_a_volume_of_its_own() {
    // As after a move to the place of an RO site: the next release clones into its id.
    let world = World::new();
    let rw = world.volume();
    write(&rw, "a", 1);
    let alone = create(&world.partition, &site(true));
    assert!(alone.is_head() && !alone.is_writable());
    let refused = alone.create_file(alone.root(), b"x", &new(), at(1));
    assert_eq!(refused.unwrap_err(), Error::ReadOnly);
    let clone = clone(&world.partition, VOLUME, RO).unwrap();
    assert_eq!(read(&clone, "a"), Some(1));
    assert_eq!(clone.info().copied, AfsTime(5));
    // A caller that had the old volume open still has it.
    assert_eq!((alone.is_gone(), read(&alone, "a")), (true, None));
    assert_eq!(alone.entries(alone.root()).unwrap().len(), 2);
    world.partition.reap_now().unwrap();
    assert_eq!(alone.entries(alone.root()).unwrap().len(), 2);
    drop((alone, clone));
    done(world);
}

#[test]
fn ids_of_others_are_not_taken() {
    let world = World::new();
    let other = VolumeSpec::new(RO, "other", ViceId(1), AfsTime(5));
    create(&world.partition, &other);
    let taken = clone(&world.partition, VOLUME, RO);
    assert_eq!(taken.unwrap_err(), Error::VolumeExists(RO));
    clone(&world.partition, RO, VolumeId(12)).unwrap();
    let taken = clone(&world.partition, VOLUME, VolumeId(12));
    assert_eq!(taken.unwrap_err(), Error::VolumeExists(VolumeId(12)));
    let itself = clone(&world.partition, VOLUME, VOLUME);
    assert!(matches!(itself, Err(Error::Invalid(_))));
    done(world);
}

#[test]
fn a_clone_that_was_left_alone_is_restored_and_released_into() {
    // As when the RW volume was moved away and its clone stays as a site.
    let world = World::new();
    let rw = world.volume();
    write(&rw, "a", 1);
    clone(&world.partition, VOLUME, RO).unwrap();
    write(&rw, "a", 2);
    write(&rw, "b", 2);
    let new = contents(&rw);
    drop(rw);
    delete(&world.partition, VOLUME);
    // The versions that only the RW volume saw are not removed yet.
    let old = contents(&world.partition.volume(RO).unwrap().unwrap());
    let restored = restore_over(&world.partition, RO, &old, &new).unwrap();
    assert!(contents(&restored) == new && restored.is_head());
    drop(restored);
    world.partition.reap_now().unwrap();
    world.check_clean();
    let clone = clone(&world.partition, RO, VolumeId(14)).unwrap();
    assert!(contents(&clone) == new);
    drop(clone);
    done(world);
}

#[test]
fn objects_of_a_deleted_head_alone_are_removed() {
    let world = World::new();
    let rw = world.volume();
    write(&rw, "a", 1);
    let clone = clone(&world.partition, VOLUME, RO).unwrap();
    write(&rw, "a", 2);
    write(&rw, "b", 3);
    drop(rw);
    delete(&world.partition, VOLUME);
    world.partition.reap_now().unwrap();
    world.check_clean();
    assert_eq!((read(&clone, "a"), read(&clone, "b")), (Some(1), None));
    drop(clone);
    done(world);
}

#[test]
fn a_removed_clone_goes_at_the_rate_that_was_set_and_across_a_restart() {
    const FILES: usize = 300;
    let world = World::new();
    let rw = world.volume();
    let names: Vec<String> = (0..FILES).map(|n| format!("file{n}")).collect();
    names.iter().for_each(|name| write(&rw, name, 1));
    clone(&world.partition, VOLUME, RO).unwrap();
    names.iter().for_each(|name| write(&rw, name, 2));
    drop(rw);
    world.partition.close().unwrap();
    let slow = Options {
        reap_rate: 400,
        ..common::options()
    };
    let disk = Arc::new(world.disk.clone());
    let partition = Partition::open(disk.clone(), slow).unwrap();
    delete(&partition, RO);
    while partition.counters().reaped < 20 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    partition.close().unwrap();
    let removed = partition.counters().reaped as usize;
    drop(partition);
    assert!(removed < FILES, "{removed}");
    let fast = Partition::open(disk, common::options()).unwrap();
    fast.reap_now().unwrap();
    let report = fast.check().unwrap();
    assert!(report.faults.is_empty(), "{:#?}", report.faults);
    assert_eq!(report.unseen, 0);
    let rw = fast.volume(VOLUME).unwrap().unwrap();
    assert!(names.iter().all(|name| read(&rw, name) == Some(2)));
}

#[test]
fn an_older_clone_beside_a_newer_one_is_not_restored() {
    let world = World::new();
    clone(&world.partition, VOLUME, RO).unwrap();
    write(&world.volume(), "a", 1);
    clone(&world.partition, VOLUME, VolumeId(12)).unwrap();
    delete(&world.partition, VOLUME);
    let refused = world.partition.begin_restore(RO, RestoreMode::Full);
    assert!(matches!(refused, Err(Error::Invalid(_))));
    done(world);
}

#[test]
fn a_read_only_volume_becomes_read_write() {
    for alone in [false, true] {
        let world = World::new();
        let rw = world.volume();
        write(&rw, "a", 1);
        let wanted = contents(&rw);
        drop(rw);
        if alone {
            create(&world.partition, &site(false));
            restore_over(&world.partition, RO, &Contents::new(), &wanted).unwrap();
        } else {
            let kind = VolumeKind::ReadOnly;
            let spec = SnapshotSpec::new(VOLUME, RO, "vol.readonly", kind, AfsTime(20));
            world.partition.snapshot(&spec).unwrap().wait().unwrap();
            write(&world.volume(), "a", 2);
        }
        let there = world.partition.convert_to_rw(RO, 0);
        assert_eq!(there.unwrap_err(), Error::VolumeExists(VOLUME));
        delete(&world.partition, VOLUME);
        let converted = world
            .partition
            .convert_to_rw(RO, 77)
            .unwrap()
            .wait()
            .unwrap();
        assert!(contents(&converted) == wanted);
        let info = converted.info();
        let borrowed = (info.borrowed, info.shared, info.takes_over);
        assert_eq!(borrowed, (77, 77, false));
        assert_eq!((info.id, info.clone, info.restored_from), (VOLUME, RO, RO));
        assert_eq!((&info.name[..], info.kind), ("vol", VolumeKind::ReadWrite));
        assert!(world.partition.volume(RO).unwrap().is_none());
        write(&converted, "c", 9);
        let fid = converted.lookup(converted.root(), b"c").unwrap();
        assert!(fid.uniquifier.0 > 5000);
        world.partition.reap_now().unwrap();
        world.check_clean();
        let world = world.reopen();
        assert_eq!(read(&world.volume(), "c"), Some(9));
        assert_eq!(read(&world.volume(), "a"), Some(1));
        done(world);
    }
}

#[test]
fn ids_and_kinds_are_changed() {
    let world = World::new();
    let rw = world.volume();
    let mut ids = IdsSpec {
        name: "other.readonly".into(),
        kind: VolumeKind::ReadOnly,
        parent: VolumeId(5),
        clone: VolumeId(6),
        backup: VolumeId(7),
    };
    set_ids(&world.partition, VOLUME, &ids);
    let refused = rw.create_file(rw.root(), b"x", &new(), at(1));
    assert_eq!(refused.unwrap_err(), Error::ReadOnly);
    drop(rw);
    let world = world.reopen();
    let info = world.volume().info();
    assert_eq!(
        (info.kind, info.parent),
        (VolumeKind::ReadOnly, VolumeId(5))
    );
    assert_eq!((info.clone, info.backup), (VolumeId(6), VolumeId(7)));
    ids.kind = VolumeKind::ReadWrite;
    ids.parent = VOLUME;
    set_ids(&world.partition, VOLUME, &ids);
    write(&world.volume(), "x", 1);
    clone(&world.partition, VOLUME, RO).unwrap();
    let refused = world.partition.set_ids(RO, &ids);
    assert!(matches!(refused, Err(Error::Invalid(_))));
    ids.name = "name/".into();
    let refused = world.partition.set_ids(VOLUME, &ids);
    assert!(matches!(refused, Err(Error::Invalid(_))));
    done(world);
}

#[test]
fn changes_are_refused_and_taken_again() {
    let world = World::new();
    let rw = world.volume();
    rw.refuse_changes(true);
    let refused = rw.create_file(rw.root(), b"x", &new(), at(1));
    assert_eq!(refused.unwrap_err(), Error::Busy(VOLUME));
    // A restore keeps this setting.
    let wanted = contents(&rw);
    let restored = restore_over(&world.partition, VOLUME, &Contents::new(), &wanted).unwrap();
    let refused = restored.create_file(restored.root(), b"x", &new(), at(1));
    assert_eq!(refused.unwrap_err(), Error::Busy(VOLUME));
    restored.refuse_changes(false);
    write(&restored, "x", 1);
    drop((rw, restored));
    done(world);
}

/// Versions that only an open volume sees are found when the volume is dropped, whatever happened
/// to it meanwhile.
#[test]
fn versions_kept_for_a_reader_end_with_the_reader() {
    let restored = |world: &World| -> Box<dyn Any> {
        let open = world.volume();
        let before = contents(&open);
        restore_over(&world.partition, VOLUME, &before, &before).unwrap();
        Box::new(open)
    };
    let given_up = |world: &World| -> Box<dyn Any> {
        let restore = world.partition.begin_restore(VOLUME, RestoreMode::Full);
        let frozen = world.volume().freeze().unwrap();
        restore.unwrap().abort().unwrap();
        Box::new(frozen)
    };
    let converted = |world: &World| -> Box<dyn Any> {
        let open = clone(&world.partition, VOLUME, RO).unwrap();
        delete(&world.partition, VOLUME);
        world
            .partition
            .convert_to_rw(RO, 0)
            .unwrap()
            .wait()
            .unwrap();
        Box::new(open)
    };
    let cloned_again = |world: &World| -> Box<dyn Any> {
        let open = clone(&world.partition, VOLUME, RO).unwrap();
        clone(&world.partition, VOLUME, RO).unwrap();
        delete(&world.partition, RO);
        let restore = world.partition.begin_restore(VOLUME, RestoreMode::Full);
        restore.unwrap().abort().unwrap();
        Box::new(open)
    };
    type HeadMaker = fn(&World) -> Box<dyn Any>;
    let ways: [HeadMaker; 4] = [restored, given_up, converted, cloned_again];
    for way in ways {
        let world = World::new();
        write(&world.volume(), "a", 1);
        write(&world.volume(), "b", 1);
        let holder = way(&world);
        world.partition.reap_now().unwrap();
        let volume = world.volume();
        write(&volume, "a", 2);
        let removed = volume.remove_file(volume.root(), b"b", at(12));
        removed.unwrap().wait().unwrap();
        drop(holder);
        world.partition.reap_now().unwrap();
        assert_eq!((read(&volume, "a"), read(&volume, "b")), (Some(2), None));
        drop(volume);
        done(world);
    }
}
