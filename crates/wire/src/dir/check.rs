//! Checking a whole directory: is everything in it consistent?

use std::collections::HashSet;

use super::page::{
    FIRST_SLOT_PAGE_0, HEAD_SLOTS, MAP_PAGES, NO_PAGE, PAGE_SLOTS, head, header, map_free,
};
use super::{Corruption, DirError, Directory, ReadPages, hash, slots};

/// Chains of a directory.
const CHAINS: usize = 128;

/// The contents of a sound directory, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Pages.
    pub pages: usize,
    /// Entries, `.` and `..` included.
    pub entries: usize,
    /// Unused slots.
    pub free_slots: usize,
}

impl<P: ReadPages> Directory<P> {
    /// Follows every chain and compares the entries with bitmaps and counts.
    ///
    /// # Errors
    /// [`DirError::Corrupt`] for the first damage, or the owner's error.
    #[expect(
        clippy::indexing_slicing,
        reason = "a directory has a page; with_entry has found the page of the slot"
    )]
    pub fn check(&self) -> Result<Summary, DirError<P::Error>> {
        let count = self.count()?;
        // The slots that headers and entries take, page by page.
        let mut used = vec![(1u64 << HEAD_SLOTS) - 1; count];
        used[0] = (1u64 << FIRST_SLOT_PAGE_0) - 1;
        let mut entries = 0;
        let (mut this, mut parent) = (0, 0);
        // Names of one chain: of two equal names one would hide the other.
        let mut names = HashSet::new();
        for chain in 0..CHAINS {
            names.clear();
            let mut slot = head(&*self.page(0)?, chain);
            while slot != 0 {
                let (name, next) =
                    self.with_entry(slot, |entry, next| (entry.name.to_vec(), next))?;
                if hash(&name) != chain {
                    return Err(Corruption::WrongChain(slot).into());
                }
                let (index, place) = (slot as usize / PAGE_SLOTS, slot as usize % PAGE_SLOTS);
                let taken = slots(name.len());
                if place + taken > PAGE_SLOTS {
                    return Err(Corruption::Name(slot).into());
                }
                let mask = ((1u64 << taken) - 1) << place;
                // An entry that the walk meets twice (a loop, or two chains that join) overlaps
                // itself. So the walk takes at most as many steps as there are slots.
                if used[index] & mask != 0 {
                    return Err(Corruption::Overlap(slot).into());
                }
                used[index] |= mask;
                entries += 1;
                match &*name {
                    b"." => this = slot,
                    b".." => parent = slot,
                    _ => {}
                }
                if !names.insert(name) {
                    return Err(Corruption::Duplicate(slot).into());
                }
                slot = next;
            }
        }
        if (this, parent) != (13, 14) {
            return Err(Corruption::Dots.into());
        }
        let mut free_slots = 0;
        for (index, &used) in used.iter().enumerate() {
            if header::bitmap(&*self.page(index)?) != used {
                return Err(Corruption::Bitmap(index).into());
            }
            let free = used.count_zeros() as usize;
            free_slots += free;
            if index < MAP_PAGES && usize::from(map_free(&*self.page(0)?, index)) != free {
                return Err(Corruption::FreeCount(index).into());
            }
        }
        for index in count..MAP_PAGES {
            if map_free(&*self.page(0)?, index) != NO_PAGE {
                return Err(Corruption::FreeCount(index).into());
            }
        }
        Ok(Summary {
            pages: count,
            entries,
            free_slots,
        })
    }
}
