//! DeleteVolume (101), NukeVolume (122), SetFlags (106), SetInfo (126), SetDate (123),
//! SetIdsTypes (117), SetForwarding (111), SignalRestore (114).

use std::sync::Arc;

use cellar_rpc::IncomingCall;
use cellar_volume::VolumeInfo;
use cellar_wire::afsvol::{
    DeleteVolume, DeleteVolumeReply, NukeVolume, NukeVolumeReply, SetDate, SetDateReply, SetFlags,
    SetFlagsReply, SetForwarding, SetForwardingReply, SetIdsTypes, SetIdsTypesReply, SetInfo,
    SetInfoReply, SignalRestore, SignalRestoreReply, VT_DELETE_ON_SALVAGE, VT_OUT_OF_SERVICE,
};
use cellar_wire::ids::{AfsTime, PartitionId};
use cellar_wire::{AbortCode, ids::VolumeId};
use tracing::info;

use super::create::volume_name;
use super::transaction::kind_number;
use super::{Answered, code, on_disk, superuser};
use crate::audit;
use crate::server::Server;

pub(super) async fn delete_volume(server: &Arc<Server>, call: &mut IncomingCall) -> Answered {
    let DeleteVolume { trans } = call.arguments().await?;
    superuser(server, call)?;
    let transaction = server
        .transactions
        .used(trans, server.now_secs(), "DeleteVolume")?;
    delete(server, transaction.volume, Some(transaction.partition)).await?;
    server.transactions.set_deleted(trans);
    call.reply(&DeleteVolumeReply {});
    Ok(())
}

pub(super) async fn nuke_volume(server: &Arc<Server>, call: &mut IncomingCall) -> Answered {
    let NukeVolume { partition, volume } = call.arguments().await?;
    superuser(server, call)?;
    audit::about("volume", volume);
    audit::about("partition", partition);
    let place = PartitionId::new(partition).ok_or(AbortCode::VOLSERILLEGAL_PARTITION)?;
    if server.volumes.partition(place).is_none() {
        return Err(AbortCode::VOLSERILLEGAL_PARTITION);
    }
    if server.transactions.is_busy(volume) {
        return Err(AbortCode::VOLSERVOLBUSY);
    }
    delete(server, volume, Some(place)).await?;
    call.reply(&NukeVolumeReply {});
    Ok(())
}

/// Deletes a volume, and tells everybody who was promised anything in it.
async fn delete(
    server: &Arc<Server>,
    volume: VolumeId,
    expected: Option<PartitionId>,
) -> Result<(), AbortCode> {
    let pending = {
        let server = server.clone();
        on_disk(move || {
            let found = server.volumes.find(volume).map_err(code)?;
            let (place, attached) = found.ok_or(AbortCode::VNOVOL)?;
            if expected.is_some_and(|expected| expected != place) {
                return Err(AbortCode::VNOVOL);
            }
            let deleted = attached.partition.delete_volume(volume).map_err(code)?;
            server.volumes.forget(volume);
            server.locks.forget_volume(volume);
            let pending = server.breaker.collect_volume(volume, server.now_secs());
            deleted.wait().map_err(code)?;
            info!(%volume, partition = %place, "volume deleted");
            Ok(pending)
        })
        .await?
    };
    server.breaker.told(pending).await;
    Ok(())
}

pub(super) async fn set_flags(server: &Arc<Server>, call: &mut IncomingCall) -> Answered {
    let SetFlags { trans, flags } = call.arguments().await?;
    superuser(server, call)?;
    audit::about("flags", format_args!("{flags:#x}"));
    edit(server, trans, "SetFlags", move |info| {
        info.destroy_me = flags & VT_DELETE_ON_SALVAGE != 0;
        info.in_service = flags & VT_OUT_OF_SERVICE == 0;
    })
    .await?;
    server.transactions.set_flags(trans, flags as u8);
    call.reply(&SetFlagsReply {});
    Ok(())
}

