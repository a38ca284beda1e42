//! The ordered, durable table of a partition: journal, tables in memory, base table, block map.
//!
//! A change passes through these steps. The crash argument in `docs/format/volume.md` follows them:
//!
//! 1. Its blocks, if any, are written to places that no durable vnode names.
//! 2. [`Engine::commit`] appends its batch to the open group, and applies it to the active table
//!    and to the block map's image. All of this happens under the queue's lock, so journal and
//!    memory have the same order.
//! 3. The committer takes the open group. It syncs the blocks if any batch wrote some, writes the
//!    group to the journal, syncs the journal and resolves the group's tickets. Meanwhile the next
//!    group fills, so many changes share one sync.
//! 4. When a journal file is full, the table of its changes is frozen. The frozen table includes
//!    the block map as of that moment. A new table and a new journal file begin.
//! 5. The flusher applies a frozen table to the base in durable transactions. The last of them also
//!    records the number of the last group. Then the journal file is free for reuse. Changes are
//!    admitted only while there is room for that (`room`).
//!
//! Opening replays the groups after that number into a table in memory. These groups must be whole
//! (checksum) and without a gap (numbers); otherwise the partition is refused (`found`). The table
//! is frozen together with its journal files, and the flusher carries it into the base while the
//! partition is in use. A clean stop writes a last group.
//!
//! After a failed journal write or sync, nothing more is written. The reason: after a failed sync,
//! the pages that Linux still has in memory say nothing about the disk.

pub(crate) mod base;
pub(crate) mod batch;
pub(crate) mod blocks;
mod committer;
mod flusher;
pub(crate) mod journal;
mod journal_scan;
pub(crate) mod key;
pub(crate) mod memory;
pub(crate) mod page_sums;
mod read;
mod replay;
pub(crate) mod room;
pub(crate) mod space;
mod store_id;
pub(crate) mod table;
pub(crate) mod verify;

pub(crate) use read::Walk;
pub use store_id::StoreId;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex, RwLock};

use crate::disk::{Disk, is_full};
use crate::error::{Error, Result};
use crate::options::{Durability, Options};
use crate::state::ticket::{Flight, Ticket, may_block};
use base::{Base, Mark, View};
use batch::{Batch, Batches, Run};
use journal::JournalFile;
use replay::Opened;
use room::{Fit, Promise, Room};
use space::Space;
use table::Table;

/// The most frozen tables that may wait for the flusher. Further changes wait.
const FROZEN_MAX: usize = 2;
/// How long a change waits for the flusher at a time, and how many times, before it is refused.
const ROOM_WAIT: std::time::Duration = std::time::Duration::from_secs(1);
const ROOM_WAITS: u32 = 20;
/// In the relaxed mode the committer does not wait for more changes once a group has this many
/// bytes.
const GROUP_BYTES_EAGER: usize = 4 << 20;
/// Numbers of journal files are below this. A file with a higher number is not ours.
const FILES_NUMBERED_MAX: u32 = 16;

/// The open table.
pub(crate) struct Engine {
    disk: Arc<dyn Disk>,
    /// The span in which the store was opened. It names the store in the log.
    span: tracing::Span,
    options: Options,
    pub(crate) space: Arc<Space>,
    levels: RwLock<Arc<Levels>>,
    queue: Mutex<Queue>,
    /// Wakes the committer.
    work: Condvar,
    /// Wakes the threads that wait until a frozen table is flushed, and the flusher.
    room: Condvar,
    base: Mutex<Option<Base>>,
    /// The base's record about the journal. `None` until there was room to write it.
    mark: Mutex<Option<Mark>>,
    pub(crate) opening: Opening,
    /// The id of the store. `None` until the store has been used.
    id: Mutex<Option<StoreId>>,
    stopped: AtomicBool,
    stop_reason: Mutex<Option<String>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    pub(crate) ledger: Arc<Room>,
    pub(crate) statistics: Statistics,
}

