//! CreateFile (137) and MakeDir (141): a new file or directory, with a promise for it.

use std::sync::Arc;

use cellar_rpc::IncomingCall;
use cellar_volume::{Changed, Created, NewVnode, VnodeStatus, Volume};
use cellar_wire::AfsName;
use cellar_wire::acl::Rights;
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::{
    AfsFetchStatus, AfsStoreStatus, Callback, CreateFile, CreateFileReply, MakeDir, MakeDirReply,
    VolSync,
};
use cellar_wire::serve::Handle;

use super::FileService;
use super::common::{change, dir_status_and_access, status_and_access};
use super::names::{check_free, new_name};
use super::promise::{NO_PROMISE, with_promise};
use super::store_status::mode_of_new;
use crate::abort_map::Refusal;
use crate::access::{Access, Identity};
use crate::callbacks::Touched;
use crate::services::FileServices;
use crate::session::Session;
use crate::status::vol_sync;
use crate::volumes::{Attached, VolumeAccess};

impl Handle<CreateFile, IncomingCall> for FileService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: CreateFile,
    ) -> Result<CreateFileReply, Refusal> {
        let services = &self.services;
        let CreateFile {
            dir_fid,
            name,
            in_status,
        } = arguments;
        let session = services.sessions.session(call).await?;
        let new = create(services, &session, dir_fid, name, in_status, false).await?;
        Ok(CreateFileReply {
            fid: new.fid,
            status: new.status,
            dir_status: new.dir_status,
            callback: new.callback,
            sync: new.sync,
        })
    }
}

impl Handle<MakeDir, IncomingCall> for FileService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: MakeDir,
    ) -> Result<MakeDirReply, Refusal> {
        let services = &self.services;
        let MakeDir {
            dir_fid,
            name,
            in_status,
        } = arguments;
        let session = services.sessions.session(call).await?;
        let new = create(services, &session, dir_fid, name, in_status, true).await?;
        Ok(MakeDirReply {
            fid: new.fid,
            status: new.status,
            dir_status: new.dir_status,
            callback: new.callback,
            sync: new.sync,
        })
    }
}

struct New {
    fid: Fid,
    status: AfsFetchStatus,
    dir_status: AfsFetchStatus,
    callback: Callback,
    sync: VolSync,
}

async fn create(
    services: &Arc<FileServices>,
    session: &Session,
    dir: Fid,
    name: AfsName,
    in_status: AfsStoreStatus,
    directory: bool,
) -> Result<New, Refusal> {
    let work = {
        let (services, session) = (services.clone(), session.clone());
        move || {
            let name = new_name(&name)?;
            let Maker {
                attached,
                dir: before,
                access,
                new,
            } = may_insert(&services, &session, dir, &in_status)?;
            check_free(name)?;
            let volume = &attached.volume;
            let Changed { outcome, durable } = if directory {
                volume.make_dir(dir, name, &new, session.context())?
            } else {
                let made = volume.create_file(dir, name, &new, session.context())?;
                let fid = made.outcome.status.fid;
                services.objects.note_created(volume, dir, fid, name);
                made
            };
            count_new(&session, volume, &before);
            let outcome = (outcome, access);
            Ok((Changed { outcome, durable }, Touched::changed([dir])))
        }
    };
    let (created, dir_access) = change(&services.callbacks, session, work).await?;
    describe(services, session, &created, dir_access)
}

/// A caller that may create an entry in a directory.
pub(super) struct Maker {
    pub(super) attached: Attached,
    /// The directory before the change.
    pub(super) dir: VnodeStatus,
    pub(super) access: Access,
    /// The initial attributes of the new vnode.
    pub(super) new: NewVnode,
}

/// Counts a new vnode: the vnode itself and the change of its directory.
pub(super) fn count_new(session: &Session, volume: &Volume, dir_before: &VnodeStatus) {
    volume.count_change(session.origin(), dir_before, session.context());
    volume.count_write(session.origin());
}

/// Whether the caller may create an entry in a directory, and the initial attributes of the entry.
pub(super) fn may_insert(
    services: &FileServices,
    session: &Session,
    dir: Fid,
    in_status: &AfsStoreStatus,
) -> Result<Maker, Refusal> {
    let attached = services.volumes.of(dir, VolumeAccess::Change)?;
    let (status, access) = dir_status_and_access(services, session, &attached, dir)?;
    if !access.caller.contains(Rights::INSERT) {
        return Err(Refusal::NoRight);
    }
    let new = new_vnode(session.identity(), in_status);
    Ok(Maker {
        attached,
        dir: status,
        access,
        new,
    })
}

pub(super) fn new_vnode(identity: &Identity, in_status: &AfsStoreStatus) -> NewVnode {
    // Only administrators give vnodes to others; the wishes of other callers are ignored.
    let given = |id| if identity.administrator { id } else { None };
    NewVnode {
        owner: given(in_status.owner).unwrap_or(identity.id),
        group: given(in_status.group),
        mode: mode_of_new(identity, in_status),
        client_time: in_status.client_mod_time,
    }
}

/// The reply fields for a new vnode.
fn describe(
    services: &Arc<FileServices>,
    session: &Session,
    created: &Created,
    dir_access: Access,
) -> Result<New, Refusal> {
    let fid = created.status.fid;
    let attached = services.volumes.changed(fid)?;
    let (status, callback) = shown_new(services, session, &attached, &created.status, dir_access);
    Ok(New {
        fid,
        status,
        dir_status: services.callbacks.show(session, &created.dir, dir_access),
        callback,
        sync: vol_sync(&attached.volume),
    })
}

/// The new vnode as the caller sees it. The promise is given for a status that is read afterwards,
/// because another client may have found and changed the file by then.
pub(super) fn shown_new(
    services: &Arc<FileServices>,
    session: &Session,
    attached: &Attached,
    made: &VnodeStatus,
    dir_access: Access,
) -> (AfsFetchStatus, Callback) {
    let (volume, fid) = (&attached.volume, made.fid);
    let fresh = || {
        let (status, _, access) = status_and_access(services, session, attached, fid)?;
        Ok(services.callbacks.show(session, &status, access))
    };
    let promised = cellar_volume::nonblocking(|| {
        Ok(with_promise(
            &services.callbacks,
            session,
            volume,
            fid,
            false,
            fresh,
        ))
    });
    match promised {
        Ok(Ok(promised)) => promised,
        // Already removed, changed, or not in memory: the created status, without a promise.
        _ => (
            services.callbacks.show(session, made, dir_access),
            NO_PROMISE,
        ),
    }
}
