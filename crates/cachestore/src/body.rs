//! The contents of one file as this client has them: which bytes are here, and which are to be
//! stored.
//!
//! 1. `valid` bytes are those of `version`, or our own (`dirty`, `storing`). If the server has
//!    another version, all bytes that are not our own are dropped.
//! 2. `length` is the file's length as programs of this machine see it; `server_length` is the
//!    length at the server. A file that was cut below the server's length and then extended has
//!    zeros there. `cut` is the shortest length that it had. It is sent to the server before bytes
//!    beyond it.
//! 3. Bytes that are being stored are in `storing` and not in `dirty`. A failed store puts them
//!    back. Bytes that are written during the store are dirty again.
//! 4. During a store, a newer version may be the effect of the store. Therefore a status that
//!    arrives meanwhile is judged only after the store is answered or has failed.
//! 5. On disk, every change is noted in the index (`recovery_notes.rs`), so that the next process
//!    can continue. Bytes of an earlier process are `unchecked` until their first use. Its dirty
//!    bytes are *left over* until the server has said whether it still has the version over which
//!    they were written.
//! 6. Attributes that programs set and no server has are in `set`. They go with the last bytes,
//!    because a mode may forbid the next store. If no bytes are left to store, they go alone
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
use crate::index_entry::LocalCreate;
use crate::recovery_notes::{BodyNotes, RecoveredChanges};

mod fill;
mod loan;
mod local_change;
mod recovery;
mod store;

/// The most bytes of one `StoreData` call, unless the path to the server is long.
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

/// A version that no server gives.
const NO_VERSION: u64 = u64::MAX;

/// The bytes of one cached file, and what of them is to be stored.
#[derive(Debug)]
pub struct Body {
    space: Arc<Space>,
    backing: Backing,
    version: u64,
    /// The last version that a server reported, also if no bytes are here. `contents` counts the
    /// versions that are not our own: the same number means the same contents.
    seen_version: u64,
    contents: u64,
    length: u64,
    server_length: u64,
    valid: Ranges,
    dirty: Ranges,
    storing: Ranges,
    cut: Option<u64>,
    /// A store is under way, which increases the version.
    in_flight: bool,
    /// The store under way cuts the file. The server may have done that or not.
    cutting: bool,
    /// The newest status that arrived during the store.
    meanwhile: Option<AfsFetchStatus>,
    /// Bytes or a length are to be stored, or are being stored.
    changed: bool,
    /// The modification time to store: of our last change, or as a program set it.
    modified: Option<AfsTime>,
    /// The time of the last change by our own programs.
    touched: AfsTime,
    /// Attributes that our own programs set and no server has.
    set: AfsStoreStatus,
    /// The notes in the index; `None` in memory.
    notes: Option<BodyNotes>,
    /// The last writer, as in the index.
    writer: u32,
    /// The dirty bytes are of an earlier process, and the server was not asked about them yet.
    recovered: Option<RecoveredChanges>,
    /// Whether the file of the bytes is lent.
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
    /// The value of [`Body::truncated_to`] that the call applies at the server.
    cut: Option<u64>,
}

impl Piece {
    /// Whether the call cuts the file.
    pub fn truncates(&self) -> bool {
        self.cut.is_some()
    }
}

impl Body {
    /// An empty body whose bytes are in memory. They are lost when the process ends.
    pub fn in_memory(space: Arc<Space>) -> Self {
        Self::new(Backing::memory(), space)
    }

    pub(crate) fn new(backing: Backing, space: Arc<Space>) -> Self {
        Self {
            space,
            backing,
            version: NO_VERSION,
            seen_version: NO_VERSION,
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
            notes: None,
            writer: u32::MAX,
            recovered: None,
            lent: loan::Lent::new(),
        }
    }

    /// Sets the user that writes from now on.
    pub fn set_writer(&mut self, writer: u32) {
        self.writer = writer;
    }

    /// The user that wrote last.
    pub fn writer(&self) -> u32 {
        self.writer
    }

