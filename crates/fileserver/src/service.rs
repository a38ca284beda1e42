//! The common part of the services: it decodes the opcode, times the call, counts and logs
//! refusals, picks the abort code, and audits ([`crate::audit`]).
//!
//! A service is a [`Handlers`]: a package, with a [`cellar_wire::serve::Handle`] for each
//! procedure.

use std::time::Duration;

use cellar_rpc::{IncomingCall, LocalBoxFuture, Service, ServiceOptions};
use cellar_wire::{AbortCode, Package};
use tokio::time::Instant;
use tracing::debug;

use crate::abort_map::Refusal;
use crate::audit::{self, Acts};
use crate::session::Sessions;

/// How a call ended.
pub(crate) type CallResult = Result<(), Refusal>;

/// The procedures of one package.
pub(crate) trait Handlers: Send + Sync + 'static {
    /// The package.
    const PACKAGE: &'static Package;

    /// The callers.
    fn sessions(&self) -> &Sessions;

    /// Answers one call with `serve` of the package. Returns the reason if the call is refused.
    async fn dispatch(&self, opcode: u32, call: &mut IncomingCall) -> CallResult;

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
    fn ended(&self, _procedure: Option<usize>, _outcome: &CallResult, _took: Duration) {}

    /// Whether errors travel to the caller as universal errno codes.
    fn understands_uae(&self, call: &IncomingCall) -> bool {
        Self::FOR_CLIENTS && self.sessions().understands_uae(call)
    }
}

/// A package as a service of this server.
pub(crate) struct Answering<H> {
    handlers: H,
    acts: Acts,
}

impl<H: Handlers> Answering<H> {
    pub(crate) fn new(handlers: H, acts: Acts) -> Self {
        Self { handlers, acts }
    }

    async fn answer(&self, call: &mut IncomingCall) -> Result<(), AbortCode> {
        let handlers = &self.handlers;
        let opcode = match call.opcode().await {
            Ok(opcode) => opcode,
            Err(code) => {
                handlers.ended(None, &Err(Refusal::Call(code)), Duration::ZERO);
                return Err(code);
            }
        };
        let procedure = H::PACKAGE.procedure(opcode);
        let begun = Instant::now();
        let (outcome, act) = audit::observe(handlers.dispatch(opcode, call)).await;
        let index = procedure.map(|procedure| procedure.index);
        handlers.ended(index, &outcome, begun.elapsed());
        let answer = outcome.map_err(|refusal| {
            let code = refusal.code(handlers.understands_uae(call));
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
            self.acts.record(call, procedure.name, act, code);
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
