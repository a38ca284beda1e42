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
#[derive(Clone)]
pub(crate) struct Attached {
    pub(crate) partition: Arc<Partition>,
    pub(crate) volume: Arc<Volume>,
}

/// What a volume transaction lets clients do meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    /// Everything is refused with VBUSY; volumes that nobody can change are served.
    Busy,
    /// Everything is refused with VOFFLINE; volumes that nobody can change are served as they are
    /// until they are replaced or taken out of service.
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
    specials: RwLock<HashMap<(PartitionId, VolumeId), Special>>,
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

    /// The volume of an id on one partition, whatever its state.
    pub(crate) fn find_on(
        &self,
        place: PartitionId,
        id: VolumeId,
    ) -> cellar_volume::Result<Option<Attached>> {
        let Some(partition) = self.partition(place) else {
            return Ok(None);
        };
        let found = partition.volume(id)?;
        Ok(found.map(|volume| Attached { partition, volume }))
    }

    /// The partition and volume of an id. While it moves between partitions of this server there
    /// are two of it: the one that is in service counts.
    pub(crate) fn find(
        &self,
        id: VolumeId,
    ) -> cellar_volume::Result<Option<(PartitionId, Attached)>> {
        let home = self.homes.read().get(&id).copied();
        if let Some(home) = home
            && let Some(attached) = self.find_on(home, id)?
        {
            return Ok(Some((home, attached)));
        }
        let mut best: Option<(PartitionId, Attached)> = None;
        for (place, partition) in self.partitions() {
            let Some(volume) = partition.volume(id)? else {
                continue;
            };
            let offered = volume.is_in_service();
            if best.is_none() || offered {
                best = Some((place, Attached { partition, volume }));
            }
            if offered {
                break;
            }
        }
        match &best {
            Some((place, _)) => drop(self.homes.write().insert(id, *place)),
            None if home.is_some() => drop(self.homes.write().remove(&id)),
            None => {}
        }
        Ok(best)
    }

    /// The volume for a client's call: in service, on line, and in a state that allows the call.
    pub(crate) fn for_call(&self, id: VolumeId, want: Want) -> Result<Attached, Refusal> {
        if id.0 == 0 {
            return Err(Refusal::NoFid);
        }
        let found = self.find(id)?;
        if self.exceptions.load(Ordering::Acquire) > 0 {
            self.check_special(id, want, found.as_ref())?;
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
        found: Option<&(PartitionId, Attached)>,
    ) -> Result<(), Refusal> {
        let offered = found.is_some_and(|(_, found)| found.volume.is_in_service());
        if !offered && self.moved.read().contains_key(&id) {
            return Err(Refusal::Moved);
        }
        let Some((place, attached)) = found else {
            return Ok(());
        };
        let special = self.specials.read().get(&(*place, id)).copied();
        let writable = attached.volume.is_writable();
        match special {
            Some(Special::Secret) => Err(Refusal::NoVolume),
            Some(Special::ReadOnly) if want == Want::Change => {
                Err(Refusal::Store(cellar_volume::Error::ReadOnly))
            }
            Some(Special::Busy) if writable => Err(Refusal::Busy),
            Some(Special::Offline) if writable => Err(Refusal::Offline),
            _ => Ok(()),
        }
    }

    /// Puts a volume into a state for clients, or back into the ordinary one.
    pub(crate) fn set_special(&self, place: PartitionId, id: VolumeId, special: Option<Special>) {
        let mut specials = self.specials.write();
        match special {
            Some(special) => specials.insert((place, id), special),
            None => specials.remove(&(place, id)),
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

    /// A volume of that id is here again.
    pub(crate) fn clear_moved(&self, id: VolumeId) {
        let specials = self.specials.read();
        let mut moved = self.moved.write();
        moved.remove(&id);
        self.exceptions
            .store(specials.len() + moved.len(), Ordering::Release);
    }

    /// Volumes that were asked for and found.
    pub(crate) fn found(&self) -> usize {
        self.homes.read().len()
    }

    /// Forgets where a volume was found: it was deleted, or another one of that id counts now.
    pub(crate) fn forget(&self, id: VolumeId) {
        self.homes.write().remove(&id);
    }
}
