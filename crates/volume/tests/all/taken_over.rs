//! Partitions that an earlier version of this program left are converted at their first start: see
//! `testdata/partitions`.

use crate::common;

use std::sync::Arc;

use crate::common::{at, new};
use bytes::Bytes;
use cellar_volume::disk::{Disk, Fault, SimDisk};
use cellar_volume::{Error, Options, Partition, Volume};
use cellar_wire::ids::Fid;

const CLEAN: &[u8] = include_bytes!("../../../../testdata/partitions/05f1d99-clean.pages");
const KILLED: &[u8] = include_bytes!("../../../../testdata/partitions/05f1d99-killed.pages");

fn take<'b>(rest: &mut &'b [u8], count: usize) -> &'b [u8] {
    let (taken, left) = rest.split_at(count);
    *rest = left;
    taken
}

fn number(rest: &mut &[u8], bytes: usize) -> u64 {
    let digits = take(rest, bytes).iter();
    digits.fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Decodes the disk in a stored file.
fn stored(mut rest: &[u8]) -> SimDisk {
    let disk = SimDisk::new(256 << 20);
    while !rest.is_empty() {
        let length = number(&mut rest, 2) as usize;
        let name = str::from_utf8(take(&mut rest, length)).unwrap();
        let file = disk.open(name).unwrap();
        file.set_length(number(&mut rest, 8)).unwrap();
        for _ in 0..number(&mut rest, 4) {
            let offset = number(&mut rest, 8);
            let count = number(&mut rest, 2) as usize;
            file.write_at(take(&mut rest, count), offset).unwrap();
        }
        file.sync().unwrap();
    }
    disk.sync_names().unwrap();
    disk
}

fn open(disk: &SimDisk) -> cellar_volume::Result<Arc<Partition>> {
    let options = Options {
        journal_bytes: 24 << 20,
        ..common::options()
    };
    Partition::open(Arc::new(disk.clone()), options)
}

fn named(partition: &Partition, name: &str) -> Arc<Volume> {
    let volumes = partition.volumes(None, 100).unwrap();
    let info = volumes.iter().find(|info| info.name == name).unwrap();
    partition.volume(info.id).unwrap().unwrap()
}

fn read(volume: &Volume, path: &str) -> Bytes {
    let mut fid: Fid = volume.root();
    for name in path.split('/') {
        fid = volume.lookup(fid, name.as_bytes()).unwrap();
    }
    volume.read(fid, 0, 1 << 20).unwrap()
}

fn seq(last: u32) -> String {
    (1..=last).map(|n| format!("{n}\n")).collect()
}

/// Asserts that everything is there.
fn check(partition: &Partition, is_killed: bool) {
    let report = partition.check().unwrap();
    assert!(report.faults.is_empty(), "{:#?}", report.faults);
    let volume = named(partition, "scratch");
    let large = seq(20_000).as_bytes()[..100_000].to_vec();
    assert_eq!(read(&volume, "large"), large);
    assert_eq!(read(&volume, "small"), "small\n");
    assert_eq!(read(&volume, "changed"), seq(100));
    assert_eq!(read(&volume, "dir/middle"), seq(100));
    let files = if is_killed { 16 } else { 8 };
    for n in 1..=files {
        assert_eq!(read(&volume, &format!("dir/f{n}")), format!("file {n}\n"));
    }
    if is_killed {
        assert_eq!(read(&volume, "dir/larger"), large);
    }
    let backup = named(partition, "scratch.backup");
    assert_eq!(read(&backup, "large"), large);
    let missing = backup.lookup(backup.root(), b"changed");
    assert_eq!(missing, Err(Error::NotFound));
}

#[test]
fn partitions_of_an_earlier_version_go_on() {
    for (bytes, is_killed) in [(CLEAN, false), (KILLED, true)] {
        let disk = stored(bytes);
        let partition = open(&disk).unwrap();
        assert!(!partition.opening().was_stopped_cleanly);
        assert_eq!(partition.opening().replayed > 15, is_killed);
        check(&partition, is_killed);
        // From now on the store has the parts that it lacked.
        let volume = named(&partition, "scratch");
        for n in 0..10 {
            let made = volume.create_file(volume.root(), format!("n{n}").as_bytes(), &new(), at(9));
            made.unwrap().wait().unwrap();
        }
        let cut = disk.power_cut(None);
        partition.close().unwrap();
        let partition = open(&disk).unwrap();
        assert!(partition.opening().was_stopped_cleanly);
        check(&partition, is_killed);
        let partition = open(&cut.power_cut(None)).unwrap();
        check(&partition, is_killed);
        assert_eq!(partition.opening().replayed, 10);
        let (file, end) = partition.opening().end.clone().unwrap();
        cut.flip_bit(&file, end - 5 * 4096 + 60, 1);
        assert!(matches!(
            open(&cut),
            Err(Error::DamagedJournal { groups: 4, .. })
        ));
    }
}

#[test]
fn damage_in_a_journal_of_an_earlier_version_is_seen() {
    let disk = stored(KILLED);
    let end = open(&disk.power_cut(None)).unwrap().opening().end.clone();
    let (file, end) = end.unwrap();
    disk.flip_bit(&file, end - 5 * 4096 + 60, 1);
    match open(&disk) {
        Err(Error::DamagedJournal {
            file: named,
            groups,
            ..
        }) => {
            assert_eq!(named, file);
            assert!((1..=4).contains(&groups), "{groups}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_power_goes_while_a_partition_is_taken_over() {
    let start = stored(KILLED);
    for n in 1.. {
        let disk = start.power_cut(None);
        disk.set_fault(Fault::Dead(n));
        let opened = open(&disk);
        for seed in [None, Some(n)] {
            let disk = disk.power_cut(seed);
            let partition = open(&disk).unwrap_or_else(|error| panic!("{n} {seed:?}: {error}"));
            check(&partition, true);
        }
        if opened.is_ok() {
            assert!(n > 5, "{n}");
            break;
        }
    }
}

#[test]
fn a_journal_that_is_gone_before_the_first_start_is_missed() {
    for (stored_as, image) in [("clean", CLEAN), ("killed", KILLED)] {
        for lost in [
            &["journal.0"][..],
            &["journal.1"],
            &["journal.0", "journal.1"],
        ] {
            let disk = stored(image);
            for name in lost {
                disk.remove(name).unwrap();
            }
            let opened = open(&disk).map(drop);
            assert!(
                matches!(opened, Err(Error::LostJournal(_))),
                "{stored_as}, {lost:?}: {opened:?}"
            );
        }
    }
}
