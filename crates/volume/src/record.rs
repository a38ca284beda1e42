//! Encoding and decoding of the table's records.
//!
//! Every record begins with a byte for its form, and ends in a CRC-32C of the rest, which is
//! checked at every reading. Numbers are big-endian. `docs/format/volume.md` describes each record.

// Foreign bytes are parsed here, so nothing may panic on them.
#![cfg_attr(
    not(test),
    deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic)
)]

mod group;
mod object;
mod piece;
mod retired;
mod vnode;
mod volume;

pub(crate) use group::{CloneKind, CloneRef, GroupRecord};
pub(crate) use object::{DeviceRecord, ObjectRecord, VersionRecord};
pub(crate) use piece::{
    BLOCK, BlockRef, PIECE_BLOCKS, PIECE_BYTES, Piece, PieceBlocks, block_checksum,
};
pub(crate) use retired::RetiredRecord;
pub(crate) use vnode::{Body, VnodeRecord};
pub(crate) use volume::{CountersRecord, EPOCH_MAX, PartitionRecord, Received, VolumeRecord};

use std::cmp::Ordering;

use bytes::{Buf, Bytes};
use cellar_wire::{Decode, Decoder};

use crate::error::{Error, Result};

/// Reads fields from the front of a record.
pub(crate) struct Fields {
    rest: Bytes,
    what: &'static str,
}

impl Fields {
    /// Begins to read a record; fails if its checksum is wrong.
    pub(crate) fn of(value: &Bytes, what: &'static str) -> Result<Self> {
        let rest = crate::engine::space::checked(value)
            .map_err(|_| Error::Format(format!("a {what} record does not match its checksum")))?;
        Ok(Self { rest, what })
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Result<Bytes> {
        if count > self.rest.len() {
            return Err(self.malformed());
        }
        Ok(self.rest.split_to(count))
    }

    pub(crate) fn malformed(&self) -> Error {
        Error::Format(format!("a {} record is malformed", self.what))
    }

    /// The next bytes, copied: this is cheaper than a slice that shares the record.
    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let Some(array) = self.rest.first_chunk().copied() else {
            return Err(self.malformed());
        };
        self.rest.advance(N);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        self.array().map(u8::from_be_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// Reads the version of a store's format; fails if this program does not know it.
    pub(crate) fn format_version(&mut self, known: u32) -> Result<()> {
        let found = self.u32()?;
        let what = self.what;
        match found.cmp(&known) {
            Ordering::Equal => Ok(()),
            Ordering::Greater => Err(Error::Format(format!(
                "a newer release wrote this {what} (version {found}; this program knows {known}): \
                 use that release, or a later one"
            ))),
            Ordering::Less => Err(Error::Format(format!(
                "an old release wrote this {what} (version {found}; this program knows {known}): \
                 dump its volumes with that release, and restore them here"
            ))),
        }
    }

    pub(crate) fn i32(&mut self) -> Result<i32> {
        self.array().map(i32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn lineage(&mut self) -> Result<[u8; 16]> {
        self.array()
    }

    /// A string of up to 65,535 bytes, after its length.
    pub(crate) fn string(&mut self) -> Result<Bytes> {
        let length = self.u16()?;
        self.bytes(length as usize)
    }

    /// An XDR value that takes exactly the next `length` bytes.
    pub(crate) fn xdr<T: Decode>(&mut self, length: usize) -> Result<T> {
        let bytes = self.bytes(length)?;
        let mut decoder = Decoder::new(&bytes);
        let value = T::decode(&mut decoder).map_err(|_| self.malformed())?;
        match decoder.remaining() {
            0 => Ok(value),
            _ => Err(self.malformed()),
        }
    }

    /// The number of bytes that are left.
    pub(crate) fn left(&self) -> usize {
        self.rest.len()
    }

    /// Returns whether no bytes are left.
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn rest(&mut self) -> Bytes {
        std::mem::take(&mut self.rest)
    }
}

/// Appends fields.
pub(crate) trait PutFields {
    fn put_u8(&mut self, n: u8);
    fn put_u16(&mut self, n: u16);
    fn put_u32(&mut self, n: u32);
    fn put_u64(&mut self, n: u64);
    fn put_string(&mut self, bytes: &[u8]);
}

impl PutFields for Vec<u8> {
    fn put_u8(&mut self, n: u8) {
        self.push(n);
    }

    fn put_u16(&mut self, n: u16) {
        self.extend_from_slice(&n.to_be_bytes());
    }

    fn put_u32(&mut self, n: u32) {
        self.extend_from_slice(&n.to_be_bytes());
    }

    fn put_u64(&mut self, n: u64) {
        self.extend_from_slice(&n.to_be_bytes());
    }

    /// Callers limit the lengths: names and messages to 256 bytes, targets to 1024.
    fn put_string(&mut self, bytes: &[u8]) {
        let kept = bytes.get(..usize::from(u16::MAX)).unwrap_or(bytes);
        PutFields::put_u16(self, kept.len() as u16);
        self.extend_from_slice(kept);
    }
}
