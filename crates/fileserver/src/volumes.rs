//! Which volumes this server has, on which partitions, and in which state for clients.
//!
//! A volume is looked up for every call, so where it was found is remembered by id. What volume
//! transactions do to it (busy, off line), and where it went, is kept beside: these tables are
//! nearly always empty, and an atomic counter says so.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cellar_volume::{Partition, Volume};
use cellar_wire::ids::{PartitionId, VolumeId};
use parking_lot::RwLock;

use crate::abort_map::Refusal;

/// A volume, and the partition that it is on.
pub(crate) struct Attached {
    pub(crate) partition: Arc<Partition>,
    pub(crate) volume: Arc<Volume>,
}

/// What a volume transaction lets clients do meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    /// Changes are refused with VBUSY; read-only volumes are served.
    Busy,
    /// Everything is refused with VOFFLINE.
    Offline,
    /// Changes are refused with EROFS.
    ReadOnly,
    /// The volume is not shown to clients: it is being made.
    Secret,
}

/// What a call wants of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    Read,
    Change,
}

#[derive(Default)]
pub(crate) struct Volumes {
    partitions: RwLock<Vec<(PartitionId, Arc<Partition>)>>,
    homes: RwLock<HashMap<VolumeId, PartitionId>>,
    specials: RwLock<HashMap<VolumeId, Special>>,
    moved: RwLock<HashMap<VolumeId, u32>>,
    exceptions: AtomicUsize,
}

impl Volumes {
    /// Adds a partition. One of the same id is replaced.
    pub(crate) fn add(&self, id: PartitionId, partition: Arc<Partition>) {
        let mut partitions = self.partitions.write();
        partitions.retain(|(other, _)| *other != id);
        partitions.push((id, partition));
        partitions.sort_by_key(|(id, _)| *id);
    }

    /// All partitions, by id.
    pub(crate) fn partitions(&self) -> Vec<(PartitionId, Arc<Partition>)> {
        self.partitions.read().clone()
    }

    /// One partition.
    pub(crate) fn partition(&self, id: PartitionId) -> Option<Arc<Partition>> {
        let partitions = self.partitions.read();
        let found = partitions.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        Some(partitions[found].1.clone())
    }

    /// The partition and volume of an id, whatever its state.
    pub(crate) fn find(
        &self,
        id: VolumeId,
    ) -> cellar_volume::Result<Option<(PartitionId, Attached)>> {
        let home = self.homes.read().get(&id).copied();
        if let Some(home) = home
            && let Some(partition) = self.partition(home)
            && let Some(volume) = partition.volume(id)?
        {
            return Ok(Some((home, Attached { partition, volume })));
        }
        for (place, partition) in self.partitions() {
            if let Some(volume) = partition.volume(id)? {
                self.homes.write().insert(id, place);
                return Ok(Some((place, Attached { partition, volume })));
            }
        }
        if home.is_some() {
            self.homes.write().remove(&id);
        }
        Ok(None)
    }

    /// The volume for a client's call: in service, on line, and in a state that allows the call.
    pub(crate) fn for_call(&self, id: VolumeId, want: Want) -> Result<Attached, Refusal> {
        if id.0 == 0 {
            return Err(Refusal::NoFid);
        }
        let found = self.find(id)?;
        if self.exceptions.load(Ordering::Acquire) > 0 {
            self.check_special(id, want, found.as_ref().map(|(_, attached)| attached))?;
        }
        let (_, attached) = found.ok_or(Refusal::NoVolume)?;
        if !attached.volume.is_in_service() {
            return Err(Refusal::NoVolume);
        }
        if !attached.volume.is_online() {
            return Err(Refusal::Offline);
        }
        Ok(attached)
    }

    fn check_special(
        &self,
        id: VolumeId,
        want: Want,
        found: Option<&Attached>,
    ) -> Result<(), Refusal> {
        let special = self.specials.read().get(&id).copied();
        match special {
            Some(Special::Offline) => Err(Refusal::Offline),
            Some(Special::Secret) => Err(Refusal::NoVolume),
            Some(Special::ReadOnly) if want == Want::Change => {
                Err(Refusal::Store(cellar_volume::Error::ReadOnly))
            }
            Some(Special::Busy) if found.is_some_and(|found| found.volume.is_writable()) => {
                Err(Refusal::Busy)
            }
            _ if found.is_none() && self.moved.read().contains_key(&id) => Err(Refusal::Moved),
            _ => Ok(()),
        }
    }

    /// Puts a volume into a state for clients, or back into the ordinary one.
    pub(crate) fn set_special(&self, id: VolumeId, special: Option<Special>) {
        let mut specials = self.specials.write();
        match special {
            Some(special) => specials.insert(id, special),
            None => specials.remove(&id),
        };
        let exceptions = specials.len() + self.moved.read().len();
        self.exceptions.store(exceptions, Ordering::Release);
    }

    /// Notes that a volume went to another server, until the next restart.
    pub(crate) fn set_moved(&self, id: VolumeId, server: u32) {
        let specials = self.specials.read();
        let mut moved = self.moved.write();
        moved.insert(id, server);
        self.exceptions
            .store(specials.len() + moved.len(), Ordering::Release);
    }

    /// Volumes that were asked for and found.
    pub(crate) fn found(&self) -> usize {
        self.homes.read().len()
    }

    /// Forgets where a volume was found: it was deleted.
    pub(crate) fn forget(&self, id: VolumeId) {
        self.homes.write().remove(&id);
    }
}
