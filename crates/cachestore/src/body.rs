//! The contents of one file as this client has them: what is here, what is to be stored.
//!
//! 1. `valid` bytes are those of `version`, or our own (`dirty`, `storing`). When the server has
//!    another version than ours, what is not our own goes.
//! 2. `length` is the file's length as this client's programs see it; `server_length` as the server
//!    does. A file cut shorter than the server has it and then extended has zeros there: `cut` is
//!    the shortest it was, and is told to the server before bytes beyond it.
//! 3. What is being stored is in `storing`, in neither `dirty` nor lost: a store that fails puts it
//!    back, and bytes written meanwhile are dirty anew.
//! 4. While a store is under way, nobody can say whether a newer version is its doing: what was met
//!    is judged when the store is answered, or has failed.
//! 5. On disk, everything that happens is noted in the index (`recovery_notes.rs`), so that the
//!    next cache manager goes on: bytes that an earlier one left are `unchecked` until they are
//!    first used, and dirty ones *left over* until the server has said whether it still has the
//!    version that they were made over.
//! 6. Attributes that programs set and no server has are in `set`. They go with the last of the
//!    bytes, as a mode may forbid the next store, and alone where no bytes are left to be stored
//!    (`attributes.rs` of `cellar-client`).

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cellar_wire::ids::AfsTime;
use cellar_wire::rxafs::{AfsFetchStatus, AfsStoreStatus};

use crate::backing_store::Backing;
use crate::byte_ranges::Ranges;
use crate::cache_index::Index;
use crate::index_entry::MadeHere;
use crate::recovery_notes::{Kept, LeftOver};

mod fill;
mod loan;
mod local_change;
mod recovery;
mod store;

/// Bytes that one `StoreData` brings at most, to a server that is not far ([`super::far`]).
pub const STORE_BYTES: u64 = 8 << 20;

/// The sums of bytes over all files of a cache.
#[derive(Debug, Default)]
pub struct Space {
    /// Bytes that the cache holds, those at rest included.
    pub used: AtomicU64,
    /// Bytes that no server has acknowledged.
    pub dirty: AtomicU64,
    /// Bytes of files that are lent to the kernel ([`Body::lend`]).
    pub lent: AtomicU64,
}

/// No version that a server gives.
const NO_VERSION: u64 = u64::MAX;

/// The bytes of one cached file, and what of them is to be stored.
#[derive(Debug)]
pub struct Body {
    space: Arc<Space>,
    backing: Backing,
    version: u64,
    /// The last version that was met, also when nothing is here, and how often another was met that
    /// is not of our own making: the same number, the same contents.
    met: u64,
    contents: u64,
    length: u64,
    server_length: u64,
    valid: Ranges,
    dirty: Ranges,
    storing: Ranges,
    cut: Option<u64>,
    /// A store is under way: versions rise because of it.
    in_flight: bool,
    /// It cuts the file off, which the server may have done or not.
    cutting: bool,
    /// The newest status that was met meanwhile.
    meanwhile: Option<AfsFetchStatus>,
    /// There is something to be stored, or being stored.
    changed: bool,
    /// When our own programs changed it, or what they say instead.
    modified: Option<AfsTime>,
    /// When our own programs changed it.
    touched: AfsTime,
    /// Attributes that our own programs set, and no server has.
    set: AfsStoreStatus,
    /// What outlives this process.
    kept: Option<Kept>,
    /// Who wrote last, as the index has it.
    writer: u32,
    /// What is dirty is of an earlier cache manager, and the server has not been asked yet.
    left_over: Option<LeftOver>,
    /// Whether its file is lent.
    lent: loan::Lent,
}

/// One store call that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The first byte that the call brings.
    pub start: u64,
    /// The end of the bytes that the call brings.
    pub end: u64,
    /// The length to which the server sets the file before it writes the bytes.
    pub file_length: u64,
    /// The modification time to set.
    pub modified: Option<AfsTime>,
    /// Attributes that programs set; they go with the last piece.
    pub set: AfsStoreStatus,
    /// The value of [`Body::cut`] that the call applies at the server.
    cut: Option<u64>,
}

