//! The ledger of the free room on the file system, so that a flush always finds the room it needs.
//!
//! An accepted change is in the journal and in a table in memory. It takes its place in the base
//! later, when the table is flushed. That room must be there then: without it the tables cannot
//! leave memory, their journal files cannot be reused, and not even removals are accepted. So room
//! is promised before it is used:
//!
//! * *Tables.* A flush adds to the base at most twice the bytes of the values it puts and of their
//!   keys. Pages of a B-tree are at least half full, and a value larger than a page is rounded up
//!   to the next power of two. Deletes add nothing. This much is promised for every change until
//!   its flush is durable. From its admission on the promise is an estimate ([`Room::enter`]); in a
//!   table it is exact.
//! * *The flush itself* copies every page that it changes before the old pages are free. It is cut
//!   into transactions so small that the copies of one need at most a quarter of the free room
//!   (`flusher`). Room that one transaction has freed serves a later one.
//! * *Files of fixed size* are the growth steps of block files, and further journal files. Their
//!   room is promised before they are allocated and until they are there ([`Room::grow`]).
//!
//! Tables may use the free room of the file system, and the part of the base's file that no entry
//! needs. Removed names and small bodies leave their room there. This part is the size of the file
//! beyond three times the bytes of all entries. Pages that are less than a third full are merged.
//!
//! Each thread first adds its promise and then reads the free space. So of two threads at the same
//! time at least one sees the other's promise. Let F be the free bytes and P the promised bytes,
//! this change included. R is the reserve (`Options::reserve_bytes`, at most an eighth of a small
//! file system). Half of R lies in a file of its own; without that file, this half counts as P.
//!
//! * Files grow while F >= P + R. So the contents of large files stop growing first.
//! * Changes that add something are accepted while F >= P + R/4. Names and small bodies go on in
//!   the room that blocks leave, which is larger than the room that is kept for removals.
//! * Changes that free something are accepted while F + R/4 >= P. They may use all free room, and
//!   rely on half of the reserve file, which a flush that runs out of room gives up. If nothing
//!   waits to be flushed, one such change is always accepted: it does not make the base larger.
//!
//! Room that removed bodies had in the block files is not counted. Before a change is refused, a
//! free region of blocks is given back to the file system (`space::files`).
//!
//! Promises are upper bounds; a flush uses less. So no change is refused because of promises that a
//! flush would redeem: the flush is begun, and the change waits for it ([`Fit::AfterFlush`]). This
//! wait ends, for two reasons. The waiting thread holds no lock of a vnode or volume yet. And the
//! flush does not depend on the committer, which may itself wait for a journal file. The flush
//! needs only the journal of its table, and a frozen table has its whole journal on the disk. When
//! room is short, tables are frozen while they are small, so that promises remain a part of the
//! free room.
//!
//! Other programs use the same file system outside of this ledger. The room that they take may make
//! a flush fail. Then the reserve is given up and the flush is tried again until it succeeds.
//! Meanwhile only changes that free something are accepted.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use bytes::Bytes;

mod shortage;

pub(crate) use self::shortage::Shortage;
use super::key::Key;
use super::table::Table;
use crate::disk::Disk;
use crate::error::{Error, Result};

/// The file that keeps room for removals.
const RESERVE_FILE: &str = "reserve";
/// The most bytes that may be added before the disk is asked again.
const ALLOWANCE_MAX: u64 = 4 << 20;
/// About the bytes that a change which only frees puts into tables: a page of a directory, the
/// records.
const FREEING_BYTES: u64 = 8 << 10;
/// To save room, a table is frozen early, but not before it has this part (1/64) of a journal file.
const TABLE_PART_MIN: u64 = 64;
/// The most bytes of pages that one entry changes, with its share of the pages above.
const TOUCHED_BYTES: u64 = 8 << 10;
/// The least number of entries in a transaction of a flush.
const PART_MIN: u64 = 32;

/// The ledger of a partition's room. Amounts in bytes.
#[derive(Debug)]
pub(crate) struct Room {
    disk: Arc<dyn Disk>,
    journal_bytes: u64,
    /// R in the formulas above.
    reserve: u64,
    /// Bytes in the reserve file.
    set_aside: AtomicU64,
    /// Bytes of changes that were admitted and are not in a table yet.
    entering: AtomicI64,
    /// Bytes of the tables that are not in the base yet.
    unflushed: AtomicI64,
    /// Bytes that may be admitted without reading the free space of the disk.
    allowance: AtomicI64,
    /// Bytes of the base's file that its entries do not need.
    unused: AtomicU64,
    /// Bytes of files that are about to grow.
    growing: AtomicI64,
    /// A table with this many bytes is frozen.
    table_limit: AtomicU64,
    /// Whether changes are refused for lack of room.
    shortage: Shortage,
}

