//! StoreStatus (135): mode, owner, group and time of something.

use std::sync::Arc;

use cellar_rpc::IncomingCall;
use cellar_volume::{Changed, FileType, SetStatus, VnodeStatus};
use cellar_wire::rxafs::{AfsStoreStatus, StoreStatus, StoreStatusReply};

use super::Answered;
use super::common::{Touched, change, look};
use crate::abort_map::Refusal;
use crate::access::Identity;
use crate::server::Server;
use crate::status::vol_sync;
use crate::volumes::Want;

/// Mode bits that callers other than administrators may set.
const ORDINARY_MODE: u32 = 0o777;
const MODE: u32 = 0o7777;

pub(super) async fn store_status(server: &Arc<Server>, call: &mut IncomingCall) -> Answered {
    let StoreStatus { fid, in_status } = call.arguments().await.map_err(Refusal::Call)?;
    let session = server.session(call).await?;
    let work = {
        let (server, session) = (server.clone(), session.clone());
        move || {
            let attached = server.volume_of(fid, Want::Change)?;
            let (status, _, access) = look(&session, &attached, fid)?;
            let identity = session.identity();
            let set = allowed_attributes(identity, &status, &in_status)?;
            if !identity.may_store_status(&status, access.caller) && !identity.administrator {
                return Err(Refusal::NoRight);
            }
            if status.kind == FileType::Symlink && in_status.unix_mode.is_some() {
                return Err(Refusal::Invalid);
            }
            let Changed { outcome, durable } =
                attached.volume.set_status(fid, &set, session.context())?;
            let outcome = (outcome, access, vol_sync(&attached.volume));
            Ok((Changed { outcome, durable }, Touched::changed([fid])))
        }
    };
    let (status, access, sync) = change(server, &session, work).await?;
    call.reply(&StoreStatusReply {
        status: server.show(&session, &status, access),
        sync,
    });
    Ok(())
}

/// What of the attributes a caller may set; others than administrators change no owner, no group
/// and no set-id bits.
pub(super) fn allowed_attributes(
    identity: &Identity,
    status: &VnodeStatus,
    asked: &AfsStoreStatus,
) -> Result<SetStatus, Refusal> {
    // A client that sends what is so already asks for no change.
    let owner = asked.owner.filter(|&owner| owner != status.owner);
    let group = asked.group.filter(|&group| group != status.group);
    if !identity.administrator && (owner.is_some() || group.is_some()) {
        return Err(Refusal::NotAdministrator);
    }
    Ok(SetStatus {
        mode: allowed_mode(identity, asked)?,
        owner,
        group,
        client_time: asked.client_mod_time,
    })
}

/// The mode that a caller may set.
pub(super) fn allowed_mode(
    identity: &Identity,
    asked: &AfsStoreStatus,
) -> Result<Option<u16>, Refusal> {
    let Some(mode) = asked.unix_mode else {
        return Ok(None);
    };
    if !identity.may_set_mode(mode) {
        return Err(Refusal::NoRight);
    }
    let mask = if identity.administrator {
        MODE
    } else {
        ORDINARY_MODE
    };
    Ok(Some((mode & mask) as u16))
}

/// The mode of something new: bits that the caller may not set are left out.
pub(super) fn mode_of_new(identity: &Identity, asked: &AfsStoreStatus) -> Option<u16> {
    let mask = if identity.administrator {
        MODE
    } else {
        ORDINARY_MODE
    };
    asked.unix_mode.map(|mode| (mode & mask) as u16)
}
