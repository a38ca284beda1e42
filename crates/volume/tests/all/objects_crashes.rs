//! Every write and every sync fails once, and the power fails at every point, in every operation on
//! objects. The contents of finished versions are never lost or changed, and an operation is done
//! or not done.
//!
//! A version that is being made may be partly there: no client names it before its write was
//! acknowledged. So it counts only if it has its final contents.

use crate::common;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::faults::{everywhere, fired};
use bytes::Bytes;
use cellar_volume::disk::{Fault, SimDisk};
use cellar_volume::objects::ObjectStore;
use cellar_volume::{Error, Options, Result};
use cellar_wire::List;
use cellar_wire::ids::{Uniquifier, VnodeId, VolumeId};
use cellar_wire::object::ObjectId;
use cellar_wire::osd::Needed;

/// A version that is not finished when the operation begins.
const UNFINISHED: u64 = 15;
/// The version that the operation makes.
const NEW: u64 = 20;

type Operation = fn(&ObjectStore) -> Result<()>;
type State = BTreeMap<String, String>;

fn options() -> Options {
    Options {
        journal_bytes: 64 << 10,
        ..common::options()
    }
}

fn id(serial: u32) -> ObjectId {
    ObjectId {
        volume: VolumeId(7),
        vnode: VnodeId(4),
        uniquifier: Uniquifier(1),
        serial,
    }
}

fn pattern(length: usize, seed: u8) -> Bytes {
    (0..length)
        .map(|n| (n / 7) as u8 ^ seed)
        .collect::<Vec<_>>()
        .into()
}

fn open(disk: &SimDisk) -> Result<ObjectStore> {
    ObjectStore::open(Arc::new(disk.clone()), options())
}

fn write(
    store: &ObjectStore,
    serial: u32,
    (base, version): (u64, u64),
    at: u64,
    n: usize,
) -> Result<()> {
    store
        .write(id(serial), base, version, at, &[pattern(n, version as u8)])?
        .wait()
}

/// Like `write`, with bytes that come in several parts: the version is made before them.
fn stream(
    store: &ObjectStore,
    serial: u32,
    (base, version): (u64, u64),
    at: u64,
    n: usize,
) -> Result<()> {
    let mut writer = store.writer(id(serial), base, version, at, n as u64)?;
    writer.push(pattern(n, version as u8))?;
    writer.finish()?.wait()
}

/// The state from which every operation starts, on a disk that was closed.
fn start() -> SimDisk {
    let disk = SimDisk::new(64 << 20);
    let store = open(&disk).unwrap();
    write(&store, 1, (0, 5), 0, 270_000).unwrap();
    write(&store, 1, (5, 10), 250_001, 2_000).unwrap();
    write(&store, 2, (0, 10), 0, 5_001).unwrap();
    write(&store, 2, (10, UNFINISHED), 300, 30_000).unwrap();
    write(&store, 3, (0, 10), 100_000, 10).unwrap();
    store.remove(&[id(3)], true).unwrap().1.wait().unwrap();
    store.close().unwrap();
    disk.power_cut(None)
}

fn state(disk: &SimDisk, what: &str, new: Option<(u64, u64)>) -> State {
    let store = open(disk).unwrap_or_else(|error| panic!("{what}: {error}"));
    let observe = |store: &ObjectStore| {
        let report = store.check().unwrap();
        assert!(report.faults.is_empty(), "{what}: {:#?}", report.faults);
        let mut state = State::new();
        for removed in [false, true] {
            for info in store.list(0, ObjectId::default(), 100, removed).unwrap().0 {
                let serial = info.object.serial;
                for known in info
                    .versions
                    .iter()
                    .filter(|known| known.version != UNFINISHED)
                {
                    let mut sum = 0_u64;
                    if !removed {
                        let bytes = store.read(info.object, known.version, 0, 1 << 20).unwrap();
                        sum = u64::from(crc32c::crc32c(&bytes));
                    }
                    let sees = (known.length, sum);
                    if known.version != NEW || Some(sees) == new {
                        let name = format!("{serial}/{} {removed}", known.version);
                        state.insert(name, format!("{sees:?}"));
                    }
                }
            }
        }
        state
    };
    let seen = observe(&store);
    store.reap_now().unwrap();
    assert_eq!(store.check().unwrap().unseen, 0, "{what}");
    store.close().unwrap();
    drop(store);
    let again = open(disk).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(observe(&again), seen, "{what}: again");
    seen
}

