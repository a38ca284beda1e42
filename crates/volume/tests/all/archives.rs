//! Copies of files in archives: entered, wiped and recalled, as the volume and its clones see it.

use std::sync::Arc;

use crate::common::*;
use cellar_volume::{
    Content, Error, FileType, LayoutChange, RestoreMode, RestoredInfo, Since, StoreSpec,
    VnodeImage, Volume, VolumeKind, WipedFile,
};
use cellar_wire::ids::{Fid, Uniquifier, VnodeId, VolumeId};
use cellar_wire::object::{
    ARCHIVE_COPIES_MAX, ArchiveCopies, ArchiveCopy, Contents, Layout, Wiped,
};

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

fn copy(osd: u32, version: u64) -> ArchiveCopy {
    ArchiveCopy {
        osd,
        volume: VOLUME,
        serial: (1 << 31) | osd,
        version,
        length: LENGTH,
        made: 100,
        ..ArchiveCopy::default()
    }
}

fn contents(version: u64) -> Contents {
    Contents {
        volume: VOLUME,
        version,
    }
}

fn add(volume: &Volume, fid: Fid, copy: &ArchiveCopy) -> usize {
    let added = volume.add_archive_copy(fid.vnode, fid.uniquifier, copy);
    added.unwrap().wait().unwrap()
}

fn wipe(volume: &Volume, fid: Fid, version: u64, needed: usize) -> WipedFile {
    let wiped = volume.wipe(fid.vnode, fid.uniquifier, contents(version), needed);
    wiped.unwrap().wait().unwrap()
}

fn recall(volume: &Volume, fid: Fid, layout: &Layout) -> usize {
    let online = volume.restore_online(fid.vnode, fid.uniquifier, layout);
    online.unwrap().wait().unwrap()
}

/// The file as another volume of the family sees it.
fn seen_by(volume: &Volume, fid: Fid) -> Fid {
    Fid {
        volume: volume.id(),
        ..fid
    }
}

fn copies(volume: &Volume, fid: Fid) -> Vec<(u32, u64)> {
    let state = volume.archive_state(seen_by(volume, fid)).unwrap();
    let copies = state.copies.iter();
    copies.map(|copy| (copy.osd, copy.version)).collect()
}

#[test]
fn a_wiped_file_has_no_objects_in_any_volume_and_comes_back_with_the_same_status() {
    let world = World::new();
    let volume = world.volume();
    let fid = file(&volume, b"file", 5);
    let clone = world.clone_of(&volume, 11, VolumeKind::ReadOnly);
    let before = volume.status(fid).unwrap();
    assert!(
        wipe(&volume, fid, 5, 1).layouts.is_empty(),
        "no copy exists"
    );
    assert_eq!(add(&volume, fid, &copy(70, 5)), 1);
    let backup = world.clone_of(&volume, 12, VolumeKind::Backup);
    assert!(
        wipe(&volume, fid, 5, 2).layouts.is_empty(),
        "one copy is not two"
    );
    assert!(wipe(&volume, fid, 4, 1).layouts.is_empty(), "other bytes");
    let wiped = wipe(&volume, fid, 5, 1);
    assert_eq!(
        (wiped.versions, wiped.layouts),
        (1, vec![Arc::new(layout(5))])
    );
    let world = world.reopen();
    let volume = world.volume();
    for id in [10, 11, 12] {
        let volume = world.partition.volume(VolumeId(id)).unwrap().unwrap();
        let fid = seen_by(&volume, fid);
        assert_eq!(volume.layout(fid).unwrap(), None);
        assert_eq!(copies(&volume, fid), [(70, 5)]);
        let state = volume.archive_state(fid).unwrap();
        assert!(state.wiped.is_some() && state.current().count() == 1);
        let refused = [
            volume.read(fid, 0, 10).map(drop),
            volume.read_file(fid, 0, 100 << 20).map(drop),
        ];
        for refused in refused {
            assert_eq!(refused.unwrap_err(), Error::Archived(fid));
        }
    }
    let (named, _) = world.partition.references(VOLUME, VnodeId(0), 100).unwrap();
    let named: Vec<_> = named
        .iter()
        .map(|named| (named.osd, named.version))
        .collect();
    assert_eq!(named, [(70, 5)], "the copy alone is needed");
    let mut online = layout(5);
    online.objects.as_mut_slice()[0].osd = 33;
    let other = Layout {
        version: 4,
        ..online.clone()
    };
    assert_eq!(recall(&volume, fid, &other), 0, "other bytes");
    assert_eq!(recall(&volume, fid, &online), 1);
    assert_eq!(recall(&volume, fid, &online), 0, "it is online");
    assert_eq!(volume.status(fid).unwrap(), before);
    assert_eq!(volume.layout(fid).unwrap().as_deref(), Some(&online));
    assert_eq!(copies(&volume, fid), [(70, 5)]);
    drop((clone, backup));
    world.check_clean();
}

