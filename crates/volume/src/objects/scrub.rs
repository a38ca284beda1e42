//! Searching for damage while the device is in use: every record and block is compared with its
//! checksum.
//!
//! Blocks are read from the device if the system supports that. If a block does not match, it is
//! verified again, with its present record and with its blocks held, before it is reported.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use cellar_wire::object::ObjectId;

use super::{DAMAGED_MAX, ObjectStore, Shared, name_of};
use crate::background::block_map;
use crate::engine::blocks::{Owner, block_damage};
use crate::engine::key::{Key, Kind};
use crate::engine::space::BLOCK_BYTES;
use crate::error::Result;
use crate::record::{
    BLOCK, BlockRef, DeviceRecord, ObjectRecord, PIECE_BLOCKS, Piece, PieceBlocks,
};

/// The longest single pause.
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// Shorter delays are accumulated.
const PAUSE_MIN: Duration = Duration::from_millis(20);

/// The progress and the findings of a scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectScrub {
    /// Bytes that were verified.
    pub bytes: u64,
    /// About the bytes that there were to verify when it began.
    pub total: u64,
    /// Number of objects that were verified.
    pub objects: u64,
    /// Damaged objects, up to 1024 of them.
    pub damaged: Vec<ObjectId>,
    /// Whether it ended before everything was verified.
    pub is_partial: bool,
}

impl ObjectStore {
    /// Verifies all blocks at up to `rate` bytes per second (0: no limit). `tell` is called with
    /// the progress, and may end the scrub.
    pub fn scrub(
        &self,
        rate: u64,
        tell: &mut dyn FnMut(&ObjectScrub) -> ControlFlow<()>,
    ) -> Result<ObjectScrub> {
        let shared = self.shared();
        let prefix = Key::of_kind(Kind::Object);
        let mut report = ObjectScrub::default();
        let mut walk = shared.engine.walk(&prefix, &prefix);
        loop {
            match walk.next() {
                Ok(Some((_, value))) => {
                    if let Ok(record) = ObjectRecord::decode(&value) {
                        report.total += record.blocks * BLOCK_BYTES;
                    }
                }
                Ok(None) => break,
                // Reported below.
                Err(_) if walk.skip_unreadable() => {}
                Err(_) => break,
            }
        }
        let begun = Instant::now();
        let lost = shared.scrub_table(rate, begun, &mut report, tell)?;
        let misnamed = shared.scrub_map(rate, begun, &mut report, tell)?;
        let mut count = Count::begin(shared);
        let mut walk = shared.engine.walk(&prefix, &prefix);
        while !report.is_partial {
            let (key, value) = match walk.next() {
                Ok(Some(entry)) => entry,
                Ok(None) => break,
                Err(error) => {
                    tracing::error!(%error, "scrub: objects with records in a damaged page are not known");
                    count.is_whole = false;
                    match walk.skip_unreadable() {
                        true => continue,
                        false => break,
                    }
                }
            };
            let id = name_of(&key);
            report.objects += 1;
            let cause = match ObjectRecord::decode(&value) {
                Ok(record) => {
                    count.add(&record);
                    let mut go_on = |report: &mut ObjectScrub, bytes| {
                        report.bytes += bytes;
                        let ended = keep_pace(shared, rate, begun, report, tell);
                        report.is_partial |= ended.is_break();
                        ended
                    };
                    let scrubbed =
                        shared.scrub_object(&record, &mut |bytes| go_on(&mut report, bytes));
                    let wrong = scrubbed.unwrap_or_else(|error| Some(error.to_string()));
                    let is_lost =
                        lost.contains(&key) || lost.contains(&Key::object_pieces(record.number));
                    let wrong = wrong.or_else(|| is_lost.then(|| ON_DISK.to_owned()));
                    wrong.or_else(|| misnamed.get(&record.number).cloned())
                }
                Err(error) => Some(error.to_string()),
            };
            if let Some(cause) = cause {
                let _ = shared.damaged(id, &cause);
                if report.damaged.len() < DAMAGED_MAX {
                    report.damaged.push(id);
                }
            }
            if report.is_partial || tell(&report).is_break() {
                report.is_partial = true;
                break;
            }
        }
        if !report.is_partial {
            count.compare(shared);
        }
        Ok(report)
    }
}

/// The message for an object whose records are damaged on the disk.
const ON_DISK: &str = "its records in the table do not match their checksums on the disk";

