//! Removes the versions of a vnode that no viewer sees: its records and its pieces.

use std::collections::BTreeSet;
use std::sync::Arc;

use cellar_wire::dir::PAGE_SIZE;

use super::STEP;
use crate::engine::batch::{Batch, Run};
use crate::engine::key::Key;
use crate::error::{Error, Result};
use crate::record::{Body, EPOCH_MAX, PIECE_BYTES, Piece, PieceBlocks, VnodeRecord};
use crate::state::core::{Core, Group, GroupId};
use crate::types::FileType;

impl Core {
    /// Removes the unseen versions of a vnode. If the vnode has no version of epoch `noted`, also
    /// removes its entry for that epoch in the index of changes. Returns false if this has to wait
    /// for a restore, or for a hold; an undo of a restore does not wait for holds.
    pub(super) fn collect_vnode(
        self: &Arc<Self>,
        group: &Arc<Group>,
        vnode: u32,
        noted: Option<u64>,
        undoing: bool,
    ) -> Result<bool> {
        let mut from = Some(Key::bodies_prefix(group.id.0, vnode));
        while let Some(at) = from {
            if self.reaper.stopping() {
                return Err(Error::Stopped("closing".into()));
            }
            let _room = self.engine.admit(0)?;
            let head = self.head_of(group)?;
            let slot = head
                .as_ref()
                .map(|volume| volume.slot(cellar_wire::ids::VnodeId(vnode)));
            // The vnode's lock: no change reads versions that are removed here.
            let locked = slot.as_ref().map(|slot| slot.state.write());
            let state = group.state.read();
            if state.restoring || (!undoing && group.held.any()) {
                return Ok(false);
            }
            let record = &state.record;
            let mut viewers: Vec<u64> = record.clones.iter().map(|clone| clone.epoch).collect();
            // If there is a pin and no restore is running, newer versions are to be removed; the
            // head does not see them.
            viewers.extend((record.has_head() && record.pin().is_none()).then_some(EPOCH_MAX));
            viewers.extend(group.held.epochs());
            let mut batch = Batch::new();
            if let Some(noted) = noted {
                let key = Key::vnode(group.id.0, vnode, noted);
                if self.engine.get(&key)?.is_none() {
                    batch.delete(Key::change(group.id.0, noted, vnode));
                }
            }
            let seen = self.collect_records(group.id, vnode, &viewers, &mut batch)?;
            let (next, looked) = self.collect_pieces(group.id, vnode, &at, &seen, &mut batch)?;
            self.engine.commit(batch)?;
            drop(state);
            drop(locked);
            from = next;
            self.reaper.pace(&self.engine, looked);
        }
        Ok(true)
    }

    /// Removes vnode records that no viewer sees. Returns the record that each viewer sees.
    fn collect_records(
        &self,
        group: GroupId,
        vnode: u32,
        viewers: &[u64],
        batch: &mut Batch,
    ) -> Result<Vec<(u64, VnodeRecord)>> {
        let prefix = Key::vnode_prefix(group.0, vnode);
        let mut scan = self.engine.scan(&prefix, &prefix)?;
        let mut versions = Vec::new();
        while let Some((key, value)) = scan.next()? {
            versions.push((key.epoch(), VnodeRecord::decode(&value)?.ok()));
        }
        let mut seen = Vec::new();
        let mut needed = BTreeSet::new();
        // Versions whose meaning is "gone" for some viewer. No viewer sees the "gone" records of a
        // restore that is being undone.
        let mut gone = BTreeSet::new();
        for &viewer in viewers {
            match versions.iter().find(|(epoch, _)| *epoch <= viewer) {
                Some((epoch, Some(record))) => {
                    needed.insert(*epoch);
                    seen.push((viewer, record.clone()));
                }
                Some((epoch, None)) => {
                    gone.insert(*epoch);
                }
                None => {}
            }
        }
        // Such a version is needed as long as an older one would be seen without it.
        let oldest = needed.first().copied();
        gone.retain(|epoch| oldest.is_some_and(|oldest| oldest < *epoch));
        for (epoch, _) in &versions {
            if !needed.contains(epoch) && !gone.contains(epoch) {
                batch.delete(Key::vnode(group.0, vnode, *epoch));
                if *epoch > 1 {
                    batch.delete(Key::change(group.0, *epoch, vnode));
                }
            }
        }
        Ok(seen)
    }

