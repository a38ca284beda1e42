//! The service: counts calls, and answers refusals with their codes. Each procedure is a
//! [`cellar_wire::serve::Handle`] in `read`, `write`, `copy` or `manage`.

use std::sync::Arc;

use cellar_rpc::{IncomingCall, LocalBoxFuture, Service};
use cellar_wire::osd::{self, PACKAGE};
use cellar_wire::serve::CallHandler;
use cellar_wire::{AbortCode, Package};

use crate::refusal::Refusal;
use crate::server::Server;

/// The object storage service.
pub(crate) struct OsdService(pub(crate) Arc<Server>);

impl OsdService {
    async fn answer(&self, call: &mut IncomingCall) -> Result<(), AbortCode> {
        let server = &self.0;
        let opcode = call.opcode().await?;
        let procedure = PACKAGE.procedure(opcode);
        let outcome = osd::serve(self, opcode, call).await;
        let index = procedure.map(|procedure| procedure.index);
        server.statistics.ended(index, &outcome);
        if let Err(Refusal::Store(cellar_volume::Error::DiskFull)) = &outcome {
            server.lacks_room.notify_one();
        }
        outcome.map_err(|refusal| {
            let code = refusal.code();
            let name = procedure.map_or("unknown", |procedure| procedure.name);
            tracing::debug!(host = %call.peer().address, name, code = code.0, ?refusal, "refused");
            code
        })
    }
}

impl CallHandler for OsdService {
    type Refusal = Refusal;

    fn failed(code: AbortCode) -> Refusal {
        Refusal::Call(code)
    }
}

impl Service for OsdService {
    fn package(&self) -> &'static Package {
        &PACKAGE
    }

    fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
        Box::pin(self.answer(call))
    }
}

/// Runs work that may wait for the disk.
pub(crate) async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> cellar_volume::Result<T> + Send + 'static,
) -> Result<T, Refusal> {
    Ok(cellar_rpc::blocking(work).await?)
}
