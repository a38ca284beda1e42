//! Putting bytes back into a damaged file, without making another version of it.
//!
//! A block's record has the checksum of its bytes. So bytes from another source are accepted only
//! if they are exactly the lost ones, whatever the source. They go to a new block, and every
//! version that named the damaged block then names the new one. If the record itself is damaged, or
//! held the bytes, there is no such proof. Then the caller is responsible: the bytes must be those
//! of the data version that it gives, and that must be the file's.
//!
//! Each piece is one change. It is made with the group locked exclusively; the bytes are fetched
//! and written before. No change is made during a restore, because the restore continues to use the
//! blocks that it has looked up.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use cellar_wire::dir::PAGE_SIZE;
use cellar_wire::ids::Fid;

use crate::background::reap::pieces_of;
use crate::dir::trimmed;
use crate::engine::batch::{Batch, Run};
use crate::engine::blocks::{Owner, block_damage};
use crate::engine::key::Key;
use crate::engine::space::Allocation;
use crate::error::{Error, Result};
use crate::record::{
    BLOCK, BlockRef, Body, PIECE_BLOCKS, PIECE_BYTES, Piece, PieceBlocks, VnodeRecord,
    block_checksum,
};
use crate::state::ticket::Ticket;
use crate::types::FileType;
use crate::volume::Volume;

/// The result of a refill.
#[derive(Debug)]
#[must_use = "what was put back is durable only when the ticket says so"]
pub struct Refilled {
    /// Number of blocks and pages whose right bytes were put back.
    pub restored: u64,
    /// How many of these were found in another version of the file on this partition.
    pub from_here: u64,
    /// Number of damaged blocks and pages for which the source gave other bytes or none.
    pub missing: u64,
    /// Resolves when all of it is durable.
    pub durable: Ticket,
}

/// Returns the bytes of a range of the file, or none: as many as the range has.
pub type RefillSource<'s> = dyn FnMut(Range<u64>) -> Result<Option<Bytes>> + 's;

/// A running refill.
struct Refill<'r> {
    volume: &'r Arc<Volume>,
    fid: Fid,
    record: VnodeRecord,
    source: &'r mut RefillSource<'r>,
    done: Refilled,
}

impl Volume {
    /// Searches for damage in the body of a file, directory or link as this volume sees it, and
    /// puts bytes back. The bytes come from another version of the file on this partition, if it
    /// has the same bytes in another block. (Clones mostly share the block, and its damage.)
    /// Otherwise `source` gives the bytes of a range, from an RO site or a dump. The file must have
    /// this length and data version, and the source's bytes must be of it.
    ///
    /// # Errors
    /// `Invalid` if the file has another length or data version; `Busy` during a restore. `Io` if
    /// the file's record is damaged: then only restoring it helps.
    pub fn refill<'r>(
        self: &'r Arc<Self>,
        fid: Fid,
        length: u64,
        data_version: u64,
        source: &'r mut RefillSource<'r>,
    ) -> Result<Refilled> {
        let record = self.with(fid, |loaded| Ok(loaded.record.clone()))?;
        if (record.length, record.data_version) != (length, data_version) {
            return Err(Error::Invalid("the bytes are of another version"));
        }
        let mut refill = Refill {
            volume: self,
            fid,
            source,
            done: Refilled {
                restored: 0,
                from_here: 0,
                missing: 0,
                durable: Ticket::ready(),
            },
            record,
        };
        for number in 0..pieces_of(&refill.record) {
            refill.piece(number)?;
        }
        self.core.pieces.forget(fid.vnode.0);
        tracing::info!(%fid, restored = refill.done.restored, missing = refill.done.missing, "refilled");
        Ok(refill.done)
    }
}

/// A version of a piece, with its decoded record if that can be read.
struct PieceVersion {
    key: Key,
    value: Bytes,
    piece: Option<Piece>,
}

