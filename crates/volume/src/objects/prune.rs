//! Letting versions go.
//!
//! What a version ceases to need are pieces that the next newer version has anew, or, of the newest,
//! its own: a record says of each version where its own pieces are, so little is looked at after an
//! append to something large.

use std::collections::VecDeque;
use std::ops::Range;

use cellar_wire::object::ObjectId;
use cellar_wire::osd::Needed;

use super::cells::Write;
use super::write::count;
use super::{ObjectStore, Shared, key_of};
use crate::engine::batch::Batch;
use crate::engine::key::Key;
use crate::engine::space::BLOCK_BYTES;
use crate::error::Result;
use crate::reap::collect_unseen;
use crate::record::{ObjectRecord, Piece, VersionRecord};
use crate::ticket::Ticket;

/// Records of pieces looked at in one change, about.
const STEP: usize = 1024;

impl ObjectStore {
    /// Lets go of the versions that are older than `below` and not named. Objects that are not there
    /// are passed over. Answers the bytes that were given back, and when that is durable.
    pub fn prune(&self, needed: &[Needed]) -> Result<(u64, Ticket)> {
        let shared = self.shared();
        let (mut freed, mut last) = (0, Ticket::ready());
        for needed in needed {
            let cell = shared.cells.of(needed.object);
            let mut state = cell.write(shared)?;
            let keep = |known: &VersionRecord| {
                known.version >= needed.below || needed.keep.contains(&known.version)
            };
            if let Some((blocks, ticket)) = shared.let_go(needed.object, &mut state, &keep)? {
                freed += blocks * BLOCK_BYTES;
                last = ticket;
            }
        }
        Ok((freed, last))
    }
}

impl Shared {
    /// Lets go of all versions that are not to be kept; says how many blocks that gave back. `None`:
    /// there are none.
    pub(super) fn let_go(
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

    /// Removes from the first of `ranges` on what none of `viewers` sees, up to a step, and says
    /// whether that was all.
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
                // What a damaged record names is not known; its blocks stay out of use.
                same.push((key, Piece::decode(&value).unwrap_or(Piece::Gone)));
                looked += 1;
            }
            ranges.pop_front();
        }
        Ok(true)
    }
}

/// Where pieces may be that nobody needs once the versions that end are gone, apart from each other.
fn unneeded(versions: &[VersionRecord]) -> VecDeque<Range<u64>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    let mut after_ended = false;
    for (index, known) in versions.iter().enumerate() {
        if after_ended {
            found.push(known.changed.clone());
        }
        // Nothing newer that sees what the newest had: all of that goes too.
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

/// Takes the versions that end off the record. What they had and a newer one sees is the newer one's.
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
    use super::*;

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
}