/// The state in which a partition or device was found when it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opening {
    /// The partition was stopped cleanly: the base table had all changes.
    pub was_stopped_cleanly: bool,
    /// The number of groups that the journal held and the base table did not.
    pub replayed: u64,
    /// The journal file, and the offset in it, at which its sound part ends, if a file shows that.
    /// After a kill, the group that was being written there is dropped.
    pub end: Option<(String, u64)>,
    /// At `end` there is a group that is not whole.
    pub is_torn: bool,
    /// The number of whole groups behind a damaged one that were dropped because of
    /// `Options::drop_damaged_journal`.
    pub groups_behind: u64,
    /// The bytes of these groups.
    pub bytes_behind: u64,
    /// Journal files that were missing or cut off, and were made again because of that option.
    pub files_lost: Vec<String>,
}

/// Counters of the engine since it was opened.
#[derive(Default)]
pub(crate) struct Statistics {
    pub(crate) commits: AtomicU64,
    pub(crate) groups: AtomicU64,
    pub(crate) journal_bytes: AtomicU64,
    pub(crate) block_syncs: AtomicU64,
    pub(crate) flushes: AtomicU64,
    /// Entries of the table that were read.
    pub(crate) reads: Arc<AtomicU64>,
}

/// The places where a key is looked up, newest first.
struct Levels {
    active: Arc<Table>,
    frozen: Vec<Arc<Table>>,
    base: Arc<View>,
}

struct Queue {
    open: OpenGroup,
    closed: VecDeque<OpenGroup>,
    /// Bytes of the active journal file that are used, including groups that are not written yet.
    file_used: u64,
    /// Frozen tables whose journal is complete, oldest first, each with its journal files.
    to_flush: VecDeque<(Arc<Table>, Vec<JournalFile>)>,
    free_files: Vec<JournalFile>,
    files: u32,
    frozen: usize,
    /// The group of a clean stop is queued or written: no change follows.
    ended: bool,
    closing: bool,
    committer_waits: bool,
    /// The committer waits a short while until the open group holds this many changes.
    wanted: usize,
    hurry: bool,
}

/// A group to which changes are still added, or that waits to be written.
struct OpenGroup {
    number: u64,
    batches: Batches,
    flight: Arc<Flight>,
    released: Vec<Run>,
    wrote_blocks: bool,
    /// This is the group of a clean stop; it holds no changes.
    ends: bool,
    /// Set in the first group of a new journal file: the table that was frozen for it.
    freezes: Option<Arc<Table>>,
}

impl OpenGroup {
    fn new(number: u64) -> Self {
        Self {
            number,
            batches: Batches::default(),
            flight: Arc::default(),
            released: Vec::new(),
            wrote_blocks: false,
            ends: false,
            freezes: None,
        }
    }

    fn is_empty(&self) -> bool {
        self.batches.count() == 0 && !self.ends
    }
}

impl Engine {
    /// Opens the table on `disk`, replaying its journal.
    pub(crate) fn open(disk: Arc<dyn Disk>, options: Options) -> Result<Arc<Self>> {
        let id = store_id::check(disk.as_ref())?;
        let (journal_bytes, reserve) = (options.journal_bytes, options.reserve_bytes);
        let ledger = Arc::new(Room::new(Arc::clone(&disk), reserve, journal_bytes)?);
        let opened = match Opened::open(&disk, &options, &ledger) {
            Err(Error::DiskFull) => {
                tracing::warn!("no room to open the partition: giving up its reserve");
                room::spend_reserve(disk.as_ref());
                Opened::open(&disk, &options, &ledger)
            }
            other => other,
        };
        let Opened {
            base,
            view,
            space,
            files,
            last,
            replayed,
            opening,
        } = opened?;
        let holding = replayed.iter().flat_map(|(_, files)| files);
        let highest = files.iter().chain(holding).map(|file| file.number).max();
        let mut frozen = Vec::new();
        let mut to_flush = VecDeque::new();
        if let Some((table, used)) = replayed {
            frozen.push(Arc::clone(&table));
            to_flush.push_back((table, used));
        }
        ledger.found_unused(base.unused(&view));
        let engine = Arc::new(Self {
            queue: Mutex::new(Queue {
                open: OpenGroup::new(last + 1),
                closed: VecDeque::new(),
                file_used: 0,
                to_flush,
                files: highest.map_or(0, |highest| highest + 1),
                free_files: files,
                frozen: frozen.len(),
                ended: false,
                closing: false,
                committer_waits: false,
                wanted: 1,
                hurry: false,
            }),
            mark: Mutex::new(view.mark),
            opening,
            id: Mutex::new(id),
            levels: RwLock::new(Arc::new(Levels {
                active: Arc::default(),
                frozen,
                base: Arc::new(view),
            })),
            disk,
            span: tracing::Span::current(),
            options,
            space,
            work: Condvar::new(),
            room: Condvar::new(),
            base: Mutex::new(Some(base)),
            stopped: AtomicBool::new(false),
            stop_reason: Mutex::new(None),
            ledger,
            threads: Mutex::default(),
            statistics: Statistics::default(),
        });
        if let Err(error) = engine.ledger.set_reserve_aside() {
            tracing::warn!(%error, "no room for the reserve that keeps removals possible");
        }
        let threads = [committer::spawn(&engine)?, flusher::spawn(&engine)?];
        engine.threads.lock().extend(threads);
        engine.take_over()?;
        Ok(engine)
    }

