//! Removed files whose copies in archives are kept, and superseded copies: until when they are
//! there, and which objects they keep.

use crate::common::*;
use cellar_volume::{Expired, LayoutChange, RetiredFile, StoreSpec, Volume, VolumeKind};
use cellar_wire::ids::{AfsTime, Fid, Uniquifier, VnodeId, VolumeId};
use cellar_wire::object::ArchiveCopy;

fn keeping() -> World {
    let world = World::new();
    world.partition.keep_removed(true);
    world
}

/// A file in objects of that version, stored at second 5.
fn file(volume: &Volume, name: &[u8], version: u64) -> Fid {
    let made = volume.create_file(volume.root(), name, &new(), at(1));
    let fid = made.unwrap().outcome.status.fid;
    store(volume, fid, version, 5);
    fid
}

fn store(volume: &Volume, fid: Fid, version: u64, second: u32) {
    let expected = volume.status(fid).unwrap().data_version;
    let change = LayoutChange::new(layout(version), 1 << 20);
    let set = volume.set_layout(fid, expected, &change, at(second));
    set.unwrap().wait().unwrap();
}

fn copy(osd: u32, version: u64, made: u64) -> ArchiveCopy {
    ArchiveCopy {
        osd,
        volume: VOLUME,
        serial: (1 << 31) | osd,
        version,
        data_version: version,
        length: 1 << 20,
        made,
        ..ArchiveCopy::default()
    }
}

fn add(volume: &Volume, fid: Fid, copy: ArchiveCopy) {
    let added = volume.add_archive_copy(fid.vnode, fid.uniquifier, &copy);
    assert_ne!(added.unwrap().wait().unwrap(), 0);
}

fn remove(volume: &Volume, name: &[u8], second: u32) {
    let removed = volume.remove_file(volume.root(), name, at(second));
    removed.unwrap().wait().unwrap();
}

fn retired(volume: &Volume) -> Vec<RetiredFile> {
    let first = (VnodeId(0), Uniquifier(0));
    let all = (1000, usize::MAX);
    volume.retired_files(first, all, |_| true).unwrap().0
}

/// The archives that objects are needed on.
fn needed(world: &World) -> Vec<(u32, u64)> {
    let (named, more) = world.partition.references(VOLUME, VnodeId(0), 100).unwrap();
    assert_eq!(more, None);
    let copies = named.iter().filter(|one| one.osd >= 70);
    copies.map(|one| (one.osd, one.version)).collect()
}

fn expire(world: &World, before: u32) -> Expired {
    let expired = world.partition.expire(AfsTime(before), &mut || true);
    let expired = expired.unwrap();
    world.check_clean();
    expired
}

#[test]
fn a_removed_file_keeps_its_good_copies_until_it_expires() {
    let world = keeping();
    let volume = world.volume();
    let fid = file(&volume, b"f", 5);
    add(&volume, fid, copy(70, 5, 10));
    let bad = ArchiveCopy {
        bad: true,
        ..copy(71, 5, 10)
    };
    add(&volume, fid, bad);
    let status = volume.status(fid).unwrap();
    remove(&volume, b"f", 100);
    let world = world.reopen();
    let volume = world.volume();
    let files = retired(&volume);
    assert_eq!(files.len(), 1);
    let kept = &files[0];
    assert_eq!((kept.fid, kept.parent), (fid, volume.root()));
    assert_eq!((&kept.name[..], kept.removed), (&b"f"[..], AfsTime(100)));
    assert_eq!(
        (kept.mode, kept.owner, kept.length, kept.data_version),
        (
            status.mode,
            status.owner,
            status.length,
            status.data_version
        )
    );
    assert_eq!(kept.copies.to_vec(), [copy(70, 5, 10)]);
    assert_eq!(volume.retired_file(fid).unwrap().as_ref(), Some(kept));
    assert_eq!(needed(&world), [(70, 5)]);
    assert_eq!(expire(&world, 99), Expired::default());
    assert_eq!(expire(&world, 100).files, 1);
    assert_eq!((retired(&volume), needed(&world)), (vec![], vec![]));
    assert_eq!(volume.retired_file(fid).unwrap(), None);
}

