//! What changed in a group since an earlier state, from its indexes alone.
//!
//! A state of a group is the end of an epoch. Somebody elsewhere may have that state, long after
//! everything that saw it here is gone, and ask what has changed up to a later one that is seen
//! here. Two indexes answer, with as many entries as there are changes, whatever the size of the
//! volume:
//!
//! * *Changes*: every version of a vnode written in epoch 2 or later has its key (epoch, vnode). A
//!   version that takes an older one's place takes its key too. So the vnodes that changed between
//!   two epochs are those whose version, as the later one sees it, is newer than the earlier one:
//!   all of these have keys between the two. Keys of other versions may lie there as well.
//! * *Removals*: a vnode that was there in an earlier epoch and is removed leaves its key (epoch,
//!   vnode), whether or not any version of it stays, and under it the epoch of its birth: one that was
//!   made and removed between two states concerns neither.
//!
//! Removals would grow for ever. A list of them that is longer than that of the volume's own vnodes
//! saves nothing, so that is where the oldest are forgotten: `history_from` is raised first, in the
//! group's record, and states before it are not compared any more; then the keys go. The number of
//! keys is in the counters, and counted anew whenever some are forgotten.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use cellar_wire::ids::VnodeId;

use crate::core::{Core, Group, GroupId};
use crate::engine::batch::Batch;
use crate::engine::key::{Key, Kind};
use crate::engine::space::with_checksum;
use crate::error::{Error, Result};
use crate::record::{CountersRecord, Fields};

/// Removals that a small volume may have noted.
const REMOVED_MIN: u64 = 4096;
/// Keys removed in one step.
const STEP: usize = 256;
/// Changed vnodes that are collected, 4 bytes each, before all of the volume is looked at instead.
const CHANGED_MAX: usize = 1 << 20;

/// Whether more removals are noted than is worth it.
pub(crate) fn is_long(counters: &CountersRecord) -> bool {
    u64::from(counters.removed) > counters.files.max(REMOVED_MIN)
}

/// Puts vnodes in the order of a dump, each once: directories by ascending numbers, then the others.
fn in_order(vnodes: &mut Vec<u32>) {
    vnodes.sort_unstable_by_key(|&vnode| (!VnodeId(vnode).is_directory(), vnode));
    vnodes.dedup();
}

/// What stands under the key of a removal.
pub(crate) fn encode_birth(birth: u64) -> Bytes {
    with_checksum(birth.to_be_bytes().to_vec())
}

fn decode_birth(value: &Bytes) -> Result<u64> {
    Fields::of(value, "removal")?.u64()
}

impl Core {
    /// The vnodes of which versions were written in some epochs, in the order of a dump; `None` if
    /// they are too many to be collected.
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

    /// The vnodes that were there at the end of epoch `since` and were removed up to the end of `until`,
    /// in the order of a dump.
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

    /// Forgets the oldest removals, down to half of what is worth keeping.
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
        // A number that was used and removed again within one epoch was counted twice.
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

    /// Removes the keys of removals that nobody can ask for. There are `surplus` fewer than counted.
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
            // Changes count under the same locks.
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
