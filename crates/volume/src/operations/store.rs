//! Storing bytes into a file: completely, or not at all.
//!
//! 1. As bytes come in, those that fill whole blocks are written to blocks that nothing names yet,
//!    without any lock. So a slow client does not delay others, and a client that goes away leaves
//!    nothing.
//! 2. At the commit, under the vnode's lock, the partly overwritten blocks are composed. They get
//!    the bytes at the edges and the bytes that the file has at that moment.
//! 3. One batch has all of it: new piece records, the vnode with its new length and data version,
//!    the blocks taken and released.
//!
//! A file that is small after the store is one record of the table, without blocks. Its store costs
//! one sync, which it shares with others.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use cellar_wire::ids::Fid;

use crate::engine::blocks::{CacheMode, Gathered, Owner};
use crate::engine::key::Key;
use crate::engine::room::Promise;
use crate::error::{Error, Result};
use crate::operations::attributes::set_attributes;
use crate::operations::create::grown;
use crate::operations::layout::keeps_bytes;
use crate::operations::pushed::PushedBytes;
use crate::operations::txn::{OldPiece, Txn};
use crate::record::{
    BLOCK, BlockRef, Body, PIECE_BLOCKS, PIECE_BYTES, Piece, PieceBlocks, VnodeRecord,
};
use crate::state::vnode_slots::Loaded;
use crate::types::{Changed, Context, FileType, StoreSpec, VnodeStatus, blocks_of};
use crate::volume::Volume;

/// About the bytes that a store adds to the table beside the body.
pub(crate) const RECORDS_GROWTH: u64 = 4096;
/// Set-user-id and set-group-id.
pub(crate) const SET_ID_BITS: u16 = 0o6000;
/// Largest length of a file.
pub(crate) const LENGTH_MAX: u64 = i64::MAX as u64;

/// A store whose bytes arrive in several parts.
#[derive(Debug)]
pub struct Store {
    volume: Arc<Volume>,
    incoming: Incoming,
}

/// Bytes of a store: those already in blocks, and those in memory.
pub(crate) struct Incoming {
    /// Room for its records in the table.
    _room: Promise,
    pub(crate) fid: Fid,
    spec: StoreSpec,
    pub(crate) announced: u64,
    received: u64,
    pub(crate) gathered: Gathered,
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Incoming({}, {} of {} bytes)",
            self.fid, self.received, self.announced
        )
    }
}

impl Store {
    /// Takes the next bytes. May write to the disk.
    ///
    /// `Invalid` for more bytes than were announced; `DiskFull`.
    pub fn push(&mut self, bytes: Bytes) -> Result<()> {
        self.incoming.push(&self.volume, bytes)
    }

    /// Bytes that are still to come.
    pub fn missing(&self) -> u64 {
        self.incoming.announced - self.incoming.received
    }

    /// Makes the store valid. All announced bytes must have been pushed.
    pub fn commit(mut self, context: Context) -> Result<StoreOutcome> {
        if self.missing() > 0 {
            return Err(Error::Invalid("bytes of the store are missing"));
        }
        let changed = self.volume.commit_store(&mut self.incoming, context)?;
        Ok(match changed {
            Some(changed) => StoreOutcome::Stored(changed),
            None => StoreOutcome::InObjects(PushedBytes::of(self.volume, self.incoming)),
        })
    }
}

/// The end of a store whose bytes arrived in several parts.
#[derive(Debug)]
#[must_use]
pub enum StoreOutcome {
    /// The file has the new contents.
    Stored(Changed<VnodeStatus>),
    /// The file went to objects while the bytes arrived, and keeps some of its own. Nothing has
    /// changed.
    InObjects(PushedBytes),
}