impl Piece {
    /// Whether the server is to cut the file off.
    pub fn cuts(&self) -> bool {
        self.cut.is_some()
    }
}

impl Body {
    /// A file whose bytes are in memory, and end with this process.
    pub fn in_memory(space: Arc<Space>) -> Self {
        Self::new(Backing::memory(), space)
    }

    pub(crate) fn new(backing: Backing, space: Arc<Space>) -> Self {
        Self {
            space,
            backing,
            version: NO_VERSION,
            met: NO_VERSION,
            contents: 0,
            length: 0,
            server_length: 0,
            valid: Ranges::default(),
            dirty: Ranges::default(),
            storing: Ranges::default(),
            cut: None,
            in_flight: false,
            cutting: false,
            meanwhile: None,
            changed: false,
            modified: None,
            touched: AfsTime(0),
            set: AfsStoreStatus::default(),
            kept: None,
            writer: u32::MAX,
            left_over: None,
            lent: loan::Lent::new(),
        }
    }

    /// Who writes from now on.
    pub fn set_writer(&mut self, writer: u32) {
        self.writer = writer;
    }

    /// Who wrote last.
    pub fn writer(&self) -> u32 {
        self.writer
    }

    /// How it was made here, if no server knows of it and this outlives the process.
    pub fn made(&self) -> Option<&MadeHere> {
        self.kept.as_ref()?.made()
    }

    /// It was made here, and no server was told.
    pub fn is_made(&mut self, made: impl FnOnce() -> MadeHere) {
        if let Some(kept) = &mut self.kept {
            kept.is_made(made());
        }
    }

    /// The server knows it.
    pub fn is_born(&mut self) {
        let changed = self.is_changed();
        if let Some(kept) = &mut self.kept {
            kept.is_born(changed);
        }
    }

    /// A program has closed it: that it was made here outlives this process.
    pub fn note_made(&mut self, writer: u32, now: AfsTime) {
        let over = (self.version, writer);
        if let Some(kept) = &mut self.kept {
            kept.note_made(over, now);
        }
    }

    /// What to sync so that dirty bytes survive a crash of the machine, and how many changes that
    /// are.
    ///
    /// # Errors
    /// Its file cannot be opened.
    pub fn unsynced(&mut self) -> io::Result<Option<(std::fs::File, Arc<Index>, u64)>> {
        let kept = self.kept.as_ref().filter(|_| self.is_changed());
        let Some((index, changes)) = kept.and_then(Kept::to_sync) else {
            return Ok(None);
        };
        let file = self.backing.synced_file()?;
        Ok(file.map(|file| (file, index, changes)))
    }

    /// It has been synced.
    pub fn synced(&mut self, changes: u64) {
        let is_changed = self.is_changed();
        if let Some(kept) = self.kept.as_mut().filter(|_| is_changed) {
            kept.synced(changes);
        }
    }

    /// The version that it is of.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The shortest it was cut to, which the server does not know.
    pub fn cut(&self) -> Option<u64> {
        self.cut
    }

    /// Its number in the index.
    pub fn number(&self) -> Option<u64> {
        self.kept.as_ref().map(Kept::number)
    }

    /// The length of the file, as programs of this machine see it, in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Another number than before: contents that are not what they were, by others.
    pub fn contents(&self) -> u64 {
        self.contents
    }

    /// Whether there is something that the server does not have.
    pub fn is_changed(&self) -> bool {
        self.changed || self.set != AfsStoreStatus::default()
    }

    /// Whether something was met during a store, which is judged when that has ended: the length
    /// may be another then.
    pub fn has_to_judge(&self) -> bool {
        self.in_flight && self.meanwhile.is_some()
    }

