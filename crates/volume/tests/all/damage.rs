//! A flipped bit is an I/O error of the damaged file and of no other; it never gives wrong data.

use std::sync::Arc;

use crate::common::*;
use cellar_volume::disk::Disk;
use cellar_volume::{Error, Partition, StoreSpec};
use cellar_wire::ids::Fid;

fn data(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|n| (n * (seed + 3) / 5) as u8).collect()
}

fn filled() -> (World, Vec<(Fid, Vec<u8>)>) {
    let world = World::new();
    let volume = world.volume();
    let mut files = Vec::new();
    for n in 0..6 {
        let name = format!("f{n}");
        let fid = volume.create_file(volume.root(), name.as_bytes(), &new(), at(1));
        let fid = fid.unwrap().outcome.status.fid;
        let bytes = data(n, 100_000 + n * 5000);
        let stored = volume.store(fid, &StoreSpec::at(0), &[bytes.clone().into()], at(2));
        stored.unwrap().wait().unwrap();
        files.push((fid, bytes));
    }
    (world.reopen(), files)
}

#[test]
fn a_flipped_bit_in_a_block_damages_one_file() {
    let (world, files) = filled();
    let blocks = world.disk.contents("blocks.0");
    for (index, position) in [0usize, 4095, 150_001, 399_999].into_iter().enumerate() {
        let hit = position.min(blocks.len() - 1) as u64;
        world.disk.flip_bit("blocks.0", hit, index as u8);
        let volume = world.volume();
        let before = world.partition.counters().damaged;
        let mut damaged = 0;
        for (fid, bytes) in &files {
            match volume.read(*fid, 0, 1 << 20) {
                Ok(read) => assert_eq!(read, bytes[..]),
                Err(Error::Io { fid: named, .. }) => {
                    assert_eq!(named, *fid);
                    damaged += 1;
                }
                Err(other) => panic!("{other}"),
            }
        }
        assert_eq!(damaged, 1);
        assert_eq!(world.partition.counters().damaged, before + 1);
        world.disk.flip_bit("blocks.0", hit, index as u8);
    }
    world.check();
}

/// Whichever bit of the base table is flipped, there is no panic and no wrong byte. Other files
/// stay readable, unless the bit was in a page that leads to all of them.
#[test]
fn a_flipped_bit_in_the_table_never_gives_wrong_bytes() {
    let world = World::new();
    let volume = world.volume();
    let mut files = Vec::new();
    for n in 0..40 {
        let name = format!("f{n}");
        let fid = volume.create_file(volume.root(), name.as_bytes(), &new(), at(1));
        let fid = fid.unwrap().outcome.status.fid;
        let bytes = data(n, 1000 + n);
        let stored = volume.store(fid, &StoreSpec::at(0), &[bytes.clone().into()], at(2));
        stored.unwrap().wait().unwrap();
        files.push((fid, bytes));
    }
    let world = world.reopen();
    world.partition.close().unwrap();
    let length = world.disk.contents("base").len() as u64;
    let mut errors = 0;
    let mut opened = 0;
    for step in 0..120u64 {
        let disk = world.disk.power_cut(None);
        let position = (step * 0x9e37_79b9 * 7919) % length;
        if step % 2 == 0 && world.disk.contents("base")[position as usize] == 0 {
            continue;
        }
        disk.flip_bit("base", position, step as u8 % 8);
        let Ok(partition) = Partition::open(Arc::new(disk.clone()), options()) else {
            continue;
        };
        let Ok(Some(volume)) = partition.volume(VOLUME) else {
            continue;
        };
        opened += 1;
        for (fid, bytes) in &files {
            match volume.read(*fid, 0, 1 << 20) {
                Ok(read) => assert_eq!(read, bytes[..], "bit {position} of the table"),
                Err(_) => errors += 1,
            }
        }
    }
    assert!(opened > 20, "only {opened} opened");
    assert!(errors < opened * files.len() / 4, "{errors} errors");
}

/// A sector of zeros in the file of checksums does not mean that these pages have no sums. Reading
/// such a page is an error, or the partition is refused. Without the whole file everything is
/// right.
#[test]
fn a_lost_sector_of_checksums_is_damage() {
    let (world, files) = filled();
    let World { disk, partition } = world;
    partition.close().unwrap();
    drop(partition);
    let sums = disk.open("base.sums").unwrap();
    let first = vec![0; 512.min(sums.length().unwrap()) as usize];
    sums.write_at(&first, 0).unwrap();
    let refused = Partition::open(Arc::new(disk.clone()), options());
    let error = refused.err().map(|error| error.to_string());
    assert!(
        error
            .as_ref()
            .is_some_and(|error| error.contains("does not match its checksum")),
        "{error:?}"
    );
    disk.remove("base.sums").unwrap();
    let partition = Partition::open(Arc::new(disk.clone()), options()).unwrap();
    let volume = partition.volume(VOLUME).unwrap().unwrap();
    for (fid, bytes) in &files {
        assert_eq!(volume.read(*fid, 0, 1 << 20).unwrap(), bytes[..]);
    }
}
