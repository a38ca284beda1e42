//! Every write and every sync fails once, and the power fails at every point, in every operation.
//!
//! 1. For each operation, the states before and after a run without faults are recorded.
//! 2. The operation runs with the n-th write failing, with the n-th sync failing, or with
//!    everything from the n-th change on failing. This is done for every possible n, with and
//!    without a flush of the base table after it.
//! 3. The disk that a power cut leaves at that moment is opened, with none or a random part of the
//!    unsynced data. It must have the state before or the state after, and pass the check of
//!    everything. If the operation was acknowledged, it must have the state after.

use crate::common;
use crate::common::crashing;

use crate::common::{VOLUME, at, new};
use cellar_volume::disk::Fault;
use cellar_volume::{
    LayoutChange, Make, SetStatus, SnapshotSpec, StoreSpec, VnodeContents, Volume, VolumeKind,
};
use cellar_wire::ids::{AfsTime, Fid, Uniquifier, ViceId, VnodeId, VolumeId};
use crashing::*;

fn lookup(volume: &Volume, name: &[u8]) -> Fid {
    volume.lookup(volume.root(), name).unwrap()
}

fn store(
    volume: &Volume,
    name: &[u8],
    spec: StoreSpec,
    length: usize,
) -> cellar_volume::Result<()> {
    let fid = lookup(volume, name);
    volume
        .store(fid, &spec, &[pattern(length, 9)], at(20))?
        .wait()
        .map(drop)
}

#[test]
fn create() {
    crash_everywhere(|_, volume| {
        volume
            .create_file(volume.root(), b"new", &new(), at(20))?
            .wait()
            .map(drop)
    });
}

#[test]
fn make_directory() {
    crash_everywhere(|_, volume| {
        volume
            .make_dir(volume.root(), b"new", &new(), at(20))?
            .wait()
            .map(drop)
    });
}

#[test]
fn store_small() {
    crash_everywhere(|_, volume| store(volume, b"small", StoreSpec::at(0), 2000));
}

#[test]
fn small_becomes_large() {
    crash_everywhere(|_, volume| store(volume, b"small", StoreSpec::at(500), 300_000));
}

#[test]
fn store_large() {
    crash_everywhere(|_, volume| store(volume, b"large", StoreSpec::at(0), 900_000));
}

#[test]
fn overwrite_in_the_middle() {
    crash_everywhere(|_, volume| store(volume, b"large", StoreSpec::at(250_001), 20_000));
}

#[test]
fn append() {
    crash_everywhere(|_, volume| store(volume, b"odd", StoreSpec::at(5_001), 8_000));
}

#[test]
fn make_under_reserved_numbers() {
    let disk = start();
    {
        let partition = open(&disk).unwrap();
        let volume = partition.volume(VOLUME).unwrap().unwrap();
        volume.reserve(7, 100, 100).unwrap().wait().unwrap();
        partition.close().unwrap();
    }
    let disk = disk.power_cut(None);
    let operation: Operation = |_, volume| {
        let next = volume.reserve(7, 100, 100)?.wait()?;
        let (small, large) = ([pattern(3000, 3)], [pattern(90_000, 4)]);
        let make = |place: u32, name, what| Make {
            name,
            vnode: VnodeId(next.first_file.0 + 2 * place),
            uniquifier: Uniquifier(next.first_uniquifier.0 + place),
            what,
            new: new(),
        };
        let dir = Make {
            vnode: next.first_directory,
            uniquifier: Uniquifier(next.first_uniquifier.0 + next.files),
            ..make(0, b"made", VnodeContents::Directory)
        };
        let makes = [
            make(1, b"s", VnodeContents::File(&small)),
            dir,
            make(2, b"l", VnodeContents::File(&large)),
            make(3, b"to", VnodeContents::Symlink(b"there")),
        ];
        let made = volume.make(volume.root(), 7, &makes, 0, at(20))?;
        made.wait().map(drop)
    };
    crash_everywhere_from(&disk, operation, true);
}

fn to_objects(volume: &Volume, name: &[u8], version: u64) -> cellar_volume::Result<()> {
    let fid = lookup(volume, name);
    let expected = volume.status(fid)?.data_version;
    let change = LayoutChange::new(common::layout(version), 1 << 30);
    let changed = volume.set_layout(fid, expected, &change, at(20))?;
    changed.wait().map(drop)
}