    /// Returns whether the disk was used as a store before, by a release with store ids.
    pub(crate) fn was_used(&self) -> bool {
        self.id.lock().is_some()
    }

    /// Records on the disk that the store is in use; its files and first record are durable by now.
    /// Returns `None` if there was no room for the record.
    pub(crate) fn note_used(&self) -> Result<Option<StoreId>> {
        let mut id = self.id.lock();
        if id.is_none() {
            match StoreId::make(self.disk.as_ref()) {
                Ok(made) => *id = Some(made),
                Err(error) if is_full(&error) => {
                    tracing::warn!("no room for the id of a partition");
                }
                Err(error) => return Err(Error::Partition(format!("the store's id: {error}"))),
            }
        }
        Ok(*id)
    }

    /// Gives the journal an id if it has none, in a new store and in one of an earlier version. If
    /// the journal files have grown, records their new size.
    fn take_over(&self) -> Result<()> {
        let file_bytes = self.options.journal_bytes;
        if let Some(mark) = self.mark() {
            if mark.file_bytes < file_bytes {
                self.set_mark(Mark { file_bytes, ..mark })?;
            }
            return Ok(());
        }
        // First the groups without the id leave the journal. All its files are free then.
        match self.flush() {
            Err(Error::DiskFull) => {
                tracing::warn!("no room to give the journal an id: it stays without one");
                return Ok(());
            }
            other => other?,
        }
        let [journal, _] = <[u64; 2]>::from(uuid::Uuid::new_v4().as_u64_pair());
        let free = &self.queue.lock().free_files;
        let files = free.iter().map(|file| 1 << file.number).sum();
        self.set_mark(Mark {
            journal: journal | 1,
            files,
            file_bytes,
        })
    }

    /// Refuses a change that cannot be made, before the operation changes or locks anything.
    /// `growth` is about how many bytes the operation adds, 0 for one that only frees. The caller
    /// holds the returned promise of room until the operation has ended.
    pub(crate) fn admit(&self, growth: u64) -> Result<Promise> {
        self.check_running()?;
        self.space.look_for_room();
        let promise = self.ledger.enter(growth);
        let mut waited = 0;
        loop {
            let fit = self.ledger.fits(growth)?;
            let mut queue = self.queue.lock();
            match fit {
                Fit::Yes if queue.frozen < FROZEN_MAX => return Ok(promise),
                Fit::Yes | Fit::AfterFlush => may_block()?,
                Fit::No => {
                    drop(queue);
                    if self.ledger.is_full() || !self.hand_back_blocks()? {
                        return Err(self.space.refused());
                    }
                    continue;
                }
            }
            // Every wait has an end: a flush that takes this long has no room, or no disk.
            if waited == ROOM_WAITS {
                return Err(self.space.refused());
            }
            if fit == Fit::AfterFlush && queue.frozen < FROZEN_MAX {
                self.begin_flush(&mut queue);
            }
            if self.room.wait_for(&mut queue, ROOM_WAIT).timed_out() {
                waited += 1;
            }
            drop(queue);
            self.check_running()?;
        }
    }

    /// Gives the room of free blocks to the tables.
    fn hand_back_blocks(&self) -> Result<bool> {
        may_block()?;
        self.space.hand_back(&|key| self.get(key))
    }

