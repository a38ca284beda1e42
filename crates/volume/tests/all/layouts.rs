//! Files whose bytes are in objects elsewhere, as the volume and all its viewers see them.

use std::sync::Arc;

use crate::common::*;
use cellar_volume::{
    Error, LayoutChange, PushedBytes, RestoreMode, RestoredInfo, SetStatus, Since, StoreOutcome,
    StoreSpec, Volume, VolumeKind, VolumeSpec,
};
use cellar_wire::ids::{AfsTime, Fid, ViceId, VnodeId, VolumeId};

const MIB: u64 = 1 << 20;

fn file(volume: &Volume, name: &[u8], length: usize) -> Fid {
    let made = volume.create_file(volume.root(), name, &new(), at(1));
    let fid = made.unwrap().outcome.status.fid;
    let data = vec![7u8; length].into();
    let _ = volume
        .store(fid, &StoreSpec::at(0), &[data], at(2))
        .unwrap();
    fid
}

fn away(volume: &Volume, fid: Fid, version: u64, length: u64) {
    let expected = volume.status(fid).unwrap().data_version;
    let change = LayoutChange::new(layout(version), length);
    let set = volume.set_layout(fid, expected, &change, at(5)).unwrap();
    assert_eq!(set.outcome.length, length);
    assert_eq!(set.outcome.data_version, expected + 1);
    set.wait().unwrap();
}

fn versions(world: &World) -> Vec<(VolumeId, u32, u64)> {
    let (found, more) = world
        .partition
        .references(VOLUME, VnodeId(0), 1000)
        .unwrap();
    assert_eq!(more, None);
    let ids = found.iter();
    ids.map(|found| (found.object.volume, found.object.serial, found.version))
        .collect()
}

fn both(version: u64) -> Vec<(VolumeId, u32, u64)> {
    vec![(VOLUME, 1, version), (VOLUME, 2, version)]
}

/// A reader of this many pieces reads them one after the other, and none when it begins.
#[test]
fn a_long_range_of_a_file_in_objects_is_not_here_either() {
    let world = World::new();
    let volume = world.volume();
    let fid = file(&volume, b"file", 700_000);
    away(&volume, fid, 5, 500 * MIB);
    for length in [10, 30 * MIB, 100 * MIB, u64::MAX] {
        let refused = volume.read_file(fid, 0, length).map(drop);
        assert_eq!(refused.unwrap_err(), Error::InObjects(fid), "{length}");
    }
}

#[test]
fn a_file_goes_away_is_charged_by_its_length_and_comes_back() {
    let world = World::new();
    let volume = world.volume();
    let fid = file(&volume, b"file", 700_000);
    let used = || volume.info().blocks_used;
    let before = used();
    away(&volume, fid, 5, 3 * MIB);
    assert_eq!(used() - before, 3 * 1024 - 700_000u64.div_ceil(1024));
    world.partition.reap_now().unwrap();
    world.check_clean();
    for refused in [
        volume.read(fid, 0, 10).map(drop),
        volume.read_file(fid, 0, 10).map(drop),
        volume
            .store(fid, &StoreSpec::at(5), &[vec![1].into()], at(6))
            .map(drop),
    ] {
        assert_eq!(refused.unwrap_err(), Error::InObjects(fid));
    }
    let begun = volume.begin_store(fid, &StoreSpec::at(5), 10);
    assert!(begun.unwrap().is_none());
    // Attributes, names and links work as for other files.
    let set = SetStatus {
        mode: Some(0o600),
        ..SetStatus::default()
    };
    let _ = volume.set_status(fid, &set, at(6)).unwrap();
    let _ = volume.link(volume.root(), b"link", fid, at(6)).unwrap();
    let _ = volume
        .rename(volume.root(), b"file", volume.root(), b"other", at(6))
        .unwrap();
    let world = world.reopen();
    let volume = world.volume();
    let (status, found) = volume.status_and_layout(fid).unwrap();
    assert_eq!((status.length, status.mode), (3 * MIB, 0o600));
    assert_eq!(*found.unwrap(), layout(5));
    // No bytes of it are kept, so it is in this store again.
    let all = StoreSpec {
        file_length: 0,
        ..StoreSpec::at(0)
    };
    let stored = volume.store(fid, &all, &[vec![3; 70_000].into()], at(7));
    assert_eq!(stored.unwrap().outcome.length, 70_000);
    assert_eq!(volume.layout(fid).unwrap(), None);
    assert_eq!(volume.last_serial(fid).unwrap(), 2);
    assert_eq!(volume.read(fid, 69_999, 10).unwrap(), vec![3]);
    assert_eq!(versions(&world), []);
    let _ = volume.remove_file(volume.root(), b"other", at(8)).unwrap();
    let _ = volume.remove_file(volume.root(), b"link", at(8)).unwrap();
    world.partition.reap_now().unwrap();
    world.check_clean();
}

