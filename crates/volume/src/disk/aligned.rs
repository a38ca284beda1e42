//! Memory with the alignment that devices need.

/// Alignment of memory, lengths and offsets that every device accepts.
pub(crate) const ALIGNMENT: usize = 4096;

/// Larger memory is freed after its use.
const KEPT_MAX: usize = 1 << 20;

/// A reusable buffer that begins at a multiple of 4096. Its bytes can be written past the page
/// cache with one call and without another copy.
#[derive(Debug, Default)]
pub(crate) struct Aligned {
    memory: Vec<u8>,
    start: usize,
}

impl Aligned {
    /// Replaces the contents by up to `length` bytes, which `fill` appends.
    ///
    /// If it appends more, the memory moves and the bytes may lose their alignment.
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

    /// The contents.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filled_bytes_begin_at_a_multiple_of_4096() {
        let mut aligned = Aligned::default();
        for length in [1, 4096, 100_000, KEPT_MAX * 2, 77] {
            aligned.fill(length, |out| out.resize(out.len() + length, 7));
            assert_eq!(aligned.bytes(), vec![7; length]);
            assert!(aligned.bytes().as_ptr().addr().is_multiple_of(ALIGNMENT));
        }
        assert!(aligned.memory.capacity() <= KEPT_MAX);
    }
}
