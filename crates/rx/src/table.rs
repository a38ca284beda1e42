//! A slot table, and a hash that is fast, seeded and reproducible.

use std::hash::{BuildHasher, Hasher};

/// A growable table with stable slot numbers; freed numbers are reused.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
    /// Generation of numbers that were never used or whose memory was released.
    first_generation: u32,
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

/// Tables of at most this many entries keep their memory.
const KEPT_CAPACITY: usize = 1_024;

/// Marks a missing link.
pub(crate) const NONE: u32 = u32::MAX;

impl<T> Slots<T> {
    pub(crate) const fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            first_generation: 0,
        }
    }

    pub(crate) fn insert(&mut self, value: T) -> u32 {
        if let Some(slot) = self.free.pop()
            && let Some(entry) = self.entries.get_mut(slot as usize)
        {
            entry.value = Some(value);
            return slot;
        }
        let slot = u32::try_from(self.entries.len()).unwrap_or(NONE - 1);
        self.entries.push(Entry {
            generation: self.first_generation,
            value: Some(value),
        });
        slot
    }

    pub(crate) fn remove(&mut self, slot: u32) -> Option<T> {
        let entry = self.entries.get_mut(slot as usize)?;
        let value = entry.value.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(slot);
        Some(value)
    }

    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        self.entries.get(slot as usize)?.value.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.entries.get_mut(slot as usize)?.value.as_mut()
    }

    pub(crate) fn generation(&self, slot: u32) -> u32 {
        self.entries
            .get(slot as usize)
            .map_or(self.first_generation, |entry| entry.generation)
    }

    /// Releases the memory of unused slots at the end, if they are at least half of a large table.
    /// Returns whether it did.
    pub(crate) fn shrink(&mut self) -> bool {
        let used = self.entries.iter().rposition(|entry| entry.value.is_some());
        let used = used.map_or(0, |last| last + 1);
        if self.entries.capacity() < KEPT_CAPACITY || used > self.entries.len() / 2 {
            return false;
        }
        // A slot number that is created again must not match an old id.
        let given_back = self.entries.drain(used..).map(|entry| entry.generation);
        let newest = given_back.max().unwrap_or(0);
        self.first_generation = self.first_generation.max(newest.wrapping_add(1));
        self.free.retain(|&slot| (slot as usize) < used);
        self.entries.shrink_to(2 * used);
        self.free.shrink_to(2 * self.free.len());
        true
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.entries.capacity() + self.free.capacity()
    }

    /// Number of entries in use.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Upper bound of all slot numbers.
    pub(crate) fn bound(&self) -> u32 {
        u32::try_from(self.entries.len()).unwrap_or(NONE - 1)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.entries
            .iter()
            .enumerate()
            .filter_map(|(i, entry)| Some((u32::try_from(i).ok()?, entry.value.as_ref()?)))
    }
}

/// Hash for keys from the network, which must not be predictable. It is seeded, and folds each word
/// with a 64x64 to 128 bit multiplication.
#[derive(Clone, Debug)]
pub(crate) struct SeededHash(pub(crate) u64);

pub(crate) struct Folded(u64);

impl BuildHasher for SeededHash {
    type Hasher = Folded;
    fn build_hasher(&self) -> Folded {
        Folded(self.0)
    }
}

impl Folded {
    #[inline]
    fn fold(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * u128::from(0x9e37_79b9_7f4a_7c15_u64);
        self.0 = (product >> 64) as u64 ^ (product as u64) ^ self.0.rotate_left(23);
    }
}

impl Hasher for Folded {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            if let Some(part) = word.get_mut(..chunk.len()) {
                part.copy_from_slice(chunk);
            }
            self.fold(u64::from_le_bytes(word) ^ ((chunk.len() as u64) << 56));
        }
    }
    fn write_u8(&mut self, n: u8) {
        self.fold(u64::from(n));
    }
    fn write_u16(&mut self, n: u16) {
        self.fold(u64::from(n));
    }
    fn write_u32(&mut self, n: u32) {
        self.fold(u64::from(n));
    }
    #[inline]
    fn write_u64(&mut self, n: u64) {
        self.fold(n);
    }
    fn write_usize(&mut self, n: usize) {
        self.fold(n as u64);
    }
    #[inline]
    fn finish(&self) -> u64 {
        let product = u128::from(self.0) * u128::from(0xff51_afd7_ed55_8ccd_u64);
        (product >> 64) as u64 ^ (product as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_and_numbers_mean_nothing_old() {
        let mut slots = Slots::new();
        for n in 0..20_000_u32 {
            slots.insert(n);
        }
        let old = slots.generation(15_000);
        for slot in 100..20_000 {
            slots.remove(slot);
        }
        slots.remove(50);
        assert!(slots.shrink() && !slots.shrink());
        assert!(slots.entries.capacity() <= 200 && slots.free.capacity() <= 2);
        assert_eq!((slots.len(), slots.bound()), (99, 100));
        assert_ne!(slots.generation(15_000), old);
        assert_eq!(slots.insert(1), 50);
        let again: Vec<u32> = (0..15_000).map(|n| slots.insert(n)).collect();
        assert_eq!(again.first(), Some(&100));
        assert!(slots.generation(15_000) > old);
    }
}
