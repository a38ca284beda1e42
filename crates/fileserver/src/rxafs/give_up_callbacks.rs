//! GiveUpCallBacks (147) and GiveUpAllCallBacks (65539): a client drops files from its cache, or
//! ends.

use cellar_rpc::IncomingCall;
use cellar_wire::rxafs::{
    GiveUpAllCallBacks, GiveUpAllCallBacksReply, GiveUpCallBacks, GiveUpCallBacksReply,
};
use cellar_wire::serve::Handle;

use super::FileService;
use crate::abort_map::Refusal;
use crate::session::ClientRecord;

impl Handle<GiveUpCallBacks, IncomingCall> for FileService {
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: GiveUpCallBacks,
    ) -> Result<GiveUpCallBacksReply, Refusal> {
        let services = &self.services;
        let GiveUpCallBacks { fids, callbacks } = arguments;
        if fids.len() < callbacks.len() {
            return Err(Refusal::Invalid);
        }
        let session = services.sessions.session(call).await?;
        if let Some(host) = session.host_slot() {
            for &fid in &fids {
                services.callbacks.table.give_up(fid, host);
            }
        }
        Ok(GiveUpCallBacksReply {})
    }
}

impl Handle<GiveUpAllCallBacks, IncomingCall> for FileService {
    /// A client sends this call last when it ends, and may be gone before it can answer. So a host
    /// that is unknown or not ready is not contacted.
    async fn handle(
        &self,
        call: &IncomingCall,
        _: GiveUpAllCallBacks,
    ) -> Result<GiveUpAllCallBacksReply, Refusal> {
        let services = &self.services;

        let client = call.connection_data::<ClientRecord>();
        let host = match client.and_then(|client| client.host.clone()) {
            Some(host) => Some(host),
            None => services.callbacks.hosts.find(call.peer().address),
        };
        if let Some(host) = host {
            let given_up = services.callbacks.contacts.give_up_all(&host);
            tracing::debug!(host = %call.peer().address, given_up, "client gave up all callbacks");
        }
        Ok(GiveUpAllCallBacksReply {})
    }
}
