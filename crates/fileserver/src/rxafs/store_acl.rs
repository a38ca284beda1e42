//! StoreACL (164) and OldStoreACL (134): replaces the access list of a directory.

use std::sync::Arc;

use bytes::Bytes;
use cellar_rpc::IncomingCall;
use cellar_volume::{AccessList, Changed, Error, FileType};
use cellar_wire::acl::text::{AclText, AclTextError};
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::{
    AfsFetchStatus, AfsOpaque, OldStoreACL, OldStoreACLReply, StoreACL, StoreACLReply, VolSync,
};
use cellar_wire::serve::Handle;
use tracing::warn;

use super::FileService;
use super::common::{change, run, status_and_access};
use crate::abort_map::Refusal;
use crate::audit;
use crate::callbacks::Touched;
use crate::services::FileServices;
use crate::session::Session;
use crate::session::Sessions;
use crate::status::vol_sync;
use crate::volumes::VolumeAccess;
use crate::volumes::check_fid;

impl Handle<StoreACL, IncomingCall> for FileService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: StoreACL,
    ) -> Result<StoreACLReply, Refusal> {
        let services = &self.services;
        let StoreACL { fid, access_list } = arguments;
        let session = services.sessions.session(call).await?;
        let (status, sync) = store(services, &session, fid, access_list).await?;
        Ok(StoreACLReply { status, sync })
    }
}

impl Handle<OldStoreACL, IncomingCall> for FileService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: OldStoreACL,
    ) -> Result<OldStoreACLReply, Refusal> {
        let services = &self.services;
        let OldStoreACL { fid, access_list } = arguments;
        let session = services.sessions.session(call).await?;
        let (status, sync) = store(services, &session, fid, access_list).await?;
        Ok(OldStoreACLReply { status, sync })
    }
}

async fn store(
    services: &Arc<FileServices>,
    session: &Session,
    fid: Fid,
    text: AfsOpaque,
) -> Result<(AfsFetchStatus, VolSync), Refusal> {
    check_fid(fid)?;
    if session.identity().administrator {
        audit::mark_act();
        audit::add_detail("fid", fid);
        audit::add_detail("list", shown(&text));
    }
    // Check the rights first: a caller that may not change the list learns nothing about names.
    {
        let (services, session) = (services.clone(), session.clone());
        run(&services.callbacks.clone(), move || {
            may_store(&services, &session, fid)
        })
        .await?;
    }
    let list = parse(&services.sessions, &text).await?;
    let work = {
        let (services, session) = (services.clone(), session.clone());
        move || {
            may_store(&services, &session, fid)?;
            let attached = services.volumes.of(fid, VolumeAccess::Change)?;
            let Changed { outcome, durable } =
                attached
                    .volume
                    .set_acl(fid, list.clone(), session.context())?;
            // The status shows the caller's rights under the new list.
            let access = session.identity().access(&list);
            let outcome = (outcome, access, vol_sync(&attached.volume));
            Ok((Changed { outcome, durable }, Touched::changed([fid])))
        }
    };
    let (status, access, sync) = change(&services.callbacks, session, work).await?;
    Ok((services.callbacks.show(session, &status, access), sync))
}

fn may_store(services: &FileServices, session: &Session, fid: Fid) -> Result<(), Refusal> {
    let attached = services.volumes.of(fid, VolumeAccess::Change)?;
    let (status, _, access) = status_and_access(services, session, &attached, fid)?;
    if status.kind != FileType::Directory {
        return Err(Refusal::Store(Error::NotDirectory));
    }
    if session
        .identity()
        .may_store_acl(access.caller, attached.volume.owner())
    {
        Ok(())
    } else {
        Err(Refusal::NoRight)
    }
}

async fn parse(sessions: &Sessions, text: &[u8]) -> Result<AccessList, Refusal> {
    // The text ends with a NUL inside the opaque. A client that sends none has a bug, and such a
    // text once made servers read past the end.
    if !text.contains(&0) {
        return Err(Refusal::Invalid);
    }
    let text = AclText::parse(text).map_err(refused)?;
    let names: Vec<Bytes> = text
        .names()
        .map(|name| Bytes::copy_from_slice(name.as_bytes()))
        .collect();
    let ids = sessions.protection.ids_of(&names).await.map_err(|cause| {
        warn!(%cause, "cannot look up the names of an access list");
        Refusal::NoProtection
    })?;
    let id_of = |name: &str| {
        let place = names.iter().position(|known| known == name.as_bytes())?;
        *ids.get(place)?
    };
    text.resolve(id_of).map_err(refused)
}

/// The list on one line.
fn shown(text: &[u8]) -> String {
    let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text)
        .trim_end()
        .replace(['\n', '\t'], " ")
}

fn refused(cause: AclTextError) -> Refusal {
    match cause {
        AclTextError::TooLong => Refusal::ListTooLong,
        _ => Refusal::Invalid,
    }
}
