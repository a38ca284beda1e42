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
use crate::server::Server;
use crate::session::Session;
use crate::status::vol_sync;
use crate::volumes::VolumeAccess;

impl Handle<FetchStatus, IncomingCall> for FileService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: FetchStatus,
    ) -> Result<FetchStatusReply, Refusal> {
        let server = &self.server;
        let FetchStatus { fid } = arguments;
        let session = server.sessions.session(call).await?;
        let work = {
            let server = server.clone();
            move || status_of(&server, &session, fid, false)
        };
        let (status, callback, sync, durable) = run(&server.callbacks, work).await?;
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
    server: &Arc<Server>,
    session: &Session,
    fid: Fid,
    bulk: bool,
) -> Result<(AfsFetchStatus, Callback, VolSync, Ticket), Refusal> {
    let attached = server.volumes.of(fid, VolumeAccess::Read)?;
    let volume = &attached.volume;
    let read = || {
        let (status, _, access) = status_and_access(server, session, &attached, fid)?;
        let identity = session.identity();
        if identity.may_fetch_status(&status, access.caller, volume.owner()) {
            Ok(server.callbacks.show(session, &status, access))
        } else {
            Err(Refusal::NoRight)
        }
    };
    let (status, callback) = with_promise(&server.callbacks, session, volume, fid, bulk, read)?;
    let durable = volume.last_change(fid.vnode);
    Ok((status, callback, vol_sync(volume), durable))
}
