//! Recording the new location of an object of a file, in every version of the file that names it.
//!
//! An object that was rebuilt on another device has a new location. It is entered in the record of
//! the head and in those of all clones, in one change. Otherwise a clone, which cannot be written,
//! would forever need a device that is to be emptied. The bytes are the same, so the records keep
//! their epochs. No epoch begins, no data version or date changes, and no client is notified.
//!
//! Meanwhile the slots of the vnode in all volumes of the group are locked, as for a change. The
//! group's state is locked too, so that no clone is made or removed. Versions that are only held in
//! memory (a running dump) are not changed.

use std::sync::Arc;

use cellar_wire::ids::{Uniquifier, VnodeId, VolumeId};
use cellar_wire::object::{Layout, Placed};

use crate::engine::batch::Batch;
use crate::error::{Error, Result};
use crate::operations::store::RECORDS_GROWTH;
use crate::record::{CloneKind, EPOCH_MAX, VnodeRecord};
use crate::state::core::GroupState;
use crate::state::vnode_slots::VnodeSlot;
use crate::types::Changed;
use crate::versions::Versions;
use crate::volume::Volume;

/// An object of a file that has a new location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replaced {
    /// The RW volume in whose name the object was made.
    pub owner: VolumeId,
    /// The location in the versions of the file.
    pub old: Placed,
    /// The new location.
    pub new: Placed,
}

impl Replaced {
    /// The layout with the new location; `None` if it does not name the old one.
    fn in_layout(&self, layout: &Layout) -> Option<Layout> {
        if layout.volume != self.owner || !layout.objects.contains(&self.old) {
            return None;
        }
        let mut layout = layout.clone();
        for placed in layout.objects.as_mut_slice() {
            if *placed == self.old {
                *placed = self.new;
            }
        }
        Some(layout)
    }
}

impl Volume {
    /// Replaces an object by another, in every version of a file that this volume and its clones
    /// see. Returns the number of versions that named the old object.
    ///
    /// `Busy`: the volume is being restored, or clones were made or removed; try again.
    pub fn replace_object(
        &self,
        file: VnodeId,
        uniquifier: Uniquifier,
        replaced: &Replaced,
    ) -> Result<Changed<usize>> {
        self.edit_versions(file, |record| edit(record, uniquifier, replaced))
    }

    /// Edits every version of a file that this volume and its clones see, in one change. `edit`
    /// returns whether it changed the record. Returns the number of changed versions. Neither the
    /// data version nor the dates change.
    ///
    /// `Busy`: the volume is being restored, or clones were made or removed; try again.
    pub(crate) fn edit_versions(
        &self,
        file: VnodeId,
        mut edit: impl FnMut(&mut VnodeRecord) -> bool,
    ) -> Result<Changed<usize>> {
        let (core, group) = (&self.core, &self.group);
        let busy = || Error::Busy(self.id());
        let _room = core.engine.admit(RECORDS_GROWTH)?;
        let members = members(&group.state.read());
        let mut volumes = Vec::with_capacity(members.len());
        for id in &members {
            let volume = core.volume(*id)?.filter(|other| other.group.id == group.id);
            volumes.push(volume.ok_or_else(busy)?);
        }
        volumes.sort_by_key(|volume| volume.instance());
        let slots: Vec<Arc<VnodeSlot>> = volumes.iter().map(|volume| volume.slot(file)).collect();
        let mut locked: Vec<_> = slots.iter().map(|slot| slot.state.write()).collect();
        let state = group.state.read();
        let attached = |volume: &Arc<Volume>| {
            let found = core.attached_volume(volume.id());
            found.is_some_and(|found| Arc::ptr_eq(&found, volume))
        };
        let restoring = state.restoring || state.record.pin().is_some();
        if restoring || self::members(&state) != members || !volumes.iter().all(attached) {
            return Err(busy());
        }
        let mut viewers: Vec<u64> = state.record.clones.iter().map(|c| c.epoch).collect();
        if state.record.has_head() {
            viewers.push(EPOCH_MAX);
        }
        let mut batch = Batch::new();
        let mut named = 0;
        let mut versions = Versions::of_vnode(&core.engine, group.id, file, viewers);
        while let Some(version) = versions.next_visible()? {
            let Ok(mut record) = VnodeRecord::decode(&version.value)? else {
                continue;
            };
            if edit(&mut record) {
                batch.put(version.key, record.encode());
                named += 1;
            }
        }
        if named == 0 {
            let durable = self.last_change(file);
            return Ok(Changed {
                outcome: 0,
                durable,
            });
        }
        let durable = core.engine.commit(batch)?;
        for (volume, state) in volumes.iter().zip(&mut locked) {
            if let Some(loaded) = state.as_mut() {
                edit(&mut loaded.record);
            }
            volume.pending_changes.note(&[file.0], &durable);
        }
        Ok(Changed {
            outcome: named,
            durable,
        })
    }
}

/// Enters the new location in a record. Returns false if the record does not name the old one.
fn edit(record: &mut VnodeRecord, uniquifier: Uniquifier, replaced: &Replaced) -> bool {
    if record.uniquifier != uniquifier {
        return false;
    }
    let layout = record.layout.as_ref();
    let Some(layout) = layout.and_then(|layout| replaced.in_layout(layout)) else {
        return false;
    };
    record.layout = Some(Arc::new(layout));
    true
}

/// The volumes of a group, in ascending order.
fn members(state: &GroupState) -> Vec<VolumeId> {
    let clones = state.record.clones.iter();
    let clones = clones.filter(|clone| clone.kind == CloneKind::Clone);
    let mut ids: Vec<VolumeId> = clones.map(|clone| clone.id).collect();
    ids.extend(state.record.has_head().then_some(state.record.head));
    ids.sort_unstable();
    ids
}
