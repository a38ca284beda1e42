//! Offsets inside a page, and nothing else.
//!
//! Every function takes places below 64. The callers check places that come from the bytes.

#![expect(
    clippy::indexing_slicing,
    reason = "places are below 64 and heads below 128: each lies within a page of 2,048 bytes"
)]

use super::{NAME_MAX, PAGE_SIZE, Page, VnodeRef};
use crate::ids::{Uniquifier, VnodeId};

/// Slots of a page.
pub(super) const PAGE_SLOTS: usize = 64;
/// Bytes of a slot.
const SLOT_SIZE: usize = 32;
/// Slots of the header of every page.
pub(super) const HEAD_SLOTS: usize = 1;
/// The first slot of page 0 that an entry may take.
pub(super) const FIRST_SLOT_PAGE_0: usize = 13;
/// Pages that have a count of free slots in page 0.
pub(super) const MAP_PAGES: usize = 128;
/// The count of a page that does not exist.
pub(super) const NO_PAGE: u8 = 64;

const MAGIC: [u8; 2] = 1234u16.to_be_bytes();
const MAP: usize = 32;
const HEADS: usize = 160;
const FIRST: u8 = 1;
const NAME_OFFSET: usize = 12;

fn read_u16(page: &Page, at: usize) -> u16 {
    u16::from_be_bytes([page[at], page[at + 1]])
}

fn read_u32(page: &Page, at: usize) -> u32 {
    u32::from_be_bytes([page[at], page[at + 1], page[at + 2], page[at + 3]])
}

/// The header of every page: magic and bitmap.
pub(super) mod header {
    use super::{MAGIC, PAGE_SLOTS, Page};

    const BITMAP: usize = 5;

    pub(in crate::dir) fn has_magic(page: &Page) -> bool {
        page[2..4] == MAGIC
    }

    /// The bitmap as a number: bit n is slot n.
    pub(in crate::dir) fn bitmap(page: &Page) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&page[BITMAP..BITMAP + 8]);
        u64::from_le_bytes(bytes)
    }

    fn set_bitmap(page: &mut Page, bitmap: u64) {
        page[BITMAP..BITMAP + 8].copy_from_slice(&bitmap.to_le_bytes());
    }

    /// Bits `place` to `place + count`, of which there are at most 13.
    fn mask(place: usize, count: usize) -> u64 {
        ((1u64 << count) - 1) << place
    }

    pub(in crate::dir) fn all_used(page: &Page, place: usize, count: usize) -> bool {
        bitmap(page) & mask(place, count) == mask(place, count)
    }

    pub(in crate::dir) fn set_used(page: &mut Page, place: usize, count: usize) {
        let bits = bitmap(page) | mask(place, count);
        set_bitmap(page, bits);
    }

    pub(in crate::dir) fn set_free(page: &mut Page, place: usize, count: usize) {
        let bits = bitmap(page) & !mask(place, count);
        set_bitmap(page, bits);
    }

    /// The first used slot from `place` on.
    pub(in crate::dir) fn next_used(page: &Page, place: usize) -> Option<usize> {
        if place >= PAGE_SLOTS {
            return None;
        }
        let left = bitmap(page) >> place;
        (left != 0).then(|| place + left.trailing_zeros() as usize)
    }

    /// The lowest run of `count` free slots from `first` on. Slots before `first` belong to the
    /// page itself and count as used, whatever the bitmap has for them.
    pub(in crate::dir) fn free_run(page: &Page, first: usize, count: usize) -> Option<usize> {
        let free = !(bitmap(page) | mask(0, first));
        // Bit n of `starts`: slots n to n + count are free. Slots past 63 are not.
        let starts = (1..count).fold(free, |starts, distance| starts & (free >> distance));
        (starts != 0).then(|| starts.trailing_zeros() as usize)
    }
}

