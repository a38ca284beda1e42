//! Runs operations with every write and every sync failing once, and the power failing at every
//! point.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use cellar_volume::disk::{Fault, SimDisk};
use cellar_volume::{Error, FileType, Options, Partition, StoreSpec, Volume, VolumeSpec};
use cellar_wire::ids::{AfsTime, Fid, Uniquifier, ViceId, VnodeId};

use crate::common::faults::{everywhere, fired};
use crate::common::{self, VOLUME, at, new};

pub(crate) type Operation = fn(&Partition, &Volume) -> cellar_volume::Result<()>;

/// Everything that is visible in all volumes: path to a description.
pub(crate) type State = BTreeMap<String, String>;

pub(crate) fn options() -> Options {
    Options {
        journal_bytes: 64 << 10,
        cached_vnodes: 1000,
        ..common::options()
    }
}

pub(crate) fn open(disk: &SimDisk) -> cellar_volume::Result<Arc<Partition>> {
    let partition = Partition::open(Arc::new(disk.clone()), options())?;
    partition.keep_removed(true);
    Ok(partition)
}

pub(crate) fn pattern(length: usize, seed: u8) -> Bytes {
    (0..length)
        .map(|n| (n / 7) as u8 ^ seed)
        .collect::<Vec<_>>()
        .into()
}

/// The state from which every operation starts, on a disk that was closed.
pub(crate) fn start() -> SimDisk {
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

pub(crate) fn describe(volume: &Volume, path: &str, fid: Fid, state: &mut State) {
    let status = volume.status(fid).unwrap();
    let layout = volume.layout(fid).unwrap();
    let archive = volume.archive_state(fid).unwrap();
    let bytes = match &layout {
        None if archive.wiped.is_none() => volume.read(fid, 0, 4 << 20).unwrap(),
        _ => format!("{layout:?} {archive:?}").into_bytes().into(),
    };
    let sum = crc32c::crc32c(&bytes);
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

pub(crate) fn observe(partition: &Partition) -> State {
    let mut state = State::new();
    for info in partition.volumes(None, 100).unwrap() {
        let volume = partition.volume(info.id).unwrap().unwrap();
        state.insert(format!("info {}", info.id), format!("{:?}", volume.info()));
        describe(&volume, &info.id.to_string(), volume.root(), &mut state);
        let first = (VnodeId(0), Uniquifier(0));
        let retired = volume.retired_files(first, (100, 100), |_| true).unwrap();
        state.insert(format!("retired {}", info.id), format!("{retired:?}"));
    }
    state
}

/// The contents of a disk. Asserts that it has no faults, and no versions without a viewer after
/// the background removal.
pub(crate) fn checked_state(disk: &SimDisk, what: &str) -> State {
    let partition = open(disk).unwrap_or_else(|error| panic!("{what}: {error}"));
    let report = partition.check().unwrap();
    assert!(report.faults.is_empty(), "{what}: {:#?}", report.faults);
    let state = observe(&partition);
    partition.reap_now().unwrap();
    let report = partition.check().unwrap();
    assert!(report.faults.is_empty(), "{what}: {:#?}", report.faults);
    assert_eq!(report.unseen, 0, "{what}: {:#?}", report.unseen_keys);
    partition.close().unwrap();
    drop(partition);
    let again = open(disk).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(observe(&again), state, "{what}: after the removal");
    state
}

pub(crate) fn run(disk: &SimDisk, operation: Operation, flush: bool, fault: Fault) -> Option<bool> {
    let partition = open(disk).unwrap();
    // If this volume is gone, the operation looks up another one.
    let known = partition.volume(VOLUME).unwrap();
    let volume = match known {
        Some(volume) => volume,
        None => {
            let first = &partition.volumes(None, 1).unwrap()[0];
            partition.volume(first.id).unwrap().unwrap()
        }
    };
    disk.set_fault(fault);
    let result = operation(&partition, &volume);
    if flush {
        let _ = partition.flush();
    }
    let fired = fired(disk, fault);
    // The disk after the power cut is taken while the partition is still open.
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

/// Starts from the usual state.
pub(crate) fn crash_everywhere(operation: Operation) {
    crash_everywhere_from(&start(), operation, true);
}

/// Starts from the state on a disk that was closed. `changes` says whether the operation changes
/// anything visible.
pub(crate) fn crash_everywhere_from(start: &SimDisk, operation: Operation, changes: bool) {
    let attempt = |disk: &SimDisk, flush, fault| run(disk, operation, flush, fault);
    everywhere(start, changes, attempt, checked_state);
}
