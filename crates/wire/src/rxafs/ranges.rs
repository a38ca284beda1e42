//! Locks on ranges of a file: the ranges of one client, as in HoldRanges.

use cellar_xdr::{List, xdr_struct};

/// The most ranges that one client may have in one file.
pub const LOCK_RANGES_MAX: usize = 1024;

/// The ranges of one call.
pub type LockRanges = List<LockRange, LOCK_RANGES_MAX>;

xdr_struct! {
    /// A locked range of bytes of a file.
    #[derive(Copy, Default)]
    pub struct LockRange {
        /// The first byte.
        pub first: u64,
        /// The last byte.
        pub last: u64,
        /// Whether the lock is exclusive. If not, other clients may have the same bytes, to read.
        pub alone: bool,
    }
}

/// The ranges of one client in a file, ascending and without overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldRanges(Vec<LockRange>);

impl HeldRanges {
    /// The union of these ranges. Each byte has the strongest kind of lock that any range gives it.
    pub fn of_all(ranges: impl IntoIterator<Item = LockRange>) -> Self {
        // The places where a range begins or has ended. The byte after the last byte needs more
        // than 64 bits.
        let mut edges = Vec::new();
        for range in ranges {
            edges.push((u128::from(range.first), range.alone, 1_i64));
            edges.push((u128::from(range.last) + 1, range.alone, -1));
        }
        edges.sort_unstable_by_key(|(at, ..)| *at);
        let mut held: Vec<LockRange> = Vec::new();
        let (mut shared, mut alone, mut from) = (0, 0, 0);
        for (at, is_alone, change) in edges {
            if at > from && (shared > 0 || alone > 0) {
                let range = LockRange {
                    first: from as u64,
                    last: (at - 1) as u64,
                    alone: alone > 0,
                };
                match held.last_mut() {
                    Some(before)
                        if u128::from(before.last) + 1 == from && before.alone == range.alone =>
                    {
                        before.last = range.last;
                    }
                    _ => held.push(range),
                }
            }
            from = at;
            match is_alone {
                true => alone += change,
                false => shared += change,
            }
        }
        Self(held)
    }

    /// The ranges that a client sent; `None` if they are not ascending or overlap.
    pub fn in_order(ranges: LockRanges) -> Option<Self> {
        let ranges: Vec<_> = ranges.into_iter().collect();
        let each = ranges.iter().all(|range| range.first <= range.last);
        let order = ranges.is_sorted_by(|one, next| one.last < next.first);
        (each && order).then_some(Self(ranges))
    }

    /// The list for a call; `None` if there are more than [`LOCK_RANGES_MAX`].
    pub fn to_list(&self) -> Option<LockRanges> {
        LockRanges::try_from(&self.0[..]).ok()
    }

    /// The ranges, ascending.
    pub fn ranges(&self) -> &[LockRange] {
        &self.0
    }

    /// Whether there are no ranges.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ranges that overlap `range`.
    fn overlapping(&self, range: LockRange) -> impl Iterator<Item = &LockRange> {
        let first = self.0.partition_point(|held| held.last < range.first);
        let all = self.0.iter().skip(first);
        all.take_while(move |held| held.first <= range.last)
    }

    /// The first range that conflicts with a lock that another client wants.
    pub fn conflict(&self, wanted: LockRange) -> Option<LockRange> {
        let mut overlaps = self.overlapping(wanted);
        overlaps.find(|held| held.alone || wanted.alone).copied()
    }

    /// Whether every byte of `range` is held, in that kind or exclusively.
    pub fn has(&self, range: LockRange) -> bool {
        let mut at = u128::from(range.first);
        for held in self.overlapping(range) {
            if u128::from(held.first) > at || (range.alone && !held.alone) {
                return false;
            }
            at = u128::from(held.last) + 1;
        }
        at > u128::from(range.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u64, last: u64, alone: bool) -> LockRange {
        LockRange { first, last, alone }
    }

    #[test]
    fn each_byte_is_held_in_its_strongest_kind() {
        let held = HeldRanges::of_all([
            range(0, 9, false),
            range(5, 6, true),
            range(10, u64::MAX, false),
            range(0, 3, false),
        ]);
        let expected = [
            range(0, 4, false),
            range(5, 6, true),
            range(7, u64::MAX, false),
        ];
        assert_eq!(held.ranges(), expected);
        let listed = held.to_list().unwrap();
        assert_eq!(HeldRanges::in_order(listed), Some(held.clone()));
        assert!(held.has(range(0, u64::MAX, false)));
        assert!(held.has(range(5, 6, true)));
        assert!(!held.has(range(5, 7, true)));
        assert_eq!(held.conflict(range(7, 7, false)), None);
        assert_eq!(held.conflict(range(6, 7, false)), Some(range(5, 6, true)));
        assert_eq!(held.conflict(range(8, 8, true)), Some(expected[2]));
        assert_eq!(
            HeldRanges::default().conflict(range(0, u64::MAX, true)),
            None
        );
        assert!(!HeldRanges::of_all([range(1, 9, false)]).has(range(0, 3, false)));
        assert!(!HeldRanges::of_all([range(0, 2, false)]).has(range(0, 3, false)));
        assert!(!HeldRanges::of_all([range(0, 1, true), range(3, 9, true)]).has(range(0, 3, true)));
    }

    #[test]
    fn records_out_of_order_are_refused() {
        for wrong in [
            vec![range(5, 4, true)],
            vec![range(0, 5, true), range(5, 9, false)],
            vec![range(5, 9, true), range(0, 1, true)],
        ] {
            let list = LockRanges::try_from(wrong).unwrap();
            assert_eq!(HeldRanges::in_order(list), None);
        }
        let many = (0..=LOCK_RANGES_MAX as u64).map(|n| range(2 * n, 2 * n, true));
        assert_eq!(HeldRanges::of_all(many).to_list(), None);
    }

    /// Compares with a model that has a lock for each byte.
    #[test]
    fn ranges_are_sets_of_bytes() {
        let mut seed = 11u64;
        let mut next = |limit: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % limit
        };
        for _ in 0..2_000 {
            let mut some = || {
                let (a, b) = (next(24), next(24));
                range(a.min(b), a.max(b), next(2) == 0)
            };
            let ranges: Vec<_> = (0..4).map(|_| some()).collect();
            let wanted = some();
            let held = HeldRanges::of_all(ranges.clone());
            let kind = |byte: u64| {
                let at = ranges.iter().filter(|r| r.first <= byte && byte <= r.last);
                at.map(|r| r.alone).max()
            };
            for byte in 0..24 {
                let found = held.overlapping(range(byte, byte, true)).next();
                assert_eq!(found.map(|r| r.alone), kind(byte));
            }
            let bytes = || wanted.first..=wanted.last;
            let stronger = |byte| kind(byte).is_some_and(|alone| alone || !wanted.alone);
            assert_eq!(held.has(wanted), bytes().all(stronger));
            let hinders = |byte| kind(byte).is_some_and(|alone| alone || wanted.alone);
            assert_eq!(held.conflict(wanted).is_some(), bytes().any(hinders));
            let listed = held.to_list().unwrap();
            assert_eq!(HeldRanges::in_order(listed), Some(held));
        }
    }
}
