//! A change of the newest version of an object: its pieces, its blocks and its length.

use std::collections::BTreeMap;

use cellar_wire::object::ObjectId;

use super::count;
use crate::clock;
use crate::engine::batch::{Batch, Run};
use crate::engine::blocks::{CacheMode, Owner};
use crate::engine::key::Key;
use crate::error::Result;
use crate::objects::slots::Write;
use crate::objects::{Shared, key_of};
use crate::record::{BLOCK, ObjectRecord, PIECE_BLOCKS, Piece, PieceBlocks};
use crate::state::ticket::Ticket;

/// A change of the newest version of an object, under construction.
pub(super) struct VersionChange<'s> {
    shared: &'s Shared,
    id: ObjectId,
    pub(super) version: u64,
    pub(super) record: ObjectRecord,
    /// The object does not exist yet.
    pub(super) is_new: bool,
    batch: Batch,
    /// The present pieces, each read once.
    pub(super) old: BTreeMap<u64, Option<(u64, Piece)>>,
}

impl<'s> VersionChange<'s> {
    pub(super) fn begin(
        shared: &'s Shared,
        id: ObjectId,
        record: ObjectRecord,
        version: u64,
    ) -> Self {
        Self {
            is_new: false,
            shared,
            id,
            version,
            record,
            batch: Batch::new(),
            old: BTreeMap::new(),
        }
    }

    fn old(&mut self, number: u64) -> Result<&Option<(u64, Piece)>> {
        match self.old.entry(number) {
            std::collections::btree_map::Entry::Occupied(known) => Ok(known.into_mut()),
            std::collections::btree_map::Entry::Vacant(slot) => {
                let (record, version) = (&self.record, self.version);
                let found = self.shared.piece(self.id, record, number, version)?;
                Ok(slot.insert(found))
            }
        }
    }

    /// The blocks of the present piece.
    pub(super) fn old_blocks(&mut self, number: u64) -> Result<PieceBlocks> {
        Ok(match self.old(number)? {
            Some((_, Piece::Blocks(blocks))) => blocks.clone(),
            _ => PieceBlocks::empty(),
        })
    }

    /// The present contents of a block; zeros if there is none.
    pub(super) fn old_block(&mut self, index: u64) -> Result<Vec<u8>> {
        let number = index / PIECE_BLOCKS as u64;
        let pieces = self.old_blocks(number)?;
        let mut bytes = vec![0; BLOCK];
        let base = number * PIECE_BLOCKS as u64;
        let owner = Owner::object(self.record.number);
        self.shared.read_blocks(
            self.id,
            owner,
            &pieces,
            base,
            index,
            &mut bytes,
            CacheMode::Cached,
        )?;
        Ok(bytes)
    }

    /// Replaces a piece by `after`.
    pub(super) fn replace(&mut self, number: u64, after: PieceBlocks) -> Result<()> {
        let before = self.old(number)?.clone();
        let (own, key) = (
            before.as_ref().map(|(version, _)| *version) == Some(self.version),
            Key::object_piece(self.record.number, number, self.version),
        );
        let mut hides = before.is_some() && !own;
        if own {
            let prefix = Key::object_piece_prefix(self.record.number, number);
            let older = (self.shared.engine).first_version(&key.successor(), &prefix)?;
            hides = older.is_some();
            let older = older.map(|(_, value)| Piece::decode(&value)).transpose();
            // The blocks of a damaged older piece are not known, so none is released that it may
            // share.
            if let (Ok(older), Some((_, Piece::Blocks(blocks)))) = (older, &before) {
                let older = older.as_ref().and_then(Piece::blocks);
                let others: Vec<_> = older.into_iter().chain([&after]).collect();
                self.release(blocks.minus(&others));
            }
        }
        if !after.is_empty() {
            self.batch.put(key, Piece::Blocks(after).encode());
        } else if hides {
            self.batch.put(key, Piece::Gone.encode());
        } else if own {
            self.batch.delete(key);
        }
        if let Some(version) = self.record.versions.last_mut() {
            version.note_changed(&(number..number + 1));
        }
        Ok(())
    }

    pub(super) fn take(&mut self, runs: &[Run]) {
        self.record.blocks += count(runs);
        self.batch.taken.extend_from_slice(runs);
        self.batch.wrote_blocks = true;
    }

    fn release(&mut self, runs: Vec<Run>) {
        self.record.blocks = self.record.blocks.saturating_sub(count(&runs));
        self.batch.released.extend(runs);
    }

    pub(super) fn set_length(&mut self, length: impl FnOnce(u64) -> u64) {
        if let Some(version) = self.record.versions.last_mut() {
            version.length = length(version.length);
            version.written = clock::seconds();
        }
    }

    pub(super) fn commit(mut self, state: &mut Write<'_>) -> Result<Ticket> {
        self.batch.put(key_of(self.id), self.record.encode());
        let ticket = match self.is_new {
            true => self.shared.commit_counted(self.batch, 1, 0)?,
            false => self.shared.engine.commit(self.batch)?,
        };
        state.set(Some(self.record));
        Ok(ticket)
    }
}
