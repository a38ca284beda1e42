//! Keeps the cache within its size.

use std::ops::Range;

use super::{CHUNK, Reads};
use crate::vnode::Vnode;

impl Reads {
    /// Makes room when the cache exceeds its size. Drops the clean bytes of whole files, least
    /// recently used files first. Dirty bytes stay.
    pub(crate) fn make_room(&self, reading: Option<(&Vnode, Range<u64>)>) {
        let size = self.env.size();
        if self.env.used() <= size {
            return;
        }
        // One file alone may be larger than the cache. Then the bytes before the current range go,
        // and for backward reads the bytes far behind it.
        let around = reading.map(|(vnode, range)| {
            let ahead = (self.ahead_max() + 1) * CHUNK;
            let ahead = range.end.saturating_add(ahead);
            (vnode, [0..range.start, ahead..u64::MAX])
        });
        self.shrink(size - size / 10, size, around);
    }

    /// Drops bytes until the cache uses at most `goal`. Of the file in `around` only the given
    /// ranges are dropped, last of all, and only until `enough` is reached.
    pub(super) fn shrink(&self, goal: u64, enough: u64, around: Option<(&Vnode, [Range<u64>; 2])>) {
        let used = || self.env.used();
        // Files at rest, whose vnodes are not in memory, are dropped first.
        if let Some(index) = self.vnodes.index() {
            index.evict(goal);
        }
        let all = self.vnodes.by_age(|vnode| !vnode.is_directory());
        let current = around.as_ref().map(|(vnode, _)| vnode.key());
        for vnode in &all {
            if used() <= goal {
                return;
            }
            if current != Some(vnode.key()) {
                let mut body = vnode.body.lock();
                if body.valid_bytes() > 0 && !body.is_lent() {
                    body.forget_clean();
                }
            }
        }
        let Some((vnode, ranges)) = around else {
            return;
        };
        for range in ranges {
            if used() <= enough {
                return;
            }
            if let Err(cause) = vnode.body.lock().forget_range(range) {
                tracing::warn!(%cause, "the cache cannot make room");
            }
        }
    }
}
