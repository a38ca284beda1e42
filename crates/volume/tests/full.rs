//! A full partition refuses what adds, takes what removes, loses nothing, and goes on.

#![allow(clippy::unwrap_used)]

mod common;

use bytes::Bytes;
use cellar_volume::{Error, StoreSpec};
use common::*;

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
    let volume = world.volume();
    let root = volume.root();
    let data = Bytes::from(vec![9u8; 3000]);
    let mut made = Vec::new();
    let mut refused = 0;
    for n in 0..6000 {
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
                stored.wait().unwrap();
                made.push((name, fid));
            }
            Err(Error::DiskFull) => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(
        refused > 100 && made.len() > 100,
        "{refused} refused, {} made",
        made.len()
    );
    assert_eq!(world.partition.stopped(), None);
    for (name, fid) in &made {
        assert_eq!(volume.read(*fid, 0, 1 << 20).unwrap(), data, "{name}");
    }
    for (name, _) in &made {
        volume
            .remove_file(root, name.as_bytes(), at(3))
            .unwrap()
            .wait()
            .unwrap();
    }
    world.disk.set_capacity(64 << 20);
    // The flusher looks again a few times a second.
    let mut tries = 0;
    while world.partition.flush().is_err() {
        tries += 1;
        assert!(tries < 50, "no room was found again");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let fid = volume
        .create_file(root, b"again", &new(), at(4))
        .unwrap()
        .wait()
        .unwrap();
    let stored = volume.store(fid.status.fid, &StoreSpec::at(0), &[data], at(5));
    stored.unwrap().wait().unwrap();
    world.check();
    world.reopen().check();
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
    let space = cellar_volume::disk::Disk::space(&crashed).unwrap();
    crashed.set_capacity(space.total - space.free);
    let opened = cellar_volume::Partition::open(std::sync::Arc::new(crashed.clone()), options());
    let partition = opened.unwrap();
    let volume = partition.volume(VOLUME).unwrap().unwrap();
    let fid = volume.lookup(root, b"f7").unwrap();
    assert_eq!(volume.read(fid, 0, 9999).unwrap(), vec![7u8; 2000]);
    volume
        .remove_file(root, b"f8", at(3))
        .unwrap()
        .wait()
        .unwrap();
    assert_eq!(
        volume.create_file(root, b"new", &new(), at(3)).unwrap_err(),
        Error::DiskFull
    );
    assert!(partition.check().unwrap().faults.is_empty());
}
