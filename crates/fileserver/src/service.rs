//! The common part of the services: it decodes the opcode, times the call, counts and logs
//! refusals, picks the abort code, and audits ([`crate::audit`]).
//!
//! A service is a [`Handlers`]: a package, and a dispatch to its procedures. [`route!`] writes the
//! dispatch.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use cellar_rpc::{IncomingCall, LocalBoxFuture, Service, ServiceOptions};
use cellar_wire::{AbortCode, Package};
use tokio::time::Instant;
use tracing::debug;

use crate::abort_map::Refusal;
use crate::audit;
use crate::server::Server;

/// How a call ended.
pub(crate) type CallResult = Result<(), Refusal>;

/// The procedures of one package.
pub(crate) trait Handlers: Send + Sync + 'static {
    /// The package.
    const PACKAGE: &'static Package;

    /// The handler of one call. Returns the reason if the call is refused.
    async fn dispatch(server: &Arc<Server>, opcode: u32, call: &mut IncomingCall) -> CallResult;

    /// Whether clients call the package. If not, only administrators and other servers do.
    const FOR_CLIENTS: bool = true;

    /// Limits and settings. The server asks clients who they are. The reach check prevents a forged
    /// source address from making the server ask a third party.
    fn options() -> ServiceOptions {
        ServiceOptions {
            reach_check: Self::FOR_CLIENTS,
            ..ServiceOptions::default()
        }
    }

    /// Called at the end of a call, with its duration. `procedure` is its index in the package;
    /// `None` for an unknown opcode.
    fn ended(_server: &Server, _procedure: Option<usize>, _outcome: &CallResult, _took: Duration) {}

    /// Whether errors travel to the caller as universal errno codes.
    fn understands_uae(server: &Server, call: &IncomingCall) -> bool {
        Self::FOR_CLIENTS && server.understands_uae(call)
    }
}

/// A package as a service of this server.
pub(crate) struct Answering<H> {
    server: Arc<Server>,
    handlers: PhantomData<H>,
}

impl<H: Handlers> Answering<H> {
    pub(crate) fn new(server: Arc<Server>) -> Self {
        Self {
            server,
            handlers: PhantomData,
        }
    }

    async fn answer(&self, call: &mut IncomingCall) -> Result<(), AbortCode> {
        let server = &self.server;
        let opcode = match call.opcode().await {
            Ok(opcode) => opcode,
            Err(code) => {
                H::ended(server, None, &Err(Refusal::Call(code)), Duration::ZERO);
                return Err(code);
            }
        };
        let procedure = H::PACKAGE.procedure(opcode);
        let begun = Instant::now();
        let (outcome, act) = audit::observe(H::dispatch(server, opcode, call)).await;
        let index = procedure.map(|procedure| procedure.index);
        H::ended(server, index, &outcome, begun.elapsed());
        let answer = outcome.map_err(|refusal| {
            let code = refusal.code(H::understands_uae(server, call));
            debug!(
                host = %call.peer().address,
                package = H::PACKAGE.name,
                procedure = procedure.map_or("unknown", |procedure| procedure.name),
                code = code.0,
                ?refusal,
                "refused"
            );
            code
        });
        if let (Some(act), Some(procedure)) = (act, procedure) {
            let code = answer.as_ref().err().map_or(0, |code| code.0);
            server.record_act(call, procedure.name, act, code);
        }
        answer
    }
}

impl<H: Handlers> Service for Answering<H> {
    fn package(&self) -> &'static Package {
        H::PACKAGE
    }

    fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
        Box::pin(self.answer(call))
    }

    fn options(&self) -> ServiceOptions {
        H::options()
    }
}

/// The future of the handler for an opcode. One line `Procedure => handler` for each procedure;
/// `else` gives the future for other opcodes.
macro_rules! route {
    ($opcode:expr, $server:expr, $call:expr, { $($procedure:ty => $handler:path,)* } else $other:expr) => {
        match $opcode {
            $(<$procedure as cellar_wire::Procedure>::OPCODE => Box::pin($handler($server, $call)),)*
            _ => $other,
        }
    };
}

pub(crate) use route;