fn attempt(disk: &SimDisk, operation: Operation, flush: bool, fault: Fault) -> Option<bool> {
    let store = open(disk).unwrap();
    disk.set_fault(fault);
    let result = operation(&store);
    if flush {
        let _ = store.flush();
    }
    let fired = fired(disk, fault);
    if let Err(error) = &result {
        let known = matches!(
            error,
            Error::Stopped(_) | Error::Partition(_) | Error::DiskFull
        );
        assert!(known, "{error}");
    }
    fired.then_some(result.is_ok())
}

fn crash_everywhere(operation: Operation) {
    crash_everywhere_and(operation, |_, _| ());
}

/// `look` examines the state after each crash; it also gets a description of the crash.
fn crash_everywhere_and(operation: Operation, look: impl Fn(&ObjectStore, &str)) {
    let start = start();
    // The final contents of the new version, if one is made.
    let disk = start.power_cut(None);
    let store = open(&disk).unwrap();
    operation(&store).unwrap();
    let objects = store.list(0, ObjectId::default(), 100, false).unwrap().0;
    let new = objects.iter().find_map(|info| {
        let known = info.versions.iter().find(|known| known.version == NEW)?;
        let bytes = store.read(info.object, NEW, 0, 1 << 20).unwrap();
        Some((known.length, u64::from(crc32c::crc32c(&bytes))))
    });
    drop(store);
    everywhere(
        &start,
        true,
        |disk, flush, fault| attempt(disk, operation, flush, fault),
        |disk, what| {
            let store = open(disk).unwrap();
            look(&store, what);
            store.close().unwrap();
            drop(store);
            state(disk, what, new)
        },
    );
}

#[test]
fn a_new_object() {
    crash_everywhere(|store| write(store, 9, (0, NEW), 0, 9_000));
}

#[test]
fn a_small_write_is_there_whole_or_not_at_all() {
    crash_everywhere_and(
        |store| write(store, 1, (10, NEW), 260_000, 20_000),
        |store, what| {
            let versions = store.examine(id(1)).unwrap().versions;
            if let Some(new) = versions.iter().find(|known| known.version == NEW) {
                assert_eq!(new.length, 280_000, "{what}");
            }
        },
    );
}

#[test]
fn a_new_object_in_a_stream() {
    crash_everywhere(|store| stream(store, 9, (0, NEW), 0, 9_000));
}

#[test]
fn a_version_over_part_of_another_in_a_stream() {
    crash_everywhere(|store| stream(store, 1, (10, NEW), 200_001, 80_000));
}

#[test]
fn a_version_over_part_of_another() {
    crash_everywhere(|store| write(store, 1, (10, NEW), 200_001, 80_000));
}

#[test]
fn a_version_instead_of_one_that_was_not_finished() {
    crash_everywhere(|store| write(store, 2, (10, NEW), 4_000, 9_000));
}

#[test]
fn a_version_cut_short() {
    crash_everywhere(|store| store.truncate(id(1), 10, NEW, 100_001)?.wait());
}

#[test]
fn a_version_with_zeros_behind() {
    crash_everywhere(|store| store.truncate(id(2), 10, NEW, 300_000)?.wait());
}

#[test]
fn versions_let_go() {
    crash_everywhere(|store| {
        let needed = Needed {
            object: id(1),
            keep: List::from_iter_cut([10]),
            below: 10,
        };
        store.prune(&[needed])?.1.wait()
    });
}

#[test]
fn all_versions_let_go() {
    crash_everywhere(|store| {
        let needed = Needed {
            object: id(2),
            keep: List::default(),
            below: u64::MAX,
        };
        store.prune(&[needed])?.1.wait()
    });
}

