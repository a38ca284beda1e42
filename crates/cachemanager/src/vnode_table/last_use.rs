//! The time of the last use of a vnode, in ticks of the table.

use std::sync::atomic::{AtomicU64, Ordering};

/// See the head of the file.
#[derive(Debug, Default)]
pub(crate) struct LastUse(AtomicU64);

impl LastUse {
    /// The tick of the last use.
    pub(super) fn tick(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// The vnode is used at this tick.
    pub(super) fn set(&self, tick: u64) {
        self.0.store(tick, Ordering::Relaxed);
    }
}
