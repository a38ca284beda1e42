//! Verifies the bodies of one vnode, in all versions that are visible.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use cellar_wire::dir::PAGE_SIZE;
use cellar_wire::ids::{Fid, VnodeId};

use super::{Damage, Scrub, ScrubStopped, Viewers, VisibleVersion};
use crate::background::reap::pieces_of;
use crate::engine::blocks::{Owner, block_damage};
use crate::engine::key::Key;
use crate::error::Result;
use crate::record::{
    BLOCK, BlockRef, Body, PIECE_BLOCKS, PIECE_BYTES, Piece, VnodeRecord, block_checksum,
};
use crate::state::core::Group;
use crate::types::FileType;
use crate::versions::{Version, Versions};

/// The most damaged places of one file that are described. If there are more, the last one extends
/// to the end of the last damaged place.
const PLACES_MAX: usize = 64;

impl Scrub<'_> {
    /// Verifies all visible bodies of a vnode.
    pub(super) fn bodies(
        &mut self,
        group: &Arc<Group>,
        viewers: &Viewers,
        vnode: u32,
        seen: &[VisibleVersion],
    ) -> Result<ControlFlow<ScrubStopped>> {
        if seen.iter().all(|visible| pieces_of(&visible.record) == 0) {
            return Ok(self.verified(0));
        }
        let engine = Arc::clone(&self.core.engine);
        let mut found = VnodeDamage::default();
        let mut pages = vec![0u64; seen.len()];
        let epochs = viewers.epochs.clone();
        let mut pieces = Versions::of_bodies(&engine, group.id, VnodeId(vnode), epochs);
        let mut is_readable = true;
        loop {
            let version = match pieces.next_visible() {
                Ok(Some(version)) => version,
                Ok(None) => break,
                Err(_) => {
                    self.pieces_alone(group, viewers, vnode, seen, &mut found)?;
                    is_readable = false;
                    break;
                }
            };
            let (body, number) = (version.key.body_number(), version.key.piece_number());
            let mut wanted = false;
            for (index, visible) in seen.iter().enumerate() {
                let record = &visible.record;
                let sees = visible.seen_by.start.max(version.seen_by.start)
                    < visible.seen_by.end.min(version.seen_by.end);
                if sees && record.body_number == body && number < pieces_of(record) {
                    wanted = true;
                    found.mark(index);
                    pages[index] += 1;
                }
            }
            if !wanted {
                found.forget_last();
                continue;
            }
            let bytes = match Piece::decode(&version.value) {
                Ok(Piece::Blocks(_)) => {
                    let read = self.blocks(group, vnode, &version, &mut found)?;
                    version.value.len() as u64 + read
                }
                Ok(_) => version.value.len() as u64,
                Err(error) => {
                    // Read again: a change may have interfered, or the memory was faulty.
                    let again = engine.get(&version.key)?;
                    if again.is_some_and(|value| Piece::decode(&value).is_err()) {
                        found.place(place_of(&seen[0].record, number), error.to_string());
                    }
                    version.value.len() as u64
                }
            };
            found.forget_last();
            if self.verified(bytes).is_break() {
                return Ok(ControlFlow::Break(ScrubStopped));
            }
        }
        for (index, visible) in seen.iter().enumerate() {
            let record = &visible.record;
            let has_all = match (record.kind, record.body) {
                (FileType::Directory, Body::Pieces) => pages[index] == pieces_of(record),
                (_, Body::Inline { .. }) => pages[index] == 1,
                _ => true,
            };
            if is_readable && !has_all && self.is_unchanged(group, viewers, vnode, visible)? {
                found.mark(index);
                found.place(0..record.length, "bytes are missing".into());
                found.forget_last();
            }
        }
        for (index, (places, cause)) in found.damaged {
            let visible = &seen[index];
            let volumes = viewers.volumes(&visible.seen_by);
            let Some(&volume) = volumes.first() else {
                continue;
            };
            let fid = Fid {
                volume,
                vnode: VnodeId(vnode),
                uniquifier: visible.record.uniquifier,
            };
            self.enter(Damage {
                fid,
                volumes,
                path: self.core.path_of(fid),
                data_version: visible.record.data_version,
                length: visible.record.length,
                places,
                cause,
            });
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Verifies the pieces of a vnode one by one, if a page of the table cannot be read.
    fn pieces_alone(
        &mut self,
        group: &Arc<Group>,
        viewers: &Viewers,
        vnode: u32,
        seen: &[VisibleVersion],
        found: &mut VnodeDamage,
    ) -> Result<()> {
        let engine = Arc::clone(&self.core.engine);
        for (index, visible) in seen.iter().enumerate() {
            let (record, epoch) = (&visible.record, viewers.epochs[visible.seen_by.start]);
            for number in 0..pieces_of(record) {
                let body = record.body_number;
                let prefix = Key::piece_prefix(group.id.0, vnode, body, number);
                let from = Key::piece(group.id.0, vnode, body, number, epoch);
                found.mark(index);
                match engine.first_version(&from, &prefix) {
                    Ok(Some((key, value))) => {
                        let version = Version {
                            key,
                            value,
                            seen_by: visible.seen_by.clone(),
                        };
                        self.blocks(group, vnode, &version, found)?;
                    }
                    Ok(None) => {}
                    Err(error) => found.place(place_of(record, number), error.to_string()),
                }
                found.forget_last();
            }
        }
        Ok(())
    }

    /// Returns whether the viewers still see this record.
    fn is_unchanged(
        &self,
        group: &Arc<Group>,
        viewers: &Viewers,
        vnode: u32,
        visible: &VisibleVersion,
    ) -> Result<bool> {
        let epoch = viewers.epochs[visible.seen_by.start];
        let from = Key::vnode(group.id.0, vnode, epoch);
        let prefix = Key::vnode_prefix(group.id.0, vnode);
        let found = self.core.engine.first_version(&from, &prefix)?;
        Ok(found.is_some_and(|(_, value)| {
            matches!(VnodeRecord::decode(&value), Ok(Ok(record)) if record == visible.record)
        }))
    }

    /// Verifies the blocks of a piece; returns the number of bytes.
    fn blocks(
        &self,
        group: &Arc<Group>,
        vnode: u32,
        version: &Version,
        found: &mut VnodeDamage,
    ) -> Result<u64> {
        let Ok(Piece::Blocks(blocks)) = Piece::decode(&version.value) else {
            return Ok(0);
        };
        let base = version.key.piece_number() * PIECE_BLOCKS as u64;
        let space = &self.core.engine.space;
        let mut read = 0;
        for (place, run) in blocks.runs() {
            let slots = &blocks.0[place..place + run.count as usize];
            // A block that a newer version of the piece shares was verified with that version.
            if slots.iter().flatten().all(|slot| found.sound(slot.block)) {
                continue;
            }
            let mut bytes = vec![0; run.count as usize * BLOCK];
            let whole = space.read_stored(run.start, &mut bytes);
            read += bytes.len() as u64;
            for (offset, slot) in slots.iter().flatten().enumerate() {
                let index = base + (place + offset) as u64;
                let sum = block_checksum(
                    group.id.0,
                    vnode,
                    index,
                    &bytes[offset * BLOCK..(offset + 1) * BLOCK],
                );
                if whole.is_ok() && sum == slot.checksum {
                    found.add_sound(slot.block);
                    continue;
                }
                if let Some(cause) = self.verify(group, vnode, version, place + offset, slot)? {
                    let at = index * BLOCK as u64;
                    found.place(at..at + BLOCK as u64, cause);
                } else {
                    found.add_sound(slot.block);
                }
            }
        }
        Ok(read)
    }

    /// Verifies one block again, held, with its present record. Returns what is wrong with it, if
    /// anything.
    fn verify(
        &self,
        group: &Arc<Group>,
        vnode: u32,
        version: &Version,
        place: usize,
        slot: &BlockRef,
    ) -> Result<Option<String>> {
        let engine = &self.core.engine;
        let _held = engine.space.pin();
        let Some(value) = engine.get(&version.key)? else {
            return Ok(None);
        };
        let Ok(Piece::Blocks(blocks)) = Piece::decode(&value) else {
            return Ok(None);
        };
        // The place may have another block now; the same block may also have been freed and written
        // again.
        if blocks.0[place] != Some(*slot) {
            return Ok(None);
        }
        let index = version.key.piece_number() * PIECE_BLOCKS as u64 + place as u64;
        let owner = Owner::vnode(group.id.0, vnode);
        Ok(block_damage(engine, owner, index, slot))
    }
}

/// The range of bytes that a piece has in its body.
fn place_of(record: &VnodeRecord, number: u64) -> Range<u64> {
    let bytes = match (record.kind, record.body) {
        (FileType::Directory, _) => PAGE_SIZE as u64,
        (_, Body::Pieces) => PIECE_BYTES,
        _ => return 0..record.length,
    };
    number * bytes..(number + 1) * bytes
}

/// Damage of one vnode, by the versions that have it.
#[derive(Default)]
struct VnodeDamage {
    damaged: std::collections::BTreeMap<usize, (Vec<Range<u64>>, String)>,
    /// The versions that see the present piece.
    these: Vec<usize>,
    /// Sound blocks of the last few pieces: versions of a piece follow one another.
    sound: std::collections::VecDeque<u64>,
}

impl VnodeDamage {
    fn mark(&mut self, index: usize) {
        self.these.push(index);
    }

    fn forget_last(&mut self) {
        self.these.clear();
    }

    fn sound(&self, block: u64) -> bool {
        self.sound.contains(&block)
    }

    fn add_sound(&mut self, block: u64) {
        if self.sound.len() >= 2 * PIECE_BLOCKS {
            self.sound.pop_front();
        }
        self.sound.push_back(block);
    }

    fn place(&mut self, place: Range<u64>, cause: String) {
        for index in &self.these {
            let (places, _) = self
                .damaged
                .entry(*index)
                .or_insert_with(|| (Vec::new(), cause.clone()));
            let full = places.len() == PLACES_MAX;
            match places.last_mut() {
                Some(last) if full || last.end >= place.start => {
                    last.end = last.end.max(place.end);
                }
                _ => places.push(place.clone()),
            }
        }
    }
}