    /// Attributes that the server does not have.
    pub fn unstored_attributes(&self) -> AfsStoreStatus {
        self.set
    }

    /// When our own programs changed it last, by our clock.
    pub fn touched(&self) -> AfsTime {
        self.touched
    }

    /// The number of dirty bytes that are not being stored.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty.bytes()
    }

    /// What no server has, be it on its way.
    pub fn unstored_bytes(&self) -> u64 {
        self.dirty.bytes() + self.storing.bytes()
    }

    /// The number of bytes that are here.
    pub fn valid_bytes(&self) -> u64 {
        self.valid.bytes()
    }

    /// What of `start..end` has to be fetched before it can be read.
    pub fn gaps(&mut self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let end = end.min(self.length);
        self.check(start, end);
        self.valid.gaps(start, end)
    }

    /// Whether something of `start..end` is not here, as far as is known.
    pub fn lacks(&self, start: u64, end: u64) -> bool {
        let end = end.min(self.length);
        start < end && !self.valid.gaps(start, end).is_empty()
    }

    /// Bytes that an earlier cache manager left are compared with their checksums before they are
    /// used.
    fn check(&mut self, start: u64, end: u64) {
        let Some(kept) = &mut self.kept else {
            return;
        };
        for (from, to) in kept.damaged(start, end, &mut self.backing) {
            self.account(|body| body.valid.remove(from, to));
        }
    }

    /// Changes which bytes are here and dirty, keeping the cache's sums.
    fn account<T>(&mut self, change: impl FnOnce(&mut Self) -> T) -> T {
        let before = (
            self.valid.bytes(),
            self.dirty.bytes() + self.storing.bytes(),
        );
        let result = change(self);
        let after = (
            self.valid.bytes(),
            self.dirty.bytes() + self.storing.bytes(),
        );
        let shift = |sum: &AtomicU64, before: u64, after: u64| {
            if after >= before {
                sum.fetch_add(after - before, Ordering::Relaxed);
            } else {
                sum.fetch_sub(before - after, Ordering::Relaxed);
            }
        };
        shift(&self.space.used, before.0, after.0);
        shift(&self.space.dirty, before.1, after.1);
        result
    }

    /// The server says this about the file. Answers whether bytes that were here are no longer
    /// true.
    pub fn meet(&mut self, status: &AfsFetchStatus) -> bool {
        if self.in_flight {
            let newest = self
                .meanwhile
                .is_none_or(|known| known.data_version <= status.data_version);
            if newest {
                self.meanwhile = Some(*status);
            }
            return false;
        }
        if self.left_over.as_ref().is_some_and(|left| left.postponed) {
            return false;
        }
        self.decide(status);
        let newer = self.version != status.data_version;
        let stale = newer && (self.version != NO_VERSION || self.valid.bytes() > 0);
        if self.met != status.data_version {
            self.met = status.data_version;
            self.contents += 1;
        }
        self.server_length = status.length;
        if newer {
            self.forget_clean();
            self.version = status.data_version;
        }
        self.lengthen(status);
        stale
    }

    /// The file is as long as the server says, or as our own programs have made it.
    fn lengthen(&mut self, status: &AfsFetchStatus) {
        if !self.changed {
            self.length = status.length;
        } else if self.cut.is_none() {
            // Others have put something behind what is here.
            self.length = self.length.max(status.length);
        }
    }

    /// What no server has: what our programs wrote, and, beyond what the server has or what was cut
    /// off, zeros where nothing was written. Bytes that a server had there, or that a write left
    /// which was never answered, go.
    fn own(&mut self) -> Ranges {
        let mut own = self.dirty.clone();
        own.insert_all(&self.storing);
        if self.changed {
            let from = self.cut.unwrap_or(u64::MAX).min(self.server_length);
            for (start, end) in own.gaps(from, self.length) {
                match self.backing.zero(start, end) {
                    Ok(()) => own.insert(start, end),
                    Err(cause) => tracing::warn!(%cause, "the cache fails"),
                }
            }
        }
        own
    }

    /// Drops what is not our own.
    pub fn forget_clean(&mut self) {
        if self.cutting {
            return;
        }
        let own = self.own();
        self.account(|body| body.valid = own);
        if let Some(kept) = &mut self.kept {
            kept.void(0, u64::MAX);
        }
        if self.valid.is_empty() && !self.changed {
            self.remove();
        }
    }

    /// There are no bytes here; perhaps attributes that no server has.
    fn remove(&mut self) {
        self.leave_lent();
        self.backing.remove();
        let is_changed = self.is_changed();
        if let Some(kept) = self.kept.as_mut().filter(|_| !is_changed) {
            kept.gone();
        }
    }

    /// Drops clean bytes in `range`, to make room in the middle of a file larger than the cache.
    pub fn forget_range(&mut self, range: Range<u64>) -> io::Result<()> {
        if self.cutting || self.is_lent() {
            return Ok(());
        }
        let own = self.own();
        let clean: Vec<_> = {
            let of_others = |(start, end): (u64, u64)| own.gaps(start, end);
            self.valid
                .iter()
                .map(|(start, end)| (start.max(range.start), end.min(range.end)))
                .filter(|(start, end)| start < end)
                .flat_map(of_others)
                .collect()
        };
        for (start, end) in clean {
            self.account(|body| body.valid.remove(start, end));
            if let Some(kept) = &mut self.kept {
                for (from, to) in kept.void(start, end) {
                    self.account(|body| body.valid.remove(from, to));
                }
            }
            self.backing.discard(start, end)?;
        }
        Ok(())
    }

    /// Reads what is here.
    pub fn read(&mut self, start: u64, end: u64) -> io::Result<Vec<u8>> {
        let length = usize::try_from(end.saturating_sub(start)).unwrap_or(0);
        self.backing.read(start, length)
    }

    /// A status of the server's with what programs here did since.
    pub fn shown(&self, mut status: AfsFetchStatus) -> AfsFetchStatus {
        if self.changed {
            status.length = self.length;
            status.client_mod_time = self.modified.unwrap_or(status.client_mod_time);
        }
        if self.is_changed() {
            status.server_mod_time = status.server_mod_time.max(self.touched);
        }
        let set = &self.set;
        status.unix_mode = set.unix_mode.unwrap_or(status.unix_mode);
        status.owner = set.owner.unwrap_or(status.owner);
        status.group = set.group.unwrap_or(status.group);
        status.client_mod_time = set.client_mod_time.unwrap_or(status.client_mod_time);
        status
    }

    /// The file is gone: there is nobody who could take what is dirty.
    pub fn abandon(&mut self) {
        self.account(|body| {
            body.valid.clear();
            body.dirty.clear();
            body.storing.clear();
        });
        self.changed = false;
        self.set = AfsStoreStatus::default();
        self.cut = None;
        self.meanwhile = None;
        self.left_over = None;
        self.remove();
        self.version = NO_VERSION;
    }

    /// Before bytes up to `end` come.
    fn make_fit(&mut self, end: u64) -> io::Result<()> {
        let synced = self.kept.as_ref().is_some_and(Kept::was_synced);
        let moved = self.backing.make_fit(end, self.length, synced)?;
        if let Some(kept) = self.kept.as_mut().filter(|_| moved) {
            kept.moved();
        }
        Ok(())
    }

    /// No program has it open.
    pub fn close(&mut self) {
        self.backing.close();
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.account(|body| {
            body.valid.clear();
            body.dirty.clear();
            body.storing.clear();
        });
        if !(self.kept.as_mut()).is_some_and(|kept| kept.rest(&self.backing)) {
            self.backing.remove();
        }
    }
}

#[cfg(test)]
mod tests;