/// The repair of a piece.
enum Mending {
    /// A record that holds bytes itself.
    Inline(Key, Bytes),
    /// A record that named unknown blocks.
    Whole(Key, PieceBlocks),
    /// Blocks: the place of each, the damaged block, and the block that has its bytes now.
    Blocks(Vec<(usize, BlockRef, u64)>),
}

impl Refill<'_> {
    fn piece(&mut self, number: u64) -> Result<()> {
        let core = Arc::clone(&self.volume.core);
        let growth = self.record.length.min(PIECE_BYTES) / 64 + (8 << 10);
        let _room = core.engine.admit(growth)?;
        let mut allocation = None;
        let Some(mending) = self.mending(number, &mut allocation)? else {
            return Ok(());
        };
        // From here on no change and no background removal works on the group.
        let group = Arc::clone(&self.volume.group);
        let still = group.state.write();
        if still.restoring {
            return Err(Error::Busy(self.volume.id()));
        }
        if self.present()?.1 != self.record {
            return Err(Error::Changed(self.fid));
        }
        let mut batch = Batch::new();
        let versions = self.versions(number)?;
        let mut restored = 1;
        match mending {
            Mending::Inline(key, value) => batch.put(key, value),
            Mending::Whole(key, blocks) => {
                restored = blocks.0.iter().flatten().count() as u64;
                batch.put(key, Piece::Blocks(blocks).encode());
            }
            Mending::Blocks(right) => {
                restored = right.len() as u64;
                if !replace_blocks(&versions, &right, &mut batch) {
                    return Err(Error::Changed(self.fid));
                }
            }
        }
        rewrite_newer(&versions, &mut batch);
        if let Some(allocation) = &allocation {
            batch.taken = Allocation::runs(allocation).to_vec();
            batch.wrote_blocks = true;
        }
        self.done.durable = core.engine.commit(batch)?;
        allocation.map(Allocation::hand_over);
        self.done.restored += restored;
        core.pieces.forget(self.fid.vnode.0);
        Ok(())
    }

    /// The vnode as the volume sees it, with the epoch of that version. Takes no lock.
    fn present(&self) -> Result<(u64, VnodeRecord)> {
        let (group, vnode) = (self.volume.group.id.0, self.fid.vnode.0);
        let prefix = Key::vnode_prefix(group, vnode);
        let found = self
            .volume
            .newest(&prefix, |view| Key::vnode(group, vnode, view))?;
        let (key, value) = found.ok_or(Error::NoVnode(self.fid))?;
        match VnodeRecord::decode(&value)? {
            Ok(record) => Ok((key.epoch(), record)),
            Err(_) => Err(Error::NoVnode(self.fid)),
        }
    }

    fn versions(&self, number: u64) -> Result<Vec<PieceVersion>> {
        let (group, vnode) = (self.volume.group.id.0, self.fid.vnode.0);
        let prefix = Key::piece_prefix(group, vnode, self.record.body_number, number);
        let mut versions = Vec::new();
        let mut scan = self.volume.core.engine.scan(&prefix, &prefix)?;
        while let Some((key, value)) = scan.next()? {
            let piece = Piece::decode(&value).ok();
            versions.push(PieceVersion { key, value, piece });
        }
        Ok(versions)
    }

    /// Finds the damaged parts of a piece, and fetches and writes the right bytes. Nothing is
    /// locked, so the source may be slow.
    fn mending(
        &mut self,
        number: u64,
        allocation: &mut Option<Allocation>,
    ) -> Result<Option<Mending>> {
        let versions = self.versions(number)?;
        let view = self.volume.view();
        let seen = versions.iter().find(|version| version.key.epoch() <= view);
        let in_blocks = (self.record.kind, self.record.body) == (FileType::File, Body::Pieces);
        match seen.map(|version| (version.key, &version.piece)) {
            Some((_, Some(Piece::Blocks(blocks)))) => {
                self.blocks(number, blocks, &versions, allocation)
            }
            Some((key, None)) if in_blocks => self.whole_piece(key, number, allocation),
            Some((key, None)) => self.inline(key, number),
            None if !in_blocks => {
                // Its record is missing. It was written with this version at the latest.
                let epoch = match self.record.body {
                    Body::Inline { epoch } => epoch,
                    _ => self.present()?.0,
                };
                let (group, vnode) = (self.volume.group.id.0, self.fid.vnode.0);
                let body = self.record.body_number;
                self.inline(Key::piece(group, vnode, body, number, epoch), number)
            }
            _ => Ok(None),
        }
    }

    /// The bytes of a range from the source, filled with zeros to a whole number of units.
    fn given(&mut self, range: Range<u64>, unit: usize) -> Result<Option<Vec<u8>>> {
        let Some(bytes) = (self.source)(range.clone())? else {
            return Ok(None);
        };
        if bytes.len() as u64 != range.end - range.start {
            return Ok(None);
        }
        let mut bytes = bytes.to_vec();
        bytes.resize(bytes.len().next_multiple_of(unit), 0);
        Ok(Some(bytes))
    }

    fn inline(&mut self, key: Key, number: u64) -> Result<Option<Mending>> {
        let is_page = self.record.kind == FileType::Directory;
        let range = if is_page {
            number * PAGE_SIZE as u64..(number + 1) * PAGE_SIZE as u64
        } else {
            0..self.record.length
        };
        let Some(bytes) = self.given(range, 1)? else {
            self.done.missing += 1;
            return Ok(None);
        };
        let value = match bytes.as_array::<PAGE_SIZE>() {
            Some(page) if is_page => Piece::encode_inline(trimmed(page)),
            _ => Piece::encode_inline(&bytes),
        };
        Ok(Some(Mending::Inline(key, value)))
    }

    fn whole_piece(
        &mut self,
        key: Key,
        number: u64,
        allocation: &mut Option<Allocation>,
    ) -> Result<Option<Mending>> {
        let start = number * PIECE_BYTES;
        let end = (start + PIECE_BYTES).min(self.record.length);
        let Some(bytes) = self.given(start..end, BLOCK)? else {
            self.done.missing += (end - start).div_ceil(BLOCK as u64);
            return Ok(None);
        };
        let blocks = bytes.chunks_exact(BLOCK).enumerate();
        let full: Vec<(usize, &[u8])> = blocks
            .filter(|(_, bytes)| bytes.iter().any(|&byte| byte != 0))
            .collect();
        let places = self.write(full.iter().map(|(_, bytes)| *bytes), full.len(), allocation)?;
        let mut blocks = PieceBlocks::empty();
        for ((place, bytes), block) in full.into_iter().zip(places) {
            blocks.0[place] = Some(BlockRef {
                block,
                checksum: self.checksum(number, place, bytes),
                epoch: key.epoch(),
            });
        }
        Ok(Some(Mending::Whole(key, blocks)))
    }

    fn checksum(&self, number: u64, place: usize, bytes: &[u8]) -> u32 {
        let (group, vnode) = (self.volume.group.id.0, self.fid.vnode.0);
        let index = number * PIECE_BLOCKS as u64 + place as u64;
        block_checksum(group, vnode, index, bytes)
    }

    /// Repairs the damaged blocks of a piece, which are found by their checksums.
    fn blocks(
        &mut self,
        number: u64,
        blocks: &PieceBlocks,
        versions: &[PieceVersion],
        allocation: &mut Option<Allocation>,
    ) -> Result<Option<Mending>> {
        let core = Arc::clone(&self.volume.core);
        let (group, vnode) = (self.volume.group.id, self.fid.vnode.0);
        let mut right: Vec<(usize, BlockRef, Vec<u8>)> = Vec::new();
        for (place, slot) in blocks.0.iter().enumerate() {
            let Some(slot) = slot else { continue };
            let index = number * PIECE_BLOCKS as u64 + place as u64;
            if block_damage(&core.engine, Owner::vnode(group.0, vnode), index, slot).is_none() {
                continue;
            }
            let mut bytes = self.find_same_bytes(number, place, slot, versions);
            self.done.from_here += u64::from(bytes.is_some());
            if bytes.is_none() {
                let start = index * BLOCK as u64;
                let end = (start + BLOCK as u64).min(self.record.length);
                let given = self.given(start..end, BLOCK)?;
                bytes = given.filter(|bytes| self.checksum(number, place, bytes) == slot.checksum);
            }
            match bytes {
                Some(bytes) => right.push((place, *slot, bytes)),
                None => self.done.missing += 1,
            }
        }
        if right.is_empty() {
            return Ok(None);
        }
        let bytes = right.iter().map(|(_, _, bytes)| &bytes[..]);
        let places = self.write(bytes, right.len(), allocation)?;
        let right = right.into_iter().zip(places);
        let right = right.map(|((place, slot, _), block)| (place, slot, block));
        Ok(Some(Mending::Blocks(right.collect())))
    }

    /// Writes blocks to new places.
    fn write<'b>(
        &self,
        blocks: impl Iterator<Item = &'b [u8]>,
        count: usize,
        allocation: &mut Option<Allocation>,
    ) -> Result<Vec<u64>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let engine = &self.volume.core.engine;
        let taken = engine
            .space
            .allocate(count as u32, &|key| engine.get(key))?;
        let runs = taken.runs().iter();
        let places: Vec<u64> = runs.flat_map(|run| run.start..run.end()).collect();
        *allocation = Some(taken);
        for (bytes, &block) in blocks.zip(&places) {
            engine.space.write(block, bytes)?;
        }
        Ok(places)
    }

    /// The same bytes from another block, if another version of the file has them.
    fn find_same_bytes(
        &self,
        number: u64,
        place: usize,
        slot: &BlockRef,
        versions: &[PieceVersion],
    ) -> Option<Vec<u8>> {
        let others = versions.iter().filter_map(|version| version.piece.as_ref());
        let mut others = others
            .filter_map(|piece| piece.blocks()?.0[place])
            .filter(|other| other.checksum == slot.checksum && other.block != slot.block);
        others.find_map(|other| {
            let mut bytes = vec![0; BLOCK];
            let space = &self.volume.core.engine.space;
            space.read(other.block, &mut bytes, false).ok()?;
            (self.checksum(number, place, &bytes) == slot.checksum).then_some(bytes)
        })
    }
}

