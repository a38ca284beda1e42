//! CreateVolume (100), Clone (105), ReClone (120).

use std::sync::Arc;

use cellar_rpc::IncomingCall;
use cellar_volume::{Error, SnapshotSpec, VolumeInfo, VolumeKind, VolumeSpec};
use cellar_wire::AbortCode;
use cellar_wire::afsvol::{
    Clone, CloneReply, CreateVolume, CreateVolumeReply, ReClone, ReCloneReply, VolumeNameArgument,
};
use cellar_wire::ids::{AfsTime, PartitionId, ViceId, VolumeId};
use cellar_wire::serve::Handle;
use tracing::info;

use super::VolumeService;
use super::copy::copy;
use super::status::kind_of;
use super::transaction::{Beginning, InUse};
use super::{code, on_disk, superuser};
use crate::abort_map::create_code;
use crate::audit;
use crate::services::VolumeServices;
use crate::volumes::Volumes;
use crate::volumes::{Attached, Special};

/// Quota of a new volume before SetInfo changes it, in KiB.
const FIRST_QUOTA: u32 = 5000;
/// The longest name of a volume.
const NAME_MAX: usize = 31;

impl Handle<CreateVolume, IncomingCall> for VolumeService {
    /// Creates a volume: read-write with an empty root directory, or one that a restore will fill.
    /// Before its transaction receives SetFlags(0), it is out of service. It is removed if the
    /// transaction is abandoned.
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: CreateVolume,
    ) -> Result<CreateVolumeReply, AbortCode> {
        let services = &self.services;
        let CreateVolume {
            partition,
            name,
            volume_type,
            parent,
            volume,
        } = arguments;
        superuser(&services.sessions, call)?;
        audit::add_detail("volume", volume);
        audit::add_detail("partition", partition);
        let name = volume_name(&name)?;
        audit::add_detail("name", &name);
        let partition = PartitionId::new(partition).ok_or(AbortCode::EINVAL)?;
        let kind = kind_of(volume_type).ok_or(AbortCode::EINVAL)?;
        audit::add_detail("type", volume_type);
        if volume.0 == 0 {
            return Err(AbortCode::E2BIG);
        }
        let wanted = NewVolume {
            volume,
            name,
            kind,
            // Without a root directory: the restore brings one.
            root: !(parent == volume && kind == VolumeKind::ReadWrite),
            parent: if parent.0 == 0 { volume } else { parent },
        };
        let services = services.clone();
        let trans = on_disk(move || create(&services, partition, wanted)).await?;
        audit::add_detail("transaction", trans);
        Ok(CreateVolumeReply { volume, trans })
    }
}

/// The parameters of a new volume.
struct NewVolume {
    volume: VolumeId,
    name: String,
    kind: VolumeKind,
    parent: VolumeId,
    root: bool,
}

fn create(
    services: &Arc<VolumeServices>,
    place: PartitionId,
    wanted: NewVolume,
) -> Result<i32, AbortCode> {
    let (volume, name) = (wanted.volume, wanted.name.clone());
    let now = services.now();
    let begun = InUse::begin(
        services,
        Beginning {
            volume,
            partition: place,
            attach_flags: 0,
            now: now.0,
            procedure: "CreateVolume",
        },
    )?;
    let special = Some(Special::Secret);
    services.volumes.set_special(place, volume, special);
    match make(services, place, wanted, now) {
        Ok(()) => {
            services.volumes.clear_moved(volume);
            info!(%volume, name, partition = %place, "volume created");
            Ok(begun.number())
        }
        Err(error) => {
            info!(%volume, name, partition = %place, %error, "volume not created");
            begun.end();
            Err(create_code(&error))
        }
    }
}

/// Checks that no other partition of this server has a volume of the id. Only a read-write volume
/// may be on two partitions, while it moves. Of two clones or read-only volumes, the second would
/// hide the first.
pub(super) fn check_elsewhere(
    volumes: &Volumes,
    place: PartitionId,
    volume: VolumeId,
) -> cellar_volume::Result<()> {
    for (other, partition) in volumes.partitions() {
        if other != place && partition.volume(volume)?.is_some() {
            return Err(Error::VolumeExists(volume));
        }
    }
    Ok(())
}

