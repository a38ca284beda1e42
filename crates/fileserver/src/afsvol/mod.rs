//! AFSVol: volumes made, listed, removed, for administrators. One file a group of procedures.
//!
//! This server is its own volume server: a transaction changes what clients see of a volume through
//! [`crate::volumes`], with nobody in between. Changes are for the superuser (the local
//! administrator, or a holder of the cell's key); what only looks is for everybody.
//!
//! Not offered yet, and refused with `RXGEN_OPCODE` so that callers know it from an error: Restore,
//! Forward, ForwardMultiple, Dump, DumpV2, GetSize, ConvertROtoRWvolume,
//! SplitVolume.

mod change;
mod create;
mod list;
mod partitions;
mod transaction;

use std::sync::Arc;

use cellar_rpc::{IncomingCall, LocalBoxFuture, Service};
use cellar_volume::Error;
use cellar_wire::{AbortCode, Package, Procedure, afsvol};
use tracing::debug;

pub(crate) use transaction::Transactions;

use crate::abort_map::store_code;
use crate::server::Server;

/// AFSVol as a service.
pub(crate) struct VolumeService {
    server: Arc<Server>,
}

/// The volume server never translates errors: an abort code is the whole answer.
type Answered = Result<(), AbortCode>;

impl VolumeService {
    pub(crate) fn new(server: Arc<Server>) -> Self {
        Self { server }
    }

    async fn answer(&self, call: &mut IncomingCall) -> Answered {
        let opcode = call.opcode().await?;
        let outcome = self.dispatch(opcode, call).await;
        if let Err(code) = outcome {
            let name = afsvol::PACKAGE
                .procedure(opcode)
                .map_or("unknown", |known| known.name);
            debug!(host = %call.peer().address, procedure = name, code = code.0, "refused");
        }
        outcome
    }

    fn dispatch<'a>(
        &'a self,
        opcode: u32,
        call: &'a mut IncomingCall,
    ) -> LocalBoxFuture<'a, Answered> {
        let server = &self.server;
        match opcode {
            afsvol::CreateVolume::OPCODE => Box::pin(create::create_volume(server, call)),
            afsvol::Clone::OPCODE => Box::pin(create::clone_volume(server, call)),
            afsvol::ReClone::OPCODE => Box::pin(create::re_clone(server, call)),
            afsvol::DeleteVolume::OPCODE => Box::pin(change::delete_volume(server, call)),
            afsvol::NukeVolume::OPCODE => Box::pin(change::nuke_volume(server, call)),
            afsvol::SetFlags::OPCODE => Box::pin(change::set_flags(server, call)),
            afsvol::SetInfo::OPCODE => Box::pin(change::set_info(server, call)),
            afsvol::SetDate::OPCODE => Box::pin(change::set_date(server, call)),
            afsvol::SetIdsTypes::OPCODE => Box::pin(change::set_ids_types(server, call)),
            afsvol::TransCreate::OPCODE => Box::pin(transaction::trans_create(server, call)),
            afsvol::EndTrans::OPCODE => Box::pin(transaction::end_trans(server, call)),
            afsvol::GetFlags::OPCODE => Box::pin(transaction::get_flags(server, call)),
            afsvol::GetName::OPCODE => Box::pin(transaction::get_name(server, call)),
            afsvol::GetStatus::OPCODE => Box::pin(transaction::get_status(server, call)),
            afsvol::Monitor::OPCODE => Box::pin(transaction::monitor(server, call)),
            afsvol::ListVolumes::OPCODE => Box::pin(list::list_volumes(server, call)),
            afsvol::XListVolumes::OPCODE => Box::pin(list::x_list_volumes(server, call)),
            afsvol::ListOneVolume::OPCODE => Box::pin(list::list_one_volume(server, call)),
            afsvol::XListOneVolume::OPCODE => Box::pin(list::x_list_one_volume(server, call)),
            afsvol::ListPartitions::OPCODE => Box::pin(partitions::list_partitions(server, call)),
            afsvol::XListPartitions::OPCODE => {
                Box::pin(partitions::x_list_partitions(server, call))
            }
            afsvol::PartitionInfo::OPCODE => Box::pin(partitions::partition_info(server, call)),
            afsvol::PartitionInfo64::OPCODE => Box::pin(partitions::partition_info64(server, call)),
            afsvol::GetNthVolume::OPCODE => {
                Box::pin(std::future::ready(Err(AbortCode::VOLSERNO_OP)))
            }
            afsvol::SetForwarding::OPCODE => Box::pin(change::set_forwarding(server, call)),
            afsvol::SignalRestore::OPCODE => Box::pin(change::signal_restore(call)),
            _ => Box::pin(std::future::ready(Err(AbortCode::RXGEN_OPCODE))),
        }
    }
}

impl Service for VolumeService {
    fn package(&self) -> &'static Package {
        &afsvol::PACKAGE
    }

    fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
        Box::pin(self.answer(call))
    }
}

/// Refuses everybody but the superuser.
fn superuser(call: &IncomingCall) -> Answered {
    if call.caller().is_superuser() {
        Ok(())
    } else {
        Err(AbortCode::VOLSERBAD_ACCESS)
    }
}

/// Work of the volume server is rare and may wait for the disk: it always runs on the pool.
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
