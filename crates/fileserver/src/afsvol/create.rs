//! CreateVolume (100), Clone (105), ReClone (120).

use std::sync::Arc;

use cellar_rpc::IncomingCall;
use cellar_volume::{SnapshotSpec, VolumeKind, VolumeSpec};
use cellar_wire::AbortCode;
use cellar_wire::afsvol::{
    BACKUP, Clone, CloneReply, CreateVolume, CreateVolumeReply, IT_CREATE, READONLY, READWRITE,
    ReClone, ReCloneReply, VT_DELETE_ON_SALVAGE, VT_OUT_OF_SERVICE, VolumeNameArgument,
};
use cellar_wire::ids::{PartitionId, ViceId, VolumeId};
use tracing::info;

use super::{Answered, code, on_disk, superuser};
use crate::audit;
use crate::server::Server;
use crate::volumes::Special;

/// Quota of a new volume until SetInfo says another, KiB.
const FIRST_QUOTA: u32 = 5000;
/// The longest name of a volume.
const NAME_MAX: usize = 31;

/// A new read-write volume, with an empty root directory. Until its transaction is told SetFlags(0)
/// it is out of service, and removed with it.
pub(super) async fn create_volume(server: &Arc<Server>, call: &mut IncomingCall) -> Answered {
    let CreateVolume {
        partition,
        name,
        volume_type,
        parent,
        volume,
    } = call.arguments().await?;
    superuser(server, call)?;
    audit::about("volume", volume);
    audit::about("partition", partition);
    let name = volume_name(&name)?;
    audit::about("name", &name);
    match volume_type {
        READWRITE => {}
        // A copy that only a restore could fill.
        READONLY | BACKUP => return Err(AbortCode::VOLSERBADOP),
        _ => return Err(AbortCode::EINVAL),
    }
    let number_of_partition = PartitionId::new(partition).ok_or(AbortCode::EINVAL)?;
    if volume.0 == 0 {
        return Err(AbortCode::E2BIG);
    }
    if parent.0 != 0 && parent != volume {
        return Err(AbortCode::VOLSERBADOP);
    }
    let server = server.clone();
    let trans = on_disk(move || create(&server, number_of_partition, volume, name)).await?;
    call.reply(&CreateVolumeReply { volume, trans });
    Ok(())
}

fn create(
    server: &Server,
    place: PartitionId,
    volume: VolumeId,
    name: String,
) -> Result<i32, AbortCode> {
    // What goes wrong in making a volume has always been EIO: callers try another id.
    let failed = |_| AbortCode::EIO;
    let partition = server.volumes.partition(place).ok_or(AbortCode::EIO)?;
    if server.volumes.find(volume).map_err(code)?.is_some() {
        return Err(AbortCode::EIO);
    }
    let now = server.now();
    let trans = server
        .transactions
        .begin(volume, place, IT_CREATE, now.0, "CreateVolume")?;
    server.volumes.set_special(volume, Some(Special::Secret));
    let spec = VolumeSpec {
        max_quota: FIRST_QUOTA,
        ..VolumeSpec::new(volume, name, ViceId(0), now)
    };
    let made = partition.create_volume(&spec).and_then(|made| {
        let made = made.wait()?;
        made.update_info(now, |info| {
            info.in_service = false;
            info.destroy_me = true;
        })?
        .wait()
    });
    if let Err(error) = made {
        info!(%volume, %error, "volume not created");
        // Takes what there is of it away.
        let _ended = server.finish_transaction(trans);
        return Err(failed(error));
    }
    server
        .transactions
        .set_flags(trans, (VT_DELETE_ON_SALVAGE | VT_OUT_OF_SERVICE) as u8);
    info!(%volume, partition = %place, "volume created");
    Ok(trans)
}

/// A name that a volume may have.
pub(super) fn volume_name(name: &VolumeNameArgument) -> Result<String, AbortCode> {
    let text = name.as_str().ok_or(AbortCode::VOLSERBADNAME)?;
    let allowed = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
    if text.is_empty() || text.len() > NAME_MAX || !text.bytes().all(allowed) {
        return Err(AbortCode::VOLSERBADNAME);
    }
    Ok(text.to_owned())
}

