//! The journal's files. A group of batches is written and synced at once.
//!
//! A group is a header of 32 bytes and the encoded batches, padded with zeros to 4 KiB. So no block
//! that was synced is written again before its file is recycled. The header's checksum covers the
//! header and the batches, so a torn group is not taken for a group.
//!
//! Groups are numbered without a gap across files. A recycled file still holds older groups, whose
//! numbers are smaller. Each group carries the random id of the journal, which the base table has
//! too (`base::Mark`). So data that a user stored cannot pass for a group.
//!
//! Files are filled with zeros once, when they are made. Syncs then change no metadata of the file
//! system. `found` reads groups back.

use std::sync::Arc;

use bytes::Bytes;

use super::batch::{Batch, Batches};
use crate::disk::{Aligned, Disk, DiskFile};
use crate::error::{Error, Result};

/// Alignment of groups in a journal file.
pub(crate) const BLOCK: u64 = 4096;

/// Bytes of a group's header.
pub(crate) const HEADER: usize = 32;

/// First word of a group: "CJG1".
const MAGIC: u32 = 0x434a_4731;

/// Offset of the flags in a header.
const FLAGS_AT: usize = 28;

/// Flag of the group that a clean stop writes.
const ENDS: u8 = 1;

/// One journal file.
#[derive(Clone)]
pub(crate) struct JournalFile {
    pub(crate) number: u32,
    pub(crate) name: String,
    pub(crate) file: Arc<dyn DiskFile>,
}

impl JournalFile {
    /// Opens the file with this number, or makes it, with `bytes` of room.
    pub(crate) fn open(disk: &dyn Disk, number: u32, bytes: u64) -> std::io::Result<Self> {
        let name = name_of(number);
        let file = disk.open(&name)?;
        let length = file.length()?;
        if length < bytes
            && let Err(error) = fill(file.as_ref(), length, bytes)
        {
            // The little room that there is must not be lost to half a file.
            let _ = file.set_length(length);
            return Err(error);
        }
        Ok(Self { number, name, file })
    }

    /// Makes all writes durable.
    pub(crate) fn sync(&self) -> Result<()> {
        let synced = self.file.sync();
        synced.map_err(|error| Error::Partition(format!("syncing {}: {error}", self.name)))
    }

    /// Writes the present bytes of a range there again, durably.
    pub(super) fn rewrite(&self, offset: u64, length: u64) -> Result<()> {
        let length = length.min(self.length()?.saturating_sub(offset)) as usize;
        let mut read = Ok(());
        let mut sheet = Aligned::default();
        sheet.fill(length, |out| {
            let start = out.len();
            out.resize(start + length, 0);
            read = self.read(&mut out[start..], offset);
        });
        read?;
        let written = self.file.write_durably(sheet.bytes(), offset);
        written.map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &std::io::Error) -> Error {
        Error::Partition(format!("{}: {error}", self.name))
    }

    /// Length of the file.
    pub(super) fn length(&self) -> Result<u64> {
        self.file.length().map_err(|error| self.failed(&error))
    }

    /// Fills `buffer` from this offset.
    pub(super) fn read(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let read = self.file.read_at(buffer, offset);
        read.map_err(|error| self.failed(&error))
    }

    /// Writes at an offset; durable after [`JournalFile::sync`].
    pub(super) fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let written = self.file.write_at(bytes, offset);
        written.map_err(|error| self.failed(&error))
    }
}

/// The name of a journal file.
pub(crate) fn name_of(number: u32) -> String {
    format!("journal.{number}")
}

/// Writes zeros from `from` to `to`.
fn fill(file: &dyn DiskFile, from: u64, to: u64) -> std::io::Result<()> {
    let zeros = vec![0; 1 << 20];
    let mut at = from;
    while at < to {
        let count = (to - at).min(zeros.len() as u64);
        file.write_at(&zeros[..count as usize], at)?;
        at += count;
    }
    file.sync()
}

/// Bytes that a group of that length takes in the file.
pub(super) const fn padded(length: u64) -> u64 {
    length.next_multiple_of(BLOCK)
}

/// Bytes that a group with `payload` bytes of batches takes in the file.
pub(crate) const fn group_length(payload: usize) -> u64 {
    padded((HEADER + payload) as u64)
}

/// The fields of a group's header, without its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The id of the journal to which the group belongs; 0 in a store whose journal has none yet.
    pub(crate) journal: u64,
    /// One more than the number of the group before.
    pub(crate) number: u64,
    /// Bytes of the batches.
    pub(crate) payload: u32,
    /// The partition was stopped cleanly: the base holds all groups before this one, and no group
    /// follows.
    pub(crate) ends: bool,
}

impl Header {
    /// Parses the header at the start of a block that may begin a group. Returns it with the
    /// checksum in it; the caller compares the checksum.
    pub(super) fn parse(block: &[u8]) -> Option<(Self, u32)> {
        let header: &[u8; HEADER] = block.first_chunk()?;
        let word = |at: usize| {
            u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        let parsed = Self {
            journal: long(20),
            number: long(8),
            payload: word(16),
            ends: header[FLAGS_AT] & ENDS != 0,
        };
        (word(0) == MAGIC).then_some((parsed, word(4)))
    }

    /// Returns whether a block may begin a group of this journal although one of three fields is
    /// damaged: first word, id or number. The other two are right.
    pub(super) fn resembles(block: &[u8], journal: u64, number: u64) -> bool {
        let Some(header) = block.first_chunk::<HEADER>() else {
            return false;
        };
        let is_there = |at: usize, field: &[u8]| header[at..].starts_with(field);
        let fields = [
            is_there(0, &MAGIC.to_be_bytes()),
            is_there(8, &number.to_be_bytes()),
            is_there(20, &journal.to_be_bytes()),
        ];
        fields.into_iter().filter(|&is_right| is_right).count() >= 2
    }

    /// Returns whether the checksum of a group's header and batches is right.
    pub(super) fn is_whole(header: &[u8; HEADER], batches: &[u8], checksum: u32) -> bool {
        crc32c::crc32c_append(crc32c::crc32c(&header[8..]), batches) == checksum
    }

    /// Fills in the header at the start of a group whose batches are already in place.
    fn fill_in(self, group: &mut [u8]) {
        group[..4].copy_from_slice(&MAGIC.to_be_bytes());
        group[8..16].copy_from_slice(&self.number.to_be_bytes());
        group[16..20].copy_from_slice(&self.payload.to_be_bytes());
        group[20..28].copy_from_slice(&self.journal.to_be_bytes());
        group[FLAGS_AT] = if self.ends { ENDS } else { 0 };
        let checksum = crc32c::crc32c(&group[8..]);
        group[4..8].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// Makes a group of batches in `sheet`, in the form in which it is written. This function sets the
/// header's `payload`.
pub(crate) fn seal(batches: &Batches, header: Header, sheet: &mut Aligned) {
    let payload = batches.encoded_length();
    let length = group_length(payload) as usize;
    sheet.fill(length, |out| {
        let start = out.len();
        out.resize(start + HEADER, 0);
        batches.encode(out);
        let payload = payload as u32;
        Header { payload, ..header }.fill_in(&mut out[start..]);
        out.resize(start + length, 0);
    });
}

/// The batches of a group.
pub(crate) fn batches_of(number: u64, payload: &Bytes) -> Result<Vec<Batch>> {
    let mut rest = payload.clone();
    let mut batches = Vec::new();
    while !rest.is_empty() {
        batches.push(
            Batch::decode(&mut rest)
                .ok_or_else(|| Error::Format(format!("journal group {number} holds no batch")))?,
        );
    }
    Ok(batches)
}