pub(super) async fn set_info(server: &Arc<Server>, call: &mut IncomingCall) -> Answered {
    let SetInfo { trans, info: new } = call.arguments().await?;
    superuser(server, call)?;
    // A field of -1 stays as it is.
    let word = |word: i32| (word != -1).then_some(word as u32);
    let date = |date: AfsTime| (date.0 != u32::MAX).then_some(date);
    if new.max_quota < -1 {
        return Err(AbortCode::EINVAL);
    }
    edit(server, trans, "SetInfo", move |info| {
        info.max_quota = word(new.max_quota).unwrap_or(info.max_quota);
        info.day_use = word(new.day_use).unwrap_or(info.day_use);
        info.created = date(new.creation_date).unwrap_or(info.created);
        info.updated = date(new.update_date).unwrap_or(info.updated);
        info.update_counter = word(new.update_counter).unwrap_or(info.update_counter);
    })
    .await?;
    call.reply(&SetInfoReply {});
    Ok(())
}

pub(super) async fn set_date(server: &Arc<Server>, call: &mut IncomingCall) -> Answered {
    let SetDate { trans, new_date } = call.arguments().await?;
    superuser(server, call)?;
    edit(server, trans, "SetDate", move |info| {
        info.created = AfsTime(new_date as u32)
    })
    .await?;
    call.reply(&SetDateReply {});
    Ok(())
}

/// Name and related ids of a volume. Its type and group cannot change here: they are how its
/// contents are kept.
pub(super) async fn set_ids_types(server: &Arc<Server>, call: &mut IncomingCall) -> Answered {
    let SetIdsTypes {
        trans,
        name,
        volume_type,
        parent,
        clone,
        backup,
    } = call.arguments().await?;
    superuser(server, call)?;
    let name = volume_name(&name)?;
    audit::about("name", &name);
    if !(0..=2).contains(&volume_type) {
        return Err(AbortCode::EINVAL);
    }
    let transaction = server
        .transactions
        .used(trans, server.now_secs(), "SetIdsTypes")?;
    {
        let server = server.clone();
        on_disk(move || {
            let info = server.volume_in(&transaction)?.volume.info();
            if kind_number(info.kind) != volume_type || info.parent != parent {
                return Err(AbortCode::VOLSERBADOP);
            }
            Ok(())
        })
        .await?;
    }
    edit(server, trans, "SetIdsTypes", move |info| {
        info.name.clone_from(&name);
        info.clone = clone;
        info.backup = backup;
    })
    .await?;
    call.reply(&SetIdsTypesReply {});
    Ok(())
}

/// From now on clients that ask for the volume here, where it is no more, learn that it moved,
/// until the next restart.
pub(super) async fn set_forwarding(server: &Arc<Server>, call: &mut IncomingCall) -> Answered {
    let SetForwarding { trans, new_site } = call.arguments().await?;
    superuser(server, call)?;
    audit::about("server", std::net::Ipv4Addr::from(new_site));
    let transaction = server
        .transactions
        .used(trans, server.now_secs(), "SetForwarding")?;
    server.volumes.set_moved(transaction.volume, new_site);
    call.reply(&SetForwardingReply {});
    Ok(())
}

/// Does nothing, as in every volume server.
pub(super) async fn signal_restore(server: &Arc<Server>, call: &mut IncomingCall) -> Answered {
    let SignalRestore { .. } = call.arguments().await?;
    superuser(server, call)?;
    call.reply(&SignalRestoreReply {});
    Ok(())
}

/// Changes the header of a transaction's volume, durably. The date of the last change of the
/// contents stays, unless it is what is set.
async fn edit(
    server: &Arc<Server>,
    number: i32,
    procedure: &'static str,
    change: impl FnOnce(&mut VolumeInfo) + Send + 'static,
) -> Result<(), AbortCode> {
    let transaction = server
        .transactions
        .used(number, server.now_secs(), procedure)?;
    let server = server.clone();
    on_disk(move || {
        let attached = server.volume_in(&transaction)?;
        let changed = attached
            .volume
            .update_info(server.now(), change)
            .map_err(code)?;
        changed.wait().map(|_| ()).map_err(code)
    })
    .await
}
