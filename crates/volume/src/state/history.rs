//! The changes of a group since an earlier state, found from its indexes alone.
//!
//! A state of a group is the end of an epoch. Another server may have that state long after its
//! versions are gone here. It may ask for the changes up to a later state that is seen here. Two
//! indexes answer this. They have as many entries as there are changes, whatever the size of the
//! volume:
//!
//! * *Changes*: every version of a vnode that was written in epoch 2 or later has its key (epoch,
//!   vnode). A version that replaces an older one replaces its key too. A vnode has changed between
//!   two epochs if its version, as the later one sees it, is newer than the earlier one. All these
//!   versions have keys between the two epochs; keys of other versions may lie there as well.
//! * *Removals*: a removed vnode that was there in an earlier epoch leaves its key (epoch, vnode),
//!   whether or not any version of it remains. The value is the epoch of its birth: a vnode that
//!   was both made and removed between two states concerns neither.
//!
//! Removals would grow forever. A list of removals longer than the list of the volume's own vnodes
//! saves nothing, so at that length the oldest are forgotten. First `history_from` is raised in the
//! group's record, so that states before it are not compared any more. Then the keys are deleted.
//! The counters have the number of keys; it is recounted whenever some are forgotten.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use cellar_wire::ids::VnodeId;

use crate::engine::batch::Batch;
use crate::engine::key::{Key, Kind};
use crate::engine::space::with_checksum;
use crate::error::{Error, Result};
use crate::record::{CountersRecord, Fields};
use crate::state::core::{Core, Group, GroupId};

/// The number of removals that even a small volume may record.
const REMOVED_MIN: u64 = 4096;
/// Keys deleted in one step.
const STEP: usize = 256;
/// The most changed vnodes, 4 bytes each, that are collected. If there are more, the whole volume
/// is walked instead.
const CHANGED_MAX: usize = 1 << 20;

/// Returns whether more removals are recorded than is worthwhile.
pub(crate) fn is_long(counters: &CountersRecord) -> bool {
    u64::from(counters.removed) > counters.files.max(REMOVED_MIN)
}

/// Sorts vnodes into the order of a dump and removes duplicates: directories by ascending numbers,
/// then the other vnodes.
fn in_order(vnodes: &mut Vec<u32>) {
    vnodes.sort_unstable_by_key(|&vnode| (!VnodeId(vnode).is_directory(), vnode));
    vnodes.dedup();
}

/// Encodes the value of a removal's key.
pub(crate) fn encode_birth(birth: u64) -> Bytes {
    with_checksum(birth.to_be_bytes().to_vec())
}

fn decode_birth(value: &Bytes) -> Result<u64> {
    Fields::of(value, "removal")?.u64()
}

impl Core {
    /// The vnodes of which versions were written in these epochs, in the order of a dump. `None` if
    /// there are too many to collect.
    pub(crate) fn changed_in(
        &self,
        group: GroupId,
        epochs: RangeInclusive<u64>,
    ) -> Result<Option<Vec<u32>>> {
        let prefix = Key::of_group(Kind::Change, group.0);
        let mut walk = (self.engine).walk(&Key::change_prefix(group.0, *epochs.start()), &prefix);
        let mut vnodes = Vec::new();
        while let Some((key, _)) = walk.next()? {
            let (epoch, vnode) = key.change_parts();
            if epoch > *epochs.end() {
                break;
            }
            vnodes.push(vnode);
            if vnodes.len() > CHANGED_MAX {
                in_order(&mut vnodes);
                if vnodes.len() > CHANGED_MAX / 2 {
                    return Ok(None);
                }
            }
        }
        in_order(&mut vnodes);
        Ok(Some(vnodes))
    }

    /// The vnodes that existed at the end of epoch `since` and were removed up to the end of
    /// `until`, in the order of a dump.
    pub(crate) fn removed_between(
        &self,
        group: GroupId,
        since: u64,
        until: u64,
    ) -> Result<Vec<u32>> {
        let prefix = Key::of_group(Kind::Removed, group.0);
        let mut walk = (self.engine).walk(&Key::removed_prefix(group.0, since + 1), &prefix);
        let mut vnodes = Vec::new();
        while let Some((key, value)) = walk.next()? {
            let (epoch, vnode) = key.change_parts();
            if epoch > until {
                break;
            }
            if decode_birth(&value)? <= since {
                vnodes.push(vnode);
            }
        }
        in_order(&mut vnodes);
        Ok(vnodes)
    }

    /// Forgets the oldest removals, down to half of the worthwhile number.
    pub(crate) fn shorten_history(self: &Arc<Self>, id: GroupId) -> Result<()> {
        let Some(group) = self.existing_group(id)? else {
            return Ok(());
        };
        let Some(head) = self.head_of(&group)? else {
            return Ok(());
        };
        let counted = head.lock_counters()?.record;
        let prefix = Key::of_group(Kind::Removed, id.0);
        let mut epochs: BTreeMap<u64, u64> = BTreeMap::new();
        let mut walk = self.engine.walk(&prefix, &prefix);
        while let Some((key, _)) = walk.next()? {
            *epochs.entry(key.change_parts().0).or_default() += 1;
        }
        let mut left: u64 = epochs.values().sum();
        // A number that was used and removed twice within one epoch was counted twice.
        let surplus = u64::from(counted.removed).saturating_sub(left);
        let worth = counted.files.max(REMOVED_MIN);
        let mut from = 0;
        for (epoch, removed) in epochs {
            if left <= worth / 2 {
                break;
            }
            left -= removed;
            from = epoch;
        }
        self.raise_history(&group, from)?;
        self.forget_removals(&group, surplus)
    }

    /// Gives up the states before epoch `from`.
    fn raise_history(&self, group: &Group, from: u64) -> Result<()> {
        let _room = self.engine.admit(0)?;
        let mut state = group.state.write();
        if from <= state.record.history_from {
            return Ok(());
        }
        let mut record = state.record.clone();
        record.history_from = from;
        let mut batch = Batch::new();
        batch.put(Key::group(group.id.0), record.encode());
        self.engine.commit(batch)?;
        state.record = record;
        Ok(())
    }

    /// Deletes the keys of removals that no state can ask for any more. There are `surplus` fewer
    /// keys than counted.
    fn forget_removals(self: &Arc<Self>, group: &Arc<Group>, mut surplus: u64) -> Result<()> {
        let prefix = Key::of_group(Kind::Removed, group.id.0);
        let from = group.state.read().record.history_from;
        let mut walk = self.engine.walk(&prefix, &prefix);
        let mut more = true;
        while more {
            if self.reaper.stopping() {
                return Err(Error::Stopped("closing".into()));
            }
            let mut batch = Batch::new();
            while batch.entries.len() < STEP {
                match walk.next()? {
                    Some((key, _)) if key.change_parts().0 <= from => batch.delete(key),
                    _ => {
                        more = false;
                        break;
                    }
                }
            }
            let gone = batch.entries.len();
            let _room = self.engine.admit(0)?;
            let Some(head) = self.head_of(group)? else {
                return Ok(());
            };
            // Changes update the counters under the same locks.
            let _state = group.state.read();
            if head.is_gone() {
                return Ok(());
            }
            let mut counters = head.lock_counters()?;
            let mut record = counters.record;
            let fewer = gone as u64 + std::mem::take(&mut surplus);
            record.removed = u64::from(record.removed).saturating_sub(fewer) as u32;
            batch.put(Key::counters(group.id.0), record.encode());
            self.engine.commit(batch)?;
            counters.record = record;
            drop(counters);
            self.reaper.pace(&self.engine, gone);
        }
        Ok(())
    }
}
