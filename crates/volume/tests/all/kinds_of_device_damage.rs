//! Every file of a device of objects is missing, empty, cut off or has bits flipped, after a clean
//! stop and after a kill. Then an acknowledged object is read correctly or is an I/O error, or the
//! device is refused with a message. It never has other bytes, and never is "no such object". A
//! file server that got this answer would collect objects that it needs, and a repair would take
//! another copy for the only one.
//!
//! A few hundred cases run as part of the tests. All of them, with 2,000 bits of each file, take
//! some minutes: `CELLAR_DAMAGE=full cargo test -p cellar-volume --test all
//! kinds_of_device_damage`.

use crate::common;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::inflict::{Damage, Random, damages};
use bytes::Bytes;
use cellar_volume::disk::{Disk, SimDisk};
use cellar_volume::objects::ObjectStore;
use cellar_volume::{Error, Options};
use cellar_wire::ids::{Uniquifier, VnodeId, VolumeId};
use cellar_wire::object::ObjectId;

fn options() -> Options {
    Options {
        journal_bytes: 256 << 10,
        reserve_bytes: 256 << 10,
        ..common::options()
    }
}

fn open(disk: &SimDisk) -> cellar_volume::Result<ObjectStore> {
    ObjectStore::open(Arc::new(disk.clone()), options())
}

fn id(serial: u32) -> ObjectId {
    ObjectId {
        volume: VolumeId(7 + serial % 2),
        vnode: VnodeId(2 * serial),
        uniquifier: Uniquifier(serial),
        serial,
    }
}

fn pattern(seed: u32, length: usize) -> Bytes {
    let byte = |n: usize| (n * (2 * seed as usize + 3) / 7) as u8 ^ seed as u8;
    (0..length).map(byte).collect::<Vec<_>>().into()
}

fn write(store: &ObjectStore, serial: u32, (base, version): (u64, u64), at: u64, bytes: Bytes) {
    let length = bytes.len() as u64;
    let mut writer = store.writer(id(serial), base, version, at, length).unwrap();
    writer.push(bytes).unwrap();
    writer.finish().unwrap().wait().unwrap();
}

/// Number of present objects, and the serial number of one that was removed and can be restored.
const OBJECTS: u32 = 60;
const REMOVED: u32 = 61;

/// Objects of all lengths, with holes and with versions that share bytes. Some are in the base
/// table, the newest in the journal.
fn fill(store: &ObjectStore) {
    for serial in 1..40 {
        let length = match serial % 4 {
            0 => 50_000 + 9000 * serial as usize,
            1 => 4096 * serial as usize / 8,
            _ => 17 * serial as usize,
        };
        write(store, serial, (0, 10), 0, pattern(serial, length));
    }
    write(store, 5, (10, 11), 700_000, pattern(70, 9000));
    write(store, 8, (10, 11), 4096, pattern(71, 8192));
    write(store, REMOVED, (0, 10), 0, pattern(72, 30_000));
    let (count, ticket) = store.remove(&[id(REMOVED)], true).unwrap();
    ticket.wait().unwrap();
    assert_eq!(count, 1);
    store.flush().unwrap();
    for serial in 40..=OBJECTS {
        write(
            store,
            serial,
            (0, 10),
            0,
            pattern(serial, 300 * serial as usize),
        );
    }
    write(store, 8, (11, 12), 100_000, pattern(73, 20_000));
    store
        .truncate(id(12), 10, 13, 30_000)
        .unwrap()
        .wait()
        .unwrap();
}

/// The observed state of an object or a list: `Err` is an I/O error.
type ReadResults = BTreeMap<String, Result<String, String>>;

/// Records an observation. An error other than an I/O error fails the case.
fn note(
    seen: &mut ReadResults,
    what: String,
    found: cellar_volume::Result<String>,
) -> Result<(), String> {
    let found = match found {
        Ok(text) => Ok(text),
        Err(error @ (Error::ObjectIo { .. } | Error::Partition(_) | Error::Format(_))) => {
            Err(error.to_string())
        }
        Err(other) => return Err(format!("{what}: {other}")),
    };
    seen.insert(what, found);
    Ok(())
}

/// All versions of all objects, and the lists from which file servers collect.
fn observe(store: &ObjectStore) -> Result<ReadResults, String> {
    let mut seen = ReadResults::new();
    for serial in 1..=OBJECTS {
        let info = store.examine(id(serial));
        let versions = match serial {
            8 => vec![10, 11, 12],
            5 => vec![10, 11, 12],
            12 => vec![10, 13],
            _ => vec![10],
        };
        note(
            &mut seen,
            format!("object {serial}"),
            info.map(|info| format!("{info:?}")),
        )?;
        for version in versions {
            let bytes = store.read(id(serial), version, 0, 4 << 20);
            let text = bytes.map(|bytes| format!("{} {}", bytes.len(), crc32c::crc32c(&bytes)));
            note(&mut seen, format!("{serial}.{version}"), text)?;
        }
    }
    let removed = store.examine(id(REMOVED)).map(|info| format!("{info:?}"));
    note(&mut seen, "the removed one".to_owned(), removed)?;
    for volume in [7, 8] {
        for removed in [false, true] {
            let listed = store.list(volume, id(0), 1000, removed);
            let listed = listed.map(|(found, more)| format!("{found:?} {more}"));
            note(&mut seen, format!("volume {volume}, {removed}"), listed)?;
        }
    }
    Ok(seen)
}

