//! A disk that has been used as a store and has lost a file is refused. It is not taken for a new
//! one.

use std::sync::Arc;

use crate::common::{VOLUME, World, at, new, options};
use cellar_volume::disk::{Disk, SimDisk};
use cellar_volume::objects::ObjectStore;
use cellar_volume::{Error, Partition, Result, StoreId, StoreSpec};

fn open(disk: &SimDisk) -> Result<Arc<Partition>> {
    Partition::open(Arc::new(disk.clone()), options())
}

/// A partition with a volume and a file that has blocks.
fn used() -> SimDisk {
    let world = World::new();
    let volume = world.volume();
    let file = volume.create_file(volume.root(), b"file", &new(), at(2));
    let fid = file.unwrap().outcome.status.fid;
    let bytes = vec![7; 100_000];
    let stored = volume.store(fid, &StoreSpec::at(0), &[bytes.into()], at(3));
    stored.unwrap().wait().unwrap();
    world.partition.close().unwrap();
    world.disk
}

/// The same without an id, as a release without ids left it.
fn old() -> SimDisk {
    let disk = used();
    disk.remove("store-id").unwrap();
    disk.sync_names().unwrap();
    disk
}

fn refused(disk: &SimDisk, file: &str) {
    let mut before = disk.list().unwrap();
    match open(disk) {
        Err(Error::Damaged(what) | Error::LostJournal(what)) => {
            assert!(what.contains(file), "{file}: {what}");
        }
        other => panic!("without {file}: {other:?}"),
    }
    // Nothing was made: the file can still be put back.
    let mut after = disk.list().unwrap();
    before.sort();
    after.sort();
    assert_eq!(before, after);
}

#[test]
fn a_used_partition_without_one_of_its_files_is_refused() {
    for file in ["base", "journal.0", "journal.1", "blocks.0"] {
        let disk = used();
        disk.remove(file).unwrap();
        refused(&disk, file);
    }
    for part in [0, 2] {
        let disk = used();
        let base = disk.open("base").unwrap();
        base.set_length(base.length().unwrap() / 4096 * part / 4 * 4096)
            .unwrap();
        refused(&disk, "base");
    }
    let disk = used();
    for file in ["base", "journal.0", "journal.1"] {
        disk.remove(file).unwrap();
    }
    refused(&disk, "base");
}

#[test]
fn all_its_files_together_may_go_and_then_its_id_is_gone() {
    let disk = used();
    let id = StoreId::of(&disk).unwrap();
    assert!(id.is_some());
    let again = open(&disk).unwrap();
    assert_eq!(again.id(), id);
    assert!(again.volume(VOLUME).unwrap().is_some());
    drop(again);
    let other = SimDisk::new(64 << 20);
    assert_eq!(StoreId::of(&other).unwrap(), None);
    assert_ne!(open(&other).unwrap().id(), id);
}

#[test]
fn a_partition_of_an_older_release_gets_an_id() {
    let disk = old();
    assert_eq!(StoreId::of(&disk).unwrap(), None);
    let partition = open(&disk).unwrap();
    assert!(partition.id().is_some());
    assert!(partition.volume(VOLUME).unwrap().is_some());
    drop(partition);
    disk.remove("base").unwrap();
    refused(&disk, "base");
}

#[test]
fn a_damaged_id_is_a_refusal() {
    let disk = used();
    disk.flip_bit("store-id", 20, 3);
    assert!(matches!(open(&disk), Err(Error::Format(_))));
}

#[test]
fn a_used_device_is_guarded_likewise() {
    let disk = SimDisk::new(64 << 20);
    drop(ObjectStore::open(Arc::new(disk.clone()), options()).unwrap());
    disk.remove("base").unwrap();
    let opened = ObjectStore::open(Arc::new(disk.clone()), options()).map(drop);
    assert!(matches!(opened, Err(Error::Damaged(_))), "{opened:?}");
}
