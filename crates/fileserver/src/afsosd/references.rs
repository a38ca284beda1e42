//! ListReferences, ListOnDevice and ListWiped: the objects that the volumes of this server name,
//! and the files that need none.

use cellar_rpc::{IncomingCall, blocking};
use cellar_volume::Referenced;
use cellar_wire::afsosd::{
    ListOnDevice, ListOnDeviceReply, ListReferences, ListReferencesReply, ListWiped,
    ListWipedReply, Reference,
};
use cellar_wire::ids::VolumeId;
use cellar_wire::serve::Handle;
use cellar_wire::{AbortCode, List};

use super::ObjectService;
use super::superuser;
use crate::abort_map::Refusal;

/// The largest number of references, or of files, in one answer.
const ANSWER_MAX: usize = 4096;
/// The largest number of references of all vnodes except the last one of an answer, which is always
/// complete.
const REFERENCES_MOST: usize = 2048;

impl Handle<ListReferences, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: ListReferences,
    ) -> Result<ListReferencesReply, Refusal> {
        let services = &self.services;
        let ListReferences {
            volume,
            after,
            limit,
        } = arguments;
        superuser(&services.sessions, call)?;
        let limit = (limit as usize).clamp(1, REFERENCES_MOST);
        let found = {
            let objects = services.objects.clone();
            blocking(move || objects.references(VolumeId(volume), after.vnode, limit)).await
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

impl Handle<ListWiped, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: ListWiped,
    ) -> Result<ListWipedReply, Refusal> {
        let services = &self.services;
        let ListWiped { volume, after } = arguments;
        superuser(&services.sessions, call)?;
        let objects = services.objects.clone();
        Ok(blocking(move || objects.list_wiped(volume, after)).await?)
    }
}

impl Handle<ListOnDevice, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: ListOnDevice,
    ) -> Result<ListOnDeviceReply, Refusal> {
        let services = &self.services;
        let ListOnDevice { osd, after, limit } = arguments;
        superuser(&services.sessions, call)?;
        let limit = (limit as usize).clamp(1, ANSWER_MAX);
        let found = {
            let objects = services.objects.clone();
            blocking(move || objects.on_device(osd, after, limit)).await
        };
        let (files, more) = found?;
        Ok(ListOnDeviceReply {
            files: List::from_iter_cut(files),
            more,
        })
    }
}

#[cfg(test)]
mod tests {
    use cellar_wire::ids::{ViceId, VnodeId};
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
