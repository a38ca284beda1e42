//! Replies to calls over Rx and the local socket.

use std::sync::Arc;

use cellar_rpc::IncomingCall;
use cellar_wire::{AbortCode, Procedure};

use crate::Identity;
use crate::answer::{Answer, Server};
use crate::guard::Guard;

/// Replies to a call of procedure `P`.
pub(crate) async fn answer<P, S>(
    server: &Arc<S>,
    guard: &Guard,
    call: &mut IncomingCall,
) -> Result<(), AbortCode>
where
    S: Server,
    P: Answer<S>,
{
    respond::<P, S>(server, guard, call, P::BLOCKS, S::ask).await
}

/// Replies to a call of `P` with the result of `work`, which runs on a thread that may block if it
/// `blocks`.
pub(crate) async fn respond<P, S>(
    server: &Arc<S>,
    guard: &Guard,
    call: &mut IncomingCall,
    blocks: bool,
    work: impl FnOnce(&S, Identity, P) -> Result<P::Reply, AbortCode> + Send + 'static,
) -> Result<(), AbortCode>
where
    S: Server,
    P: Procedure,
{
    let arguments: P = call.arguments().await?;
    let who = server.identify(call.caller(), guard);
    let act = match S::is_administrative(P::OPCODE) {
        true => guard.begin(&arguments),
        false => None,
    };
    let outcome = if blocks {
        let server = Arc::clone(server);
        cellar_rpc::blocking(move || work(&server, who, arguments)).await
    } else {
        work(server, who, arguments)
    };
    if let Some(act) = act {
        act.end(server.now(), call, &outcome);
    }
    call.reply(&outcome?);
    Ok(())
}
