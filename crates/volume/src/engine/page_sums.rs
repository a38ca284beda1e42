//! Checksums of the base table's blocks of 4 KiB, in a file of their own.
//!
//! redb does not compare its pages with its checksums on ordinary reads. So every block that comes
//! from its file is compared here. Its keys, values and links between pages are as they were
//! written, or the block is reported as damaged. The first block, redb's header, is left out: redb
//! verifies it.
//!
//! Why a crash does no harm:
//!
//! 1. redb writes pages that the durable state does not use, and syncs. Only then it writes the
//!    header that names them, and syncs again.
//! 2. Sums are written and synced before each sync of the table. So each page that a durable header
//!    names has its durable sum.
//! 3. The sum of another page may be of its old bytes, or of bytes that never became durable. Such
//!    a page is written again before it is read.
//! 4. A torn write of sums does not change the bytes of other sums.
//!
//! A block that was never written has no sum, and is a hole. So a block that has bytes and no sum
//! has lost its sum, for instance to a sector of zeros. It counts as damaged (decision 0023).
//!
//! If sums are missing (a store of an earlier version, a lost file), redb checks all of its pages
//! once. Then sums are made of the pages that it found sound.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::disk::DiskFile;

const BLOCK: u64 = 4096;
/// The number of sums that are written together: those of one sector.
const TOGETHER: usize = 128;
/// In place of a sum: the block was never written, or its sum is lost.
const LOST: u32 = 0;
/// In place of a sum: a part of the block was written.
const UNKNOWN: u32 = u32::MAX;
/// Bytes that are read at a time.
const READ_BYTES: u64 = 1 << 20;

/// The sums of one base table.
#[derive(Debug)]
pub(super) struct PageSums {
    file: Arc<dyn DiskFile>,
    sums: Mutex<Sums>,
}

#[derive(Debug, Default)]
struct Sums {
    /// Indexed by block.
    known: Vec<u32>,
    /// Every block that redb reads has a sum. False until the sums of an older table are made.
    is_complete: bool,
    /// The groups of sums that are not yet in the file.
    changed: BTreeSet<usize>,
}

/// Checksum of a block; never [`LOST`] or [`UNKNOWN`].
pub(crate) fn sum_of(block: u64, bytes: &[u8]) -> u32 {
    let sum = crc32c::crc32c_append(crc32c::crc32c(&block.to_be_bytes()), bytes);
    sum.clamp(LOST + 1, UNKNOWN - 1)
}

impl Sums {
    fn set(&mut self, block: u64, sum: u32) {
        let index = block as usize;
        if self.known.len() <= index {
            self.known.resize(index + 1, 0);
        }
        self.known[index] = sum;
        self.changed.insert(index / TOGETHER);
    }
}

impl PageSums {
    /// Reads the sums in a file.
    pub(super) fn open(file: Arc<dyn DiskFile>) -> io::Result<Self> {
        let mut bytes = vec![0; file.length()? as usize];
        file.read_at(&mut bytes, 0)?;
        let known = bytes.as_chunks::<4>().0;
        let known = known.iter().map(|sum| u32::from_be_bytes(*sum)).collect();
        let sums = Sums {
            known,
            is_complete: false,
            changed: BTreeSet::new(),
        };
        Ok(Self {
            file,
            sums: Mutex::new(sums),
        })
    }

    /// Returns whether there are sums for a table of that length. If so, a block without a sum is
    /// damaged.
    pub(super) fn cover(&self, length: u64) -> bool {
        let mut sums = self.sums.lock();
        sums.is_complete = sums.known.len() as u64 >= length.div_ceil(BLOCK);
        sums.is_complete
    }

    /// Returns whether a block was written that lies behind a table of that length.
    pub(super) fn reach_behind(&self, length: u64) -> bool {
        let sums = self.sums.lock();
        let end = length.div_ceil(BLOCK) as usize;
        let behind = sums.known.get(end..).unwrap_or_default();
        behind.iter().any(|sum| *sum != LOST)
    }

    /// Makes the sums of a whole table that is known to be sound, durably.
    pub(super) fn make(&self, table: &dyn DiskFile) -> io::Result<()> {
        let length = table.length()?;
        let mut at = 0;
        while at < length {
            let mut bytes = vec![0; READ_BYTES.min(length - at) as usize];
            table.read_at(&mut bytes, at)?;
            self.written(at, &bytes);
            at += READ_BYTES;
        }
        self.sums.lock().is_complete = true;
        self.save()
    }

