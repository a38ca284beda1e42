//! A body's file for somebody who reads it by himself.

use std::fs::File;
use std::sync::{Arc, Weak};

use super::Body;

/// Bytes that are compared with their checksums while somebody waits for an open.
const COMPARED_MAX: u64 = 64 << 20;

/// The bytes of one file of the cache, for as long as somebody has it.
pub(super) type Lent = Weak<()>;

impl Body {
    /// Its file, with a sign that it is lent, if all of it is there as the server has it. What
    /// comes of another version goes into another file, as does what comes after all was forgotten.
    pub fn lend(&mut self) -> Option<(File, Arc<()>)> {
        let kept = self.kept.as_ref()?;
        let is_clean = !self.is_changed() && !self.in_flight && self.left_over.is_none();
        if !is_clean || kept.unchecked_bytes() > COMPARED_MAX {
            return None;
        }
        if !self.gaps(0, self.length).is_empty() {
            return None;
        }
        let file = self.backing.file().ok()??;
        // Whoever reads it by himself goes by its own length.
        if file.metadata().ok()?.len() != self.length {
            return None;
        }
        let lent = self.lent.upgrade().unwrap_or_default();
        self.lent = Arc::downgrade(&lent);
        Some((file, lent))
    }

    /// Whether somebody reads its file by himself.
    pub fn is_lent(&self) -> bool {
        self.lent.strong_count() > 0
    }

    /// Its file goes: whoever has it keeps it, and what comes next is not that.
    pub(super) fn leave_lent(&mut self) {
        if self.is_lent() {
            self.contents += 1;
            self.lent = Weak::new();
        }
    }
}
