//! Damage is found and named while the volume is in use, and a refill restores the original bytes.

#![allow(clippy::unwrap_used, clippy::single_range_in_vec_init)]

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::*;
use bytes::Bytes;
use cellar_volume::disk::SimDisk;
use cellar_volume::{
    Error, Options, Partition, RestoreMode, ScrubReport, StoreSpec, Volume, VolumeKind, VolumeSpec,
};
use cellar_wire::ids::{Fid, VolumeId};

fn data(seed: usize, length: usize) -> Vec<u8> {
    let mut state = seed as u64 + 1;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..length).map(|_| next()).collect()
}

fn scrub(world: &World) -> ScrubReport {
    let report = world.partition.scrub(0, &mut |_| ControlFlow::Continue(()));
    report.unwrap()
}

/// Two directories down: a file of blocks, and small files.
fn filled() -> (World, Fid, Vec<u8>) {
    let world = World::new();
    let volume = world.volume();
    let mut dir = volume.root();
    for name in ["home", "ann"] {
        let made = volume.make_dir(dir, name.as_bytes(), &new(), at(1));
        dir = made.unwrap().outcome.status.fid;
    }
    for n in 0..5 {
        let name = format!("small{n}");
        let made = volume.create_file(dir, name.as_bytes(), &new(), at(1));
        let fid = made.unwrap().outcome.status.fid;
        let _ = volume
            .store(fid, &StoreSpec::at(0), &[data(n, 900).into()], at(2))
            .unwrap();
    }
    let made = volume.create_file(dir, b"large", &new(), at(1)).unwrap();
    let fid = made.outcome.status.fid;
    let bytes = data(9, 700_001);
    let stored = volume.store(fid, &StoreSpec::at(0), &[bytes.clone().into()], at(2));
    stored.unwrap().wait().unwrap();
    (world, fid, bytes)
}

fn read(volume: &Volume, fid: Fid) -> Result<Bytes, Error> {
    volume.read(fid, 0, 1 << 20)
}

/// A source that returns ranges of `bytes`.
fn from(bytes: &[u8]) -> impl FnMut(Range<u64>) -> Result<Option<Bytes>, Error> {
    move |range| {
        let range = range.start as usize..range.end as usize;
        Ok(bytes.get(range).map(Bytes::copy_from_slice))
    }
}