#[test]
fn only_a_last_name_of_a_file_with_good_copies_is_kept() {
    let world = World::new();
    let volume = world.volume();
    let root = volume.root();
    let first = file(&volume, b"before", 5);
    add(&volume, first, copy(70, 5, 10));
    remove(&volume, b"before", 100);
    assert_eq!(retired(&volume), [], "the partition keeps none");
    world.partition.keep_removed(true);
    file(&volume, b"no copy", 5);
    remove(&volume, b"no copy", 100);
    let bad = file(&volume, b"bad", 5);
    add(
        &volume,
        bad,
        ArchiveCopy {
            bad: true,
            ..copy(71, 5, 10)
        },
    );
    remove(&volume, b"bad", 100);
    let linked = file(&volume, b"one", 5);
    add(&volume, linked, copy(72, 5, 10));
    let link = volume.link(root, b"two", linked, at(20));
    link.unwrap().wait().unwrap();
    remove(&volume, b"one", 100);
    assert_eq!(retired(&volume), []);
    remove(&volume, b"two", 101);
    let files = retired(&volume);
    assert_eq!((files.len(), &files[0].name[..]), (1, &b"two"[..]));
}

#[test]
fn a_file_that_a_rename_replaces_is_kept_under_its_name() {
    let world = keeping();
    let volume = world.volume();
    let root = volume.root();
    let dir = volume.make_dir(root, b"dir", &new(), at(3));
    let dir = dir.unwrap().outcome.status.fid;
    let old = file(&volume, b"old", 5);
    add(&volume, old, copy(70, 5, 10));
    let moved = volume.rename(root, b"old", dir, b"in dir", at(11));
    moved.unwrap().wait().unwrap();
    file(&volume, b"new", 6);
    let renamed = volume.rename(root, b"new", dir, b"in dir", at(100));
    renamed.unwrap().wait().unwrap();
    let files = retired(&volume);
    assert_eq!(files.len(), 1);
    let kept = &files[0];
    assert_eq!((kept.fid, kept.parent), (old, dir));
    assert_eq!(
        (&kept.name[..], kept.removed),
        (&b"in dir"[..], AfsTime(100))
    );
    let first = (VnodeId(0), Uniquifier(0));
    let of_root = volume.retired_files(first, (10, 10), |file| file.parent == root);
    assert_eq!(of_root.unwrap(), (vec![], None));
}

/// Pages of the lists end and go on between files and retired files alike.
#[test]
fn references_come_in_pages_of_files_and_retired_files() {
    let world = keeping();
    let volume = world.volume();
    for number in 0..20_u8 {
        let fid = file(&volume, &[b'a' + number], 5);
        add(&volume, fid, copy(70, 5, 10));
        if number % 3 != 0 {
            remove(&volume, &[b'a' + number], 100);
        }
    }
    let whole = needed(&world);
    assert_eq!(whole.len(), 20);
    for limit in 1..8 {
        let (mut found, mut after) = (Vec::new(), VnodeId(0));
        loop {
            let page = world.partition.references(VOLUME, after, limit).unwrap();
            found.extend(page.0);
            let Some(last) = page.1 else { break };
            assert!(last > after);
            after = last;
        }
        let all = world
            .partition
            .references(VOLUME, VnodeId(0), 1000)
            .unwrap();
        assert_eq!(found, all.0, "{limit}");
    }
    for page in [(4, usize::MAX), (usize::MAX, 4)] {
        let mut names = Vec::new();
        let mut after = Some((VnodeId(0), Uniquifier(0)));
        while let Some(place) = after {
            let (files, next) = volume.retired_files(place, page, |_| true).unwrap();
            assert!(files.len() <= 4);
            names.extend(files.iter().map(|file| file.name[0]));
            after = next;
        }
        names.sort_unstable();
        let removed = (0..20).filter(|number| number % 3 != 0);
        let removed: Vec<u8> = removed.map(|number| b'a' + number).collect();
        assert_eq!(names, removed);
    }
}