impl Volume {
    /// Begins a store of `length` bytes that are pushed later. It is not visible before
    /// [`Store::commit`]; dropping it leaves nothing.
    ///
    /// Returns `None` for a file in objects of which the store keeps bytes. If it keeps none, the
    /// file is in this store afterwards.
    ///
    /// `IsDirectory` for anything but a plain file, `FileTooBig`, `OverQuota`, `DiskFull`,
    /// `ReadOnly`.
    pub fn begin_store(
        self: &Arc<Self>,
        fid: Fid,
        spec: &StoreSpec,
        length: u64,
    ) -> Result<Option<Store>> {
        let incoming = self.incoming(fid, spec, length)?;
        let status = self.status(fid)?;
        if status.kind != FileType::File {
            return Err(Error::IsDirectory);
        }
        let stays_away = self.with(fid, |loaded| {
            let kept = keeps_bytes(&loaded.record, spec, length);
            match loaded.record.body {
                Body::Archived(_) if kept => Err(Error::Archived(fid)),
                Body::Objects => Ok(kept),
                _ => Ok(false),
            }
        })?;
        if stays_away {
            return Ok(None);
        }
        let after = final_length(status.length, spec, length);
        let growth = blocks_of(after).saturating_sub(status.blocks());
        let (max_blocks, _) = self.quotas();
        if growth > 0 && max_blocks > 0 {
            let used = self.lock_counters()?.record.blocks_used;
            if used.saturating_add(growth) > u64::from(max_blocks) + spec.quota_slack {
                return Err(Error::OverQuota);
            }
        }
        Ok(Some(Store {
            volume: Arc::clone(self),
            incoming,
        }))
    }

    /// Stores bytes that are all in memory.
    ///
    /// As [`Volume::store_here`], and `InObjects` for a file that is not here.
    pub fn store(
        &self,
        fid: Fid,
        spec: &StoreSpec,
        data: &[Bytes],
        context: Context,
    ) -> Result<Changed<VnodeStatus>> {
        let stored = self.store_here(fid, spec, data, context)?;
        stored.ok_or(Error::InObjects(fid))
    }

    /// Stores bytes that are all in memory. Returns `None`, and changes nothing, if the file is in
    /// objects and the store keeps bytes of it.
    ///
    /// The errors are those of [`Volume::begin_store`].
    pub fn store_here(
        &self,
        fid: Fid,
        spec: &StoreSpec,
        data: &[Bytes],
        context: Context,
    ) -> Result<Option<Changed<VnodeStatus>>> {
        let length = data.iter().map(|bytes| bytes.len() as u64).sum();
        let mut incoming = self.incoming(fid, spec, length)?;
        for bytes in data {
            incoming.push(self, bytes.clone())?;
        }
        self.commit_store(&mut incoming, context)
    }

    /// Begins to gather the bytes of a store.
    pub(crate) fn incoming(&self, fid: Fid, spec: &StoreSpec, length: u64) -> Result<Incoming> {
        self.check_fid(fid)?;
        self.check_writable()?;
        let end = spec.position.checked_add(length).ok_or(Error::FileTooBig)?;
        if end > LENGTH_MAX {
            return Err(Error::FileTooBig);
        }
        // Bytes in blocks are not counted here: their room is checked when blocks are handed out.
        let inline = self.core.engine.options().inline_bytes as u64;
        let growth = match length {
            // A store without bytes cuts the file, or extends it with a hole.
            0 => 0,
            _ if length <= inline => length + RECORDS_GROWTH,
            _ => length / 256 + RECORDS_GROWTH,
        };
        let room = self.core.engine.admit(growth)?;
        Ok(Incoming {
            _room: room,
            fid,
            spec: *spec,
            announced: length,
            received: 0,
            gathered: Gathered::new(
                Owner::vnode(self.group.id.0, fid.vnode.0),
                CacheMode::Cached,
                spec.position,
            ),
        })
    }

