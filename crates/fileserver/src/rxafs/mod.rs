//! RXAFS: the calls of clients. One file a procedure; the 32- and 64-bit forms share one.
//!
//! A handler reads its arguments, finds out who calls ([`crate::session`]), and then either
//! answers from memory on the spot or on a thread that may wait for the disk
//! ([`common::run`]). It fails with a [`Refusal`], which becomes the caller's code here.

mod bulk_status;
mod common;
mod create;
mod fetch_acl;
mod fetch_data;
mod fetch_status;
mod flush_cps;
mod get_capabilities;
mod get_statistics;
mod get_time;
mod get_volume_status;
mod get_x_stats;
mod give_up_callbacks;
mod link;
mod lock;
mod names;
mod promise;
mod refused;
mod remove;
mod rename;
mod set_volume_status;
mod store_acl;
mod store_data;
mod store_status;
mod symlink;

use std::sync::Arc;

use cellar_rpc::{IncomingCall, LocalBoxFuture, Service, ServiceOptions};
use cellar_wire::{AbortCode, Package, Procedure, rxafs};
use tokio::time::Instant;
use tracing::debug;

use crate::abort_map::Refusal;
use crate::server::Server;

/// RXAFS as a service.
pub(crate) struct FileService {
    server: Arc<Server>,
}

type Answered = Result<(), Refusal>;

impl FileService {
    pub(crate) fn new(server: Arc<Server>) -> Self {
        Self { server }
    }

    async fn answer(&self, call: &mut IncomingCall) -> Result<(), AbortCode> {
        let server = &self.server;
        let opcode = match call.opcode().await {
            Ok(opcode) => opcode,
            Err(code) => {
                server.statistics.refused(Refusal::Call(code).kind());
                return Err(code);
            }
        };
        let procedure = rxafs::PACKAGE.procedure(opcode);
        let begun = Instant::now();
        let outcome = match opcode {
            // What clients call all the time, without another allocation.
            rxafs::FetchStatus::OPCODE => fetch_status::fetch_status(server, call).await,
            rxafs::GetTime::OPCODE => get_time::get_time(server, call).await,
            _ => self.dispatch(opcode, call).await,
        };
        if let Some(procedure) = procedure {
            server
                .statistics
                .operation(procedure.index, outcome.is_err(), begun.elapsed());
        }
        let Err(refusal) = outcome else { return Ok(()) };
        server.statistics.refused(refusal.kind());
        let code = refusal.code(server.understands_uae(call));
        debug!(
            host = %call.peer().address,
            procedure = procedure.map_or("unknown", |procedure| procedure.name),
            code = code.0,
            ?refusal,
            "refused"
        );
        Err(code)
    }

    fn dispatch<'a>(
        &'a self,
        opcode: u32,
        call: &'a mut IncomingCall,
    ) -> LocalBoxFuture<'a, Answered> {
        let server = &self.server;
        match opcode {
            rxafs::FetchData::OPCODE => Box::pin(fetch_data::fetch_data(server, call)),
            rxafs::FetchData64::OPCODE => Box::pin(fetch_data::fetch_data64(server, call)),
            rxafs::FetchACL::OPCODE => Box::pin(fetch_acl::fetch_acl(server, call)),
            rxafs::StoreData::OPCODE => Box::pin(store_data::store_data(server, call)),
            rxafs::StoreData64::OPCODE => Box::pin(store_data::store_data64(server, call)),
            rxafs::OldStoreACL::OPCODE => Box::pin(store_acl::old_store_acl(server, call)),
            rxafs::StoreACL::OPCODE => Box::pin(store_acl::store_acl(server, call)),
            rxafs::StoreStatus::OPCODE => Box::pin(store_status::store_status(server, call)),
            rxafs::RemoveFile::OPCODE => Box::pin(remove::remove_file(server, call)),
            rxafs::RemoveDir::OPCODE => Box::pin(remove::remove_dir(server, call)),
            rxafs::CreateFile::OPCODE => Box::pin(create::create_file(server, call)),
            rxafs::MakeDir::OPCODE => Box::pin(create::make_dir(server, call)),
            rxafs::Rename::OPCODE => Box::pin(rename::rename(server, call)),
            rxafs::Symlink::OPCODE => Box::pin(symlink::symlink(server, call)),
            rxafs::Link::OPCODE => Box::pin(link::link(server, call)),
            rxafs::BulkStatus::OPCODE => Box::pin(bulk_status::bulk_status(server, call)),
            rxafs::InlineBulkStatus::OPCODE => {
                Box::pin(bulk_status::inline_bulk_status(server, call))
            }
            rxafs::SetLock::OPCODE => Box::pin(lock::set_lock(server, call)),
            rxafs::ExtendLock::OPCODE => Box::pin(lock::extend_lock(server, call)),
            rxafs::ReleaseLock::OPCODE => Box::pin(lock::release_lock(server, call)),
            rxafs::OldSetLock::OPCODE => Box::pin(lock::old_set_lock(server, call)),
            rxafs::OldExtendLock::OPCODE => Box::pin(lock::old_extend_lock(server, call)),
            rxafs::OldReleaseLock::OPCODE => Box::pin(lock::old_release_lock(server, call)),
            _ => self.dispatch_rare(opcode, call),
        }
    }

    /// Calls about the server, volumes and hosts, and those that are always refused.
    fn dispatch_rare<'a>(
        &'a self,
        opcode: u32,
        call: &'a mut IncomingCall,
    ) -> LocalBoxFuture<'a, Answered> {
        let server = &self.server;
        match opcode {
            rxafs::GetStatistics::OPCODE => Box::pin(get_statistics::get_statistics(server, call)),
            rxafs::GetStatistics64::OPCODE => {
                Box::pin(get_statistics::get_statistics64(server, call))
            }
            rxafs::XStatsVersion::OPCODE => Box::pin(get_x_stats::x_stats_version(server, call)),
            rxafs::GetXStats::OPCODE => Box::pin(get_x_stats::get_x_stats(server, call)),
            rxafs::GiveUpCallBacks::OPCODE => {
                Box::pin(give_up_callbacks::give_up_callbacks(server, call))
            }
            rxafs::GiveUpAllCallBacks::OPCODE => {
                Box::pin(give_up_callbacks::give_up_all_callbacks(server, call))
            }
            rxafs::GetVolumeStatus::OPCODE => {
                Box::pin(get_volume_status::get_volume_status(server, call))
            }
            rxafs::SetVolumeStatus::OPCODE => {
                Box::pin(set_volume_status::set_volume_status(server, call))
            }
            rxafs::GetCapabilities::OPCODE => {
                Box::pin(get_capabilities::get_capabilities(server, call))
            }
            rxafs::FlushCPS::OPCODE => Box::pin(flush_cps::flush_cps(server, call)),
            _ => Box::pin(refused::refuse(opcode, call)),
        }
    }
}

impl Service for FileService {
    fn package(&self) -> &'static Package {
        &rxafs::PACKAGE
    }

    fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
        Box::pin(self.answer(call))
    }

    fn options(&self) -> ServiceOptions {
        // A forged address must not make this server ask somebody else who they are.
        ServiceOptions {
            reach_check: true,
            ..ServiceOptions::default()
        }
    }
}