#[test]
fn a_store_counts_only_if_no_other_was_faster() {
    let world = World::new();
    let volume = world.volume();
    let fid = file(&volume, b"file", 10);
    let expected = volume.status(fid).unwrap().data_version;
    let _ = volume
        .store(fid, &StoreSpec::at(10), &[vec![1].into()], at(3))
        .unwrap();
    let change = LayoutChange::new(layout(5), 11);
    let late = volume.set_layout(fid, expected, &change, at(4));
    assert_eq!(late.unwrap_err(), Error::Stale(fid));
    assert_eq!(volume.read(fid, 0, 100).unwrap().len(), 11);
    // The other way: the file moves to objects while bytes are coming in.
    let begun = volume.begin_store(fid, &StoreSpec::at(5), 3).unwrap();
    let mut store = begun.unwrap();
    away(&volume, fid, 5, 11);
    store.push(vec![1; 3].into()).unwrap();
    let StoreOutcome::InObjects(mut pushed) = store.commit(at(5)).unwrap() else {
        panic!("stored");
    };
    assert_eq!(read_all(&mut pushed), [1; 3]);
    // A repair keeps the data version, and does not undo a store.
    let before = volume.status(fid).unwrap();
    let moved = volume.exchange_layout(fid, &layout(5), layout(6)).unwrap();
    assert_eq!(moved.outcome, before);
    let again = volume.exchange_layout(fid, &layout(5), layout(7));
    assert_eq!(again.unwrap_err(), Error::Stale(fid));
    assert_eq!(*volume.layout(fid).unwrap().unwrap(), layout(6));
    let full = volume.update_info(at(1).now, |info| info.max_quota = 100);
    let _ = full.unwrap();
    let expected = before.data_version;
    let change = LayoutChange::new(layout(8), 2 * MIB);
    let over = volume.set_layout(fid, expected, &change, at(9));
    assert_eq!(over.unwrap_err(), Error::OverQuota);
    let mut wrong = layout(8);
    wrong.shape.stripes = 3;
    let wrong = volume.set_layout(fid, expected, &LayoutChange::new(wrong, 1), at(9));
    assert!(matches!(wrong, Err(Error::Invalid(_))));
}

#[test]
fn whatever_anybody_sees_is_referenced_and_nothing_else() {
    let world = World::new();
    let volume = world.volume();
    let fid = file(&volume, b"file", 10);
    away(&volume, fid, 5, MIB);
    assert_eq!(versions(&world), both(5));
    let clone = world.clone_of(&volume, 11, VolumeKind::ReadOnly);
    away(&volume, fid, 6, MIB);
    let seen = clone
        .layout(Fid {
            volume: clone.id(),
            ..fid
        })
        .unwrap();
    assert_eq!(*seen.unwrap(), layout(5));
    let mut expected = [both(5), both(6)].concat();
    expected.sort_unstable();
    assert_eq!(versions(&world), expected);
    // The version that a dump holds.
    let frozen = volume.freeze().unwrap();
    away(&volume, fid, 7, MIB);
    assert_eq!(versions(&world).len(), 6);
    let listed = frozen.vnode(fid.vnode).unwrap().unwrap();
    assert_eq!(*listed.whole().layout.unwrap(), layout(6));
    drop(frozen);
    world.partition.reap_now().unwrap();
    let mut expected = [both(5), both(7)].concat();
    expected.sort_unstable();
    assert_eq!(versions(&world), expected);
    let (holders, _) = world.partition.holders(0, 1000, |_| true).unwrap();
    let listed: Vec<_> = holders
        .iter()
        .map(|holder| (holder.fid.volume, holder.is_head, holder.layout.version))
        .collect();
    assert_eq!(listed, [(VOLUME, true, 7), (VolumeId(11), false, 5)]);
    // Removed from the head, and then from the clone.
    let _ = volume.remove_file(volume.root(), b"file", at(9)).unwrap();
    assert_eq!(versions(&world), both(5));
    drop(clone);
    let deleted = world.partition.delete_volume(VolumeId(11)).unwrap();
    deleted.wait().unwrap();
    assert_eq!(versions(&world), []);
}

