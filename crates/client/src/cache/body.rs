//! The contents of one file as this client has them: what is here, what is to be stored.
//!
//! 1. `valid` bytes are those of `version`, or our own (`dirty`, `storing`). When the server has another
//!    version than ours, what is not our own goes.
//! 2. `length` is the file's length as this client's programs see it; `server_length` as the server does.
//!    A file cut shorter than the server has it and then extended has zeros there: `cut` is the shortest it
//!    was, and is told to the server before bytes beyond it.
//! 3. What is being stored is in `storing`, in neither `dirty` nor lost: a store that fails puts it back,
//!    and bytes written meanwhile are dirty anew.
//! 4. While a store is under way, nobody can say whether a newer version is its doing: what was met is
//!    judged when the store is answered, or has failed.
//! 5. On disk, everything that happens is noted in the index (`kept.rs`), so that the next cache manager goes on:
//!    bytes that an earlier one left are `unchecked` until they are first used, and dirty ones *left over*
//!    until the server has said whether it still has the version that they were made over.
//! 6. Attributes that programs set and no server has are in `set`. They go with the last of the bytes, as a mode may
//!    forbid the next store, and alone where no bytes are left to be stored (`attributes.rs`).

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use cellar_wire::ids::AfsTime;
use cellar_wire::rxafs::{AfsFetchStatus, AfsStoreStatus};

use super::backing::Backing;
use super::entry::{MadeHere, merge};
use super::index::Index;
use super::kept::{Filled, Kept, LeftOver};
use super::ranges::Ranges;

mod earlier;
mod lend;

/// Bytes that one `StoreData` brings at most, to a server that is not far ([`super::far`]).
pub(crate) const STORE_BYTES: u64 = 8 << 20;

/// Bytes in the whole cache, and of them dirty.
#[derive(Debug, Default)]
pub(crate) struct Space {
    pub(crate) used: AtomicU64,
    pub(crate) dirty: AtomicU64,
    /// Bytes of files that others read by themselves (`loans.rs`).
    pub(crate) lent: AtomicU64,
}

/// No version that a server gives.
const NO_VERSION: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct Body {
    space: Arc<Space>,
    backing: Backing,
    version: u64,
    /// The last version that was met, also when nothing is here, and how often another was met that is
    /// not of our own making: the same number, the same contents.
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
    lent: lend::Lent,
}

/// One call to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// The length that the server first cuts the file to.
    pub(crate) file_length: u64,
    pub(crate) modified: Option<AfsTime>,
    /// What programs set, with the last of the bytes.
    pub(crate) set: AfsStoreStatus,
    /// What it settles of [`Body::cut`].
    cut: Option<u64>,
}

impl Piece {
    /// Whether the server is to cut the file off.
    pub(crate) fn cuts(&self) -> bool {
        self.cut.is_some()
    }
}

