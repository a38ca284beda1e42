//! Removal of unfinished volumes of an earlier run: clones for a move, and targets of a restore.
//! Their transactions ended with the server. Volumes marked to be destroyed are removed some time
//! after the next start, so that their creators have time to continue.
//!
//! The volumes are examined in the background, one page at a time with pauses, so nothing waits for
//! it.

use std::sync::Arc;
use std::time::Duration;

use cellar_volume::Partition;
use cellar_wire::ids::{AfsTime, PartitionId, VolumeId};
use tracing::{info, warn};

use crate::limits::VOLUME_TRANSACTION_IDLE;
use crate::services::VolumeServices;

/// Volumes examined between two pauses.
const PAGE: usize = 256;
/// A pause.
const PAUSE: Duration = Duration::from_millis(20);

impl VolumeServices {
    /// Removes unfinished volumes of earlier runs of this server, after a while. This run began at
    /// `started`.
    pub(crate) async fn remove_unfinished_volumes_later(self: Arc<Self>, started: Duration) {
        tokio::time::sleep(VOLUME_TRANSACTION_IDLE).await;
        self.remove_unfinished_volumes(started).await;
    }

    /// Removes unfinished volumes of runs of this server that began before `started`.
    pub(crate) async fn remove_unfinished_volumes(self: &Arc<Self>, started: Duration) {
        let started = AfsTime::after_1970(started);
        for (place, partition) in self.volumes.partitions() {
            let mut after = None;
            while !self.stopping.has_begun() {
                let (services, partition) = (self.clone(), partition.clone());
                let page = cellar_rpc::blocking(move || {
                    services.remove_unfinished_of(place, &partition, after, started)
                });
                match page.await {
                    Ok(Some(last)) => after = Some(last),
                    Ok(None) => break,
                    Err(error) => {
                        warn!(partition = %place, %error, "cannot look for unfinished volumes");
                        break;
                    }
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Examines one page of volumes. Returns the last of them, if there are more.
    pub(super) fn remove_unfinished_of(
        &self,
        place: PartitionId,
        partition: &Partition,
        after: Option<VolumeId>,
        started: AfsTime,
    ) -> cellar_volume::Result<Option<VolumeId>> {
        let page = partition.volumes(after, PAGE)?;
        for volume in &page {
            let id = volume.id;
            let is_unfinished = volume.destroy_me && volume.copied < started;
            if is_unfinished && !self.transactions.is_busy(place, id) {
                info!(volume = %id, partition = %place, "unfinished volume of an earlier run removed");
                partition.delete_volume(id)?.wait()?;
                self.volumes.forget(id);
            }
        }
        let more = page.len() == PAGE;
        Ok(page.last().filter(|_| more).map(|last| last.id))
    }
}
