//! Every file of a partition is missing, empty, cut off or has one bit flipped, after a clean stop
//! and after a kill. Then a read gives the right bytes or an I/O error of the damaged files, or the
//! partition is refused with a message. It never gives other bytes, other rights, or "no such
//! file".
//!
//! A few hundred cases run as part of the tests. All of them, with 2,000 bits of each file and two
//! bits of 500 pages, take some minutes: `CELLAR_DAMAGE=full cargo test -p cellar-volume --test all
//! kinds_of_damage`.

use crate::common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::inflict::{Damage, Random, bits, damages};
use crate::common::*;
use bytes::Bytes;
use cellar_volume::disk::{Disk, SimDisk};
use cellar_volume::{AccessList, Error, Options, Partition, StoreSpec, Volume, VolumeKind};
use cellar_wire::acl::AclEntry;
use cellar_wire::acl::Rights;
use cellar_wire::ids::{Fid, ViceId, VolumeId};

const CLONE: VolumeId = VolumeId(12);
/// The observed contents under the names of a volume: `Err` is an I/O error.
type ReadResults = BTreeMap<(VolumeId, Vec<&'static str>), Result<String, String>>;

const NAMES: [&str; 8] = [
    "a", "small", "medium", "large", "holes", "link", "private", "last",
];

fn options() -> Options {
    Options {
        journal_bytes: 256 << 10,
        reserve_bytes: 256 << 10,
        ..common::options()
    }
}

fn open(disk: &SimDisk) -> cellar_volume::Result<Arc<Partition>> {
    Partition::open(Arc::new(disk.clone()), options())
}

fn pattern(seed: usize, length: usize) -> Bytes {
    let byte = |n: usize| (n * (2 * seed + 3) / 7) as u8 ^ seed as u8;
    (0..length).map(byte).collect::<Vec<_>>().into()
}

fn store(volume: &Volume, dir: Fid, name: &str, position: u64, bytes: Bytes) -> Fid {
    let made = volume.create_file(dir, name.as_bytes(), &new(), at(1));
    let fid = made.unwrap().outcome.status.fid;
    let stored = volume.store(fid, &StoreSpec::at(position), &[bytes], at(2));
    stored.unwrap().wait().unwrap();
    fid
}

/// Directories, files of all kinds, and a clone that sees an earlier state.
fn fill(partition: &Partition) {
    create_volume(partition);
    let volume = partition.volume(VOLUME).unwrap().unwrap();
    let root = volume.root();
    store(&volume, root, "small", 0, pattern(1, 700));
    store(&volume, root, "large", 0, pattern(2, 400_000));
    store(&volume, root, "holes", 900_000, pattern(3, 5000));
    let link = volume.symlink(root, b"link", b"a/small", &new(), at(1));
    link.unwrap().wait().unwrap();
    let mut dir = root;
    for depth in 0..3 {
        let made = volume.make_dir(dir, b"a", &new(), at(1));
        dir = made.unwrap().wait().unwrap().status.fid;
        for n in 0..12 {
            store(&volume, dir, &format!("f{n}"), 0, pattern(n, 100 + 150 * n));
        }
        store(&volume, dir, "small", 0, pattern(depth, 50));
        store(&volume, dir, "medium", 0, pattern(depth, 70_000));
    }
    let private = volume.make_dir(root, b"private", &new(), at(1));
    let private = private.unwrap().wait().unwrap().status.fid;
    let mine = AclEntry {
        id: ViceId(100),
        rights: Rights::ALL,
    };
    let acl = AccessList::new(vec![mine], Vec::new()).unwrap();
    volume.set_acl(private, acl, at(3)).unwrap().wait().unwrap();
    store(&volume, private, "small", 0, pattern(9, 90));
    let spec =
        cellar_volume::SnapshotSpec::new(VOLUME, CLONE, "clone", VolumeKind::Backup, at(4).now);
    partition.snapshot(&spec).unwrap().wait().unwrap();
    store(&volume, dir, "large", 0, pattern(5, 300_000));
    partition.flush().unwrap();
    for n in 12..24 {
        store(&volume, dir, &format!("f{n}"), 0, pattern(n, 200));
    }
    let fid = volume.lookup(root, b"large").unwrap();
    let stored = volume.store(fid, &StoreSpec::at(100_000), &[pattern(7, 30_000)], at(6));
    stored.unwrap().wait().unwrap();
}

fn names() -> Vec<Vec<&'static str>> {
    let files = [
        "f0", "f1", "f2", "f3", "f4", "f5", "f6", "f7", "f8", "f9", "f10", "f11", "f12", "f13",
        "f14", "f15", "f16", "f17", "f18", "f19", "f20", "f21", "f22", "f23",
    ];
    let mut paths = vec![Vec::new()];
    for depth in 0..=3 {
        for name in NAMES.into_iter().chain(files) {
            let mut path = vec!["a"; depth];
            path.push(name);
            paths.push(path);
        }
    }
    paths.push(vec!["private", "small"]);
    paths
}

fn describe(volume: &Volume, path: &[&str]) -> cellar_volume::Result<Option<String>> {
    let mut fid = volume.root();
    for name in path {
        fid = match volume.lookup(fid, name.as_bytes()) {
            Ok(fid) => fid,
            Err(Error::NotFound) => return Ok(None),
            Err(error) => return Err(error),
        };
    }
    let (status, acl) = volume.status_and_acl(fid)?;
    let bytes = volume.read(fid, 0, 4 << 20)?;
    let sum = crc32c::crc32c(&bytes);
    let entries = match fid.vnode.is_directory() {
        true => volume.entries(fid)?.len(),
        false => 0,
    };
    Ok(Some(format!(
        "{status:?} {acl:?} {} {sum} {entries}",
        bytes.len()
    )))
}

