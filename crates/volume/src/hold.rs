//! Holding an epoch in memory: what saw it goes on seeing it until it lets go.
//!
//! A clone that was replaced is read to the end by who had begun; a dump of an RW volume reads one
//! moment of it. A hold costs nothing on the disk, and a restart has forgotten it, like its owner.
//! While any epoch of a group is held its background removals wait (`reap`), and changes keep the
//! versions that a hold sees (`txn`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::core::{Core, Group};

/// Epochs of a group that are held, with how often each is.
#[derive(Debug, Default)]
pub(crate) struct Held {
    epochs: Mutex<BTreeMap<u64, usize>>,
    /// Holds that were ever taken, those that have ended too.
    taken: AtomicU64,
}

impl Held {
    /// Whether any is.
    pub(crate) fn any(&self) -> bool {
        !self.epochs.lock().is_empty()
    }

    /// How many holds were taken so far. Taken under the group's exclusive lock; a look under the
    /// shared one is exact.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Acquire)
    }

    /// All of them.
    pub(crate) fn epochs(&self) -> Vec<u64> {
        self.epochs.lock().keys().copied().collect()
    }

    /// Whether one is from `first` on and before `end`.
    pub(crate) fn any_in(&self, first: u64, end: u64) -> bool {
        self.epochs.lock().range(first..end).next().is_some()
    }
}

/// One hold of an epoch; it ends when this is dropped.
pub(crate) struct Hold {
    core: Arc<Core>,
    group: Arc<Group>,
    epoch: u64,
}

impl std::fmt::Debug for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hold({:?}, epoch {})", self.group.id, self.epoch)
    }
}

impl Hold {
    /// Holds an epoch that a clone of the group sees at this moment, or that has just ended: the
    /// caller has the group's state locked.
    pub(crate) fn of(core: &Arc<Core>, group: &Arc<Group>, epoch: u64) -> Self {
        group.held.taken.fetch_add(1, Ordering::AcqRel);
        *group.held.epochs.lock().entry(epoch).or_default() += 1;
        Self {
            core: Arc::clone(core),
            group: Arc::clone(group),
            epoch,
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut held = self.group.held.epochs.lock();
        if let Some(count) = held.get_mut(&self.epoch) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.epoch);
            }
        }
        if held.is_empty() {
            drop(held);
            self.core.reaper.wake();
        }
    }
}
