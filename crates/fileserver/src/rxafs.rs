//! RXAFS: the calls of clients. One file for each procedure; the 32- and 64-bit forms share one.
//!
//! A handler is a [`cellar_wire::serve::Handle`] of [`FileService`]. It determines the caller
//! ([`crate::session`]). Then it answers from memory at once, or on a thread that may wait for the
//! disk ([`common::run`]). It fails with a [`Refusal`], which [`crate::service`] maps to the
//! caller's code. Calls that file servers always refuse are declared so in the package.

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
mod remove;
mod rename;
mod set_volume_status;
mod store_acl;
mod store_data;
pub(crate) mod store_status;
mod symlink;

use std::sync::Arc;
use std::time::Duration;

use cellar_rpc::IncomingCall;
use cellar_wire::serve::CallHandler;
use cellar_wire::{AbortCode, Package, rxafs};
use tokio::time::Instant;

use crate::abort_map::Refusal;
use crate::figures::Counters;
use crate::load;
use crate::locations::KnownLocations;
use crate::recall;
use crate::service::{CallResult, Handlers};
use crate::services::FileServices;
use crate::session::Sessions;

/// RXAFS.
pub(crate) struct FileService {
    pub(crate) services: Arc<FileServices>,
    /// Answers GetVolumeInfo.
    pub(crate) locations: Arc<KnownLocations>,
    /// Answers GetStatistics and GetXStats.
    pub(crate) counters: Counters,
}

impl Handlers for FileService {
    const PACKAGE: &'static Package = &rxafs::PACKAGE;

    fn sessions(&self) -> &Sessions {
        &self.services.sessions
    }

    async fn dispatch(&self, opcode: u32, call: &mut IncomingCall) -> CallResult {
        let begun = Instant::now();
        let (outcome, note) = load::observe(rxafs::serve(self, opcode, call)).await;
        self.services.load.add(&note, begun.elapsed());
        recall::begin_if_wiped(&self.services, call, outcome).await
    }

    fn ended(&self, procedure: Option<usize>, outcome: &CallResult, took: Duration) {
        if let Some(index) = procedure {
            self.services
                .statistics
                .operation(index, outcome.is_err(), took);
        }
        if let Err(refusal) = outcome {
            self.services.statistics.refused(refusal.kind());
        }
    }
}

impl CallHandler for FileService {
    type Refusal = Refusal;

    fn failed(code: AbortCode) -> Refusal {
        Refusal::Call(code)
    }

    /// Clients that understand universal errno codes get them also for declared refusals.
    fn declared(code: AbortCode) -> Refusal {
        match code {
            AbortCode::EINVAL => Refusal::Invalid,
            AbortCode::VNOVOL => Refusal::NoVolume,
            AbortCode::EOPNOTSUPP => Refusal::NotSupported,
            AbortCode::ECONNREFUSED => Refusal::ConnectionRefused,
            code => Refusal::Code(code),
        }
    }
}
