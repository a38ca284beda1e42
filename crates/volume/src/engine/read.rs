//! Reading the table: the newest value of a key, the first of several versions, entries in order.
//!
//! Levels are searched newest first. A reader holds the levels as they were when it began. With
//! them it holds a state of the base, whose pages are not reused meanwhile. So a long reading is
//! done in pages ([`Walk`]), each from the state of its moment.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::base::{self, View};
use super::key::Key;
use super::table::Table;
use super::verify;
use super::{Engine, Levels};
use crate::error::{Error, Result};
use crate::state::ticket::may_block;

/// The most entries that a scan takes out of a table at a time. It begins with one.
const TAKEN_MAX: usize = 64;
/// The most entries and bytes in a page of a walk.
const PAGE_ENTRIES: usize = 512;
const PAGE_BYTES: usize = 256 << 10;
/// How long a read waits until the base is opened again, and the interval at which it checks.
const REOPEN_TIME: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(2);

impl Engine {
    /// Counts an entry that is read.
    fn note_read(&self) {
        self.statistics.reads.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the value of a key.
    ///
    /// Inside `nonblocking`, only memory is searched.
    pub(crate) fn get(&self, key: &Key) -> Result<Option<Bytes>> {
        self.note_read();
        let levels = self.levels();
        for table in levels.tables() {
            if let Some(known) = table.get(key) {
                return Ok(known);
            }
        }
        may_block()?;
        self.read_base(&levels, |base| base.get(key))
    }

    /// Reads the base. A flush that finds no room closes the base and opens it again; this waits at
    /// most [`REOPEN_TIME`] for that.
    fn read_base<T>(&self, levels: &Arc<Levels>, read: impl Fn(&View) -> Result<T>) -> Result<T> {
        let begun = Instant::now();
        let mut levels = Arc::clone(levels);
        loop {
            let error = match read(&levels.base) {
                Err(error) => error,
                answer => return answer,
            };
            levels = self.levels_after(&levels, begun).ok_or(error)?;
        }
    }

    /// Returns a state of the base that holds each table of changes completely or not at all.
    /// Returns `None` if there is no such state for [`REOPEN_TIME`].
    pub(crate) fn whole_base(&self) -> Option<Arc<View>> {
        let begun = Instant::now();
        loop {
            let base = Arc::clone(&self.levels().base);
            if base.partial <= base.applied {
                return Some(base);
            }
            if begun.elapsed() >= REOPEN_TIME || self.check_running().is_err() {
                return None;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// After an error of the base of `levels`, returns the levels to read instead, or `None` if the
    /// error is final. Waits a moment while the base is about to be opened again.
    fn levels_after(&self, levels: &Arc<Levels>, begun: Instant) -> Option<Arc<Levels>> {
        let now = self.levels();
        let is_another = !Arc::ptr_eq(&now, levels);
        let waits = levels.base.is_replaced() && self.check_running().is_ok();
        if begun.elapsed() >= REOPEN_TIME || !(is_another || waits) {
            return None;
        }
        if !is_another {
            std::thread::sleep(LOOK_AGAIN);
        }
        Some(now)
    }

    /// Returns the first entry at or after `from` that starts with `prefix`.
    ///
    /// New versions are always inserted before the older ones. So for a versioned key, an entry
    /// found in a newer table is the result, whatever older levels hold.
    pub(crate) fn first_version(&self, from: &Key, prefix: &Key) -> Result<Option<(Key, Bytes)>> {
        self.note_read();
        let levels = self.levels();
        let mut hidden = false;
        for table in levels.tables() {
            if let Some((key, value)) = table.at_or_after(from)
                && key.starts_with(prefix)
            {
                match value {
                    Some(value) if !hidden => return Ok(Some((key, value))),
                    _ => {
                        hidden = true;
                        break;
                    }
                }
            }
        }
        if !hidden {
            may_block()?;
            let found = self.read_base(&levels, |base| base.entries(from)?.next())?;
            return Ok(found.filter(|(key, _)| key.starts_with(prefix)));
        }
        self.scan(from, prefix)?.next()
    }

    /// Returns all entries at or after `from` that start with `prefix`, in order.
    pub(crate) fn scan(&self, from: &Key, prefix: &Key) -> Result<Scan<'_>> {
        may_block()?;
        let levels = self.levels();
        let mut scan = Scan {
            engine: self,
            tables: Vec::new(),
            base: None,
            ahead: None,
            base_done: false,
            at: *from,
            prefix: *prefix,
            levels: Arc::clone(&levels),
        };
        if let Err(error) = scan.begin(levels) {
            scan.renew(error)?;
        }
        Ok(scan)
    }

    /// Like [`Engine::scan`], but in pages: for long readings.
    pub(crate) fn walk(self: &Arc<Self>, from: &Key, prefix: &Key) -> Walk {
        Walk {
            engine: Arc::clone(self),
            prefix: *prefix,
            from: Some(*from),
            page: VecDeque::new(),
        }
    }
}

impl Levels {
    fn tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        std::iter::once(&self.active).chain(&self.frozen)
    }
}

/// The entries of a table that a scan will reach.
struct Ahead {
    table: Arc<Table>,
    entries: VecDeque<(Key, Option<Bytes>)>,
    /// The number of entries that are taken next.
    taken: usize,
    done: bool,
}

impl Ahead {
    /// Returns the first entry at or after `at`. `at` never goes back.
    fn first(&mut self, at: &Key) -> Option<&Key> {
        while self.entries.front().is_some_and(|(key, _)| key < at) {
            self.entries.pop_front();
        }
        if self.entries.is_empty() && !self.done {
            self.table.page(at, self.taken, &mut self.entries);
            self.done = self.entries.len() < self.taken;
            self.taken = (self.taken * 2).min(TAKEN_MAX);
        }
        self.entries.front().map(|(key, _)| key)
    }
}

/// The entries of all levels merged, in key order.
///
/// A scan may miss a put or delete that happens while it runs, if it is up to [`TAKEN_MAX`] entries
/// ahead. If the base is opened again meanwhile, the scan goes on with the levels of that moment.
pub(crate) struct Scan<'a> {
    engine: &'a Engine,
    levels: Arc<Levels>,
    tables: Vec<Ahead>,
    /// `None` until the scan has begun.
    base: Option<base::Entries>,
    ahead: Option<(Key, Bytes)>,
    base_done: bool,
    at: Key,
    prefix: Key,
}

impl Scan<'_> {
    /// Begins to read these levels at the present place.
    fn begin(&mut self, levels: Arc<Levels>) -> Result<()> {
        let tables = levels.tables().map(|table| Ahead {
            table: Arc::clone(table),
            entries: VecDeque::new(),
            taken: 1,
            done: false,
        });
        self.tables = tables.collect();
        self.levels = levels;
        self.base = None;
        self.base = Some(self.levels.base.entries(&self.at)?);
        Ok(())
    }

