//! Writing a version of an object.
//!
//! A write first makes the version, if it does not exist: an entry of the record, without bytes of
//! its own. Then bytes are written to blocks that nothing names, without any lock. Every 32 MiB,
//! one change names these blocks. A power cut between two such changes leaves an unfinished version
//! that no client knows. It is removed when the next version is made from the same base.

mod version_change;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use cellar_wire::object::ObjectId;
use cellar_wire::osd::VERSIONS_MAX;

use version_change::VersionChange;

use super::slots::{ObjectSlot, Write};
use super::{CACHED_MAX, ObjectStore, STREAM_BYTES, Shared, key_of};
use crate::clock;
use crate::engine::batch::{Batch, Run};
use crate::engine::blocks::{CacheMode, Gathered, Owner};
use crate::engine::key::Key;
use crate::engine::room::Promise;
use crate::error::{Error, Result};
use crate::record::{
    BLOCK, BlockRef, ObjectRecord, PIECE_BLOCKS, PIECE_BYTES, Piece, PieceBlocks, VersionRecord,
};
use crate::state::ticket::Ticket;

/// About the bytes that a change adds to the table beside pieces.
const RECORDS_GROWTH: u64 = 4096;
/// About the bytes that one change names.
const PART_BYTES: u64 = 32 << 20;
/// The most bytes that are written and named in one change, while the object is locked.
const AT_ONCE_BYTES: u64 = 512 << 10;
/// Largest length of an object.
const LENGTH_MAX: u64 = i64::MAX as u64;
/// The most pieces that one change cuts off.
const CUT_STEP: usize = 1024;

/// A running write into a version. Dropping it leaves the parts that were named already.
pub struct ObjectWriter {
    shared: Arc<Shared>,
    slot: Arc<ObjectSlot>,
    version: u64,
    announced: u64,
    received: u64,
    part_begin: u64,
    gathered: Gathered,
    /// Room for the part's records in the table.
    room: Option<Promise>,
    ticket: Ticket,
}

impl std::fmt::Debug for ObjectWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (id, version) = (self.slot.id, self.version);
        let (received, announced) = (self.received, self.announced);
        write!(
            f,
            "ObjectWriter({id:?} {version}, {received} of {announced} bytes)"
        )
    }
}

impl ObjectStore {
    /// Begins to write `length` bytes at `position` of version `version`. If that version does not
    /// exist, it is made from `base`; with `base` 0 the object is made too. Versions between the
    /// two are removed. Several writers may write to one version at the same time.
    ///
    /// `NoObject`; `Superseded`: `base` does not exist, or there is a newer version; `FileTooBig`,
    /// `DiskFull`, `Invalid`.
    pub fn writer(
        &self,
        id: ObjectId,
        base: u64,
        version: u64,
        position: u64,
        length: u64,
    ) -> Result<ObjectWriter> {
        let shared = Arc::clone(self.shared());
        let (room, end) = shared.admit_write(position, length, 0)?;
        let cache_mode = match end > CACHED_MAX && length >= STREAM_BYTES {
            true => CacheMode::DontCache,
            false => CacheMode::Cached,
        };
        let slot = shared.slots.of(id);
        let (number, ticket) = {
            let mut state = slot.write(&shared)?;
            shared.make_version(id, &mut state, base, version)?
        };
        Ok(ObjectWriter {
            gathered: Gathered::new(Owner::object(number), cache_mode, position),
            shared,
            slot,
            version,
            announced: length,
            received: 0,
            part_begin: position,
            room: Some(room),
            ticket,
        })
    }

    /// Writes bytes that are all in memory, otherwise like [`ObjectStore::writer`]. Up to half a
    /// MiB is one change, which also makes the version if it does not exist.
    pub fn write(
        &self,
        id: ObjectId,
        base: u64,
        version: u64,
        position: u64,
        data: &[Bytes],
    ) -> Result<Ticket> {
        let length = data.iter().map(|bytes| bytes.len() as u64).sum();
        if length <= AT_ONCE_BYTES {
            return self.write_at_once(id, base, version, position, length, data);
        }
        let mut writer = self.writer(id, base, version, position, length)?;
        for bytes in data {
            writer.push(bytes.clone())?;
        }
        writer.finish()
    }

