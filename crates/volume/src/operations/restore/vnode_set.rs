//! The vnodes of the old contents that stay: a set of numbers, as bitmaps where they are close
//! together.

use std::collections::BTreeMap;

/// Numbers in one part.
const PART: u32 = 1024;

/// A set of vnode numbers. Only existing vnodes are inserted, so it is smaller than their records.
#[derive(Debug, Default)]
pub(super) struct VnodeSet(BTreeMap<u32, Box<[u64; PART as usize / 64]>>);

impl VnodeSet {
    pub(super) fn insert(&mut self, vnode: u32) {
        let (word, bit) = place(vnode);
        let part = self.0.entry(vnode / PART).or_default();
        part[word] |= bit;
    }

    pub(super) fn contains(&self, vnode: u32) -> bool {
        let (word, bit) = place(vnode);
        let part = self.0.get(&(vnode / PART));
        part.is_some_and(|part| part[word] & bit != 0)
    }
}

fn place(vnode: u32) -> (usize, u64) {
    let inside = vnode % PART;
    (inside as usize / 64, 1 << (inside % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_holds_the_inserted_entries_alone() {
        let mut kept = VnodeSet::default();
        let numbers = [1, 63, 64, 1023, 1024, 77_777, u32::MAX];
        for vnode in numbers {
            kept.insert(vnode);
        }
        for vnode in (0..100_000).chain([u32::MAX - 1, u32::MAX]) {
            assert_eq!(kept.contains(vnode), numbers.contains(&vnode), "{vnode}");
        }
    }
}