    pub(crate) fn check_running(&self) -> Result<()> {
        if !self.stopped.load(Ordering::Acquire) {
            return Ok(());
        }
        let reason = self.stop_reason.lock().clone();
        Err(Error::Stopped(reason.unwrap_or_else(|| "closed".into())))
    }

    /// Stops taking changes, and logs the reason.
    pub(crate) fn stop(&self, reason: String) {
        let mut stored = self.stop_reason.lock();
        if stored.is_none() {
            tracing::error!(parent: &self.span, %reason, "the partition takes no more writes");
            *stored = Some(reason);
        }
        self.stopped.store(true, Ordering::Release);
        drop(stored);
        // A thread that is about to wait holds this lock. So it either sees `stopped`, or is woken.
        drop(self.queue.lock());
        self.room.notify_all();
        self.work.notify_all();
    }

    /// Makes a batch visible and passes it to the journal.
    ///
    /// Fails only if the engine has stopped; then nothing has changed.
    pub(crate) fn commit(&self, batch: Batch) -> Result<Ticket> {
        if batch.is_empty() {
            return Ok(Ticket::ready());
        }
        let (flight, wake) = self.enter(batch)?;
        if wake {
            self.work.notify_one();
        }
        Ok(match self.options.durability {
            Durability::Strict => Ticket::of(flight),
            Durability::Relaxed(_) => Ticket::ready(),
        })
    }

    /// Like [`Engine::commit`], for a change that must not be lost once another party has seen it.
    /// The ticket resolves when this change and everything before it is durable, in the relaxed
    /// mode too.
    pub(crate) fn commit_durably(&self, batch: Batch) -> Result<Ticket> {
        if batch.is_empty() {
            return Err(Error::Invalid("a change without entries"));
        }
        let (flight, _) = self.enter(batch)?;
        let mut queue = self.queue.lock();
        queue.hurry = true;
        queue.committer_waits = false;
        drop(queue);
        self.work.notify_all();
        Ok(Ticket::of(flight))
    }

    /// Puts a batch into the open group. Returns whether the caller must wake the committer.
    fn enter(&self, batch: Batch) -> Result<(Arc<Flight>, bool)> {
        self.space.prepare(&batch.released, &|key| self.get(key))?;
        let length = batch.encoded_length();
        let mut queue = self.queue.lock();
        self.check_running()?;
        if queue.ended {
            return Err(Error::Stopped("closed".into()));
        }
        let filled = journal::group_length(queue.open.batches.encoded_length() + length);
        let levels = Arc::clone(&self.levels.read());
        let full = queue.file_used + filled > self.options.journal_bytes
            || levels.active.bytes() > self.options.journal_bytes * 3 / 2
            || self.ledger.is_at_limit(&levels.active);
        let active = if full && !levels.active.is_empty() {
            self.freeze(&mut queue, &levels)
        } else {
            Arc::clone(&levels.active)
        };
        drop(levels);
        // Repeated under the lock: from here on nothing fails.
        self.space.prepare(&batch.taken, &|key| self.get(key))?;
        self.space.prepare(&batch.released, &|key| self.get(key))?;
        queue.open.batches.add(&batch);
        self.space
            .apply(&batch.taken, &batch.released, &|key| self.get(key))?;
        self.ledger.enter_table(&active, batch.entries);
        active.set_last_group(queue.open.number);
        queue.open.released.extend(batch.released);
        queue.open.wrote_blocks |= batch.wrote_blocks;
        self.statistics.commits.fetch_add(1, Ordering::Relaxed);
        let wake = match self.options.durability {
            Durability::Strict => {
                queue.committer_waits && queue.open.batches.count() >= queue.wanted
            }
            Durability::Relaxed(_) => {
                queue.committer_waits && queue.open.batches.encoded_length() > GROUP_BYTES_EAGER
            }
        };
        if wake {
            queue.committer_waits = false;
        }
        Ok((Arc::clone(&queue.open.flight), wake))
    }

