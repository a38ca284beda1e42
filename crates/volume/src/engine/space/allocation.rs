//! Blocks that are kept: for a change that is not made yet, or for a reader.

use std::sync::Arc;

use super::Space;
use crate::engine::batch::Run;

/// Blocks handed out for a change. If this is dropped before the change is made, they are given
/// back.
pub(crate) struct Allocation {
    pub(super) space: Arc<Space>,
    pub(super) runs: Vec<Run>,
}

/// Keeps all blocks that were in use when a reader began from being reused.
pub(crate) struct Pin {
    pub(super) space: Arc<Space>,
    pub(super) moment: u64,
}

impl Allocation {
    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Ends the allocation: the blocks now belong to a batch.
    pub(crate) fn hand_over(mut self) -> Vec<Run> {
        std::mem::take(&mut self.runs)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.space.give_back(&self.runs);
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut inner = self.space.inner.lock();
        if let Some(count) = inner.readers.get_mut(&self.moment) {
            *count -= 1;
            if *count == 0 {
                inner.readers.remove(&self.moment);
                inner.free_released();
            }
        }
    }
}
