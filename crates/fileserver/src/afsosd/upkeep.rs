//! RepairStatus, MoveObject, HaveVolumes, CollectGarbage: requests of administrators and other file
//! servers about this server's maintenance of objects.

use std::sync::Arc;
use std::time::Duration;

use cellar_objects::repair::Pace;
use cellar_rpc::{IncomingCall, blocking};
use cellar_wire::afsosd::{
    COLLECT_DRY, CollectGarbage, CollectGarbageReply, HaveVolumes, HaveVolumesReply, MoveObject,
    MoveObjectReply, RepairStatus, RepairStatusReply,
};
use cellar_wire::ids::{VnodeId, VolumeId};
use cellar_wire::{AbortCode, List};

use super::{NOT_IN_OBJECTS, superuser};
use crate::abort_map::Refusal;
use crate::objects::repair::{DamagedObject, Outcome, RepairPlacement};
use crate::server::Server;
use crate::service::CallResult;

pub(super) async fn repair_status(server: &Arc<Server>, call: &mut IncomingCall) -> CallResult {
    let RepairStatus {} = call.arguments().await.map_err(Refusal::Call)?;
    let status = server.objects.repairs.status();
    call.reply(&RepairStatusReply { status });
    Ok(())
}

pub(super) async fn move_object(server: &Arc<Server>, call: &mut IncomingCall) -> CallResult {
    let MoveObject { fid, place, osd } = call.arguments().await.map_err(Refusal::Call)?;
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
    call.reply(&MoveObjectReply { osd });
    Ok(())
}

pub(super) async fn have_volumes(server: &Arc<Server>, call: &mut IncomingCall) -> CallResult {
    let HaveVolumes { volumes } = call.arguments().await.map_err(Refusal::Call)?;
    superuser(server, call)?;
    let here = {
        let server = server.clone();
        let volumes: Vec<VolumeId> = volumes.iter().map(|id| VolumeId(*id)).collect();
        blocking(move || server.have(&volumes)).await?
    };
    let here = List::from_iter_cut(here.into_iter().map(|volume| volume.0));
    call.reply(&HaveVolumesReply { here });
    Ok(())
}

pub(super) async fn collect_garbage(server: &Arc<Server>, call: &mut IncomingCall) -> CallResult {
    let CollectGarbage {
        volume,
        after,
        grace,
        flags,
    } = call.arguments().await.map_err(Refusal::Call)?;
    superuser(server, call)?;
    let collected = server
        .collect_garbage(
            VolumeId(volume),
            VnodeId(after),
            Duration::from_secs(grace.into()),
            flags & COLLECT_DRY != 0,
        )
        .await?;
    call.reply(&CollectGarbageReply { collected });
    Ok(())
}
