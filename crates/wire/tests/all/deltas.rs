//! A delta that was written is read back the same, in pieces of any size. Nothing else is accepted.

use bytes::Bytes;
use cellar_wire::delta::{
    DeltaError, DeltaRetired, DeltaVnode, Item, Origin, Reader, Totals, Writer,
};
use cellar_wire::object::{ArchiveCopies, ArchiveCopy, Layout, Placed, Shape, Wiped};
use cellar_wire::{List, Uniquifier, VnodeId, VolumeId};

use crate::seeded;
use crate::seeded::Random;

fn file(vnode: u32, length: u64) -> DeltaVnode {
    DeltaVnode {
        vnode: VnodeId(vnode),
        uniquifier: Uniquifier(vnode + 7),
        file_type: 1,
        length,
        kept: 17,
        ..DeltaVnode::default()
    }
}

fn sample() -> (Vec<Item>, Vec<u8>) {
    let mut writer = Writer::new();
    let mut items = Vec::new();
    let mut bytes = Vec::new();
    let origin = Origin {
        policy: 3,
        version: 1 << 50,
    };
    writer.origin(origin);
    items.push(Item::Origin(origin));
    writer.borrowed();
    items.push(Item::Borrowed);
    writer.policy(7);
    items.push(Item::Policy(7));
    let layout = Layout {
        shape: Shape::default(),
        version: 1 << 49,
        serial: 8,
        volume: VolumeId(10),
        objects: List::from_iter_cut([Placed {
            osd: 2,
            serial: 8,
            version: 1 << 49,
            stale: false,
        }]),
    };
    writer.layout(&layout);
    items.push(Item::Layout(Box::new(layout.clone())));
    let copies = ArchiveCopies::from_iter_cut([4, 5].map(|osd| ArchiveCopy {
        osd,
        volume: VolumeId(10),
        version: 1 << 49,
        ..ArchiveCopy::default()
    }));
    writer.copies(&copies);
    items.push(Item::Copies(Box::new(copies.clone())));
    writer.wiped(&Wiped::from(&layout));
    items.push(Item::Wiped(Wiped::from(&layout)));
    for (vnode, lengths) in [(2, &[5, 30_000][..]), (4, &[300_000]), (6, &[])] {
        let vnode = file(vnode, 1 << 33);
        writer.vnode(&vnode);
        items.push(Item::Vnode(Box::new(vnode)));
        let mut offset = 4096;
        for &len in lengths {
            let data = Bytes::from(vec![len as u8; len]);
            writer.data(offset, data.clone());
            items.push(Item::Data(offset, data));
            offset += len as u64 + 4096;
        }
        writer.zeros(offset, 1 << 32);
        items.push(Item::Zeros(offset, 1 << 32));
        for piece in writer.take() {
            bytes.extend_from_slice(&piece);
        }
    }
    writer.keep(VnodeId(8), Uniquifier(9));
    items.push(Item::Keep(VnodeId(8), Uniquifier(9)));
    writer.remove(VnodeId(10));
    items.push(Item::Remove(VnodeId(10)));
    let retired = DeltaRetired {
        vnode: VnodeId(12),
        uniquifier: Uniquifier(13),
        name: "removed".try_into().expect("a name"),
        length: 1 << 40,
        copies,
        ..DeltaRetired::default()
    };
    writer.retired(&retired);
    items.push(Item::Retired(Box::new(retired)));
    writer.end();
    items.push(Item::End(Totals {
        items: items.len() as u64,
        bytes: 330_005,
    }));
    for piece in writer.take() {
        bytes.extend_from_slice(&piece);
    }
    (items, bytes)
}

fn read(bytes: &[u8], piece: usize) -> Result<Vec<Item>, DeltaError> {
    let mut reader = Reader::new();
    let mut items = Vec::new();
    for (index, piece) in bytes.chunks(piece).enumerate() {
        if index % 2 == 0 {
            reader.feed(piece);
        } else {
            reader.feed_owned(piece.to_vec().into());
        }
        while let Some(item) = reader.next_item()? {
            items.push(item);
        }
    }
    reader.finish().map(|()| items)
}

