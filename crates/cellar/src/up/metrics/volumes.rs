//! Figures of single volumes, on a page of their own: `/metrics/volumes`.
//!
//! A server may have 850,000 volumes, and each label of a metric costs Prometheus memory. The page
//! therefore has the volumes with the most accesses today, at most [`VOLUMES_MAX`] of each
//! partition. All others are idle, or close to it.

use std::sync::Arc;

use cellar_volume::Partition;
use cellar_wire::ids::PartitionId;

use crate::metrics::snapshot::Snapshot;

/// Volumes of each partition on the page.
const VOLUMES_MAX: usize = 1_000;

/// Adds the busiest volumes of each partition.
pub(super) fn add(snapshot: &mut Snapshot, partitions: &[(PartitionId, Arc<Partition>)]) {
    for (id, partition) in partitions {
        for volume in partition.busiest_volumes(VOLUMES_MAX) {
            let labels: [(&'static str, &dyn std::fmt::Display); 3] = [
                ("partition", id),
                ("volume", &volume.id.0),
                ("name", &volume.name),
            ];
            // The count begins again at midnight, as in `vos examine`.
            snapshot
                .gauges("cellar_volume_accesses_today", "Accesses since midnight")
                .sample(labels, volume.day_use.into());
            snapshot
                .gauges(
                    "cellar_volume_used_bytes",
                    "Room in use, in blocks of 1 KiB",
                )
                .sample(labels, volume.blocks_used << 10);
            snapshot
                .gauges("cellar_volume_quota_bytes", "The quota; 0 for none")
                .sample(labels, u64::from(volume.max_quota) << 10);
            snapshot
                .gauges("cellar_volume_files", "Files, directories and links")
                .sample(labels, volume.files);
            snapshot
                .gauges("cellar_volume_online", "1 if clients may use the volume")
                .sample(labels, u64::from(volume.online));
        }
    }
}