#[test]
fn references_come_in_pages() {
    let world = World::new();
    let volume = world.volume();
    for n in 0..50u32 {
        let fid = file(&volume, format!("f{n}").as_bytes(), 3);
        away(&volume, fid, 5, MIB);
    }
    let (mut all, mut after) = (Vec::new(), VnodeId(0));
    loop {
        let (found, more) = world.partition.references(VOLUME, after, 7).unwrap();
        assert!(found.len() <= 8, "{}", found.len());
        all.extend(found);
        match more {
            Some(last) => after = last,
            None => break,
        }
    }
    assert_eq!(all.len(), 100);
    let of_unknown_owner = world.partition.references(VolumeId(9), VnodeId(0), 7);
    assert_eq!(of_unknown_owner.unwrap(), (vec![], None));
    let (mut holders, mut from) = (0, Some(0));
    while let Some(place) = from {
        let (found, next) = world.partition.holders(place, 9, |_| true).unwrap();
        holders += found.len();
        from = next;
    }
    assert_eq!(holders, 50);
}

#[test]
fn a_walk_passes_many_volumes_without_files() {
    let world = World::new();
    let mut made = Vec::new();
    // More than the walk reads at a time, twice.
    for id in 1000..3100 {
        let spec = VolumeSpec::new(VolumeId(id), format!("v{id}"), ViceId(1), AfsTime(5));
        made.push(world.partition.create_volume(&spec).unwrap());
    }
    for made in [made.remove(1900), made.pop().unwrap()] {
        let volume = made.wait().unwrap();
        let fid = file(&volume, b"file", 1);
        away(&volume, fid, 5, MIB);
    }
    let deleted = world.partition.delete_volume(VolumeId(2000)).unwrap();
    deleted.wait().unwrap();
    let (mut holders, mut from) = (Vec::new(), Some(0));
    while let Some(place) = from {
        let (found, next) = world.partition.holders(place, 1, |_| true).unwrap();
        holders.extend(found.iter().map(|holder| holder.fid.volume.0));
        from = next;
    }
    assert_eq!(holders, [2900, 3099]);
}

#[test]
fn a_volume_that_is_restored_names_what_it_shows() {
    let world = World::new();
    let volume = world.volume();
    let fid = file(&volume, b"file", 1);
    away(&volume, fid, 5, MIB);
    let mut image = {
        let frozen = volume.freeze().unwrap();
        frozen.vnode(fid.vnode).unwrap().unwrap().whole()
    };
    (image.layout, image.length) = (None, 4000);
    let restore = world
        .partition
        .begin_restore(VOLUME, RestoreMode::Incremental);
    let mut restore = restore.unwrap();
    // So many that the first are in the table.
    for n in 0..200 {
        image.vnode = VnodeId(fid.vnode.0 + 2 * n);
        restore.put(&image).unwrap();
        restore.push(vec![7; 4000].into()).unwrap();
    }
    let (holders, _) = world.partition.holders(0, 1000, |_| true).unwrap();
    let listed: Vec<_> = holders
        .iter()
        .map(|holder| (holder.fid, holder.is_head, holder.layout.version))
        .collect();
    assert_eq!(
        listed,
        [(fid, false, 5)],
        "readers see it, and no store is under way"
    );
}

