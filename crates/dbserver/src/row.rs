//! Rows of tables: XDR with the number of their layout in front.
//!
//! A layout, once written by a release, is read by all later ones; a new one gets the next number.

use bytes::{BufMut, Bytes, BytesMut};
use cellar_celldb::{Error, Table};
use cellar_wire::{Decode, Encode};

/// Layout of every row there is.
const LAYOUT: u32 = 1;

/// A row's bytes.
pub(crate) fn encode(row: &impl Encode) -> Bytes {
    let mut buffer = BytesMut::new();
    buffer.put_u32(LAYOUT);
    row.encode_to(&mut buffer);
    buffer.freeze()
}

/// A row from its bytes.
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

/// A key or value that is one number.
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
