//! Layouts, and copies in archives, that leave this server with a volume or arrive with one.
//!
//! The receiver of a layout names the same versions of the same objects, and this server does not
//! learn when that ends. So the RW volume stores, durably and before the first layout leaves, the
//! last version that other servers may know (`VolumeInfo::shared`). Versions that are not newer are
//! removed only by garbage collection, which asks every file server of the cell. No device is
//! asked, so volumes can move while devices are missing.
//!
//! A repair may replace an object while a volume moves. A record that was read before then names an
//! object that this server no longer needs. So if objects are in use, the version is stored before
//! the first record is read.
//!
//! The same holds for copies in archives: garbage collection alone removes them.
//!
//! Received layouts are *borrowed* (`VolumeInfo::borrowed`): they can be read at once, and written
//! when [`super::ownership`] allows it.

use std::sync::Arc;

use cellar_volume::VolumeInfo;
use cellar_wire::ids::VolumeId;
use cellar_wire::object::{ArchiveCopies, Layout, Wiped};
use cellar_wire::{AbortCode, AfsString};
use tracing::{info, warn};

use super::Objects;

/// The objects are of another cell, or this server has no object storage.
const NOT_OUR_OBJECTS: AbortCode = AbortCode::ENODEV;

impl Objects {
    /// The cell whose object storage this server uses; empty if none.
    pub fn cell(&self) -> AfsString<256> {
        let storage = self.storage();
        storage.map_or_else(AfsString::default, |storage| storage.config.cell.clone())
    }

    /// A version above all that were given so far.
    pub fn version_now(&self) -> u64 {
        self.next_version(self.wall(), 0)
    }
}

/// Hands out the layouts of one volume.
pub struct Lender {
    objects: Arc<Objects>,
    cell: Option<AfsString<256>>,
    is_noted: bool,
}

impl Lender {
    /// For a volume of the server with these objects.
    pub fn new(objects: &Arc<Objects>) -> Self {
        let storage = objects.storage();
        Self {
            objects: objects.clone(),
            cell: storage.map(|storage| storage.config.cell.clone()),
            is_noted: false,
        }
    }

    /// The cell of the objects.
    pub fn cell(&self) -> Result<&AfsString<256>, AbortCode> {
        self.cell.as_ref().ok_or(NOT_OUR_OBJECTS)
    }

    /// A version above all that this server has given.
    pub fn version(&self) -> u64 {
        self.objects.version_now()
    }

    /// Call this before the first record of a volume that leaves is read. May wait for the disk. A
    /// failure is only logged, because a volume without layouts can leave anyway.
    pub fn begin(&mut self, volume: &VolumeInfo) {
        if self.cell.is_some()
            && let Err(cause) = self.lend(volume)
        {
            warn!(volume = %volume.id, %cause, "cannot store that layouts of the volume may be in use elsewhere");
        }
    }

    /// Call this before the first layout of a volume leaves: stores the last version that others
    /// may know. May wait for the disk.
    pub fn lend(&mut self, volume: &VolumeInfo) -> cellar_volume::Result<()> {
        if self.is_noted {
            return Ok(());
        }
        let version = self.version();
        let mut owners = vec![volume.parent, volume.id];
        owners.dedup();
        for owner in owners {
            self.note(owner, version)?;
        }
        self.is_noted = true;
        Ok(())
    }

    fn note(&self, owner: VolumeId, version: u64) -> cellar_volume::Result<()> {
        for (_, partition) in self.objects.volumes.partitions() {
            let Some(volume) = partition.volume(owner)? else {
                continue;
            };
            if volume.is_writable() && volume.info().shared < version {
                let noted = volume.update_info(self.objects.now(), |info| {
                    info.shared = info.shared.max(version);
                });
                noted?.wait()?;
            }
        }
        Ok(())
    }
}

/// The layouts that arrive with a volume.
pub struct Borrower {
    objects: Arc<Objects>,
    /// The highest version that arrived; 0 if no layout did.
    highest: u64,
}

impl Borrower {
    /// For a volume that arrives at the server with these objects.
    pub fn new(objects: &Arc<Objects>) -> Self {
        Self {
            objects: objects.clone(),
            highest: 0,
        }
    }

    /// Takes a layout from a server which knows that this one reads the same objects.
    pub fn take(&mut self, layout: &Layout) {
        let versions = layout.objects.iter().map(|placed| placed.version);
        let highest = versions.fold(layout.version, u64::max);
        self.highest = self.highest.max(highest).max(1);
    }

    /// Takes copies in archives from a server that knows of it. New versions of the file are higher
    /// than theirs, so a copy is never taken for the bytes of a later store.
    pub fn take_copies(&mut self, copies: &ArchiveCopies) {
        let highest = copies.iter().map(|copy| copy.version).max();
        self.highest = self.highest.max(highest.unwrap_or(0)).max(1);
    }

    /// Takes the remains of the layout of a wiped file from a server that knows of it.
    pub fn take_wiped(&mut self, wiped: &Wiped) {
        self.highest = self.highest.max(wiped.version).max(1);
    }

    /// Takes a layout from a dump of any origin.
    ///
    /// # Errors
    /// ENODEV: the objects are of another cell, on devices that this cell does not have, or this
    /// server uses no object storage.
    pub fn take_of(&mut self, cell: &[u8], layout: &Layout) -> Result<(), AbortCode> {
        let Some(storage) = self.objects.storage() else {
            warn!("a dump has files in objects, and this objects uses no object storage");
            return Err(NOT_OUR_OBJECTS);
        };
        if storage.config.cell.as_bytes() != cell {
            let cell = String::from_utf8_lossy(cell).into_owned();
            warn!(cell, "a dump has files in objects of another cell");
            return Err(NOT_OUR_OBJECTS);
        }
        let unknown = |osd: &u32| storage.devices.get(*osd).is_none();
        let mut named = layout.objects.iter().map(|placed| placed.osd);
        if let Some(osd) = named.find(unknown) {
            warn!(
                osd,
                "a dump has files on a device that this cell does not have"
            );
            return Err(NOT_OUR_OBJECTS);
        }
        self.take(layout);
        Ok(())
    }

    /// Checks that this server has object storage for an arriving file.
    pub fn check_storage(&self) -> Result<(), AbortCode> {
        match self.objects.storage() {
            Some(_) => Ok(()),
            None => Err(NOT_OUR_OBJECTS),
        }
    }

    /// Stores the borrowed version in a restored volume. With `takes_over`, all its contents came
    /// from the volume of a volume server, which had given no version above `last`.
    pub fn note(&self, info: &mut VolumeInfo, takes_over: bool, last: u64) {
        if self.highest == 0 && info.borrowed == 0 {
            return;
        }
        let known = self.highest.max(last).max(info.borrowed).max(info.shared);
        info.borrowed = self.objects.next_version(self.objects.wall(), known);
        info.shared = info.shared.max(info.borrowed);
        info.takes_over = takes_over;
        info!(volume = %info.id, borrowed = info.borrowed, "received layouts of files in objects");
    }
}
