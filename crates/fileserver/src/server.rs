//! The state of a file server, and the work at regular intervals.
//!
//! It consists of a few services, and the handlers of a package take those that they use
//! ([`crate::services`]):
//!
//! | service | state |
//! | --- | --- |
//! | [`Sessions`] | callers: identities, groups, the records of connections |
//! | [`Callbacks`] | client machines: hosts, promises, leases of directories, locks |
//! | [`Volumes`] | partitions and volumes, and their states for clients |
//! | [`Objects`] | files whose bytes are in objects |
//! | `Statistics` | counters |
//! | [`Load`] | the busiest volumes, users and client machines |
//!
//! The services of the ports hold this state, and it does not know them: `file_server.rs` brings
//! both together.

use std::sync::Arc;
use std::time::Duration;

use cellar_fileobjects::Objects;
use cellar_wire::ids::AfsTime;

use crate::afsvol::{Scrubs, Transactions};
use crate::callbacks::Callbacks;
use crate::config::Config;
use crate::figures::Counters;
use crate::limits::{HOUSEKEEPING_INTERVAL, SWEEP_INTERVAL, TRANSACTION_SWEEP_INTERVAL};
use crate::load::Load;
use crate::locations::{KnownLocations, ListedSites};
use crate::network::Networks;
use crate::protection::Protection;
use crate::recall_limits::RecallLimits;
use crate::services::{FileServices, Stopping, VolumeServices};
use crate::session::Sessions;
use crate::statistics::Statistics;
use crate::volumes::Volumes;

/// The state of a file server.
pub(crate) struct Server {
    pub(crate) config: Config,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) callbacks: Arc<Callbacks>,
    pub(crate) volumes: Arc<Volumes>,
    pub(crate) objects: Arc<Objects>,
    pub(crate) for_files: Arc<FileServices>,
    pub(crate) for_volumes: Arc<VolumeServices>,
    pub(crate) locations: Arc<KnownLocations>,
    pub(crate) networks: Arc<Networks>,
    /// When the server started.
    pub(crate) started: Duration,
    pub(crate) stopping: Stopping,
}

impl Server {
    /// The state of a server without partitions. Takes the saved callback state, if there is some.
    pub(crate) fn new(config: Config, protection: Arc<dyn Protection>) -> Self {
        let volumes = Arc::<Volumes>::default();
        let locations = Arc::<KnownLocations>::default();
        let networks = Arc::<Networks>::default();
        let callbacks = Arc::new(Callbacks::new(&config));
        let sites = Arc::new(ListedSites {
            locations: locations.clone(),
            networks: networks.clone(),
            clock: config.clock.clone(),
        });
        let objects = Arc::new(Objects::new(
            config.uuid,
            config.clock.clone(),
            volumes.clone(),
            sites,
        ));
        let sessions = Sessions::new(&config, protection, networks.clone(), callbacks.clone());
        let sessions = Arc::new(sessions);
        let stopping = Stopping::default();
        let load = Arc::<Load>::default();
        let for_files = FileServices {
            sessions: sessions.clone(),
            callbacks: callbacks.clone(),
            volumes: volumes.clone(),
            objects: objects.clone(),
            recall_limits: RecallLimits::default(),
            statistics: Statistics::new(),
            load: load.clone(),
        };
        let for_volumes = VolumeServices {
            sessions: sessions.clone(),
            callbacks: callbacks.clone(),
            volumes: volumes.clone(),
            objects: objects.clone(),
            transactions: Transactions::default(),
            scrubs: Scrubs::default(),
            load,
            networks: networks.clone(),
            authority: config.authority.clone(),
            clock: config.clock.clone(),
            transaction_idle: config.transaction_idle,
            stopping: stopping.clone(),
        };
        Self {
            sessions,
            callbacks,
            volumes,
            objects,
            for_files: Arc::new(for_files),
            for_volumes: Arc::new(for_volumes),
            locations,
            networks,
            started: (config.clock)(),
            stopping,
            config,
        }
    }

    /// Ends the background work, and saves the callback state.
    pub(crate) fn stop(&self) {
        self.stopping.begin();
        self.objects.stop();
        self.callbacks.save();
    }

    /// The counters of all services.
    pub(crate) fn counters(&self) -> Counters {
        Counters {
            files: self.for_files.clone(),
            volumes: self.for_volumes.clone(),
            started: self.started,
        }
    }

    /// The current time of the wall clock.
    pub(crate) fn wall(&self) -> Duration {
        (self.config.clock)()
    }

    /// The current time in seconds since 1970.
    pub(crate) fn now_secs(&self) -> u32 {
        AfsTime::after_1970(self.wall()).0
    }

    pub(crate) async fn run_housekeeping(self: Arc<Self>) {
        let mut sweeps = tokio::time::interval(SWEEP_INTERVAL);
        let mut rounds = tokio::time::interval(HOUSEKEEPING_INTERVAL);
        let idle = self.config.transaction_idle.max(Duration::from_secs(1));
        let mut transactions = tokio::time::interval(TRANSACTION_SWEEP_INTERVAL.min(idle / 2));
        loop {
            tokio::select! {
                _ = sweeps.tick() => {
                    self.callbacks.sweep();
                    self.objects.sweep();
                }
                _ = transactions.tick() => self.for_volumes.expire_transactions(),
                _ = rounds.tick() => self.callbacks.contacts.tidy(self.now_secs()).await,
            }
            if self.stopping.has_begun() {
                return;
            }
        }
    }
}
