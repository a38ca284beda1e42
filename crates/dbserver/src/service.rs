//! A database server as a service over Rx and the local socket.

use std::sync::Arc;

use cellar_auth::Authority;
use cellar_auth::audit::Audit;
use cellar_rpc::{IncomingCall, LocalBoxFuture, Service};
use cellar_wire::serve::{CallHandler, Handle};
use cellar_wire::{AbortCode, Package};

use crate::answer::{Answer, Kind, Server};
use crate::caller::Origin;
use crate::guard::Guard;

/// The service that answers the calls of a database server. Each procedure is an [`Answer`].
pub struct DbService<S> {
    pub(crate) server: Arc<S>,
    pub(crate) guard: Guard,
}

impl<S> Clone for DbService<S> {
    fn clone(&self) -> Self {
        Self {
            server: self.server.clone(),
            guard: self.guard.clone(),
        }
    }
}

impl<S> DbService<S> {
    /// A service that identifies only the local administrator.
    pub fn new(server: Arc<S>) -> Self {
        let guard = Guard::default();
        Self { server, guard }
    }

    /// The same service for callers with tickets: `authority` identifies them, `audit` records
    /// their changes.
    #[must_use]
    pub fn with_authority(self, authority: Authority, audit: Audit) -> Self {
        let guard = Guard::new(authority, audit);
        Self { guard, ..self }
    }
}

impl<S: Server> Service for DbService<S> {
    fn package(&self) -> &'static Package {
        S::package()
    }

    fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
        S::serve(self, call)
    }
}

impl<S: Server> CallHandler for DbService<S> {
    type Refusal = AbortCode;

    fn failed(code: AbortCode) -> AbortCode {
        code
    }
}

impl<S: Server, P: Answer<S>> Handle<P, IncomingCall> for DbService<S> {
    async fn handle(&self, call: &IncomingCall, arguments: P) -> Result<P::Reply, AbortCode> {
        let who = self.server.identify(call.caller(), &self.guard);
        let act = match P::KIND {
            Kind::Change => self.guard.begin::<S, P>(&arguments),
            _ => None,
        };
        let outcome = if P::BLOCKS {
            let server = Arc::clone(&self.server);
            let origin = Origin::new(call.caller(), &self.guard, call.address());
            cellar_rpc::blocking(move || server.ask_for(who, &origin, arguments)).await
        } else {
            self.server.ask(who, arguments)
        };
        if let Some(act) = act {
            act.end(self.server.now(), call, &outcome);
        }
        outcome
    }
}
