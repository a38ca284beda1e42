//! Removing versions of objects.
//!
//! The pieces that are no longer needed with a version are those that the next newer version has
//! replaced. For the newest version they are its own pieces. A record has for each version the
//! range of its own pieces, so little is examined after an append to a large object.
//!
//! If no version is left, the object is removed as well, under the same lock. A writer that gives
//! up its version therefore need not request the object's removal, which would also remove versions
//! that another writer has written since.

use std::collections::VecDeque;
use std::ops::Range;

use cellar_wire::object::ObjectId;
use cellar_wire::osd::Needed;

use super::slots::Write;
use super::write::count;
use super::{ObjectStore, Shared, key_of};
use crate::background::reap::collect_unseen;
use crate::engine::batch::Batch;
use crate::engine::key::Key;
use crate::engine::space::BLOCK_BYTES;
use crate::error::Result;
use crate::record::{ObjectRecord, Piece, PieceBlocks, VersionRecord};
use crate::state::ticket::Ticket;

/// About the number of piece records that one change examines.
const STEP: usize = 1024;

impl ObjectStore {
    /// Removes the versions that are older than `below` and not named, and objects that then have
    /// none. Objects that do not exist, and those whose records are damaged, are skipped. Returns
    /// the bytes that were freed, and the ticket of the last change.
    pub fn prune(&self, needed: &[Needed]) -> Result<(u64, Ticket)> {
        let shared = self.shared();
        let (mut freed, mut last) = (0, Ticket::ready());
        for needed in needed {
            let slot = shared.slots.of(needed.object);
            let Some(mut state) = slot.write_sound(shared)? else {
                continue;
            };
            let keep = |known: &VersionRecord| {
                known.version >= needed.below || needed.keep.contains(&known.version)
            };
            if let Some((blocks, ticket)) =
                shared.remove_versions(needed.object, &mut state, &keep)?
            {
                freed += blocks * BLOCK_BYTES;
                last = ticket;
            }
            let emptied = state.any().filter(|record| record.versions.is_empty());
            if let Some(record) = emptied.cloned() {
                let _room = shared.engine.admit(0)?;
                let (left, ticket) = shared.remove(needed.object, &record)?;
                state.set(left);
                last = ticket;
                shared.reaper.wake();
            }
        }
        Ok((freed, last))
    }
}

impl Shared {
    /// Removes all versions for which `keep` is false. Returns the number of blocks that this
    /// frees; `None` if there are no such versions.
    pub(super) fn remove_versions(
        &self,
        id: ObjectId,
        state: &mut Write<'_>,
        keep: &dyn Fn(&VersionRecord) -> bool,
    ) -> Result<Option<(u64, Ticket)>> {
        let Some(mut record) = state.any().cloned() else {
            return Ok(None);
        };
        for known in &mut record.versions {
            known.ending |= !keep(known);
        }
        if record.versions.iter().all(|known| !known.ending) {
            return Ok(None);
        }
        let seen = record.versions.iter().filter(|known| !known.ending);
        let viewers: Vec<u64> = seen.map(|known| known.version).collect();
        let mut ranges = unneeded(&record.versions);
        let mut freed = 0;
        loop {
            let _room = self.engine.admit(0)?;
            let mut batch = Batch::new();
            let done = self.collect(record.number, &mut ranges, &viewers, &mut batch)?;
            if done {
                forget_ended(&mut record);
            }
            let released = count(&batch.released);
            freed += released;
            record.blocks = record.blocks.saturating_sub(released);
            batch.put(key_of(id), record.encode());
            let ticket = self.engine.commit(batch)?;
            state.set(Some(record.clone()));
            if done {
                return Ok(Some((freed, ticket)));
            }
        }
    }

    /// Removes pieces in `ranges` that none of `viewers` sees, up to one step. Returns whether that
    /// was all.
    fn collect(
        &self,
        number: u64,
        ranges: &mut VecDeque<Range<u64>>,
        viewers: &[u64],
        batch: &mut Batch,
    ) -> Result<bool> {
        let newest = viewers.last().copied().unwrap_or(0);
        let prefix = Key::object_pieces(number);
        let mut looked = 0;
        while let Some(range) = ranges.front_mut() {
            let from = Key::object_piece_prefix(number, range.start);
            let mut scan = self.engine.scan(&from, &prefix)?;
            let mut same: Vec<(Key, Piece)> = Vec::new();
            loop {
                let next = scan.next()?;
                let next = next.filter(|(key, _)| key.u64_at(9) < range.end);
                let piece = next.as_ref().map(|(key, _)| key.u64_at(9));
                if piece != same.first().map(|(key, _)| key.u64_at(9)) {
                    collect_unseen(&same, viewers, newest, batch);
                    same.clear();
                    if let Some(piece) = piece.filter(|_| looked >= STEP) {
                        range.start = piece;
                        return Ok(false);
                    }
                }
                let Some((key, value)) = next else {
                    break;
                };
                // The blocks of a damaged record are not known; they stay out of use. The record
                // does not count as a hole: it stays while it is visible, because a reader would
                // read zeros without it.
                let damaged = |_| Piece::Blocks(PieceBlocks::empty());
                same.push((key, Piece::decode(&value).unwrap_or_else(damaged)));
                looked += 1;
            }
            ranges.pop_front();
        }
        Ok(true)
    }
}