    /// Returns the offset of the first damaged block in bytes that were read at an offset.
    pub(super) fn damaged(&self, offset: u64, bytes: &[u8]) -> Option<u64> {
        let sums = self.sums.lock();
        let is_complete = sums.is_complete;
        let (first, skipped) = (
            offset.div_ceil(BLOCK),
            offset.next_multiple_of(BLOCK) - offset,
        );
        let whole = bytes.get(skipped as usize..)?.chunks_exact(BLOCK as usize);
        let is_wrong = |block: u64, bytes: &[u8]| match sums.known.get(block as usize) {
            None | Some(&LOST) => block > 0 && is_complete && bytes.iter().any(|byte| *byte != 0),
            Some(&UNKNOWN) => false,
            Some(sum) => block > 0 && *sum != sum_of(block, bytes),
        };
        let wrong = (first..)
            .zip(whole)
            .find(|(block, bytes)| is_wrong(*block, bytes));
        wrong.map(|(block, _)| block * BLOCK)
    }

    /// Records the sums of written bytes. If only a part of a block was written, its sum is
    /// unknown.
    pub(super) fn written(&self, offset: u64, bytes: &[u8]) {
        let mut sums = self.sums.lock();
        let end = offset + bytes.len() as u64;
        for block in offset / BLOCK..end.div_ceil(BLOCK) {
            let start = block * BLOCK;
            let is_whole = start >= offset && start + BLOCK <= end;
            let sum = match is_whole {
                true => {
                    let at = (start - offset) as usize;
                    sum_of(block, &bytes[at..at + BLOCK as usize])
                }
                false => UNKNOWN,
            };
            sums.set(block, sum);
        }
    }

    /// Makes the sums durable.
    pub(super) fn save(&self) -> io::Result<()> {
        let (changed, writes) = {
            let mut sums = self.sums.lock();
            let changed = std::mem::take(&mut sums.changed);
            let group = |&group: &usize| {
                let first = group * TOGETHER;
                let mut bytes = vec![0; TOGETHER * 4];
                let known = sums.known.iter().skip(first).take(TOGETHER);
                for (slot, sum) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(known) {
                    *slot = sum.to_be_bytes();
                }
                (first as u64 * 4, bytes)
            };
            let writes: Vec<_> = changed.iter().map(group).collect();
            (changed, writes)
        };
        if writes.is_empty() {
            return Ok(());
        }
        let written = writes
            .iter()
            .try_for_each(|(offset, bytes)| self.file.write_at(bytes, *offset));
        let saved = written.and_then(|()| self.file.sync());
        if saved.is_err() {
            self.sums.lock().changed.extend(changed);
        }
        saved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk, SimDisk};

    #[test]
    fn a_block_is_known_once_it_was_written_whole() {
        let disk = SimDisk::new(1 << 20);
        let sums = PageSums::open(disk.open("sums").unwrap()).unwrap();
        let mut bytes = vec![7; 3 * BLOCK as usize];
        assert_eq!(sums.damaged(BLOCK, &bytes), None);
        sums.written(BLOCK, &bytes);
        assert_eq!(sums.damaged(BLOCK, &bytes), None);
        bytes[BLOCK as usize + 9] ^= 1;
        assert_eq!(sums.damaged(BLOCK, &bytes), Some(2 * BLOCK));
        assert_eq!(sums.damaged(BLOCK, &bytes[..BLOCK as usize]), None);
        // The same bytes at another offset, and after a restart.
        sums.save().unwrap();
        let again = PageSums::open(disk.power_cut(None).open("sums").unwrap());
        assert!(again.unwrap().known() == 0);
        disk.sync_names().unwrap();
        let again = PageSums::open(disk.power_cut(None).open("sums").unwrap()).unwrap();
        assert!(again.cover(4 * BLOCK) && again.known() >= 4);
        assert_eq!(again.damaged(BLOCK, &bytes), Some(2 * BLOCK));
        assert_eq!(again.damaged(3 * BLOCK, &[7; BLOCK as usize]), None);
        // A lost sum, and a sum in a table whose sums are not made yet.
        disk.open("sums").unwrap().write_at(&[0; 8], 8).unwrap();
        let lost = PageSums::open(disk.open("sums").unwrap()).unwrap();
        let sound = [7; BLOCK as usize];
        assert_eq!(lost.damaged(2 * BLOCK, &sound), None);
        assert!(lost.cover(4 * BLOCK));
        assert_eq!(lost.damaged(2 * BLOCK, &sound), Some(2 * BLOCK));
        assert_eq!(lost.damaged(9 * BLOCK, &sound), Some(9 * BLOCK));
        assert_eq!(lost.damaged(9 * BLOCK, &[0; BLOCK as usize]), None);
        again.written(3 * BLOCK, &[7; BLOCK as usize]);
        again.written(2 * BLOCK + 10, &[1]);
        assert_eq!(again.damaged(BLOCK, &bytes), None);
        // redb verifies the header itself.
        again.written(0, &[7; BLOCK as usize]);
        assert_eq!(again.damaged(0, &[8; BLOCK as usize]), None);
    }

    impl PageSums {
        fn known(&self) -> usize {
            self.sums.lock().known.len()
        }
    }
}
