//! GetVolumeStatus (149): quota, usage and room, for `fs listquota`, `fs examine` and statfs(2).

use cellar_rpc::IncomingCall;
use cellar_volume::{PartitionUsage, VolumeInfo, VolumeKind};
use cellar_wire::AfsName;
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::{AfsPath, FetchVolumeStatus, GetVolumeStatus, GetVolumeStatusReply};
use cellar_wire::serve::Handle;

use super::FileService;
use super::common::run_apart;
use crate::abort_map::Refusal;
use crate::volumes::VolumeAccess;

impl Handle<GetVolumeStatus, IncomingCall> for FileService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: GetVolumeStatus,
    ) -> Result<GetVolumeStatusReply, Refusal> {
        let services = &self.services;
        let GetVolumeStatus { volume } = arguments;
        let _session = services.sessions.session(call).await?;
        let work = {
            let services = services.clone();
            move || {
                let attached = services.volumes.of(Fid::root(volume), VolumeAccess::Read)?;
                // A volume without root directory has no status.
                attached.volume.status(attached.volume.root())?;
                Ok((attached.volume.info(), attached.partition.usage()?))
            }
        };
        let (info, usage) = run_apart(work).await?;
        Ok(GetVolumeStatusReply {
            status: status(&info, usage),
            name: AfsName::new(info.name.into_bytes()).unwrap_or_default(),
            offline_message: AfsPath::new(info.offline_message).unwrap_or_default(),
            message_of_the_day: AfsPath::new(info.message_of_the_day).unwrap_or_default(),
        })
    }
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
