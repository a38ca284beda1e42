//! The journal's files: groups of batches, each written and synced at once.
//!
//! A group is a header of 32 bytes and the encoded batches, padded with zeros to 4 KiB, so that no
//! block once synced is written again before its file is recycled. The header's checksum covers
//! the header and the batches: a torn group is no group. Groups are numbered without a gap across
//! files; a recycled file still holds older groups, whose numbers are smaller than the one
//! expected, so reading stops there. Files are filled with zeros once, when they are made: syncs
//! then change no file system metadata.

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

/// One journal file.
#[derive(Clone)]
pub(crate) struct JournalFile {
    pub(crate) name: String,
    pub(crate) file: Arc<dyn DiskFile>,
}

impl JournalFile {
    /// Opens or makes the file of a number, with `bytes` of room.
    pub(crate) fn open(disk: &dyn Disk, number: u32, bytes: u64) -> std::io::Result<Self> {
        let name = format!("journal.{number}");
        let file = disk.open(&name)?;
        let length = file.length()?;
        if length < bytes
            && let Err(error) = fill(file.as_ref(), length, bytes)
        {
            // What little room there is shall not be lost to half a file.
            let _ = file.set_length(length);
            return Err(error);
        }
        Ok(Self { name, file })
    }

    /// Makes what was written durable.
    pub(crate) fn sync(&self) -> Result<()> {
        let synced = self.file.sync();
        synced.map_err(|error| Error::Partition(format!("syncing {}: {error}", self.name)))
    }

    /// The groups of the file from its start, as long as their numbers follow one another, those
    /// up to number `applied` left out unread.
    pub(crate) fn read(&self, applied: u64) -> Result<Vec<Group>> {
        let failed = |error: std::io::Error| Error::Partition(format!("{}: {error}", self.name));
        let length = self.file.length().map_err(failed)?;
        let mut groups: Vec<Group> = Vec::new();
        let mut last = None;
        let mut at = 0;
        while at + HEADER as u64 <= length {
            let mut header = [0; HEADER];
            self.file.read_at(&mut header, at).map_err(failed)?;
            let Some((checksum, number, payload)) = parse_header(&header) else {
                break;
            };
            if last.is_some_and(|last: u64| last.checked_add(1) != Some(number)) {
                break;
            }
            let next = at + padded(HEADER as u64 + u64::from(payload));
            if at + HEADER as u64 + u64::from(payload) > length {
                break;
            }
            last = Some(number);
            if number <= applied {
                at = next;
                continue;
            }
            let mut bytes = vec![0; payload as usize];
            self.file
                .read_at(&mut bytes, at + HEADER as u64)
                .map_err(failed)?;
            if crc32c::crc32c_append(crc32c::crc32c(&header[8..]), &bytes) != checksum {
                break;
            }
            groups.push(Group {
                number,
                payload: bytes.into(),
            });
            at = next;
        }
        Ok(groups)
    }
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

/// A group as it was read back.
pub(crate) struct Group {
    pub(crate) number: u64,
    payload: Bytes,
}

impl Group {
    /// The batches in it.
    pub(crate) fn batches(&self) -> Result<Vec<Batch>> {
        let mut rest = self.payload.clone();
        let mut batches = Vec::new();
        while !rest.is_empty() {
            batches.push(Batch::decode(&mut rest).ok_or_else(|| {
                Error::Format(format!("journal group {} holds no batch", self.number))
            })?);
        }
        Ok(batches)
    }
}

/// Bytes that a group of that length takes in the file.
const fn padded(length: u64) -> u64 {
    length.next_multiple_of(BLOCK)
}

/// Bytes that a group with `payload` bytes of batches takes in the file.
pub(crate) const fn group_length(payload: usize) -> u64 {
    padded((HEADER + payload) as u64)
}

/// Makes the group of that number out of batches, as it is written, in `sheet`.
pub(crate) fn seal(batches: &Batches, number: u64, sheet: &mut Aligned) {
    let payload = batches.encoded_length();
    let length = group_length(payload) as usize;
    sheet.fill(length, |out| {
        let start = out.len();
        out.resize(start + HEADER, 0);
        batches.encode(out);
        fill_header(&mut out[start..], number, payload as u32);
        out.resize(start + length, 0);
    });
}

/// Fills in the header at the start of a group.
fn fill_header(group: &mut [u8], number: u64, payload: u32) {
    group[..4].copy_from_slice(&MAGIC.to_be_bytes());
    group[8..16].copy_from_slice(&number.to_be_bytes());
    group[16..20].copy_from_slice(&payload.to_be_bytes());
    let checksum = crc32c::crc32c(&group[8..]);
    group[4..8].copy_from_slice(&checksum.to_be_bytes());
}

fn parse_header(header: &[u8; HEADER]) -> Option<(u32, u64, u32)> {
    let word = |at: usize| {
        u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let number = u64::from(word(8)) << 32 | u64::from(word(12));
    (word(0) == MAGIC).then(|| (word(4), number, word(16)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SimDisk;
    use crate::engine::key::Key;

    fn group(number: u64, payload: &[u8]) -> Vec<u8> {
        let mut batch = Batch::new();
        batch.put(Key::volume(number as u32), Bytes::copy_from_slice(payload));
        let mut batches = Batches::default();
        batches.add(&batch);
        let mut sheet = Aligned::default();
        seal(&batches, number, &mut sheet);
        sheet.bytes().to_vec()
    }

    #[test]
    fn reading_stops_at_an_older_group_and_at_a_torn_one() {
        let disk = SimDisk::new(1 << 20);
        let journal = JournalFile::open(&disk, 0, 64 << 10).unwrap();
        for (index, number) in [7, 8, 3].into_iter().enumerate() {
            journal
                .file
                .write_at(&group(number, b"x"), index as u64 * BLOCK)
                .unwrap();
        }
        let read = journal.read(0).unwrap();
        assert_eq!(read.iter().map(|g| g.number).collect::<Vec<_>>(), [7, 8]);
        assert_eq!(read[0].batches().unwrap().len(), 1);
        let read = journal.read(7).unwrap();
        assert_eq!(read.iter().map(|g| g.number).collect::<Vec<_>>(), [8]);
        disk.flip_bit("journal.0", BLOCK + 40, 3);
        assert_eq!(journal.read(0).unwrap().len(), 1);
    }
}
