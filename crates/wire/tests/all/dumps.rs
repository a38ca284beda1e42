//! Dumps of OpenAFS are read, in pieces of any size, and written back unchanged.

use bytes::BytesMut;
use cellar_wire::acl::{AccessList, ByteOrder};
use cellar_wire::dir::{Directory, Page};
use cellar_wire::dump::{DumpError, InObjects, Item, Reader, write};
use cellar_wire::object::{Layout, Placed, Shape};
use cellar_wire::{List, Rights, VnodeId, VolumeId};

use crate::seeded;
use crate::seeded::Random;

const SAMPLES: [(&str, usize); 6] = [
    ("full", 11),
    ("incremental", 11),
    ("incremental-omitdirs", 11),
    ("backup", 11),
    ("readonly", 11),
    ("mountpoint", 11),
];

fn sample(name: &str) -> Vec<u8> {
    let path = format!(
        "{}/../../testdata/dumps/{name}.dump",
        env!("CARGO_MANIFEST_DIR")
    );
    std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Reads in pieces and joins the pieces of data again.
fn read(bytes: &[u8], piece: usize) -> Result<Vec<Item>, DumpError> {
    let mut reader = Reader::new();
    let mut items: Vec<Item> = Vec::new();
    for (index, piece) in bytes.chunks(piece).enumerate() {
        if index % 2 == 0 {
            reader.feed(piece);
        } else {
            reader.feed_owned(piece.to_vec().into());
        }
        while let Some(item) = reader.next_item()? {
            match (items.last_mut(), item) {
                (Some(Item::Data(before)), Item::Data(more)) => {
                    *before = [&before[..], &more].concat().into();
                }
                (_, item) => items.push(item),
            }
        }
    }
    reader.finish().map(|()| items)
}

fn rewrite(items: &[Item]) -> BytesMut {
    let mut out = BytesMut::new();
    for item in items {
        match item {
            Item::Dump(header) => write::dump_header(&mut out, header),
            Item::Volume(header) => write::volume_header(&mut out, header),
            Item::Vnode(record) => write::vnode(&mut out, record),
            Item::Data(bytes) => out.extend_from_slice(bytes),
            Item::End => write::end(&mut out),
        }
    }
    out
}

#[test]
fn dumps_are_read_and_written_the_same() {
    for (name, vnodes) in SAMPLES {
        let bytes = sample(name);
        let items = read(&bytes, usize::MAX).unwrap_or_else(|error| panic!("{name}: {error}"));
        let records = items.iter().filter(|item| matches!(item, Item::Vnode(_)));
        println!("{name}: {}", records.clone().count());
        assert_eq!(rewrite(&items), bytes, "{name}");
        for piece in [1, 7, 1000] {
            assert_eq!(
                read(&bytes, piece).as_ref(),
                Ok(&items),
                "{name} by {piece}"
            );
        }
        assert_eq!(records.count(), vnodes, "{name}");
    }
}

#[test]
fn a_dump_holds_directories_and_access_lists() {
    let items = read(&sample("full"), 4096).unwrap();
    let mut directories = 0;
    for pair in items.windows(2) {
        let [Item::Vnode(record), Item::Data(data)] = pair else {
            continue;
        };
        let attributes = record.attributes.as_ref().unwrap();
        assert_eq!(attributes.data_length, Some(data.len() as u64));
        if !record.vnode.is_directory() {
            continue;
        }
        directories += 1;
        let (pages, rest): (&[Page], _) = data.as_chunks();
        assert!(rest.is_empty());
        Directory::new(pages.to_vec()).check().unwrap();
        let bytes = attributes.access_list.as_ref().unwrap();
        let acl = AccessList::from_bytes(bytes, ByteOrder::Network).unwrap();
        assert_eq!(acl.anonymous_rights(), Rights(63));
        assert!(acl.positive().is_sorted_by_key(|entry| entry.id));
    }
    assert_eq!(directories, 3);
}

#[test]
fn every_truncation_is_noticed() {
    let bytes = sample("incremental-omitdirs");
    for end in 0..bytes.len() {
        assert_eq!(read(&bytes[..end], 64), Err(DumpError::Truncated), "{end}");
    }
    let longer = [&bytes[..], b"!"].concat();
    assert_eq!(read(&longer, usize::MAX), Err(DumpError::Surplus));
    assert_eq!(read(&longer, 1), Err(DumpError::Surplus));
}

/// Inserts bytes before the attribute `v` of the first file in the full dump.
fn with_inserted(inserted: &[u8]) -> Vec<u8> {
    let bytes = sample("full");
    let record = b"\x03\0\0\0\x02\0\0\0\x04t\x01l\0\x01";
    let at = bytes
        .windows(record.len())
        .position(|window| window == record)
        .expect("the first file");
    let (before, after) = bytes.split_at(at + record.len());
    [before, inserted, after].concat()
}

/// The outcomes are those of OpenAFS 1.8's reader.
#[test]
fn unknown_attributes_are_skipped_by_their_range() {
    let plain = read(&with_inserted(b""), usize::MAX).unwrap();
    let long = [&b"Q\x82\x01\0"[..], &[b'x'; 256]].concat();
    for skipped in [
        &b"z\0\0\0\x07"[..],
        b"Q\x03abc",
        &long,
        b"{",
        b"\x15\x01a",
        b"u\0\0\0\x07",
        b"X\x02ab",
        b"~",
    ] {
        let bytes = with_inserted(skipped);
        let escaped = skipped.escape_ascii().to_string();
        assert_eq!(read(&bytes, usize::MAX).as_ref(), Ok(&plain), "{escaped}");
        assert_eq!(read(&bytes, 1).as_ref(), Ok(&plain), "{escaped}");
    }
    let refused = |inserted| read(&with_inserted(inserted), 1);
    assert_eq!(refused(b"~z\0\0\0\x07"), Err(DumpError::Critical(b'z')));
    assert_eq!(refused(b"\x80"), Err(DumpError::Tag(0x80)));
    assert_eq!(refused(b"Q\xff"), Err(DumpError::TooLong));
    assert_eq!(refused(b"Q\x84\xff\xff\xff\xff"), Err(DumpError::TooLong));
    assert_eq!(refused(b"\x05"), Err(DumpError::Order(5)));
    // A second set of contents is dropped; attributes may not follow contents.
    let contents = read(
        &with_inserted(b"f\0\0\0\x02hif\0\0\0\x03ho!\x03\0\0\0\x63\0\0\0\x01"),
        3,
    );
    let contents = contents.unwrap();
    let data = contents
        .iter()
        .position(|item| *item == Item::Data("hi"[..].into()))
        .unwrap();
    assert!(matches!(&contents[data + 1], Item::Vnode(record) if record.vnode == VnodeId(0x63)));
    assert_eq!(
        refused(b"f\0\0\0\x02hiv\0\0\0\0"),
        Err(DumpError::Vnode(VnodeId(2)))
    );
    assert_eq!(
        refused(b"\x03\0\0\0\0\0\0\0\x01"),
        Err(DumpError::Vnode(VnodeId(0)))
    );
}

#[test]
fn a_head_must_make_sense() {
    let change = |at: usize, byte: u8| {
        let mut bytes = sample("incremental-omitdirs");
        bytes[at] = byte;
        read(&bytes, usize::MAX)
    };
    assert_eq!(change(0, 2), Err(DumpError::Magic));
    assert_eq!(change(1, 0), Err(DumpError::Magic));
    let bytes = sample("full");
    let head = b"t\0\x02";
    let at = bytes.windows(3).position(|window| window == head).unwrap();
    for words in [0, 1, 102] {
        let mut bytes = bytes.clone();
        bytes[at + 2] = words;
        let error = read(&bytes, usize::MAX).unwrap_err();
        assert_eq!(error, DumpError::Head, "{words} words of dates");
    }
}

#[test]
fn large_contents_have_a_64_bit_length() {
    let items = read(&sample("full"), usize::MAX).unwrap();
    let Some(Item::Vnode(record)) = items.iter().find(|item| matches!(item, Item::Vnode(_))) else {
        panic!("no vnode")
    };
    let mut record = record.clone();
    record.attributes.as_mut().unwrap().data_length = Some((1 << 32) + 3);
    let mut out = BytesMut::new();
    write::vnode(&mut out, &record);
    assert_eq!(out[out.len() - 9..], *b"h\0\0\0\x01\0\0\0\x03");
}

/// A dump of metadata as Cellar writes it.
fn of_metadata() -> (Vec<Item>, BytesMut) {
    let mut items = read(&sample("full"), usize::MAX).expect("a dump");
    items.retain(|item| !matches!(item, Item::Data(_)));
    for item in &mut items {
        match item {
            Item::Volume(header) => header.policy = 7,
            Item::Vnode(record) => {
                let Some(attributes) = &mut record.attributes else {
                    continue;
                };
                let length = attributes.data_length.take();
                if attributes.file_type == 2 {
                    attributes.policy = 9;
                    attributes.data_length = Some(0);
                    continue;
                }
                let shape = Shape {
                    stripes: 2,
                    ..Shape::default()
                };
                let placed = [3, 4].map(|osd| Placed {
                    osd,
                    serial: osd,
                    version: 5,
                    stale: false,
                });
                attributes.objects = Some(Box::new(InObjects {
                    cell: "test.cell".try_into().expect("a name"),
                    length: length.unwrap_or_default(),
                    layout: Layout {
                        shape,
                        version: 5,
                        serial: 4,
                        volume: VolumeId(10),
                        objects: List::from_iter_cut(placed),
                    },
                }));
            }
            _ => {}
        }
    }
    let out = rewrite(&items);
    (items, out)
}

#[test]
fn layouts_take_the_place_of_contents() {
    let (items, bytes) = of_metadata();
    for piece in [1, 700, usize::MAX] {
        assert_eq!(read(&bytes, piece).as_ref(), Ok(&items), "by {piece}");
    }
    for end in 0..bytes.len() {
        assert_eq!(
            read(&bytes[..end], usize::MAX),
            Err(DumpError::Truncated),
            "{end}"
        );
    }
    // Another form is refused (AFS/OSD's begins with a number from 1 to 3), and so are contents
    // beside it.
    let at = bytes.windows(4).position(|word| word == b"CEL1").unwrap();
    let mut other = bytes.clone();
    other[at..at + 4].copy_from_slice(&[0, 0, 0, 3]);
    assert!(matches!(
        read(&other, usize::MAX),
        Err(DumpError::Objects(_))
    ));
    let Some(Item::Vnode(record)) = items.iter().rfind(|item| matches!(item, Item::Vnode(_)))
    else {
        panic!("no vnode")
    };
    let mut both = record.clone();
    both.attributes.as_mut().unwrap().data_length = Some(0);
    let mut changed = items.clone();
    let last = changed.len() - 2;
    changed[last] = Item::Vnode(both);
    assert_eq!(
        read(&rewrite(&changed), usize::MAX),
        Err(DumpError::Objects(record.vnode))
    );
}

#[test]
fn damage_never_panics() {
    let (_, metadata) = of_metadata();
    let mut random = Random::new(seeded::seed());
    for _ in 0..2000 {
        let mut bytes = metadata.clone();
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] = random.draw() as u8;
        if let Ok(items) = read(&bytes, 1 + random.below(3000) as usize) {
            assert_eq!(read(&rewrite(&items), usize::MAX), Ok(items));
        }
    }
    samples_that_are_damaged();
}

fn samples_that_are_damaged() {
    let mut random = Random::new(seeded::seed());
    for (name, _) in SAMPLES {
        let sound = sample(name);
        for _ in 0..500 {
            let mut bytes = sound.clone();
            for _ in 0..=random.below(4) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.draw() as u8;
            }
            if let Ok(items) = read(&bytes, 1 + random.below(3000) as usize) {
                let again = read(&rewrite(&items), usize::MAX);
                assert_eq!(again, Ok(items), "{name}");
            }
        }
    }
}
