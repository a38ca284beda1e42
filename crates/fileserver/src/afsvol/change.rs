//! DeleteVolume (101), NukeVolume (122), SetFlags (106), SetInfo (126), SetDate (123), SetIdsTypes
//! (117), ConvertROtoRWvolume (65536), SetForwarding (111), SignalRestore (114).

use std::net::Ipv4Addr;
use std::sync::Arc;

use cellar_rpc::IncomingCall;
use cellar_volume::{Error, IdsSpec, VolumeInfo};
use cellar_wire::afsvol::{
    ConvertROtoRWvolume, ConvertROtoRWvolumeReply, DeleteVolume, DeleteVolumeReply, NukeVolume,
    NukeVolumeReply, SetDate, SetDateReply, SetFlags, SetFlagsReply, SetForwarding,
    SetForwardingReply, SetIdsTypes, SetIdsTypesReply, SetInfo, SetInfoReply, SignalRestore,
    SignalRestoreReply, VT_DELETE_ON_SALVAGE, VT_OUT_OF_SERVICE,
};
use cellar_wire::ids::{AfsTime, PartitionId};
use cellar_wire::serve::Handle;
use cellar_wire::{AbortCode, ids::VolumeId};
use tracing::info;

use super::VolumeService;
use super::create::{check_elsewhere, volume_name};
use super::list::partition_of;
use super::status::kind_of;
use super::transaction::{Beginning, InUse, special_of};
use super::{code, in_memory, on_disk, superuser};
use crate::audit;
use crate::callback::Pending;
use crate::services::VolumeServices;
use crate::volumes::Special;

impl Handle<DeleteVolume, IncomingCall> for VolumeService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: DeleteVolume,
    ) -> Result<DeleteVolumeReply, AbortCode> {
        let services = &self.services;
        let DeleteVolume { trans } = arguments;
        superuser(&services.sessions, call)?;
        let used = InUse::enter(services, trans, "DeleteVolume")?;
        delete(services, used.partition(), used.id(), Some(used)).await?;
        Ok(DeleteVolumeReply {})
    }
}

impl Handle<NukeVolume, IncomingCall> for VolumeService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: NukeVolume,
    ) -> Result<NukeVolumeReply, AbortCode> {
        let services = &self.services;
        let NukeVolume { partition, volume } = arguments;
        superuser(&services.sessions, call)?;
        audit::add_detail("volume", volume);
        audit::add_detail("partition", partition);
        let (place, _) = partition_of(&services.volumes, partition)?;
        if services.transactions.is_busy(place, volume) {
            return Err(AbortCode::VOLSERVOLBUSY);
        }
        delete(services, place, volume, None).await?;
        Ok(NukeVolumeReply {})
    }
}

/// Deletes a volume, and breaks all promises for it. If this happens in a transaction, the
/// transaction notes the deletion.
async fn delete(
    services: &Arc<VolumeServices>,
    place: PartitionId,
    volume: VolumeId,
    used: Option<InUse>,
) -> Result<(), AbortCode> {
    let (pending, durable, name) = {
        let (services, used) = (services.clone(), used.clone());
        on_disk(move || {
            let found = services.volumes.find_on(place, volume).map_err(code)?;
            let attached = found.ok_or(AbortCode::VNOVOL)?;
            let name = attached.volume.info().name;
            let deleted = attached.partition.delete_volume(volume).map_err(code)?;
            if let Some(used) = used {
                used.set_deleted();
            }
            services.volumes.forget(volume);
            // Locks and promises are by id. Another copy on this server does not need them.
            services.callbacks.locks.forget_volume(volume);
            let pending = services
                .callbacks
                .breaker
                .collect_volume(volume, services.now_secs());
            Ok((pending, deleted.durable, name))
        })
        .await?
    };
    durable.await.map_err(code)?;
    info!(%volume, name, partition = %place, "volume deleted");
    services.callbacks.breaker.wait_for_delivery(pending).await;
    Ok(())
}

