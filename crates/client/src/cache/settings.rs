//! What can be set while the cache is in use.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use super::Cache;

/// Names that `@sys` stands for at most. Source: `MAXNUMSYSNAMES` of OpenAFS.
pub const SYSNAMES_MAX: usize = 16;

/// The smallest cache, in bytes: a store and some chunks ahead of a reader.
pub const SIZE_MIN: u64 = 64 << 20;

#[derive(Debug)]
pub(crate) struct Settings {
    size: AtomicU64,
    store_behind: AtomicU64,
    sysnames: RwLock<Arc<[String]>>,
}

impl Settings {
    pub(crate) fn new(size: u64, sysnames: &[String]) -> Self {
        Self {
            size: size.into(),
            store_behind: AtomicU64::new(0),
            sysnames: RwLock::new(sysnames.into()),
        }
    }

    pub(crate) fn store_behind(&self) -> u64 {
        self.store_behind.load(Ordering::Relaxed)
    }
}

impl Cache {
    /// Bytes that are kept at most.
    pub fn size(&self) -> u64 {
        self.settings.size.load(Ordering::Relaxed)
    }

    /// Sets that: what is too much goes at once, but for what is dirty.
    pub fn set_size(&self, bytes: u64) {
        self.settings.size.store(bytes, Ordering::Relaxed);
        self.make_room(None);
    }

    /// What `@sys` stands for: the first of these that is there.
    pub fn sysnames(&self) -> Arc<[String]> {
        self.settings.sysnames.read().clone()
    }

    /// Sets that, for names that are looked up from now on.
    pub fn set_sysnames(&self, names: &[String]) {
        *self.settings.sysnames.write() = names.into();
        // What a name with @sys led to is no longer true.
        self.distrust_directories();
    }

    /// Bytes of a file that may wait to be stored when a program closes it.
    pub fn store_behind(&self) -> u64 {
        self.settings.store_behind()
    }

    /// Sets that, for files that have no value of their own.
    pub fn set_store_behind(&self, bytes: u64) {
        self.settings.store_behind.store(bytes, Ordering::Relaxed);
    }
}