    /// After an error of the base: begins again with the levels that replace these, or returns the
    /// error.
    fn renew(&mut self, mut error: Error) -> Result<()> {
        let begun = Instant::now();
        while let Some(levels) = self.engine.levels_after(&self.levels, begun) {
            match self.begin(levels).and_then(|()| self.read_ahead()) {
                Ok(()) => return Ok(()),
                Err(another) => error = another,
            }
        }
        Err(error)
    }

    /// Takes the next entry from the base.
    fn read_ahead(&mut self) -> Result<()> {
        self.ahead = match &mut self.base {
            Some(base) => base.next()?,
            None => None,
        };
        self.base_done = self.ahead.is_none();
        Ok(())
    }

    /// The next entry.
    pub(crate) fn next(&mut self) -> Result<Option<(Key, Bytes)>> {
        loop {
            if self.ahead.is_none()
                && !self.base_done
                && let Err(error) = self.read_ahead()
            {
                self.renew(error)?;
            }
            // Of several entries with one key, the newest table wins; the base comes last.
            let mut best: Option<(usize, Key)> = None;
            for (index, table) in self.tables.iter_mut().enumerate() {
                if let Some(key) = table.first(&self.at)
                    && best.is_none_or(|(_, known)| *key < known)
                {
                    best = Some((index, *key));
                }
            }
            let from_base = self.ahead.as_ref().map(|(key, _)| *key);
            let in_base = match (best, from_base) {
                (Some((_, known)), Some(key)) => key < known,
                (None, Some(_)) => true,
                (_, None) => false,
            };
            let found = if in_base {
                self.ahead.take().map(|(key, value)| (key, Some(value)))
            } else {
                if from_base.is_some() && from_base == best.map(|(_, key)| key) {
                    self.ahead = None;
                }
                best.and_then(|(index, _)| self.tables[index].entries.pop_front())
            };
            let Some((key, value)) = found else {
                return Ok(None);
            };
            if !key.starts_with(&self.prefix) {
                return Ok(None);
            }
            self.at = key.successor();
            self.engine.note_read();
            if let Some(value) = value {
                return Ok(Some((key, value)));
            }
        }
    }
}

