//! FetchACL (131): the access list of a directory, as text. A call for a file returns the list of
//! its directory.

use bytes::Bytes;
use cellar_rpc::IncomingCall;
use cellar_volume::AccessList;
use cellar_wire::ids::ViceId;
use cellar_wire::rxafs::{AfsOpaque, FetchACL, FetchACLReply};
use cellar_wire::serve::Handle;
use tracing::warn;

use super::FileService;
use super::common::{run, status_and_access};
use crate::abort_map::Refusal;
use crate::session::Sessions;
use crate::status::vol_sync;
use crate::volumes::VolumeAccess;

impl Handle<FetchACL, IncomingCall> for FileService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: FetchACL,
    ) -> Result<FetchACLReply, Refusal> {
        let services = &self.services;
        let FetchACL { fid } = arguments;
        let session = services.sessions.session(call).await?;
        let work = {
            let (services, session) = (services.clone(), session.clone());
            move || {
                let attached = services.volumes.of(fid, VolumeAccess::Read)?;
                let (status, list, access) =
                    status_and_access(&services, &session, &attached, fid)?;
                let owner = attached.volume.owner();
                if !session
                    .identity()
                    .may_fetch_acl(&status, access.caller, owner)
                {
                    return Err(Refusal::NoRight);
                }
                let sync = vol_sync(&attached.volume);
                let durable = attached.volume.last_change(status.access_list_fid().vnode);
                let status = services.callbacks.show(&session, &status, access);
                Ok((list, status, sync, durable))
            }
        };
        let (list, status, sync, durable) = run(&services.callbacks, work).await?;
        durable.await?;
        let text = as_text(&services.sessions, &list).await?;
        let access_list = AfsOpaque::new(text).map_err(|_| Refusal::ListTooLong)?;
        Ok(FetchACLReply {
            access_list,
            status,
            sync,
        })
    }
}

/// The list with names. While the protection database cannot be reached, numbers replace the names,
/// so that the list can still be read.
async fn as_text(sessions: &Sessions, list: &AccessList) -> Result<Vec<u8>, Refusal> {
    let ids: Vec<ViceId> = list.ids().collect();
    let names = match sessions.protection.names_of(&ids).await {
        Ok(names) => names,
        Err(cause) => {
            warn!(%cause, "cannot look up the names of an access list");
            vec![None; ids.len()]
        }
    };
    let known: Vec<(ViceId, Option<Bytes>)> = ids.into_iter().zip(names).collect();
    let name_of = |id: ViceId| {
        let name = known.iter().find(|(known, _)| *known == id)?.1.as_ref()?;
        String::from_utf8(name.to_vec()).ok()
    };
    list.to_text(name_of).map_err(|_| Refusal::ListTooLong)
}
