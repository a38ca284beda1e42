//! The environment of the cache manager: configuration, clock, known cells, users, and figures.
//!
//! Every owner of state holds it. It holds none of them, and knows no vnode. Its own state is
//! independent of files: settings (`settings.rs`), users (`user.rs`), the paths to servers
//! (`cellar_client::reach`), and counters.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cellar_cachestore::Space;
use cellar_rpc::Port;
use cellar_wire::ids::AfsTime;
use cellar_wire::rxafs::AfsStoreStatus;

use super::metrics::Counts;
use super::user::Identities;
use super::watcher::Audience;
use super::{Clock, Options};
use cellar_client::cell::{Cell, KnownCells};
use cellar_client::reach::Reach;

mod settings;
mod users;

use settings::Settings;
pub use settings::{SIZE_MIN, SYSNAMES_MAX};
pub(crate) use users::Users;

/// See the head of the file.
pub(crate) struct Environment {
    pub(super) options: Options,
    settings: Settings,
    pub(super) cells: Arc<KnownCells>,
    pub(super) port: Port,
    clock: Clock,
    pub(super) identities: Arc<dyn Identities>,
    pub(super) users: Users,
    pub(super) space: Arc<Space>,
    pub(super) counts: Counts,
    pub(super) reach: Arc<Reach>,
    /// The kernel, which receives notices.
    pub(super) audience: Audience,
}

impl Environment {
    pub(super) fn new(
        port: Port,
        options: Options,
        identities: Arc<dyn Identities>,
        clock: Clock,
    ) -> Self {
        Self {
            settings: Settings::new(options.size, &options.sysnames),
            cells: KnownCells::new(options.cells.clone()),
            options,
            port,
            clock,
            identities,
            users: Users::default(),
            space: Arc::default(),
            counts: Counts::default(),
            reach: Arc::default(),
            audience: Audience::default(),
        }
    }

    /// The home cell.
    pub(crate) fn home(&self) -> &Cell {
        // The list is not empty: `Cache::new` checks it.
        &self.options.cells[0]
    }

    pub(crate) fn now(&self) -> AfsTime {
        (self.clock)()
    }

    /// The bytes that the cache keeps now.
    pub(super) fn used(&self) -> u64 {
        self.space.used.load(Ordering::Relaxed)
    }

    pub(crate) fn new_status(&self, mode: u32) -> AfsStoreStatus {
        AfsStoreStatus {
            client_mod_time: Some(self.now()),
            unix_mode: Some(mode & 0o7777),
            ..AfsStoreStatus::default()
        }
    }
}
