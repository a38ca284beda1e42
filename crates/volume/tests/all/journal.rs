//! Damage of the journal is distinguished from the effects of a crash. Damage refuses the
//! partition. After a crash, the last group is dropped and its place is logged.

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use bytes::Bytes;
use cellar_volume::disk::{Disk, Fault, SimDisk};
use cellar_volume::objects::ObjectStore;
use cellar_volume::{Durability, Error, Opening, Options, Partition, StoreSpec};
use cellar_wire::ids::{Uniquifier, VnodeId, VolumeId};
use cellar_wire::object::ObjectId;

const BLOCK: usize = 4096;
const FILES: [&str; 2] = ["journal.0", "journal.1"];

/// A whole group in a journal file, by its header.
#[derive(Clone, Copy, Debug)]
struct Group {
    file: &'static str,
    offset: u64,
    number: u64,
    blocks: u64,
}

fn groups(disk: &SimDisk) -> Vec<Group> {
    let mut groups = Vec::new();
    for file in FILES {
        for (index, block) in disk.contents(file).chunks(BLOCK).enumerate() {
            if block.starts_with(b"CJG1") {
                let word = |at: usize| u32::from_be_bytes(block[at..at + 4].try_into().unwrap());
                groups.push(Group {
                    file,
                    offset: (index * BLOCK) as u64,
                    number: u64::from(word(8)) << 32 | u64::from(word(12)),
                    blocks: (32 + u64::from(word(16))).div_ceil(BLOCK as u64),
                });
            }
        }
    }
    groups.sort_by_key(|group| group.number);
    groups
}

fn open(disk: &SimDisk) -> cellar_volume::Result<Arc<Partition>> {
    Partition::open(Arc::new(disk.clone()), options())
}

fn open_without_the_rest(disk: &SimDisk) -> cellar_volume::Result<Arc<Partition>> {
    let options = Options {
        drop_damaged_journal: true,
        ..options()
    };
    Partition::open(Arc::new(disk.clone()), options)
}

/// Makes a file in two durable changes: its name and its bytes.
fn make(partition: &Partition, name: &str) {
    let volume = partition.volume(VOLUME).unwrap().unwrap();
    if let Ok(fid) = volume.lookup(volume.root(), name.as_bytes()) {
        assert_eq!(volume.status(fid).unwrap().length, 0);
        volume
            .remove_file(volume.root(), name.as_bytes(), at(3))
            .unwrap()
            .wait()
            .unwrap();
    }
    let made = volume.create_file(volume.root(), name.as_bytes(), &new(), at(1));
    let fid = made.unwrap().wait().unwrap().status.fid;
    let body = Bytes::copy_from_slice(name.as_bytes());
    let stored = volume.store(fid, &StoreSpec::at(0), &[body], at(2));
    stored.unwrap().wait().unwrap();
}

/// The number of files `f0`, `f1`, ... that are there without a gap and with their bytes.
fn files(partition: &Partition) -> usize {
    let volume = partition.volume(VOLUME).unwrap().unwrap();
    let there = |n: &usize| match volume.lookup(volume.root(), format!("f{n}").as_bytes()) {
        Ok(fid) => volume.read(fid, 0, 100).unwrap() == format!("f{n}").as_bytes(),
        Err(Error::NotFound) => false,
        Err(other) => panic!("{other}"),
    };
    let count = (0..).take_while(there).count();
    let entries = volume.entries(volume.root()).unwrap().len() - 2;
    assert!((count..=count + 1).contains(&entries), "{count} {entries}");
    count
}

/// The disk of a partition with the files `f0` to `f19` whose process was killed.
fn killed() -> SimDisk {
    let World { disk, partition } = World::new();
    partition.flush().unwrap();
    for n in 0..20 {
        make(&partition, &format!("f{n}"));
    }
    // The partition continues with its own disk.
    disk.power_cut(None)
}

fn flip(disk: &SimDisk, group: &Group, byte: u64) {
    disk.flip_bit(group.file, group.offset + byte, 2);
}

#[test]
fn a_damaged_group_in_the_middle_refuses_the_partition() {
    let disk = killed();
    let all = groups(&disk);
    // The payload, the checksum, the number, the length, the journal's id, the first word.
    for (place, byte) in [60, 5, 15, 18, 24, 0].into_iter().enumerate() {
        let disk = disk.power_cut(None);
        let hit = all[all.len() - 12 - place];
        flip(&disk, &hit, byte);
        let behind = all.iter().filter(|group| group.number > hit.number);
        let blocks: u64 = behind.clone().map(|group| group.blocks).sum();
        let expected = Error::DamagedJournal {
            file: hit.file.to_owned(),
            offset: hit.offset,
            groups: behind.count() as u64,
            bytes: blocks * BLOCK as u64,
        };
        for _ in 0..2 {
            assert_eq!(open(&disk).unwrap_err(), expected, "byte {byte}");
        }
        // Even then, no change is kept that came after a lost one.
        let partition = open_without_the_rest(&disk).unwrap();
        let opening = partition.opening().clone();
        assert_eq!(opening.groups_behind, 11 + place as u64);
        let count = files(&partition);
        assert_eq!(count, (40 - 12 - place) / 2);
        partition.check().unwrap();
        make(&partition, &format!("f{count}"));
        make(&partition, &format!("f{}", count + 1));
        let again = disk.power_cut(None);
        partition.close().unwrap();
        for disk in [disk, again] {
            assert_eq!(files(&open(&disk).unwrap()), count + 2);
        }
    }
}

