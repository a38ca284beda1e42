//! GetTime (153): clients use it as a probe. The answer needs no identification of the caller.

use std::sync::Arc;

use cellar_rpc::IncomingCall;
use cellar_wire::rxafs::{GetTime, GetTimeReply};

use crate::abort_map::Refusal;
use crate::server::Server;
use crate::service::CallResult;

pub(super) async fn get_time(server: &Arc<Server>, call: &mut IncomingCall) -> CallResult {
    let GetTime {} = call.arguments().await.map_err(Refusal::Call)?;
    server.note_call(call);
    let now = server.wall();
    call.reply(&GetTimeReply {
        seconds: now.as_secs() as u32,
        microseconds: now.subsec_micros(),
    });
    Ok(())
}
