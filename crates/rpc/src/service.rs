//! A service: a package of procedures behind one service number.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;

use cellar_rx::ServerSecurity;
use cellar_wire::abort::AbortCode;
use cellar_wire::package::{Package, Procedure};

use crate::IncomingCall;

/// A future that stays on its thread.
pub type LocalBoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A package of procedures that answers calls.
///
/// One value serves all shards and transports at once. A handler runs on the shard's thread and
/// must not block it; blocking work goes through [`crate::blocking()`]. A handler that can answer
/// from memory completes at its first poll, and costs no task.
///
/// Most services implement [`cellar_wire::serve::Handle`] for each procedure, and pass calls to
/// the `serve` of their package:
///
/// ```ignore
/// impl Handle<vl::ProbeServer, IncomingCall> for Locations {
///     async fn handle(
///         &self,
///         _: &IncomingCall,
///         _: vl::ProbeServer,
///     ) -> Result<vl::ProbeServerReply, AbortCode> {
///         Ok(vl::ProbeServerReply {})
///     }
/// }
///
/// fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
///     Box::pin(async move { vl::serve(self, call.opcode().await?, call).await })
/// }
/// ```
pub trait Service: Send + Sync + 'static {
    /// The package: its service number, and the names in statistics.
    fn package(&self) -> &'static Package;

    /// Answers one call. `Err` ends it with that abort code, even after a part of the reply was
    /// written; `Ok` sends the written data and ends the reply.
    ///
    /// # Errors
    /// The code for the client. A code of 0 is sent as `RX_USER_ABORT`.
    fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>>;

    /// Limits and options of the service.
    fn options(&self) -> ServiceOptions {
        ServiceOptions::default()
    }
}

impl<S: Service> Service for Arc<S> {
    fn package(&self) -> &'static Package {
        (**self).package()
    }

    fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
        (**self).call(call)
    }

    fn options(&self) -> ServiceOptions {
        (**self).options()
    }
}

/// A service for tests of clients with a single procedure: `answer` gets the call and its
/// arguments. All other calls get `RXGEN_OPCODE`.
pub fn only<P, F>(answer: F) -> Arc<dyn Service>
where
    P: Procedure,
    F: AsyncFn(&mut IncomingCall, P) -> Result<(), AbortCode> + Send + Sync + 'static,
{
    Arc::new(SingleProcedure(answer, PhantomData::<fn(P)>))
}

struct SingleProcedure<P, F>(F, PhantomData<fn(P)>);

impl<P, F> Service for SingleProcedure<P, F>
where
    P: Procedure,
    F: AsyncFn(&mut IncomingCall, P) -> Result<(), AbortCode> + Send + Sync + 'static,
{
    fn package(&self) -> &'static Package {
        P::package()
    }

    fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
        Box::pin(async move {
            if call.opcode().await? != P::OPCODE {
                return Err(AbortCode::RXGEN_OPCODE);
            }
            let arguments = call.arguments().await?;
            (self.0)(call, arguments).await
        })
    }
}

/// Limits and options of one service.
#[derive(Clone)]
pub struct ServiceOptions {
    /// Most bytes of the arguments of one call in XDR; longer ones get `RXGEN_SS_UNMARSHAL`.
    /// Streamed data does not count. Default: 1 MiB.
    pub argument_bytes_max: usize,
    /// Whether an unknown client address must first answer a ping. Protects against forged
    /// addresses; OpenAFS does it for RXAFS and rxperf. Default: no.
    pub reach_check: bool,
    /// Abort code of calls refused because the queue is full. Default: `VBUSY`, on which OpenAFS's
    /// and Linux's clients wait and retry.
    pub busy_code: AbortCode,
    /// Security classes by index; empty: those of the port, see [`crate::PortConfig::security`].
    pub security: Vec<(u8, Arc<dyn ServerSecurity>)>,
}

impl Default for ServiceOptions {
    fn default() -> Self {
        Self {
            argument_bytes_max: 1 << 20,
            reach_check: false,
            busy_code: AbortCode::VBUSY,
            security: Vec::new(),
        }
    }
}

impl fmt::Debug for ServiceOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let indices: Vec<u8> = self.security.iter().map(|(index, _)| *index).collect();
        f.debug_struct("ServiceOptions")
            .field("argument_bytes_max", &self.argument_bytes_max)
            .field("reach_check", &self.reach_check)
            .field("busy_code", &self.busy_code)
            .field("security", &indices)
            .finish()
    }
}