    /// The local create of the file, if no server knows the file and the note of it outlives the
    /// process.
    pub fn local_create(&self) -> Option<&LocalCreate> {
        self.notes.as_ref()?.local_create()
    }

    /// Notes that the file is a local create, which no server knows.
    pub fn set_local_create(&mut self, create: impl FnOnce() -> LocalCreate) {
        if let Some(notes) = &mut self.notes {
            notes.set_local_create(create());
        }
    }

    /// Notes that the server knows the file.
    pub fn create_done(&mut self) {
        let changed = self.is_changed();
        if let Some(notes) = &mut self.notes {
            notes.create_done(changed);
        }
    }

    /// Called when a program has closed the file: the note of the local create now outlives the
    /// process.
    pub fn record_create(&mut self, writer: u32, now: AfsTime) {
        let over = (self.version, writer);
        if let Some(notes) = &mut self.notes {
            notes.record_create(over, now);
        }
    }

    /// The file and the index to sync, in this order, so that dirty bytes survive a crash of the
    /// machine. The number is to be passed to [`Body::synced`]. `None` if nothing is to be synced.
    ///
    /// # Errors
    /// The file of the bytes cannot be opened.
    pub fn unsynced(&mut self) -> io::Result<Option<(std::fs::File, Arc<Index>, u64)>> {
        let notes = self.notes.as_ref().filter(|_| self.is_changed());
        let Some((index, changes)) = notes.and_then(BodyNotes::to_sync) else {
            return Ok(None);
        };
        let file = self.backing.synced_file()?;
        Ok(file.map(|file| (file, index, changes)))
    }

    /// Notes that the changes up to this number of [`Body::unsynced`] are on the disk.
    pub fn synced(&mut self, changes: u64) {
        let is_changed = self.is_changed();
        if let Some(notes) = self.notes.as_mut().filter(|_| is_changed) {
            notes.synced(changes);
        }
    }

    /// The data version of the bytes.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The shortest length since the last store, if the file was cut and the server does not know
    /// it.
    pub fn truncated_to(&self) -> Option<u64> {
        self.cut
    }

    /// The number of the file in the index.
    pub fn number(&self) -> Option<u64> {
        self.notes.as_ref().map(BodyNotes::number)
    }

    /// The length of the file, as programs of this machine see it, in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// A number that changes when the contents change by others than this machine.
    pub fn content_generation(&self) -> u64 {
        self.contents
    }

    /// Whether bytes, a length or attributes are here that the server does not have.
    pub fn is_changed(&self) -> bool {
        self.changed || self.set != AfsStoreStatus::default()
    }

    /// Whether a status arrived during a store and is judged after it. The length may change then.
    pub fn has_deferred_status(&self) -> bool {
        self.in_flight && self.meanwhile.is_some()
    }

    /// Attributes that the server does not have.
    pub fn unstored_attributes(&self) -> AfsStoreStatus {
        self.set
    }

    /// The time of the last change by our own programs, by our clock.
    pub fn last_change(&self) -> AfsTime {
        self.touched
    }