#[test]
fn clones_have_no_removed_files_and_the_last_volume_takes_them_along() {
    let world = keeping();
    let volume = world.volume();
    let fid = file(&volume, b"f", 5);
    add(&volume, fid, copy(70, 5, 10));
    let clone = world.clone_of(&volume, 11, VolumeKind::ReadOnly);
    remove(&volume, b"f", 100);
    assert_eq!((retired(&volume).len(), retired(&clone).len()), (1, 0));
    let seen = Fid {
        volume: clone.id(),
        ..fid
    };
    assert_eq!(clone.retired_file(seen).unwrap(), None);
    assert_eq!(expire(&world, 200).files, 1);
    assert_eq!(needed(&world), [(70, 5)], "the clone still names the copy");
    remove_volume(&world, VolumeId(11));
    assert_eq!(needed(&world), []);
    let fid = file(&volume, b"g", 5);
    add(&volume, fid, copy(70, 5, 10));
    remove(&volume, b"g", 100);
    assert_eq!(needed(&world), [(70, 5)]);
    remove_volume(&world, VOLUME);
    assert_eq!(needed(&world), []);
}

fn remove_volume(world: &World, id: VolumeId) {
    world.partition.delete_volume(id).unwrap().wait().unwrap();
    world.partition.reap_now().unwrap();
    world.check_clean();
}

#[test]
fn superseded_copies_stay_until_their_time_has_passed() {
    let world = keeping();
    let volume = world.volume();
    let fid = file(&volume, b"f", 5);
    add(&volume, fid, copy(70, 5, 10));
    store(&volume, fid, 6, 100);
    add(&volume, fid, copy(70, 6, 110));
    store(&volume, fid, 7, 200);
    let dated = volume.superseded_copies(fid).unwrap();
    assert_eq!(dated, [(copy(70, 5, 10), 110), (copy(70, 6, 110), 200)]);
    // No copy of the bytes of second 100 is older than second 110, so 110 counts.
    assert_eq!(expire(&world, 99), Expired::default());
    assert_eq!(expire(&world, 110).versions, 1);
    assert_eq!(needed(&world), [(70, 6)]);
    assert_eq!(expire(&world, 199), Expired::default());
    let clone = world.clone_of(&volume, 11, VolumeKind::ReadOnly);
    store(&volume, fid, 8, 300);
    add(&volume, fid, copy(70, 8, 310));
    assert_eq!(expire(&world, 299).versions, 1, "only the clone's version");
    assert_eq!(needed(&world), [(70, 6), (70, 8)]);
    assert_eq!(expire(&world, 300).versions, 1);
    assert_eq!(needed(&world), [(70, 8)]);
    // The copy of the present bytes stays, however old it is.
    assert_eq!(expire(&world, u32::MAX), Expired::default());
    let whole = StoreSpec {
        file_length: 0,
        ..StoreSpec::at(0)
    };
    let here = volume.store(fid, &whole, &["new".into()], at(400));
    here.unwrap().wait().unwrap();
    assert_eq!(expire(&world, 399), Expired::default());
    assert_eq!(expire(&world, 400).versions, 1, "a file of this server");
    assert_eq!(needed(&world), []);
    drop(clone);
}

#[test]
fn an_expiry_that_is_told_to_stop_ends() {
    let world = keeping();
    let volume = world.volume();
    let fid = file(&volume, b"f", 5);
    add(&volume, fid, copy(70, 5, 10));
    remove(&volume, b"f", 100);
    let expired = world.partition.expire(AfsTime(100), &mut || false);
    assert_eq!(expired.unwrap(), Expired::default());
    assert_eq!(retired(&volume).len(), 1);
}
