//! Memory that begins where devices want it to.

/// Alignment of memory, lengths and offsets that every device takes.
pub(crate) const ALIGNMENT: usize = 4096;

/// Memory larger than this is given back after its use.
const KEPT_MAX: usize = 1 << 20;

/// Bytes in memory that begins at a multiple of 4096, to be filled again and again: what lies so is
/// written past the page cache without another copy, and with one call.
#[derive(Debug, Default)]
pub(crate) struct Aligned {
    memory: Vec<u8>,
    start: usize,
}

impl Aligned {
    /// Lets `fill` append up to `length` bytes in place of what was there.
    ///
    /// If it appends more the memory moves: then the bytes may lie anywhere.
    pub(crate) fn fill(&mut self, length: usize, fill: impl FnOnce(&mut Vec<u8>)) {
        let room = length + ALIGNMENT;
        if self.memory.capacity() < room || self.memory.capacity() > room.max(KEPT_MAX) {
            self.memory = Vec::with_capacity(room);
        }
        self.memory.clear();
        self.start = self.memory.as_ptr().addr().wrapping_neg() % ALIGNMENT;
        self.memory.resize(self.start, 0);
        fill(&mut self.memory);
    }

    /// What was filled in.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_filled_in_lies_at_a_multiple_of_4096() {
        let mut aligned = Aligned::default();
        for length in [1, 4096, 100_000, KEPT_MAX * 2, 77] {
            aligned.fill(length, |out| out.resize(out.len() + length, 7));
            assert_eq!(aligned.bytes(), vec![7; length]);
            assert!(aligned.bytes().as_ptr().addr().is_multiple_of(ALIGNMENT));
        }
        assert!(aligned.memory.capacity() <= KEPT_MAX);
    }
}
