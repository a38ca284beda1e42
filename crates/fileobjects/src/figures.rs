//! Counters of object storage.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

/// Figures of object storage.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct ObjectFigures {
    /// Reads from objects for clients without support for objects.
    pub fetched: u64,
    /// Those that failed.
    pub fetches_failed: u64,
    /// Stores into objects for such clients.
    pub stored: u64,
    /// Those that failed.
    pub stores_failed: u64,
    /// Files whose bytes were moved from this server to objects.
    pub moved_out: u64,
    /// Objects that could not be used and were skipped.
    pub problems: u64,
    /// How often old versions were removed.
    pub pruned: u64,
    /// Copies that were made in archives.
    pub copies_made: u64,
    /// Bytes of these copies.
    pub copied_bytes: u64,
    /// Copies that could not be made.
    pub copies_failed: u64,
    /// Copies that were found to be bad.
    pub copies_bad: u64,
    /// Copies that were read back and had the recorded bytes.
    pub copies_verified: u64,
    /// Bytes of these copies.
    pub verified_bytes: u64,
    /// Files that were wiped.
    pub wiped: u64,
    /// Bytes of these files.
    pub wiped_bytes: u64,
    /// Files that were recalled.
    pub recalled: u64,
    /// Bytes of these files.
    pub recalled_bytes: u64,
    /// Recalls that failed.
    pub recalls_failed: u64,
    /// Recalls in progress.
    pub recalls_running: u64,
}

/// Counters of object storage.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Stores into objects by this server, and those that failed.
    pub(crate) stored: AtomicU64,
    pub(crate) stores_failed: AtomicU64,
    /// Reads from objects by this server, and those that failed.
    pub(crate) fetched: AtomicU64,
    pub(crate) fetches_failed: AtomicU64,
    /// Files whose bytes were moved from this server to objects.
    pub(crate) moved_out: AtomicU64,
    /// Objects that could not be used and were skipped.
    pub(crate) problems: AtomicU64,
    /// How often old versions were removed.
    pub(crate) pruned: AtomicU64,
    /// Copies made in archives, those that could not be made, and those found to be bad.
    pub(crate) copies_made: AtomicU64,
    pub(crate) copied_bytes: AtomicU64,
    pub(crate) copies_failed: AtomicU64,
    pub(crate) copies_bad: AtomicU64,
    /// Copies that were read back and had the recorded bytes.
    pub(crate) copies_verified: AtomicU64,
    pub(crate) verified_bytes: AtomicU64,
    /// Files that were wiped.
    pub(crate) wiped: AtomicU64,
    pub(crate) wiped_bytes: AtomicU64,
    /// Files that were recalled, and recalls that failed.
    pub(crate) recalled: AtomicU64,
    pub(crate) recalled_bytes: AtomicU64,
    pub(crate) recalls_failed: AtomicU64,
    /// How often garbage was removed.
    pub(crate) collections: AtomicU64,
}

impl Counters {
    /// The present figures, without those that are no counters.
    pub(crate) fn figures(&self) -> ObjectFigures {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ObjectFigures {
            fetched: load(&self.fetched),
            fetches_failed: load(&self.fetches_failed),
            stored: load(&self.stored),
            stores_failed: load(&self.stores_failed),
            moved_out: load(&self.moved_out),
            problems: load(&self.problems),
            pruned: load(&self.pruned),
            copies_made: load(&self.copies_made),
            copied_bytes: load(&self.copied_bytes),
            copies_failed: load(&self.copies_failed),
            copies_bad: load(&self.copies_bad),
            copies_verified: load(&self.copies_verified),
            verified_bytes: load(&self.verified_bytes),
            wiped: load(&self.wiped),
            wiped_bytes: load(&self.wiped_bytes),
            recalled: load(&self.recalled),
            recalled_bytes: load(&self.recalled_bytes),
            recalls_failed: load(&self.recalls_failed),
            recalls_running: 0,
        }
    }

    /// Adds to a counter of bytes.
    pub(crate) fn add(counter: &AtomicU64, bytes: u64) {
        counter.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