    /// The number of dirty bytes that are not being stored.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty.bytes()
    }

    /// The number of bytes that no server has acknowledged, including those that are being stored.
    pub fn unstored_bytes(&self) -> u64 {
        self.dirty.bytes() + self.storing.bytes()
    }

    /// The number of bytes that are here.
    pub fn valid_bytes(&self) -> u64 {
        self.valid.bytes()
    }

    /// The parts of `start..end` that must be fetched before the range can be read.
    pub fn gaps(&mut self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let end = end.min(self.length);
        self.check(start, end);
        self.valid.gaps(start, end)
    }

    /// Whether a part of `start..end` is not here. Checksums are not compared.
    pub fn lacks(&self, start: u64, end: u64) -> bool {
        let end = end.min(self.length);
        start < end && !self.valid.gaps(start, end).is_empty()
    }

    /// Compares bytes of an earlier process with their checksums, before their first use.
    fn check(&mut self, start: u64, end: u64) {
        let Some(notes) = &mut self.notes else {
            return;
        };
        for (from, to) in notes.damaged(start, end, &mut self.backing) {
            self.account(|body| body.valid.remove(from, to));
        }
    }

    /// Changes the sets of bytes, and updates the sums of the cache.
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

    /// Applies a status from the server. Returns whether bytes that were here have become stale.
    pub fn apply_status(&mut self, status: &AfsFetchStatus) -> bool {
        if self.in_flight {
            let newest = self
                .meanwhile
                .is_none_or(|known| known.data_version <= status.data_version);
            if newest {
                self.meanwhile = Some(*status);
            }
            return false;
        }
        if self.recovered.as_ref().is_some_and(|left| left.postponed) {
            return false;
        }
        self.decide(status);
        let newer = self.version != status.data_version;
        let stale = newer && (self.version != NO_VERSION || self.valid.bytes() > 0);
        if self.seen_version != status.data_version {
            self.seen_version = status.data_version;
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

    /// Sets the length: that of the server, unless our own programs have changed it.
    fn lengthen(&mut self, status: &AfsFetchStatus) {
        if !self.changed {
            self.length = status.length;
        } else if self.cut.is_none() {
            // Others have put something behind what is here.
            self.length = self.length.max(status.length);
        }
    }

    /// The bytes that no server has: those that our programs wrote, and zeros beyond the server's
    /// length or the cut where nothing was written. Other bytes in that area are overwritten with
    /// zeros: old bytes of the server, or the rest of a write that was never answered.
    fn unstored_ranges(&mut self) -> Ranges {
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

    /// Drops all bytes that are not our own.
    pub fn forget_clean(&mut self) {
        if self.cutting {
            return;
        }
        let own = self.unstored_ranges();
        self.account(|body| body.valid = own);
        if let Some(notes) = &mut self.notes {
            notes.void(0, u64::MAX);
        }
        if self.valid.is_empty() && !self.changed {
            self.remove();
        }
    }

    /// Removes the file of the bytes. Attributes that no server has may remain.
    fn remove(&mut self) {
        self.leave_lent();
        self.backing.remove();
        let is_changed = self.is_changed();
        if let Some(notes) = self.notes.as_mut().filter(|_| !is_changed) {
            notes.note_removal();
        }
    }

    /// Drops clean bytes in `range`, to make room in the middle of a file larger than the cache.
    pub fn forget_range(&mut self, range: Range<u64>) -> io::Result<()> {
        if self.cutting || self.is_lent() {
            return Ok(());
        }
        let own = self.unstored_ranges();
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
            if let Some(notes) = &mut self.notes {
                for (from, to) in notes.void(start, end) {
                    self.account(|body| body.valid.remove(from, to));
                }
            }
            self.backing.discard(start, end)?;
        }
        Ok(())
    }

    /// Reads bytes that are here.
    ///
    /// # Errors
    /// The disk cannot be read.
    pub fn read(&mut self, start: u64, end: u64) -> io::Result<Vec<u8>> {
        let length = usize::try_from(end.saturating_sub(start)).unwrap_or(0);
        self.backing.read(start, length)
    }

    /// A status of the server, with the changes that programs of this machine made since.
    pub fn with_local_changes(&self, mut status: AfsFetchStatus) -> AfsFetchStatus {
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

    /// Drops everything, dirty bytes included: the file is gone at the server.
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
        self.recovered = None;
        self.remove();
        self.version = NO_VERSION;
    }

    /// Moves the bytes to a file of their own if a slot is too short for bytes up to `end`.
    fn make_fit(&mut self, end: u64) -> io::Result<()> {
        let synced = self.notes.as_ref().is_some_and(BodyNotes::was_synced);
        let moved = self.backing.make_fit(end, self.length, synced)?;
        if let Some(notes) = self.notes.as_mut().filter(|_| moved) {
            notes.moved();
        }
        Ok(())
    }

    /// Closes the descriptor: no program has the file open.
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
        if !(self.notes.as_mut()).is_some_and(|notes| notes.rest(&self.backing)) {
            self.backing.remove();
        }
    }
}

#[cfg(test)]
mod tests;