#[test]
fn large_goes_to_objects() {
    crash_everywhere(|_, volume| to_objects(volume, b"large", 7));
}

#[test]
fn objects_come_back_and_get_versions() {
    let disk = start();
    {
        let partition = open(&disk).unwrap();
        let volume = partition.volume(VOLUME).unwrap().unwrap();
        to_objects(&volume, b"odd", 7).unwrap();
        to_objects(&volume, b"small", 7).unwrap();
        partition.close().unwrap();
    }
    let disk = disk.power_cut(None);
    crash_everywhere_from(&disk, |_, volume| to_objects(volume, b"odd", 8), true);
    let emptied: Operation = |_, volume| {
        let spec = StoreSpec {
            file_length: 0,
            ..StoreSpec::at(0)
        };
        store(volume, b"odd", spec, 70_000)
    };
    crash_everywhere_from(&disk, emptied, true);
}

#[test]
fn truncate() {
    crash_everywhere(|_, volume| {
        store(
            volume,
            b"large",
            StoreSpec {
                file_length: 270_001,
                ..StoreSpec::at(0)
            },
            0,
        )
    });
}

#[test]
fn truncate_to_nothing() {
    crash_everywhere(|_, volume| {
        store(
            volume,
            b"large",
            StoreSpec {
                file_length: 0,
                ..StoreSpec::at(0)
            },
            0,
        )
    });
}

#[test]
fn rename_over_an_existing_file() {
    crash_everywhere(|_, volume| {
        let dir = lookup(volume, b"dir");
        volume
            .rename(volume.root(), b"large", dir, b"inside", at(20))?
            .wait()
            .map(drop)
    });
}

#[test]
fn rename_a_directory() {
    crash_everywhere(|_, volume| {
        let dir = lookup(volume, b"empty");
        volume
            .rename(volume.root(), b"dir", dir, b"below", at(20))?
            .wait()
            .map(drop)
    });
}

#[test]
fn remove() {
    crash_everywhere(|_, volume| {
        volume
            .remove_file(volume.root(), b"large", at(20))?
            .wait()
            .map(drop)
    });
}

#[test]
fn set_attributes() {
    crash_everywhere(|_, volume| {
        let set = SetStatus {
            owner: Some(ViceId(5)),
            ..SetStatus::default()
        };
        volume
            .set_status(volume.root(), &set, at(20))?
            .wait()
            .map(drop)
    });
}

#[test]
fn clone() {
    crash_everywhere(|partition, volume| {
        let (source, id) = (volume.id(), VolumeId(12));
        let now = AfsTime(30);
        let spec = SnapshotSpec::new(source, id, "vol.backup", VolumeKind::Backup, now);
        partition.snapshot(&spec)?.wait().map(drop)
    });
}

#[test]
fn delete_the_volume() {
    crash_everywhere(|partition, volume| {
        partition.delete_volume(volume.id())?.wait()?;
        Ok(())
    });
}

#[test]
fn the_power_goes_while_the_journal_is_replayed() {
    let disk = start();
    let partition = open(&disk).unwrap();
    let volume = partition.volume(VOLUME).unwrap().unwrap();
    for n in 0..20 {
        let name = format!("f{n}");
        volume
            .create_file(volume.root(), name.as_bytes(), &new(), at(9))
            .unwrap()
            .wait()
            .unwrap();
        store(&volume, name.as_bytes(), StoreSpec::at(0), n * 1000).unwrap();
    }
    let crashed = disk.power_cut(None);
    let expected = checked_state(&crashed.power_cut(None), "replayed once");
    assert!(expected.contains_key("10/f19"));
    for n in 1.. {
        let disk = crashed.power_cut(None);
        disk.set_fault(Fault::Dead(n));
        if open(&disk).is_ok() {
            break;
        }
        for seed in [None, Some(n)] {
            let state = checked_state(&disk.power_cut(seed), &format!("replay {n} {seed:?}"));
            assert_eq!(state, expected, "replay {n} {seed:?}");
        }
    }
}
