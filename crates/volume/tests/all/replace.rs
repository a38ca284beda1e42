//! Replacing an object by another, in every version of a file that names it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::*;
use cellar_volume::{Error, LayoutChange, Replaced, RestoreMode, StoreSpec, Volume, VolumeKind};
use cellar_wire::ids::{Fid, VnodeId, VolumeId};
use cellar_wire::object::Placed;

const LENGTH: u64 = 1 << 20;

/// A file in objects of that version.
fn file(volume: &Volume, name: &[u8], version: u64) -> Fid {
    let made = volume.create_file(volume.root(), name, &new(), at(1));
    let fid = made.unwrap().outcome.status.fid;
    store(volume, fid, version);
    fid
}

fn store(volume: &Volume, fid: Fid, version: u64) {
    let expected = volume.status(fid).unwrap().data_version;
    let change = LayoutChange::new(layout(version), LENGTH);
    let set = volume.set_layout(fid, expected, &change, at(5)).unwrap();
    set.wait().unwrap();
}

fn moved(version: u64) -> Replaced {
    let old = layout(version).objects[0];
    Replaced {
        owner: VOLUME,
        old,
        new: Placed {
            osd: 77,
            serial: 1 << 31,
            ..old
        },
    }
}

fn first(volume: &Volume, fid: Fid) -> Placed {
    let fid = Fid {
        volume: volume.id(),
        ..fid
    };
    volume.layout(fid).unwrap().unwrap().objects[0]
}

#[test]
fn all_that_name_it_get_it_and_nothing_else_changes() {
    let world = World::new();
    let volume = world.volume();
    let fid = file(&volume, b"file", 5);
    let other = file(&volume, b"other", 5);
    let clone = world.clone_of(&volume, 11, VolumeKind::ReadOnly);
    // Both volumes have loaded the vnode before.
    assert_eq!(first(&volume, fid), first(&clone, fid));
    let backup = world.clone_of(&volume, 12, VolumeKind::Backup);
    store(&volume, fid, 6);
    let before = volume.status(fid).unwrap();
    let replaced = moved(5);
    let replace = |replaced: &Replaced| {
        let changed = volume.replace_object(fid.vnode, fid.uniquifier, replaced);
        changed.unwrap().wait().unwrap()
    };
    // One version, which two clones see.
    assert_eq!(replace(&replaced), 1);
    assert_eq!(first(&clone, fid), replaced.new);
    assert_eq!(first(&backup, fid), replaced.new);
    assert_eq!(first(&volume, fid).version, 6);
    assert_eq!(replace(&replaced), 0, "no version names it any more");
    assert_eq!(replace(&moved(6)), 1);
    assert_eq!(first(&volume, fid), moved(6).new);
    assert_eq!(volume.status(fid).unwrap(), before);
    assert_eq!(first(&volume, other).osd, 10, "another file");
    // Another uniquifier with the same number, and another owner.
    let uniquifier = cellar_wire::ids::Uniquifier(fid.uniquifier.0 + 100);
    let changed = volume.replace_object(other.vnode, uniquifier, &replaced);
    assert_eq!(changed.unwrap().outcome, 0);
    let foreign = Replaced {
        owner: VolumeId(9),
        ..replaced
    };
    let changed = volume.replace_object(other.vnode, other.uniquifier, &foreign);
    assert_eq!(changed.unwrap().outcome, 0);
    let held = volume.holders_of(fid.vnode).unwrap();
    let held: Vec<_> = held
        .iter()
        .map(|one| (one.is_head, one.layout.objects[0].osd))
        .collect();
    assert_eq!(held, [(true, 77), (false, 77)]);
    let (named, _) = world.partition.references(VOLUME, VnodeId(0), 100).unwrap();
    assert!(
        named
            .iter()
            .any(|named| named.osd == 77 && named.version == 5)
    );
    assert!(
        named
            .iter()
            .any(|named| named.osd == 77 && named.version == 6)
    );
    assert!(
        !named
            .iter()
            .any(|n| n.osd == 10 && n.object.vnode == fid.vnode)
    );
    drop((volume, clone, backup));
    let world = world.reopen();
    for (id, version) in [(VOLUME, 6), (VolumeId(11), 5), (VolumeId(12), 5)] {
        let volume = world.partition.volume(id).unwrap().unwrap();
        assert_eq!(first(&volume, fid), moved(version).new);
    }
    world.check();
    // A version that only a clone saw is removed with it.
    let volume = world.volume();
    let _ = volume.remove_file(volume.root(), b"file", at(9)).unwrap();
    for id in [11, 12] {
        let gone = world.partition.delete_volume(VolumeId(id)).unwrap();
        gone.wait().unwrap();
    }
    world.partition.reap_now().unwrap();
    world.check_clean();
    let (named, _) = world.partition.references(VOLUME, VnodeId(0), 100).unwrap();
    assert!(named.iter().all(|named| named.object.vnode == other.vnode));
}

