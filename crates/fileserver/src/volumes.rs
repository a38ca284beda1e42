//! The volumes of this server, their partitions, and their states for clients.
//!
//! A volume is looked up for every call, so its partition is remembered by id. The states that
//! volume transactions set (busy, off line), and the moves to other servers, are kept in separate
//! tables. These are nearly always empty, and an atomic counter says so.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cellar_fileobjects::ServedVolumes;
use cellar_volume::Partition;
use cellar_wire::ids::{Fid, PartitionId, VolumeId};
use parking_lot::RwLock;

use crate::abort_map::Refusal;
use crate::load;
pub(crate) use cellar_fileobjects::Attached;

/// The restriction that a volume transaction puts on clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    /// Every call is refused with VBUSY. Volumes that cannot be changed are still served.
    Busy,
    /// Every call is refused with VOFFLINE. Volumes that cannot be changed are served as they are,
    /// until they are replaced or taken out of service.
    Offline,
    /// Changes are refused with EROFS.
    ReadOnly,
    /// The volume is not shown to clients, because it is being created.
    Secret,
}

/// The access that a call needs to a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VolumeAccess {
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
    /// Adds a partition. Replaces one with the same id.
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

    /// The partition and volume of an id. While a volume moves between partitions of this server,
    /// there are two with its id. Prefers the one that is in service.
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

    /// The volume for a client's call. It must be in service, on line, and in a state that allows
    /// the call.
    pub(crate) fn for_call(&self, id: VolumeId, want: VolumeAccess) -> Result<Attached, Refusal> {
        if id.0 == 0 {
            return Err(Refusal::NoFid);
        }
        load::note_volume(id);
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

    /// The volume of a fid, for a client's call.
    pub(crate) fn of(&self, fid: Fid, want: VolumeAccess) -> Result<Attached, Refusal> {
        check_fid(fid)?;
        let attached = self.for_call(fid.volume, want)?;
        if want == VolumeAccess::Change && !attached.volume.is_writable() {
            return Err(Refusal::Store(cellar_volume::Error::ReadOnly));
        }
        Ok(attached)
    }

    /// The volume of a finished change, for its answer. It ignores restrictions on clients that
    /// began since, so that the client learns the outcome of the change.
    pub(crate) fn changed(&self, fid: Fid) -> Result<Attached, Refusal> {
        let found = self.find(fid.volume)?;
        found.map(|(_, attached)| attached).ok_or(Refusal::NoVolume)
    }

    fn check_special(
        &self,
        id: VolumeId,
        want: VolumeAccess,
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
            Some(Special::ReadOnly) if want == VolumeAccess::Change => {
                Err(Refusal::Store(cellar_volume::Error::ReadOnly))
            }
            Some(Special::Busy) if writable => Err(Refusal::Busy),
            Some(Special::Offline) if writable => Err(Refusal::Offline),
            _ => Ok(()),
        }
    }

    /// Sets the state of a volume for clients; `None` is the ordinary one.
    pub(crate) fn set_special(&self, place: PartitionId, id: VolumeId, special: Option<Special>) {
        let mut specials = self.specials.write();
        match special {
            Some(special) => specials.insert((place, id), special),
            None => specials.remove(&(place, id)),
        };
        let exceptions = specials.len() + self.moved.read().len();
        self.exceptions.store(exceptions, Ordering::Release);
    }

    /// Notes that a volume moved to another server. The note lasts until the next restart.
    pub(crate) fn set_moved(&self, id: VolumeId, server: u32) {
        let specials = self.specials.read();
        let mut moved = self.moved.write();
        moved.insert(id, server);
        self.exceptions
            .store(specials.len() + moved.len(), Ordering::Release);
    }

    /// Notes that a volume with this id is on this server again.
    pub(crate) fn clear_moved(&self, id: VolumeId) {
        let specials = self.specials.read();
        let mut moved = self.moved.write();
        moved.remove(&id);
        self.exceptions
            .store(specials.len() + moved.len(), Ordering::Release);
    }

    /// The number of volumes that were looked up and found.
    pub(crate) fn homes_len(&self) -> usize {
        self.homes.read().len()
    }

    /// Forgets the partition of a volume that was deleted, or replaced by another one with the same
    /// id.
    pub(crate) fn forget(&self, id: VolumeId) {
        self.homes.write().remove(&id);
    }
}

/// Checks that a fid has a volume and a vnode number.
pub(crate) fn check_fid(fid: Fid) -> Result<(), Refusal> {
    if fid.volume.0 == 0 || fid.vnode.0 == 0 {
        Err(Refusal::NoFid)
    } else {
        Ok(())
    }
}

impl ServedVolumes for Volumes {
    fn partitions(&self) -> Vec<(PartitionId, Arc<Partition>)> {
        Volumes::partitions(self)
    }

    fn find(&self, id: VolumeId) -> cellar_volume::Result<Option<(PartitionId, Attached)>> {
        Volumes::find(self, id)
    }
}