fn fault(seen: &ReadResults, right: &ReadResults) -> Option<String> {
    let is_other = |(what, found): &(&String, &Result<String, String>)| {
        found.is_ok()
            && seen
                .get(*what)
                .is_none_or(|now| now.is_ok() && now != *found)
    };
    let other = right.iter().find(is_other);
    other.map(|(what, found)| format!("{what}: {:?}, not {found:?}", seen.get(what)))
}

/// A device that was stopped, its contents, and its contents before its last change.
struct Start {
    what: &'static str,
    disk: SimDisk,
    right: ReadResults,
    before: Option<ReadResults>,
}

fn starts() -> [Start; 2] {
    let disk = SimDisk::new(64 << 20);
    let store = open(&disk).unwrap();
    fill(&store);
    let copied = store.truncate(id(5), 11, 12, 709_000).unwrap();
    copied.wait().unwrap();
    let before = observe(&store).unwrap();
    // The version is there, so this is one batch. With several, a dropped group could end between
    // them.
    let cut = store.truncate(id(5), 11, 12, 705_000).unwrap();
    cut.wait().unwrap();
    let right = observe(&store).unwrap();
    assert_ne!(right, before);
    let killed = Start {
        what: "killed",
        disk: disk.power_cut(None),
        right: right.clone(),
        before: Some(before),
    };
    store.close().unwrap();
    let clean = Start {
        what: "stopped",
        disk: disk.power_cut(None),
        right,
        before: None,
    };
    for start in [&killed, &clean] {
        let again = open(&start.disk.power_cut(None)).unwrap();
        assert_eq!(observe(&again).unwrap(), start.right, "{}", start.what);
    }
    [killed, clean]
}

#[derive(Debug, Default)]
struct Tally {
    right: usize,
    errors: usize,
    refused: usize,
    dropped: usize,
}

fn check(start: &Start, name: &str, damage: Damage, tally: &mut Tally) {
    let what = format!("{} {name} {damage:?}", start.what);
    let disk = start.disk.power_cut(None);
    damage.inflict(&disk, name);
    let store = match open(&disk) {
        Ok(store) => store,
        Err(error) => {
            tally.refused += 1;
            assert!(error.to_string().len() > 20, "{what}: {error}");
            assert!(
                open(&disk).is_err(),
                "{what}: only the first start is refused"
            );
            return;
        }
    };
    let seen = observe(&store).unwrap_or_else(|fault| panic!("{what}: {fault}"));
    let Some(fault_now) = fault(&seen, &start.right) else {
        match seen.values().any(Result::is_err) {
            true => tally.errors += 1,
            false => tally.right += 1,
        }
        return;
    };
    // After a kill, the last group of a journal cannot be distinguished from one that was being
    // written.
    let before = start
        .before
        .as_ref()
        .filter(|_| name.starts_with("journal."));
    let fault_before = before.map_or(Some("no".to_owned()), |before| fault(&seen, before));
    assert!(
        fault_before.is_none(),
        "{what}: {fault_now}; before: {fault_before:?}"
    );
    let opening = store.opening();
    assert!(
        !opening.was_stopped_cleanly && opening.end.is_some(),
        "{what}"
    );
    tally.dropped += 1;
}

#[test]
fn damage_of_a_device_is_never_absence_or_other_bytes() {
    let mut random = Random::from_environment();
    for start in starts() {
        let names = start.disk.list().unwrap();
        assert!(names.len() >= 5, "{names:?}");
        for name in names {
            let mut tally = Tally::default();
            for damage in damages(&start.disk.contents(&name), &mut random) {
                check(&start, &name, damage, &mut tally);
            }
            println!("{} {name}: {tally:?}", start.what);
            match &*name {
                "blocks.0" => assert!(tally.errors > 10, "{tally:?}"),
                "reserve" => assert!(tally.errors + tally.refused == 0, "{tally:?}"),
                _ => {}
            }
        }
    }
}

/// An unreadable page of the table costs only the objects in it. The scrub continues with the
/// others, and names the objects in the page, also while memory still has the page.
#[test]
fn a_scrub_goes_on_past_a_damaged_page_of_the_table() {
    const MANY: u32 = 300;
    let disk = SimDisk::new(64 << 20);
    let store = open(&disk).unwrap();
    for serial in 1..=MANY {
        write(&store, serial, (0, 10), 0, pattern(serial, 900));
    }
    store.flush().unwrap();
    store.close().unwrap();
    drop(store);
    // The key of an object in the middle, to find its place.
    let mut key = vec![0x40];
    for part in [7, 300, 150, 150_u32] {
        key.extend_from_slice(&part.to_be_bytes());
    }
    for cached in [false, true] {
        let disk = disk.power_cut(None);
        let options = Options {
            base_cache_bytes: if cached { 4 << 20 } else { 0 },
            ..options()
        };
        let store = ObjectStore::open(Arc::new(disk.clone()), options).unwrap();
        let mut tell = |_: &_| std::ops::ControlFlow::Continue(());
        let sound = store.scrub(0, &mut tell).unwrap();
        assert_eq!((sound.objects, sound.damaged.len()), (MANY.into(), 0));
        let base = disk.contents("base");
        let places = (0..base.len() - key.len()).filter(|&at| base[at..].starts_with(&key));
        for place in places {
            disk.flip_bit("base", place as u64 + 2, 1);
        }
        let report = store.scrub(0, &mut tell).unwrap();
        assert!(!report.is_partial);
        if cached {
            assert_eq!(report.objects, u64::from(MANY));
            assert!(report.damaged.contains(&id(150)), "{report:?}");
            assert!(report.damaged.len() < 100);
        } else {
            // The objects of volume 8 lie behind it.
            assert!(report.objects > u64::from(MANY) / 2, "{report:?}");
            assert!(report.objects < u64::from(MANY));
        }
    }
}
