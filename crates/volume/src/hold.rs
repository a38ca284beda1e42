//! Holding an epoch in memory: what saw it goes on seeing it until it lets go.
//!
//! A clone that was replaced is read to the end by who had begun; a dump of an RW volume reads one
//! moment of it. A hold costs nothing on the disk, and a restart has forgotten it, like its owner.
//! While any epoch of a group is held its background removals wait (`reap`), and changes keep the
//! versions that a hold sees (`txn`). What only a hold sees is found by a job for the epochs after it,
//! which is in the table before such a change is made, or comes there when the last clone goes that
//! sees the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::core::{Core, Group};

/// Epochs of a group that are held, with how often each is.
#[derive(Debug, Default)]
pub(crate) struct Held {
    epochs: Mutex<BTreeMap<u64, usize>>,
}

impl Held {
    /// Whether any is.
    pub(crate) fn any(&self) -> bool {
        !self.epochs.lock().is_empty()
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
