//! GiveUpCallBacks (147) and GiveUpAllCallBacks (65539): a client drops files from its cache, or
//! ends.

use std::sync::Arc;

use cellar_rpc::IncomingCall;
use cellar_wire::rxafs::{
    GiveUpAllCallBacks, GiveUpAllCallBacksReply, GiveUpCallBacks, GiveUpCallBacksReply,
};

use crate::abort_map::Refusal;
use crate::server::Server;
use crate::service::CallResult;
use crate::session::ClientRecord;

pub(super) async fn give_up_callbacks(server: &Arc<Server>, call: &mut IncomingCall) -> CallResult {
    let GiveUpCallBacks { fids, callbacks } = call.arguments().await.map_err(Refusal::Call)?;
    if fids.len() < callbacks.len() {
        return Err(Refusal::Invalid);
    }
    let session = server.session(call).await?;
    if let Some(host) = session.host_slot() {
        for &fid in &fids {
            server.callbacks.give_up(fid, host);
        }
    }
    call.reply(&GiveUpCallBacksReply {});
    Ok(())
}

/// A client sends this call last when it ends, and may be gone before it can answer. So a host that
/// is unknown or not ready is not contacted.
pub(super) async fn give_up_all_callbacks(
    server: &Arc<Server>,
    call: &mut IncomingCall,
) -> CallResult {
    let GiveUpAllCallBacks {} = call.arguments().await.map_err(Refusal::Call)?;
    let client = call.connection_data::<ClientRecord>();
    let host = match client.and_then(|client| client.host.clone()) {
        Some(host) => Some(host),
        None => server.hosts.find(call.peer().address),
    };
    if let Some(host) = host {
        let given_up = server.contacts.give_up_all(&host);
        tracing::debug!(host = %call.peer().address, given_up, "client gave up all callbacks");
    }
    call.reply(&GiveUpAllCallBacksReply {});
    Ok(())
}
