//! Lending the file of a body to the kernel, which then reads it without requests.

use std::fs::File;
use std::sync::{Arc, Weak};

use super::Body;

/// The most bytes that are compared with their checksums while a program waits for `open`.
const COMPARED_MAX: u64 = 64 << 20;

/// Alive as long as the file is lent.
pub(super) type Lent = Weak<()>;

impl Body {
    /// The file of the bytes, if all bytes are here and equal those of the server. The file counts
    /// as lent as long as the `Arc` lives. Bytes of another version, or after all bytes were
    /// dropped, go into another file.
    pub fn lend(&mut self) -> Option<(File, Arc<()>)> {
        let notes = self.notes.as_ref()?;
        let is_clean = !self.is_changed() && !self.in_flight && self.recovered.is_none();
        if !is_clean || notes.unchecked_bytes() > COMPARED_MAX {
            return None;
        }
        if !self.gaps(0, self.length).is_empty() {
            return None;
        }
        let file = self.backing.file().ok()??;
        // The kernel reads up to the length of this file.
        if file.metadata().ok()?.len() != self.length {
            return None;
        }
        let lent = self.lent.upgrade().unwrap_or_default();
        self.lent = Arc::downgrade(&lent);
        Some((file, lent))
    }

    /// Whether the file is lent.
    pub fn is_lent(&self) -> bool {
        self.lent.strong_count() > 0
    }

    /// Ends the loan, because the file is removed. The borrower keeps the old file; the contents
    /// get another number.
    pub(super) fn leave_lent(&mut self) {
        if self.is_lent() {
            self.contents += 1;
            self.lent = Weak::new();
        }
    }
}