/// A read-only or backup clone beside its volume. Out of service until SetFlags(0).
pub(super) async fn clone_volume(server: &Arc<Server>, call: &mut IncomingCall) -> Answered {
    let Clone {
        trans,
        purge_volume,
        new_type,
        new_name,
        new_volume,
    } = call.arguments().await?;
    superuser(server, call)?;
    audit::about("clone", new_volume);
    let name = volume_name(&new_name)?;
    audit::about("name", &name);
    let kind = match new_type {
        READONLY => VolumeKind::ReadOnly,
        BACKUP => VolumeKind::Backup,
        _ => return Err(AbortCode::EINVAL),
    };
    if new_volume.0 == 0 {
        return Err(AbortCode::EINVAL);
    }
    let transaction = server
        .transactions
        .used(trans, server.now_secs(), "Clone")?;
    let pending = {
        let server = server.clone();
        on_disk(move || {
            let source = server.volume_in(&transaction)?;
            if purge_volume.0 != 0 && purge_volume != new_volume {
                let purged = source.partition.delete_volume(purge_volume).map_err(code)?;
                server.volumes.forget(purge_volume);
                purged.wait().map_err(code)?;
            }
            let now = server.now();
            let spec = SnapshotSpec::new(transaction.volume, new_volume, name, kind, now);
            let clone = source
                .partition
                .snapshot(&spec)
                .and_then(|made| made.wait());
            let made = clone.map_err(code)?.update_info(now, |info| {
                info.in_service = false;
                info.destroy_me = true;
            });
            made.and_then(|changed| changed.wait()).map_err(code)?;
            note_clone(&source, kind, new_volume, now).map_err(code)?;
            Ok(server.breaker.collect_volume(new_volume, now.0))
        })
        .await?
    };
    server.breaker.told(pending).await;
    call.reply(&CloneReply { new_volume });
    Ok(())
}

/// A clone is made anew in its place: same id and name, contents of now.
pub(super) async fn re_clone(server: &Arc<Server>, call: &mut IncomingCall) -> Answered {
    let ReClone { trans, clone } = call.arguments().await?;
    superuser(server, call)?;
    audit::about("clone", clone);
    let transaction = server
        .transactions
        .used(trans, server.now_secs(), "ReClone")?;
    let pending = {
        let server = server.clone();
        on_disk(move || {
            let source = server.volume_in(&transaction)?;
            let found = server.volumes.find(clone).map_err(code)?;
            let (place, old) = found.ok_or(AbortCode::VNOVOL)?;
            let old = old.volume.info();
            if place != transaction.partition {
                return Err(AbortCode::EXDEV);
            }
            if old.parent != transaction.volume || old.kind == VolumeKind::ReadWrite {
                return Err(AbortCode::EINVAL);
            }
            let now = server.now();
            let (name, kind) = (old.name.clone(), old.kind);
            let spec = SnapshotSpec::new(transaction.volume, clone, name, kind, now);
            let made = source
                .partition
                .snapshot(&spec)
                .and_then(|made| made.wait());
            let kept = made.and_then(|made| {
                made.update_info(now, |info| {
                    info.copied = old.copied;
                    info.in_service = old.in_service;
                    info.destroy_me = old.destroy_me;
                })?
                .wait()
            });
            kept.map_err(code)?;
            note_clone(&source, kind, clone, now).map_err(code)?;
            Ok(server.breaker.collect_volume(clone, now.0))
        })
        .await?
    };
    server.breaker.told(pending).await;
    call.reply(&ReCloneReply {});
    Ok(())
}

/// The volume remembers its newest clone.
fn note_clone(
    source: &crate::volumes::Attached,
    kind: VolumeKind,
    clone: VolumeId,
    now: cellar_wire::AfsTime,
) -> cellar_volume::Result<()> {
    let updated = source.volume.info().updated;
    let changed = source.volume.update_info(now, |info| {
        match kind {
            VolumeKind::Backup => {
                info.backup = clone;
                info.backed_up = now;
            }
            _ => info.clone = clone,
        }
        // Being cloned is no change of the contents.
        info.updated = updated;
    })?;
    changed.wait().map(|_| ())
}
