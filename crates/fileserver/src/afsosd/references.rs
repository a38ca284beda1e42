//! ListReferences and ListOnDevice: the objects that the volumes of this server name.

use cellar_rpc::{IncomingCall, blocking};
use cellar_volume::Referenced;
use cellar_wire::afsosd::{
    ListOnDevice, ListOnDeviceReply, ListReferences, ListReferencesReply, Reference,
};
use cellar_wire::ids::{Fid, VnodeId, VolumeId};
use cellar_wire::serve::Handle;
use cellar_wire::{AbortCode, List};

use super::ObjectService;
use super::superuser;
use crate::abort_map::Refusal;
use crate::server::Server;

/// The largest number of references, or of files, in one answer.
const ANSWER_MAX: usize = 4096;
/// The largest number of references of all vnodes except the last one of an answer, which is always
/// complete.
const REFERENCES_MOST: usize = 2048;
/// Files in objects that are examined for one answer.
const LOOKS_MAX: usize = 64 << 10;

impl Handle<ListReferences, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: ListReferences,
    ) -> Result<ListReferencesReply, Refusal> {
        let server = &self.server;
        let ListReferences {
            volume,
            after,
            limit,
        } = arguments;
        superuser(server, call)?;
        let limit = (limit as usize).clamp(1, REFERENCES_MOST);
        let found = {
            let server = server.clone();
            blocking(move || server.references(VolumeId(volume), after.vnode, limit)).await
        };
        let (found, more) = found?;
        let (found, more) = fitting(found, more.is_some())?;
        let references = found.into_iter().map(|found| Reference {
            object: found.object,
            version: found.version,
            osd: found.osd,
            owner: found.owner,
        });
        Ok(ListReferencesReply {
            references: List::from_iter_cut(references),
            more,
        })
    }
}

/// The references that fit into an answer, by ascending vnodes, and whether there are more. The
/// bound is needed because several partitions can have many references of the same vnodes. All
/// objects of a vnode must be in one answer; otherwise its file would seem to need fewer.
fn fitting(mut found: Vec<Referenced>, more: bool) -> Result<(Vec<Referenced>, bool), Refusal> {
    let Some(first_left) = found.get(ANSWER_MAX) else {
        return Ok((found, more));
    };
    let left = first_left.object.vnode;
    found.retain(|reference| reference.object.vnode < left);
    if found.is_empty() {
        return Err(Refusal::Code(AbortCode::E2BIG));
    }
    Ok((found, true))
}

impl Server {
    /// The references of all volumes of this server to a volume's objects, for the vnodes after
    /// `after`. The second value is the last vnode for which the list is complete, if there is
    /// more.
    pub(crate) fn references(
        &self,
        volume: VolumeId,
        after: VnodeId,
        limit: usize,
    ) -> Result<(Vec<Referenced>, Option<VnodeId>), Refusal> {
        // A version in the making gets its record before it leaves the list of makings, so the
        // makings are read before the records. A reader checks the layout again after it has
        // registered, so the readings are read after the records.
        let mut all = self.objects.pending_versions.of(volume);
        let mut end: Option<VnodeId> = None;
        for (_, partition) in self.volumes.partitions() {
            let (found, more) = partition.references(volume, after, limit)?;
            all.extend(found);
            end = match (end, more) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
        }
        let read = self.objects.open_reads.named(volume, self.wall().as_secs());
        all.extend(read);
        let end_or_last = end.unwrap_or(VnodeId(u32::MAX));
        all.retain(|reference| {
            reference.object.vnode > after && reference.object.vnode <= end_or_last
        });
        all.sort_unstable_by_key(|reference| (reference.object.vnode, *reference));
        all.dedup();
        Ok((all, end))
    }
}

impl Handle<ListOnDevice, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: ListOnDevice,
    ) -> Result<ListOnDeviceReply, Refusal> {
        let server = &self.server;
        let ListOnDevice { osd, after, limit } = arguments;
        superuser(server, call)?;
        let limit = (limit as usize).clamp(1, ANSWER_MAX);
        let found = {
            let server = server.clone();
            blocking(move || server.on_device(osd, after, limit)).await
        };
        let (files, more) = found?;
        Ok(ListOnDeviceReply {
            files: List::from_iter_cut(files),
            more,
        })
    }
}

impl Server {
    /// Files with objects on a device, after `after`.
    fn on_device(&self, osd: u32, after: Fid, limit: usize) -> Result<(Vec<Fid>, bool), Refusal> {
        let partitions = self.volumes.partitions();
        let (mut number, mut from) = (0, Some(0));
        if after.volume.0 != 0 {
            let (place, attached) = self.volumes.find(after.volume)?.ok_or(Refusal::NoVolume)?;
            let found = partitions.iter().position(|(id, _)| *id == place);
            number = found.ok_or(Refusal::NoVolume)?;
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
                let named = |layout: &cellar_wire::object::Layout| {
                    layout.objects.iter().any(|placed| placed.osd == osd)
                };
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

#[cfg(test)]
mod tests {
    use cellar_wire::ids::ViceId;
    use cellar_wire::object::ObjectId;

    use super::*;

    /// References of vnodes 2, 4, 6..., with the given number for each.
    fn named(of_each: &[usize]) -> Vec<Referenced> {
        let mut all = Vec::new();
        for (number, count) in of_each.iter().enumerate() {
            all.extend((0..*count).map(|version| Referenced {
                object: ObjectId {
                    vnode: VnodeId(number as u32 * 2 + 2),
                    ..ObjectId::default()
                },
                version: version as u64 + 1,
                osd: 2,
                owner: ViceId(1),
            }));
        }
        all
    }

    #[test]
    fn more_references_than_an_answer_holds_are_told_by_whole_vnodes() {
        let fit = |of_each: &[usize], more| {
            let fitting = fitting(named(of_each), more);
            fitting.map(|(found, more)| (found.len(), more))
        };
        assert_eq!(
            fit(&[9, ANSWER_MAX - 9], false).unwrap(),
            (ANSWER_MAX, false)
        );
        assert_eq!(fit(&[9, 7], true).unwrap(), (16, true));
        assert_eq!(fit(&[2000, 2000, 2000, 1], false).unwrap(), (4000, true));
        assert_eq!(fit(&[2000, 2096, 1], false).unwrap(), (ANSWER_MAX, true));
        assert!(fit(&[ANSWER_MAX + 1, 1], false).is_err());
    }
}
