//! The state that all calls share, and the work at regular intervals.
//!
//! It has a few services, and a handler takes those that it uses:
//!
//! | service | state |
//! | --- | --- |
//! | [`Sessions`] | callers: identities, groups, the records of connections |
//! | [`Callbacks`] | client machines: hosts, promises, leases of directories, locks |
//! | [`Volumes`] | partitions and volumes, and their states for clients |
//! | [`Objects`] | files whose bytes are in objects |
//! | [`Statistics`] | counters |
//!
//! The rest belongs to AFSVol (transactions, scrubs) and to single calls. The services of the ports
//! hold this state, and it does not know them: `file_server.rs` brings both together.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cellar_fileobjects::Objects;
use cellar_wire::ids::AfsTime;

use crate::afsvol::{Scrubs, Transactions};
use crate::callbacks::Callbacks;
use crate::config::Config;
use crate::limits::{HOUSEKEEPING_INTERVAL, SWEEP_INTERVAL, TRANSACTION_SWEEP_INTERVAL};
use crate::locations::{KnownLocations, ListedSites};
use crate::network::Networks;
use crate::protection::Protection;
use crate::session::Sessions;
use crate::statistics::Statistics;
use crate::volumes::Volumes;

/// The state that all calls share.
pub(crate) struct Server {
    pub(crate) config: Config,
    pub(crate) sessions: Sessions,
    pub(crate) callbacks: Arc<Callbacks>,
    pub(crate) volumes: Arc<Volumes>,
    pub(crate) objects: Arc<Objects>,
    pub(crate) statistics: Statistics,
    pub(crate) transactions: Transactions,
    pub(crate) scrubs: Scrubs,
    pub(crate) locations: Arc<KnownLocations>,
    pub(crate) networks: Arc<Networks>,
    /// When the server started.
    pub(crate) started: Duration,
    stopping: AtomicBool,
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
        Self {
            sessions: Sessions::new(&config, protection, networks.clone(), callbacks.clone()),
            callbacks,
            volumes,
            objects,
            statistics: Statistics::new(),
            transactions: Transactions::default(),
            scrubs: Scrubs::default(),
            locations,
            networks,
            started: (config.clock)(),
            stopping: AtomicBool::new(false),
            config,
        }
    }

    /// Ends the background work, and saves the callback state.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.objects.stop();
        self.callbacks.save();
    }

    /// The current time of the wall clock.
    pub(crate) fn wall(&self) -> Duration {
        (self.config.clock)()
    }

    /// The current time in the seconds of the wire.
    pub(crate) fn now(&self) -> AfsTime {
        AfsTime(self.now_secs())
    }

    /// The current time in seconds since 1970.
    pub(crate) fn now_secs(&self) -> u32 {
        AfsTime::after_1970(self.wall()).0
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
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
                _ = transactions.tick() => self.expire_transactions(self.now_secs()),
                _ = rounds.tick() => self.callbacks.contacts.tidy(self.now_secs()).await,
            }
            if self.is_stopping() {
                return;
            }
        }
    }
}