/// The objects that a scrub has found, and the numbers in the device's record.
struct Count {
    before: DeviceRecord,
    objects: u64,
    removed: u64,
    is_whole: bool,
}

impl Count {
    fn begin(shared: &Shared) -> Self {
        Self {
            before: *shared.device.lock(),
            objects: 0,
            removed: 0,
            is_whole: true,
        }
    }

    fn add(&mut self, record: &ObjectRecord) {
        match record.removed {
            0 => self.objects += 1,
            _ => self.removed += 1,
        }
    }

    /// Logs a difference, if nothing has changed meanwhile.
    fn compare(&self, shared: &Shared) {
        let now = *shared.device.lock();
        let (objects, removed) = (self.objects, self.removed);
        if self.is_whole && now == self.before && (objects, removed) != (now.objects, now.removed) {
            tracing::error!(
                objects,
                removed,
                said = now.objects,
                said_removed = now.removed,
                "scrub: the device's counters do not match its objects"
            );
        }
    }
}

/// Waits until this many bytes may have been read.
fn keep_pace(
    shared: &Shared,
    rate: u64,
    begun: Instant,
    report: &ObjectScrub,
    tell: &mut dyn FnMut(&ObjectScrub) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let due = match rate {
        0 => Duration::ZERO,
        rate => Duration::from_secs_f64(report.bytes as f64 / rate as f64),
    };
    loop {
        tell(report)?;
        if shared.reaper.stopping() {
            return ControlFlow::Break(());
        }
        let early = due.saturating_sub(begun.elapsed());
        if early < PAUSE_MIN {
            return ControlFlow::Continue(());
        }
        std::thread::sleep(early.min(PAUSE_MAX));
    }
}

impl Shared {
    /// Verifies the table on the disk. Returns the damaged keys of objects, and of all pieces of
    /// objects.
    fn scrub_table(
        &self,
        rate: u64,
        begun: Instant,
        report: &mut ObjectScrub,
        tell: &mut dyn FnMut(&ObjectScrub) -> ControlFlow<()>,
    ) -> Result<BTreeSet<Key>> {
        let faults = self.engine.verify_table(&mut |bytes| {
            report.bytes += bytes;
            report.total += bytes;
            keep_pace(self, rate, begun, report, tell)
        })?;
        report.is_partial |= faults.is_partial;
        for fault in &faults.others {
            tracing::error!(fault, "scrub: damaged");
        }
        faults.log();
        let of_object = |key: &Key| match key.starts_with(&Key::of_kind(Kind::ObjectPiece)) {
            true => Key::object_pieces(key.u64_at(1)),
            false => *key,
        };
        Ok(faults.lost.iter().map(of_object).collect())
    }