#[test]
fn an_object_removed_softly() {
    crash_everywhere(|store| store.remove(&[id(1)], true)?.1.wait());
}

#[test]
fn an_object_removed_for_good() {
    crash_everywhere(|store| store.remove(&[id(1)], false)?.1.wait());
}

#[test]
fn an_object_brought_back() {
    crash_everywhere(|store| store.undelete(&[id(3)])?.1.wait());
}

#[test]
fn soft_deletes_that_end() {
    crash_everywhere(|store| store.purge(u64::MAX)?.1.wait());
}

/// Number of an object's pieces; one change handles only a part of them.
const PIECES: u64 = 1300;
const PIECE: u64 = 256 << 10;

/// The bytes of a version at the start of each piece.
fn heads(store: &ObjectStore, version: u64) -> Vec<Bytes> {
    let read = |piece| store.read(id(1), version, piece * PIECE, 12).unwrap();
    (0..PIECES).map(read).collect()
}

fn has(store: &ObjectStore, version: u64) -> bool {
    let info = store.examine(id(1)).unwrap();
    info.versions.iter().any(|known| known.version == version)
}

/// Runs `operation`, which makes several changes, with the power failing at some of them, and then
/// to its end. `holds` examines the states in between.
fn in_steps(operation: Operation, holds: impl Fn(&ObjectStore)) -> ObjectStore {
    let start = SimDisk::new(128 << 20);
    let store = open(&start).unwrap();
    for version in [5, 10] {
        let mut last = None;
        for piece in 0..PIECES {
            let bytes = pattern(12, (piece + version) as u8);
            let written = store.write(id(1), version - 5, version, piece * PIECE, &[bytes]);
            last = Some(written.unwrap());
        }
        last.unwrap().wait().unwrap();
    }
    store.close().unwrap();
    let start = start.power_cut(None);
    // The fault numbers grow like Fibonacci numbers: few runs, at increasing distances in the
    // operation.
    let (mut n, mut next) = (1, 2);
    loop {
        let disk = start.power_cut(None);
        let fault = Fault::Dead(n);
        let acknowledged = attempt(&disk, operation, false, fault);
        let store = open(&disk.power_cut(Some(n))).unwrap();
        holds(&store);
        let report = store.check().unwrap();
        assert!(report.faults.is_empty(), "{fault:?}: {:#?}", report.faults);
        if acknowledged.is_none() {
            assert!(n > 1, "nothing failed");
            return store;
        }
        // The operation is repeated, and completes.
        operation(&store).unwrap();
        holds(&store);
        let report = store.check().unwrap();
        assert!(report.faults.is_empty(), "{fault:?}: {:#?}", report.faults);
        (n, next) = (next, n + next);
    }
}

#[test]
fn versions_let_go_in_many_steps() {
    let new: Vec<Bytes> = (0..PIECES).map(|n| pattern(12, (n + 10) as u8)).collect();
    let store = in_steps(
        |store| {
            let needed = Needed {
                object: id(1),
                keep: List::default(),
                below: 10,
            };
            store.prune(&[needed])?.1.wait()
        },
        |store| assert!(heads(store, 10) == new),
    );
    assert!(!has(&store, 5));
    assert_eq!(store.check().unwrap().blocks, PIECES);
}

#[test]
fn a_version_cut_short_in_many_steps() {
    let old: Vec<Bytes> = (0..PIECES).map(|n| pattern(12, (n + 10) as u8)).collect();
    let store = in_steps(
        |store| store.truncate(id(1), 10, NEW, PIECE + 5)?.wait(),
        |store| assert!(heads(store, 10) == old),
    );
    store
        .truncate(id(1), 10, NEW, PIECES * PIECE)
        .unwrap()
        .wait()
        .unwrap();
    let new = heads(&store, NEW);
    assert_eq!(new[0], old[0]);
    assert_eq!((&new[1][..5], &new[1][5..]), (&old[1][..5], &[0; 7][..]));
    assert!(new[2..].iter().all(|bytes| *bytes == [0; 12][..]));
}
