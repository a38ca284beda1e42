//! RXAFS: the calls of clients. One file for each procedure; the 32- and 64-bit forms share one.
//!
//! A handler reads its arguments and determines the caller ([`crate::session`]). Then it answers
//! from memory at once, or on a thread that may wait for the disk ([`common::run`]). It fails with
//! a [`crate::abort_map::Refusal`], which [`crate::service`] maps to the caller's code.

mod bulk_status;
pub(crate) mod common;
mod create;
mod fetch_acl;
mod fetch_data;
mod fetch_status;
mod flush_cps;
mod get_capabilities;
mod get_statistics;
mod get_time;
mod get_volume_info;
mod get_volume_status;
mod get_x_stats;
mod give_up_callbacks;
mod lease;
mod link;
mod lock;
mod make_many;
mod names;
mod performance;
pub(crate) mod promise;
mod refused;
mod remove;
mod rename;
mod set_volume_status;
mod store_acl;
mod store_data;
pub(crate) mod store_status;
mod symlink;

use std::sync::Arc;
use std::time::Duration;

use cellar_rpc::{IncomingCall, LocalBoxFuture};
use cellar_wire::{Package, Procedure, rxafs};

use crate::server::Server;
use crate::service::{CallResult, Handlers, route};

/// RXAFS.
pub(crate) struct FileService;

impl Handlers for FileService {
    const PACKAGE: &'static Package = &rxafs::PACKAGE;

    async fn dispatch(server: &Arc<Server>, opcode: u32, call: &mut IncomingCall) -> CallResult {
        match opcode {
            // The most frequent calls, without another allocation.
            rxafs::FetchStatus::OPCODE => fetch_status::fetch_status(server, call).await,
            rxafs::GetTime::OPCODE => get_time::get_time(server, call).await,
            _ => files(server, opcode, call).await,
        }
    }

    fn ended(server: &Server, procedure: Option<usize>, outcome: &CallResult, took: Duration) {
        if let Some(index) = procedure {
            server.statistics.operation(index, outcome.is_err(), took);
        }
        if let Err(refusal) = outcome {
            server.statistics.refused(refusal.kind());
        }
    }
}

/// Calls about files.
fn files<'a>(
    server: &'a Arc<Server>,
    opcode: u32,
    call: &'a mut IncomingCall,
) -> LocalBoxFuture<'a, CallResult> {
    route!(opcode, server, call, {
        rxafs::FetchData => fetch_data::fetch_data,
        rxafs::FetchData64 => fetch_data::fetch_data64,
        rxafs::FetchACL => fetch_acl::fetch_acl,
        rxafs::StoreData => store_data::store_data,
        rxafs::StoreData64 => store_data::store_data64,
        rxafs::OldStoreACL => store_acl::old_store_acl,
        rxafs::StoreACL => store_acl::store_acl,
        rxafs::StoreStatus => store_status::store_status,
        rxafs::RemoveFile => remove::remove_file,
        rxafs::RemoveDir => remove::remove_dir,
        rxafs::CreateFile => create::create_file,
        rxafs::MakeDir => create::make_dir,
        rxafs::Rename => rename::rename,
        rxafs::Symlink => symlink::symlink,
        rxafs::Link => link::link,
        rxafs::BulkStatus => bulk_status::bulk_status,
        rxafs::InlineBulkStatus => bulk_status::inline_bulk_status,
        rxafs::SetLock => lock::set_lock,
        rxafs::ExtendLock => lock::extend_lock,
        rxafs::ReleaseLock => lock::release_lock,
        rxafs::OldSetLock => lock::old_set_lock,
        rxafs::OldExtendLock => lock::old_extend_lock,
        rxafs::OldReleaseLock => lock::old_release_lock,
        rxafs::HoldRanges => lock::hold_ranges,
        rxafs::TestRange => lock::test_range,
        rxafs::ReserveVnodes => lease::reserve_vnodes,
        rxafs::LeaseDirectory => lease::lease_directory,
        rxafs::ReturnDirectories => lease::return_directories,
        rxafs::MakeMany => make_many::make_many,
    } else about_the_server(server, opcode, call))
}

/// Calls about the server, volumes and hosts, and calls that are always refused.
fn about_the_server<'a>(
    server: &'a Arc<Server>,
    opcode: u32,
    call: &'a mut IncomingCall,
) -> LocalBoxFuture<'a, CallResult> {
    route!(opcode, server, call, {
        rxafs::GetStatistics => get_statistics::get_statistics,
        rxafs::GetStatistics64 => get_statistics::get_statistics64,
        rxafs::XStatsVersion => get_x_stats::x_stats_version,
        rxafs::GetXStats => get_x_stats::get_x_stats,
        rxafs::GiveUpCallBacks => give_up_callbacks::give_up_callbacks,
        rxafs::GiveUpAllCallBacks => give_up_callbacks::give_up_all_callbacks,
        rxafs::GetVolumeStatus => get_volume_status::get_volume_status,
        rxafs::SetVolumeStatus => set_volume_status::set_volume_status,
        rxafs::GetCapabilities => get_capabilities::get_capabilities,
        rxafs::FlushCPS => flush_cps::flush_cps,
        rxafs::GetVolumeInfo => get_volume_info::get_volume_info,
    } else Box::pin(refused::refuse(opcode, call)))
}