/// Whether a change may be made now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    Yes,
    /// Only after a flush has redeemed the promises.
    AfterFlush,
    No,
}

/// A promise of room. It ends when it is dropped: the change is in a table, or the file has grown.
#[must_use = "the promise ends when this is dropped"]
#[derive(Debug)]
pub(crate) struct Promise {
    room: Arc<Room>,
    to: To,
    bytes: i64,
}

/// The purpose of a promise.
#[derive(Clone, Copy, Debug)]
enum To {
    Change,
    File,
}

impl Drop for Promise {
    fn drop(&mut self) {
        let sum = self.room.sum(self.to);
        sum.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

fn positive(bytes: &AtomicI64) -> u64 {
    bytes.load(Ordering::SeqCst).max(0) as u64
}

impl Room {
    /// The ledger of a disk, of which `reserve` bytes are kept back.
    pub(crate) fn new(disk: Arc<dyn Disk>, reserve: u64, journal_bytes: u64) -> Result<Self> {
        let space = disk.space().map_err(|error| space_error(&error))?;
        let reserve = reserve.min(space.total / 8);
        Ok(Self {
            disk,
            journal_bytes,
            reserve,
            set_aside: AtomicU64::new(0),
            entering: AtomicI64::new(0),
            unflushed: AtomicI64::new(0),
            allowance: AtomicI64::new(0),
            unused: AtomicU64::new(0),
            growing: AtomicI64::new(0),
            table_limit: AtomicU64::new(u64::MAX),
            shortage: Shortage::new(reserve / 2),
        })
    }

    fn free(&self) -> Result<u64> {
        let space = self.disk.space().map_err(|error| space_error(&error))?;
        Ok(space.free)
    }

    /// Bytes that tables can still use.
    fn free_to_tables(&self) -> Result<u64> {
        Ok(self.free()? + self.unused.load(Ordering::SeqCst))
    }

    /// The bytes of the reserve's half that are not in its file. They are part of the free space.
    fn given_up(&self) -> u64 {
        (self.reserve / 2).saturating_sub(self.set_aside.load(Ordering::SeqCst))
    }

    fn sum(&self, to: To) -> &AtomicI64 {
        match to {
            To::Change => &self.entering,
            To::File => &self.growing,
        }
    }

    fn promise(self: &Arc<Self>, to: To, bytes: u64) -> Promise {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX / 4);
        self.sum(to).fetch_add(bytes, Ordering::SeqCst);
        Promise {
            room: Arc::clone(self),
            to,
            bytes,
        }
    }

    /// The bytes that pending changes and growing files will take.
    fn promised(&self) -> u64 {
        2 * (positive(&self.entering) + positive(&self.unflushed)) + positive(&self.growing)
    }

    /// Promises the room of a change that adds about `growth` bytes; 0 for one that only frees.
    /// [`Room::fits`] then tells whether there is that much.
    pub(crate) fn enter(self: &Arc<Self>, growth: u64) -> Promise {
        let bytes = if growth == 0 { FREEING_BYTES } else { growth };
        self.promise(To::Change, bytes)
    }

    /// Returns whether there is room for a change that has [entered](Room::enter).
    pub(crate) fn fits(&self, growth: u64) -> Result<Fit> {
        if growth > 0 && self.is_full() {
            return Ok(Fit::No);
        }
        let bytes = if growth == 0 { FREEING_BYTES } else { growth } as i64;
        if self.allowance.fetch_sub(bytes, Ordering::SeqCst) >= bytes {
            return Ok(Fit::Yes);
        }
        let (free, promised) = (self.free_to_tables()?, self.promised());
        let kept = self.reserve / 4 + self.given_up();
        let headroom = free.saturating_sub(kept);
        self.limit_tables(headroom);
        let spare = headroom.checked_sub(promised);
        // Bytes that go to tables count twice, and several threads may get an allowance at the same
        // time.
        let allowance = spare.map_or(0, |spare| (spare / 16).min(ALLOWANCE_MAX));
        self.allowance.store(allowance as i64, Ordering::SeqCst);
        if spare.is_some() {
            return Ok(Fit::Yes);
        }
        let redeemable = 2 * positive(&self.unflushed);
        if growth == 0 {
            let set_aside = self.set_aside.load(Ordering::SeqCst) / 2;
            let fits = free + set_aside >= promised || redeemable == 0;
            return Ok(if fits { Fit::Yes } else { Fit::AfterFlush });
        }
        // If a flush were begun for one small change, the next change would need another flush.
        let worthwhile = redeemable >= self.journal_bytes / TABLE_PART_MIN;
        if worthwhile && headroom >= promised - redeemable {
            return Ok(Fit::AfterFlush);
        }
        Ok(Fit::No)
    }

    /// Sets the size at which a table is frozen. Three tables may wait at the same time; together
    /// they must promise less than half of the headroom.
    fn limit_tables(&self, headroom: u64) {
        let limit = (headroom / 16).max(self.journal_bytes / TABLE_PART_MIN);
        let limit = if limit > self.journal_bytes * 2 {
            u64::MAX
        } else {
            limit
        };
        self.table_limit.store(limit, Ordering::Relaxed);
    }

    /// Returns whether a table has reached the limit for one table.
    pub(crate) fn is_at_limit(&self, table: &Table) -> bool {
        table.growth() > self.table_limit.load(Ordering::Relaxed)
    }

    /// Puts changes into a table, and promises their room.
    pub(crate) fn enter_table(
        &self,
        table: &Table,
        entries: impl IntoIterator<Item = (Key, Option<Bytes>)>,
    ) {
        let grown = table.apply(entries);
        self.unflushed.fetch_add(grown, Ordering::SeqCst);
    }

    /// Ends the promise for a table, which is in the base now.
    pub(crate) fn flushed(&self, table: &Table) {
        let bytes = table.growth() as i64;
        self.unflushed.fetch_sub(bytes, Ordering::SeqCst);
    }

    /// Promises room for a file that is about to grow. Returns `None` if there is not enough.
    pub(crate) fn grow(self: &Arc<Self>, bytes: u64) -> Option<Promise> {
        let promise = self.promise(To::File, bytes);
        (self.bytes_for_files().ok()? > 0).then_some(promise)
    }

    /// The bytes by which files may grow, plus one.
    fn bytes_for_files(&self) -> Result<u64> {
        let allowed = 2 * positive(&self.allowance);
        let kept = self.promised() + allowed + self.reserve + self.given_up();
        Ok((self.free()? + 1).saturating_sub(kept))
    }

    /// The bytes that can be stored in files that grow.
    pub(crate) fn available(&self) -> Result<u64> {
        Ok(self.bytes_for_files()?.saturating_sub(1))
    }

    /// The most that a transaction of a flush may [cost](entry_cost). Its pages are all copied
    /// before the old ones are free; the next transaction but one can use those.
    pub(crate) fn part_of_flush(&self) -> u64 {
        let free = self.free_to_tables().unwrap_or(0);
        (free / 4).max(PART_MIN * TOUCHED_BYTES)
    }

    /// Records, after a flush, the bytes of the base's file that its entries do not need.
    pub(crate) fn found_unused(&self, bytes: u64) {
        self.unused.store(bytes, Ordering::SeqCst);
    }

    /// A flush found no room: gives up the reserve.
    pub(crate) fn overflowed(&self) {
        self.shortage.overflowed();
        self.allowance.store(0, Ordering::SeqCst);
        self.set_aside.store(0, Ordering::SeqCst);
        spend_reserve(self.disk.as_ref());
    }

    /// A flush found room. If the reserve was given up and there is enough room, sets it aside
    /// again.
    pub(crate) fn restore_reserve(self: &Arc<Self>) {
        self.shortage.flushed();
        let _ = self.set_reserve_aside();
    }

    /// Whether changes are refused for lack of room.
    pub(crate) fn shortage(&self) -> &Shortage {
        &self.shortage
    }

    /// The bytes that files and the tables can take, without those in files that did not grow.
    pub(crate) fn left(&self) -> Result<u64> {
        Ok(self.available()? + self.unused.load(Ordering::SeqCst))
    }

    /// Returns whether a flush found no room, and no later flush has succeeded.
    pub(crate) fn is_full(&self) -> bool {
        self.shortage.is_overflow()
    }

    /// Makes the reserve file if there is room for it.
    pub(crate) fn set_reserve_aside(self: &Arc<Self>) -> std::io::Result<()> {
        let bytes = self.reserve / 2;
        if self.set_aside.load(Ordering::SeqCst) >= bytes {
            return Ok(());
        }
        let file = self.disk.open(RESERVE_FILE)?;
        if file.length()? < bytes {
            let Some(_promise) = self.grow(bytes) else {
                return Err(std::io::ErrorKind::StorageFull.into());
            };
            file.allocate(0, bytes)?;
            file.sync()?;
            self.disk.sync_names()?;
        }
        self.set_aside.store(bytes, Ordering::SeqCst);
        Ok(())
    }
}

/// The most that an entry costs a transaction of a flush, in bytes of the file system.
pub(super) fn entry_cost(value: Option<&Bytes>) -> u64 {
    TOUCHED_BYTES + 2 * value.map_or(0, |value| value.len() as u64)
}

/// Gives the reserve back to the file system, so that a flush finds room.
pub(super) fn spend_reserve(disk: &dyn Disk) {
    if let Ok(file) = disk.open(RESERVE_FILE) {
        let _ = file.set_length(0);
    }
}

fn space_error(error: &std::io::Error) -> Error {
    Error::Partition(format!("asking for free space: {error}"))
}