    /// Applies a store. Returns `None` if the file is in objects and keeps bytes; then `incoming`
    /// still has its bytes.
    fn commit_store(
        &self,
        incoming: &mut Incoming,
        context: Context,
    ) -> Result<Option<Changed<VnodeStatus>>> {
        let fid = incoming.fid;
        let slot = self.slot(fid.vnode);
        let mut locked = self.lock(&slot, fid)?;
        let loaded = locked.get_mut(fid)?;
        if loaded.record.kind != FileType::File {
            return Err(Error::IsDirectory);
        }
        let old = loaded.record.clone();
        let mut record = old.clone();
        record.length = final_length(old.length, &incoming.spec, incoming.announced);
        record.data_version += 1;
        record.author = context.author;
        record.server_time = context.now;
        record.client_time = context.now;
        set_attributes(&mut record, &incoming.spec.attributes);
        if incoming.spec.clear_set_id {
            record.mode &= !SET_ID_BITS;
        }
        let mut txn = Txn::begin(self)?;
        let mut kept = old.length.min(incoming.spec.file_length);
        if matches!(old.body, Body::Objects | Body::Archived(_)) {
            if keeps_bytes(&old, &incoming.spec, incoming.announced) {
                return match old.body {
                    Body::Objects => Ok(None),
                    _ => Err(Error::Archived(fid)),
                };
            }
            // The new bytes are the whole file, so it is kept in this store from now on.
            kept = 0;
            record.note_cut(txn.now(), 0);
            record.serial = old.last_serial();
            record.layout = None;
            record.body = Body::None;
        } else if kept < old.length {
            record.note_cut(txn.now(), kept);
        }
        let mut body = None;
        if self.fits_inline(&old, &record, incoming, kept) {
            body = self.stage_inline(&mut txn, loaded, &mut record, incoming, kept)?;
        } else {
            self.stage_pieces(&mut txn, loaded, &mut record, incoming, kept)?;
        }
        txn.put_vnode(fid.vnode.0, &record, Some(loaded.epoch));
        txn.charge(grown(&old, &record), 0);
        let now = txn.now();
        let durable = txn.finish(context.now, incoming.spec.quota_slack)?;
        for allocation in incoming.gathered.allocations.drain(..) {
            allocation.hand_over();
        }
        let outcome = record.status(self.id(), fid.vnode);
        loaded.body = body;
        loaded.recharge();
        locked.set_record(record, now);
        Ok(Some(Changed { outcome, durable }))
    }

    /// Returns whether the file is one record of the table after a store.
    pub(crate) fn fits_inline(
        &self,
        old: &VnodeRecord,
        new: &VnodeRecord,
        incoming: &Incoming,
        kept: u64,
    ) -> bool {
        let small = new.length <= self.core.engine.options().inline_bytes as u64;
        let replaces_all = incoming.spec.position == 0 && incoming.announced >= kept;
        small && incoming.gathered.blocks.is_empty() && (old.body != Body::Pieces || replaces_all)
    }

    /// Stages a small file; returns its bytes.
    pub(crate) fn stage_inline(
        &self,
        txn: &mut Txn<'_>,
        loaded: &mut Loaded,
        record: &mut VnodeRecord,
        incoming: &Incoming,
        kept: u64,
    ) -> Result<Option<Bytes>> {
        let fid = incoming.fid;
        let vnode = fid.vnode.0;
        let old = loaded.record.clone();
        if record.length == 0 {
            txn.remove_body(vnode, &old)?;
            record.body = Body::None;
            record.body_number = old.body_number + u32::from(old.body != Body::None);
            return Ok(None);
        }
        if incoming.announced == 0 && kept == old.length && old.body != Body::Pieces {
            // Only the length grows: bytes behind the stored ones read as zeros.
            return Ok(loaded.body.clone());
        }
        let start = incoming.spec.position as usize;
        let length = incoming.announced as usize;
        let replaces_all = start == 0 && incoming.announced >= kept;
        let value = if replaces_all && length > 0 {
            Piece::encode_inline_parts(&incoming.gathered.pending)
        } else {
            let mut bytes = vec![0; (start + length).max(kept as usize)];
            if !replaces_all {
                let before = self.inline_body(fid, loaded)?;
                let count = before.len().min(kept as usize);
                bytes[..count].copy_from_slice(&before[..count]);
            }
            let mut at = start;
            for chunk in &incoming.gathered.pending {
                bytes[at..at + chunk.len()].copy_from_slice(chunk);
                at += chunk.len();
            }
            Piece::encode_inline(&bytes)
        };
        let body = value.slice(1..value.len() - 4);
        let mut before = None;
        match old.body {
            Body::Pieces => {
                txn.remove_body(vnode, &old)?;
                record.body_number += 1;
            }
            Body::Inline { epoch } => before = Some(epoch),
            Body::None | Body::Objects | Body::Archived(_) => {}
        }
        txn.put_inline(vnode, record.body_number, before, value)?;
        record.body = Body::Inline { epoch: txn.now() };
        Ok(Some(body))
    }