#[test]
fn written_values_are_read_back() {
    let (items, bytes) = sample();
    for piece in [1, 1000, usize::MAX] {
        assert_eq!(read(&bytes, piece).as_ref(), Ok(&items), "by {piece}");
    }
}

#[test]
fn large_contents_come_in_several_items() {
    let mut writer = Writer::new();
    writer.vnode(&file(2, 5 << 20));
    let data = Bytes::from(vec![1; 5 << 20]);
    writer.data(0, data);
    writer.end();
    let bytes: Vec<u8> = writer.take().concat();
    let items = read(&bytes, 100_000).unwrap();
    let sizes = items.iter().map(|item| match item {
        Item::Data(_, data) => data.len(),
        _ => 0,
    });
    assert_eq!(sizes.sum::<usize>(), 5 << 20);
}

#[test]
fn every_truncation_and_every_damage_is_noticed() {
    let (_, bytes) = sample();
    let mut random = Random::new(seeded::seed());
    for end in (0..200).chain((200..bytes.len()).step_by(997)) {
        let truncated = read(&bytes[..end], usize::MAX);
        assert_eq!(truncated, Err(DeltaError::Truncated), "{end}");
    }
    assert_eq!(
        read(&[&bytes[..], b"!"].concat(), 1000),
        Err(DeltaError::Surplus)
    );
    for _ in 0..300 {
        let mut damaged = bytes.clone();
        let at = random.below(bytes.len() as u64) as usize;
        damaged[at] ^= 1 << random.below(8);
        assert!(read(&damaged, usize::MAX).is_err(), "bit in byte {at}");
    }
}

/// A frame with these items, after the magic number.
fn frame(items: &[u8]) -> Vec<u8> {
    let chain = crc32c::crc32c_append(crc32c::crc32c(b"CELLARD1"), items);
    let len = (items.len() as u32).to_be_bytes();
    [b"CELLARD1", &len[..], &chain.to_be_bytes(), items].concat()
}

#[test]
fn sound_but_senseless_records_are_refused() {
    let word = u32::to_be_bytes;
    let data = |offset: u64| [&word(2)[..], &offset.to_be_bytes(), &word(1), b"x"].concat();
    assert_eq!(read(&frame(&data(0)), 7), Err(DeltaError::Place));
    let mut writer = Writer::new();
    writer.vnode(&file(2, 1));
    writer.end();
    let whole: Vec<u8> = writer.take().concat();
    // Tag and vnode, without the end.
    let vnode = &whole[16..whole.len() - 20];
    for (offset, outcome) in [
        (0, Err(DeltaError::Truncated)),
        (1, Err(DeltaError::Place)),
        (u64::MAX, Err(DeltaError::Place)),
    ] {
        let bytes = frame(&[vnode, &data(offset)].concat());
        assert_eq!(read(&bytes, 100), outcome, "{offset}");
    }
    let twice = frame(&[vnode, &data(0), &data(0)].concat());
    assert_eq!(read(&twice, 100), Err(DeltaError::Place));
    let zeros = [&word(5)[..], &[0; 15], &[1]].concat();
    let beyond = frame(&[vnode, &data(0), &zeros].concat());
    assert_eq!(read(&beyond, 100), Err(DeltaError::Place));
    assert_eq!(read(&frame(&word(9)), 100), Err(DeltaError::Form));
    assert_eq!(read(&frame(&vnode[..40]), 100), Err(DeltaError::Form));
    let end = [&word(6)[..], &[0; 15], &[1]].concat();
    assert_eq!(read(&frame(&end), 100), Err(DeltaError::Totals));
    assert_eq!(read(b"CELLARD2", 100), Err(DeltaError::Magic));
    for len in [0, u32::MAX] {
        let bytes = [b"CELLARD1", &word(len)[..], &[0; 4]].concat();
        assert_eq!(read(&bytes, 100), Err(DeltaError::Length));
    }
}
