//! ListVolumes (116), XListVolumes (124), ListOneVolume (121), XListOneVolume (125).

use std::sync::Arc;

use cellar_rpc::IncomingCall;
use cellar_volume::VolumeInfo;
use cellar_wire::afsvol::{
    self, DESTROY_ME, ListOneVolume, ListOneVolumeReply, ListVolumes, ListVolumesReply,
    STATUS_BUSY, STATUS_OK, VolumeInfoX, VolumeName, XListOneVolume, XListOneVolumeReply,
    XListVolumes, XListVolumesReply,
};
use cellar_wire::ids::{PartitionId, VolumeId};
use cellar_wire::{AbortCode, List};

use super::transaction::kind_number;
use super::{Answered, code, on_disk};
use crate::server::Server;

/// Volumes asked of the store at a time.
const PAGE: usize = 4096;

pub(super) async fn list_volumes(server: &Arc<Server>, call: &mut IncomingCall) -> Answered {
    let ListVolumes { partition, flags } = call.arguments().await?;
    let entries = every(server, partition, move |info, busy| match flags {
        // Ids only.
        0 => afsvol::VolumeInfo {
            volume: info.id,
            ..afsvol::VolumeInfo::default()
        },
        _ => entry(info, busy),
    })
    .await?;
    call.reply(&ListVolumesReply {
        entries: List::from_iter_cut(entries),
    });
    Ok(())
}

pub(super) async fn x_list_volumes(server: &Arc<Server>, call: &mut IncomingCall) -> Answered {
    let XListVolumes { partition, flags } = call.arguments().await?;
    let entries = every(server, partition, move |info, busy| match flags {
        0 => VolumeInfoX {
            volume: info.id,
            ..VolumeInfoX::default()
        },
        _ => entry_x(info, busy),
    })
    .await?;
    call.reply(&XListVolumesReply {
        entries: List::from_iter_cut(entries),
    });
    Ok(())
}

pub(super) async fn list_one_volume(server: &Arc<Server>, call: &mut IncomingCall) -> Answered {
    let ListOneVolume { partition, volume } = call.arguments().await?;
    let (info, busy) = one(server, partition, volume).await?;
    call.reply(&ListOneVolumeReply {
        entries: List::from_iter_cut([entry(&info, busy)]),
    });
    Ok(())
}

pub(super) async fn x_list_one_volume(server: &Arc<Server>, call: &mut IncomingCall) -> Answered {
    let XListOneVolume { partition, volume } = call.arguments().await?;
    let (info, busy) = one(server, partition, volume).await?;
    call.reply(&XListOneVolumeReply {
        entries: List::from_iter_cut([entry_x(&info, busy)]),
    });
    Ok(())
}

async fn every<T, F>(server: &Arc<Server>, partition: i32, describe: F) -> Result<Vec<T>, AbortCode>
where
    T: Send + 'static,
    F: Fn(&VolumeInfo, bool) -> T + Send + 'static,
{
    let place = PartitionId::new(partition).ok_or(AbortCode::VOLSERILLEGAL_PARTITION)?;
    let partition = server.volumes.partition(place);
    let partition = partition.ok_or(AbortCode::VOLSERILLEGAL_PARTITION)?;
    let server = server.clone();
    on_disk(move || {
        let (mut entries, mut after) = (Vec::new(), None);
        loop {
            let page = partition.volumes(after, PAGE).map_err(code)?;
            entries.extend(
                page.iter()
                    .map(|info| describe(info, server.transactions.is_busy(info.id))),
            );
            match page.last() {
                Some(last) if page.len() == PAGE => after = Some(last.id),
                _ => return Ok(entries),
            }
        }
    })
    .await
}

async fn one(
    server: &Arc<Server>,
    partition: i32,
    volume: VolumeId,
) -> Result<(VolumeInfo, bool), AbortCode> {
    let place = PartitionId::new(partition).ok_or(AbortCode::VOLSERILLEGAL_PARTITION)?;
    let partition = server.volumes.partition(place);
    let partition = partition.ok_or(AbortCode::VOLSERILLEGAL_PARTITION)?;
    let busy = server.transactions.is_busy(volume);
    let info = on_disk(move || {
        let found = partition.volume(volume).map_err(code)?;
        Ok(found.ok_or(AbortCode::ENODEV)?.info())
    })
    .await?;
    Ok((info, busy))
}

fn status(busy: bool) -> i32 {
    if busy { STATUS_BUSY } else { STATUS_OK }
}

fn name(info: &VolumeInfo) -> VolumeName {
    VolumeName::new(info.name.as_bytes()).unwrap_or_default()
}

/// Whether clients can use it: what `vos` shows as "On-line".
fn in_use(info: &VolumeInfo) -> u8 {
    u8::from(info.online && info.in_service)
}

/// Numbers on the wire have 31 bits; more is said as the most they can.
fn number(count: u64) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn entry(info: &VolumeInfo, busy: bool) -> afsvol::VolumeInfo {
    afsvol::VolumeInfo {
        name: name(info),
        volume: info.id,
        volume_type: kind_number(info.kind),
        backup: info.backup,
        parent: info.parent,
        clone: info.clone,
        status: status(busy),
        copy_date: info.copied,
        in_use: in_use(info),
        needs_salvaged: 0,
        destroy_me: if info.destroy_me { DESTROY_ME } else { 0 },
        creation_date: info.created,
        access_date: info.accessed,
        update_date: info.updated,
        backup_date: info.backed_up,
        day_use: number(info.day_use.into()),
        file_count: number(info.files),
        max_quota: number(info.max_quota.into()),
        size: number(info.blocks_used),
        flags: 0,
        min_quota: number(info.min_quota.into()),
        week_use: number(info.week_use.iter().map(|&day| u64::from(day)).sum()),
        update_counter: info.update_counter as i32,
        spare3: 0,
    }
}

fn entry_x(info: &VolumeInfo, busy: bool) -> VolumeInfoX {
    VolumeInfoX {
        name: name(info),
        volume: info.id,
        volume_type: kind_number(info.kind),
        backup: info.backup,
        parent: info.parent,
        clone: info.clone,
        status: status(busy),
        copy_date: info.copied,
        in_use: in_use(info),
        creation_date: info.created,
        access_date: info.accessed,
        update_date: info.updated,
        backup_date: info.backed_up,
        day_use: number(info.day_use.into()),
        file_count: number(info.files),
        max_quota: number(info.max_quota.into()),
        size: number(info.blocks_used),
        ..VolumeInfoX::default()
    }
}
