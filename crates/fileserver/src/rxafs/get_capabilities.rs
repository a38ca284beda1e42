//! GetCapabilities (65540): the capabilities of this server. Linux sends it first of all, and as a
//! probe.

use cellar_rpc::IncomingCall;
use cellar_wire::host::Capabilities;
use cellar_wire::host::server_capability::{ERROR_TRANSLATION, FILES_64_BIT, WRITE_LOCK_ACL};
use cellar_wire::rxafs::{GetCapabilities, GetCapabilitiesReply};
use cellar_wire::serve::Handle;

use super::FileService;
use crate::abort_map::Refusal;

impl Handle<GetCapabilities, IncomingCall> for FileService {
    async fn handle(
        &self,
        call: &IncomingCall,
        _: GetCapabilities,
    ) -> Result<GetCapabilitiesReply, Refusal> {
        let services = &self.services;

        services.sessions.note_call(call);
        let word = ERROR_TRANSLATION | FILES_64_BIT | WRITE_LOCK_ACL;
        Ok(GetCapabilitiesReply {
            capabilities: Capabilities::from_iter_cut([word]),
        })
    }
}
