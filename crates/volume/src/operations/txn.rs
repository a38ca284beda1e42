//! One change of an RW volume, from the versions it writes to its commit.
//!
//! A change holds the group's epoch fixed (no clone can be made meanwhile) and the locks of the
//! vnodes it changes. It collects puts, deletes and block changes in a batch. [`Txn::finish`] adds
//! the volume's counters and passes the batch to the engine under the counters' lock, so that later
//! batches have later counters. Only then the caller changes slots in memory.
//!
//! The rules for versions are all in this module. Here `now` is the epoch of the change, and `old`
//! the epoch of the version it replaces. A clone *sees* `old` if its epoch is in `old .. now`.
//!
//! * A new version is written under `now`. If `old` is `now`, it overwrites the old one.
//! * An older version that no clone sees is deleted. Its blocks are released, except those that the
//!   new version or the next older one names too.
//! * A removal deletes in the same way. If any older version remains, it writes a record "gone"
//!   under `now`, so that the older version is not taken for the present one.
//! * If an earlier state had the removed vnode, the removal is entered in the index of removals. A
//!   server that has this earlier state can then ask for the changes since (`history`).

use bytes::Bytes;
use cellar_wire::dir::Page;
use cellar_wire::ids::{AfsTime, ViceId};
use parking_lot::RwLockReadGuard;

use crate::dir::{DirEdit, DirImage, trimmed};
use crate::engine::batch::Batch;
use crate::engine::key::Key;
use crate::engine::space::with_checksum;
use crate::error::{Error, Result};
use crate::record::{Body, PIECE_BYTES, Piece, PieceBlocks, VnodeRecord};
use crate::state::core::{Counters, GroupState};
use crate::state::history;
use crate::state::ticket::{Ticket, is_nonblocking};
use crate::volume::Volume;

/// A body with more pieces than this is removed in the background.
pub(crate) const PIECES_AT_ONCE: u64 = 64;

/// A change that is being composed.
pub(crate) struct Txn<'v> {
    volume: &'v Volume,
    state: RwLockReadGuard<'v, GroupState>,
    pub(crate) batch: Batch,
    now: u64,
    blocks: i64,
    files: i64,
    /// Number of removals that it records.
    removed: u32,
    owner: Option<ViceId>,
    /// The vnodes that it writes or removes.
    changed: Vec<u32>,
    /// Some work is left for the background removal.
    leaves_work: bool,
}

/// The version of a piece that a change replaces.
#[derive(Clone)]
pub(crate) struct OldPiece {
    pub(crate) epoch: u64,
    pub(crate) piece: Piece,
}

impl<'v> Txn<'v> {
    /// Begins a change. The caller holds the vnodes' locks already.
    pub(crate) fn begin(volume: &'v Volume) -> Result<Self> {
        let state = if is_nonblocking() {
            volume.group.state.try_read().ok_or(Error::WouldBlock)?
        } else {
            volume.group.state.read()
        };
        volume.check_changeable(&state)?;
        let now = state.record.epoch;
        Ok(Self {
            volume,
            state,
            batch: Batch::new(),
            now,
            blocks: 0,
            files: 0,
            removed: 0,
            owner: None,
            changed: Vec::with_capacity(4),
            leaves_work: false,
        })
    }

