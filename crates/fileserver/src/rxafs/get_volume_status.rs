//! GetVolumeStatus (149): quota, usage and room, for `fs listquota`, `fs examine` and statfs(2).

use std::sync::Arc;

use cellar_rpc::IncomingCall;
use cellar_volume::{PartitionUsage, VolumeInfo, VolumeKind};
use cellar_wire::AfsName;
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::{AfsPath, FetchVolumeStatus, GetVolumeStatus, GetVolumeStatusReply};

use super::common::run_apart;
use crate::abort_map::Refusal;
use crate::server::Server;
use crate::service::CallResult;
use crate::volumes::VolumeAccess;

pub(super) async fn get_volume_status(server: &Arc<Server>, call: &mut IncomingCall) -> CallResult {
    let GetVolumeStatus { volume } = call.arguments().await.map_err(Refusal::Call)?;
    let _session = server.session(call).await?;
    let work = {
        let server = server.clone();
        move || {
            let attached = server.volume_of(Fid::root(volume), VolumeAccess::Read)?;
            // A volume without root directory has no status.
            attached.volume.status(attached.volume.root())?;
            Ok((attached.volume.info(), attached.partition.usage()?))
        }
    };
    let (info, usage) = run_apart(work).await?;
    call.reply(&GetVolumeStatusReply {
        status: status(&info, usage),
        name: AfsName::new(info.name.into_bytes()).unwrap_or_default(),
        offline_message: AfsPath::new(info.offline_message).unwrap_or_default(),
        message_of_the_day: AfsPath::new(info.message_of_the_day).unwrap_or_default(),
    });
    Ok(())
}

/// A number of blocks on the wire, with 31 bits. Larger counts become the largest value, because
/// clients divide and subtract them.
fn blocks(count: u64) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn status(info: &VolumeInfo, usage: PartitionUsage) -> FetchVolumeStatus {
    FetchVolumeStatus {
        volume: info.id,
        parent: info.parent,
        online: info.online,
        in_service: info.in_service,
        blessed: info.blessed,
        needs_salvage: false,
        volume_type: i32::from(info.kind == VolumeKind::ReadWrite),
        min_quota: blocks(info.min_quota.into()),
        max_quota: blocks(info.max_quota.into()),
        blocks_in_use: blocks(info.blocks_used),
        partition_blocks_available: blocks(usage.free_blocks),
        partition_max_blocks: blocks(usage.total_blocks),
    }
}