    /// Ends the active table and journal file; returns the new active table.
    fn freeze(&self, queue: &mut Queue, levels: &Arc<Levels>) -> Arc<Table> {
        let old = Arc::clone(&levels.active);
        self.ledger.enter_table(&old, self.space.freeze());
        let fresh: Arc<Table> = Arc::default();
        // The changes in the open group belong to the old file.
        if queue.open.is_empty() {
            queue.open.freezes = Some(old);
        } else {
            let mut next = OpenGroup::new(queue.open.number + 1);
            next.freezes = Some(old);
            queue
                .closed
                .push_back(std::mem::replace(&mut queue.open, next));
        }
        queue.file_used = 0;
        queue.frozen += 1;
        let mut slot = self.levels.write();
        let mut frozen = Vec::with_capacity(slot.frozen.len() + 1);
        frozen.push(Arc::clone(&slot.active));
        frozen.extend(slot.frozen.iter().cloned());
        let base = Arc::clone(&slot.base);
        *slot = Arc::new(Levels {
            active: Arc::clone(&fresh),
            frozen,
            base,
        });
        fresh
    }

    fn levels(&self) -> Arc<Levels> {
        Arc::clone(&self.levels.read())
    }

    /// Writes all changes to the base and waits until that is done.
    pub(crate) fn flush(&self) -> Result<()> {
        let mut queue = self.queue.lock();
        self.check_running()?;
        self.begin_flush(&mut queue);
        while queue.frozen > 0 {
            self.check_running()?;
            if self.ledger.is_full() {
                return Err(Error::DiskFull);
            }
            self.room
                .wait_for(&mut queue, std::time::Duration::from_millis(100));
        }
        Ok(())
    }

    /// Freezes the active table, so that the flusher carries it into the base.
    fn begin_flush(&self, queue: &mut Queue) {
        let levels = self.levels();
        if !levels.active.is_empty() {
            self.freeze(queue, &levels);
        }
        queue.hurry = true;
        queue.committer_waits = false;
        self.work.notify_all();
    }

    /// Flushes, and takes no more changes.
    pub(crate) fn close(&self) -> Result<()> {
        let result = self.flush().and_then(|()| self.end_journal());
        self.stop_quietly("closed");
        // The threads drop their references to the disk before this returns, so that the disk can
        // be opened again.
        for thread in std::mem::take(&mut *self.threads.lock()) {
            let _ = thread.join();
        }
        self.resolve_unwritten();
        // The base stays open for reads. It must not write when it is dropped: by then, another
        // process may have the file open.
        if let Some(base) = &*self.base.lock() {
            base.seal();
        }
        result
    }

    /// Writes the group of a clean stop if the base holds all changes.
    fn end_journal(&self) -> Result<()> {
        let mut queue = self.queue.lock();
        let nothing_waits = queue.open.is_empty() && queue.closed.is_empty() && queue.frozen == 0;
        if !nothing_waits || !self.levels().active.is_empty() || self.mark().is_none() {
            return Ok(());
        }
        queue.ended = true;
        queue.open.ends = true;
        queue.hurry = true;
        queue.committer_waits = false;
        let flight = Arc::clone(&queue.open.flight);
        drop(queue);
        self.work.notify_all();
        Ticket::of(flight).wait()
    }

    fn stop_quietly(&self, reason: &str) {
        self.stop_reason
            .lock()
            .get_or_insert_with(|| reason.to_string());
        self.stopped.store(true, Ordering::Release);
        self.queue.lock().closing = true;
        self.work.notify_all();
        self.room.notify_all();
    }

    /// Resolves the tickets of groups that will not be written any more.
    fn resolve_unwritten(&self) {
        let mut queue = self.queue.lock();
        let next = OpenGroup::new(queue.open.number);
        let open = std::mem::replace(&mut queue.open, next);
        let left: Vec<_> = queue.closed.drain(..).chain([open]).collect();
        drop(queue);
        for group in left.into_iter().filter(|group| !group.is_empty()) {
            group.flight.resolve(Err(Error::Stopped("closed".into())));
        }
    }

    /// Returns the size of the file system and the bytes that can still be stored.
    pub(crate) fn room(&self) -> Result<(u64, u64)> {
        let space = self.disk.space();
        let space =
            space.map_err(|error| Error::Partition(format!("asking for free space: {error}")))?;
        let free = self.ledger.available()? + self.space.allocated_but_unused();
        Ok((space.total, free.min(space.total)))
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop_quietly("closed");
        self.resolve_unwritten();
    }
}
