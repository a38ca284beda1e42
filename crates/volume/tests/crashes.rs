//! Every write and every sync fails once, and the power goes at every point, in every operation.
//!
//! For each operation: the state before and the state after a run without faults are recorded.
//! Then the operation runs with the n-th write failing, the n-th sync failing, or everything from
//! the n-th change on failing, for every n there is, with and without a flush of the base table
//! after it. The disk that a power cut leaves at that moment, with none or a random part of what
//! was not synced, is opened: it must hold the state before or the state after, the latter if the
//! operation was acknowledged, and pass the check of everything.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use cellar_volume::disk::{Fault, SimDisk};
use cellar_volume::{
    Error, FileType, Options, Partition, SetStatus, SnapshotSpec, StoreSpec, Volume, VolumeKind,
    VolumeSpec,
};
use cellar_wire::ids::{AfsTime, Fid, ViceId, VolumeId};
use common::{VOLUME, at, new};

type Operation = fn(&Partition, &Volume) -> cellar_volume::Result<()>;

/// All that can be seen of all volumes: path to a description.
type State = BTreeMap<String, String>;

fn options() -> Options {
    Options {
        journal_bytes: 64 << 10,
        cached_vnodes: 1000,
        ..common::options()
    }
}

fn open(disk: &SimDisk) -> cellar_volume::Result<Arc<Partition>> {
    Partition::open(Arc::new(disk.clone()), options())
}

fn pattern(length: usize, seed: u8) -> Bytes {
    (0..length)
        .map(|n| (n / 7) as u8 ^ seed)
        .collect::<Vec<_>>()
        .into()
}

/// The state that every operation starts from, on a disk that was closed.
fn start() -> SimDisk {
    let disk = SimDisk::new(64 << 20);
    let partition = open(&disk).unwrap();
    let spec = VolumeSpec::new(VOLUME, "vol", ViceId(1), AfsTime(1));
    let volume = partition.create_volume(&spec).unwrap().outcome;
    let root = volume.root();
    let file = |dir, name: &[u8], length| {
        let fid = volume
            .create_file(dir, name, &new(), at(1))
            .unwrap()
            .outcome
            .status
            .fid;
        let data = pattern(length, 1);
        volume
            .store(fid, &StoreSpec::at(0), &[data], at(2))
            .unwrap()
            .wait()
            .unwrap();
    };
    file(root, b"small", 1000);
    file(root, b"large", 700_000);
    file(root, b"odd", 5_001);
    let dir = volume
        .make_dir(root, b"dir", &new(), at(3))
        .unwrap()
        .outcome
        .status
        .fid;
    file(dir, b"inside", 10);
    let _ = volume.make_dir(root, b"empty", &new(), at(3)).unwrap();
    partition.close().unwrap();
    disk.power_cut(None)
}

fn describe(volume: &Volume, path: &str, fid: Fid, state: &mut State) {
    let status = volume.status(fid).unwrap();
    let bytes = volume.read(fid, 0, 4 << 20).unwrap();
    let sum = bytes
        .iter()
        .fold(0u64, |sum, &byte| sum.wrapping_mul(31) + u64::from(byte));
    let acl = volume.status_and_acl(fid).unwrap().1;
    state.insert(path.to_string(), format!("{status:?} {sum} {acl:?}"));
    if status.kind == FileType::Directory {
        for entry in volume.entries(fid).unwrap() {
            let name = String::from_utf8(entry.name.to_vec()).unwrap();
            if name != "." && name != ".." {
                let child = Fid {
                    volume: fid.volume,
                    vnode: entry.vnode,
                    uniquifier: entry.uniquifier,
                };
                describe(volume, &format!("{path}/{name}"), child, state);
            }
        }
    }
}

fn observe(partition: &Partition) -> State {
    let mut state = State::new();
    for info in partition.volumes(None, 100).unwrap() {
        let volume = partition.volume(info.id).unwrap().unwrap();
        state.insert(info.id.to_string(), format!("{:?}", volume.info()));
        describe(&volume, &info.id.to_string(), volume.root(), &mut state);
    }
    state
}

fn checked_state(disk: &SimDisk, what: &str) -> State {
    let partition = open(disk).unwrap_or_else(|error| panic!("{what}: {error}"));
    let report = partition.check().unwrap();
    assert!(report.faults.is_empty(), "{what}: {:#?}", report.faults);
    observe(&partition)
}

fn run(disk: &SimDisk, operation: Operation, flush: bool, fault: Fault) -> Option<bool> {
    let partition = open(disk).unwrap();
    let volume = partition.volume(VOLUME).unwrap().unwrap();
    disk.set_fault(fault);
    let result = operation(&partition, &volume);
    if flush {
        let _ = partition.flush();
    }
    let (writes, syncs, changes) = disk.counts();
    let fired = match fault {
        Fault::None => true,
        Fault::Write(n) => writes >= n,
        Fault::Sync(n) => syncs >= n,
        Fault::Dead(n) => changes >= n,
    };
    // The disk of the power cut is taken while the partition is still open.
    let acknowledged = result.is_ok();
    if let Err(error) = &result {
        assert!(
            matches!(
                error,
                Error::Stopped(_) | Error::Partition(_) | Error::DiskFull
            ),
            "{error}"
        );
    }
    fired.then_some(acknowledged)
}

fn crash_everywhere(operation: Operation) {
    let start = start();
    let before = checked_state(&start.power_cut(None), "before");
    let after = {
        let disk = start.power_cut(None);
        assert_eq!(run(&disk, operation, false, Fault::None), Some(true));
        checked_state(&disk.power_cut(None), "after")
    };
    assert_ne!(before, after, "the operation does something");
    for flush in [false, true] {
        for fault in [Fault::Write as fn(u64) -> Fault, Fault::Sync, Fault::Dead] {
            for n in 1.. {
                let disk = start.power_cut(None);
                let Some(acknowledged) = run(&disk, operation, flush, fault(n)) else {
                    break;
                };
                for seed in [None, Some(n), Some(n + 1000)] {
                    let what = format!("{:?} flush {flush} seed {seed:?}", fault(n));
                    let state = checked_state(&disk.power_cut(seed), &what);
                    if acknowledged {
                        assert_eq!(state, after, "{what}: acknowledged and not there");
                    } else {
                        assert!(
                            state == before || state == after,
                            "{what}: a mix {state:#?}"
                        );
                    }
                }
            }
        }
    }
}

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