/// Writes the groups behind number `last` to the start of the other file instead.
fn move_to_other_file(disk: &SimDisk, last: u64) {
    let all = groups(disk);
    let from = all.last().unwrap().file;
    let to = FILES[usize::from(from == FILES[0])];
    let (from, to) = (disk.open(from).unwrap(), disk.open(to).unwrap());
    let mut at = 0;
    for group in all.iter().filter(|group| group.number > last) {
        let mut bytes = vec![0; group.blocks as usize * BLOCK];
        from.read_at(&mut bytes, group.offset).unwrap();
        to.write_at(&bytes, at).unwrap();
        at += bytes.len() as u64;
        from.write_at(&vec![0; bytes.len()], group.offset).unwrap();
    }
    from.sync().unwrap();
    to.sync().unwrap();
}

#[test]
fn later_groups_in_another_file_prove_damage_too() {
    let disk = killed();
    let all = groups(&disk);
    let last = all[all.len() - 8];
    move_to_other_file(&disk, last.number);
    assert_eq!(files(&open(&disk.power_cut(None)).unwrap()), 20);
    flip(&disk, &last, 70);
    match open(&disk).unwrap_err() {
        Error::DamagedJournal {
            file,
            offset,
            groups,
            ..
        } => assert_eq!((&*file, offset, groups), (last.file, last.offset, 7)),
        other => panic!("{other}"),
    }
}

#[test]
fn a_torn_last_group_is_dropped_with_a_word() {
    let disk = killed();
    let last = *groups(&disk).last().unwrap();
    // The first word, the number, the journal's id.
    for byte in [0, 15, 24] {
        let disk = disk.power_cut(None);
        flip(&disk, &last, byte);
        let opening = open(&disk).unwrap().opening().clone();
        assert!(opening.is_torn, "byte {byte}");
        assert_eq!(opening.end, Some((last.file.to_owned(), last.offset)));
    }
    flip(&disk, &last, 100);
    let partition = open(&disk).unwrap();
    let expected = Opening {
        was_stopped_cleanly: false,
        replayed: last.number - 1,
        end: Some((last.file.to_owned(), last.offset)),
        is_torn: true,
        ..Opening::default()
    };
    let replayed = partition.opening().replayed;
    assert!(replayed > 30, "{replayed}");
    assert_eq!(
        *partition.opening(),
        Opening {
            replayed,
            ..expected
        }
    );
    assert_eq!(files(&partition), 19);
    // The remains of the dropped group are not taken for a later one.
    make(&partition, "f19");
    make(&partition, "f20");
    let cut = disk.power_cut(None);
    assert_eq!(files(&open(&cut).unwrap()), 21);
}

#[test]
fn after_a_clean_stop_no_bit_of_the_journal_matters() {
    let World { disk, partition } = World::new();
    for n in 0..20 {
        make(&partition, &format!("f{n}"));
    }
    partition.close().unwrap();
    let clean = open(&disk.power_cut(None)).unwrap();
    assert!(clean.opening().was_stopped_cleanly);
    assert_eq!(clean.opening().replayed, 0);
    for group in groups(&disk) {
        for byte in [2, 6, 12, 17, 25, 28, 40] {
            let disk = disk.power_cut(None);
            flip(&disk, &group, byte);
            assert_eq!(files(&open(&disk).unwrap()), 20, "{group:?} {byte}");
        }
    }
    // After an opening and a kill, it is not cleanly stopped any more.
    let disk = disk.power_cut(None);
    let partition = open(&disk).unwrap();
    let again = open(&disk.power_cut(None)).unwrap();
    assert!(!again.opening().was_stopped_cleanly);
    // Closed without a change, it is cleanly stopped. Groups written after the clean stop count.
    partition.close().unwrap();
    let partition = open(&disk).unwrap();
    assert!(partition.opening().was_stopped_cleanly);
    make(&partition, "f20");
    let cut = disk.power_cut(None);
    let hit = groups(&cut).last().copied().unwrap();
    assert_eq!(files(&open(&cut.power_cut(None)).unwrap()), 21);
    // The first of its two groups is damaged.
    let first = groups(&cut)
        .into_iter()
        .find(|group| group.number == hit.number - 1);
    flip(&cut, &first.unwrap(), 50);
    assert!(matches!(
        open(&cut),
        Err(Error::DamagedJournal { groups: 1, .. })
    ));
}

