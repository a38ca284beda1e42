//! GetTime (153): clients use it as a probe. The answer needs no identification of the caller.

use cellar_rpc::IncomingCall;
use cellar_wire::rxafs::{GetTime, GetTimeReply};
use cellar_wire::serve::Handle;

use super::FileService;
use crate::abort_map::Refusal;

impl Handle<GetTime, IncomingCall> for FileService {
    async fn handle(&self, call: &IncomingCall, _: GetTime) -> Result<GetTimeReply, Refusal> {
        let services = &self.services;

        services.sessions.note_call(call);
        let now = services.sessions.wall();
        Ok(GetTimeReply {
            seconds: now.as_secs() as u32,
            microseconds: now.subsec_micros(),
        })
    }
}