    /// Stages a file of blocks. `kept` is the part of the old length that the store leaves.
    pub(crate) fn stage_pieces(
        &self,
        txn: &mut Txn<'_>,
        loaded: &mut Loaded,
        record: &mut VnodeRecord,
        incoming: &mut Incoming,
        kept: u64,
    ) -> Result<()> {
        let fid = incoming.fid;
        let mut old = loaded.record.clone();
        if kept == 0 && old.body != Body::None {
            txn.remove_body(fid.vnode.0, &old)?;
            old.body = Body::None;
            old.body_number += 1;
            old.length = 0;
        }
        record.body = Body::Pieces;
        record.body_number = old.body_number;
        let engine = &self.core.engine;
        incoming.gathered.write_whole_blocks(engine)?;
        let mut pieces = OldPieces {
            volume: self,
            fid,
            body: old.body_number,
            known: BTreeMap::new(),
        };
        match old.body {
            Body::None => {}
            Body::Inline { epoch } => {
                let bytes = self.inline_body(fid, loaded)?;
                let piece = Piece::Inline(bytes);
                pieces.known.insert(0, Some(OldPiece { epoch, piece }));
            }
            Body::Pieces | Body::Objects | Body::Archived(_) => {}
        }
        let fresh = self.edge_blocks(&mut pieces, &old, incoming, kept)?;
        let written = incoming.gathered.write_edges(engine, fresh)?;
        txn.batch.wrote_blocks = !incoming.gathered.allocations.is_empty();
        for allocation in &incoming.gathered.allocations {
            txn.batch.taken.extend_from_slice(allocation.runs());
        }
        let mut updates: BTreeMap<u64, Vec<(u64, BlockRef)>> = BTreeMap::new();
        for (index, block) in incoming.gathered.blocks.iter().chain(&written) {
            updates
                .entry(index / PIECE_BLOCKS as u64)
                .or_default()
                .push((*index, *block));
        }
        let cut = kept < old.length && old.body == Body::Pieces;
        if cut {
            self.stage_cut(txn, &old, fid, kept, &mut updates)?;
        }
        for (number, blocks) in updates {
            let before = match old.body {
                Body::None => None,
                _ => pieces.get(number)?,
            };
            let mut after = match &before {
                Some(OldPiece {
                    piece: Piece::Blocks(blocks),
                    ..
                }) => blocks.clone(),
                _ => PieceBlocks::empty(),
            };
            let base = number * PIECE_BLOCKS as u64;
            if cut {
                for (place, slot) in after.0.iter_mut().enumerate() {
                    if (base + place as u64) * BLOCK as u64 >= kept {
                        *slot = None;
                    }
                }
            }
            for (index, block) in blocks {
                after.0[(index - base) as usize] = Some(BlockRef {
                    epoch: txn.now(),
                    ..block
                });
            }
            let value = (!after.is_empty()).then(|| Piece::Blocks(after.clone()).encode());
            let new = value.map(|value| (value, Some(&after)));
            txn.replace_piece(fid.vnode.0, record.body_number, number, before, new)?;
        }
        Ok(())
    }

    /// Stages cutting a body off at `kept`. Pieces behind it that get no new bytes are removed; the
    /// others are entered into `updates`.
    fn stage_cut(
        &self,
        txn: &mut Txn<'_>,
        old: &VnodeRecord,
        fid: Fid,
        kept: u64,
        updates: &mut BTreeMap<u64, Vec<(u64, BlockRef)>>,
    ) -> Result<()> {
        let group = self.group.id.0;
        let (vnode, body) = (fid.vnode.0, old.body_number);
        let prefix = Key::body_prefix(group, vnode, body);
        let from = Key::piece_prefix(group, vnode, body, kept / PIECE_BYTES);
        let mut scan = self.core.engine.scan(&from, &prefix)?;
        let mut last = None;
        while let Some((key, value)) = scan.next()? {
            let number = key.piece_number();
            if last.replace(number) == Some(number) {
                continue;
            }
            if number * PIECE_BYTES < kept {
                updates.entry(number).or_default();
            } else if !updates.contains_key(&number) {
                let piece = Piece::decode(&value).unwrap_or(Piece::Inline(Bytes::new()));
                if piece != Piece::Gone {
                    let old = OldPiece {
                        epoch: key.epoch(),
                        piece,
                    };
                    txn.replace_piece(vnode, body, number, Some(old), None)?;
                }
            }
        }
        Ok(())
    }

