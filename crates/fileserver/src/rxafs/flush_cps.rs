//! FlushCPS (162): an administrator reports that groups have changed.
//!
//! The named ids and addresses are not distinguished: every connection loads its groups again at
//! its next call. That costs one call to the protection database for each connection, and this call
//! is rare.

use std::sync::Arc;

use cellar_rpc::IncomingCall;
use cellar_wire::rxafs::{FlushCPS, FlushCPSReply};

use crate::abort_map::Refusal;
use crate::audit;
use crate::server::Server;
use crate::service::CallResult;

pub(super) async fn flush_cps(server: &Arc<Server>, call: &mut IncomingCall) -> CallResult {
    let FlushCPS { .. } = call.arguments().await.map_err(Refusal::Call)?;
    let session = server.session(call).await?;
    audit::mark_act();
    if !session.identity().administrator {
        return Err(Refusal::NotAdministrator);
    }
    server.flush_cps();
    call.reply(&FlushCPSReply {
        spare2: 0,
        spare3: 0,
    });
    Ok(())
}
