//! Partitions and object storage devices: room, the engine of the store, damage.

use std::sync::Arc;

use cellar_fileserver::ScrubFigures;
use cellar_osd::{DeviceFigures, OsdServer};
use cellar_volume::{Counters, Partition};
use cellar_wire::ids::PartitionId;

use crate::metrics::snapshot::Snapshot;

/// Adds the partitions.
pub(super) fn add_partitions(
    snapshot: &mut Snapshot,
    partitions: &[(PartitionId, Arc<Partition>)],
) {
    for (id, partition) in partitions {
        let name = id.to_string();
        if let Ok(room) = partition.usage() {
            snapshot
                .gauges(
                    "cellar_partition_size_bytes",
                    "Size of the file system of a partition",
                )
                .sample([("partition", &name)], room.total_blocks << 10);
            snapshot
                .gauges(
                    "cellar_partition_free_bytes",
                    "Room for more bytes, in the file system and in the partition's files",
                )
                .sample([("partition", &name)], room.free_blocks << 10);
        }
        let opening = partition.opening();
        for (metric, help, value) in [
            (
                "cellar_partition_accepts_changes",
                "1 while the partition accepts changes; 0 after an error of its disk",
                u64::from(partition.stopped().is_none()),
            ),
            (
                "cellar_partition_dropped_journal_groups",
                "Acknowledged groups of changes that the last start dropped with \
                 --drop-damaged-journal",
                opening.groups_behind,
            ),
            (
                "cellar_partition_replayed_journal_groups",
                "Groups of changes that the last start read from the journal",
                opening.replayed,
            ),
        ] {
            snapshot
                .gauges(metric, help)
                .sample([("partition", &name)], value);
        }
        add_engine(snapshot, &name, &partition.counters());
    }
}

/// Adds the scrubs of the partitions.
pub(super) fn add_scrubs(snapshot: &mut Snapshot, scrubs: &[ScrubFigures]) {
    for scrub in scrubs {
        let ScrubFigures {
            partition,
            is_running,
            bytes,
            ended,
            damaged,
        } = *scrub;
        let name = partition.to_string();
        for (metric, help, value) in [
            (
                "cellar_partition_scrub_running",
                "1 while a scrub verifies the partition",
                u64::from(is_running),
            ),
            (
                "cellar_partition_scrub_verified_bytes",
                "Bytes that the running scrub has verified",
                bytes,
            ),
            (
                "cellar_partition_scrub_ended_timestamp_seconds",
                "End of the last scrub since the start, in seconds since 1970; 0 for none",
                u64::from(ended),
            ),
            (
                "cellar_partition_scrub_damaged_files",
                "Damaged files that the last scrub found",
                damaged,
            ),
        ] {
            snapshot
                .gauges(metric, help)
                .sample([("partition", &name)], value);
        }
    }
}

fn add_engine(snapshot: &mut Snapshot, partition: &str, counters: &Counters) {
    // Destructured by name, so that a new counter cannot be forgotten here.
    let Counters {
        commits,
        groups,
        journal_bytes,
        block_syncs,
        flushes,
        damaged,
        cached_vnodes,
        cached_body_bytes,
        cache_misses,
        reads,
        reaped,
    } = *counters;
    for (name, help, value) in [
        ("cellar_partition_changes", "Changes accepted", commits),
        (
            "cellar_partition_journal_writes",
            "Writes of the journal, each synced once",
            groups,
        ),
        (
            "cellar_partition_journal_bytes",
            "Bytes written to the journal",
            journal_bytes,
        ),
        (
            "cellar_partition_block_syncs",
            "Syncs of blocks before a journal write",
            block_syncs,
        ),
        (
            "cellar_partition_flushes",
            "Flushes of the tables in memory",
            flushes,
        ),
        (
            "cellar_partition_damaged_reads",
            "Reads that found a damaged record",
            damaged,
        ),
        (
            "cellar_partition_vnode_misses",
            "Vnodes that were read from the table",
            cache_misses,
        ),
        (
            "cellar_partition_table_reads",
            "Entries of the table that were read",
            reads,
        ),
        (
            "cellar_partition_reaped_versions",
            "Versions removed in the background",
            reaped,
        ),
    ] {
        snapshot
            .counters(name, help)
            .sample([("partition", &partition)], value);
    }
    for (name, help, value) in [
        (
            "cellar_partition_cached_vnodes",
            "Decoded vnodes in memory",
            cached_vnodes,
        ),
        (
            "cellar_partition_cached_body_bytes",
            "Bytes of files and directories in memory",
            cached_body_bytes,
        ),
    ] {
        snapshot
            .gauges(name, help)
            .sample([("partition", &partition)], value);
    }
}

/// Adds the devices of this process.
pub(super) fn add_devices(snapshot: &mut Snapshot, osds: &OsdServer) {
    for device in osds.device_figures() {
        let DeviceFigures {
            id,
            total_bytes,
            free_bytes,
            objects,
            damaged_objects,
            accepts_changes,
        } = device;
        for (name, help, value) in [
            ("cellar_osd_size_bytes", "Size of a device", total_bytes),
            (
                "cellar_osd_free_bytes",
                "Room for more bytes on a device",
                free_bytes,
            ),
            ("cellar_osd_objects", "Objects on a device", objects),
            (
                "cellar_osd_damaged_objects",
                "Objects known to be damaged",
                damaged_objects,
            ),
            (
                "cellar_osd_accepts_changes",
                "1 while the device accepts changes; 0 after an error of its disk",
                u64::from(accepts_changes),
            ),
        ] {
            snapshot.gauges(name, help).sample([("device", &id)], value);
        }
    }
    for (name, help, value) in osds.counters() {
        snapshot.counter(&format!("cellar_osd_{name}"), help, value);
    }
    for (reason, count) in osds.refused_capabilities() {
        snapshot
            .counters(
                "cellar_osd_refused_capabilities",
                "Capabilities refused, by reason",
            )
            .sample([("reason", &reason)], count);
    }
}