    /// Compares the map of blocks with the pieces. Returns the numbers of objects that name a block
    /// wrongly, with the reason.
    fn scrub_map(
        &self,
        rate: u64,
        begun: Instant,
        report: &mut ObjectScrub,
        tell: &mut dyn FnMut(&ObjectScrub) -> ControlFlow<()>,
    ) -> Result<BTreeMap<u64, String>> {
        let mut is_ended = false;
        let mut go_on = || {
            is_ended = self.reaper.stopping() || tell(report).is_break();
            match is_ended {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        let faults = block_map::compare(&self.engine, Kind::ObjectPiece, &mut go_on)?;
        if faults.is_partial && !is_ended {
            tracing::warn!("scrub: no room to compare the map of blocks with the pieces");
        }
        for fault in faults.of_unnamed().iter().chain(&faults.others) {
            tracing::error!(fault, "scrub: damaged");
        }
        report.bytes += faults.bytes;
        report.total += faults.bytes;
        report.is_partial |= is_ended || keep_pace(self, rate, begun, report, tell).is_break();
        let named = faults.pieces.into_iter();
        Ok(named.map(|(key, cause)| (key.u64_at(1), cause)).collect())
    }

    /// Verifies the pieces of an object. Returns what is wrong with the first damaged one.
    fn scrub_object(
        &self,
        record: &ObjectRecord,
        verified: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Option<String>> {
        let prefix = Key::object_pieces(record.number);
        let mut walk = self.engine.walk(&prefix, &prefix);
        let mut newer: Option<(u64, PieceBlocks)> = None;
        let mut wrong = None;
        while let Some((key, value)) = walk.next()? {
            let number = key.u64_at(9);
            let known = newer.take().filter(|(of, _)| *of == number);
            let known = known.map_or_else(PieceBlocks::empty, |(_, blocks)| blocks);
            let piece = match Piece::decode(&value) {
                Ok(piece) => piece,
                Err(error) => {
                    // Read again: a change may have interfered, or the memory was faulty.
                    let again = self.engine.get(&key)?;
                    if again.is_some_and(|value| Piece::decode(&value).is_err()) {
                        wrong.get_or_insert(error.to_string());
                    }
                    continue;
                }
            };
            let blocks = piece.into_blocks();
            let read = self.scrub_piece(record.number, &key, &blocks, &known, &mut wrong)?;
            newer = Some((number, blocks));
            if verified(value.len() as u64 + read).is_break() {
                break;
            }
        }
        Ok(wrong)
    }

    /// Verifies the blocks of a piece that the next newer version of it does not share.
    fn scrub_piece(
        &self,
        number: u64,
        key: &Key,
        blocks: &PieceBlocks,
        known: &PieceBlocks,
        wrong: &mut Option<String>,
    ) -> Result<u64> {
        let base = key.u64_at(9) * PIECE_BLOCKS as u64;
        let owner = Owner::object(number);
        let mut read = 0;
        for (place, run) in blocks.runs() {
            let places = place..place + run.count as usize;
            if places.clone().all(|at| blocks.0[at] == known.0[at]) {
                continue;
            }
            let mut bytes = vec![0; run.count as usize * BLOCK];
            let whole = self.engine.space.read_stored(run.start, &mut bytes);
            read += bytes.len() as u64;
            for (at, bytes) in places.zip(bytes.chunks_exact(BLOCK)) {
                let Some(slot) = &blocks.0[at] else { continue };
                let index = base + at as u64;
                if whole.is_ok() && owner.checksum(index, bytes) == slot.checksum {
                    continue;
                }
                if let Some(cause) = self.verify(owner, key, at, slot)? {
                    wrong.get_or_insert(cause);
                }
            }
        }
        Ok(read)
    }

    /// Verifies one block again, held, with its present record. Returns what is wrong with it, if
    /// anything.
    fn verify(
        &self,
        owner: Owner,
        key: &Key,
        place: usize,
        slot: &BlockRef,
    ) -> Result<Option<String>> {
        let _held = self.engine.space.pin();
        let value = self.engine.get(key)?;
        let Some(Ok(Piece::Blocks(blocks))) = value.map(|value| Piece::decode(&value)) else {
            return Ok(None);
        };
        if blocks.0[place] != Some(*slot) {
            return Ok(None);
        }
        let index = key.u64_at(9) * PIECE_BLOCKS as u64 + place as u64;
        Ok(block_damage(&self.engine, owner, index, slot))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cellar_wire::ids::{Uniquifier, VnodeId, VolumeId};

    use super::*;
    use crate::Options;
    use crate::disk::SimDisk;
    use crate::engine::batch::Batch;

    #[test]
    fn a_device_names_objects_whose_blocks_are_free_in_the_map() {
        let options = Options {
            journal_bytes: 1 << 20,
            reserve_bytes: 1 << 20,
            ..Options::default()
        };
        let store = ObjectStore::open(Arc::new(SimDisk::new(64 << 20)), options).unwrap();
        let id = |serial| ObjectId {
            volume: VolumeId(7),
            vnode: VnodeId(2),
            uniquifier: Uniquifier(3),
            serial,
        };
        for serial in 1..4 {
            let mut writer = store.writer(id(serial), 0, 10, 0, 100_000).unwrap();
            writer.push(vec![serial as u8; 100_000].into()).unwrap();
            writer.finish().unwrap().wait().unwrap();
        }
        let mut tell = |_: &_| ControlFlow::Continue(());
        store.flush().unwrap();
        assert_eq!(store.scrub(0, &mut tell).unwrap().damaged, []);
        let engine = &store.shared().engine;
        let prefix = Key::object_pieces(2);
        let (key, value) = engine.first_version(&prefix, &prefix).unwrap().unwrap();
        let runs = Piece::decode(&value).unwrap().into_blocks().runs();
        let mut batch = Batch::new();
        batch.put(key, value);
        batch.released = runs.into_iter().map(|(_, run)| run).collect();
        engine.commit(batch).unwrap().wait().unwrap();
        store.flush().unwrap();
        assert_eq!(store.scrub(0, &mut tell).unwrap().damaged, [id(2)]);
    }
}