    /// One wait for the journal instead of two.
    fn write_at_once(
        &self,
        id: ObjectId,
        base: u64,
        version: u64,
        position: u64,
        length: u64,
        data: &[Bytes],
    ) -> Result<Ticket> {
        let shared = self.shared();
        // The record of the version is in the same change as the bytes.
        let (_room, _) = shared.admit_write(position, length, RECORDS_GROWTH)?;
        let slot = shared.slots.of(id);
        let mut state = slot.write(shared)?;
        let made = shared.prepare_version(id, &mut state, base, version)?;
        let owner = Owner::object(made.record.number);
        let mut gathered = Gathered::new(owner, CacheMode::Cached, position);
        for bytes in data {
            gathered.push(&shared.engine, bytes.clone())?;
        }
        shared.name_blocks(id, &mut state, made, version, &mut gathered)
    }

    /// Makes a version, as [`ObjectStore::writer`] does, and gives it this length: cuts it off, or
    /// extends it with zeros.
    pub fn truncate(&self, id: ObjectId, base: u64, version: u64, length: u64) -> Result<Ticket> {
        if length > LENGTH_MAX {
            return Err(Error::FileTooBig);
        }
        let shared = self.shared();
        let slot = shared.slots.of(id);
        {
            let _room = shared.engine.admit(RECORDS_GROWTH)?;
            let mut state = slot.write(shared)?;
            shared.make_version(id, &mut state, base, version)?;
        }
        let mut from = length.div_ceil(PIECE_BYTES);
        loop {
            let _room = shared.engine.admit(CUT_STEP as u64 * 64)?;
            let mut state = slot.write(shared)?;
            match shared.cut(id, &mut state, version, length, from)? {
                Cut::Done(ticket) => return Ok(ticket),
                Cut::GoOn(next) => from = next,
            }
        }
    }
}

/// The bytes that the records of `length` bytes add to the table, for at most one part.
fn part_growth(length: u64) -> u64 {
    length.min(PART_BYTES) / 256 + RECORDS_GROWTH
}

impl ObjectWriter {
    /// Takes the next bytes. May write to the disk.
    ///
    /// `Invalid` for more bytes than were announced; `DiskFull`; `Superseded`.
    pub fn push(&mut self, bytes: Bytes) -> Result<()> {
        let received = self.received + bytes.len() as u64;
        if received > self.announced {
            return Err(Error::Invalid("more bytes than the write announced"));
        }
        self.received = received;
        self.gathered.push(&self.shared.engine, bytes)?;
        if self.gathered.end() - self.part_begin >= PART_BYTES {
            self.gathered.write_whole_blocks(&self.shared.engine)?;
            let rest = self.gathered.split_rest();
            self.name_part()?;
            self.part_begin = rest.end();
            self.gathered = rest;
            // The promise of the part before has ended with its change.
            self.room = None;
            let left = self.announced - self.received;
            self.room = Some(self.shared.engine.admit(part_growth(left))?);
        }
        Ok(())
    }

    /// Bytes that are still to come.
    pub fn missing(&self) -> u64 {
        self.announced - self.received
    }

    /// Names the last bytes. All bytes must have come. The ticket is that of the whole write.
    pub fn finish(mut self) -> Result<Ticket> {
        if self.missing() > 0 {
            return Err(Error::Invalid("bytes of the write are missing"));
        }
        self.name_part()?;
        Ok(self.ticket)
    }

    fn name_part(&mut self) -> Result<()> {
        let mut state = self.slot.write(&self.shared)?;
        let (id, version) = (self.slot.id, self.version);
        let made = NewVersion {
            record: state.present(id)?.clone(),
            step: Step::There,
        };
        let gathered = &mut self.gathered;
        self.ticket = (self.shared).name_blocks(id, &mut state, made, version, gathered)?;
        Ok(())
    }
}

/// The record of an object with a version that is to be written.
struct NewVersion {
    record: ObjectRecord,
    step: Step,
}

/// The part that is not committed yet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Nothing.
    There,
    /// The version.
    Version,
    /// The object.
    Object,
}

impl Shared {
    /// Admits room for the records of a write's first part, plus `more` bytes, if an object may be
    /// so long. Also returns the end of the write.
    fn admit_write(&self, position: u64, length: u64, more: u64) -> Result<(Promise, u64)> {
        let end = position.checked_add(length);
        let end = end
            .filter(|end| *end <= LENGTH_MAX)
            .ok_or(Error::FileTooBig)?;
        let room = self.engine.admit(part_growth(length) + more)?;
        Ok((room, end))
    }

