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
mod object_bytes;
mod partitions;
mod progress;
mod refill;
mod restore;
mod scrub;
mod status;
mod stream;
mod transaction;
mod traverse;
mod unfinished_volumes;

use std::sync::Arc;

use cellar_rpc::{IncomingCall, LocalBoxFuture};
use cellar_volume::{Error, nonblocking};
use cellar_wire::{AbortCode, Package, afsvol};

pub(crate) use scrub::Scrubs;
pub(crate) use transaction::Transactions;

use crate::abort_map::{Refusal, store_code};
use crate::audit;
use crate::server::Server;
use crate::service::{self, Handlers, route};

/// AFSVol.
pub(crate) struct VolumeService;

/// The volume server never translates errors: an abort code is the whole answer.
type CallResult = Result<(), AbortCode>;

impl Handlers for VolumeService {
    const PACKAGE: &'static Package = &afsvol::PACKAGE;
    const FOR_CLIENTS: bool = false;

    async fn dispatch(
        server: &Arc<Server>,
        opcode: u32,
        call: &mut IncomingCall,
    ) -> service::CallResult {
        handle(server, opcode, call).await.map_err(Refusal::Code)
    }
}

fn handle<'a>(
    server: &'a Arc<Server>,
    opcode: u32,
    call: &'a mut IncomingCall,
) -> LocalBoxFuture<'a, CallResult> {
    route!(opcode, server, call, {
        afsvol::CreateVolume => create::create_volume,
        afsvol::Clone => create::clone_volume,
        afsvol::ReClone => create::re_clone,
        afsvol::DeleteVolume => change::delete_volume,
        afsvol::NukeVolume => change::nuke_volume,
        afsvol::SetFlags => change::set_flags,
        afsvol::SetInfo => change::set_info,
        afsvol::SetDate => change::set_date,
        afsvol::SetIdsTypes => change::set_ids_types,
        afsvol::TransCreate => status::trans_create,
        afsvol::EndTrans => status::end_trans,
        afsvol::GetFlags => status::get_flags,
        afsvol::GetName => status::get_name,
        afsvol::GetStatus => status::get_status,
        afsvol::Monitor => status::monitor,
        afsvol::ListVolumes => list::list_volumes,
        afsvol::XListVolumes => list::x_list_volumes,
        afsvol::ListOneVolume => list::list_one_volume,
        afsvol::XListOneVolume => list::x_list_one_volume,
        afsvol::ListPartitions => partitions::list_partitions,
        afsvol::XListPartitions => partitions::x_list_partitions,
        afsvol::PartitionInfo => partitions::partition_info,
        afsvol::PartitionInfo64 => partitions::partition_info64,
        afsvol::Dump => dump::dump,
        afsvol::DumpV2 => dump::dump_v2,
        afsvol::GetSize => dump::get_size,
        afsvol::Restore => restore::restore,
        afsvol::Forward => forward::forward,
        afsvol::ForwardMultiple => forward::forward_multiple,
        afsvol::GetState => delta_in::get_state,
        afsvol::RestoreDelta => delta_in::restore_delta,
        afsvol::GetCapabilities => delta_in::get_capabilities,
        afsvol::GetObjectCell => delta_in::get_object_cell,
        afsvol::Traverse => traverse::traverse,
        afsvol::Scrub => scrub::scrub,
        afsvol::Refill => refill::refill,
        afsvol::ConvertROtoRWvolume => change::convert,
        afsvol::SplitVolume => split_volume,
        afsvol::SetForwarding => change::set_forwarding,
        afsvol::GetNthVolume => get_nth_volume,
        afsvol::SignalRestore => change::signal_restore,
    } else Box::pin(std::future::ready(Err(AbortCode::RXGEN_OPCODE))))
}

/// Same answer as every volume server.
async fn get_nth_volume(_server: &Arc<Server>, _call: &mut IncomingCall) -> CallResult {
    Err(AbortCode::VOLSERNO_OP)
}

/// Same answer as a volume server built without it.
async fn split_volume(server: &Arc<Server>, call: &mut IncomingCall) -> CallResult {
    let afsvol::SplitVolume { .. } = call.arguments().await?;
    superuser(server, call).map_err(|_| AbortCode::EPERM)?;
    Err(AbortCode::VOLSERBADOP)
}

/// An administrative act: refused to all callers except superusers, and audited.
fn superuser(server: &Server, call: &IncomingCall) -> CallResult {
    audit::mark_act();
    if server.identify(call.caller()).is_superuser() {
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
