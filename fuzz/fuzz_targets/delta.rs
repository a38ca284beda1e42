//! Deltas: whatever the items of a sound frame are, they are read the same in pieces of any size,
//! or refused.

#![no_main]

use cellar_wire::delta::{DeltaError, Item, Reader};
use libfuzzer_sys::fuzz_target;

const MAGIC: &[u8] = b"CELLARD1";

fn read(bytes: &[u8], piece: usize) -> Result<Vec<Item>, DeltaError> {
    let (mut reader, mut items) = (Reader::new(), Vec::new());
    for piece in bytes.chunks(piece) {
        reader.feed(piece);
        while let Some(item) = reader.next_item()? {
            items.push(item);
        }
    }
    reader.finish().map(|()| items)
}

fuzz_target!(|data: &[u8]| {
    let chain = crc32c::crc32c_append(crc32c::crc32c(MAGIC), data);
    let len = (data.len() as u32).to_be_bytes();
    let bytes = [MAGIC, &len, &chain.to_be_bytes(), data].concat();
    assert_eq!(read(&bytes, usize::MAX), read(&bytes, 97));
});
