//! Changes of a volume's ids and kind, and how a clone or RO volume becomes a head.
//!
//! A clone whose group has no head any more can become the head if no other clone sees a later
//! epoch. Then versions newer than its own belong to no volume. It pins its epoch, like a restore
//! that is undone at once. That removes the remains of these versions that background work may have
//! left.

use std::sync::Arc;

use cellar_wire::ids::VolumeId;

use crate::engine::batch::Batch;
use crate::engine::key::Key;
use crate::error::{Error, Result};
use crate::partition::Partition;
use crate::record::{CloneKind, CloneRef, CountersRecord, EPOCH_MAX, VolumeRecord};
use crate::state::core::Core;
use crate::types::{Changed, IdsSpec, VolumeInfo, VolumeKind};
use crate::volume::{Volume, check_info};

/// The gap in the uniquifiers of a converted volume. Files of the lost RW volume may still be in
/// clients' caches.
const UNIQUIFIER_GAP: u32 = 5000;
/// Bytes that a change of these records adds to the table.
const RECORDS_GROWTH: u64 = 4 << 10;

impl Partition {
    /// Changes name, kind, parent and the ids of clones, as SetIdsTypes does. The volume's own id
    /// stays.
    ///
    /// `NoVolume`; `Invalid` for an invalid name, or if a clone beside its head would become RW.
    pub fn set_ids(&self, id: VolumeId, ids: &IdsSpec) -> Result<Changed<Arc<Volume>>> {
        let core = &self.core;
        let _room = core.engine.admit(RECORDS_GROWTH)?;
        let _making = core.making.lock();
        let volume = core.volume(id)?.ok_or(Error::NoVolume(id))?;
        if ids.kind == VolumeKind::ReadWrite && !volume.is_head() {
            return Err(Error::Invalid("a clone cannot be made read-write"));
        }
        // No change is running now, and the next one sees the new kind.
        let state = volume.group.state.write();
        let mut slot = volume.record().write();
        let mut record = slot.clone();
        let info = &mut record.info;
        info.name.clone_from(&ids.name);
        info.kind = ids.kind;
        info.parent = if ids.parent.0 == 0 { id } else { ids.parent };
        (info.clone, info.backup) = (ids.clone, ids.backup);
        check_info(info)?;
        let mut batch = Batch::new();
        batch.put(Key::volume(id.0), record.encode());
        let durable = core.engine.commit(batch)?;
        *slot = record;
        volume.set_kind(ids.kind);
        drop((slot, state));
        Ok(Changed {
            outcome: volume,
            durable,
        })
    }

    /// Makes an RW volume of an RO or backup volume, under the id of its parent. The old volume is
    /// gone. The new volume keeps the old id as the id of its clone and as `restored_from`. The
    /// former RW volume and other copies may have later contents. So objects with versions up to
    /// `borrowed`, the last one given out, are read and not written.
    ///
    /// `NoVolume`; `VolumeExists`: the RW volume is here; `Busy`; `Invalid`: it is RW, or a clone
    /// beside others that see later contents.
    pub fn convert_to_rw(&self, id: VolumeId, borrowed: u64) -> Result<Changed<Arc<Volume>>> {
        let core = &self.core;
        let _room = core.engine.admit(RECORDS_GROWTH)?;
        let making = core.making.lock();
        let volume = core.volume(id)?.ok_or(Error::NoVolume(id))?;
        if volume.is_writable() {
            return Err(Error::Invalid("the volume is read-write"));
        }
        let parent = volume.record().read().info.parent;
        if parent == id || core.volume(parent)?.is_some() {
            return Err(Error::VolumeExists(parent));
        }
        let changed = core.become_head(&volume, parent, |info, counters| {
            info.kind = VolumeKind::ReadWrite;
            (info.restored_from, info.clone) = (id, id);
            (info.borrowed, info.takes_over) = (info.borrowed.max(borrowed), false);
            info.shared = info.shared.max(info.borrowed);
            if let Some(name) = info.name.strip_suffix(".readonly") {
                info.name = name.to_owned();
            }
            // The contents are as old as the copy.
            info.created = info.created.min(info.copied);
            info.copied = info.created;
            let next = counters.next_uniquifier;
            counters.next_uniquifier = next.saturating_add(UNIQUIFIER_GAP);
        })?;
        drop(making);
        let _undone = core.undo_restore(changed.outcome.group.id)?;
        Ok(changed)
    }
}

impl Core {
    /// Makes a clone the head of its group, which has none, so that it can be restored.
    pub(crate) fn promote(self: &Arc<Self>, volume: &Arc<Volume>) -> Result<Arc<Volume>> {
        let changed = self.become_head(volume, volume.id(), |_, _| {})?;
        // Usually there is nothing to undo. If the undo has to wait, the head is busy until it is
        // done.
        let _undone = self.undo_restore(changed.outcome.group.id)?;
        Ok(changed.outcome)
    }

    /// Makes a volume the head of its group, under its own id or a free one, after `edit`. The
    /// caller has `making` locked. A clone sees its own epoch until newer versions are removed.
    fn become_head(
        self: &Arc<Self>,
        volume: &Arc<Volume>,
        id: VolumeId,
        edit: impl FnOnce(&mut VolumeInfo, &mut CountersRecord),
    ) -> Result<Changed<Arc<Volume>>> {
        let group = &volume.group;
        let mut state = group.state.write();
        if volume.is_restoring() {
            return Err(Error::Busy(volume.id()));
        }
        let mut record = state.record.clone();
        let mut info = volume.info();
        let mut counters = self.counters_of(volume)?;
        let mut batch = Batch::new();
        if !volume.is_head() {
            let view = volume.view();
            if record.has_head() || record.clones.iter().any(|clone| clone.epoch > view) {
                return Err(Error::Invalid(
                    "another volume of its group sees later contents",
                ));
            }
            record.clones.retain(|clone| clone.id != volume.id());
            record.add(CloneRef {
                id,
                epoch: view,
                kind: CloneKind::Pin,
            });
            batch.put(Key::restoring(group.id.0), bytes::Bytes::new());
            (counters.blocks_used, counters.files) = (info.blocks_used, info.files);
            (counters.updated, counters.update_counter) = (info.updated, info.update_counter);
        }
        edit(&mut info, &mut counters);
        info.id = id;
        check_info(&info)?;
        record.head = id;
        let volume_record = VolumeRecord {
            info,
            group: group.id,
            epoch: EPOCH_MAX,
            received: volume.record().read().received,
        };
        if id != volume.id() {
            batch.delete(Key::volume(volume.id().0));
        }
        batch.put(Key::volume(id.0), volume_record.encode());
        batch.put(Key::group(group.id.0), record.encode());
        batch.put(Key::counters(group.id.0), counters.encode());
        batch.delete(Key::reserved(group.id.0));
        let durable = self.engine.commit(batch)?;
        state.record = record;
        self.supersede(volume.id());
        let view = state.view_of(&volume_record);
        let group = Arc::clone(group);
        let outcome = self.attach_new(group, volume_record, counters, view, &durable);
        outcome.go_on_for(volume);
        drop(state);
        Ok(Changed { outcome, durable })
    }

    /// The counters of a volume's group; for a head they are in memory.
    fn counters_of(&self, volume: &Volume) -> Result<CountersRecord> {
        if volume.is_head() {
            return Ok(volume.lock_counters()?.record);
        }
        match self.engine.get(&Key::counters(volume.group.id.0))? {
            Some(value) => CountersRecord::decode(&value),
            None => Err(Error::Format("a group has no counters".into())),
        }
    }
}
