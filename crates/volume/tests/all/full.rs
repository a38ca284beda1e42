//! A full partition refuses changes that add, accepts removals, loses nothing, and continues
//! afterwards.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::common::*;
use bytes::Bytes;
use cellar_volume::disk::{Disk, Fault, FileDisk};
use cellar_volume::{Error, Partition, StoreSpec, Volume};

#[test]
fn stores_fail_whole_and_work_again_after_removals() {
    let world = World::with_capacity(24 << 20);
    let volume = world.volume();
    let root = volume.root();
    let data = Bytes::from(vec![7u8; 300_000]);
    let mut full = 0;
    let mut made = Vec::new();
    for n in 0..200 {
        let name = format!("f{n}");
        let fid = match volume.create_file(root, name.as_bytes(), &new(), at(1)) {
            Ok(created) => created.wait().unwrap().status.fid,
            Err(Error::DiskFull) => {
                full += 1;
                continue;
            }
            Err(other) => panic!("{other}"),
        };
        match volume.store(fid, &StoreSpec::at(0), std::slice::from_ref(&data), at(2)) {
            Ok(stored) => {
                stored.wait().unwrap();
                made.push((name, fid));
            }
            Err(Error::DiskFull) => {
                full += 1;
                assert_eq!(volume.status(fid).unwrap().length, 0);
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(
        full > 50 && made.len() > 20,
        "{full} refused, {} made",
        made.len()
    );
    assert_eq!(world.partition.stopped(), None);
    for (_, fid) in &made {
        assert_eq!(volume.read(*fid, 0, 1 << 20).unwrap(), data);
    }
    world.check();
    for (name, _) in made.drain(..made.len() / 2) {
        volume
            .remove_file(root, name.as_bytes(), at(3))
            .unwrap()
            .wait()
            .unwrap();
    }
    let fid = volume
        .create_file(root, b"again", &new(), at(4))
        .unwrap()
        .wait()
        .unwrap();
    let stored = volume.store(fid.status.fid, &StoreSpec::at(0), &[data], at(5));
    stored.unwrap().wait().unwrap();
    world.check();
    let world = world.reopen();
    world.check();
}

#[test]
fn small_files_fill_the_table_and_leave_it_whole() {
    let world = World::with_capacity(16 << 20);
    fill_with_small_files(&world.partition);
    world.disk.set_capacity(64 << 20);
    // The flusher retries a few times a second.
    let mut tries = 0;
    while world.partition.flush().is_err() {
        tries += 1;
        assert!(tries < 50, "no room was found again");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    store_once_more(&world.volume(), b"more");
    world.check();
    world.reopen().check();
}

/// The log of this process, which all of its tests write.
static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_partition_that_fills_and_gets_room_again_has_one_line_each() {
    let log = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(|| LogWriter);
    // No other test of this process starts a log.
    log.init();
    let lines = |text: &str| {
        let log = String::from_utf8(LOG.lock().unwrap().clone()).unwrap();
        let named = log.lines().filter(|line| line.contains("/filled"));
        named.filter(|line| line.contains(text)).count()
    };
    let span = tracing::info_span!("store", path = "/filled").entered();
    let world = World::with_capacity(64 << 20);
    drop(span);
    let volume = world.volume();
    let root = volume.root();
    for round in 1..=2 {
        let mut made = Vec::new();
        let mut refused = 0;
        for n in 0.. {
            if refused == 20 {
                break;
            }
            // Large stores fail first, and small ones still fit: that is one shortage.
            let bytes = if n % 2 == 0 { 500_000 } else { 50 };
            // Nothing waits for a flush, so no flush gives room back during the shortage.
            world.partition.flush().unwrap();
            let name = format!("f{n}");
            let stored = volume
                .create_file(root, name.as_bytes(), &new(), at(1))
                .and_then(|created| {
                    let fid = created.outcome.status.fid;
                    let data = Bytes::from(vec![7u8; bytes]);
                    made.push(name);
                    volume.store(fid, &StoreSpec::at(0), &[data], at(2))
                });
            match stored {
                Ok(stored) => drop(stored.wait().unwrap()),
                Err(Error::DiskFull) => refused += 1,
                Err(other) => panic!("{other}"),
            }
        }
        let counts = || (lines("the partition is full"), lines("has room again"));
        assert_eq!(counts(), (round, round - 1));
        for name in made {
            let removed = volume.remove_file(root, name.as_bytes(), at(3));
            removed.unwrap().wait().unwrap();
        }
        world.partition.flush().unwrap();
        assert_eq!(counts(), (round, round));
    }
}

/// Number of changes that run at the same time, as if from as many clients.
const TOGETHER: usize = 50;

/// Fills a partition with small files until it refuses them, and removes them all again. No change
/// may fail for another reason, no removal may fail at all, and the room must be usable for new
/// files.
fn fill_with_small_files(partition: &Partition) {
    let volume = partition.volume(VOLUME).unwrap().unwrap();
    let root = volume.root();
    let data = Bytes::from(vec![9u8; 3000]);
    let mut made = Vec::new();
    let mut refused = 0;
    for n in 0.. {
        if refused > 200 {
            break;
        }
        let name = format!("f{n}");
        let fid = match volume.create_file(root, name.as_bytes(), &new(), at(1)) {
            Ok(created) => created.outcome.status.fid,
            Err(Error::DiskFull) => {
                refused += 1;
                continue;
            }
            Err(other) => panic!("{other}"),
        };
        match volume.store(fid, &StoreSpec::at(0), std::slice::from_ref(&data), at(2)) {
            Ok(stored) => {
                made.push((name, fid));
                if made.len().is_multiple_of(TOGETHER) {
                    stored.wait().unwrap();
                }
            }
            Err(Error::DiskFull) => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(made.len() > 500, "{} made", made.len());
    assert_eq!(partition.stopped(), None);
    for (name, fid) in &made {
        assert_eq!(volume.read(*fid, 0, 1 << 20).unwrap(), data, "{name}");
    }
    for (index, (name, _)) in made.iter().enumerate() {
        let removed = volume.remove_file(root, name.as_bytes(), at(3));
        let removed = removed.unwrap_or_else(|error| panic!("removing {name}: {error}"));
        if index.is_multiple_of(TOGETHER) {
            removed.wait().unwrap();
        }
    }
    // The room that they had in the base's file can be used by others.
    partition.flush().unwrap();
    for n in 0..made.len() / 4 {
        store_once_more(&volume, format!("again{n}").as_bytes());
    }
}

fn store_once_more(volume: &Volume, name: &[u8]) {
    let made = volume.create_file(volume.root(), name, &new(), at(4));
    let fid = made.unwrap().outcome.status.fid;
    let data = Bytes::from(vec![8u8; 3000]);
    let stored = volume.store(fid, &StoreSpec::at(0), &[data], at(5));
    let _stored = stored.unwrap();
}

/// A file system of its own, of 64 MiB, mounted as long as this lives.
struct Mounted(tempfile::TempDir);

impl Mounted {
    /// Mounts according to `arguments`; `None` if mounting is not possible here.
    fn new(arguments: &[&str]) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        let mounted = run(mount.args(arguments).arg(folder.path())).then(|| Self(folder));
        if mounted.is_none() {
            eprintln!(
                "skipped: mount {} is not possible here",
                arguments.join(" ")
            );
        }
        mounted
    }

    /// Fills a partition here and empties it, twice, and opens it again each time.
    fn fill_and_empty(&self) {
        let folder = self.0.path().join("partition");
        for round in 0..2 {
            let disk = FileDisk::open(&folder).unwrap();
            let partition = Partition::open(disk, options()).unwrap();
            if round == 0 {
                create_volume(&partition);
            }
            fill_with_small_files(&partition);
            let report = partition.check().unwrap();
            assert!(report.faults.is_empty(), "{:#?}", report.faults);
            let volume = partition.volume(VOLUME).unwrap().unwrap();
            for entry in volume.entries(volume.root()).unwrap() {
                // This includes a file that was made when there was no room left for its bytes.
                if !entry.name.starts_with(b".") {
                    let removed = volume.remove_file(volume.root(), &entry.name, at(6));
                    let _removed = removed.unwrap();
                }
            }
            partition.close().unwrap();
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        run(Command::new("umount").arg(self.0.path()));
    }
}

fn run(command: &mut Command) -> bool {
    let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

#[test]
fn a_full_tmpfs_takes_every_removal() {
    let options = ["-t", "tmpfs", "-o", "size=64m", "cellar-test"];
    if let Some(mounted) = Mounted::new(&options) {
        mounted.fill_and_empty();
    }
}

#[test]
fn a_full_ext4_takes_every_removal() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let file = std::fs::File::create(&image).unwrap();
    file.set_len(64 << 20).unwrap();
    if !run(Command::new("mkfs.ext4").arg("-q").arg(&image)) {
        eprintln!("skipped: there is no mkfs.ext4");
        return;
    }
    let image = image.to_string_lossy().into_owned();
    if let Some(mounted) = Mounted::new(&["-o", "loop", &image]) {
        mounted.fill_and_empty();
    }
}

#[test]
fn a_partition_opens_after_a_crash_on_a_disk_without_a_byte_of_room() {
    let world = World::with_capacity(64 << 20);
    let volume = world.volume();
    let root = volume.root();
    for n in 0..200 {
        let name = format!("f{n}");
        let made = volume
            .create_file(root, name.as_bytes(), &new(), at(1))
            .unwrap();
        let data = Bytes::from(vec![n as u8; 2000]);
        let fid = made.outcome.status.fid;
        volume
            .store(fid, &StoreSpec::at(0), &[data], at(2))
            .unwrap()
            .wait()
            .unwrap();
    }
    let crashed = world.disk.power_cut(None);
    let space = crashed.space().unwrap();
    crashed.set_capacity(space.total - space.free);
    let opened = Partition::open(Arc::new(crashed.clone()), options());
    let partition = opened.unwrap();
    let volume = partition.volume(VOLUME).unwrap().unwrap();
    // Meanwhile the flush of the replayed journal finds no room, and opens the base table again.
    for n in 0..200 {
        let fid = volume.lookup(root, format!("f{n}").as_bytes()).unwrap();
        assert_eq!(volume.read(fid, 0, 9999).unwrap(), vec![n as u8; 2000]);
    }
    volume
        .remove_file(root, b"f8", at(3))
        .unwrap()
        .wait()
        .unwrap();
    // The flush of the replayed journal may have found room in the reserve by now.
    let made = volume.create_file(root, b"new", &new(), at(3));
    assert!(matches!(made, Ok(_) | Err(Error::DiskFull)), "{made:?}");
    assert!(partition.check().unwrap().faults.is_empty());
}

/// When room is short, a flush has many transactions. A power cut between any two of them, or in
/// one, leaves a base with some of a journal file's changes. The file has them all.
#[test]
fn a_flush_in_parts_may_be_cut_anywhere() {
    let name = |n: usize| format!("f{n}");
    let data = |n: usize| vec![n as u8; if n.is_multiple_of(10) { 10_000 } else { 1000 }];
    for cut in (1..).step_by(7) {
        let world = World::with_capacity(32 << 20);
        let volume = world.volume();
        for n in 0..120 {
            let made = volume.create_file(volume.root(), name(n).as_bytes(), &new(), at(1));
            let fid = made.unwrap().outcome.status.fid;
            let data = Bytes::from(data(n));
            let stored = volume.store(fid, &StoreSpec::at(0), &[data], at(2));
            let stored = stored.unwrap();
            if n == 119 {
                stored.wait().unwrap();
            }
        }
        let before = world.partition.counters().flushes;
        let space = world.disk.space().unwrap();
        world
            .disk
            .set_capacity(space.total - space.free + (1 << 20));
        world.disk.set_fault(Fault::Dead(cut));
        let flushed = world.partition.flush().is_ok();
        if flushed {
            assert_eq!(world.partition.counters().flushes, before + 1);
            let (_, syncs, _) = world.disk.counts();
            assert!(syncs > 10, "{syncs} syncs: it was not in parts");
        }
        let disk = world.disk.power_cut(Some(cut));
        drop(world);
        let partition = Partition::open(Arc::new(disk.clone()), options()).unwrap();
        let world = World { disk, partition };
        let volume = world.volume();
        for n in 0..120 {
            let fid = volume.lookup(volume.root(), name(n).as_bytes()).unwrap();
            assert_eq!(volume.read(fid, 0, 1 << 20).unwrap(), data(n), "cut {cut}");
        }
        world.check();
        if flushed {
            return;
        }
    }
}

/// Room of removed large files can be used for names and small files, and for large files again.
#[test]
fn room_of_large_files_goes_to_small_ones_and_back() {
    let mut world = World::with_capacity(200 << 20);
    let large = Bytes::from(vec![5u8; 4 << 20]);
    for round in 0..2 {
        let volume = world.volume();
        let root = volume.root();
        let mut made = Vec::new();
        loop {
            let name = format!("large{}", made.len());
            let new = volume.create_file(root, name.as_bytes(), &new(), at(1));
            made.push(name);
            let fid = new.unwrap().outcome.status.fid;
            match volume.store(fid, &StoreSpec::at(0), std::slice::from_ref(&large), at(2)) {
                Ok(stored) => stored.wait().unwrap(),
                Err(Error::DiskFull) => break,
                Err(other) => panic!("{other}"),
            };
        }
        assert!(made.len() > 25, "round {round}: {} large files", made.len());
        // A remaining file keeps its region in use; the regions of the others are free.
        for name in made.iter().skip(round * 20) {
            let removed = volume.remove_file(root, name.as_bytes(), at(3)).unwrap();
            removed.wait().unwrap();
        }
        for n in 0..4000 {
            store_once_more(&volume, format!("small{n}").as_bytes());
        }
        for n in 0..4000 {
            let name = format!("small{n}");
            let _removed = volume.remove_file(root, name.as_bytes(), at(4)).unwrap();
        }
        for name in made.iter().take(round * 20) {
            let fid = volume.lookup(root, name.as_bytes()).unwrap();
            assert!(volume.read(fid, 0, 8 << 20).unwrap() == large, "{name}");
        }
        world.check();
        drop(volume);
        world = world.reopen();
        world.check();
    }
}
