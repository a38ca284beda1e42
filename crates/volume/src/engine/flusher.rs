//! The flusher: one thread for each partition, which carries frozen tables into the base.
//!
//! It applies a table in transactions of bounded cost (`room`). The last transaction has the
//! table's part of the block map and the number of its last group. Until then the table stays in
//! front of the base. So a reader finds its entries first, no matter which of them are in the base
//! already. After a crash in between, the journal still holds the whole table, and its puts and
//! deletes of the same keys are made again. Only the map's bitmaps and counts are read before that,
//! and those are in the last transaction.
//!
//! If the file system has no room for a transaction nevertheless, the reserve is given up and a
//! smaller transaction is tried. Until one succeeds, changes that add anything are refused with
//! `DiskFull`.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;

use super::base::{Applied, Base, Mark, View};
use super::journal::JournalFile;
use super::key::Key;
use super::replay::SUMS_FILE;
use super::room::entry_cost;
use super::table::Table;
use super::{Engine, Levels};
use crate::disk::is_full;
use crate::error::{Error, Result};

/// The longest that the flusher sleeps before it checks whether the partition still exists; also
/// the interval of its attempts on a full disk.
const IDLE: Duration = Duration::from_millis(500);

/// How often the size of a transaction that found no room is halved.
const SMALLER_MAX: u32 = 8;
/// The number of journal files up to which they are made before they are needed.
const FILES_SPARE: u32 = 3;

pub(super) fn spawn(engine: &Arc<Engine>) -> Result<JoinHandle<()>> {
    let engine = Arc::downgrade(engine);
    std::thread::Builder::new()
        .name("volume-flush".into())
        .spawn(move || run(&engine))
        .map_err(|error| Error::Partition(format!("starting the flusher: {error}")))
}

fn run(engine: &Weak<Engine>) {
    while let Some(engine) = engine.upgrade() {
        let next = {
            let mut queue = engine.queue.lock();
            if queue.to_flush.is_empty() {
                if queue.closing {
                    return;
                }
                engine.room.wait_for(&mut queue, IDLE);
            }
            queue.to_flush.pop_front()
        };
        let Some((table, files)) = next else { continue };
        engine.make_spare_file();
        match engine.flush_table(&table) {
            Ok(()) => {
                let mut queue = engine.queue.lock();
                queue.frozen -= 1;
                queue.free_files.extend(files);
                drop(queue);
                engine.room.notify_all();
            }
            Err(error) => {
                engine.stop(error.to_string());
                return;
            }
        }
    }
}

/// Carries entries of a table into the base, beginning at `from`, as many as cost up to `budget`.
/// Returns the key at which to go on. The last part has the block map and the number of the last
/// group.
pub(super) fn apply_part(
    base: &Base,
    table: &Table,
    from: &Key,
    budget: u64,
) -> Result<Option<Key>> {
    table.with_all(|entries| {
        let cost = |(_, value): (&Key, &Option<Bytes>)| entry_cost(value.as_ref());
        let map = || entries.iter().filter(|(key, _)| key.is_of_map());
        let rest = || entries.range(from..).filter(|(key, _)| !key.is_of_map());
        let mut sum = map().map(cost).sum::<u64>().min(budget / 2);
        let end = rest().skip(1).find(|&entry| {
            sum += cost(entry);
            sum > budget
        });
        match end {
            Some((end, _)) => {
                let part = rest().take_while(|(key, _)| *key < end);
                base.apply(part, Applied::PartOf(table.last_group()))?;
            }
            None => base.apply(rest().chain(map()), Applied::UpTo(table.last_group()))?,
        }
        Ok(end.map(|(key, _)| *key))
    })
}

impl Engine {
    /// Makes a third journal file when the first is full, so that the committer does not have to.
    fn make_spare_file(&self) {
        let Some(_promise) = self.ledger.grow(self.options.journal_bytes) else {
            return;
        };
        let number = {
            let mut queue = self.queue.lock();
            if queue.files >= FILES_SPARE || !queue.free_files.is_empty() {
                return;
            }
            queue.files += 1;
            queue.files - 1
        };
        match self.make_journal_file(number) {
            Ok(file) => self.queue.lock().free_files.push(file),
            // There are two other files; the committer waits for one of them.
            Err(error) => tracing::warn!(%error, "no room for another journal file"),
        }
    }

