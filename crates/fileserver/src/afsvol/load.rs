//! GetLoad: the volumes, users and client machines with the most calls. A call of this project.

use cellar_rpc::IncomingCall;
use cellar_wire::AbortCode;
use cellar_wire::afsvol::{GetLoad, GetLoadReply, LOAD_CLIENTS, LOAD_USERS, LOAD_VOLUMES};
use cellar_wire::serve::Handle;

use super::VolumeService;
use crate::load::Kind;

impl Handle<GetLoad, IncomingCall> for VolumeService {
    /// For superusers: the table names users and their machines. It changes nothing, so it is no
    /// act for the audit log.
    async fn handle(
        &self,
        call: &IncomingCall,
        arguments: GetLoad,
    ) -> Result<GetLoadReply, AbortCode> {
        let services = &self.services;
        if !services.sessions.identify(call.caller()).is_superuser() {
            return Err(AbortCode::VOLSERBAD_ACCESS);
        }
        let kind = match arguments.kind {
            LOAD_VOLUMES => Kind::Volumes,
            LOAD_USERS => Kind::Users,
            LOAD_CLIENTS => Kind::Clients,
            _ => return Err(AbortCode::EINVAL),
        };
        Ok(GetLoadReply {
            entries: services.load.entries(kind),
        })
    }
}