#[test]
fn nothing_is_replaced_while_the_volume_is_restored() {
    let world = World::new();
    let volume = world.volume();
    let fid = file(&volume, b"file", 5);
    let restore = world
        .partition
        .begin_restore(VOLUME, RestoreMode::Incremental)
        .unwrap();
    let changed = volume.replace_object(fid.vnode, fid.uniquifier, &moved(5));
    assert_eq!(changed.unwrap_err(), Error::Busy(VOLUME));
    drop(restore);
    world.partition.reap_now().unwrap();
    let changed = volume.replace_object(fid.vnode, fid.uniquifier, &moved(5));
    assert_eq!(changed.unwrap().outcome, 1);
}

#[test]
fn a_removal_names_the_objects_of_the_file() {
    let world = World::new();
    let volume = world.volume();
    file(&volume, b"one", 5);
    file(&volume, b"two", 6);
    file(&volume, b"three", 7);
    let here = volume.create_file(volume.root(), b"here", &new(), at(1));
    let here = here.unwrap().outcome.status.fid;
    let data = vec![7u8; 100].into();
    let _ = volume
        .store(here, &StoreSpec::at(0), &[data], at(2))
        .unwrap();
    let link = volume.lookup(volume.root(), b"one").unwrap();
    let _ = volume.link(volume.root(), b"link", link, at(3)).unwrap();
    let remove = |name: &[u8]| {
        let removed = volume.remove_file(volume.root(), name, at(4)).unwrap();
        removed.outcome.objects.map(|objects| (*objects).clone())
    };
    assert_eq!(remove(b"one"), None, "it has another name");
    assert_eq!(remove(b"link"), Some(layout(5)));
    assert_eq!(remove(b"here"), None);
    let renamed = volume
        .rename(volume.root(), b"two", volume.root(), b"three", at(5))
        .unwrap();
    assert_eq!(*renamed.outcome.objects.unwrap(), layout(7));
}

#[test]
fn it_is_replaced_while_everybody_else_is_at_work() {
    let world = World::new();
    let volume = world.volume();
    let fids = [file(&volume, b"one", 1), file(&volume, b"two", 2)];
    let stop = AtomicBool::new(false);
    let (stop, volume, world) = (&stop, &volume, &world);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut version = 2;
            while !stop.load(Ordering::Relaxed) {
                version += 1;
                store(volume, fids[version as usize % 2], version);
            }
        });
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let clone = world.clone_of(volume, 11, VolumeKind::ReadOnly);
                let one = first(&clone, fids[0]);
                world.clone_of(volume, 12, VolumeKind::Backup);
                let now = first(&clone, fids[0]);
                assert!(now == one || now.osd == 77, "{one:?} became {now:?}");
                drop(clone);
                for id in [11, 12] {
                    let gone = world.partition.delete_volume(VolumeId(id)).unwrap();
                    gone.wait().unwrap();
                }
                world.partition.reap_now().unwrap();
            }
        });
        let (begun, mut replaced) = (Instant::now(), 0);
        while replaced < 50 || begun.elapsed() < Duration::from_millis(500) {
            assert!(begun.elapsed() < Duration::from_secs(60), "no store");
            let fid = fids[replaced % 2];
            let old = first(volume, fid);
            if old.osd == 77 {
                continue;
            }
            let wanted = moved(old.version);
            let Ok(changed) = volume.replace_object(fid.vnode, fid.uniquifier, &wanted) else {
                continue;
            };
            changed.wait().unwrap();
            let held = volume.holders_of(fid.vnode).unwrap();
            assert!(
                held.iter().all(|one| one.layout.objects[0] != old),
                "{held:?}"
            );
            replaced += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
    world.check();
}
