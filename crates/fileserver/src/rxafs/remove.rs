//! RemoveFile (136) and RemoveDir (142).

use std::sync::Arc;

use cellar_rpc::IncomingCall;
use cellar_volume::{Changed, Removed};
use cellar_wire::AfsName;
use cellar_wire::acl::Rights;
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::{
    AfsFetchStatus, RemoveDir, RemoveDirReply, RemoveFile, RemoveFileReply, VolSync,
};
use cellar_wire::serve::Handle;

use super::FileService;
use super::common::{change, check_named, dir_status_and_access};
use super::names::{check_possible, old_name};
use crate::abort_map::Refusal;
use crate::callbacks::Touched;
use crate::services::FileServices;
use crate::session::Session;
use crate::status::vol_sync;
use crate::volumes::VolumeAccess;

impl Handle<RemoveFile, IncomingCall> for FileService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: RemoveFile,
    ) -> Result<RemoveFileReply, Refusal> {
        let services = &self.services;
        let RemoveFile { dir_fid, name } = arguments;
        let session = services.sessions.session(call).await?;
        let (dir_status, sync) = remove(services, &session, dir_fid, name, false).await?;
        Ok(RemoveFileReply { dir_status, sync })
    }
}

impl Handle<RemoveDir, IncomingCall> for FileService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: RemoveDir,
    ) -> Result<RemoveDirReply, Refusal> {
        let services = &self.services;
        let RemoveDir { dir_fid, name } = arguments;
        let session = services.sessions.session(call).await?;
        let (dir_status, sync) = remove(services, &session, dir_fid, name, true).await?;
        Ok(RemoveDirReply { dir_status, sync })
    }
}

async fn remove(
    services: &Arc<FileServices>,
    session: &Session,
    dir: Fid,
    name: AfsName,
    directory: bool,
) -> Result<(AfsFetchStatus, VolSync), Refusal> {
    let work = {
        let (services, session) = (services.clone(), session.clone());
        move || {
            let name = old_name(&name)?;
            let attached = services.volumes.of(dir, VolumeAccess::Change)?;
            let (before, access) = dir_status_and_access(&services, &session, &attached, dir)?;
            if !access.caller.contains(Rights::DELETE) {
                return Err(Refusal::NoRight);
            }
            check_possible(name)?;
            let volume = &attached.volume;
            if directory {
                check_named(&services.callbacks, &session, volume, dir, name)?;
            }
            let Changed { outcome, durable } = if directory {
                volume.remove_dir(dir, name, session.context())?
            } else {
                volume.remove_file(dir, name, session.context())?
            };
            volume.count_change(session.origin(), &before, session.context());
            let touched = touched(dir, &outcome);
            let objects = outcome
                .objects
                .map(|objects| (volume.clone(), outcome.status.fid, objects));
            let outcome = (outcome.dir, access, vol_sync(volume), objects);
            Ok((Changed { outcome, durable }, touched))
        }
    };
    let (dir_status, access, sync, objects) = change(&services.callbacks, session, work).await?;
    if let Some((volume, fid, objects)) = objects {
        services.objects.forget(&volume, fid, objects);
    }
    Ok((services.callbacks.show(session, &dir_status, access), sync))
}

/// A file with remaining names has a new status. A file without names is deleted.
fn touched(dir: Fid, removed: &Removed) -> Touched {
    if removed.status.link_count == 0 {
        Touched {
            deleted: Some(removed.status.fid),
            ..Touched::changed([dir])
        }
    } else {
        Touched::changed([dir, removed.status.fid])
    }
}