#[test]
fn versions_with_other_bytes_keep_their_objects() {
    let world = World::new();
    let volume = world.volume();
    let fid = file(&volume, b"file", 5);
    add(&volume, fid, &copy(70, 5));
    let clone = world.clone_of(&volume, 11, VolumeKind::ReadOnly);
    store(&volume, fid, 6);
    assert_eq!(
        copies(&volume, fid),
        [(70, 5)],
        "the copy of the older bytes"
    );
    assert!(
        wipe(&volume, fid, 6, 1).layouts.is_empty(),
        "it has no copy"
    );
    assert_eq!(wipe(&volume, fid, 5, 1).versions, 1, "the clone has one");
    assert_eq!(volume.layout(fid).unwrap().as_deref(), Some(&layout(6)));
    assert_eq!(clone.layout(seen_by(&clone, fid)).unwrap(), None);
    assert_eq!(add(&volume, fid, &copy(71, 6)), 1);
    assert_eq!(
        add(&volume, fid, &copy(71, 7)),
        0,
        "no version has these bytes"
    );
    assert_eq!(copies(&volume, fid), [(70, 5), (71, 6)]);
    assert_eq!(copies(&clone, fid), [(70, 5)]);
    // Another use of the same vnode number.
    let other = Uniquifier(fid.uniquifier.0 + 1);
    let refused = volume.add_archive_copy(fid.vnode, other, &copy(72, 6));
    assert_eq!(refused.unwrap().outcome, 0);
    world.check_clean();
}

#[test]
fn a_store_of_all_bytes_needs_no_recall_and_one_of_some_bytes_does() {
    let world = World::new();
    let volume = world.volume();
    let fids = [b"one", b"two"].map(|name: &[u8; 3]| file(&volume, name, 5));
    for fid in fids {
        add(&volume, fid, &copy(70, 5));
        assert_eq!(wipe(&volume, fid, 5, 1).versions, 1);
        let some = volume.store(fid, &StoreSpec::at(5), &[vec![1].into()], at(6));
        assert_eq!(some.map(drop).unwrap_err(), Error::Archived(fid));
        let begun = volume.begin_store(fid, &StoreSpec::at(5), 10).map(drop);
        assert_eq!(begun.unwrap_err(), Error::Archived(fid));
    }
    let all = StoreSpec {
        file_length: 0,
        ..StoreSpec::at(0)
    };
    let stored = volume.store(fids[0], &all, &[vec![3; 70_000].into()], at(7));
    assert_eq!(stored.unwrap().outcome.length, 70_000);
    assert_eq!(volume.read(fids[0], 69_999, 10).unwrap(), vec![3]);
    assert_eq!(
        volume.last_serial(fids[0]).unwrap(),
        2,
        "numbers are not given out twice"
    );
    store(&volume, fids[1], 9);
    for fid in fids {
        assert_eq!(copies(&volume, fid), [(70, 5)], "the older bytes");
        assert_eq!(volume.archive_state(fid).unwrap().current().count(), 0);
    }
    let removed = volume.remove_file(volume.root(), b"one", at(8)).unwrap();
    assert_eq!(removed.outcome.objects, None);
    world.partition.reap_now().unwrap();
    world.check_clean();
}

#[test]
fn bad_copies_do_not_count_and_the_last_of_a_wiped_file_stays() {
    let world = World::new();
    let volume = world.volume();
    let fid = file(&volume, b"file", 5);
    add(&volume, fid, &copy(70, 5));
    add(&volume, fid, &copy(71, 5));
    let edit = |bad: bool, keep: bool, osd: u32| {
        let edited = volume.edit_archive_copies(fid.vnode, fid.uniquifier, |copy| {
            copy.bad |= bad && copy.osd == osd;
            keep || copy.osd != osd
        });
        edited.unwrap().wait().unwrap()
    };
    assert_eq!(edit(true, true, 70), 1);
    assert_eq!(edit(true, true, 70), 0, "nothing changes");
    assert!(
        wipe(&volume, fid, 5, 2).layouts.is_empty(),
        "one of two is bad"
    );
    assert_eq!(wipe(&volume, fid, 5, 1).versions, 1);
    assert_eq!(edit(false, false, 70), 1);
    assert_eq!(edit(false, false, 71), 0, "the bytes would be gone");
    assert_eq!(copies(&volume, fid), [(71, 5)]);
    // A repeated copy to the same device replaces the record of the first.
    add(&volume, fid, &copy(70, 5));
    add(&volume, fid, &copy(70, 5));
    assert_eq!(copies(&volume, fid), [(71, 5), (70, 5)]);
}

