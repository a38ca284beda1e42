//! GetCapabilities (65540): the capabilities of this server. Linux sends it first of all, and as a
//! probe.

use std::sync::Arc;

use cellar_rpc::IncomingCall;
use cellar_wire::host::Capabilities;
use cellar_wire::host::server_capability::{ERROR_TRANSLATION, FILES_64_BIT, WRITE_LOCK_ACL};
use cellar_wire::rxafs::{GetCapabilities, GetCapabilitiesReply};

use crate::abort_map::Refusal;
use crate::server::Server;
use crate::service::CallResult;

pub(super) async fn get_capabilities(server: &Arc<Server>, call: &mut IncomingCall) -> CallResult {
    let GetCapabilities {} = call.arguments().await.map_err(Refusal::Call)?;
    server.note_call(call);
    let word = ERROR_TRANSLATION | FILES_64_BIT | WRITE_LOCK_ACL;
    call.reply(&GetCapabilitiesReply {
        capabilities: Capabilities::from_iter_cut([word]),
    });
    Ok(())
}
