//! Dispatch of procedures, and their results for the caller.

use std::sync::Arc;

use cellar_rpc::{IncomingCall, LocalBoxFuture, Service};
use cellar_wire::osd::{
    Checksum, Copy, Examine, GetSpace, GetStatistics, ListObjects, PACKAGE, Prune, Purge, Read,
    Remove, Scrub, ScrubStatus, Truncate, Undelete, Write,
};
use cellar_wire::{AbortCode, Package, Procedure};

use crate::refusal::Refusal;
use crate::server::Server;

/// Result of a call.
pub(crate) type CallResult = Result<(), Refusal>;

pub(crate) struct OsdService(pub(crate) Arc<Server>);

impl OsdService {
    async fn answer(&self, call: &mut IncomingCall) -> Result<(), AbortCode> {
        let server = &self.0;
        let opcode = call.opcode().await?;
        let procedure = PACKAGE.procedure(opcode);
        let outcome = dispatch(server, opcode, call).await;
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

async fn dispatch(server: &Arc<Server>, opcode: u32, call: &mut IncomingCall) -> CallResult {
    match opcode {
        Read::OPCODE => server.read(call).await,
        Write::OPCODE => server.write(call).await,
        Truncate::OPCODE => server.truncate(call).await,
        Copy::OPCODE => Box::pin(server.copy(call)).await,
        Examine::OPCODE => server.examine(call).await,
        Checksum::OPCODE => server.checksum(call).await,
        ListObjects::OPCODE => server.list_objects(call).await,
        Prune::OPCODE => server.prune(call).await,
        Remove::OPCODE => server.remove(call).await,
        Undelete::OPCODE => server.undelete(call).await,
        Purge::OPCODE => server.purge(call).await,
        GetSpace::OPCODE => server.get_space(call).await,
        GetStatistics::OPCODE => server.get_statistics(call).await,
        Scrub::OPCODE => server.scrub(call).await,
        ScrubStatus::OPCODE => server.scrub_status(call).await,
        _ => Err(Refusal::Call(AbortCode::RXGEN_OPCODE)),
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
