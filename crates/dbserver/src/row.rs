//! Rows of tables: the number of their layout, then XDR.
//!
//! Once a release has written a layout, all later releases read it. A new layout gets the next
//! number.

use bytes::{BufMut, Bytes, BytesMut};
use cellar_celldb::{Error, Table};
use cellar_wire::{Decode, Encode};

/// The layout of all rows so far.
const LAYOUT: u32 = 1;

/// Encodes a row.
pub(crate) fn encode(row: &impl Encode) -> Bytes {
    let mut buffer = BytesMut::new();
    buffer.put_u32(LAYOUT);
    row.encode_to(&mut buffer);
    buffer.freeze()
}

/// Decodes a row.
pub(crate) fn decode<R: Decode>(table: Table, bytes: &[u8]) -> Result<R, Error> {
    let bad = |reason| Error::BadRow {
        table: table.name(),
        len: bytes.len(),
        reason,
    };
    let Some((layout, row)) = bytes.split_first_chunk::<4>() else {
        return Err(bad("it is too short"));
    };
    if u32::from_be_bytes(*layout) != LAYOUT {
        return Err(bad("its layout is unknown"));
    }
    R::from_xdr(row).map_err(|_| bad("its fields do not parse"))
}

/// Decodes a key or value that is one number.
pub(crate) fn number(table: Table, bytes: &[u8]) -> Result<u32, Error> {
    match <[u8; 4]>::try_from(bytes) {
        Ok(word) => Ok(u32::from_be_bytes(word)),
        Err(_) => Err(Error::BadRow {
            table: table.name(),
            len: bytes.len(),
            reason: "it is not one number",
        }),
    }
}
