//! One device of a server.

use std::sync::atomic::{AtomicBool, Ordering};

use cellar_volume::objects::{ObjectScrub, ObjectStore};
use cellar_wire::object::ObjectId;
use cellar_wire::osd::Space;
use cellar_wire::osddb::{OSD_OBSOLETE, OSD_SOFT_DELETE, OsdState};
use parking_lot::Mutex;

use crate::archival::ArchivalDevice;
use crate::refusal::Refusal;
use crate::server::DeviceFigures;

/// A device and its state in this server.
#[derive(Debug)]
pub(crate) struct Device {
    /// Number of the device in the cell.
    pub(crate) id: u32,
    pub(crate) backing: Backing,
    /// Whether removals are soft: the cell's database says so, or has not answered yet.
    pub(crate) soft_delete: AtomicBool,
    /// Whether the cell's database has the device as removed. It is not served then.
    removed: AtomicBool,
    pub(crate) scrub: Mutex<ScrubState>,
    /// Its name in the cell's database, for the log; empty until that has answered.
    name: Mutex<String>,
}

/// The place of the objects of a device.
#[derive(Debug)]
pub enum Backing {
    /// A disk of this machine.
    Disk(ObjectStore),
    /// An archive.
    Archive(Box<ArchivalDevice>),
}

impl From<ObjectStore> for Backing {
    fn from(store: ObjectStore) -> Self {
        Self::Disk(store)
    }
}

impl From<ArchivalDevice> for Backing {
    fn from(device: ArchivalDevice) -> Self {
        Self::Archive(Box::new(device))
    }
}

/// State of the running scrub, or of the last one.
#[derive(Debug, Default)]
pub(crate) struct ScrubState {
    pub(crate) running: bool,
    pub(crate) report: ObjectScrub,
}

impl Device {
    pub(crate) fn new(id: u32, backing: Backing, soft_delete: bool) -> Self {
        Self {
            id,
            backing,
            soft_delete: AtomicBool::new(soft_delete),
            removed: AtomicBool::new(false),
            scrub: Mutex::default(),
            name: Mutex::default(),
        }
    }

    /// The store of a device on a disk, for a call that archives do not answer.
    pub(crate) fn disk(&self) -> Result<ObjectStore, Refusal> {
        self.store().cloned().ok_or(Refusal::OnArchive)
    }

    /// The store; `None` for an archive.
    pub(crate) fn store(&self) -> Option<&ObjectStore> {
        match &self.backing {
            Backing::Disk(store) => Some(store),
            Backing::Archive(_) => None,
        }
    }

    /// The archive; `None` for a device on a disk.
    pub(crate) fn archive(&self) -> Option<&ArchivalDevice> {
        match &self.backing {
            Backing::Disk(_) => None,
            Backing::Archive(archive) => Some(archive),
        }
    }

    /// The objects that are known to be damaged.
    pub(crate) fn damaged(&self) -> Vec<ObjectId> {
        self.store().map(ObjectStore::damaged).unwrap_or_default()
    }

    /// Its room, whether it takes changes, and the number of its objects. Queries the system.
    fn room(&self) -> cellar_volume::Result<Room> {
        Ok(match &self.backing {
            Backing::Disk(store) => {
                let usage = store.usage()?;
                Room {
                    total: usage.total,
                    free: usage.free,
                    objects: usage.objects,
                    takes_changes: store.stopped().is_none(),
                }
            }
            Backing::Archive(archive) => {
                let (total, free) = archive.room();
                Room {
                    total,
                    free,
                    objects: archive.catalogue.count(),
                    takes_changes: archive.is_up(),
                }
            }
        })
    }

    pub(crate) fn deletes_softly(&self) -> bool {
        self.soft_delete.load(Ordering::Relaxed)
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }

    /// Its name in the cell's database, for the log; empty until that has answered.
    pub(crate) fn name(&self) -> String {
        self.name.lock().clone()
    }

    /// Applies the name and the flags of its entry in the cell's database.
    pub(crate) fn apply_entry(&self, name: String, flags: u32) {
        self.name.lock().clone_from(&name);
        let is = |flag| flags & flag != 0;
        self.soft_delete
            .store(is(OSD_SOFT_DELETE), Ordering::Relaxed);
        let removed = is(OSD_OBSOLETE);
        if self.removed.swap(removed, Ordering::Relaxed) != removed {
            match removed {
                true => tracing::warn!(
                    osd = self.id,
                    name,
                    "the device was removed from the cell and is not served; 'cellar osd set {} -obsolete off' puts \
                     it back, or start without it and delete its directory",
                    self.id
                ),
                false => tracing::info!(osd = self.id, name, "the device is in the cell again"),
            }
        }
    }

    /// Returns its space: nothing is free on a device that accepts no more changes. Queries the
    /// system.
    pub(crate) fn space(&self) -> Result<Space, Refusal> {
        let room = self.room()?;
        Ok(Space {
            osd: self.id,
            total: room.total,
            free: if room.takes_changes { room.free } else { 0 },
            objects: room.objects,
        })
    }

    /// Returns its room and state for metrics. Queries the system.
    pub(crate) fn figures(&self) -> DeviceFigures {
        let room = self.room().unwrap_or_default();
        DeviceFigures {
            id: self.id,
            total_bytes: room.total,
            free_bytes: room.free,
            objects: room.objects,
            damaged_objects: self.damaged().len() as u64,
            accepts_changes: room.takes_changes,
        }
    }

    /// Returns its state for a heartbeat. Queries the system.
    pub(crate) fn state(&self) -> OsdState {
        let room = self.room().unwrap_or_default();
        OsdState {
            id: self.id,
            total: room.total,
            free: room.free,
            objects: room.objects,
            silence: 0,
            writable: room.takes_changes,
        }
    }
}

/// The room of a device.
#[derive(Clone, Copy, Debug, Default)]
struct Room {
    /// Bytes.
    total: u64,
    /// Bytes that can still be written.
    free: u64,
    /// Present objects.
    objects: u64,
    takes_changes: bool,
}
