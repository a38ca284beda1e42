//! The file server: the state that all calls share, and its life from start to stop.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cellar_rpc::{Connection, Port, Runtime, Service};
use cellar_volume::Partition;
use cellar_wire::ids::{AfsTime, PartitionId, VolumeId};
use tracing::{error, info};

use crate::afsosd::ObjectService;
use crate::afsvol::{Scrubs, Transactions, VolumeService};
use crate::callback::saved::{self, SavedState};
use crate::callback::{Breaker, CallbackTable, fid_hash};
use crate::config::Config;
use crate::figures::Figures;
use crate::host::{Contacts, HostTable};
use crate::leases::Leases;
use crate::limits::{HOUSEKEEPING_INTERVAL, SWEEP_INTERVAL, TRANSACTION_SWEEP_INTERVAL};
use crate::locations::{KnownLocations, Locations};
use crate::lock::LockTable;
use crate::network::Networks;
use crate::objects::{ObjectConfig, Objects};
use crate::protection::Protection;
use crate::register;
use crate::rxafs::FileService;
use crate::service::Answering;
use crate::session::Clients;
use crate::statistics::Statistics;
use crate::volumes::Volumes;

/// A file server with its volume server: one process owns its partitions. Cheap to clone.
///
/// Life cycle:
///
/// 1. [`FileServer::new`];
/// 2. [`FileServer::add_partition`] for each partition;
/// 3. the services are added to ports ([`FileServer::file_service`],
///    [`FileServer::volume_service`]);
/// 4. [`FileServer::start`];
/// 5. [`FileServer::stop`], before the partitions are closed.
#[derive(Clone)]
pub struct FileServer(Arc<Server>);

/// The state that all calls share.
pub(crate) struct Server {
    pub(crate) config: Config,
    pub(crate) protection: Arc<dyn Protection>,
    pub(crate) volumes: Volumes,
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
    pub(crate) locations: KnownLocations,
    pub(crate) clients: Clients,
    pub(crate) networks: Networks,
    pub(crate) objects: Objects,
    /// When the server started.
    pub(crate) started: Duration,
    /// Incremented by FlushCPS: the groups cached with connections and hosts are then loaded again.
    cps_generation: AtomicU64,
    making_room: AtomicBool,
    stopping: AtomicBool,
}

impl FileServer {
    /// A file server without partitions.
    ///
    /// If the configuration names a file of saved callback state, the file is read and deleted. A
    /// later crash therefore leaves no such file, and the next start treats it as a crash.
    #[must_use]
    pub fn new(config: Config, protection: Arc<dyn Protection>) -> Self {
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
        let server = Server {
            protection,
            volumes: Volumes::default(),
            hosts,
            callbacks,
            leases: contacts.leases.clone(),
            contacts,
            breaker,
            locks: LockTable::default(),
            statistics: Statistics::new(),
            transactions: Transactions::default(),
            scrubs: Scrubs::default(),
            locations: KnownLocations::default(),
            clients: Clients::default(),
            networks: Networks::default(),
            objects: Objects::default(),
            started,
            cps_generation: AtomicU64::new(0),
            making_room: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            config,
        };
        if let Some(path) = &server.config.callback_state {
            server.restore(path);
        }
        Self(Arc::new(server))
    }

    /// Adds a partition, whose volumes the server then serves.
    pub fn add_partition(&self, id: PartitionId, partition: Arc<Partition>) {
        self.0.volumes.add(id, partition);
    }

    /// The served partitions, ordered by id.
    #[must_use]
    pub fn partitions(&self) -> Vec<(PartitionId, Arc<Partition>)> {
        self.0.volumes.partitions()
    }

    /// RXAFS, for the file server's port (7000).
    #[must_use]
    pub fn file_service(&self) -> Arc<dyn Service> {
        Arc::new(Answering::new(FileService {
            server: self.0.clone(),
        }))
    }

    /// AFSOSD, for the same port as the file service.
    #[must_use]
    pub fn object_service(&self) -> Arc<dyn Service> {
        Arc::new(Answering::new(ObjectService {
            server: self.0.clone(),
        }))
    }

    /// AFSVol, for the volume server's port (7005) and the local administrator's socket.
    #[must_use]
    pub fn volume_service(&self) -> Arc<dyn Service> {
        Arc::new(Answering::new(VolumeService {
            server: self.0.clone(),
        }))
    }

