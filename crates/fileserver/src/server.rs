//! The state that all calls share, and the work at regular intervals.
//!
//! The services hold this state, and it does not know them: `file_server.rs` brings both together.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cellar_fileobjects::Objects;
use cellar_wire::ids::AfsTime;
use tracing::{error, info};

use crate::afsvol::{Scrubs, Transactions};
use crate::callback::saved::{self, SavedState};
use crate::callback::{Breaker, CallbackTable, fid_hash};
use crate::config::Config;
use crate::host::{Contacts, HostTable};
use crate::leases::Leases;
use crate::limits::{HOUSEKEEPING_INTERVAL, SWEEP_INTERVAL, TRANSACTION_SWEEP_INTERVAL};
use crate::locations::{KnownLocations, ListedSites};
use crate::lock::LockTable;
use crate::network::Networks;
use crate::protection::Protection;
use crate::session::Clients;
use crate::statistics::Statistics;
use crate::volumes::Volumes;

/// The state that all calls share.
pub(crate) struct Server {
    pub(crate) config: Config,
    pub(crate) protection: Arc<dyn Protection>,
    pub(crate) volumes: Arc<Volumes>,
    pub(crate) hosts: Arc<HostTable>,
    pub(crate) callbacks: Arc<CallbackTable>,
    pub(crate) contacts: Arc<Contacts>,
    pub(crate) breaker: Breaker,
    /// Directories that hosts use exclusively. The leases of direct stores are in `objects`.
    pub(crate) leases: Arc<Leases>,
    pub(crate) locks: LockTable,
    pub(crate) statistics: Statistics,
    pub(crate) transactions: Transactions,
    pub(crate) scrubs: Scrubs,
    pub(crate) locations: Arc<KnownLocations>,
    pub(crate) clients: Clients,
    pub(crate) networks: Arc<Networks>,
    pub(crate) objects: Arc<Objects>,
    /// When the server started.
    pub(crate) started: Duration,
    /// Incremented by FlushCPS: the groups cached with connections and hosts are then loaded again.
    cps_generation: AtomicU64,
    making_room: AtomicBool,
    stopping: AtomicBool,
}

impl Server {
    /// The state of a server without partitions. Takes the saved callback state, if there is some.
    pub(crate) fn new(config: Config, protection: Arc<dyn Protection>) -> Self {
        let started = (config.clock)();
        let seed = started.as_nanos() as u64 ^ fid_hash(cellar_wire::Fid::new(0, 0, 0), 1);
        let uuid = u128::from_be_bytes(config.uuid.0);
        let callbacks = Arc::new(CallbackTable::new(
            config.callbacks_max,
            seed ^ (uuid >> 64) as u64,
        ));
        let hosts = Arc::new(HostTable::new(config.hosts_max));
        let contacts = Arc::new(Contacts::new(hosts.clone(), callbacks.clone(), config.uuid));
        let breaker = Breaker::new(callbacks.clone(), hosts.clone(), contacts.clone());
        let volumes = Arc::<Volumes>::default();
        let locations = Arc::<KnownLocations>::default();
        let networks = Arc::<Networks>::default();
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
        let server = Server {
            protection,
            volumes,
            hosts,
            callbacks,
            leases: contacts.leases.clone(),
            contacts,
            breaker,
            locks: LockTable::default(),
            statistics: Statistics::new(),
            transactions: Transactions::default(),
            scrubs: Scrubs::default(),
            locations,
            clients: Clients::default(),
            networks,
            objects,
            started,
            cps_generation: AtomicU64::new(0),
            making_room: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            config,
        };
        if let Some(path) = &server.config.callback_state {
            server.restore(path);
        }
        server
    }

    /// Ends the background work, and saves the callback state.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.objects.stop();
        let Some(path) = &self.config.callback_state else {
            return;
        };
        let state = SavedState::of(&self.hosts, &self.callbacks, &self.locks);
        match saved::save(path, &state) {
            Ok(()) => info!(hosts = state.hosts.len(), "callback state saved"),
            Err(cause) => error!(%cause, path = %path.display(), "callback state not saved"),
        }
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

    /// The number under which the groups of callers are valid. It changes with FlushCPS and with
    /// the protection database.
    pub(crate) fn cps_generation(&self) -> u64 {
        // Neither ever falls, so no two states have the same sum.
        let flushes = self.cps_generation.load(Ordering::Acquire);
        flushes.wrapping_add(self.protection.version())
    }

    /// Invalidates the cached groups of every caller and host.
    pub(crate) fn flush_cps(&self) {
        self.cps_generation.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Makes room in the full callback table, unless another task does so already.
    pub(crate) fn make_room_for_promises(self: &Arc<Self>) {
        if !self.making_room.swap(true, Ordering::AcqRel) {
            let server = self.clone();
            tokio::spawn(async move {
                server.callbacks.sweep(server.now_secs());
                server.contacts.make_room_for_promises().await;
                server.making_room.store(false, Ordering::Release);
            });
        }
    }

    /// Makes room in the full host table, unless another task does so already.
    pub(crate) fn make_room_for_hosts(self: &Arc<Self>) {
        if !self.making_room.swap(true, Ordering::AcqRel) {
            let server = self.clone();
            tokio::spawn(async move {
                server.contacts.make_room_for_hosts().await;
                server.making_room.store(false, Ordering::Release);
            });
        }
    }

    fn restore(&self, path: &Path) {
        match saved::take(path) {
            Ok(Some(state)) => {
                let hosts = state.hosts.len();
                let promises =
                    state.restore(&self.hosts, &self.callbacks, &self.locks, self.now_secs());
                info!(hosts, promises, "callback state restored");
            }
            Ok(None) => {}
            // As after a crash, every host is told to forget everything.
            Err(cause) => error!(%cause, path = %path.display(), "callback state not restored"),
        }
    }

    pub(crate) async fn run_housekeeping(self: Arc<Self>) {
        let mut sweeps = tokio::time::interval(SWEEP_INTERVAL);
        let mut rounds = tokio::time::interval(HOUSEKEEPING_INTERVAL);
        let idle = self.config.transaction_idle.max(Duration::from_secs(1));
        let mut transactions = tokio::time::interval(TRANSACTION_SWEEP_INTERVAL.min(idle / 2));
        loop {
            tokio::select! {
                _ = sweeps.tick() => {
                    let now = self.now_secs();
                    self.callbacks.sweep(now);
                    self.locks.sweep(now);
                    self.leases.sweep();
                    self.objects.sweep();
                }
                _ = transactions.tick() => self.expire_transactions(self.now_secs()),
                _ = rounds.tick() => self.contacts.tidy(self.now_secs()).await,
            }
            if self.is_stopping() {
                return;
            }
        }
    }
}
