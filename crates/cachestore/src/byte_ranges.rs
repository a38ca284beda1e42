//! Sets of bytes of a file, stored as ranges: the bytes that are here, or dirty.

use rangemap::RangeSet;

/// A set of half-open ranges, which neither overlap nor touch, with the number of its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges {
    set: RangeSet<u64>,
    bytes: u64,
}

impl Ranges {
    /// The number of bytes in the set.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.set.is_empty()
    }

    /// The first range.
    pub(crate) fn first(&self) -> Option<(u64, u64)> {
        self.iter().next()
    }

    /// The ranges in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.set.iter().map(|range| (range.start, range.end))
    }

    /// Adds `start..end`.
    pub(crate) fn insert(&mut self, start: u64, end: u64) {
        if start < end {
            let range = start..end;
            let gaps = self.set.gaps(&range);
            self.bytes += gaps.map(|gap| gap.end - gap.start).sum::<u64>();
            self.set.insert(range);
        }
    }

    /// Adds all of another set.
    pub(crate) fn insert_all(&mut self, other: &Self) {
        for (start, end) in other.iter() {
            self.insert(start, end);
        }
    }

    /// Removes `start..end`.
    pub(crate) fn remove(&mut self, start: u64, end: u64) {
        if start < end {
            let here = self.set.overlapping(start..end);
            let each = here.map(|range| range.end.min(end) - range.start.max(start));
            self.bytes -= each.sum::<u64>();
            self.set.remove(start..end);
        }
    }

    /// Removes all bytes from `start` on.
    pub(crate) fn cut(&mut self, start: u64) {
        self.remove(start, u64::MAX);
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The parts of `start..end` that are not in the set, in order.
    pub(crate) fn gaps(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        if start >= end {
            return Vec::new();
        }
        let range = start..end;
        let gaps = self.set.gaps(&range);
        gaps.map(|gap| (gap.start, gap.end)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares every operation with the same one on a set of single bytes.
    #[test]
    fn ranges_are_sets_of_bytes() {
        let mut ranges = Ranges::default();
        let mut bytes = [false; 64];
        let mut seed = 7u64;
        let mut next = |limit: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % limit
        };
        for _ in 0..5_000 {
            let (a, b) = (next(65), next(65));
            let (start, end) = (a.min(b), a.max(b));
            let add = next(2) == 0;
            if add {
                ranges.insert(start, end);
            } else {
                ranges.remove(start, end);
            }
            bytes[start as usize..end as usize].fill(add);
            assert_eq!(ranges.bytes(), bytes.iter().filter(|b| **b).count() as u64);
            let (a, b) = (next(65), next(65));
            let (start, end) = (a.min(b), a.max(b));
            let some = &bytes[start as usize..end as usize];
            assert_eq!(ranges.gaps(start, end).is_empty(), some.iter().all(|b| *b));
            let missing: u64 = ranges.gaps(start, end).iter().map(|(s, e)| e - s).sum();
            assert_eq!(missing, some.iter().filter(|b| !**b).count() as u64);
            for (s, e) in ranges.gaps(start, end) {
                assert!(s < e && bytes[s as usize..e as usize].iter().all(|b| !*b));
            }
        }
    }

    #[test]
    fn neighbours_become_one() {
        let mut ranges = Ranges::default();
        ranges.insert(0, 4);
        ranges.insert(8, 12);
        ranges.insert(4, 8);
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(0, 12)]);
        ranges.cut(5);
        assert_eq!(ranges.first(), Some((0, 5)));
    }
}
