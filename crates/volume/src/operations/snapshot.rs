//! Making and removing clones; removing volumes.
//!
//! A clone is an epoch and three records. It sees of every vnode the last version that was written
//! up to that epoch; then the group's next epoch begins. Nothing is copied and nothing is counted,
//! so a clone costs the same for an empty volume and for one of a million files. When a clone is
//! removed, the versions that only it saw are removed in the background (`reap`).

use std::sync::Arc;

use bytes::Bytes;
use cellar_wire::ids::{AfsTime, VolumeId};

use parking_lot::RwLockWriteGuard;

use crate::background::reap::stage_epochs;
use crate::engine::Engine;
use crate::engine::batch::Batch;
use crate::engine::key::Key;
use crate::error::{Error, Result};
use crate::partition::Partition;
use crate::record::{CloneKind, CloneRef, EPOCH_MAX, GroupRecord, VolumeRecord};
use crate::state::core::{Group, GroupState};
use crate::types::{Changed, SnapshotSpec, VolumeKind};
use crate::volume::{Volume, check_info};

impl Partition {
    /// Makes a clone of a volume as it is now. It can replace, in one step, an RO or backup volume
    /// of the same id and parent. The source's record gets the clone's id, and for a backup the
    /// date. The clone keeps the access counts and the copy date of the volume that it replaces.
    ///
    /// A clone of a head begins a new epoch. A clone of a clone, or of a volume that is being
    /// restored, shares the epoch of its source.
    ///
    /// `NoVolume`; `VolumeExists`: the id is that of an RW volume or of another volume's clone;
    /// `Busy`: the volume to replace is being restored; `Invalid`.
    pub fn snapshot(&self, spec: &SnapshotSpec) -> Result<Changed<Arc<Volume>>> {
        if spec.kind == VolumeKind::ReadWrite || spec.id.0 == 0 || spec.id == spec.source {
            return Err(Error::Invalid(
                "a clone is read-only or a backup, with an id of its own",
            ));
        }
        let core = &self.core;
        let _room = core.engine.admit(4 << 10)?;
        let _making = core.making.lock();
        let source = core
            .volume(spec.source)?
            .ok_or(Error::NoVolume(spec.source))?;
        let parent = source.record().read().info.parent;
        let existing = core.volume(spec.id)?;
        if let Some(existing) = &existing {
            let same_parent = existing.record().read().info.parent == parent;
            if existing.is_writable() || !same_parent {
                return Err(Error::VolumeExists(spec.id));
            }
            if existing.is_restoring() {
                return Err(Error::Busy(spec.id));
            }
        }
        let group = Arc::clone(&source.group);
        let elsewhere = existing
            .as_ref()
            .filter(|existing| existing.group.id != group.id);
        let mut batch = Batch::new();
        let other = elsewhere
            .map(|existing| Removal::stage(existing, &mut batch))
            .transpose()?;
        let mut state = group.state.write();
        let counters = source.lock_counters()?;
        let mut record = state.record.clone();
        let epoch = match source.view() {
            EPOCH_MAX => {
                record.epoch += 1;
                record.epoch - 1
            }
            seen => seen,
        };
        let mut reaping = 0;
        let clone = CloneRef {
            id: spec.id,
            epoch,
            kind: CloneKind::Clone,
        };
        if existing.is_some() && elsewhere.is_none() {
            // If the volume is the head, it cannot be a clone of its own clone.
            let index = position(&record, spec.id).ok_or(Error::VolumeExists(spec.id))?;
            let old = record.clones.remove(index);
            record.add(clone);
            reaping = stage_reaping(&core.engine, &mut batch, &group, &record, old.epoch)?;
        } else {
            record.add(clone);
        }
        let mut source_record = source.record().write();
        let mut new_source = source_record.clone();
        let mut info = source_record.info.clone();
        if source.is_head() {
            counters.show_in(&mut info);
        }
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
        info.in_service = spec.in_service;
        info.destroy_me = spec.destroy_me;
        info.clone = new_source.info.clone;
        info.backup = new_source.info.backup;
        info.created = spec.now;
        info.offline_message = Bytes::new();
        // Access counts and the copy date belong to the id.
        let before = existing.as_ref().map(|existing| existing.info());
        (info.day_use, info.day_use_date, info.week_use) = match &before {
            Some(old) => (old.day_use, old.day_use_date, old.week_use),
            None => (0, AfsTime(0), [0; 7]),
        };
        info.traffic = before.as_ref().and_then(|old| old.traffic.clone());
        info.accessed = before.as_ref().map_or(spec.now, |old| old.accessed);
        info.copied = before.map_or(spec.now, |old| old.copied);
        check_info(&info)?;
        let clone_record = VolumeRecord {
            info,
            group: group.id,
            epoch,
            received: None,
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
        core.supersede(spec.id);
        if let Some(other) = other {
            other.made();
        }
        let group = Arc::clone(&group);
        let outcome = core.attach_new(group, clone_record, counters_now, epoch, &durable);
        drop(state);
        core.reaper.wake();
        Ok(Changed { outcome, durable })
    }

    /// Removes a volume. It is gone at once; its space is freed in the background. Clones of a
    /// removed head stay. A restore into it fails.
    pub fn delete_volume(&self, id: VolumeId) -> Result<Changed<()>> {
        let core = &self.core;
        let _room = core.engine.admit(0)?;
        let _making = core.making.lock();
        let volume = core.volume(id)?.ok_or(Error::NoVolume(id))?;
        let mut batch = Batch::new();
        batch.delete(Key::volume(id.0));
        let removal = Removal::stage(&volume, &mut batch)?;
        let durable = core.engine.commit(batch)?;
        core.detach(id);
        removal.made();
        core.reaper.wake();
        Ok(Changed {
            outcome: (),
            durable,
        })
    }

    /// The volumes of a volume's group, which share its vnodes.
    pub fn group_of(&self, volume: &Volume) -> Vec<VolumeId> {
        let state = volume.group.state.read();
        let record = &state.record;
        let clones = record
            .clones
            .iter()
            .filter(|clone| clone.kind == CloneKind::Clone);
        let head = record.has_head().then_some(record.head);
        head.into_iter()
            .chain(clones.map(|clone| clone.id))
            .collect()
    }
}

/// The removal of a volume from its group, whose state is locked meanwhile.
pub(crate) struct Removal<'v> {
    state: RwLockWriteGuard<'v, GroupState>,
    record: GroupRecord,
    reaping: usize,
}

