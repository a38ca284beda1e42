//! Answers over Rx and the local socket.

use std::sync::Arc;

use cellar_rpc::{Caller, IncomingCall};
use cellar_wire::{AbortCode, ViceId};

use crate::Identity;
use crate::answer::{Answer, Server};

/// Answers a call of procedure `P` that came by Rx or by the local socket.
pub(crate) async fn answer<P, S>(server: &Arc<S>, call: &mut IncomingCall) -> Result<(), AbortCode>
where
    S: Server,
    P: Answer<S>,
{
    let arguments: P = call.arguments().await?;
    let who = identity(call.caller());
    let reply = if P::BLOCKS {
        let server = Arc::clone(server);
        cellar_rpc::blocking(move || server.ask(who, arguments)).await?
    } else {
        server.ask(who, arguments)?
    };
    call.reply(&reply);
    Ok(())
}

/// Who makes a call. A principal of a security class is a user if the class names it by a
/// [`ViceId`], and anonymous otherwise.
pub(crate) fn identity(caller: &Caller) -> Identity {
    match caller {
        Caller::Superuser => Identity::Superuser,
        Caller::Principal(principal) => principal
            .downcast_ref::<ViceId>()
            .map_or(Identity::ANONYMOUS, |id| Identity::User(*id)),
        _ => Identity::ANONYMOUS,
    }
}
