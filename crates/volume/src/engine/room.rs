//! Who may use what is left of the file system, so that a flush always finds the room it needs.
//!
//! A change that was accepted is in the journal and in a table in memory. Its place in the base
//! comes later, when the table is flushed, and must be there then: without it the tables cannot
//! leave memory, their journal files cannot be used again, and not even removals are taken. So room
//! is promised before it is used:
//!
//! * *Tables.* What a flush adds to the base is at most twice the bytes of the values it puts and
//!   of their keys: pages of a B-tree are at least half full, and a value that fills more than one
//!   is rounded up to the next power of two. Deletes add nothing. That much is promised for every
//!   change from its admission on ([`Room::enter`], an estimate), while it is in a table (exactly)
//!   and until the flush is durable.
//! * *The flush itself* copies every page that it touches before the old ones are free. It is cut
//!   into transactions so small that the copies of one need a quarter of what is free at most
//!   (`flusher`); what an earlier one has freed serves a later one.
//! * *Files of fixed size*, the blocks' steps of growth and further journal files, are promised
//!   from before they are allocated until they are there ([`Room::grow`]).
//!
//! What is free to tables is what the file system has free, and the part of the base's file that no
//! entry needs: removed names and small bodies leave their room there. It is taken as what the file
//! has beyond three times the bytes of all entries, because pages that are less than a third full
//! are merged.
//!
//! Everybody adds to the promises first and looks at the free space then, so of two who come at
//! once at least one sees the other. With F bytes free, P promised, this change included, and a
//! reserve of R bytes (`Options::reserve_bytes`, an eighth of a small file system at most), half of
//! which lies in a file of its own, or else counts as P:
//!
//! * files grow while F >= P + R: the bodies of large files stop first;
//! * changes that add something are taken while F >= P + R/4: names and small bodies go on in the
//!   room that blocks leave, which is larger than what is kept for removals;
//! * changes that free something are taken while F + R/4 >= P: they use all, and count on half of
//!   the file, which a flush that meets an unexpected end gives up. When nothing at all waits to
//!   be flushed, one is taken in any case: it leaves the base no larger.
//!
//! Room that removed bodies had in the block files is not counted. When a change would be refused,
//! a free region of blocks is handed back to the file system first (`space::files`).
//!
//! Promises are bounds; a flush uses less. So nobody is refused because of promises that a flush
//! would redeem: it is begun, and waited for ([`Fit::AfterFlush`]). That it ends does not depend on
//! who waits, as he holds no lock of a vnode or volume yet, nor on the committer, which may itself
//! wait for a journal file: a table that is frozen has its whole journal on the disk. Near the end
//! tables are frozen when they are small, so that promises stay a part of what is left.
//!
//! Outside of this ledger are other users of the same file system. What they take without asking
//! may make a flush fail: then the reserve is given up, the flush tried again until it succeeds,
//! and meanwhile only what frees something is taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use bytes::Bytes;

use super::key::Key;
use super::table::Table;
use crate::disk::Disk;
use crate::error::{Error, Result};

/// The file that keeps room for removals.
const RESERVE_FILE: &str = "reserve";
/// Bytes that may be added at most before the disk is asked again.
const ALLOWANCE_MAX: u64 = 4 << 20;
/// What a change that only frees puts into tables, about: a page of a directory, the records.
const FREEING_BYTES: u64 = 8 << 10;
/// Tables are not frozen for want of room before they have this part of a journal file.
const TABLE_PART_MIN: u64 = 64;
/// Pages that one entry changes at most, with its part of the pages above, in bytes.
const TOUCHED_BYTES: u64 = 8 << 10;
/// Entries of a flush's transaction at least.
const PART_MIN: u64 = 32;

/// The ledger of a partition's room. Amounts in bytes.
#[derive(Debug)]
pub(crate) struct Room {
    disk: Arc<dyn Disk>,
    journal_bytes: u64,
    /// R.
    reserve: u64,
    /// What is in the reserve's file.
    set_aside: AtomicU64,
    /// Of changes that were admitted and are not in a table yet.
    entering: AtomicI64,
    /// Of the tables that are not in the base yet.
    unflushed: AtomicI64,
    /// May be admitted without a look at the disk.
    allowance: AtomicI64,
    /// Room that the base's file has and its entries do not need.
    unused: AtomicU64,
    /// Of files that are about to grow.
    growing: AtomicI64,
    /// A table is frozen when it has that many.
    table_limit: AtomicU64,
    /// A flush found no room: only changes that free some are taken.
    full: AtomicBool,
}

/// Whether a change may be made now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    Yes,
    /// Not before a flush has redeemed what is promised.
    AfterFlush,
    No,
}

/// A promise that ends when this is dropped: when the change is in a table, or the file has grown.
#[must_use = "the promise ends when this is dropped"]
#[derive(Debug)]
pub(crate) struct Promise {
    room: Arc<Room>,
    to: To,
    bytes: i64,
}

