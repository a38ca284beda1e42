//! StoreStatus (135): mode, owner, group and time of a vnode.

use cellar_rpc::IncomingCall;
use cellar_volume::{Changed, FileType, SetStatus, VnodeStatus};
use cellar_wire::acl::Rights;
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::{AfsStoreStatus, StoreStatus, StoreStatusReply};
use cellar_wire::serve::Handle;

use super::FileService;
use super::common::{change, status_and_access};
use crate::abort_map::Refusal;
use crate::access::Identity;
use crate::audit;
use crate::callbacks::Touched;
use crate::status::vol_sync;
use crate::volumes::VolumeAccess;

/// Mode bits that callers other than administrators may set.
const ORDINARY_MODE: u32 = 0o777;
const MODE: u32 = 0o7777;

impl Handle<StoreStatus, IncomingCall> for FileService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: StoreStatus,
    ) -> Result<StoreStatusReply, Refusal> {
        let services = &self.services;
        let StoreStatus { fid, in_status } = arguments;
        let session = services.sessions.session(call).await?;
        note_privilege(session.identity(), fid, &in_status);
        let work = {
            let (services, session) = (services.clone(), session.clone());
            move || {
                let attached = services.volumes.of(fid, VolumeAccess::Change)?;
                let (status, _, access) = status_and_access(&services, &session, &attached, fid)?;
                let identity = session.identity();
                let set = allowed_attributes(identity, &status, access.caller, &in_status)?;
                if !identity.may_store_status(&status, access.caller) && !identity.administrator {
                    return Err(Refusal::NoRight);
                }
                if status.kind == FileType::Symlink && in_status.unix_mode.is_some() {
                    return Err(Refusal::Invalid);
                }
                let Changed { outcome, durable } =
                    attached.volume.set_status(fid, &set, session.context())?;
                attached.volume.count_write(session.origin());
                let outcome = (outcome, access, vol_sync(&attached.volume));
                Ok((Changed { outcome, durable }, Touched::changed([fid])))
            }
        };
        let (status, access, sync) = change(&services.callbacks, &session, work).await?;
        Ok(StoreStatusReply {
            status: services.callbacks.show(&session, &status, access),
            sync,
        })
    }
}

/// Records operations that need an administrator in the audit log.
fn note_privilege(identity: &Identity, fid: Fid, asked: &AfsStoreStatus) {
    let set_id = asked.unix_mode.filter(|mode| mode & !ORDINARY_MODE != 0);
    let privileged = asked.owner.is_some() || asked.group.is_some() || set_id.is_some();
    if !identity.administrator || !privileged {
        return;
    }
    audit::mark_act();
    audit::add_detail("fid", fid);
    if let Some(owner) = asked.owner {
        audit::add_detail("owner", owner);
    }
    if let Some(group) = asked.group {
        audit::add_detail("group", group);
    }
    if let Some(mode) = set_id {
        audit::add_detail("mode", format_args!("{mode:o}"));
    }
}

/// The requested attributes that a caller with these rights may set. Only administrators may change
/// the owner, the group and the set-id bits.
pub(crate) fn allowed_attributes(
    identity: &Identity,
    status: &VnodeStatus,
    rights: Rights,
    asked: &AfsStoreStatus,
) -> Result<SetStatus, Refusal> {
    // A client that sends the present value requests no change.
    let owner = asked.owner.filter(|&owner| owner != status.owner);
    let group = asked.group.filter(|&group| group != status.group);
    if !identity.administrator && (owner.is_some() || group.is_some()) {
        return Err(Refusal::NotAdministrator);
    }
    let mode = asked.unix_mode;
    if mode.is_some_and(|mode| !identity.may_set_mode(status, rights, mode)) {
        return Err(Refusal::NoRight);
    }
    Ok(SetStatus {
        mode: mode.map(|mode| permitted(identity, mode)),
        owner,
        group,
        client_time: asked.client_mod_time,
    })
}

/// A mode without the bits that the caller may not set.
fn permitted(identity: &Identity, mode: u32) -> u16 {
    let mask = if identity.administrator {
        MODE
    } else {
        ORDINARY_MODE
    };
    (mode & mask) as u16
}

/// The mode of a new vnode.
pub(super) fn mode_of_new(identity: &Identity, asked: &AfsStoreStatus) -> Option<u16> {
    asked.unix_mode.map(|mode| permitted(identity, mode))
}
