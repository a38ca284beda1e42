//! Memory for bytes that are read. It is reused, so that not every piece needs newly allocated,
//! zeroed memory.
//!
//! Bytes leave the store as [`Bytes`], which the caller sends. When the last reference is dropped,
//! on whatever thread, the memory comes back and is ready for the next piece, still in the
//! processor's cache. The amount of kept memory is limited; the amount in use is limited by the
//! number of readers.

use std::ops::Range;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::disk::{ALIGNMENT, Aligned};
use crate::record::{BLOCK, PIECE_BYTES};

/// Room for a piece at any alignment of its start.
const KEPT_BYTES: usize = PIECE_BYTES as usize + BLOCK;
/// Shorter ranges get memory of their own: a few bytes must not keep so much memory alive.
const SHORT_BYTES: usize = KEPT_BYTES / 2;
/// The most buffers that are kept: 16 MiB in a process.
const KEPT_MAX: usize = 64;

static KEPT: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// The most sheets that are kept: 8 MiB in a process, if all were full.
const SHEETS_MAX: usize = 16;

static SHEETS: Mutex<Vec<Aligned>> = Mutex::new(Vec::new());

/// Runs `work` with a reusable, aligned buffer in which bytes are assembled for the device.
pub(crate) fn with_sheet<T>(work: impl FnOnce(&mut Aligned) -> T) -> T {
    let kept = SHEETS.lock().pop();
    let mut sheet = kept.unwrap_or_default();
    let outcome = work(&mut sheet);
    let mut kept = SHEETS.lock();
    if kept.len() < SHEETS_MAX {
        kept.push(sheet);
    }
    outcome
}

/// A buffer for bytes being read. One of about the length of a piece is aligned for the device.
#[derive(Debug)]
pub(crate) struct Memory {
    bytes: Vec<u8>,
    range: Range<usize>,
    /// All bytes are zeros.
    zeroed: bool,
}

/// The size of a buffer that is kept for reuse.
const WHOLE_BYTES: usize = KEPT_BYTES + ALIGNMENT;

impl Memory {
    /// A buffer of `length` bytes. It may hold any bytes that were read before.
    pub(crate) fn take(length: usize) -> Self {
        if !(SHORT_BYTES..=KEPT_BYTES).contains(&length) {
            return Self {
                bytes: vec![0; length],
                range: 0..length,
                zeroed: true,
            };
        }
        let kept = KEPT.lock().pop();
        let zeroed = kept.is_none();
        let bytes = kept.unwrap_or_else(|| vec![0; WHOLE_BYTES]);
        let start = bytes.as_ptr().addr().wrapping_neg() % ALIGNMENT;
        Self {
            bytes,
            range: start..start + length,
            zeroed,
        }
    }

    /// Sets all bytes to zero.
    pub(crate) fn zero(&mut self) {
        if !self.zeroed {
            self.bytes[self.range.clone()].fill(0);
            self.zeroed = true;
        }
    }

    /// The bytes, to be overwritten.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.zeroed = false;
        &mut self.bytes[self.range.clone()]
    }

    /// A part of the bytes.
    pub(crate) fn freeze(mut self, part: Range<usize>) -> Bytes {
        if self.is_reusable() {
            return Bytes::from_owner(self).slice(part);
        }
        Bytes::from(std::mem::take(&mut self.bytes)).slice(part)
    }

    fn is_reusable(&self) -> bool {
        self.bytes.len() == WHOLE_BYTES && self.range.len() <= KEPT_BYTES
    }
}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[self.range.clone()]
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if !self.is_reusable() {
            return;
        }
        let bytes = std::mem::take(&mut self.bytes);
        let mut kept = KEPT.lock();
        if kept.len() < KEPT_MAX {
            kept.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_reads_do_not_show_in_holes() {
        let mut first = Memory::take(KEPT_BYTES);
        first.bytes_mut().fill(7);
        let start = first.as_ref().as_ptr().addr();
        assert!(start.is_multiple_of(ALIGNMENT));
        let sent = first.freeze(1..KEPT_BYTES);
        assert_eq!(sent.len(), KEPT_BYTES - 1);
        assert!(sent.iter().all(|byte| *byte == 7));
        drop(sent);
        for length in [SHORT_BYTES, KEPT_BYTES - BLOCK, KEPT_BYTES] {
            let mut next = Memory::take(length);
            next.zero();
            let bytes = next.freeze(0..length);
            assert!(bytes.len() == length && bytes.iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn other_lengths_have_memory_of_their_own() {
        for length in [0, 1, SHORT_BYTES - 1, KEPT_BYTES + 1, WHOLE_BYTES] {
            let mut memory = Memory::take(length);
            memory.bytes_mut().fill(3);
            memory.zero();
            let bytes = memory.freeze(length / 2..length);
            assert_eq!(bytes.len(), length - length / 2);
            assert!(bytes.iter().all(|byte| *byte == 0));
        }
    }
}
