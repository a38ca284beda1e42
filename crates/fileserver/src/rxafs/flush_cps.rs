//! FlushCPS (162): an administrator reports that groups have changed.
//!
//! The named ids and addresses are not distinguished: every connection loads its groups again at
//! its next call. That costs one call to the protection database for each connection, and this call
//! is rare.

use cellar_rpc::IncomingCall;
use cellar_wire::rxafs::{FlushCPS, FlushCPSReply};
use cellar_wire::serve::Handle;

use super::FileService;
use crate::abort_map::Refusal;
use crate::audit;

impl Handle<FlushCPS, IncomingCall> for FileService {
    async fn handle(&self, call: &IncomingCall, _: FlushCPS) -> Result<FlushCPSReply, Refusal> {
        let services = &self.services;

        let session = services.sessions.session(call).await?;
        audit::mark_act();
        if !session.identity().administrator {
            return Err(Refusal::NotAdministrator);
        }
        services.sessions.flush_cps();
        Ok(FlushCPSReply {
            spare2: 0,
            spare3: 0,
        })
    }
}