#[test]
fn a_clone_that_is_made_meanwhile_is_told_of() {
    let world = World::new();
    let volume = world.volume();
    // More than one step examines.
    let fids: Vec<Fid> = (0..600u32)
        .map(|n| {
            let fid = file(&volume, format!("f{n}").as_bytes(), 3);
            away(&volume, fid, 5, MIB);
            fid
        })
        .collect();
    let last = *fids.last().unwrap();
    let mut clone = None;
    let found = world.partition.holders(0, 10_000, |_| {
        clone.get_or_insert_with(|| {
            let clone = world.clone_of(&volume, 11, VolumeKind::ReadOnly);
            away(&volume, last, 6, MIB);
            clone
        });
        true
    });
    let listed: Vec<_> = found
        .unwrap()
        .0
        .iter()
        .map(|h| (h.fid, h.layout.version))
        .collect();
    let in_clone = Fid {
        volume: VolumeId(11),
        ..last
    };
    assert_eq!(listed.len(), fids.len() + 1);
    assert!(
        listed.ends_with(&[(last, 6), (in_clone, 5)]),
        "{:?}",
        listed.last()
    );
}

#[test]
fn policies_are_inherited_and_kept() {
    let world = World::new();
    let volume = world.volume();
    let dir = |parent, name: &[u8]| {
        let made = volume.make_dir(parent, name, &new(), at(1));
        made.unwrap().outcome.status.fid
    };
    let (old, top) = (dir(volume.root(), b"old"), dir(volume.root(), b"top"));
    let version = volume.status(top).unwrap().data_version;
    volume.set_policy(top, 4, at(2)).unwrap().wait().unwrap();
    assert_eq!(volume.status(top).unwrap().data_version, version);
    let below = dir(dir(top, b"a"), b"b");
    let edited = volume.update_info(at(3).now, |info| {
        info.policy = 1;
        info.shared = 1 << 40;
        info.borrowed = 1 << 41;
        info.takes_over = true;
    });
    edited.unwrap().wait().unwrap();
    let fid = file(&volume, b"file", 1);
    assert_eq!(
        volume.set_policy(fid, 4, at(2)).unwrap_err(),
        Error::NotDirectory
    );
    let world = world.reopen();
    let volume = world.volume();
    for (fid, expected) in [(old, 0), (top, 4), (below, 4)] {
        assert_eq!(volume.policies(fid).unwrap(), (expected, 1));
    }
    let info = volume.info();
    assert_eq!((info.policy, info.shared), (1, 1 << 40));
    assert_eq!((info.borrowed, info.takes_over), (1 << 41, true));
    let clone = world.clone_of(&volume, 11, VolumeKind::ReadOnly);
    assert_eq!(clone.policy(), 1);
}

/// Receives the whole volume or its changes, as another server does; bytes of files in objects are
/// not sent.
fn receive(from: &Arc<Volume>, to: &World, mode: RestoreMode) {
    let frozen = from.freeze().unwrap();
    let mut restore = to.partition.begin_restore(VOLUME, mode).unwrap();
    let since = match mode {
        RestoreMode::Delta { base } => frozen.since(&base).unwrap(),
        _ => Since::Everything,
    };
    let epoch = match since {
        Since::Epoch(epoch) => {
            for vnode in frozen.removed(epoch).unwrap() {
                restore.remove(vnode).unwrap();
            }
            Some(epoch)
        }
        _ => None,
    };
    let mut vnodes = frozen.vnodes(since).unwrap();
    while let Some(listed) = vnodes.next().unwrap() {
        let image = listed.image.clone().unwrap();
        let epoch = epoch.filter(|&epoch| !listed.is_new_since(epoch));
        if image.layout.is_some() {
            restore.put(&image).unwrap();
            assert!(restore.push(vec![0].into()).is_err());
            continue;
        }
        let mut body = frozen.body(&listed, epoch).unwrap();
        match epoch {
            Some(_) => restore.patch(&image).unwrap(),
            None => restore.put(&image).unwrap(),
        }
        let (kept, mut at) = (body.kept_length(), 0);
        while let Some(part) = body.next(4096).unwrap() {
            if part.at > at {
                let skipped = part.at.min(kept).saturating_sub(at);
                restore.skip(skipped).unwrap();
                restore.zeros(part.at - at - skipped).unwrap();
            }
            at = part.at + part.length();
            match part.content {
                cellar_volume::Content::Bytes(bytes) => restore.push(bytes).unwrap(),
                cellar_volume::Content::Hole(length) => restore.zeros(length).unwrap(),
            }
        }
        let skipped = image.length.min(kept).saturating_sub(at);
        restore.skip(skipped).unwrap();
        restore.zeros(image.length - at.max(at + skipped)).unwrap();
    }
    let restored = RestoredInfo {
        info: frozen.info().clone(),
        next_uniquifier: frozen.next_uniquifier().0,
        received: frozen.state(),
    };
    restore.commit(restored).unwrap().wait().unwrap();
}

