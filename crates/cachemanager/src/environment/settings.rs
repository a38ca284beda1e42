//! The settings that can be changed while the cache is in use.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::environment::Environment;

/// The most names that replace `@sys`. Source: `MAXNUMSYSNAMES` of OpenAFS.
pub const SYSNAMES_MAX: usize = 16;

/// The smallest size of a cache, in bytes. It has room for a store and some chunks ahead of a
/// reader.
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

impl Environment {
    /// The most bytes that the cache keeps.
    pub(crate) fn size(&self) -> u64 {
        self.settings.size.load(Ordering::Relaxed)
    }

    /// Sets the size. The caller drops bytes above it.
    pub(crate) fn set_size(&self, bytes: u64) {
        self.settings.size.store(bytes, Ordering::Relaxed);
    }

    /// Sets the names that replace `@sys`. The caller ends the promises about directories.
    pub(crate) fn set_sysnames(&self, names: &[String]) {
        *self.settings.sysnames.write() = names.into();
    }

    /// The names that replace `@sys`. The cache takes the first one that exists.
    pub(crate) fn sysnames(&self) -> Arc<[String]> {
        self.settings.sysnames.read().clone()
    }

    /// The number of bytes of a file that may stay dirty when a program closes it.
    pub(crate) fn store_behind(&self) -> u64 {
        self.settings.store_behind()
    }

    /// Sets that number, for files that have no value of their own.
    pub(crate) fn set_store_behind(&self, bytes: u64) {
        self.settings.store_behind.store(bytes, Ordering::Relaxed);
    }
}
