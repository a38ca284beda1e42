//! One device of a server.

use std::sync::atomic::{AtomicBool, Ordering};

use cellar_volume::objects::{ObjectScrub, ObjectStore};
use cellar_wire::osd::Space;
use cellar_wire::osddb::{OSD_OBSOLETE, OSD_SOFT_DELETE, OsdState};
use parking_lot::Mutex;

use crate::refusal::Refusal;
use crate::server::DeviceFigures;

/// A device and its state in this server.
#[derive(Debug)]
pub(crate) struct Device {
    /// Number of the device in the cell.
    pub(crate) id: u32,
    pub(crate) store: ObjectStore,
    /// Whether removals are soft: the cell's database says so, or has not answered yet.
    pub(crate) soft_delete: AtomicBool,
    /// Whether the cell's database has the device as removed. It is not served then.
    removed: AtomicBool,
    pub(crate) scrub: Mutex<ScrubState>,
}

/// State of the running scrub, or of the last one.
#[derive(Debug, Default)]
pub(crate) struct ScrubState {
    pub(crate) running: bool,
    pub(crate) report: ObjectScrub,
}

impl Device {
    pub(crate) fn new(id: u32, store: ObjectStore, soft_delete: bool) -> Self {
        Self {
            id,
            store,
            soft_delete: AtomicBool::new(soft_delete),
            removed: AtomicBool::new(false),
            scrub: Mutex::default(),
        }
    }

    pub(crate) fn deletes_softly(&self) -> bool {
        self.soft_delete.load(Ordering::Relaxed)
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }

    /// Applies the flags of its entry in the cell's database.
    pub(crate) fn apply_flags(&self, flags: u32) {
        let is = |flag| flags & flag != 0;
        self.soft_delete
            .store(is(OSD_SOFT_DELETE), Ordering::Relaxed);
        let removed = is(OSD_OBSOLETE);
        if self.removed.swap(removed, Ordering::Relaxed) != removed {
            match removed {
                true => tracing::warn!(
                    device = self.id,
                    "the device was removed from the cell and is not served; 'cellar osd set {} -obsolete off' puts \
                     it back, or start without it and delete its directory",
                    self.id
                ),
                false => tracing::info!(device = self.id, "the device is in the cell again"),
            }
        }
    }

    /// Returns its space: nothing is free on a device that accepts no more changes. Queries the
    /// system.
    pub(crate) fn space(&self) -> Result<Space, Refusal> {
        let usage = self.store.usage()?;
        let takes_changes = self.store.stopped().is_none();
        Ok(Space {
            osd: self.id,
            total: usage.total,
            free: if takes_changes { usage.free } else { 0 },
            objects: usage.objects,
        })
    }

    /// Returns its room and state for metrics. Queries the system.
    pub(crate) fn figures(&self) -> DeviceFigures {
        let usage = self.store.usage().unwrap_or_default();
        DeviceFigures {
            id: self.id,
            total_bytes: usage.total,
            free_bytes: usage.free,
            objects: usage.objects,
            damaged_objects: self.store.damaged().len() as u64,
            accepts_changes: self.store.stopped().is_none(),
        }
    }

    /// Returns its state for a heartbeat. Queries the system.
    pub(crate) fn state(&self) -> OsdState {
        let usage = self.store.usage().unwrap_or_default();
        OsdState {
            id: self.id,
            total: usage.total,
            free: usage.free,
            objects: usage.objects,
            silence: 0,
            writable: self.store.stopped().is_none(),
        }
    }
}
