//! Figures of single volumes, on a page of their own: `/metrics/volumes`.
//!
//! A server may have 850,000 volumes, and each label of a metric costs Prometheus memory. The page
//! therefore has the volumes with the most accesses today, at most [`VOLUMES_MAX`] of each
//! partition. All others are idle, or close to it. While a page is made, no more than these volumes
//! are in memory. Its text has at most 880 KB for each partition.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use cellar_volume::{Partition, VolumeInfo};
use cellar_wire::ids::PartitionId;

use crate::metrics::snapshot::Snapshot;

/// Volumes of each partition on the page.
const VOLUMES_MAX: usize = 1_000;

/// The longest text of one partition's volumes. Each volume has five lines of at most 176 bytes.
/// Such a line has the longest name of a metric, a name of 31 escaped bytes, and 20 digits.
#[cfg(test)]
const BYTES_MAX: usize = VOLUMES_MAX * 5 * 176;

/// Adds the busiest volumes of each partition.
pub(super) fn add(snapshot: &mut Snapshot, partitions: &[(PartitionId, Arc<Partition>)]) {
    for (id, partition) in partitions {
        add_volumes(snapshot, *id, partition.volumes_in_memory());
    }
}

fn add_volumes(
    snapshot: &mut Snapshot,
    partition: PartitionId,
    volumes: impl Iterator<Item = VolumeInfo>,
) {
    for volume in busiest(volumes) {
        let labels: [(&'static str, &dyn std::fmt::Display); 3] = [
            ("partition", &partition),
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

/// The volumes with the most accesses today, the busiest first, at most [`VOLUMES_MAX`]. Of equal
/// ones those with the lower ids are taken, so that two pages have the same volumes.
fn busiest(volumes: impl Iterator<Item = VolumeInfo>) -> impl Iterator<Item = VolumeInfo> {
    let mut kept = BTreeMap::new();
    for volume in volumes {
        kept.insert((Reverse(volume.day_use), volume.id), volume);
        if kept.len() > VOLUMES_MAX {
            kept.pop_last();
        }
    }
    kept.into_values()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use bytes::Bytes;
    use cellar_volume::VolumeKind;
    use cellar_wire::ids::{AfsTime, ViceId, VolumeId};

    use super::*;

    /// The volumes of a large server.
    const MANY: u32 = 850_000;

    /// A part of a volume that counts how many are in memory.
    struct Counted {
        _alive: Arc<()>,
    }

    impl AsRef<[u8]> for Counted {
        fn as_ref(&self) -> &[u8] {
            &[]
        }
    }

    /// A volume whose lines are as long as they can be.
    fn volume(id: u32, day_use: u32, counted: &Arc<()>) -> VolumeInfo {
        let none = VolumeId(0);
        VolumeInfo {
            id: VolumeId(u32::MAX - id),
            name: "\"".repeat(31),
            kind: VolumeKind::ReadWrite,
            parent: none,
            clone: none,
            backup: none,
            restored_from: none,
            online: true,
            in_service: true,
            blessed: true,
            destroy_me: false,
            owner: ViceId(0),
            max_quota: u32::MAX,
            min_quota: 0,
            max_files: 0,
            blocks_used: u64::MAX >> 10,
            files: u64::MAX,
            created: AfsTime(0),
            copied: AfsTime(0),
            updated: AfsTime(0),
            accessed: AfsTime(0),
            backed_up: AfsTime(0),
            expires: AfsTime(0),
            update_counter: 0,
            day_use,
            day_use_date: AfsTime(0),
            week_use: [0; 7],
            traffic: None,
            offline_message: Bytes::from_owner(Counted {
                _alive: counted.clone(),
            }),
            message_of_the_day: Bytes::new(),
            account: 0,
            policy: 0,
            shared: 0,
            borrowed: 0,
            takes_over: false,
        }
    }

    #[test]
    fn a_page_about_850_000_volumes_is_bounded_and_has_the_busiest() {
        let counted = Arc::new(());
        let mut most = 0;
        // Each number of accesses comes once, in an order without a pattern: the factor is odd.
        let volumes = (0..MANY).map(|n| {
            most = most.max(Arc::strong_count(&counted) - 1);
            volume(
                n,
                u32::MAX - n.wrapping_mul(0x9e37_79b1) % (1 << 20),
                &counted,
            )
        });
        let begun = Instant::now();
        let mut snapshot = Snapshot::default();
        let partition = PartitionId::parse("iu").expect("the last partition");
        add_volumes(&mut snapshot, partition, volumes);
        let text = snapshot.text().expect("text");
        println!(
            "{} bytes after {:?}, {most} volumes in memory",
            text.len(),
            begun.elapsed()
        );
        assert!(most <= VOLUMES_MAX + 1, "{most} volumes at a time");
        assert!(text.len() <= BYTES_MAX + 1_000, "{} bytes", text.len());
        // The bound is not far above the truth.
        assert!(text.len() > BYTES_MAX * 3 / 4, "{} bytes", text.len());
        let busiest = |line: &&str| line.starts_with("cellar_volume_accesses_today{");
        let counts = text.lines().filter(busiest).map(|line| {
            let (_, count) = line.rsplit_once(' ').expect("a value");
            count.parse::<u32>().expect("a number")
        });
        let counts: Vec<u32> = counts.collect();
        let mut all: Vec<u32> = (0..MANY)
            .map(|n| u32::MAX - n.wrapping_mul(0x9e37_79b1) % (1 << 20))
            .collect();
        all.sort_unstable_by_key(|count| Reverse(*count));
        all.truncate(VOLUMES_MAX);
        assert_eq!(counts, all);
    }
}