/// An error of the volume or the partition counts as an error of everything below it.
fn observe(partition: &Partition) -> Result<ReadResults, String> {
    let mut seen = ReadResults::new();
    for id in [VOLUME, CLONE] {
        let volume = match partition.volume(id) {
            Ok(Some(volume)) => Ok(volume),
            Ok(None) => return Err(format!("volume {id} is gone")),
            Err(error) => Err(error),
        };
        for path in names() {
            let found = match &volume {
                Ok(volume) => describe(volume, &path),
                Err(error) => Err(error.clone()),
            };
            match found {
                Ok(None) => {}
                Ok(Some(text)) => drop(seen.insert((id, path), Ok(text))),
                Err(error @ (Error::Io { .. } | Error::Partition(_) | Error::Format(_))) => {
                    seen.insert((id, path), Err(error.to_string()));
                }
                Err(other) => return Err(format!("{path:?} of {id}: {other}")),
            }
        }
    }
    Ok(seen)
}

/// The first difference of `seen` from `right`, apart from I/O errors.
fn fault(seen: &ReadResults, right: &ReadResults) -> Option<String> {
    for (path, text) in right {
        match seen.get(path) {
            None => return Some(format!("{path:?} is gone")),
            Some(Ok(_)) if seen.get(path) != Some(text) => {
                return Some(format!("{path:?} is other"));
            }
            Some(_) => {}
        }
    }
    let errors_above = |path: &Vec<&str>, id| {
        (0..path.len()).any(|n| matches!(seen.get(&(id, path[..n].to_vec())), Some(Err(_))))
    };
    let more = seen.iter().find(|((id, path), found)| {
        let is_expected = right.contains_key(&(*id, path.clone()));
        let is_below_error = found.is_err() && errors_above(path, *id);
        !is_expected && !is_below_error
    });
    more.map(|(path, found)| format!("{path:?} should not be there: {found:?}"))
}

#[derive(Debug, Default)]
struct Tally {
    right: usize,
    errors: usize,
    refused: usize,
    dropped: usize,
}

/// A partition that was stopped, its contents, and its contents before its last change.
struct Start {
    what: &'static str,
    disk: SimDisk,
    right: ReadResults,
    before: Option<ReadResults>,
}

fn starts() -> [Start; 2] {
    let disk = SimDisk::new(32 << 20);
    let partition = open(&disk).unwrap();
    fill(&partition);
    let before = observe(&partition).unwrap();
    let volume = partition.volume(VOLUME).unwrap().unwrap();
    let last = volume.create_file(volume.root(), b"last", &new(), at(7));
    last.unwrap().wait().unwrap();
    let right = observe(&partition).unwrap();
    assert_eq!(right.len(), before.len() + 1);
    let killed = Start {
        what: "killed",
        disk: disk.power_cut(None),
        right: right.clone(),
        before: Some(before),
    };
    partition.close().unwrap();
    let clean = Start {
        what: "stopped",
        disk: disk.power_cut(None),
        right,
        before: None,
    };
    for start in [&killed, &clean] {
        let again = open(&start.disk.power_cut(None)).unwrap();
        assert!(again.opening().replayed > 10 || start.before.is_none());
        assert_eq!(observe(&again).unwrap(), start.right, "{}", start.what);
    }
    [killed, clean]
}

fn check(start: &Start, name: &str, damage: Damage, tally: &mut Tally) {
    let what = format!("{} {name} {damage:?}", start.what);
    let disk = start.disk.power_cut(None);
    damage.inflict(&disk, name);
    let partition = match open(&disk) {
        Ok(partition) => partition,
        Err(error) => {
            tally.refused += 1;
            assert!(error.to_string().len() > 20, "{what}: {error}");
            // The second start must be refused, too.
            assert!(
                open(&disk).is_err(),
                "{what}: only the first start is refused"
            );
            return;
        }
    };
    let seen = observe(&partition).unwrap_or_else(|fault| panic!("{what}: {fault}"));
    let fault_now = fault(&seen, &start.right);
    let is_dropped = fault_now.is_some()
        && name.starts_with("journal.")
        && start
            .before
            .as_ref()
            .is_some_and(|before| fault(&seen, before).is_none());
    if is_dropped {
        // After a kill, the last group of a journal cannot be distinguished from one that was being
        // written.
        let opening = partition.opening();
        assert!(
            !opening.was_stopped_cleanly && opening.end.is_some(),
            "{what}"
        );
        tally.dropped += 1;
    } else if let Some(fault) = fault_now {
        panic!("{what}: {fault}");
    } else if seen.values().any(Result::is_err) {
        tally.errors += 1;
    } else {
        tally.right += 1;
    }
}

#[test]
fn damage_is_never_absence_or_other_bytes() {
    let mut random = Random::from_environment();
    // A refused start must not log a panic of the table's library.
    let panics = cellar_guarded::count_unguarded("redb");
    for start in starts() {
        let names = start.disk.list().unwrap();
        assert!(names.len() >= 6, "{names:?}");
        for name in names {
            let mut tally = Tally::default();
            for damage in damages(&start.disk.contents(&name), &mut random) {
                check(&start, &name, damage, &mut tally);
            }
            println!("{} {name}: {tally:?}", start.what);
            match &*name {
                "base" => assert!(tally.errors + tally.refused > bits() / 2, "{tally:?}"),
                "blocks.0" => assert!(tally.errors > 10 && tally.refused <= 1, "{tally:?}"),
                "reserve" => assert!(tally.errors + tally.refused == 0, "{tally:?}"),
                _ => {}
            }
        }
    }
    assert_eq!(panics.load(Ordering::Relaxed), 0);
}