fn make(
    services: &VolumeServices,
    place: PartitionId,
    wanted: NewVolume,
    now: AfsTime,
) -> cellar_volume::Result<()> {
    // For a move between partitions of this server, the caller creates a volume that a restore will
    // fill.
    if wanted.root || wanted.parent != wanted.volume {
        check_elsewhere(&services.volumes, place, wanted.volume)?;
    }
    let partition = services.volumes.partition(place);
    let partition = partition.ok_or(Error::Invalid("there is no such partition"))?;
    let spec = VolumeSpec {
        kind: wanted.kind,
        parent: wanted.parent,
        root: wanted.root,
        in_service: false,
        destroy_me: true,
        max_quota: FIRST_QUOTA,
        ..VolumeSpec::new(wanted.volume, wanted.name, ViceId(0), now)
    };
    partition.create_volume(&spec)?.wait().map(drop)
}

/// Checks the name of a volume.
pub(super) fn volume_name(name: &VolumeNameArgument) -> Result<String, AbortCode> {
    checked_name(name.as_bytes())
}

/// As [`volume_name`], for bytes.
pub(super) fn checked_name(name: &[u8]) -> Result<String, AbortCode> {
    let text = std::str::from_utf8(name).map_err(|_| AbortCode::VOLSERBADNAME)?;
    let allowed = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
    if text.is_empty() || text.len() > NAME_MAX || !text.bytes().all(allowed) {
        return Err(AbortCode::VOLSERBADNAME);
    }
    Ok(text.to_owned())
}

impl Handle<Clone, IncomingCall> for VolumeService {
    /// Creates a clone beside its volume. Until SetFlags(0), it is out of service and marked to be
    /// destroyed.
    async fn handle(&self, call: &IncomingCall, arguments: Clone) -> Result<CloneReply, AbortCode> {
        let services = &self.services;
        let Clone {
            trans,
            purge_volume,
            new_type,
            new_name,
            new_volume,
        } = arguments;
        superuser(&services.sessions, call)?;
        audit::add_detail("clone", new_volume);
        let name = volume_name(&new_name)?;
        audit::add_detail("name", &name);
        let kind = kind_of(new_type).ok_or(AbortCode::EINVAL)?;
        if new_volume.0 == 0 {
            return Err(AbortCode::EINVAL);
        }
        let source = InUse::enter(services, trans, "Clone")?;
        let pending = {
            let services = services.clone();
            on_disk(move || {
                let reserved = reserve(&services, &source, new_volume, "Clone")?;
                let outcome = clone(&services, &source, purge_volume, new_volume, name, kind);
                reserved.end();
                outcome?;
                services.volumes.forget(new_volume);
                Ok(services
                    .callbacks
                    .breaker
                    .collect_volume(new_volume, services.now_secs()))
            })
            .await?
        };
        services.callbacks.breaker.wait_for_delivery(pending).await;
        Ok(CloneReply { new_volume })
    }
}

/// Reserves the id of a clone while the clone is made.
fn reserve(
    services: &Arc<VolumeServices>,
    source: &InUse,
    volume: VolumeId,
    procedure: &'static str,
) -> Result<InUse, AbortCode> {
    InUse::begin(
        services,
        Beginning {
            volume,
            partition: source.partition(),
            attach_flags: 0,
            now: services.now_secs(),
            procedure,
        },
    )
}

/// Checks that a source may be cloned: it must be in service, and not marked to be destroyed.
fn cloneable(source: &InUse) -> Result<(Attached, VolumeInfo), AbortCode> {
    let attached = source.volume()?;
    let info = attached.volume.info();
    if info.destroy_me || !info.in_service {
        return Err(AbortCode::VOFFLINE);
    }
    Ok((attached, info))
}

