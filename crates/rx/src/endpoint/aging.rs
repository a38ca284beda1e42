//! Queue of connections by age, with removal from any place.

use std::collections::VecDeque;

/// Slots and generations of connections, the oldest first. Removed connections stay in the queue
/// until the next cleanup.
#[derive(Debug, Default)]
pub(super) struct Aging {
    queue: VecDeque<(u32, u32)>,
    /// Number of connections that were not removed.
    count: usize,
}

/// Number of removed entries that the queue may hold, besides as many as remain.
const LEFT_MAX: usize = 32;

impl Aging {
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// Adds the youngest. `is_there` returns whether an entry was not removed.
    pub(super) fn push(&mut self, slot: u32, generation: u32, is_there: impl Fn(u32, u32) -> bool) {
        if self.queue.len() >= 2 * self.count + LEFT_MAX {
            self.queue
                .retain(|&(slot, generation)| is_there(slot, generation));
            self.queue.shrink_to(2 * self.count + LEFT_MAX);
        }
        self.queue.push_back((slot, generation));
        self.count += 1;
    }

    /// Records that one connection was removed.
    pub(super) fn note_removed(&mut self) {
        self.count = self.count.saturating_sub(1);
        if self.count == 0 {
            self.queue = VecDeque::new();
        }
    }

    /// Returns the oldest that was not removed.
    pub(super) fn oldest(&mut self, is_there: impl Fn(u32, u32) -> bool) -> Option<u32> {
        while let Some(&(slot, generation)) = self.queue.front() {
            if is_there(slot, generation) {
                return Some(slot);
            }
            self.queue.pop_front();
        }
        None
    }

    /// All entries of the queue.
    pub(super) fn slots(&self) -> impl Iterator<Item = u32> {
        self.queue.iter().map(|&(slot, _)| slot)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_oldest_that_is_there_and_a_short_queue() {
        let mut aging = Aging::default();
        let mut there = BTreeSet::new();
        for slot in 0..10_000 {
            there.insert(slot);
            aging.push(slot, 1, |slot, _| there.contains(&slot));
            // Only every tenth stays.
            if slot % 10 != 0 {
                there.remove(&slot);
                aging.note_removed();
            }
        }
        assert_eq!(aging.count(), 1_000);
        assert!(aging.queue.len() <= 2_100, "{}", aging.queue.len());
        for expected in (0..10_000).step_by(10) {
            let oldest = aging.oldest(|slot, _| there.contains(&slot)).unwrap();
            assert_eq!(oldest, expected);
            there.remove(&oldest);
            aging.note_removed();
        }
        assert_eq!((aging.count(), aging.queue.capacity()), (0, 0));
    }
}
