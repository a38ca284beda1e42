//! Layouts that leave this server with a volume, and those that come with one.
//!
//! Whoever receives a layout names the same versions of the same objects, and nobody here hears when that
//! ends. So the RW volume remembers, durably and before the first layout leaves, the last version that may
//! be known elsewhere (`VolumeInfo::shared`): what is not newer is given up by garbage collection only,
//! which asks every file server of the cell. No device is asked anything, so volumes travel while devices
//! are away.
//!
//! An object may be replaced by a repair while a volume travels, and then the record that was read before names one
//! that is not needed here any more. So where objects are in use that is noted before the first record is read.
//!
//! What came is *borrowed* (`VolumeInfo::borrowed`): read at once, written when [`super::ownership`] allows it.

use std::sync::Arc;

use cellar_volume::VolumeInfo;
use cellar_wire::ids::VolumeId;
use cellar_wire::object::Layout;
use cellar_wire::{AbortCode, AfsString};
use tracing::{info, warn};

use crate::abort_map::store_code;
use crate::server::Server;

/// Objects that are not of this cell, or of a server without object storage.
const NOT_OUR_OBJECTS: AbortCode = AbortCode::ENODEV;

impl Server {
    /// The cell whose object storage this server uses; empty: none.
    pub(crate) fn object_cell(&self) -> AfsString<256> {
        let storage = self.objects.storage();
        storage.map_or_else(AfsString::default, |storage| storage.config.cell.clone())
    }

    /// A version above all that were given so far.
    pub(crate) fn version_now(&self) -> u64 {
        self.objects.next_version(self.wall(), 0)
    }
}

/// Gives the layouts of one volume away.
pub(crate) struct Lender {
    server: Arc<Server>,
    cell: Option<AfsString<256>>,
    is_noted: bool,
}

impl Lender {
    pub(crate) fn new(server: &Arc<Server>) -> Self {
        let storage = server.objects.storage();
        Self {
            server: server.clone(),
            cell: storage.map(|storage| storage.config.cell.clone()),
            is_noted: false,
        }
    }

    /// The cell of the objects, for who is to know it.
    pub(crate) fn cell(&self) -> Result<&AfsString<256>, AbortCode> {
        self.cell.as_ref().ok_or(NOT_OUR_OBJECTS)
    }

    /// A version above all that this server has given.
    pub(crate) fn version(&self) -> u64 {
        self.server.version_now()
    }

    /// Before the first record of a volume is read that is to leave. May wait for the disk. A volume without layouts
    /// can leave also where it cannot be noted.
    pub(crate) fn begin(&mut self, volume: &VolumeInfo) {
        if self.cell.is_some()
            && let Err(code) = self.lend(volume)
        {
            warn!(volume = %volume.id, %code, "that layouts may leave cannot be noted");
        }
    }

    /// Before the first layout of a volume leaves: notes that it does. May wait for the disk.
    pub(crate) fn lend(&mut self, volume: &VolumeInfo) -> Result<(), AbortCode> {
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

    fn note(&self, owner: VolumeId, version: u64) -> Result<(), AbortCode> {
        let code = |error: cellar_volume::Error| store_code(&error);
        for (_, partition) in self.server.volumes.partitions() {
            let Some(volume) = partition.volume(owner).map_err(code)? else {
                continue;
            };
            if volume.is_writable() && volume.info().shared < version {
                let noted = volume.update_info(self.server.now(), |info| {
                    info.shared = info.shared.max(version);
                });
                noted.and_then(|noted| noted.wait()).map_err(code)?;
            }
        }
        Ok(())
    }
}

/// The layouts that come with a volume.
pub(crate) struct Borrower {
    server: Arc<Server>,
    /// The highest version that came; 0: no layout did.
    highest: u64,
}

impl Borrower {
    pub(crate) fn new(server: &Arc<Server>) -> Self {
        Self {
            server: server.clone(),
            highest: 0,
        }
    }

    /// Takes a layout from a server that knows that this one reads the same objects.
    pub(crate) fn take(&mut self, layout: &Layout) {
        let versions = layout.objects.iter().map(|placed| placed.version);
        let highest = versions.fold(layout.version, u64::max);
        self.highest = self.highest.max(highest).max(1);
    }

    /// Takes a layout from a dump, which may be from anywhere.
    ///
    /// # Errors
    /// ENODEV: the objects are of another cell, on devices that this cell does not have, or this server uses
    /// no object storage.
    pub(crate) fn take_of(&mut self, cell: &[u8], layout: &Layout) -> Result<(), AbortCode> {
        let Some(storage) = self.server.objects.storage() else {
            warn!("a dump has files in objects, and this server uses no object storage");
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

    /// A file of objects comes to a server that has none.
    pub(crate) fn check_storage(&self) -> Result<(), AbortCode> {
        match self.server.objects.storage() {
            Some(_) => Ok(()),
            None => Err(NOT_OUR_OBJECTS),
        }
    }

    /// Notes in a restored volume what came. `takes_over`: all that it has came from a volume server's volume,
    /// which had been given no version above `last`.
    pub(crate) fn note(&self, info: &mut VolumeInfo, takes_over: bool, last: u64) {
        if self.highest == 0 && info.borrowed == 0 {
            return;
        }
        let known = self.highest.max(last).max(info.borrowed).max(info.shared);
        info.borrowed = self.server.objects.next_version(self.server.wall(), known);
        info.shared = info.shared.max(info.borrowed);
        info.takes_over = takes_over;
        info!(volume = %info.id, borrowed = info.borrowed, "layouts of files in objects came");
    }
}