    /// Removes unseen pieces from `from` on. Returns where to go on, and how many versions were
    /// examined.
    fn collect_pieces(
        &self,
        group: GroupId,
        vnode: u32,
        from: &Key,
        seen: &[(u64, VnodeRecord)],
        batch: &mut Batch,
    ) -> Result<(Option<Key>, usize)> {
        let prefix = Key::bodies_prefix(group.0, vnode);
        let mut scan = self.engine.scan(from, &prefix)?;
        let mut looked = 0;
        let mut same: Vec<(Key, Piece)> = Vec::new();
        loop {
            let next = scan.next()?;
            let of_same = |(key, _): &(Key, Piece), other: &Key| {
                (key.body_number(), key.piece_number())
                    == (other.body_number(), other.piece_number())
            };
            let ends = match (&next, same.first()) {
                (Some((key, _)), Some(first)) => !of_same(first, key),
                (None, Some(_)) => true,
                _ => false,
            };
            if ends {
                collect_versions(&same, seen, batch);
                same.clear();
                if looked >= STEP {
                    return Ok((next.map(|(key, _)| key), looked));
                }
            }
            let Some((key, value)) = next else {
                return Ok((None, looked));
            };
            same.push((key, Piece::decode(&value)?));
            looked += 1;
        }
    }
}

/// The number of pieces that the body of this record has.
pub(crate) fn pieces_of(record: &VnodeRecord) -> u64 {
    match (record.kind, record.body) {
        (_, Body::None | Body::Objects | Body::Archived(_)) => 0,
        (_, Body::Inline { .. }) => 1,
        (FileType::Directory, Body::Pieces) => record.length / PAGE_SIZE as u64,
        (_, Body::Pieces) => record.length.div_ceil(PIECE_BYTES),
    }
}

/// Removes the versions of one piece, given newest first, that no viewer sees.
fn collect_versions(versions: &[(Key, Piece)], seen: &[(u64, VnodeRecord)], batch: &mut Batch) {
    let Some((first, _)) = versions.first() else {
        return;
    };
    let (body, number) = (first.body_number(), first.piece_number());
    let of_body = seen
        .iter()
        .filter(|(_, record)| record.body_number == body && number < pieces_of(record));
    let viewers: Vec<u64> = of_body.map(|(viewer, _)| *viewer).collect();
    let newest = seen.iter().map(|(viewer, _)| *viewer).max().unwrap_or(0);
    collect_unseen(versions, &viewers, newest, batch);
}

/// Removes the versions of one piece, given newest first, that none of `viewers` sees. Each viewer
/// sees the newest version that is not newer than itself. A "gone" record up to `newest` stays
/// while an older version is needed.
pub(crate) fn collect_unseen(
    versions: &[(Key, Piece)],
    viewers: &[u64],
    newest: u64,
    batch: &mut Batch,
) {
    let mut needed = BTreeSet::new();
    for viewer in viewers {
        let visible = versions.iter().position(|(key, _)| key.epoch() <= *viewer);
        if let Some(index) = visible.filter(|&index| versions[index].1 != Piece::Gone) {
            needed.insert(index);
        }
    }
    let oldest = needed.last().copied();
    let kept = |index: usize| {
        let (key, piece) = &versions[index];
        let hides = *piece == Piece::Gone
            && key.epoch() <= newest
            && oldest.is_some_and(|last| last > index);
        needed.contains(&index) || hides
    };
    let mut used = BTreeSet::new();
    let mut unused = BTreeSet::new();
    for (index, (key, piece)) in versions.iter().enumerate() {
        let blocks = match piece {
            Piece::Blocks(blocks) => blocks.clone(),
            _ => PieceBlocks::empty(),
        };
        let numbers = blocks.0.iter().flatten().map(|slot| slot.block);
        if kept(index) {
            used.extend(numbers);
        } else {
            unused.extend(numbers);
            batch.delete(*key);
        }
    }
    for block in unused.difference(&used) {
        match batch.released.last_mut() {
            Some(run) if run.end() == *block => run.count += 1,
            _ => batch.released.push(Run {
                start: *block,
                count: 1,
            }),
        }
    }
}