fn clone(
    services: &Arc<VolumeServices>,
    source: &InUse,
    purged: VolumeId,
    new: VolumeId,
    name: String,
    kind: VolumeKind,
) -> Result<(), AbortCode> {
    let (attached, info) = cloneable(source)?;
    let partition = &attached.partition;
    if purged.0 != 0 {
        let old = partition.volume(purged).map_err(code)?;
        let old = old.ok_or(AbortCode::VNOVOL)?.info();
        if old.kind != VolumeKind::ReadOnly {
            return Err(AbortCode::EINVAL);
        }
        if old.parent != info.parent {
            return Err(AbortCode::EXDEV);
        }
        if purged != new {
            let purge = partition.delete_volume(purged).map_err(code)?;
            services.volumes.forget(purged);
            purge.wait().map_err(code)?;
        }
    }
    if purged != new {
        if partition.volume(new).map_err(code)?.is_some() {
            return Err(AbortCode::VVOLEXISTS);
        }
        check_elsewhere(&services.volumes, source.partition(), new).map_err(
            |error| match error {
                Error::VolumeExists(_) => AbortCode::EXDEV,
                error => code(error),
            },
        )?;
    }
    if kind == VolumeKind::ReadWrite {
        return copy(services, source, partition, new, &name);
    }
    let spec = SnapshotSpec {
        in_service: false,
        destroy_me: true,
        ..SnapshotSpec::new(source.id(), new, name, kind, services.now())
    };
    let made = partition.snapshot(&spec).and_then(|made| made.wait());
    made.map(drop).map_err(code)
}

impl Handle<ReClone, IncomingCall> for VolumeService {
    /// Recreates a clone in its place, with the same id and type, and the present contents.
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: ReClone,
    ) -> Result<ReCloneReply, AbortCode> {
        let services = &self.services;
        let ReClone { trans, clone } = arguments;
        superuser(&services.sessions, call)?;
        audit::add_detail("clone", clone);
        let source = InUse::enter(services, trans, "ReClone")?;
        let pending = {
            let services = services.clone();
            on_disk(move || {
                let reserved = reserve(&services, &source, clone, "ReClone")?;
                let outcome = replace_clone(&services, &source, clone);
                reserved.end();
                outcome?;
                services.volumes.forget(clone);
                Ok(services
                    .callbacks
                    .breaker
                    .collect_volume(clone, services.now_secs()))
            })
            .await?
        };
        services.callbacks.breaker.wait_for_delivery(pending).await;
        Ok(ReCloneReply {})
    }
}

fn replace_clone(
    services: &VolumeServices,
    source: &InUse,
    clone: VolumeId,
) -> Result<(), AbortCode> {
    let (attached, info) = cloneable(source)?;
    let Some(old) = attached.partition.volume(clone).map_err(code)? else {
        let elsewhere = services.volumes.find(clone).map_err(code)?.is_some();
        return Err(if elsewhere {
            AbortCode::EXDEV
        } else {
            AbortCode::VNOVOL
        });
    };
    let old = old.info();
    if old.parent != info.parent {
        return Err(AbortCode::EXDEV);
    }
    if clone == source.id() || old.kind == VolumeKind::ReadWrite {
        return Err(AbortCode::EINVAL);
    }
    // The clone existed before; it is on line again at once.
    let name = name_of_clone(&info.name, old.kind);
    let spec = SnapshotSpec::new(source.id(), clone, name, old.kind, services.now());
    let made = attached.partition.snapshot(&spec);
    made.and_then(|made| made.wait()).map(drop).map_err(code)
}

/// The name of a clone, derived from that of its volume.
fn name_of_clone(name: &str, kind: VolumeKind) -> String {
    let suffix = match kind {
        VolumeKind::Backup => ".backup",
        _ => ".readonly",
    };
    let plain = name
        .strip_suffix(".readonly")
        .or_else(|| name.strip_suffix(".backup"))
        .unwrap_or(name);
    let mut name = format!("{plain}{suffix}");
    name.truncate(NAME_MAX);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_clones() {
        let long = "a".repeat(31);
        for (name, kind, clone) in [
            ("home", VolumeKind::ReadOnly, "home.readonly"),
            ("home", VolumeKind::Backup, "home.backup"),
            ("home.backup", VolumeKind::ReadOnly, "home.readonly"),
            (&long, VolumeKind::Backup, &long),
        ] {
            assert_eq!(name_of_clone(name, kind), clone);
        }
    }
}