    /// The epoch of the versions that this change writes.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    fn group(&self) -> u32 {
        self.volume.group.id.0
    }

    /// Returns whether any clone sees a version of epoch `old` if this change replaces it.
    fn is_seen_by_clone(&self, old: u64) -> bool {
        let clones = &self.state.record.clones;
        clones
            .iter()
            .any(|clone| clone.epoch >= old && clone.epoch < self.now)
            || self.volume.group.held.any_in(old, self.now)
    }

    /// Returns whether versions older than the present one can exist at all.
    fn has_history(&self) -> bool {
        !self.state.record.clones.is_empty()
            || self.state.reaping > 0
            || self.volume.group.held.any()
    }

    /// Counts usage: blocks of 1 KiB, and files.
    pub(crate) fn charge(&mut self, blocks: i64, files: i64) {
        self.blocks += blocks;
        self.files += files;
    }

    /// Changes the owner of the volume.
    pub(crate) fn set_owner(&mut self, owner: ViceId) {
        self.owner = Some(owner);
    }

    /// Writes a version of a vnode; `old` is the epoch of the version that it replaces.
    pub(crate) fn put_vnode(&mut self, vnode: u32, record: &VnodeRecord, old: Option<u64>) {
        let group = self.group();
        self.changed.push(vnode);
        self.batch
            .put(Key::vnode(group, vnode, self.now), record.encode());
        if old == Some(self.now) {
            return;
        }
        self.note_change(vnode);
        if let Some(old) = old.filter(|&old| !self.is_seen_by_clone(old)) {
            self.drop_version(vnode, old);
        }
    }

    fn note_change(&mut self, vnode: u32) {
        // In the first epoch everything is new: the vnodes themselves are the index.
        if self.now > 1 {
            self.batch
                .put(Key::change(self.group(), self.now, vnode), Bytes::new());
        }
    }

    fn drop_version(&mut self, vnode: u32, epoch: u64) {
        let group = self.group();
        self.batch.delete(Key::vnode(group, vnode, epoch));
        // A pending removal of clones uses this entry to find older versions of the vnode.
        if epoch > 1 && epoch != self.now && self.state.reaping == 0 {
            self.batch.delete(Key::change(group, epoch, vnode));
        }
    }

    /// Removes a vnode, whose last version is of epoch `old`, and its body.
    pub(crate) fn remove_vnode(
        &mut self,
        vnode: u32,
        record: &VnodeRecord,
        old: u64,
    ) -> Result<()> {
        let group = self.group();
        self.changed.push(vnode);
        self.remove_body(vnode, record)?;
        self.note_removal(vnode, record.birth);
        let seen = self.is_seen_by_clone(old);
        // Also versions older than the birth of this vnode: another vnode may have had its number
        // before.
        let older = self.has_history()
            && self.has_older(
                &Key::vnode(group, vnode, old),
                &Key::vnode_prefix(group, vnode),
            )?;
        if !seen {
            self.drop_version(vnode, old);
        }
        if seen || older {
            self.batch.put(
                Key::vnode(group, vnode, self.now),
                VnodeRecord::encode_removed(),
            );
            self.note_change(vnode);
        } else if old == self.now && old > 1 {
            self.batch.delete(Key::change(group, old, vnode));
        }
        Ok(())
    }

    /// Keeps the copies in archives of a file that this change removes. `file` is a retired file's
    /// record.
    pub(crate) fn retire(&mut self, vnode: u32, uniquifier: u32, file: Bytes) {
        let key = Key::retired(self.group(), vnode, uniquifier);
        self.batch.put(key, file);
    }

    /// Records the removal of a vnode born in epoch `birth`, if an earlier state had it that a
    /// client may ask about.
    pub(crate) fn note_removal(&mut self, vnode: u32, birth: u64) {
        if birth < self.now && self.state.record.history_from < self.now {
            let key = Key::removed(self.group(), self.now, vnode);
            self.batch.put(key, history::encode_birth(birth));
            self.removed += 1;
        }
    }

    fn has_older(&self, key: &Key, prefix: &Key) -> Result<bool> {
        let engine = &self.volume.core.engine;
        Ok(engine.first_version(&key.successor(), prefix)?.is_some())
    }

    /// Removes all pieces of a vnode's present body. A large body is removed in the background.
    pub(crate) fn remove_body(&mut self, vnode: u32, record: &VnodeRecord) -> Result<()> {
        let group = self.group();
        match record.body {
            Body::None | Body::Objects | Body::Archived(_) => Ok(()),
            Body::Inline { epoch } => {
                let old = OldPiece {
                    epoch,
                    piece: Piece::Inline(Bytes::new()),
                };
                self.replace_piece(vnode, record.body_number, 0, Some(old), None)
            }
            Body::Pieces => {
                if vnode.is_multiple_of(2) && record.length.div_ceil(PIECE_BYTES) > PIECES_AT_ONCE {
                    // The body number distinguishes two jobs for one vnode.
                    let body = with_checksum(record.body_number.to_be_bytes().to_vec());
                    self.batch.put(Key::reap_vnode(group, vnode), body);
                    self.leaves_work = true;
                    return Ok(());
                }
                let prefix = Key::body_prefix(group, vnode, record.body_number);
                self.remove_pieces(vnode, record.body_number, &prefix, 0)
            }
        }
    }

    /// Removes the pieces from number `first` on.
    pub(crate) fn remove_pieces(
        &mut self,
        vnode: u32,
        body: u32,
        prefix: &Key,
        first: u64,
    ) -> Result<()> {
        let group = self.group();
        let from = Key::piece_prefix(group, vnode, body, first);
        let mut scan = self.volume.core.engine.scan(&from, prefix)?;
        let mut last = None;
        while let Some((key, value)) = scan.next()? {
            let number = key.piece_number();
            if last.replace(number) == Some(number) {
                continue;
            }
            // The blocks of a damaged record are not known; they stay out of use.
            let piece = Piece::decode(&value).unwrap_or(Piece::Inline(Bytes::new()));
            if piece != Piece::Gone {
                let old = OldPiece {
                    epoch: key.epoch(),
                    piece,
                };
                self.replace_piece(vnode, body, number, Some(old), None)?;
            }
        }
        Ok(())
    }

    /// Writes a version of a piece in place of `old`, or removes the piece if `new` is `None`.
    pub(crate) fn replace_piece(
        &mut self,
        vnode: u32,
        body: u32,
        number: u64,
        old: Option<OldPiece>,
        new: Option<(Bytes, Option<&PieceBlocks>)>,
    ) -> Result<()> {
        let group = self.group();
        let key = Key::piece(group, vnode, body, number, self.now);
        let mut gone_needed = false;
        if let Some(old) = old {
            let old_key = Key::piece(group, vnode, body, number, old.epoch);
            if self.is_seen_by_clone(old.epoch) {
                gone_needed = true;
            } else {
                let older = if self.has_history() {
                    let prefix = Key::piece_prefix(group, vnode, body, number);
                    let engine = &self.volume.core.engine;
                    engine.first_version(&old_key.successor(), &prefix)?
                } else {
                    None
                };
                gone_needed = older.is_some();
                if let Piece::Blocks(old_blocks) = old.piece {
                    let older = match &older {
                        Some((_, value)) => Some(Piece::decode(value)?),
                        None => None,
                    };
                    let older = older.as_ref().and_then(Piece::blocks);
                    let kept = new.as_ref().and_then(|(_, blocks)| *blocks);
                    let others: Vec<_> = kept.into_iter().chain(older).collect();
                    self.batch.released.extend(old_blocks.minus(&others));
                }
                if old_key != key {
                    self.batch.delete(old_key);
                }
                if new.is_none() && old_key == key && !gone_needed {
                    self.batch.delete(old_key);
                }
            }
        }
        match new {
            Some((value, _)) => self.batch.put(key, value),
            None if gone_needed => self.batch.put(key, Piece::Gone.encode()),
            None => {}
        }
        Ok(())
    }

    /// Writes an inline body, made by `Piece::encode_inline`, in place of the one of epoch `old`.
    pub(crate) fn put_inline(
        &mut self,
        vnode: u32,
        body: u32,
        old: Option<u64>,
        value: Bytes,
    ) -> Result<()> {
        let old = old.map(|epoch| OldPiece {
            epoch,
            piece: Piece::Inline(Bytes::new()),
        });
        self.replace_piece(vnode, body, 0, old, Some((value, None)))
    }

    /// Writes the pages that an edit of a directory changed.
    pub(crate) fn put_pages(
        &mut self,
        vnode: u32,
        body: u32,
        image: &DirImage,
        edit: &DirEdit<'_>,
    ) -> Result<()> {
        for (index, page) in edit.changed() {
            self.put_page(vnode, body, *index, page, image.epoch(*index))?;
        }
        Ok(())
    }

    /// Writes one page of a directory.
    pub(crate) fn put_page(
        &mut self,
        vnode: u32,
        body: u32,
        index: usize,
        page: &Page,
        old: Option<u64>,
    ) -> Result<()> {
        let old = old.map(|epoch| OldPiece {
            epoch,
            piece: Piece::Inline(Bytes::new()),
        });
        let value = Piece::encode_inline(trimmed(page));
        self.replace_piece(vnode, body, index as u64, old, Some((value, None)))
    }

    /// Checks quotas, enters the counters and commits. `slack` is the number of blocks by which
    /// growth may exceed the quota.
    pub(crate) fn finish(mut self, at: AfsTime, slack: u64) -> Result<Ticket> {
        let mut counters = self.volume.lock_counters()?;
        self.check_quota(&counters, slack)?;
        let before = counters.record;
        let record = &mut counters.record;
        record.blocks_used = record.blocks_used.saturating_add_signed(self.blocks);
        record.files = record.files.saturating_add_signed(self.files);
        record.updated = at;
        record.removed = record.removed.saturating_add(self.removed);
        let forgets = self.removed > 0 && history::is_long(record);
        record.update_counter = record.update_counter.wrapping_add(1);
        self.batch
            .put(Key::counters(self.volume.group.id.0), record.encode());
        let committed = self.commit();
        match &committed {
            Ok(ticket) => {
                self.volume.pending_changes.note(&self.changed, ticket);
                if forgets {
                    self.volume
                        .core
                        .reaper
                        .shorten_history(self.volume.group.id);
                } else if self.leaves_work {
                    self.volume.core.reaper.wake();
                }
            }
            Err(_) => counters.record = before,
        }
        committed
    }

    fn commit(&mut self) -> Result<Ticket> {
        let engine = &self.volume.core.engine;
        let Some(owner) = self.owner else {
            return engine.commit(std::mem::take(&mut self.batch));
        };
        let mut record = self.volume.record().write();
        let before = std::mem::replace(&mut record.info.owner, owner);
        self.batch
            .put(Key::volume(self.volume.id().0), record.encode());
        let committed = engine.commit(std::mem::take(&mut self.batch));
        if committed.is_err() {
            record.info.owner = before;
        }
        committed
    }

    fn check_quota(&self, counters: &Counters, slack: u64) -> Result<()> {
        let (max_blocks, max_files) = self.volume.quotas();
        if self.blocks > 0 && max_blocks > 0 {
            let after = counters
                .record
                .blocks_used
                .saturating_add_signed(self.blocks);
            if after > u64::from(max_blocks) + slack {
                return Err(Error::OverQuota);
            }
        }
        if self.files > 0 && max_files > 0 {
            let after = counters.record.files.saturating_add_signed(self.files);
            if after > u64::from(max_files) {
                return Err(Error::OverQuota);
            }
        }
        Ok(())
    }
}
