//! The interface to the file server around the objects: its volumes, and their entries in the
//! location database.

use std::sync::Arc;

use cellar_volume::{Partition, Result, Volume};
use cellar_wire::AbortCode;
use cellar_wire::ids::{PartitionId, VolumeId};

use super::cell::BoxFuture;

/// A volume, and the partition that it is on.
#[derive(Clone, Debug)]
pub struct Attached {
    /// The partition.
    pub partition: Arc<Partition>,
    /// The volume.
    pub volume: Arc<Volume>,
}

/// The volumes of the file server.
pub trait ServedVolumes: Send + Sync + 'static {
    /// All partitions, by id.
    fn partitions(&self) -> Vec<(PartitionId, Arc<Partition>)>;

    /// The partition and volume of an id, in any state. May wait for the disk.
    ///
    /// # Errors
    /// The errors of the store.
    fn find(&self, id: VolumeId) -> Result<Option<(PartitionId, Attached)>>;
}

/// The location database, for stores into volumes that came from another server.
pub trait RwSites: Send + Sync + 'static {
    /// Whether the location database lists the RW volume on this partition of this server.
    ///
    /// # Errors
    /// The code with which the database refused, or failed to answer soon.
    fn is_here(
        &self,
        volume: VolumeId,
        partition: PartitionId,
    ) -> BoxFuture<'_, Result<bool, AbortCode>>;
}
