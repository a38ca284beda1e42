//! Holding an epoch in memory: its reader continues to see it until the hold ends.
//!
//! A reader that has begun to read a clone reads it to the end, even if the clone is replaced. A
//! dump of an RW volume reads one moment of it. A hold costs nothing on the disk, and a restart
//! forgets it together with its owner.
//!
//! While any epoch of a group is held, its background removals wait (`reap`), and changes keep the
//! versions that a hold sees (`txn`). A job for the later epochs finds the versions that only a
//! hold sees. This job is in the table before such a change is made, or is added when the last
//! clone that sees the same goes.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::state::core::{Core, Group};

/// The held epochs of a group, with the number of holds of each.
#[derive(Debug, Default)]
pub(crate) struct HeldEpochs {
    epochs: Mutex<BTreeMap<u64, usize>>,
}

impl HeldEpochs {
    /// Returns whether any epoch is held.
    pub(crate) fn any(&self) -> bool {
        !self.epochs.lock().is_empty()
    }

    /// All held epochs.
    pub(crate) fn epochs(&self) -> Vec<u64> {
        self.epochs.lock().keys().copied().collect()
    }

    /// Returns whether an epoch from `first` on and before `end` is held.
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
    /// Holds an epoch that a clone of the group sees at this moment, or that has just ended. The
    /// caller has the group's state locked exclusively.
    pub(crate) fn of(core: &Arc<Core>, group: &Arc<Group>, epoch: u64) -> Self {
        group.rely_on_jobs();
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
