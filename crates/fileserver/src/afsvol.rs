//! AFSVol: volumes are created, listed and removed, for administrators. One file for each group of
//! procedures.
//!
//! The volume server is part of this server: a transaction changes the state of a volume for
//! clients directly through [`crate::volumes`]. Changes need a superuser (the local administrator,
//! or a holder of the cell's key). Any caller may read.
//!
//! SplitVolume is refused, because volumes of this format are not split by vnode.

mod change;
mod contents;
mod copy;
mod create;
mod delta_in;
mod delta_out;
mod dump;
mod forward;
mod list;
mod load;
mod partitions;
mod progress;
mod refill;
mod restore;
mod scrub;
mod scrubs;
mod status;
mod stream;
mod transaction;
mod traverse;
mod unfinished_volumes;

use std::sync::Arc;

use cellar_rpc::IncomingCall;
use cellar_volume::{Error, nonblocking};
use cellar_wire::serve::{CallHandler, HandleStream};
use cellar_wire::{AbortCode, Package, afsvol};

pub(crate) use scrubs::Scrubs;
pub(crate) use transaction::Transactions;

use crate::abort_map::{Refusal, store_code};
use crate::audit;
use crate::service::{self, Handlers};
use crate::services::VolumeServices;
use crate::session::Sessions;

/// AFSVol.
pub(crate) struct VolumeService {
    pub(crate) services: Arc<VolumeServices>,
}

/// The volume server never translates errors: an abort code is the whole answer.
type CallResult = Result<(), AbortCode>;

impl Handlers for VolumeService {
    const PACKAGE: &'static Package = &afsvol::PACKAGE;
    const FOR_CLIENTS: bool = false;

    fn sessions(&self) -> &Sessions {
        &self.services.sessions
    }

    async fn dispatch(&self, opcode: u32, call: &mut IncomingCall) -> service::CallResult {
        let answered = afsvol::serve(self, opcode, call).await;
        answered.map_err(Refusal::Code)
    }
}

impl CallHandler for VolumeService {
    type Refusal = AbortCode;

    fn failed(code: AbortCode) -> AbortCode {
        code
    }
}

/// Same answer as a volume server built without it.
impl HandleStream<afsvol::SplitVolume, IncomingCall> for VolumeService {
    async fn handle_stream(
        &self,
        call: &mut IncomingCall,
        _: afsvol::SplitVolume,
    ) -> Result<afsvol::SplitVolumeReply, AbortCode> {
        superuser(&self.services.sessions, call).map_err(|_| AbortCode::EPERM)?;
        Err(AbortCode::VOLSERBADOP)
    }
}

/// An administrative act: refused to all callers except superusers, and audited.
fn superuser(sessions: &Sessions, call: &IncomingCall) -> CallResult {
    audit::mark_act();
    if sessions.identify(call.caller()).is_superuser() {
        Ok(())
    } else {
        Err(AbortCode::VOLSERBAD_ACCESS)
    }
}

/// Runs work that nearly always finds its data in memory. It runs on this thread, and on the pool
/// only if it would block. So it may start twice.
async fn in_memory<T, F>(work: F) -> Result<T, AbortCode>
where
    F: Fn() -> cellar_volume::Result<T> + Send + 'static,
    T: Send + 'static,
{
    let done = match nonblocking(&work) {
        Err(Error::WouldBlock) => cellar_rpc::blocking(work).await,
        done => done,
    };
    done.map_err(code)
}

/// Runs work that may wait for the disk, or for other threads, on the pool.
async fn on_disk<T, F>(work: F) -> Result<T, AbortCode>
where
    F: FnOnce() -> Result<T, AbortCode> + Send + 'static,
    T: Send + 'static,
{
    cellar_rpc::blocking(work).await
}

fn code(error: Error) -> AbortCode {
    store_code(&error)
}
