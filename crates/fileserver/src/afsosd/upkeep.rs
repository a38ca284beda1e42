//! RepairStatus, MoveObject, HaveVolumes, CollectGarbage: requests of administrators and other file
//! servers about this server's maintenance of objects.

use std::time::Duration;

use cellar_objects::repair::Pace;
use cellar_rpc::{IncomingCall, blocking};
use cellar_wire::afsosd::{
    COLLECT_DRY, CollectGarbage, CollectGarbageReply, HaveVolumes, HaveVolumesReply, MoveObject,
    MoveObjectReply, RepairStatus, RepairStatusReply,
};
use cellar_wire::ids::{VnodeId, VolumeId};
use cellar_wire::serve::Handle;
use cellar_wire::{AbortCode, List};

use super::ObjectService;
use super::{NOT_IN_OBJECTS, superuser};
use crate::abort_map::Refusal;
use crate::objects::repair::{DamagedObject, Outcome, RepairPlacement};

impl Handle<RepairStatus, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        _: &IncomingCall,
        _: RepairStatus,
    ) -> Result<RepairStatusReply, Refusal> {
        let server = &self.server;

        let status = server.objects.repairs.status();
        Ok(RepairStatusReply { status })
    }
}

impl Handle<MoveObject, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: MoveObject,
    ) -> Result<MoveObjectReply, Refusal> {
        let server = &self.server;
        let MoveObject { fid, place, osd } = arguments;
        superuser(server, call)?;
        let broken = {
            let server = server.clone();
            blocking(move || {
                let found = server.volumes.find(fid.volume)?.ok_or(Refusal::NoVolume)?;
                let layout = found.1.volume.layout(fid)?.ok_or(NOT_IN_OBJECTS)?;
                let placed = layout.objects.get(place as usize).ok_or(Refusal::Invalid)?;
                Ok::<_, Refusal>(server.by_head(DamagedObject {
                    volume: fid.volume,
                    vnode: fid.vnode,
                    uniquifier: fid.uniquifier,
                    osd: placed.osd,
                    serial: placed.serial,
                }))
            })
            .await?
        };
        let begun = server.objects.repairs.begin(&broken).ok_or(Refusal::Busy)?;
        let free = Pace::new(0);
        let (outcome, osd) = server
            .rebuild_object(broken, RepairPlacement::On(osd), 0, &free)
            .await?;
        begun.end(outcome);
        match outcome {
            Outcome::Made(..) => {}
            Outcome::Nothing | Outcome::Busy | Outcome::Away => return Err(Refusal::Busy),
            Outcome::Failed => return Err(Refusal::Objects(AbortCode::EIO)),
        }
        Ok(MoveObjectReply { osd })
    }
}

impl Handle<HaveVolumes, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: HaveVolumes,
    ) -> Result<HaveVolumesReply, Refusal> {
        let server = &self.server;
        let HaveVolumes { volumes } = arguments;
        superuser(server, call)?;
        let here = {
            let server = server.clone();
            let volumes: Vec<VolumeId> = volumes.iter().map(|id| VolumeId(*id)).collect();
            blocking(move || server.have(&volumes)).await?
        };
        let here = List::from_iter_cut(here.into_iter().map(|volume| volume.0));
        Ok(HaveVolumesReply { here })
    }
}

impl Handle<CollectGarbage, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: CollectGarbage,
    ) -> Result<CollectGarbageReply, Refusal> {
        let server = &self.server;
        let CollectGarbage {
            volume,
            after,
            grace,
            flags,
        } = arguments;
        superuser(server, call)?;
        let collected = server
            .collect_garbage(
                VolumeId(volume),
                VnodeId(after),
                Duration::from_secs(grace.into()),
                flags & COLLECT_DRY != 0,
            )
            .await?;
        Ok(CollectGarbageReply { collected })
    }
}