/// To whom room is promised.
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
    /// The room of a disk, of which `reserve` bytes shall be kept back.
    pub(crate) fn new(disk: Arc<dyn Disk>, reserve: u64, journal_bytes: u64) -> Result<Self> {
        let space = disk.space().map_err(|error| asking(&error))?;
        Ok(Self {
            disk,
            journal_bytes,
            reserve: reserve.min(space.total / 8),
            set_aside: AtomicU64::new(0),
            entering: AtomicI64::new(0),
            unflushed: AtomicI64::new(0),
            allowance: AtomicI64::new(0),
            unused: AtomicU64::new(0),
            growing: AtomicI64::new(0),
            table_limit: AtomicU64::new(u64::MAX),
            full: AtomicBool::new(false),
        })
    }

    fn free(&self) -> Result<u64> {
        let space = self.disk.space().map_err(|error| asking(&error))?;
        Ok(space.free)
    }

    /// What tables can still use.
    fn free_to_tables(&self) -> Result<u64> {
        Ok(self.free()? + self.unused.load(Ordering::SeqCst))
    }

    /// What of the reserve is not in its file: it is among what is free.
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

    /// What changes and files that are under way will take.
    fn promised(&self) -> u64 {
        2 * (positive(&self.entering) + positive(&self.unflushed)) + positive(&self.growing)
    }

    /// Promises the room of a change that adds about `growth` bytes; 0 for one that only frees.
    /// Whether there is that much says [`Room::fits`].
    pub(crate) fn enter(self: &Arc<Self>, growth: u64) -> Promise {
        let bytes = if growth == 0 { FREEING_BYTES } else { growth };
        self.promise(To::Change, bytes)
    }

    /// Whether there is room for a change that has [entered](Room::enter).
    pub(crate) fn fits(&self, growth: u64) -> Result<Fit> {
        if growth > 0 && self.full.load(Ordering::Relaxed) {
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
        // Counted twice as everything that goes to tables, and several may get one at once.
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
        // A flush for the sake of one small change would be begun again for the next.
        let worthwhile = redeemable >= self.journal_bytes / TABLE_PART_MIN;
        if worthwhile && headroom >= promised - redeemable {
            return Ok(Fit::AfterFlush);
        }
        Ok(Fit::No)
    }

    /// Three tables may be on their way: together they shall promise less than half of what is left.
    fn limit_tables(&self, headroom: u64) {
        let limit = (headroom / 16).max(self.journal_bytes / TABLE_PART_MIN);
        let limit = if limit > self.journal_bytes * 2 {
            u64::MAX
        } else {
            limit
        };
        self.table_limit.store(limit, Ordering::Relaxed);
    }

    /// Whether a table has as much as may be promised for one.
    pub(crate) fn is_enough(&self, table: &Table) -> bool {
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

    /// The table is in the base.
    pub(crate) fn flushed(&self, table: &Table) {
        let bytes = table.growth() as i64;
        self.unflushed.fetch_sub(bytes, Ordering::SeqCst);
    }

    /// Promises room for a file that is about to grow, if there is room for that.
    pub(crate) fn grow(self: &Arc<Self>, bytes: u64) -> Option<Promise> {
        let promise = self.promise(To::File, bytes);
        (self.left_to_files().ok()? > 0).then_some(promise)
    }

    /// What files may grow by, in bytes and one more.
    fn left_to_files(&self) -> Result<u64> {
        let allowed = 2 * positive(&self.allowance);
        let kept = self.promised() + allowed + self.reserve + self.given_up();
        Ok((self.free()? + 1).saturating_sub(kept))
    }

    /// What can be stored in files that grow.
    pub(crate) fn available(&self) -> Result<u64> {
        Ok(self.left_to_files()?.saturating_sub(1))
    }

    /// What a transaction of a flush may [cost](entry_cost): its pages are all copied before the old
    /// ones are free, and the next transaction but one can use those.
    pub(crate) fn part_of_flush(&self) -> u64 {
        let free = self.free_to_tables().unwrap_or(0);
        (free / 4).max(PART_MIN * TOUCHED_BYTES)
    }

    /// After a flush: what the base's file has and its entries do not need.
    pub(crate) fn found_unused(&self, bytes: u64) {
        self.unused.store(bytes, Ordering::SeqCst);
    }

    /// A flush found no room: gives the reserve up.
    pub(crate) fn overflowed(&self) {
        if !self.full.swap(true, Ordering::Relaxed) {
            tracing::warn!("the partition is full: only removals are taken");
        }
        self.allowance.store(0, Ordering::SeqCst);
        self.set_aside.store(0, Ordering::SeqCst);
        spend_reserve(self.disk.as_ref());
    }

    /// A flush found room. Sets the reserve aside again if it was given up and there is enough.
    pub(crate) fn relieved(self: &Arc<Self>) {
        if self.full.swap(false, Ordering::Relaxed) {
            tracing::info!("the partition has room again");
        }
        let _ = self.set_reserve_aside();
    }

    /// Whether a flush found no room and none has found any since.
    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
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

/// What an entry costs a transaction of a flush at most, in bytes of the file system.
pub(super) fn entry_cost(value: Option<&Bytes>) -> u64 {
    TOUCHED_BYTES + 2 * value.map_or(0, |value| value.len() as u64)
}

/// Gives the reserve back to the file system, so that a flush finds room.
pub(super) fn spend_reserve(disk: &dyn Disk) {
    if let Ok(file) = disk.open(RESERVE_FILE) {
        let _ = file.set_length(0);
    }
}

fn asking(error: &std::io::Error) -> Error {
    Error::Partition(format!("asking for free space: {error}"))
}
