//! Reading a version of an object, with every block compared with its checksum.

use std::sync::Arc;

use bytes::Bytes;
use cellar_wire::object::ObjectId;

use super::slots::ObjectSlot;
use super::{CACHED_MAX, ObjectStore, STREAM_BYTES, Shared, key_of};
use crate::clock;
use crate::engine::batch::Batch;
use crate::engine::blocks::{self, CacheMode, Owner, ReadFailure};
use crate::engine::key::Key;
use crate::engine::memory::Memory;
use crate::error::{Error, Result};
use crate::record::{BLOCK, ObjectRecord, PIECE_BLOCKS, PIECE_BYTES, Piece, PieceBlocks};
use crate::state::ticket::may_block;

/// The accuracy of the date of the last access, in seconds.
const ACCESSED_COARSE: u64 = 3600;

/// A range of one version of an object, read a part at a time.
///
/// It holds nothing between parts: if the version is removed meanwhile, the next part returns an
/// error.
pub struct ObjectReader {
    shared: Arc<Shared>,
    slot: Arc<ObjectSlot>,
    version: u64,
    position: u64,
    end: u64,
    cache_mode: CacheMode,
}

impl std::fmt::Debug for ObjectReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (id, version) = (self.slot.id, self.version);
        write!(
            f,
            "ObjectReader({id:?} {version}, {}..{})",
            self.position, self.end
        )
    }
}

impl ObjectReader {
    /// Bytes that are still to come.
    pub fn remaining(&self) -> u64 {
        self.end - self.position
    }

    /// Splits off the next part, up to `max` bytes, to be read separately. Several parts may be
    /// read at the same time.
    pub fn split(&mut self, max: u64) -> Self {
        let begin = self.position;
        self.position += self.remaining().min(max);
        Self {
            shared: Arc::clone(&self.shared),
            slot: Arc::clone(&self.slot),
            version: self.version,
            position: begin,
            end: self.position,
            cache_mode: self.cache_mode,
        }
    }

    /// The next bytes, up to `max` of them; `None` after the last.
    pub fn next(&mut self, max: usize) -> Result<Option<Bytes>> {
        let length = self.remaining().min(max as u64) as usize;
        if length == 0 {
            return Ok(None);
        }
        let (shared, slot) = (&self.shared, &self.slot);
        let bytes =
            shared.read_range(slot, self.version, self.position, length, self.cache_mode)?;
        self.position += length as u64;
        Ok(Some(bytes))
    }
}

impl ObjectStore {
    /// Begins to read up to `length` bytes of a version at `position`, fewer at its end.
    ///
    /// `NoObject`, `NoVersion`.
    pub fn reader(
        &self,
        id: ObjectId,
        version: u64,
        position: u64,
        length: u64,
    ) -> Result<ObjectReader> {
        let shared = Arc::clone(self.shared());
        let slot = shared.slots.of(id);
        let (end, accessed) = {
            let state = slot.read(&shared)?;
            let record = state.present(id)?;
            let known = record.version(version);
            let known = known.ok_or(Error::NoVersion(id, version))?;
            (known.length, record.accessed)
        };
        shared.note_access(&slot, accessed)?;
        let cache_mode = match end >= CACHED_MAX && length >= STREAM_BYTES {
            true => CacheMode::DontCache,
            false => CacheMode::Cached,
        };
        let position = position.min(end);
        Ok(ObjectReader {
            cache_mode,
            shared,
            slot,
            version,
            position,
            end: position.saturating_add(length).min(end),
        })
    }

    /// Reads up to `length` bytes of a version at `position`, fewer at its end.
    ///
    /// `NoObject`, `NoVersion`, `ObjectIo`.
    pub fn read(&self, id: ObjectId, version: u64, position: u64, length: usize) -> Result<Bytes> {
        let mut reader = self.reader(id, version, position, length as u64)?;
        Ok(reader.next(length)?.unwrap_or_default())
    }
}