#[test]
fn a_damaged_file_names_itself_and_is_refilled_for_all_who_share_it() {
    let (world, fid, bytes) = filled();
    let volume = world.volume();
    let clone = world.clone_of(&volume, 20, VolumeKind::ReadOnly);
    // The clone and the volume share the first piece; of the second the volume has its own.
    let more = data(3, 5000);
    let stored = volume.store(fid, &StoreSpec::at(300_000), &[more.clone().into()], at(3));
    stored.unwrap().wait().unwrap();
    let mut now = bytes.clone();
    now[300_000..305_000].copy_from_slice(&more);
    assert_eq!(scrub(&world).damaged, []);
    let stored = world.disk.contents("blocks.0");
    let at_block = |bytes: &[u8]| stored.windows(4096).position(|w| w == bytes).unwrap() as u64;
    let shared = at_block(&bytes[8 * 4096..9 * 4096]);
    let own = at_block(&now[74 * 4096..75 * 4096]);
    world.disk.flip_bit("blocks.0", shared + 77, 1);
    world.disk.flip_bit("blocks.0", own, 6);

    let report = scrub(&world);
    assert_eq!(report.progress.damaged, 2);
    assert!(!report.is_partial && report.progress.volumes == 2);
    let mut damaged = report.damaged.clone();
    damaged.sort_by_key(|damage| damage.volumes.clone());
    let [of_rw, of_clone] = &damaged[..] else {
        panic!("{damaged:#?}");
    };
    assert_eq!(of_rw.volumes, [VOLUME]);
    assert_eq!(of_rw.places, [8 * 4096..9 * 4096, 74 * 4096..75 * 4096]);
    assert_eq!(of_rw.path.as_deref(), Some("home/ann/large"));
    assert_eq!(of_rw.fid, fid);
    assert_eq!(of_clone.volumes, [VolumeId(20)]);
    assert_eq!(of_clone.places, [8 * 4096..9 * 4096]);
    let own_report = clone.scrub(0, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(&own_report.damaged[..], std::slice::from_ref(of_clone));

    // Bytes of another version are refused, and so are wrong bytes.
    let version = volume.status(fid).unwrap();
    let (length, dv) = (version.length, version.data_version);
    let wrong = volume.refill(fid, length, dv + 1, &mut from(&now));
    assert!(matches!(wrong, Err(Error::Invalid(_))));
    let wrong = volume
        .refill(fid, length, dv, &mut from(&data(1, now.len())))
        .unwrap();
    assert_eq!((wrong.restored, wrong.missing), (0, 2));
    assert!(matches!(read(&volume, fid), Err(Error::Io { .. })));

    let right = volume.refill(fid, length, dv, &mut from(&now)).unwrap();
    right.durable.wait().unwrap();
    assert_eq!((right.restored, right.from_here, right.missing), (2, 0, 0));
    assert_eq!(read(&volume, fid).unwrap(), now);
    let in_clone = Fid {
        volume: clone.id(),
        ..fid
    };
    assert_eq!(read(&clone, in_clone).unwrap(), bytes);
    assert_eq!(volume.status(fid).unwrap(), version);
    assert_eq!(scrub(&world).damaged, []);
    drop((volume, clone));
    let world = world.reopen();
    assert_eq!(read(&world.volume(), fid).unwrap(), now);
    world.check();
}

#[test]
fn bytes_that_another_version_has_in_another_block_need_no_source() {
    let (world, fid, bytes) = filled();
    let volume = world.volume();
    let _clone = world.clone_of(&volume, 20, VolumeKind::Backup);
    // The same bytes again, which go to a block of their own.
    let again = Bytes::copy_from_slice(&bytes[4096..8192]);
    let stored = volume.store(fid, &StoreSpec::at(4096), &[again], at(3));
    stored.unwrap().wait().unwrap();
    let contents = world.disk.contents("blocks.0");
    let places: Vec<usize> = (0..contents.len() / 4096)
        .filter(|n| contents[n * 4096..][..4096] == bytes[4096..8192])
        .collect();
    assert_eq!(places.len(), 2);
    world
        .disk
        .flip_bit("blocks.0", places[1] as u64 * 4096 + 5, 3);
    let damaged = scrub(&world).damaged;
    assert_eq!(damaged.len(), 1);
    let (named, length, dv) = (damaged[0].fid, damaged[0].length, damaged[0].data_version);
    let of = world.partition.volume(named.volume).unwrap().unwrap();
    let refilled = of.refill(named, length, dv, &mut |_| Ok(None)).unwrap();
    assert_eq!(
        (refilled.restored, refilled.from_here, refilled.missing),
        (1, 1, 0)
    );
    assert_eq!(scrub(&world).damaged, []);
    world.check();
}

/// The refilled version of a clone is older than the volume's version, although it was written
/// later.
#[test]
fn a_refilled_clone_hides_nothing_of_its_volume() {
    let (world, fid, bytes) = filled();
    let volume = world.volume();
    let clone = world.clone_of(&volume, 20, VolumeKind::Backup);
    let now = data(5, bytes.len());
    let stored = volume.store(fid, &StoreSpec::at(0), &[now.clone().into()], at(3));
    stored.unwrap().wait().unwrap();
    world.partition.flush().unwrap();
    let blocks = world.disk.contents("blocks.0");
    let old = blocks.windows(4096).position(|w| w == &bytes[..4096]);
    world.disk.flip_bit("blocks.0", old.unwrap() as u64, 2);
    let damaged = scrub(&world).damaged.remove(0);
    assert_eq!(damaged.volumes, [VolumeId(20)]);
    let (length, dv) = (damaged.length, damaged.data_version);
    let done = clone.refill(damaged.fid, length, dv, &mut from(&bytes));
    assert_eq!(done.unwrap().restored, 1);
    assert!(read(&clone, damaged.fid).unwrap() == bytes);
    assert!(read(&volume, fid).unwrap() == now);
    world.check();
}

/// A restore builds on blocks that it has looked up, so none is replaced meanwhile.
#[test]
fn nothing_is_refilled_during_a_restore() {
    let (world, fid, bytes) = filled();
    let volume = world.volume();
    let version = volume.status(fid).unwrap();
    let contents = world.disk.contents("blocks.0");
    let place = contents.windows(4096).position(|w| w == &bytes[..4096]);
    world.disk.flip_bit("blocks.0", place.unwrap() as u64, 2);
    let (length, dv) = (version.length, version.data_version);
    let restore = world.partition.begin_restore(VOLUME, RestoreMode::Full);
    let refused = volume.refill(fid, length, dv, &mut from(&bytes));
    assert_eq!(refused.unwrap_err(), Error::Busy(VOLUME));
    restore.unwrap().abort().unwrap();
    let done = volume.refill(fid, length, dv, &mut from(&bytes)).unwrap();
    assert_eq!(done.restored, 1);
    assert_eq!(scrub(&world).damaged, []);
    world.check();
}

/// A partition with so many files that its table has many pages. Also returns the offsets in the
/// table at which the bytes of one file lie.
fn many_pages() -> (SimDisk, Fid, Vec<u8>, Vec<u64>) {
    let (world, _, _) = filled();
    let volume = world.volume();
    for n in 0..200 {
        let made = volume.create_file(volume.root(), format!("f{n}").as_bytes(), &new(), at(1));
        let fid = made.unwrap().outcome.status.fid;
        let stored = volume.store(fid, &StoreSpec::at(0), &[data(n, 900).into()], at(2));
        stored.unwrap().wait().unwrap();
    }
    let fid = volume.lookup(volume.root(), b"f100").unwrap();
    drop(volume);
    let world = world.reopen();
    world.partition.close().unwrap();
    let base = world.disk.contents("base");
    let wanted = data(100, 900);
    let places = (0..base.len() - 900).filter(|&n| base[n..n + 900] == wanted[..]);
    let places: Vec<u64> = places.map(|place| place as u64).collect();
    assert!(!places.is_empty());
    (world.disk.power_cut(None), fid, wanted, places)
}

/// One wrong bit in a page of the table: the files with records in it are errors and are named, all
/// others can be read.
#[test]
fn a_damaged_page_of_the_table_is_an_error_of_its_files() {
    let (disk, fid, _, places) = many_pages();
    let uncached = cellar_volume::Options {
        base_cache_bytes: 0,
        ..options()
    };
    let partition = cellar_volume::Partition::open(Arc::new(disk.clone()), uncached).unwrap();
    let world = World { disk, partition };
    // All of these places but one are in pages of earlier states.
    for place in places {
        world.disk.flip_bit("base", place + 500, 4);
    }
    let volume = world.volume();
    let mut unread = Vec::new();
    for entry in volume.entries(volume.root()).unwrap() {
        let fid = volume.lookup(volume.root(), &entry.name).unwrap();
        if let Err(error) = read(&volume, fid) {
            assert!(matches!(error, Error::Io { fid: of, .. } if of == fid));
            unread.push(fid);
        }
    }
    assert!(unread.contains(&fid) && unread.len() < 10, "{unread:?}");
    let counted = world.partition.counters().damaged;
    assert!(counted >= unread.len() as u64, "{counted}");
    let damaged = scrub(&world).damaged;
    let mut named: Vec<_> = damaged.iter().map(|damage| damage.fid).collect();
    unread.sort();
    named.sort();
    assert_eq!(named, unread);
    let of = damaged.iter().find(|damage| damage.fid == fid).unwrap();
    assert_eq!(of.path.as_deref(), Some("f100"));
}

/// Pages in memory still serve reads; the damage on the disk is named all the same.
#[test]
fn a_damaged_page_of_the_table_that_is_in_memory_is_named() {
    let (disk, fid, bytes, places) = many_pages();
    let partition = cellar_volume::Partition::open(Arc::new(disk.clone()), options()).unwrap();
    let world = World { disk, partition };
    assert_eq!(scrub(&world).damaged, []);
    for place in places {
        world.disk.flip_bit("base", place + 500, 4);
    }
    let damaged = scrub(&world).damaged;
    assert!((1..10).contains(&damaged.len()), "{damaged:?}");
    let of = damaged.iter().find(|damage| damage.fid == fid).unwrap();
    assert_eq!(of.path.as_deref(), Some("f100"));
    assert!(of.cause.contains("on the disk"), "{}", of.cause);
    assert_eq!(read(&world.volume(), fid).unwrap(), bytes);
    world.check();
}

/// Files are made, changed and removed, and the table is flushed to the disk. Meanwhile the map is
/// compared with the pieces that name its blocks.
#[test]
fn a_map_of_blocks_that_changes_is_no_damage() {
    let disk = SimDisk::new(256 << 20);
    let options = Options {
        journal_bytes: 64 << 10,
        ..options()
    };
    let partition = Partition::open(Arc::new(disk), options).unwrap();
    let spec = VolumeSpec::new(VOLUME, "vol", at(1).author, at(1).now);
    let volume = partition.create_volume(&spec).unwrap().outcome;
    let stop = std::sync::atomic::AtomicBool::new(false);
    let ordering = std::sync::atomic::Ordering::Relaxed;
    let before = partition.counters().flushes;
    std::thread::scope(|scope| {
        for seed in 0..3_usize {
            let (volume, stop) = (&volume, &stop);
            scope.spawn(move || {
                for n in 0.. {
                    if stop.load(ordering) {
                        break;
                    }
                    let name = format!("{seed} {}", n % 40);
                    let fid =
                        match volume.create_file(volume.root(), name.as_bytes(), &new(), at(2)) {
                            Ok(made) => made.outcome.status.fid,
                            Err(_) if n % 3 == 0 => {
                                let removed =
                                    volume.remove_file(volume.root(), name.as_bytes(), at(3));
                                removed.unwrap().wait().unwrap();
                                continue;
                            }
                            Err(_) => volume.lookup(volume.root(), name.as_bytes()).unwrap(),
                        };
                    let spec = StoreSpec::at((n as u64 * 5000) % 600_000);
                    let bytes = data(n, 9000 + 40_000 * (n % 3));
                    volume
                        .store(fid, &spec, &[bytes.into()], at(4))
                        .unwrap()
                        .wait()
                        .unwrap();
                }
            });
        }
        let mut damaged = Vec::new();
        for _ in 0..100 {
            let report = partition.scrub(0, &mut |_| ControlFlow::Continue(()));
            damaged.extend(report.unwrap().damaged);
        }
        stop.store(true, ordering);
        assert_eq!(damaged, []);
    });
    assert!(partition.counters().flushes > before + 10);
    assert_eq!(partition.check().unwrap().faults, Vec::<String>::new());
}

#[test]
fn a_scrub_keeps_to_its_rate_among_writers_and_can_be_ended() {
    let (world, fid, _) = filled();
    let volume = world.volume();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let ordering = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0.. {
                if stop.load(ordering) {
                    break;
                }
                let spec = StoreSpec::at(n * 5000 % 600_000);
                let stored = volume.store(fid, &spec, &[data(n as usize, 9000).into()], at(9));
                stored.unwrap().wait().unwrap();
            }
        });
        let begun = Instant::now();
        let mut reports = 0;
        let rate = 1 << 20;
        let report = volume.scrub(rate, &mut |progress| {
            reports += 1;
            assert_eq!(progress.volumes_total, 1);
            ControlFlow::Continue(())
        });
        let report = report.unwrap();
        assert_eq!(report.damaged, []);
        assert!(report.progress.bytes > 700_000 && reports > 0);
        let least = report.progress.bytes as f64 / rate as f64 - 0.1;
        assert!(begun.elapsed() > Duration::from_secs_f64(least));
        for _ in 0..30 {
            assert_eq!(scrub(&world).damaged, []);
        }
        let ended = volume.scrub(1000, &mut |_| ControlFlow::Break(())).unwrap();
        assert!(ended.is_partial);
        stop.store(true, ordering);
    });
    world.check();
}
