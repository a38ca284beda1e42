//! Making and removing clones; removing volumes.
//!
//! A clone is an epoch and two records: it sees of every vnode the last version written up to that
//! epoch, and the group's next epoch begins. Nothing is copied and nothing is counted, so it costs
//! the same for an empty volume and for one of a million files. What only a removed clone saw is
//! removed in the background (`reap`).

use std::sync::Arc;

use bytes::Bytes;
use cellar_wire::ids::{AfsTime, VolumeId};

use crate::core::{GroupId, GroupState};
use crate::engine::batch::Batch;
use crate::engine::key::Key;
use crate::error::{Error, Result};
use crate::partition::Partition;
use crate::record::{CloneRef, GroupRecord, VolumeRecord};
use crate::types::{Changed, SnapshotSpec, VolumeKind};
use crate::volume::{Volume, check_info};

impl Partition {
    /// Makes a clone of an RW volume as it is now, or replaces an existing clone of that id, in one
    /// step. The RW volume's record gets the clone's id, and for a backup the date.
    ///
    /// `NoVolume`, `VolumeExists` (the id belongs to another group or an RW volume), `Invalid`.
    pub fn snapshot(&self, spec: &SnapshotSpec) -> Result<Changed<Arc<Volume>>> {
        if spec.kind == VolumeKind::ReadWrite || spec.id.0 == 0 {
            return Err(Error::Invalid(
                "a clone is read-only or a backup, with an id",
            ));
        }
        let core = &self.core;
        let _room = core.engine.admit(4 << 10)?;
        let _making = self.volumes.lock();
        let source = core
            .volume(spec.source)?
            .ok_or(Error::NoVolume(spec.source))?;
        if !source.is_writable() {
            return Err(Error::Invalid("a clone is made of an RW volume"));
        }
        let group = Arc::clone(&source.group);
        let existing = core.volume(spec.id)?;
        if let Some(existing) = &existing
            && (existing.group.id != group.id || existing.is_writable())
        {
            return Err(Error::VolumeExists(spec.id));
        }
        let mut state = group.state.write();
        let epoch = state.record.epoch;
        let replaced = position(&state.record, spec.id);
        let mut record = state.record.clone();
        let mut batch = Batch::new();
        let mut reaping = 0;
        if let Some(index) = replaced {
            let old = record.clones.remove(index);
            reaping = stage_reaping(&mut batch, group.id, &record, old.epoch, epoch);
        }
        record.clones.push(CloneRef { id: spec.id, epoch });
        record.clones.sort_by_key(|clone| clone.epoch);
        record.epoch = epoch + 1;
        let counters = source.lock_counters()?;
        let mut source_record = source.record().write();
        let mut new_source = source_record.clone();
        let mut info = source_record.info.clone();
        match spec.kind {
            VolumeKind::Backup => {
                new_source.info.backup = spec.id;
                new_source.info.backed_up = spec.now;
                info.backed_up = spec.now;
            }
            _ => new_source.info.clone = spec.id,
        }
        info.id = spec.id;
        info.name.clone_from(&spec.name);
        info.kind = spec.kind;
        info.parent = spec.source;
        info.clone = new_source.info.clone;
        info.backup = new_source.info.backup;
        info.created = spec.now;
        info.copied = spec.now;
        info.blocks_used = counters.record.blocks_used;
        info.files = counters.record.files;
        info.updated = counters.record.updated;
        info.update_counter = counters.record.update_counter;
        info.offline_message = Bytes::new();
        // Accesses are those of the id: a new clone has none, one that is replaced keeps its own.
        let counted = existing.as_ref().map(|existing| existing.info());
        (info.day_use, info.day_use_date, info.week_use) = match &counted {
            Some(old) => (old.day_use, old.day_use_date, old.week_use),
            None => (0, AfsTime(0), [0; 7]),
        };
        info.accessed = counted.map_or(spec.now, |old| old.accessed);
        check_info(&info)?;
        let clone_record = VolumeRecord {
            info,
            group: group.id,
            epoch,
        };
        batch.put(Key::volume(spec.id.0), clone_record.encode());
        batch.put(Key::volume(spec.source.0), new_source.encode());
        batch.put(Key::group(group.id.0), record.encode());
        let durable = core.engine.commit(batch)?;
        *source_record = new_source;
        state.record = record;
        state.reaping += reaping;
        let counters_now = counters.record;
        drop((source_record, counters));
        core.detach(spec.id);
        let outcome = core.attach_new(Arc::clone(&group), clone_record, counters_now, &durable);
        drop(state);
        core.reaper.wake();
        Ok(Changed { outcome, durable })
    }