impl Shared {
    /// Updates the date of the last access if it is too old. Errors are ignored: only the date is
    /// lost.
    fn note_access(&self, slot: &ObjectSlot, accessed: u64) -> Result<()> {
        let now = clock::seconds();
        if now < accessed.saturating_add(ACCESSED_COARSE) || self.engine.check_running().is_err() {
            return Ok(());
        }
        may_block()?;
        let Ok(_room) = self.engine.admit(0) else {
            return Ok(());
        };
        let mut state = slot.write(self)?;
        let Some(mut record) = state.any().cloned() else {
            return Ok(());
        };
        record.accessed = record.accessed.max(now);
        let mut batch = Batch::new();
        batch.put(key_of(slot.id), record.encode());
        if self.engine.commit(batch).is_ok() {
            state.set(Some(record));
        }
        Ok(())
    }

    /// Reads a range that lies within a version.
    fn read_range(
        &self,
        slot: &ObjectSlot,
        version: u64,
        position: u64,
        length: usize,
        cache_mode: CacheMode,
    ) -> Result<Bytes> {
        // Taken before the pieces are looked up: from now on the blocks that they name are not
        // reused.
        let _pin = self.engine.space.pin();
        let end = position + length as u64;
        let mut pieces = Vec::new();
        let owner = {
            let state = slot.read(self)?;
            let record = state.present(slot.id)?;
            if record.version(version).is_none() {
                return Err(Error::NoVersion(slot.id, version));
            }
            for number in position / PIECE_BYTES..end.div_ceil(PIECE_BYTES) {
                if let Some((_, Piece::Blocks(blocks))) =
                    self.piece(slot.id, record, number, version)?
                {
                    pieces.push((number, blocks));
                }
            }
            Owner::object(record.number)
        };
        let first_block = position / BLOCK as u64;
        let blocks = (end.div_ceil(BLOCK as u64) - first_block) as usize;
        let mut memory = Memory::take(blocks * BLOCK);
        let named = pieces.iter().map(|(number, blocks)| (*number, blocks));
        if !blocks::are_whole(named, first_block, blocks) {
            memory.zero();
        }
        let buffer = memory.bytes_mut();
        for (number, blocks) in &pieces {
            let base = number * PIECE_BLOCKS as u64;
            self.read_blocks(
                slot.id,
                owner,
                blocks,
                base,
                first_block,
                buffer,
                cache_mode,
            )?;
        }
        let skip = (position - first_block * BLOCK as u64) as usize;
        Ok(memory.freeze(skip..skip + length))
    }

    #[expect(clippy::too_many_arguments, reason = "what, from where, to where, how")]
    pub(super) fn read_blocks(
        &self,
        id: ObjectId,
        owner: Owner,
        pieces: &PieceBlocks,
        base: u64,
        first: u64,
        buffer: &mut [u8],
        cache_mode: CacheMode,
    ) -> Result<()> {
        let read =
            blocks::read_blocks(&self.engine, owner, pieces, base, first, buffer, cache_mode);
        read.map_err(|unread| match unread {
            ReadFailure::WouldBlock => Error::WouldBlock,
            ReadFailure::Damaged(cause) => self.damaged(id, &cause),
        })
    }

    /// The piece that a version sees, with the version that wrote it.
    pub(super) fn piece(
        &self,
        id: ObjectId,
        record: &ObjectRecord,
        number: u64,
        version: u64,
    ) -> Result<Option<(u64, Piece)>> {
        let prefix = Key::object_piece_prefix(record.number, number);
        let from = Key::object_piece(record.number, number, version);
        let Some((key, value)) = self.engine.first_version(&from, &prefix)? else {
            return Ok(None);
        };
        match Piece::decode(&value) {
            Ok(piece) => Ok(Some((key.epoch(), piece))),
            Err(error) => Err(self.damaged(id, &error.to_string())),
        }
    }
}
