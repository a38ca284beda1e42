//! RepairStatus, MoveObject, HaveVolumes, CollectGarbage: requests of administrators and other file
//! servers about this server's maintenance of objects.

use std::time::Duration;

use cellar_rpc::{IncomingCall, blocking};
use cellar_wire::List;
use cellar_wire::afsosd::{
    COLLECT_DRY, CollectGarbage, CollectGarbageReply, HaveVolumes, HaveVolumesReply, MoveObject,
    MoveObjectReply, RepairStatus, RepairStatusReply,
};
use cellar_wire::ids::{VnodeId, VolumeId};
use cellar_wire::serve::Handle;

use super::ObjectService;
use super::{NOT_IN_OBJECTS, superuser};
use crate::abort_map::Refusal;

impl Handle<RepairStatus, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        _: &IncomingCall,
        _: RepairStatus,
    ) -> Result<RepairStatusReply, Refusal> {
        let services = &self.services;

        let status = services.objects.repair_status();
        Ok(RepairStatusReply { status })
    }
}

impl Handle<MoveObject, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: MoveObject,
    ) -> Result<MoveObjectReply, Refusal> {
        let services = &self.services;
        let MoveObject { fid, place, osd } = arguments;
        superuser(&services.sessions, call)?;
        let placed = {
            let services = services.clone();
            blocking(move || {
                let found = services
                    .volumes
                    .find(fid.volume)?
                    .ok_or(Refusal::NoVolume)?;
                let layout = found.1.volume.layout(fid)?.ok_or(NOT_IN_OBJECTS)?;
                let placed = layout.objects.get(place as usize).copied();
                placed.ok_or(Refusal::Invalid)
            })
            .await?
        };
        let osd = services.objects.move_object(fid, &placed, osd).await?;
        Ok(MoveObjectReply { osd })
    }
}

impl Handle<HaveVolumes, IncomingCall> for ObjectService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: HaveVolumes,
    ) -> Result<HaveVolumesReply, Refusal> {
        let services = &self.services;
        let HaveVolumes { volumes } = arguments;
        superuser(&services.sessions, call)?;
        let here = {
            let objects = services.objects.clone();
            let volumes: Vec<VolumeId> = volumes.iter().map(|id| VolumeId(*id)).collect();
            blocking(move || objects.have(&volumes)).await?
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
        let services = &self.services;
        let CollectGarbage {
            volume,
            after,
            grace,
            flags,
        } = arguments;
        superuser(&services.sessions, call)?;
        let collected = services
            .objects
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
