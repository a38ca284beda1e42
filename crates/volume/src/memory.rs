//! Memory for bytes that are read: used again in place of being made, and zeroed, for each piece.
//!
//! Bytes leave the store as [`Bytes`] that somebody sends. When the last of them is dropped, on whatever thread, the
//! memory comes back and lies ready for the next piece, still in the processor's cache. What is kept so is
//! bounded; what is in use is bounded by those who read.

use std::ops::Range;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::record::{BLOCK, PIECE_BYTES};

/// Room for a piece wherever it begins.
const KEPT_BYTES: usize = PIECE_BYTES as usize + BLOCK;
/// Shorter ranges get memory of their own: a few bytes shall not hold that much.
const SHORT_BYTES: usize = KEPT_BYTES / 2;
/// Those that lie ready: 16 MiB for a process.
const KEPT_MAX: usize = 64;

static KEPT: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// Bytes being read.
#[derive(Debug)]
pub(crate) struct Memory {
    bytes: Vec<u8>,
    length: usize,
    /// All of it is zeros.
    zeroed: bool,
}

impl Memory {
    /// Room for `length` bytes. What is in it may be anything that was read before.
    pub(crate) fn take(length: usize) -> Self {
        let kept = match length {
            SHORT_BYTES..=KEPT_BYTES => KEPT.lock().pop(),
            _ => None,
        };
        let zeroed = kept.is_none();
        let room = match length {
            SHORT_BYTES..=KEPT_BYTES => KEPT_BYTES,
            _ => length,
        };
        Self {
            bytes: kept.unwrap_or_else(|| vec![0; room]),
            length,
            zeroed,
        }
    }

    /// Makes all of it zeros.
    pub(crate) fn zero(&mut self) {
        if !self.zeroed {
            self.bytes[..self.length].fill(0);
            self.zeroed = true;
        }
    }

    /// To be filled.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.zeroed = false;
        &mut self.bytes[..self.length]
    }

    /// A part of what was filled in.
    pub(crate) fn freeze(self, part: Range<usize>) -> Bytes {
        if self.bytes.len() == KEPT_BYTES {
            Bytes::from_owner(self).slice(part)
        } else {
            let mut memory = self;
            let mut bytes = Bytes::from(std::mem::take(&mut memory.bytes));
            bytes.truncate(part.end);
            bytes.slice(part)
        }
    }
}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.bytes.len() != KEPT_BYTES {
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
    fn what_was_read_before_does_not_show_in_holes() {
        let mut first = Memory::take(KEPT_BYTES);
        first.bytes_mut().fill(7);
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
        for length in [0, 1, SHORT_BYTES - 1, KEPT_BYTES + 1, 3 * KEPT_BYTES] {
            let mut memory = Memory::take(length);
            memory.bytes_mut().fill(3);
            memory.zero();
            let bytes = memory.freeze(length / 2..length);
            assert_eq!(bytes.len(), length - length / 2);
            assert!(bytes.iter().all(|byte| *byte == 0));
        }
    }
}