/// Rewrites the versions that are newer than any of those in the batch. For entries in memory,
/// readers take the first visible version and search no further (`Engine::first_version`).
fn rewrite_newer(versions: &[PieceVersion], batch: &mut Batch) {
    let put: Vec<Key> = batch.entries.iter().map(|(key, _)| *key).collect();
    let newer = |key: &Key| !put.contains(key) && put.iter().any(|put| key < put);
    for version in versions.iter().filter(|version| newer(&version.key)) {
        batch.put(version.key, version.value.clone());
    }
}

/// Lets every version of a piece name the new block where it named the damaged one. Returns whether
/// all of the damaged blocks were named.
fn replace_blocks(
    versions: &[PieceVersion],
    right: &[(usize, BlockRef, u64)],
    batch: &mut Batch,
) -> bool {
    let mut replaced = vec![false; right.len()];
    for version in versions {
        let Some(Piece::Blocks(blocks)) = &version.piece else {
            continue;
        };
        let mut blocks = blocks.clone();
        let mut changed = false;
        for ((place, damaged, block), replaced) in right.iter().zip(&mut replaced) {
            if let Some(slot) = &mut blocks.0[*place]
                && (slot.block, slot.checksum) == (damaged.block, damaged.checksum)
            {
                slot.block = *block;
                (changed, *replaced) = (true, true);
            }
        }
        if changed {
            batch.put(version.key, Piece::Blocks(blocks).encode());
        }
    }
    let released = right.iter().map(|(_, damaged, _)| Run {
        start: damaged.block,
        count: 1,
    });
    batch.released = released.collect();
    replaced.iter().all(|&replaced| replaced)
}