    /// The new contents of the blocks that a store changes only in part.
    fn edge_blocks(
        &self,
        pieces: &mut OldPieces<'_>,
        old: &VnodeRecord,
        incoming: &Incoming,
        kept: u64,
    ) -> Result<BTreeMap<u64, Vec<u8>>> {
        let block = BLOCK as u64;
        let whole = incoming.gathered.whole_range();
        let mut fresh: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        if let Body::Inline { .. } = old.body {
            for index in (0..kept.div_ceil(block)).filter(|index| !whole.contains(index)) {
                fresh.insert(index, pieces.block(old, index, kept)?);
            }
        }
        let cut = kept / block;
        if kept < old.length
            && !kept.is_multiple_of(block)
            && !whole.contains(&cut)
            && !fresh.contains_key(&cut)
            && pieces.has_block(old, cut)?
        {
            fresh.insert(cut, pieces.block(old, cut, kept)?);
        }
        let old_block = |index| pieces.block(old, index, kept);
        incoming.gathered.merge_edges(&mut fresh, old_block)?;
        Ok(fresh)
    }
}

/// The pieces that a store reads, each read once.
struct OldPieces<'v> {
    volume: &'v Volume,
    fid: Fid,
    body: u32,
    known: BTreeMap<u64, Option<OldPiece>>,
}

impl OldPieces<'_> {
    fn get(&mut self, number: u64) -> Result<Option<OldPiece>> {
        if let Some(known) = self.known.get(&number) {
            return Ok(known.clone());
        }
        let piece = self.volume.piece(self.fid, self.body, number)?;
        self.known.insert(number, piece.clone());
        Ok(piece)
    }

    fn has_block(&mut self, old: &VnodeRecord, index: u64) -> Result<bool> {
        if old.body == Body::None {
            return Ok(false);
        }
        let place = (index % PIECE_BLOCKS as u64) as usize;
        Ok(
            match self.get(index / PIECE_BLOCKS as u64)?.map(|old| old.piece) {
                Some(Piece::Blocks(blocks)) => blocks.0[place].is_some(),
                Some(Piece::Inline(_)) => true,
                _ => false,
            },
        )
    }

    /// The contents of a block, with zeros from offset `kept` of the file on.
    fn block(&mut self, old: &VnodeRecord, index: u64, kept: u64) -> Result<Vec<u8>> {
        let start = index * BLOCK as u64;
        if old.body == Body::None || start >= kept {
            return Ok(vec![0; BLOCK]);
        }
        let mut bytes = match self.get(index / PIECE_BLOCKS as u64)?.map(|old| old.piece) {
            Some(Piece::Blocks(blocks)) => self.volume.read_block(self.fid, &blocks, index)?,
            Some(Piece::Inline(body)) => {
                let mut bytes = vec![0; BLOCK];
                let from = (start as usize).min(body.len());
                let count = (body.len() - from).min(BLOCK);
                bytes[..count].copy_from_slice(&body[from..from + count]);
                bytes
            }
            _ => vec![0; BLOCK],
        };
        let end = (kept - start).min(BLOCK as u64) as usize;
        bytes[end..].fill(0);
        Ok(bytes)
    }
}

impl Incoming {
    pub(crate) fn push(&mut self, volume: &Volume, bytes: Bytes) -> Result<()> {
        let received = self.received + bytes.len() as u64;
        if received > self.announced {
            return Err(Error::Invalid("more bytes than the store announced"));
        }
        self.received = received;
        self.gathered.push(&volume.core.engine, bytes)
    }
}

/// The length of a file after a store.
pub(crate) fn final_length(old: u64, spec: &StoreSpec, length: u64) -> u64 {
    old.min(spec.file_length).max(spec.position + length)
}