#[test]
fn a_restore_takes_layouts_and_a_delta_carries_them_both_ways() {
    let (here, there) = (World::new(), World::new());
    let volume = here.volume();
    let fid = file(&volume, b"file", 100_000);
    let other = file(&volume, b"other", 100_000);
    let dir = volume.make_dir(volume.root(), b"dir", &new(), at(1));
    let dir = dir.unwrap().outcome.status.fid;
    let _ = volume.set_policy(dir, 9, at(1)).unwrap();
    away(&volume, fid, 5, MIB);
    receive(&volume, &there, RestoreMode::Full);
    let received = there.volume();
    assert_eq!(*received.layout(fid).unwrap().unwrap(), layout(5));
    assert_eq!(received.status(fid).unwrap(), volume.status(fid).unwrap());
    assert_eq!(received.info().blocks_used, volume.info().blocks_used);
    assert_eq!(received.policies(dir).unwrap().0, 9);
    there.check();
    // One file comes back to this store, the other moves to objects.
    let all = StoreSpec {
        file_length: 0,
        ..StoreSpec::at(0)
    };
    let _ = volume
        .store(fid, &all, &[vec![4; 50_000].into()], at(7))
        .unwrap();
    away(&volume, other, 8, MIB);
    let base = received.received().unwrap().unwrap();
    drop(received);
    receive(&volume, &there, RestoreMode::Delta { base });
    let received = there.volume();
    assert_eq!(received.layout(fid).unwrap(), None);
    assert_eq!(received.read(fid, 0, 60_000).unwrap(), vec![4; 50_000]);
    assert_eq!(*received.layout(other).unwrap().unwrap(), layout(8));
    assert_eq!(received.info().blocks_used, volume.info().blocks_used);
    there.partition.reap_now().unwrap();
    there.check_clean();
}

/// All bytes that a store had received.
fn read_all(pushed: &mut PushedBytes) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(bytes) = pushed.read(70_000).unwrap() {
        assert!(!bytes.is_empty());
        all.extend_from_slice(&bytes);
    }
    all
}

#[test]
fn the_bytes_of_a_store_whose_file_went_to_objects_are_read_back() {
    let world = World::new();
    let volume = world.volume();
    // In memory, in blocks, and with bytes before and behind the whole blocks.
    for (number, (position, length)) in [(0, 1), (7, 3000), (4096, 1 << 20), (5001, 2_000_003)]
        .into_iter()
        .enumerate()
    {
        let fid = file(&volume, format!("f{number}").as_bytes(), 10_000);
        let data: Vec<u8> = (0..length).map(|at: u32| (at / 7) as u8 ^ 3).collect();
        let spec = StoreSpec::at(position);
        let begun = volume.begin_store(fid, &spec, data.len() as u64).unwrap();
        let mut store = begun.unwrap();
        for part in data.chunks(300_001) {
            store.push(part.to_vec().into()).unwrap();
        }
        away(&volume, fid, 5, 10_000);
        let before = volume.status(fid).unwrap();
        let StoreOutcome::InObjects(mut pushed) = store.commit(at(5)).unwrap() else {
            panic!("stored");
        };
        assert_eq!(volume.status(fid).unwrap(), before, "nothing has changed");
        assert!(read_all(&mut pushed) == data, "{length}");
        pushed.rewind();
        assert!(read_all(&mut pushed) == data, "{length} again");
    }
    world.partition.reap_now().unwrap();
    world.check_clean();
}