impl Handle<SetFlags, IncomingCall> for VolumeService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: SetFlags,
    ) -> Result<SetFlagsReply, AbortCode> {
        let services = &self.services;
        let SetFlags { trans, flags } = arguments;
        superuser(&services.sessions, call)?;
        audit::add_detail("flags", format_args!("{flags:#x}"));
        let used = InUse::enter(services, trans, "SetFlags")?;
        // As for the flags of TransCreate, the strongest one counts.
        if special_of(used.attach_flags()) == Some(Special::ReadOnly) {
            return Err(AbortCode::EROFS);
        }
        let destroy = flags & VT_DELETE_ON_SALVAGE != 0;
        let in_service = flags & VT_OUT_OF_SERVICE == 0;
        edit(services, used.clone(), move |info| {
            info.destroy_me = destroy;
            // A volume that is to be destroyed is never shown to clients.
            info.in_service = in_service && !destroy;
        })
        .await?;
        if in_service && !destroy {
            services.volumes.clear_moved(used.id());
        }
        services.volumes.forget(used.id());
        used.set_flags(flags as u8);
        Ok(SetFlagsReply {})
    }
}

impl Handle<SetInfo, IncomingCall> for VolumeService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: SetInfo,
    ) -> Result<SetInfoReply, AbortCode> {
        let services = &self.services;
        let SetInfo { trans, info: new } = arguments;
        superuser(&services.sessions, call)?;
        // A field of -1 leaves the value unchanged.
        let word = |word: i32| (word != -1).then_some(word as u32);
        let date = |date: AfsTime| (date.0 != u32::MAX).then_some(date);
        if new.max_quota < -1 {
            return Err(AbortCode::EINVAL);
        }
        let used = InUse::enter(services, trans, "SetStatus")?;
        edit(services, used, move |info| {
            info.max_quota = word(new.max_quota).unwrap_or(info.max_quota);
            info.day_use = word(new.day_use).unwrap_or(info.day_use);
            info.created = date(new.creation_date).unwrap_or(info.created);
            info.updated = date(new.update_date).unwrap_or(info.updated);
            info.update_counter = word(new.update_counter).unwrap_or(info.update_counter);
        })
        .await?;
        Ok(SetInfoReply {})
    }
}

impl Handle<SetDate, IncomingCall> for VolumeService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: SetDate,
    ) -> Result<SetDateReply, AbortCode> {
        let services = &self.services;
        let SetDate { trans, new_date } = arguments;
        superuser(&services.sessions, call)?;
        let used = InUse::enter(services, trans, "SetDate")?;
        edit(services, used, move |info| {
            info.created = AfsTime(new_date as u32)
        })
        .await?;
        Ok(SetDateReply {})
    }
}

impl Handle<SetIdsTypes, IncomingCall> for VolumeService {
    /// Sets name, type and related ids of a volume.
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: SetIdsTypes,
    ) -> Result<SetIdsTypesReply, AbortCode> {
        let services = &self.services;
        let SetIdsTypes {
            trans,
            name,
            volume_type,
            parent,
            clone,
            backup,
        } = arguments;
        superuser(&services.sessions, call)?;
        let name = volume_name(&name)?;
        audit::add_detail("name", &name);
        let kind = kind_of(volume_type).ok_or(AbortCode::EINVAL)?;
        let used = InUse::enter(services, trans, "SetIdsTypes")?;
        let pending = {
            let services = services.clone();
            on_disk(move || {
                let attached = used.volume()?;
                let before = attached.volume.info();
                let ids = IdsSpec {
                    name,
                    kind,
                    parent,
                    clone,
                    backup,
                };
                let changed = attached.partition.set_ids(used.id(), &ids);
                changed.and_then(|changed| changed.wait()).map_err(code)?;
                if before.kind == kind {
                    return Ok(Pending::default());
                }
                // The access of clients to the volume has changed.
                services.volumes.forget(used.id());
                Ok(services
                    .callbacks
                    .breaker
                    .collect_volume(used.id(), services.now_secs()))
            })
            .await?
        };
        services.callbacks.breaker.wait_for_delivery(pending).await;
        Ok(SetIdsTypesReply {})
    }
}