#[test]
fn a_record_names_a_bounded_number_of_copies_and_the_oldest_go_first() {
    let world = World::new();
    let volume = world.volume();
    let fid = file(&volume, b"file", 1);
    let last = ARCHIVE_COPIES_MAX as u64 + 4;
    for version in 2..=last {
        store(&volume, fid, version);
        assert_eq!(add(&volume, fid, &copy(70, version)), 1);
    }
    let kept: Vec<_> = (last - ARCHIVE_COPIES_MAX as u64 + 1..=last)
        .map(|v| (70, v))
        .collect();
    assert_eq!(copies(&volume, fid), kept);
}

#[test]
fn archivable_files_are_listed_once_as_their_head_sees_them() {
    let world = World::new();
    let volume = world.volume();
    let fid = file(&volume, b"file", 5);
    let plain = file(&volume, b"plain", 6);
    add(&volume, fid, &copy(70, 5));
    world.clone_of(&volume, 11, VolumeKind::ReadOnly);
    store(&volume, plain, 7);
    wipe(&volume, fid, 5, 1);
    let (mut found, mut from) = (Vec::new(), 0);
    loop {
        let (part, more) = world.partition.archivable_files(from, 1, |_| true).unwrap();
        found.extend(part);
        match more {
            Some(next) => from = next,
            None => break,
        }
    }
    let found: Vec<_> = found
        .iter()
        .map(|file| (file.status.fid, file.layout.is_none(), file.copies().len()))
        .collect();
    assert_eq!(found, [(fid, true, 1), (plain, false, 0)]);
}

#[test]
fn a_restored_volume_has_the_copies_and_wiped_files_of_its_source() {
    let world = World::new();
    let volume = world.volume();
    let wiped = file(&volume, b"wiped", 5);
    let online = file(&volume, b"online", 4);
    add(&volume, wiped, &copy(70, 5));
    add(&volume, online, &copy(70, 4));
    store(&volume, online, 6);
    add(&volume, online, &copy(70, 6));
    wipe(&volume, wiped, 5, 1);
    let states = [wiped, online].map(|fid| volume.archive_state(fid).unwrap());
    let frozen = volume.freeze().unwrap();
    let mut images = Vec::new();
    let mut vnodes = frozen.vnodes(Since::Everything).unwrap();
    while let Some(listed) = vnodes.next().unwrap() {
        let image = listed.image.clone().unwrap();
        let mut pages = Vec::new();
        if image.kind == FileType::Directory {
            let mut body = frozen.body(&listed, None).unwrap();
            while let Some(part) = body.next(1 << 20).unwrap() {
                pages.push(part.content);
            }
        }
        images.push((image, pages));
    }
    let (info, next_uniquifier) = (frozen.info().clone(), frozen.next_uniquifier().0);
    drop((vnodes, frozen));
    let restore = |edit: &dyn Fn(&mut VnodeImage)| {
        let mut restore = world
            .partition
            .begin_restore(VOLUME, RestoreMode::Full)
            .unwrap();
        for (image, pages) in &images {
            let mut image = image.clone();
            edit(&mut image);
            restore.put(&image)?;
            for page in pages {
                match page {
                    Content::Bytes(bytes) => restore.push(bytes.clone())?,
                    Content::Hole(length) => restore.zeros(*length)?,
                }
            }
        }
        let restored = RestoredInfo {
            info: info.clone(),
            next_uniquifier,
            received: None,
        };
        restore.commit(restored)?.wait().map(drop)
    };
    restore(&|_| {}).unwrap();
    let volume = world.volume();
    let restored = [wiped, online].map(|fid| volume.archive_state(fid).unwrap());
    assert_eq!(restored, states);
    assert!(volume.is_wiped(wiped).unwrap());
    let no_copy = |image: &mut VnodeImage| {
        if image.wiped.is_some() {
            image.copies = states[1]
                .copies
                .get(1)
                .map(|copy| Arc::new(ArchiveCopies::from_iter_cut([*copy])));
        }
    };
    let both = |image: &mut VnodeImage| {
        if let Some(layout) = &image.layout {
            image.wiped = Some(Wiped::from(&**layout));
        }
    };
    let directory = |image: &mut VnodeImage| {
        if image.kind == FileType::Directory {
            image.copies = Some(Arc::new(ArchiveCopies::from_iter_cut([copy(70, 5)])));
        }
    };
    let edits: [&dyn Fn(&mut VnodeImage); 3] = [&no_copy, &both, &directory];
    for edit in edits {
        let refused = restore(edit).unwrap_err();
        assert!(matches!(refused, Error::Unsound(_)), "{refused:?}");
        world.partition.reap_now().unwrap();
        assert!(world.volume().is_wiped(wiped).unwrap(), "unchanged");
    }
    let report = world.partition.check().unwrap();
    assert!(report.faults.is_empty(), "{:#?}", report.faults);
}