    /// Makes the journal file with this number, and records in the base that it may be used from
    /// now on.
    pub(super) fn make_journal_file(&self, number: u32) -> Result<JournalFile> {
        let bytes = self.options.journal_bytes;
        let made = JournalFile::open(self.disk.as_ref(), number, bytes)
            .and_then(|file| self.disk.sync_names().map(|()| file));
        let file = made.map_err(|error| match is_full(&error) {
            true => Error::DiskFull,
            false => Error::Partition(format!("a new journal file: {error}")),
        })?;
        if let Some(mark) = self.mark() {
            let files = mark.files | 1 << number;
            self.set_mark(Mark { files, ..mark })?;
        }
        Ok(file)
    }

    /// The base's record about the journal.
    pub(super) fn mark(&self) -> Option<Mark> {
        *self.mark.lock()
    }

    /// Changes that record durably.
    pub(super) fn set_mark(&self, mark: Mark) -> Result<()> {
        let mut slot = self.base.lock();
        // After a failed transaction a flush opens the base again. Until then the record cannot be
        // changed.
        let base = slot.take().ok_or(Error::DiskFull)?;
        base.set_mark(mark)?;
        *slot = Some(base);
        *self.mark.lock() = Some(mark);
        Ok(())
    }

    fn flush_table(&self, table: &Arc<Table>) -> Result<()> {
        let mut from = Key::first();
        let mut smaller = 0;
        loop {
            match self.flush_part(table, &from, self.ledger.part_of_flush() >> smaller) {
                Ok(None) => break,
                Ok(Some(next)) => from = next,
                Err(Error::DiskFull) => {
                    self.ledger.overflowed();
                    self.open_base_for_reads();
                    if let Err(error) = self.hand_back_blocks() {
                        tracing::warn!(%error, "cannot give the room of free blocks to the tables");
                    }
                    smaller = (smaller + 2).min(SMALLER_MAX);
                    std::thread::sleep(IDLE / 5);
                }
                Err(error) => return Err(error),
            }
            self.check_running()?;
        }
        self.statistics.flushes.fetch_add(1, Ordering::Relaxed);
        self.ledger.flushed(table);
        self.ledger.restore_reserve();
        self.space.look_for_room();
        Ok(())
    }

    fn flush_part(&self, table: &Arc<Table>, from: &Key, budget: u64) -> Result<Option<Key>> {
        let mut slot = self.base.lock();
        // After a failed transaction the base cannot be used until it is opened again.
        let base = match slot.take() {
            Some(base) => base,
            None => self.reopen_base()?,
        };
        let next = match apply_part(&base, table, from, budget) {
            // The damage is in older contents of the base. It is still used for reads; nothing more
            // is written.
            Err(error @ Error::Partition(_)) => {
                *slot = Some(base);
                return Err(error);
            }
            other => other?,
        };
        let view = base.view()?;
        self.ledger.found_unused(base.unused(&view));
        self.show_base(view, next.is_none().then_some(table));
        *slot = Some(base);
        Ok(next)
    }

    /// Opens the base again after a write that found no room, so that it can be read until the next
    /// attempt.
    fn open_base_for_reads(&self) {
        let mut slot = self.base.lock();
        if slot.is_some() {
            return;
        }
        match self.reopen_base() {
            Ok(base) => *slot = Some(base),
            Err(error) => tracing::debug!(%error, "cannot open the base table yet"),
        }
    }

    fn reopen_base(&self) -> Result<Base> {
        let file = self
            .disk
            .open("base")
            .map_err(|error| Error::Partition(format!("opening the base table: {error}")))?;
        let sums = self
            .disk
            .open(SUMS_FILE)
            .map_err(|error| Error::Partition(format!("opening its checksums: {error}")))?;
        let base = Base::open(file, sums, self.options.base_cache_bytes)?;
        self.show_base(base.view()?, None);
        Ok(base)
    }

    /// Makes this state of the base the one that reads find. A table that is completely in it is no
    /// longer read.
    fn show_base(&self, view: View, flushed: Option<&Arc<Table>>) {
        let mut levels = self.levels.write();
        let mut frozen = levels.frozen.clone();
        frozen.retain(|table| !flushed.is_some_and(|flushed| Arc::ptr_eq(table, flushed)));
        *levels = Arc::new(Levels {
            active: Arc::clone(&levels.active),
            frozen,
            base: Arc::new(view),
        });
    }
}
