//! Changes that are in the journal and not yet in the base: one ordered table a journal file.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::RwLock;

use super::key::Key;

/// Memory that an entry takes beside its value, about.
const ENTRY_BYTES: usize = 120;

/// Changes by key; `None` hides what lies below.
#[derive(Default)]
pub(crate) struct Table {
    map: RwLock<BTreeMap<Key, Option<Bytes>>>,
    bytes: AtomicUsize,
    /// Number of the last journal group whose changes are here.
    last_group: AtomicU64,
}

impl Table {
    /// Puts changes in.
    pub(crate) fn apply(&self, entries: impl IntoIterator<Item = (Key, Option<Bytes>)>) {
        let mut map = self.map.write();
        let mut grown = 0usize;
        let mut shrunk = 0usize;
        for (key, value) in entries {
            grown += value.as_ref().map_or(0, Bytes::len) + ENTRY_BYTES;
            if let Some(old) = map.insert(key, value) {
                shrunk += old.map_or(0, |old| old.len()) + ENTRY_BYTES;
            }
        }
        drop(map);
        self.bytes.fetch_add(grown, Ordering::Relaxed);
        self.bytes.fetch_sub(shrunk, Ordering::Relaxed);
    }

    /// What is known of a key here: nothing, that it is gone, or its value.
    pub(crate) fn get(&self, key: &Key) -> Option<Option<Bytes>> {
        self.map.read().get(key).cloned()
    }

    /// The first entry at or after `from`, deletions included.
    pub(crate) fn at_or_after(&self, from: &Key) -> Option<(Key, Option<Bytes>)> {
        let map = self.map.read();
        map.range(from..)
            .next()
            .map(|(key, value)| (*key, value.clone()))
    }

    /// Runs `work` over all entries in order.
    pub(crate) fn with_all<T>(&self, work: impl FnOnce(&BTreeMap<Key, Option<Bytes>>) -> T) -> T {
        work(&self.map.read())
    }

    /// Memory in use, about.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.map.read().is_empty()
    }

    pub(crate) fn last_group(&self) -> u64 {
        self.last_group.load(Ordering::Acquire)
    }

    pub(crate) fn set_last_group(&self, group: u64) {
        self.last_group.store(group, Ordering::Release);
    }
}
