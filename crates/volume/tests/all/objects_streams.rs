//! Large objects on the machine's own disk: their bytes bypass the page cache, small reads use it.

use bytes::Bytes;
use cellar_volume::disk::FileDisk;
use cellar_volume::objects::{ObjectReader, ObjectStore};
use cellar_volume::{Durability, Options, Ticket};
use cellar_wire::ids::{Uniquifier, VnodeId, VolumeId};
use cellar_wire::object::ObjectId;

const ID: ObjectId = ObjectId {
    volume: VolumeId(7),
    vnode: VnodeId(4),
    uniquifier: Uniquifier(1),
    serial: 1,
};

const MEBIBYTE: usize = 1 << 20;

fn bytes(seed: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|n| (n / 3) as u8 ^ (n >> 11) as u8 ^ (seed * 37) as u8)
        .collect()
}

/// Writes in parts of the size in which they come from the network.
fn write(store: &ObjectStore, base: u64, version: u64, position: u64, bytes: &[u8]) -> Ticket {
    let length = bytes.len() as u64;
    let mut writer = store.writer(ID, base, version, position, length).unwrap();
    for piece in bytes.chunks(16_348) {
        writer.push(Bytes::copy_from_slice(piece)).unwrap();
    }
    writer.finish().unwrap()
}

fn all(mut reader: ObjectReader) -> Vec<u8> {
    let mut read = Vec::new();
    while let Some(piece) = reader.next(256 << 10).unwrap() {
        read.extend_from_slice(&piece);
    }
    read
}

/// The same in parts that are read in the wrong order.
fn by_parts(mut reader: ObjectReader) -> Vec<u8> {
    let mut parts = Vec::new();
    while reader.remaining() > 0 {
        parts.push(reader.split(300_001));
    }
    assert!(reader.next(1).unwrap().is_none());
    let mut read: Vec<_> = parts.into_iter().rev().map(all).collect();
    read.reverse();
    read.concat()
}

#[test]
fn large_objects_come_back_as_they_were_written() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let options = Options {
            durability: Durability::Strict,
            journal_bytes: 1 << 20,
            ..Options::default()
        };
        ObjectStore::open(FileDisk::open(folder.path()).unwrap(), options).unwrap()
    };
    let store = open();
    // Nearly all of it is a hole; the bytes begin and end within blocks.
    let position = (5 << 30) + 5_u64;
    let first = bytes(1, 3 * MEBIBYTE + 1234);
    write(&store, 0, 10, position, &first).wait().unwrap();
    let second = bytes(2, 2 * MEBIBYTE + 77);
    let inside = 300_000;
    write(&store, 10, 11, position + inside as u64, &second)
        .wait()
        .unwrap();
    // Small writes in between go through the page cache, and see the same bytes.
    let third = bytes(3, 9000);
    let small = store.write(ID, 10, 11, position + 100, &[third.clone().into()]);
    small.unwrap().wait().unwrap();
    let mut newest = first.clone();
    newest[inside..inside + second.len()].copy_from_slice(&second);
    newest[100..100 + third.len()].copy_from_slice(&third);
    let check = |store: &ObjectStore| {
        for (version, expected) in [(10, &first), (11, &newest)] {
            for before in [0, 1, 4096, MEBIBYTE] {
                let begin = position - before as u64;
                let read = || store.reader(ID, version, begin, u64::MAX).unwrap();
                for bytes in [all(read()), by_parts(read())] {
                    assert!(bytes[..before].iter().all(|byte| *byte == 0));
                    assert!(bytes[before..] == expected[..], "version {version}");
                }
            }
            let some = store.read(ID, version, position + 50, 20_000).unwrap();
            assert!(some == expected[50..20_050], "version {version}");
            // A part of it is in the page cache now.
            let read = store.reader(ID, version, position, u64::MAX).unwrap();
            assert!(all(read) == expected[..], "version {version}");
        }
    };
    check(&store);
    store.close().unwrap();
    drop(store);
    check(&open());
}
