//! The references of this server's volumes to objects.

use cellar_volume::Referenced;
use cellar_wire::ids::{Fid, VnodeId, VolumeId};
use cellar_wire::object::Layout;

use super::Objects;
use super::failure::Failure;

/// Files in objects that are examined for one answer.
const LOOKS_MAX: usize = 64 << 10;

impl Objects {
    /// The references of all volumes of this server to a volume's objects, for the vnodes after
    /// `after`. The second value is the last vnode for which the list is complete, if there is
    /// more.
    pub fn references(
        &self,
        volume: VolumeId,
        after: VnodeId,
        limit: usize,
    ) -> Result<(Vec<Referenced>, Option<VnodeId>), Failure> {
        // A version in the making gets its record before it leaves the list of makings, so the
        // makings are read before the records. A reader checks the layout again after it has
        // registered, so the readings are read after the records.
        let mut all = self.pending_versions.of(volume);
        let mut end: Option<VnodeId> = None;
        for (_, partition) in self.volumes.partitions() {
            let (found, more) = partition.references(volume, after, limit)?;
            all.extend(found);
            end = match (end, more) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
        }
        let read = self.open_reads.named(volume, self.wall().as_secs());
        all.extend(read);
        let end_or_last = end.unwrap_or(VnodeId(u32::MAX));
        all.retain(|reference| {
            reference.object.vnode > after && reference.object.vnode <= end_or_last
        });
        all.sort_unstable_by_key(|reference| (reference.object.vnode, *reference));
        all.dedup();
        Ok((all, end))
    }

    /// Files with objects on a device, after `after`.
    pub fn on_device(
        &self,
        osd: u32,
        after: Fid,
        limit: usize,
    ) -> Result<(Vec<Fid>, bool), Failure> {
        let partitions = self.volumes.partitions();
        let (mut number, mut from) = (0, Some(0));
        if after.volume.0 != 0 {
            let (place, attached) = self.volumes.find(after.volume)?.ok_or(Failure::NoVolume)?;
            let found = partitions.iter().position(|(id, _)| *id == place);
            number = found.ok_or(Failure::NoVolume)?;
            from = Some(attached.volume.place_of(after.vnode) + 1);
        }
        let mut files: Vec<Fid> = Vec::new();
        // The place of a vnode is unique only together with its partition.
        let place_of = |fid: Fid| {
            let found = self.volumes.find(fid.volume).ok().flatten();
            let place = found.map(|(id, attached)| (id, attached.volume.place_of(fid.vnode)));
            (place, fid.uniquifier)
        };
        for (_, partition) in partitions.iter().skip(number) {
            while let Some(place) = from {
                let named = |layout: &Layout| layout.objects.iter().any(|placed| placed.osd == osd);
                let (found, next) = partition.holders(place, LOOKS_MAX, named)?;
                for holder in found {
                    // Clones with different objects of the same file are listed once.
                    let same = |last: &Fid| place_of(*last) == place_of(holder.fid);
                    if files.last().is_some_and(same) {
                        continue;
                    }
                    if files.len() >= limit {
                        return Ok((files, true));
                    }
                    files.push(holder.fid);
                }
                from = next;
            }
            from = Some(0);
        }
        Ok((files, false))
    }
}