impl Body {
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
            lent: lend::Lent::new(),
        }
    }

    /// Who writes from now on.
    pub(crate) fn set_writer(&mut self, writer: u32) {
        self.writer = writer;
    }

    /// Who wrote last.
    pub(crate) fn writer(&self) -> u32 {
        self.writer
    }

    /// How it was made here, if no server knows of it and this outlives the process.
    pub(crate) fn made(&self) -> Option<&MadeHere> {
        self.kept.as_ref()?.made()
    }

    /// It was made here, and no server was told.
    pub(crate) fn is_made(&mut self, made: impl FnOnce() -> MadeHere) {
        if let Some(kept) = &mut self.kept {
            kept.is_made(made());
        }
    }

    /// The server knows it.
    pub(crate) fn is_born(&mut self) {
        let changed = self.is_changed();
        if let Some(kept) = &mut self.kept {
            kept.is_born(changed);
        }
    }

    /// A program has closed it: that it was made here outlives this process.
    pub(crate) fn note_made(&mut self, writer: u32, now: AfsTime) {
        let over = (self.version, writer);
        if let Some(kept) = &mut self.kept {
            kept.note_made(over, now);
        }
    }

    /// What to sync so that dirty bytes survive a crash of the machine, and how many changes that are.
    ///
    /// # Errors
    /// Its file cannot be opened.
    pub(crate) fn unsynced(&mut self) -> io::Result<Option<(std::fs::File, Arc<Index>, u64)>> {
        let kept = self.kept.as_ref().filter(|_| self.is_changed());
        let Some((index, changes)) = kept.and_then(Kept::to_sync) else {
            return Ok(None);
        };
        let file = self.backing.synced_file()?;
        Ok(file.map(|file| (file, index, changes)))
    }

    /// It has been synced.
    pub(crate) fn synced(&mut self, changes: u64) {
        let is_changed = self.is_changed();
        if let Some(kept) = self.kept.as_mut().filter(|_| is_changed) {
            kept.synced(changes);
        }
    }

    /// The version that it is of.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// The shortest it was cut to, which the server does not know.
    pub(crate) fn cut(&self) -> Option<u64> {
        self.cut
    }

    /// Its number in the index.
    pub(crate) fn number(&self) -> Option<u64> {
        self.kept.as_ref().map(Kept::number)
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Another number than before: contents that are not what they were, by others.
    pub(crate) fn contents(&self) -> u64 {
        self.contents
    }

    /// Whether there is something that the server does not have.
    pub(crate) fn is_changed(&self) -> bool {
        self.changed || self.set != AfsStoreStatus::default()
    }

    /// Whether something was met during a store, which is judged when that has ended: the length may be another then.
    pub(crate) fn has_to_judge(&self) -> bool {
        self.in_flight && self.meanwhile.is_some()
    }

    /// Attributes that the server does not have.
    pub(crate) fn unstored_attributes(&self) -> AfsStoreStatus {
        self.set
    }

    /// When our own programs changed it last, by our clock.
    pub(crate) fn touched(&self) -> AfsTime {
        self.touched
    }

    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty.bytes()
    }

    /// What no server has, be it on its way.
    pub(crate) fn unstored_bytes(&self) -> u64 {
        self.dirty.bytes() + self.storing.bytes()
    }

    pub(crate) fn valid_bytes(&self) -> u64 {
        self.valid.bytes()
    }

    /// What of `start..end` has to be fetched before it can be read.
    pub(crate) fn gaps(&mut self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let end = end.min(self.length);
        self.check(start, end);
        self.valid.gaps(start, end)
    }

    /// Whether something of `start..end` is not here, as far as is known.
    pub(crate) fn lacks(&self, start: u64, end: u64) -> bool {
        let end = end.min(self.length);
        start < end && !self.valid.gaps(start, end).is_empty()
    }

    /// Bytes that an earlier cache manager left are compared with their checksums before they are used.
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

    /// The server says this about the file. Answers whether bytes that were here are no longer true.
    pub(crate) fn meet(&mut self, status: &AfsFetchStatus) -> bool {
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

    /// What no server has: what our programs wrote, and, beyond what the server has or what was cut off, zeros where
    /// nothing was written. Bytes that a server had there, or that a write left which was never answered, go.
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
    pub(crate) fn forget_clean(&mut self) {
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
    pub(crate) fn forget_range(&mut self, range: Range<u64>) -> io::Result<()> {
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
    pub(crate) fn read(&mut self, start: u64, end: u64) -> io::Result<Vec<u8>> {
        let length = usize::try_from(end.saturating_sub(start)).unwrap_or(0);
        self.backing.read(start, length)
    }

    /// Takes bytes that were fetched of a range, with the status at that moment; only what is not here
    /// already. Behind the server's end our own programs made the file longer: there it is zero. Answers
    /// whether the bytes are of the version that is here: else they are of no use.
    pub(crate) fn fill(
        &mut self,
        status: &AfsFetchStatus,
        range: Range<u64>,
        pieces: &[Bytes],
    ) -> io::Result<bool> {
        if self.version != status.data_version {
            return Ok(false);
        }
        self.make_fit(self.length.max(status.length))?;
        let mut at = range.start;
        let mut filled = Filled::default();
        let coming = at + pieces.iter().map(Bytes::len).sum::<usize>() as u64;
        if self.valid.gaps(at, coming.min(self.length)) == [(at, coming)] {
            // Nothing of it is here: as every file is read the first time.
            self.backing.write_all(at, pieces)?;
            self.account(|body| body.valid.insert(at, coming));
            for piece in pieces.iter().filter(|_| self.kept.is_some()) {
                filled.add(at, piece);
                at += piece.len() as u64;
            }
            at = coming;
        } else {
            for piece in pieces {
                at = self.fill_one(at, piece, &mut filled)?;
            }
        }
        if at >= status.length && at < range.end {
            // Of no version of the server's: it is not kept.
            let zeros = vec![0; (range.end - at) as usize];
            self.fill_one(at, &zeros, &mut Filled::default())?;
        }
        if let Some(kept) = &mut self.kept {
            kept.valid(status.data_version, filled.parts());
        }
        Ok(true)
    }

    fn fill_one(&mut self, at: u64, piece: &[u8], filled: &mut Filled) -> io::Result<u64> {
        let end = at + piece.len() as u64;
        for (from, to) in self.valid.gaps(at, end.min(self.length.max(at))) {
            let part = &piece[(from - at) as usize..(to - at) as usize];
            self.backing.write(from, part)?;
            self.account(|body| body.valid.insert(from, to));
            if self.kept.is_some() {
                filled.add(from, part);
            }
        }
        Ok(end)
    }

    /// Our own programs write.
    pub(crate) fn write(&mut self, position: u64, bytes: &[u8], now: AfsTime) -> io::Result<()> {
        let end = position + bytes.len() as u64;
        self.check(position, end);
        self.make_fit(end)?;
        if let Err(cause) = self.backing.write(position, bytes) {
            self.half_written(position, end, now);
            return Err(cause);
        }
        if let Some(kept) = &mut self.kept {
            let length = self.length.max(end);
            kept.written(self.version, self.writer, (position, end), length, now);
        }
        self.account(|body| {
            // A hole: zeros, here and, once stored, there.
            body.valid.insert(body.length, position);
            body.valid.insert(position, end);
            body.dirty.insert(position, end);
        });
        self.length = self.length.max(end);
        self.changed_contents(now);
        Ok(())
    }

    /// A write failed, of which some may be there: what is clean has to be fetched again, and beyond the end are zeros.
    /// What no server has is a mix of what was there and what was written, as the program knows, and is to be stored so;
    /// also what is being stored, or it would be taken for what the server gets now.
    fn half_written(&mut self, position: u64, end: u64, now: AfsTime) {
        let end = end.min(self.length);
        let being_stored = self.storing.iter();
        let being_stored = being_stored.map(|(from, to)| (from.max(position), to.min(end)));
        let mixed: Vec<_> = being_stored.filter(|(from, to)| from < to).collect();
        for (from, to) in mixed {
            if let Some(kept) = &mut self.kept {
                kept.written(self.version, self.writer, (from, to), self.length, now);
            }
            self.account(|body| body.dirty.insert(from, to));
            self.changed_contents(now);
        }
        self.account(|body| {
            body.valid.remove(position, end);
            body.valid.insert_all(&body.dirty);
            body.valid.insert_all(&body.storing);
        });
        let _also = self.backing.cut(self.length);
    }

    /// Our own programs cut or extend it.
    pub(crate) fn set_length(&mut self, length: u64, now: AfsTime) -> io::Result<()> {
        // What is being stored beyond it is cut off again afterwards.
        let cuts = length < self.length && (length < self.server_length || self.in_flight);
        // What it is to be cut to already is never longer than it is: the server would make it so.
        let cut = match self.cut {
            None if !cuts => None,
            cut => Some(cut.map_or(length, |cut| cut.min(length))),
        };
        self.check(length, length.saturating_add(1));
        if let Some(kept) = &mut self.kept {
            kept.length(self.version, self.writer, length, cut, now);
        }
        if length < self.length {
            self.backing.cut(length)?;
            self.account(|body| {
                body.valid.cut(length);
                body.dirty.cut(length);
            });
            self.cut = cut;
        } else {
            let old = self.length;
            self.account(|body| body.valid.insert(old, length));
        }
        self.length = length;
        self.changed_contents(now);
        Ok(())
    }

    fn changed_contents(&mut self, now: AfsTime) {
        self.changed = true;
        self.modified = Some(now);
        self.touched = now;
        // One that a program set was that of before.
        self.set.client_mod_time = None;
    }

    /// The time of change was set by a program, and is stored with the bytes.
    pub(crate) fn set_modified(&mut self, time: AfsTime) {
        if self.changed {
            self.modified = Some(time);
            self.note_attributes();
        }
    }

    /// Our own programs set attributes, which are stored with the bytes.
    pub(crate) fn set_attributes(&mut self, set: &AfsStoreStatus, now: AfsTime) {
        self.touched = now;
        merge(&mut self.set, set);
        self.modified = set.client_mod_time.or(self.modified);
        self.note_attributes();
    }

    fn note_attributes(&mut self) {
        let modified = self.modified.unwrap_or_default();
        if let Some(kept) = &mut self.kept {
            let over = (self.version, self.writer);
            kept.attributes(over, self.length, modified, &self.set);
        }
    }

    /// These attributes were sent. `shown`: the answer, which says which of them the server took; without, all are
    /// settled. Those that were set meanwhile stay.
    pub(crate) fn attributes_stored(
        &mut self,
        sent: &AfsStoreStatus,
        shown: Option<&AfsFetchStatus>,
    ) {
        if *sent == AfsStoreStatus::default() {
            return;
        }
        fn settle<T: PartialEq>(set: &mut Option<T>, sent: Option<T>, shown: Option<T>) {
            if *set == sent && (shown.is_none() || shown == sent) {
                *set = None;
            }
        }
        let set = &mut self.set;
        let mode = shown.map(|status| status.unix_mode & 0o7777);
        settle(&mut set.unix_mode, sent.unix_mode, mode);
        settle(&mut set.owner, sent.owner, shown.map(|status| status.owner));
        settle(&mut set.group, sent.group, shown.map(|status| status.group));
        let time = shown.map(|status| status.client_mod_time);
        settle(&mut set.client_mod_time, sent.client_mod_time, time);
        if !self.is_changed() {
            if let Some(kept) = &mut self.kept {
                kept.clean();
            }
        } else if !self.changed || self.lacks_a_piece() {
            // Else it is noted next that nothing is left.
            self.note_attributes();
        }
    }

    /// These attributes were set in another way since.
    pub(crate) fn attributes_superseded(&mut self, by: &AfsStoreStatus) {
        let set = &mut self.set;
        let before = *set;
        set.unix_mode = set.unix_mode.filter(|_| by.unix_mode.is_none());
        set.client_mod_time = set.client_mod_time.filter(|_| by.client_mod_time.is_none());
        if *set != before {
            if self.is_changed() {
                self.note_attributes();
            } else if let Some(kept) = &mut self.kept {
                kept.clean();
            }
        }
    }

    /// A status of the server's with what programs here did since.
    pub(crate) fn shown(&self, mut status: AfsFetchStatus) -> AfsFetchStatus {
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

    /// The next call that brings the server nearer to what is here, which is under way from now on;
    /// `None` when there is nothing left. It brings `most` bytes at most. Each must end with [`Body::stored`] or [`Body::not_stored`].
    pub(crate) fn next_piece(&mut self, most: u64) -> Option<Piece> {
        let mut piece = self.choose_piece(most);
        match &mut piece {
            Some(piece) => {
                self.in_flight = true;
                self.cutting = piece.cut.is_some();
                self.account(|body| {
                    body.dirty.remove(piece.start, piece.end);
                    body.storing.insert(piece.start, piece.end);
                });
                self.cut = self.cut.filter(|_| piece.cut.is_none());
                if self.dirty.is_empty() && self.cut.is_none() && piece.file_length >= self.length {
                    piece.set = self.set;
                }
                if let Some(kept) = &mut self.kept {
                    kept.storing(piece.start, piece.end, piece.cut);
                }
            }
            None => {
                let was_changed = std::mem::take(&mut self.changed);
                let left = (self.set != AfsStoreStatus::default()).then_some(self.set);
                let (over, length) = ((self.version, self.writer), self.length);
                let modified = self.modified.unwrap_or_default();
                if let Some(kept) = self.kept.as_mut().filter(|_| was_changed) {
                    match left {
                        Some(set) => kept.clean_but(over, length, modified, &set),
                        None => kept.clean(),
                    }
                }
            }
        }
        piece
    }

    /// Whether the server lacks something that a piece brings.
    fn lacks_a_piece(&self) -> bool {
        self.cut.is_some() || self.dirty.first().is_some() || self.length > self.server_length
    }

    fn choose_piece(&self, most: u64) -> Option<Piece> {
        let piece = |start: u64, end: u64, file_length: u64, cut: Option<u64>| Piece {
            start,
            end,
            file_length,
            modified: self.modified,
            set: AfsStoreStatus::default(),
            cut,
        };
        let first = self.dirty.first();
        if let Some(cut) = self.cut {
            return Some(match first {
                // The file is written anew from the cut on: one call does both.
                Some((start, end)) if start <= cut && end == self.length && end - start <= most => {
                    piece(start, end, end, Some(cut))
                }
                _ => piece(cut, cut, cut, Some(cut)),
            });
        }
        if let Some((start, end)) = first {
            return Some(piece(
                start,
                end.min(start + most),
                self.length.max(end),
                None,
            ));
        }
        // Extended, and nothing written there; or nothing but a time.
        (self.length > self.server_length)
            .then(|| piece(self.length, self.length, self.length, None))
    }

    /// The server took a piece. Answers whether bytes that were here are no longer true: somebody else
    /// has stored too.
    pub(crate) fn stored(
        &mut self,
        piece: &Piece,
        status: &AfsFetchStatus,
        sums: &[(u64, u64, u32)],
    ) -> bool {
        self.in_flight = false;
        self.cutting = false;
        let ours_alone = status.data_version == self.version.wrapping_add(1);
        self.account(|body| body.storing.remove(piece.start, piece.end));
        if let Some(kept) = &mut self.kept {
            // What was written over or cut off meanwhile is not what was stored.
            let whole = sums.iter().filter(|(start, end, _)| {
                ours_alone
                    && *end <= self.length
                    && self.dirty.gaps(*start, *end) == [(*start, *end)]
            });
            let whole: Vec<_> = whole.copied().collect();
            kept.stored(self.version, status.data_version, &whole);
        }
        self.version = status.data_version;
        self.met = status.data_version;
        self.server_length = status.length;
        if !ours_alone {
            self.contents += 1;
            let own = self.own();
            self.account(|body| body.valid = own);
            self.lengthen(status);
        }
        let later = self
            .meanwhile
            .take()
            .filter(|met| met.data_version > status.data_version);
        let Some(met) = later else {
            return !ours_alone;
        };
        // If nothing of ours is left to be stored, the length is what others made of it since.
        self.changed = self.changed && self.lacks_a_piece();
        self.meet(&met) || !ours_alone
    }

    /// The server did not take a piece: it is dirty again. Answers whether bytes that were here are no
    /// longer true.
    pub(crate) fn not_stored(&mut self, piece: &Piece) -> bool {
        self.in_flight = false;
        self.cutting = false;
        self.account(|body| {
            body.storing.remove(piece.start, piece.end);
            // Unless it was given up meanwhile.
            if body.changed {
                body.dirty.insert(piece.start, piece.end.min(body.length));
            }
        });
        if let Some(cut) = piece.cut {
            self.cut = Some(self.cut.map_or(cut, |later| later.min(cut)));
        }
        // Unless it was given up meanwhile.
        if let Some(kept) = self.kept.as_mut().filter(|_| self.changed) {
            kept.not_stored();
        }
        let met = self.meanwhile.take();
        met.is_some_and(|met| self.meet(&met))
    }

    /// The file is gone: there is nobody who could take what is dirty.
    pub(crate) fn abandon(&mut self) {
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
    pub(crate) fn close(&mut self) {
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
