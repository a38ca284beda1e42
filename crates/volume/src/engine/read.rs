//! Reading the table: of a key the newest value, of versions the first, entries in order.
//!
//! Levels are looked at newest first. Whoever reads holds the levels as they were when it began, with
//! them a state of the base, whose pages are then not used again. So what reads for long reads in
//! pages ([`Walk`]), each of the state of its moment.

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
use crate::ticket::may_block;

/// Entries that a scan takes out of a table at a time, at most; it begins with one.
const TAKEN_MAX: usize = 64;
/// Entries of a page of a walk, and their bytes, at most.
const PAGE_ENTRIES: usize = 512;
const PAGE_BYTES: usize = 256 << 10;
/// How long a read waits for a base that is opened again, and how often it looks.
const REOPEN_TIME: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(2);

impl Engine {
    /// Counts an entry that is looked at.
    fn note_read(&self) {
        self.statistics.reads.fetch_add(1, Ordering::Relaxed);
    }

    /// The value of a key.
    ///
    /// Inside `nonblocking` only what is in memory answers.
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

    /// Reads the base. A flush that finds no room closes it and opens it again: that is waited for,
    /// [`REOPEN_TIME`] at most.
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

    /// A state of the base that has each table of changes whole or not at all; `None` where there
    /// is none for long.
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

    /// After an error of the base of `levels`: the levels to read instead, or none where the error
    /// counts. Waits a moment while the base is about to be opened again.
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

    /// The first entry at or after `from` that starts with `prefix`.
    ///
    /// Versions only ever get newer ones in front, so for a versioned thing an entry found in a
    /// newer table is the one asked for, whatever lies below.
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

    /// All entries at or after `from` that start with `prefix`, in order.
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

    /// The same in pages: for what takes long.
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

/// Entries of a table that a scan will come to.
struct Ahead {
    table: Arc<Table>,
    entries: VecDeque<(Key, Option<Bytes>)>,
    /// How many are taken next.
    taken: usize,
    done: bool,
}

impl Ahead {
    /// The first entry at or after `at`, which never goes back.
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

/// Entries of all levels merged, in key order.
///
/// What is put or deleted while it goes on, up to [`TAKEN_MAX`] entries ahead of it, it may not see.
/// Where the base is opened again meanwhile, it goes on with the levels that there are then.
pub(crate) struct Scan<'a> {
    engine: &'a Engine,
    levels: Arc<Levels>,
    tables: Vec<Ahead>,
    /// None until it has begun.
    base: Option<base::Entries>,
    ahead: Option<(Key, Bytes)>,
    base_done: bool,
    at: Key,
    prefix: Key,
}

impl Scan<'_> {
    /// Reads these levels from the present place on.
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

    /// After an error of the base: begins with the levels that replace these, or the error counts.
    fn renew(&mut self, mut error: Error) -> Result<()> {
        let begun = Instant::now();
        while let Some(levels) = self.engine.levels_after(&self.levels, begun) {
            match self.begin(levels).and_then(|()| self.look_ahead()) {
                Ok(()) => return Ok(()),
                Err(another) => error = another,
            }
        }
        Err(error)
    }

    /// Takes the next entry out of the base.
    fn look_ahead(&mut self) -> Result<()> {
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
                && let Err(error) = self.look_ahead()
            {
                self.renew(error)?;
            }
            // Of entries of one key that of the newest table counts, the base's last.
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

/// Entries that start with a prefix, in order, a page at a time. Nothing is held on to between
/// pages: what is put or deleted behind the present page is seen as it is when the walk gets there.
pub(crate) struct Walk {
    engine: Arc<Engine>,
    prefix: Key,
    /// Where the next page begins; `None` after the last.
    from: Option<Key>,
    page: VecDeque<(Key, Bytes)>,
}

impl Walk {
    /// The next entry. After an error the walk can go on behind the damage: see [`Walk::skip_to`].
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

    /// After an error: goes on at the next place that can be read; false if there is none.
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
                // What was read before comes first.
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
