//! Bytes received in pieces, taken in pieces of other sizes.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use super::zeros;

/// A sequence of bytes in pieces.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chunks {
    pieces: VecDeque<Bytes>,
    length: u64,
}

impl Chunks {
    pub(crate) fn len(&self) -> u64 {
        self.length
    }

    pub(crate) fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.length += piece.len() as u64;
            self.pieces.push_back(piece);
        }
    }

    /// Appends `length` zeros.
    pub(crate) fn push_zeros(&mut self, mut length: u64) {
        while length > 0 {
            let piece = zeros(length);
            length -= piece.len() as u64;
            self.push(piece);
        }
    }

    /// Takes the next `length` bytes as one piece, fewer at the end. Copies only if they arrived in
    /// several pieces.
    pub(crate) fn take(&mut self, length: usize) -> Bytes {
        match self.pieces.front_mut() {
            Some(first) if first.len() > length => {
                self.length -= length as u64;
                first.split_to(length)
            }
            Some(first) if first.len() == length => self.pop().unwrap_or_default(),
            Some(_) => {
                let mut whole = BytesMut::with_capacity(length);
                while whole.len() < length {
                    match self.next(length - whole.len()) {
                        Some(piece) => whole.extend_from_slice(&piece),
                        None => break,
                    }
                }
                whole.freeze()
            }
            None => Bytes::new(),
        }
    }

    /// Returns the next piece, or its first `max` bytes.
    pub(crate) fn next(&mut self, max: usize) -> Option<Bytes> {
        let first = self.pieces.front_mut()?;
        if first.len() > max {
            self.length -= max as u64;
            return Some(first.split_to(max));
        }
        self.pop()
    }

    fn pop(&mut self) -> Option<Bytes> {
        let piece = self.pieces.pop_front()?;
        self.length -= piece.len() as u64;
        Some(piece)
    }
}