    /// Starts the background work on `runtime`. `port` is the port of the file service; the server
    /// calls hosts from it.
    pub fn start(&self, runtime: &Runtime, port: &Port) {
        self.0.contacts.use_port(port);
        self.0.networks.add(&[port.local_address()]);
        let server = self.0.clone();
        runtime.spawn(0, || async move { server.run_housekeeping().await });
        let server = self.0.clone();
        runtime.spawn(0, || async move {
            server.remove_unfinished_volumes_later().await
        });
    }

    /// Adds addresses at which others call this server. Needed when its ports are bound to all
    /// addresses of the machine.
    pub fn has_addresses(&self, addresses: &[SocketAddr]) {
        self.0.networks.add(addresses);
    }

    /// Sets the port of the volume service. Transfers between two partitions of this server then
    /// bypass the network; without this call they go through the volume service.
    pub fn serves_volumes_at(&self, port: &Port) {
        self.0.networks.add_volume_server(port.local_address());
    }

    /// Registers this server's UUID and addresses in the volume location database. Tries `servers`
    /// in turn, and repeats after a pause, until one accepts. Returns at once.
    ///
    /// Only IPv4 addresses can be registered.
    pub fn register(&self, runtime: &Runtime, servers: Vec<Connection>, addresses: &[SocketAddr]) {
        let server = self.0.clone();
        self.0.networks.add(addresses);
        let addresses = register::registrable(addresses);
        runtime.spawn(0, || async move {
            register::register(&server.config.uuid, &servers, &addresses, || {
                server.is_stopping()
            })
            .await;
        });
    }

    /// Sets the location database that answers GetVolumeInfo, a call of the oldest clients. It is a
    /// database of this process, or a [`Connection`] to its server. Only the first call has an
    /// effect.
    pub fn use_locations(&self, locations: Arc<dyn Locations>) {
        self.0.locations.set(locations);
    }

    /// Announces that [`FileServer::use_objects`] will follow soon. A server that answers calls
    /// before `use_objects` must know this. Stores of files that a policy sends to devices then
    /// wait for the devices, and do not go to the local disk.
    pub fn expect_objects(&self) {
        self.0.objects.loaded_lists.expect();
    }

    /// Uses the object storage of the cell from now on. Only the first call has an effect. The
    /// server calls devices from `port`. Returns the devices, which follow the database's list.
    pub fn use_objects(
        &self,
        runtime: &Runtime,
        port: &Port,
        config: ObjectConfig,
    ) -> cellar_objects::Devices {
        Objects::start(&self.0, runtime, port, config)
    }

    /// Starts to repair objects and to collect garbage. Only the first call has an effect.
    pub fn keep_objects(&self, runtime: &Runtime, upkeep: crate::Upkeep) {
        Objects::start_upkeep(&self.0, runtime, upkeep);
    }

    /// Removes volumes whose creation an earlier run of the server did not finish and no
    /// transaction continues. The server itself does this ten minutes after its start.
    pub async fn remove_unfinished_volumes(&self) {
        self.0.remove_unfinished_volumes().await;
    }

    /// Breaks the promises for everything in a volume that was replaced or removed. Waits until the
    /// hosts have been notified or are down.
    pub async fn break_volume(&self, volume: VolumeId) {
        let pending = self.0.breaker.collect_volume(volume, self.0.now_secs());
        self.0.breaker.wait_for_delivery(pending).await;
    }

    /// A snapshot of every counter.
    #[must_use]
    pub fn figures(&self) -> Figures {
        Figures::collect(&self.0)
    }

    /// Ends the background work and saves callback state, if the configuration names a file for it.
    /// Call this when the server answers no more calls, and before the partitions are closed.
    pub fn stop(&self) {
        self.0.stopping.store(true, Ordering::Release);
        let Some(path) = &self.0.config.callback_state else {
            return;
        };
        let state = SavedState::of(&self.0.hosts, &self.0.callbacks, &self.0.locks);
        match saved::save(path, &state) {
            Ok(()) => info!(hosts = state.hosts.len(), "callback state saved"),
            Err(cause) => error!(%cause, path = %path.display(), "callback state not saved"),
        }
    }
}

impl Server {
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

    async fn run_housekeeping(self: Arc<Self>) {
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
                    self.objects.open_reads.sweep(now.into());
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