    /// Removes a volume: it is gone at once, its space comes back in the background. Clones of a
    /// removed RW volume stay.
    pub fn delete_volume(&self, id: VolumeId) -> Result<Changed<()>> {
        let core = &self.core;
        let _room = core.engine.admit(0)?;
        let _making = self.volumes.lock();
        let volume = core.volume(id)?.ok_or(Error::NoVolume(id))?;
        let group = Arc::clone(&volume.group);
        let mut state = group.state.write();
        let mut record = state.record.clone();
        let mut batch = Batch::new();
        batch.delete(Key::volume(id.0));
        let reaping;
        match position(&record, id) {
            Some(index) => {
                let old = record.clones.remove(index);
                let last = record.epoch;
                reaping = stage_reaping(&mut batch, group.id, &record, old.epoch, last);
            }
            None => {
                // Versions newer than every clone's are nobody's from now on.
                record.writable = false;
                record.epoch += 1;
                let newest = record.clones.last().map_or(0, |clone| clone.epoch);
                reaping = stage_reaping(&mut batch, group.id, &record, newest, record.epoch);
            }
        }
        batch.put(Key::group(group.id.0), record.encode());
        let durable = core.engine.commit(batch)?;
        state.record = record;
        state.reaping += reaping;
        core.detach(id);
        drop(state);
        core.reaper.wake();
        Ok(Changed {
            outcome: (),
            durable,
        })
    }

    /// The volumes of the group of a volume: what shares its vnodes.
    pub fn group_of(&self, volume: &Volume) -> Vec<VolumeId> {
        let state: parking_lot::RwLockReadGuard<'_, GroupState> = volume.group.state.read();
        let parent = volume.record().read().info.parent;
        let writable = state.record.writable.then_some(parent);
        writable
            .into_iter()
            .chain(state.record.clones.iter().map(|clone| clone.id))
            .collect()
    }
}

fn position(record: &GroupRecord, id: VolumeId) -> Option<usize> {
    record.clones.iter().position(|clone| clone.id == id)
}

/// Stages the background work after a volume that saw epoch `seen` was removed from `record`:
/// vnodes changed after that epoch, up to the next one anybody sees, have versions to look at.
/// Returns how many jobs there are now.
fn stage_reaping(
    batch: &mut Batch,
    group: GroupId,
    record: &GroupRecord,
    seen: u64,
    now: u64,
) -> usize {
    if !record.writable && record.clones.is_empty() {
        batch.put(Key::reap_group(group.0), Bytes::new());
        return 1;
    }
    let next = record
        .clones
        .iter()
        .map(|clone| clone.epoch)
        .filter(|&epoch| epoch > seen)
        .min();
    let last = next.unwrap_or(now);
    let first = if next.is_none() && !record.writable {
        // Nobody sees later versions: those that only this volume saw begin after the clone before.
        let before = record
            .clones
            .iter()
            .map(|clone| clone.epoch)
            .filter(|&e| e <= seen)
            .max();
        before.unwrap_or(0) + 1
    } else {
        seen + 1
    };
    batch.put(Key::reap_epochs(group.0, first, last), Bytes::new());
    1
}