/// Writes the header of page `index`, and for page 0 the empty map and chains.
pub(super) fn init_page(page: &mut Page, index: usize) {
    page[2..4].copy_from_slice(&MAGIC);
    let reserved = if index == 0 {
        FIRST_SLOT_PAGE_0
    } else {
        HEAD_SLOTS
    };
    // The count of free slots when the page was made. No reader uses it, and it is never updated.
    page[4] = (PAGE_SLOTS - reserved) as u8;
    for place in 0..reserved {
        header::set_used(page, place, 1);
    }
    if index == 0 {
        set_page_count(page, 1);
        page[MAP..MAP + MAP_PAGES].fill(NO_PAGE);
        set_map_free(page, 0, (PAGE_SLOTS - FIRST_SLOT_PAGE_0) as u8);
    }
}

/// The number of pages. In directories of the old style it is counted from the map.
pub(super) fn page_count_field(page_0: &Page) -> usize {
    match read_u16(page_0, 0) {
        0 => page_0[MAP..MAP + MAP_PAGES]
            .iter()
            .filter(|&&free| free != NO_PAGE)
            .count(),
        count => usize::from(count),
    }
}

pub(super) fn set_page_count(page_0: &mut Page, count: usize) {
    page_0[..2].copy_from_slice(&(count as u16).to_be_bytes());
}

/// The free slots of page `index`, below 128.
pub(super) fn map_free(page_0: &Page, index: usize) -> u8 {
    page_0[MAP + index]
}

pub(super) fn set_map_free(page_0: &mut Page, index: usize, free: u8) {
    page_0[MAP + index] = free;
}

/// The first slot of a chain, 0 for an empty one.
pub(super) fn head(page_0: &Page, chain: usize) -> u32 {
    u32::from(read_u16(page_0, HEADS + 2 * chain))
}

pub(super) fn set_head(page_0: &mut Page, chain: usize, slot: u32) {
    let at = HEADS + 2 * chain;
    page_0[at..at + 2].copy_from_slice(&(slot as u16).to_be_bytes());
}

/// An entry in a page.
pub(super) struct RawEntry<'a> {
    pub(super) next: u32,
    pub(super) vnode: VnodeId,
    pub(super) uniquifier: Uniquifier,
    /// `None` if the name is empty, over 255 bytes long, or does not end inside the page.
    pub(super) name: Option<&'a [u8]>,
}

/// The entry that begins in slot `place`; `None` if the slot is not the first of an entry.
pub(super) fn entry(page: &Page, place: usize) -> Option<RawEntry<'_>> {
    let at = place * SLOT_SIZE;
    if page[at] != FIRST {
        return None;
    }
    let room = &page[at + NAME_OFFSET..PAGE_SIZE.min(at + NAME_OFFSET + NAME_MAX + 1)];
    let name = room
        .iter()
        .position(|&byte| byte == 0)
        .filter(|&len| len != 0);
    Some(RawEntry {
        next: u32::from(read_u16(page, at + 2)),
        vnode: VnodeId(read_u32(page, at + 4)),
        uniquifier: Uniquifier(read_u32(page, at + 8)),
        name: name.map(|len| &room[..len]),
    })
}

/// Writes an entry into slots reserved for it. The caller guarantees that the name ends inside the
/// page.
pub(super) fn write_entry(page: &mut Page, place: usize, name: &[u8], target: VnodeRef, next: u32) {
    zero(page, place, super::slots(name.len()));
    let at = place * SLOT_SIZE;
    page[at] = FIRST;
    page[at + 4..at + 8].copy_from_slice(&target.vnode.0.to_be_bytes());
    page[at + 8..at + 12].copy_from_slice(&target.uniquifier.0.to_be_bytes());
    page[at + NAME_OFFSET..at + NAME_OFFSET + name.len()].copy_from_slice(name);
    set_next(page, place, next);
}

pub(super) fn set_next(page: &mut Page, place: usize, next: u32) {
    let at = place * SLOT_SIZE + 2;
    page[at..at + 2].copy_from_slice(&(next as u16).to_be_bytes());
}

pub(super) fn zero(page: &mut Page, place: usize, count: usize) {
    page[place * SLOT_SIZE..(place + count) * SLOT_SIZE].fill(0);
}
