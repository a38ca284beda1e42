//! Bytes written by the application, kept until the peer has hard-acknowledged them.
//!
//! Chunks are kept without copying. Packets are ranges of the stream and are copied out each time
//! they are sent.

use std::collections::VecDeque;

use bytes::Bytes;

#[derive(Debug)]
struct Chunk {
    start: u64,
    data: Bytes,
}

#[derive(Debug, Default)]
pub(crate) struct SendStream {
    chunks: VecDeque<Chunk>,
    end: u64,
    /// Everything below was freed.
    freed: u64,
    /// Chunk in which the last copy ended; the next one usually continues there.
    cursor: usize,
}

impl SendStream {
    pub(crate) fn clear(&mut self) {
        self.chunks.clear();
        if self.chunks.capacity() > KEPT_CHUNKS {
            self.chunks = VecDeque::new();
        }
        self.end = 0;
        self.freed = 0;
        self.cursor = 0;
    }

    /// Total bytes written.
    pub(crate) const fn end(&self) -> u64 {
        self.end
    }

    /// Bytes written and not freed.
    pub(crate) const fn held(&self) -> u64 {
        self.end - self.freed
    }

    pub(crate) fn push(&mut self, data: Bytes) {
        if data.is_empty() {
            return;
        }
        let start = self.end;
        self.end += data.len() as u64;
        self.chunks.push_back(Chunk { start, data });
    }

    /// Frees everything below `offset`.
    pub(crate) fn free(&mut self, offset: u64) {
        self.freed = offset.clamp(self.freed, self.end);
        while let Some(chunk) = self.chunks.front() {
            if chunk.start + chunk.data.len() as u64 > offset {
                break;
            }
            self.chunks.pop_front();
            self.cursor = self.cursor.saturating_sub(1);
        }
    }

    /// Appends `length` bytes from `offset` on to `out`.
    pub(crate) fn copy(&mut self, offset: u64, length: usize, out: &mut Vec<u8>) {
        let here =
            |chunk: &Chunk| chunk.start <= offset && offset < chunk.start + chunk.data.len() as u64;
        let mut at = self.cursor;
        if !self.chunks.get(at).is_some_and(here) {
            at = self
                .chunks
                .partition_point(|chunk| chunk.start <= offset)
                .saturating_sub(1);
        }
        let mut offset = offset;
        let mut left = length;
        while left > 0 {
            let Some(chunk) = self.chunks.get(at) else {
                break;
            };
            let skip = usize::try_from(offset.saturating_sub(chunk.start)).unwrap_or(usize::MAX);
            let rest = chunk.data.get(skip..).unwrap_or(&[]);
            let part = rest.get(..left.min(rest.len())).unwrap_or(rest);
            out.extend_from_slice(part);
            left -= part.len();
            offset += part.len() as u64;
            if left > 0 {
                at += 1;
            }
        }
        self.cursor = at;
    }
}

/// Queue capacity kept between calls of a channel, chunks.
const KEPT_CHUNKS: usize = 64;
