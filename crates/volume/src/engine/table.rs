//! A table in memory: the changes of one journal file that are not yet in the base, in key order.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::RwLock;

use super::key::Key;

/// About the memory that an entry takes beside its value; more than it takes in the base.
const ENTRY_BYTES: i64 = 120;

/// Changes by key; `None` hides the key in older levels.
#[derive(Default)]
pub(crate) struct Table {
    map: RwLock<BTreeMap<Key, Option<Bytes>>>,
    bytes: AtomicI64,
    /// The bytes of puts: the growth of the base, apart from the fill of its pages.
    growth: AtomicI64,
    /// Number of the last journal group whose changes are in this table.
    last_group: AtomicU64,
}

/// The amounts that an entry adds to the sizes of its table.
#[derive(Default)]
struct Weight {
    bytes: i64,
    growth: i64,
}

impl Weight {
    fn of(value: &Option<Bytes>) -> Self {
        let bytes = value.as_ref().map_or(0, |value| value.len() as i64) + ENTRY_BYTES;
        let growth = if value.is_some() { bytes } else { 0 };
        Self { bytes, growth }
    }
}

impl Table {
    /// Applies changes. Returns by how much [`Table::growth`] changes.
    pub(crate) fn apply(&self, entries: impl IntoIterator<Item = (Key, Option<Bytes>)>) -> i64 {
        let mut map = self.map.write();
        let mut bytes = 0;
        let mut growth = 0;
        for (key, value) in entries {
            let new = Weight::of(&value);
            let old = map.insert(key, value);
            let old = old.as_ref().map_or(Weight::default(), Weight::of);
            bytes += new.bytes - old.bytes;
            growth += new.growth - old.growth;
        }
        drop(map);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.growth.fetch_add(growth, Ordering::Relaxed);
        growth
    }

    /// Looks up a key: `None` if it is not here, `Some(None)` if it is deleted, or its value.
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

    /// Appends the first entries at or after `from`, `count` at most, deletions included.
    pub(crate) fn page(&self, from: &Key, count: usize, page: &mut VecDeque<(Key, Option<Bytes>)>) {
        let map = self.map.read();
        let entries = map.range(from..).take(count);
        page.extend(entries.map(|(key, value)| (*key, value.clone())));
    }

    /// Runs `work` over all entries in order.
    pub(crate) fn with_all<T>(&self, work: impl FnOnce(&BTreeMap<Key, Option<Bytes>>) -> T) -> T {
        work(&self.map.read())
    }

    /// About the memory in use.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed).max(0) as u64
    }

    /// Bytes of the puts, with keys and without deletes.
    pub(crate) fn growth(&self) -> u64 {
        self.growth.load(Ordering::Relaxed).max(0) as u64
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