    /// Makes a version, if it does not exist. Returns the object's number.
    fn make_version(
        &self,
        id: ObjectId,
        state: &mut Write<'_>,
        base: u64,
        version: u64,
    ) -> Result<(u64, Ticket)> {
        let NewVersion { record, step } = self.prepare_version(id, state, base, version)?;
        let number = record.number;
        if step == Step::There {
            return Ok((number, Ticket::ready()));
        }
        let mut batch = Batch::new();
        batch.put(key_of(id), record.encode());
        let ticket = match step {
            Step::Object => self.commit_counted(batch, 1, 0)?,
            Step::There | Step::Version => self.engine.commit(batch)?,
        };
        state.set(Some(record));
        Ok((number, ticket))
    }

    /// The record as it will be with that version.
    fn prepare_version(
        &self,
        id: ObjectId,
        state: &mut Write<'_>,
        base: u64,
        version: u64,
    ) -> Result<NewVersion> {
        if version <= base {
            return Err(Error::Invalid("a version is newer than its base"));
        }
        let Some(record) = state.any() else {
            if base != 0 {
                return Err(Error::NoObject(id));
            }
            return Ok(self.prepare_object(version));
        };
        if record.removed != 0 {
            return Err(Error::NoObject(id));
        }
        if record.version(version).is_some() && is_newest(record, version) {
            return Ok(NewVersion {
                record: record.clone(),
                step: Step::There,
            });
        }
        let newer = record.versions.last();
        if newer.is_some_and(|newer| newer.version >= version) {
            return Err(Error::Superseded(id));
        }
        let length = match base {
            0 => 0,
            _ => record.version(base).ok_or(Error::Superseded(id))?.length,
        };
        if record.versions.iter().any(|known| known.version > base) {
            let unfinished = |known: &VersionRecord| known.version <= base;
            self.remove_versions(id, state, &unfinished)?;
        }
        let mut record = state.present(id)?.clone();
        if record.versions.len() >= VERSIONS_MAX {
            return Err(Error::Invalid("the object has as many versions as it may"));
        }
        record.versions.push(VersionRecord {
            version,
            length,
            written: clock::seconds(),
            ending: false,
            changed: 0..0,
        });
        Ok(NewVersion {
            record,
            step: Step::Version,
        })
    }

    fn prepare_object(&self, version: u64) -> NewVersion {
        let (number, now) = (self.new_number(), clock::seconds());
        let record = ObjectRecord {
            number,
            created: now,
            accessed: now,
            removed: 0,
            blocks: 0,
            versions: vec![VersionRecord {
                version,
                length: 0,
                written: now,
                ending: false,
                changed: 0..0,
            }],
        };
        NewVersion {
            record,
            step: Step::Object,
        }
    }

    /// Enters gathered bytes into a version, which is the newest.
    fn name_blocks(
        &self,
        id: ObjectId,
        state: &mut Write<'_>,
        made: NewVersion,
        version: u64,
        gathered: &mut Gathered,
    ) -> Result<Ticket> {
        let NewVersion { record, step } = made;
        let (begin, end) = (gathered.begin(), gathered.end());
        // Another object may have got the same name meanwhile: its blocks have other checksums.
        let is_same = gathered.owner() == Owner::object(record.number);
        if !is_newest(&record, version) || !is_same {
            return Err(Error::Superseded(id));
        }
        gathered.write_whole_blocks(&self.engine)?;
        let mut change = VersionChange::begin(self, id, record, version);
        change.is_new = step == Step::Object;
        let mut fresh = BTreeMap::new();
        gathered.merge_edges(&mut fresh, |index| change.old_block(index))?;
        let written = gathered.write_edges(&self.engine, fresh)?;
        let mut updates: BTreeMap<u64, Vec<(u64, BlockRef)>> = BTreeMap::new();
        for (index, block) in gathered.blocks.iter().chain(&written) {
            let of_piece = updates.entry(index / PIECE_BLOCKS as u64).or_default();
            of_piece.push((*index, *block));
        }
        for (number, blocks) in updates {
            let mut after = change.old_blocks(number)?;
            let base = number * PIECE_BLOCKS as u64;
            for (index, block) in blocks {
                after.0[(index - base) as usize] = Some(BlockRef {
                    epoch: version,
                    ..block
                });
            }
            change.replace(number, after)?;
        }
        change.set_length(|length| if end > begin { length.max(end) } else { length });
        for allocation in &gathered.allocations {
            change.take(allocation.runs());
        }
        let ticket = change.commit(state)?;
        for allocation in gathered.allocations.drain(..) {
            allocation.hand_over();
        }
        Ok(ticket)
    }