/// A closed partition is dropped later, when another process may have the disk.
#[test]
fn a_closed_store_writes_nothing_when_dropped() {
    let World { disk, partition } = World::new();
    make(&partition, "f0");
    partition.close().unwrap();
    let volume = partition.volume(VOLUME).unwrap().unwrap();
    let again = open(&disk).unwrap();
    make(&again, "f1");
    again.flush().unwrap();
    make(&again, "f2");
    // It can be read until then.
    assert!(volume.lookup(volume.root(), b"f0").is_ok());
    drop(volume);
    drop(partition);
    assert_eq!(files(&open(&disk.power_cut(None)).unwrap()), 3);
    again.close().unwrap();
    assert_eq!(files(&open(&disk).unwrap()), 3);
}

#[test]
fn a_journal_file_that_is_missing_or_cut_refuses_the_partition() {
    let disk = killed();
    for name in FILES {
        for length in [None, Some(0), Some(4096), Some((1 << 20) - 1)] {
            let disk = disk.power_cut(None);
            match length {
                None => disk.remove(name).unwrap(),
                Some(length) => disk.open(name).unwrap().set_length(length).unwrap(),
            }
            for _ in 0..2 {
                match open(&disk) {
                    Err(Error::LostJournal(sentence)) => {
                        assert!(sentence.contains(name), "{sentence}")
                    }
                    other => panic!("{name} {length:?}: {other:?}"),
                }
            }
            let partition = open_without_the_rest(&disk).unwrap();
            assert_eq!(partition.opening().files_lost, [name]);
            let count = files(&partition);
            partition.close().unwrap();
            assert_eq!(files(&open(&disk).unwrap()), count);
        }
    }
}

#[test]
fn a_base_table_is_not_made_beside_a_journal_in_use() {
    let disk = killed();
    disk.remove("base").unwrap();
    assert!(matches!(open(&disk), Err(Error::Damaged(_))));
    let disk = killed();
    disk.open("base").unwrap().set_length(0).unwrap();
    assert!(matches!(open(&disk), Err(Error::Damaged(_))));
    // The journal of another partition is refused as well.
    let (one, other) = (killed(), killed());
    for name in ["base", "base.sums"] {
        let file = one.open(name).unwrap();
        file.set_length(0).unwrap();
        file.write_at(&other.contents(name), 0).unwrap();
    }
    assert!(matches!(open(&one), Err(Error::Damaged(_))));
}

#[test]
fn the_power_goes_while_a_partition_is_made() {
    for n in 1.. {
        let disk = SimDisk::new(64 << 20);
        disk.set_fault(Fault::Dead(n));
        let made = open(&disk);
        for seed in [None, Some(n), Some(n + 1000)] {
            let disk = disk.power_cut(seed);
            let partition = open(&disk).unwrap_or_else(|error| panic!("{n} {seed:?}: {error}"));
            create_volume(&partition);
            make(&partition, "f0");
            partition.close().unwrap();
            assert_eq!(files(&open(&disk).unwrap()), 1, "{n} {seed:?}");
        }
        if made.is_ok() {
            assert!(n > 10, "{n}");
            break;
        }
    }
}

#[test]
fn relaxed_a_power_cut_loses_the_last_changes_only() {
    let relaxed = Options {
        durability: Durability::Relaxed(Duration::from_millis(1)),
        journal_bytes: 64 << 10,
        ..options()
    };
    let disk = SimDisk::new(64 << 20);
    let partition = Partition::open(Arc::new(disk.clone()), relaxed.clone()).unwrap();
    create_volume(&partition);
    partition.flush().unwrap();
    for n in 0..300u64 {
        make(&partition, &format!("f{n}"));
        if n % 3 == 0 {
            let cut = disk.power_cut((n % 2 == 0).then_some(n));
            let again = Partition::open(Arc::new(cut), relaxed.clone());
            let again = again.unwrap_or_else(|error| panic!("{n}: {error}"));
            assert!(files(&again) <= n as usize + 1);
        }
    }
}

#[test]
fn a_device_of_objects_is_refused_too() {
    let disk = SimDisk::new(64 << 20);
    let open = |disk: &SimDisk| ObjectStore::open(Arc::new(disk.clone()), options());
    let device = open(&disk).unwrap();
    let id = |serial| ObjectId {
        volume: VolumeId(7),
        vnode: VnodeId(4),
        uniquifier: Uniquifier(1),
        serial,
    };
    for serial in 1..=20 {
        let bytes = [Bytes::from_static(b"object")];
        let written = device.write(id(serial), 0, 5, 0, &bytes);
        written.unwrap().wait().unwrap();
    }
    let cut = disk.power_cut(None);
    let all = groups(&cut);
    let hit = all[all.len() - 8];
    flip(&cut, &hit, 40);
    match open(&cut).unwrap_err() {
        Error::DamagedJournal {
            file,
            offset,
            groups,
            ..
        } => {
            assert_eq!((&*file, offset, groups), (hit.file, hit.offset, 7));
        }
        other => panic!("{other}"),
    }
    device.close().unwrap();
    assert!(open(&disk).unwrap().opening().was_stopped_cleanly);
}
