//! FetchStatus (132): the status of one file, with a promise.

use std::sync::Arc;

use cellar_rpc::IncomingCall;
use cellar_volume::Ticket;
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::{AfsFetchStatus, Callback, FetchStatus, FetchStatusReply, VolSync};
use cellar_wire::serve::Handle;

use super::FileService;
use super::common::{run, status_and_access};
use super::promise::with_promise;
use crate::abort_map::Refusal;
use crate::services::FileServices;
use crate::session::Session;
use crate::status::vol_sync;
use crate::volumes::VolumeAccess;

impl Handle<FetchStatus, IncomingCall> for FileService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: FetchStatus,
    ) -> Result<FetchStatusReply, Refusal> {
        let services = &self.services;
        let FetchStatus { fid } = arguments;
        let session = services.sessions.session(call).await?;
        let work = {
            let services = services.clone();
            move || status_of(&services, &session, fid, false)
        };
        let (status, callback, sync, durable) = run(&services.callbacks, work).await?;
        durable.await?;
        Ok(FetchStatusReply {
            status,
            callback,
            sync,
        })
    }
}

/// The status of one fid with a promise, which may be sent when the ticket is ready. `bulk` says
/// that it is one of many.
pub(super) fn status_of(
    services: &Arc<FileServices>,
    session: &Session,
    fid: Fid,
    bulk: bool,
) -> Result<(AfsFetchStatus, Callback, VolSync, Ticket), Refusal> {
    let attached = services.volumes.of(fid, VolumeAccess::Read)?;
    let volume = &attached.volume;
    let read = || {
        let (status, _, access) = status_and_access(services, session, &attached, fid)?;
        let identity = session.identity();
        if identity.may_fetch_status(&status, access.caller, volume.owner()) {
            Ok(services.callbacks.show(session, &status, access))
        } else {
            Err(Refusal::NoRight)
        }
    };
    let (status, callback) = with_promise(&services.callbacks, session, volume, fid, bulk, read)?;
    let durable = volume.last_change(fid.vnode);
    Ok((status, callback, vol_sync(volume), durable))
}