impl<'v> Removal<'v> {
    /// Stages the removal's changes of the group, without the volume's own record.
    pub(crate) fn stage(volume: &'v Volume, batch: &mut Batch) -> Result<Self> {
        let (engine, group) = (&volume.core.engine, &volume.group);
        let id = group.id;
        let state = group.state.write();
        let mut record = state.record.clone();
        let reaping = if volume.is_head() {
            // From now on no volume sees versions newer than every clone's, including those of a
            // restore.
            record.head = VolumeId(0);
            record.epoch += 1;
            if record.pin().is_some() {
                record.clones.retain(|clone| clone.kind != CloneKind::Pin);
                batch.delete(Key::restoring(id.0));
            }
            let newest = record.clones.last().map_or(0, |clone| clone.epoch);
            stage_collection(engine, batch, group, &record, newest)?
        } else {
            let index = position(&record, volume.id());
            let seen = index.map_or(0, |index| record.clones.remove(index).epoch);
            stage_reaping(engine, batch, group, &record, seen)?
        };
        batch.put(Key::group(id.0), record.encode());
        Ok(Self {
            state,
            record,
            reaping,
        })
    }

    /// Applies the removal to memory, after the batch was accepted.
    pub(crate) fn made(mut self) {
        self.state.record = self.record;
        self.state.reaping += self.reaping;
    }
}

fn position(record: &GroupRecord, id: VolumeId) -> Option<usize> {
    let is_it = |clone: &CloneRef| clone.kind == CloneKind::Clone && clone.id == id;
    record.clones.iter().position(is_it)
}

/// Stages the background work after a clone or pin that saw epoch `seen` was removed from `record`.
/// Returns the number of jobs that this adds. The caller has the group's state locked exclusively.
pub(crate) fn stage_reaping(
    engine: &Engine,
    batch: &mut Batch,
    group: &Group,
    record: &GroupRecord,
    seen: u64,
) -> Result<usize> {
    if record.clones.iter().any(|clone| clone.epoch == seen) {
        return Ok(0);
    }
    stage_collection(engine, batch, group, record, seen)
}

/// Stages the background work for the case that epoch `seen`, or everything newer, has no viewer
/// any more. Vnodes that changed after that epoch, up to the next epoch with a viewer, may have
/// unseen versions. If only the head is left, the range has no end: a hold of the epoch may see
/// changes that are still to come.
fn stage_collection(
    engine: &Engine,
    batch: &mut Batch,
    group: &Group,
    record: &GroupRecord,
    seen: u64,
) -> Result<usize> {
    if !record.has_head() && record.clones.is_empty() {
        batch.put(Key::reap_group(group.id.0), Bytes::new());
        return Ok(1);
    }
    // In ascending order.
    let mut epochs = record.clones.iter().map(|clone| clone.epoch);
    let next = epochs.clone().find(|&epoch| epoch > seen);
    let first = if next.is_none() && !record.has_head() {
        // Later versions have no viewer. Those that only this volume saw begin behind the clone
        // before it.
        epochs.rfind(|&epoch| epoch <= seen).unwrap_or(0) + 1
    } else {
        seen + 1
    };
    stage_epochs(engine, batch, group, first, next.unwrap_or(u64::MAX))
}