/// The entries that start with a prefix, in order, a page at a time. Nothing is held between pages:
/// the walk sees a change behind the present page as it is when it gets there.
pub(crate) struct Walk {
    engine: Arc<Engine>,
    prefix: Key,
    /// The key at which the next page begins; `None` after the last page.
    from: Option<Key>,
    page: VecDeque<(Key, Bytes)>,
}

impl Walk {
    /// Returns the next entry. After an error the walk can go on behind the damage: see
    /// [`Walk::skip_unreadable`].
    pub(crate) fn next(&mut self) -> Result<Option<(Key, Bytes)>> {
        if self.page.is_empty() {
            self.load()?;
        }
        Ok(self.page.pop_front())
    }

    /// Goes on at `key`, which is not before the present place.
    pub(crate) fn skip_to(&mut self, key: Key) {
        while self.page.front().is_some_and(|(known, _)| *known < key) {
            self.page.pop_front();
        }
        if self.page.is_empty() {
            self.from = self.from.map(|from| from.max(key));
        }
    }

    /// After an error: goes on at the next place that can be read. Returns false if there is none.
    pub(crate) fn skip_unreadable(&mut self) -> bool {
        let Some(from) = self.from else {
            return false;
        };
        let end = self.prefix.after_prefix();
        let mut is_readable = |key: &Key| {
            *key >= end || {
                let scan = self.engine.scan(key, &self.prefix);
                scan.and_then(|mut scan| scan.next()).is_ok()
            }
        };
        match verify::skip(&from, &mut is_readable) {
            Some(key) if key < end => {
                self.from = Some(key);
                true
            }
            _ => false,
        }
    }

    fn load(&mut self) -> Result<()> {
        let Some(from) = self.from else {
            return Ok(());
        };
        let mut scan = self.engine.scan(&from, &self.prefix)?;
        let mut bytes = 0;
        while self.page.len() < PAGE_ENTRIES && bytes < PAGE_BYTES {
            match scan.next() {
                Ok(Some((key, value))) => {
                    bytes += value.len();
                    self.from = Some(key.successor());
                    self.page.push_back((key, value));
                }
                Ok(None) => {
                    self.from = None;
                    break;
                }
                // The entries that were read before the error come first.
                Err(_) if !self.page.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk, SimDisk};
    use crate::engine::batch::Batch;
    use crate::options::Options;

    const ENTRIES: u32 = 2000;

    fn key(n: u32) -> Key {
        Key::vnode(7, n, 1)
    }

    fn put(engine: &Engine, range: std::ops::Range<u32>, value: u8) {
        for n in range {
            let mut batch = Batch::new();
            batch.put(key(n), vec![value; 300].into());
            engine.commit(batch).unwrap();
        }
    }

    #[test]
    fn a_scan_goes_on_while_a_full_disk_has_the_base_opened_again() {
        let disk = SimDisk::new(64 << 20);
        let options = Options {
            journal_bytes: 1 << 20,
            reserve_bytes: 0,
            base_cache_bytes: 0,
            ..Options::default()
        };
        let engine = Engine::open(Arc::new(disk.clone()), options).unwrap();
        put(&engine, 0..ENTRIES, 1);
        engine.flush().unwrap();
        let prefix = Key::of_group(crate::engine::key::Kind::Vnode, 7);
        let mut scan = engine.scan(&prefix, &prefix).unwrap();
        for n in 0..100 {
            assert_eq!(scan.next().unwrap().unwrap().0, key(n));
        }
        // A flush finds no room, and the table is opened again.
        let space = disk.space().unwrap();
        disk.set_capacity(space.total - space.free);
        put(&engine, ENTRIES..ENTRIES + 500, 2);
        assert!(matches!(engine.flush(), Err(Error::DiskFull)));
        assert!(scan.levels.base.is_replaced());
        for n in 100..ENTRIES {
            let (found, value) = scan.next().unwrap().unwrap();
            assert_eq!((found, value[0]), (key(n), 1));
            if n == ENTRIES / 2 {
                disk.set_capacity(64 << 20);
            }
        }
    }
}