impl Handle<ConvertROtoRWvolume, IncomingCall> for VolumeService {
    /// Converts a read-only volume to the read-write volume of its group, in place. EXDEV if this
    /// server has the read-write volume, on any partition.
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: ConvertROtoRWvolume,
    ) -> Result<ConvertROtoRWvolumeReply, AbortCode> {
        let services = &self.services;
        let ConvertROtoRWvolume { partition, volume } = arguments;
        superuser(&services.sessions, call)?;
        audit::add_detail("volume", volume);
        audit::add_detail("partition", partition);
        let (place, partition) = partition_of(&services.volumes, partition)?;
        let pending = {
            let services = services.clone();
            on_disk(move || {
                let found = partition.volume(volume).map_err(code)?;
                let read_write = found.ok_or(AbortCode::ENODEV)?.info().parent;
                let used = InUse::begin(
                    &services,
                    Beginning {
                        volume,
                        partition: place,
                        attach_flags: 0,
                        now: services.now_secs(),
                        procedure: "ConvertROtoRW",
                    },
                )?;
                let converted =
                    check_elsewhere(&services.volumes, place, read_write).and_then(|()| {
                        partition
                            .convert_to_rw(volume, services.objects.version_now())?
                            .wait()
                    });
                used.end();
                let converted = converted.map_err(|error| {
                    info!(%volume, partition = %place, %error, "volume not converted");
                    match error {
                        Error::VolumeExists(_) => AbortCode::EXDEV,
                        _ => AbortCode::VOLSERFAILEDOP,
                    }
                })?;
                let name = converted.info().name;
                info!(%volume, into = %converted.id(), name, partition = %place, "volume converted");
                services.volumes.forget(volume);
                services.volumes.forget(converted.id());
                services.volumes.clear_moved(converted.id());
                Ok(services
                    .callbacks
                    .breaker
                    .collect_volume(volume, services.now_secs()))
            })
            .await?
        };
        services.callbacks.breaker.wait_for_delivery(pending).await;
        Ok(ConvertROtoRWvolumeReply {})
    }
}

impl Handle<SetForwarding, IncomingCall> for VolumeService {
    /// Clients that ask for the volume, which is no longer here, learn from now on that it moved.
    /// The note lasts until the next restart.
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: SetForwarding,
    ) -> Result<SetForwardingReply, AbortCode> {
        let services = &self.services;
        let SetForwarding { trans, new_site } = arguments;
        superuser(&services.sessions, call)?;
        // The sender's number is in network order in its memory, and all senders are little-endian.
        // Source: observed of OpenAFS 1.8's vos.
        let site = Ipv4Addr::from(new_site.swap_bytes());
        audit::add_detail("server", site);
        let used = InUse::enter(services, trans, "SetForwarding")?;
        services.volumes.set_moved(used.id(), site.into());
        Ok(SetForwardingReply {})
    }
}

impl Handle<SignalRestore, IncomingCall> for VolumeService {
    /// Does nothing, as in every volume server.
    async fn handle(
        &self,
        call: &IncomingCall,
        _: SignalRestore,
    ) -> Result<SignalRestoreReply, AbortCode> {
        let services = &self.services;

        superuser(&services.sessions, call)?;
        Ok(SignalRestoreReply {})
    }
}

/// Changes the header of a transaction's volume, durably. The date of the last change of the
/// contents stays, unless the change sets it.
async fn edit(
    services: &Arc<VolumeServices>,
    used: InUse,
    change: impl Fn(&mut VolumeInfo) + Send + 'static,
) -> Result<(), AbortCode> {
    let now = services.now();
    let changed = in_memory(move || {
        let Some(attached) = used.find()? else {
            return Ok(None);
        };
        let changed = attached.volume.update_info(now, &change)?;
        Ok(Some(changed.durable))
    });
    let durable = changed.await?.ok_or(AbortCode::VNOVOL)?;
    durable.await.map_err(code)
}