    /// Cuts a version off at `length`: removes some of its pieces from `from` on. When none is left
    /// behind it, in any piece, the version has that length.
    fn cut(
        &self,
        id: ObjectId,
        state: &mut Write<'_>,
        version: u64,
        length: u64,
        from: u64,
    ) -> Result<Cut> {
        let record = state.present(id)?;
        if !is_newest(record, version) {
            return Err(Error::Superseded(id));
        }
        let known = record.version(version).map_or(0, |known| known.length);
        let mut change = VersionChange::begin(self, id, record.clone(), version);
        if length >= known {
            change.set_length(|_| length);
            return Ok(Cut::Done(change.commit(state)?));
        }
        let whole = length.div_ceil(PIECE_BYTES);
        let prefix = Key::object_pieces(record.number);
        let begin = Key::object_piece_prefix(record.number, from);
        let mut scan = self.engine.scan(&begin, &prefix)?;
        let (mut last, mut cut) = (None, 0);
        while let Some((key, value)) = scan.next()? {
            let number = key.u64_at(9);
            if last.replace(number) == Some(number) {
                continue;
            }
            // No record is newer than this version, so it sees the first one. The blocks of a
            // damaged record are not known; they stay out of use.
            let damaged = |_| Piece::Blocks(PieceBlocks::empty());
            let piece = Piece::decode(&value).unwrap_or_else(damaged);
            if piece != Piece::Gone {
                if cut == CUT_STEP {
                    change.commit(state)?;
                    return Ok(Cut::GoOn(number));
                }
                change.old.insert(number, Some((key.epoch(), piece)));
                change.replace(number, PieceBlocks::empty())?;
                cut += 1;
            }
        }
        if from > whole {
            // Meanwhile other writers may have written pieces that this run has passed.
            change.commit(state)?;
            return Ok(Cut::GoOn(whole));
        }
        let mut place = None;
        if !length.is_multiple_of(PIECE_BYTES) {
            place = self.cut_piece(&mut change, length)?;
        }
        change.set_length(|_| length);
        let ticket = change.commit(state)?;
        if let Some(mut place) = place {
            for allocation in place.allocations.drain(..) {
                allocation.hand_over();
            }
        }
        Ok(Cut::Done(ticket))
    }

    /// Removes the blocks behind `length` from the piece that contains it, and zeros the rest of
    /// its block.
    fn cut_piece(&self, change: &mut VersionChange<'_>, length: u64) -> Result<Option<Gathered>> {
        let number = length / PIECE_BYTES;
        let before = change.old_blocks(number)?;
        let mut after = before.clone();
        let inside = (length % PIECE_BYTES) as usize;
        for slot in &mut after.0[inside.div_ceil(BLOCK)..] {
            *slot = None;
        }
        let index = length / BLOCK as u64;
        let slot = &mut after.0[inside / BLOCK];
        let mut place = None;
        if !inside.is_multiple_of(BLOCK) && slot.is_some() {
            let mut bytes = change.old_block(index)?;
            bytes[inside % BLOCK..].fill(0);
            let owner = Owner::object(change.record.number);
            let mut written = Gathered::new(owner, CacheMode::Cached, 0);
            for (_, block) in written.write_edges(&self.engine, [(index, bytes)].into())? {
                *slot = Some(BlockRef {
                    epoch: change.version,
                    ..block
                });
            }
            for allocation in &written.allocations {
                change.take(allocation.runs());
            }
            place = Some(written);
        }
        if after != before {
            change.replace(number, after)?;
        }
        Ok(place)
    }
}

/// The progress of a cut.
enum Cut {
    /// The version has its new length.
    Done(Ticket),
    /// Not finished: go on at this piece.
    GoOn(u64),
}

/// Returns whether a version is the newest, and visible.
fn is_newest(record: &ObjectRecord, version: u64) -> bool {
    let newest = record.versions.last();
    newest.is_some_and(|newest| newest.version == version && !newest.ending)
}

/// The total number of blocks.
pub(super) fn count(runs: &[Run]) -> u64 {
    runs.iter().map(|run| u64::from(run.count)).sum()
}