/// The ranges of pieces that may not be needed once the ending versions are gone, merged.
fn unneeded(versions: &[VersionRecord]) -> VecDeque<Range<u64>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    let mut after_ended = false;
    for (index, known) in versions.iter().enumerate() {
        if after_ended {
            found.push(known.changed.clone());
        }
        // No newer version sees the pieces of the newest, so all of them go too.
        let rest = &versions[index..];
        if known.ending && rest.iter().all(|newer| newer.ending) {
            found.push(known.changed.clone());
        }
        after_ended = known.ending;
    }
    found.retain(|range| !range.is_empty());
    found.sort_by_key(|range| range.start);
    let mut apart: VecDeque<Range<u64>> = VecDeque::new();
    for range in found {
        match apart.back_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => apart.push_back(range),
        }
    }
    apart
}

/// Removes the ending versions from the record. Pieces of theirs that a newer version sees then
/// belong to the newer one.
fn forget_ended(record: &mut ObjectRecord) {
    let mut inherited: Vec<Range<u64>> = Vec::new();
    for known in &mut record.versions {
        if known.ending {
            inherited.push(known.changed.clone());
            continue;
        }
        for pieces in inherited.drain(..) {
            known.note_changed(&pieces);
        }
    }
    record.versions.retain(|known| !known.ending);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use cellar_wire::List;

    use super::*;
    use crate::background::reap::delete_some;
    use crate::disk::SimDisk;
    use crate::error::Error;
    use crate::options::Options;
    use crate::record::{PIECE_BLOCKS, PIECE_BYTES};

    fn version(version: u64, ending: bool, changed: Range<u64>) -> VersionRecord {
        VersionRecord {
            version,
            length: 0,
            written: 0,
            ending,
            changed,
        }
    }

    #[test]
    fn an_append_has_only_its_own_pieces_looked_at() {
        let versions = [version(1, true, 0..4096), version(2, false, 4095..4097)];
        assert_eq!(unneeded(&versions), vec![4095..4097u64; 1]);
        let mut record = ObjectRecord {
            number: 1,
            created: 0,
            accessed: 0,
            removed: 0,
            blocks: 0,
            versions: versions.to_vec(),
        };
        forget_ended(&mut record);
        assert_eq!(record.versions, [version(2, false, 0..4097)]);
    }

    #[test]
    fn nothing_is_looked_at_twice_and_the_newest_ones_go_with_all_they_had() {
        let versions = [
            version(1, false, 0..9),
            version(2, true, 3..5),
            version(3, true, 4..7),
            version(4, false, 6..8),
            version(5, true, 20..30),
            version(6, true, 0..1),
        ];
        assert_eq!(unneeded(&versions), [0..1, 4..8, 20..30]);
    }

    /// An object of two pieces in versions 5 and 10, of which 10 wrote to the first, and its id.
    fn two_versions() -> (ObjectStore, ObjectId) {
        let disk = Arc::new(SimDisk::new(64 << 20));
        let store = ObjectStore::open(disk, Options::default()).unwrap();
        let id = ObjectId {
            serial: 1,
            ..ObjectId::default()
        };
        let bytes = |seed: u8, length| Bytes::from(vec![seed; length]);
        let whole = bytes(5, PIECE_BYTES as usize * 2);
        store.write(id, 0, 5, 0, &[whole]).unwrap().wait().unwrap();
        let part = bytes(10, 5000);
        store
            .write(id, 5, 10, 100, &[part])
            .unwrap()
            .wait()
            .unwrap();
        (store, id)
    }

    /// Replaces the record of the first piece in a version by one that does not decode.
    fn damage(store: &ObjectStore, id: ObjectId, version: u64) {
        let shared = store.shared();
        let number = {
            let slot = shared.slots.of(id);
            slot.read(shared).unwrap().present(id).unwrap().number
        };
        let mut batch = Batch::new();
        batch.put(
            Key::object_piece(number, 0, version),
            Bytes::from_static(b"?"),
        );
        shared.engine.commit(batch).unwrap().wait().unwrap();
    }

    fn remove_versions(store: &ObjectStore, id: ObjectId, keep: &[u64], below: u64) {
        let needed = Needed {
            object: id,
            keep: List::from_iter_cut(keep.iter().copied()),
            below,
        };
        store.prune(&[needed]).unwrap().1.wait().unwrap();
    }

    #[test]
    fn damaged_blocks_do_not_read_as_zeros_after_a_release() {
        let (store, id) = two_versions();
        damage(&store, id, 10);
        remove_versions(&store, id, &[], 10);
        let read = |version, at| store.read(id, version, at, 4096);
        assert!(matches!(read(10, 0), Err(Error::ObjectIo { .. })));
        assert_eq!(read(10, PIECE_BYTES).unwrap(), vec![5; 4096]);
        // A damaged record without a viewer is removed.
        let (store, id) = two_versions();
        damage(&store, id, 10);
        remove_versions(&store, id, &[5], 11);
        let kept = store.write(id, 5, 12, PIECE_BYTES, &[Bytes::from_static(b"x")]);
        kept.unwrap().wait().unwrap();
        assert_eq!(store.read(id, 12, 0, 4096).unwrap(), vec![5; 4096]);
    }

    #[test]
    fn a_damaged_record_does_not_keep_the_others_of_its_batch() {
        let (store, id) = two_versions();
        let other = |serial| ObjectId { serial, ..id };
        let shared = store.shared();
        let mut batch = Batch::new();
        batch.put(key_of(other(0)), Bytes::from_static(b"?"));
        shared.engine.commit(batch).unwrap().wait().unwrap();
        let needed = |object| Needed {
            object,
            keep: List::default(),
            below: 10,
        };
        let (freed, ticket) = store.prune(&[needed(other(0)), needed(id)]).unwrap();
        ticket.wait().unwrap();
        assert!(freed > 0);
        assert!(matches!(store.read(id, 5, 0, 1), Err(Error::NoVersion(..))));
        let (removed, ticket) = store.remove(&[other(0), id, other(7)], false).unwrap();
        ticket.wait().unwrap();
        assert_eq!(removed, 1);
        // It is reported among the damaged objects.
        assert_eq!(store.damaged(), [other(0)]);
    }

    #[test]
    fn an_object_goes_with_its_last_version_and_not_before() {
        let (store, id) = two_versions();
        // A version that a store left when it was given up, and one that another store wrote before
        // the device was told.
        let write = |version| {
            let bytes = [Bytes::from_static(b"new")];
            let written = store.write(ObjectId { serial: 2, ..id }, 0, version, 0, &bytes);
            written.unwrap().wait().unwrap();
        };
        let other = ObjectId { serial: 2, ..id };
        write(5);
        write(6);
        remove_versions(&store, other, &[], 6);
        assert_eq!(store.read(other, 6, 0, 9).unwrap(), b"new"[..]);
        remove_versions(&store, other, &[], 7);
        assert!(matches!(store.examine(other), Err(Error::NoObject(_))));
        assert_eq!(store.usage().unwrap().objects, 1);
        write(8);
        assert_eq!(store.read(other, 8, 0, 9).unwrap(), b"new"[..]);
        // The same for an object that was removed softly: it could not be restored.
        store.remove(&[id], true).unwrap().1.wait().unwrap();
        remove_versions(&store, id, &[], 11);
        let usage = store.usage().unwrap();
        assert_eq!((usage.objects, usage.removed), (1, 0));
        store.reap_now().unwrap();
        assert!(store.check().unwrap().faults.is_empty());
        assert_eq!(store.check().unwrap().unseen, 0);
    }

    #[test]
    fn a_damaged_end_can_be_truncated() {
        let (store, id) = two_versions();
        damage(&store, id, 10);
        store.truncate(id, 10, 12, 0).unwrap().wait().unwrap();
        let again = Bytes::from_static(b"again");
        let written = store.write(id, 10, 12, 3 * PIECE_BLOCKS as u64, &[again]);
        written.unwrap().wait().unwrap();
        let bytes = store.read(id, 12, 0, 4096).unwrap();
        assert!(bytes[..3 * PIECE_BLOCKS].iter().all(|byte| *byte == 0));
        assert!(bytes.ends_with(b"again"));
    }

    #[test]
    fn damaged_files_release_no_block_twice() {
        let (store, id) = two_versions();
        let part = Bytes::from(vec![15; 5000]);
        let third = store.write(id, 10, 15, 100_000, &[part]).unwrap();
        third.wait().unwrap();
        damage(&store, id, 10);
        let shared = store.shared();
        let number = {
            let slot = shared.slots.of(id);
            slot.read(shared).unwrap().present(id).unwrap().number
        };
        let (mut batch, pieces) = (Batch::new(), Key::object_pieces(number));
        delete_some(&shared.engine, &pieces, true, &mut batch).unwrap();
        let blocks = batch.released.iter().flat_map(|run| run.start..run.end());
        let mut blocks: Vec<u64> = blocks.collect();
        let all = blocks.len();
        blocks.sort_unstable();
        blocks.dedup();
        assert_eq!((blocks.len(), all), (2 * PIECE_BLOCKS, 2 * PIECE_BLOCKS));
    }
}
