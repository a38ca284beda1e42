//! The file server as the program uses it: its services, and its life from start to stop.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cellar_fileobjects::ObjectConfig;
use cellar_rpc::{Connection, Port, Runtime, Service};
use cellar_volume::Partition;
use cellar_wire::ids::{PartitionId, VolumeId};

use crate::afsosd::ObjectService;
use crate::afsvol::VolumeService;
use crate::audit::Acts;
use crate::config::Config;
use crate::figures::{Figures, ScrubFigures};
use crate::locations::Locations;
use crate::protection::Protection;
use crate::recall_limits::RecallLimit;
use crate::register;
use crate::rxafs::FileService;
use crate::server::Server;
use crate::service::{Answering, Handlers};

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

impl FileServer {
    /// A file server without partitions.
    ///
    /// If the configuration names a file of saved callback state, the file is read and deleted. A
    /// later crash therefore leaves no such file, and the next start treats it as a crash.
    #[must_use]
    pub fn new(config: Config, protection: Arc<dyn Protection>) -> Self {
        Self(Arc::new(Server::new(config, protection)))
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
        Arc::new(self.answering(FileService {
            services: self.0.for_files.clone(),
            locations: self.0.locations.clone(),
            counters: self.0.counters(),
        }))
    }

    /// AFSOSD, for the same port as the file service.
    #[must_use]
    pub fn object_service(&self) -> Arc<dyn Service> {
        Arc::new(self.answering(ObjectService {
            services: self.0.for_files.clone(),
        }))
    }

    /// AFSVol, for the volume server's port (7005) and the local administrator's socket.
    #[must_use]
    pub fn volume_service(&self) -> Arc<dyn Service> {
        Arc::new(self.answering(VolumeService {
            services: self.0.for_volumes.clone(),
        }))
    }

    fn answering<H: Handlers>(&self, handlers: H) -> Answering<H> {
        let acts = Acts {
            sessions: self.0.sessions.clone(),
            clock: self.0.config.clock.clone(),
            audit: self.0.config.audit.clone(),
        };
        Answering::new(handlers, acts)
    }

    /// Starts the background work on `runtime`. `port` is the port of the file service; the server
    /// calls hosts from it.
    pub fn start(&self, runtime: &Runtime, port: &Port) {
        self.0.callbacks.contacts.use_port(port);
        self.0.networks.add(&[port.local_address()]);
        let server = self.0.clone();
        runtime.spawn(0, || async move { server.run_housekeeping().await });
        let (volumes, started) = (self.0.for_volumes.clone(), self.0.started);
        runtime.spawn(0, move || async move {
            volumes.remove_unfinished_volumes_later(started).await
        });
    }

    /// Limits the recalls of wiped files from now on. Without this call there are no limits.
    pub fn set_recall_limits(&self, limits: Vec<RecallLimit>) {
        self.0.for_files.recall_limits.set(limits);
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
                server.stopping.has_begun()
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
        self.0.objects.expect();
    }

    /// Uses the object storage of the cell from now on. Only the first call has an effect. The
    /// server calls devices from `port`. Returns the devices, which follow the database's list.
    pub fn use_objects(
        &self,
        runtime: &Runtime,
        port: &Port,
        config: ObjectConfig,
    ) -> cellar_objects::Devices {
        self.0.objects.start(runtime, port, config)
    }

    /// Starts to repair objects and to collect garbage. Only the first call has an effect.
    pub fn keep_objects(&self, runtime: &Runtime, upkeep: crate::Upkeep) {
        self.0.objects.start_upkeep(runtime, upkeep);
    }

    /// Keeps older bytes of files in archives for that time: of removed files, and superseded ones.
    /// Called before the server answers calls. Only the first call has an effect.
    pub fn keep_older(&self, time: Duration) {
        self.0.objects.keep_older(time);
    }

    /// Starts the job engine, and copies files to archives and wipes them as policies and water
    /// marks demand. Only the first call has an effect.
    pub fn keep_archives(&self, runtime: &Runtime, config: crate::HsmConfig) {
        self.0.objects.start_hsm(runtime, config);
    }

    /// Scrubs each partition at regular intervals on `runtime`: `every` from one start to the next,
    /// zero for never; `rate` in bytes a second for each partition.
    pub fn scrub_regularly(&self, runtime: &Runtime, every: Duration, rate: u64) {
        let volumes = self.0.for_volumes.clone();
        runtime.spawn(0, move || async move {
            volumes.scrub_regularly(every, rate).await;
        });
    }

    /// The scrubs of the partitions that had one since the start.
    #[must_use]
    pub fn scrub_figures(&self) -> Vec<ScrubFigures> {
        self.0.for_volumes.scrubs.figures()
    }

    /// Removes volumes whose creation an earlier run of the server did not finish and no
    /// transaction continues. The server itself does this ten minutes after its start.
    pub async fn remove_unfinished_volumes(&self) {
        let (volumes, started) = (&self.0.for_volumes, self.0.started);
        volumes.remove_unfinished_volumes(started).await;
    }

    /// Breaks the promises for everything in a volume that was replaced or removed. Waits until the
    /// hosts have been notified or are down.
    pub async fn break_volume(&self, volume: VolumeId) {
        let pending = self
            .0
            .callbacks
            .breaker
            .collect_volume(volume, self.0.now_secs());
        self.0.callbacks.breaker.wait_for_delivery(pending).await;
    }

    /// A snapshot of every counter.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.0.counters().figures()
    }

    /// Ends the background work and saves callback state, if the configuration names a file for it.
    /// Call this when the server answers no more calls, and before the partitions are closed.
    pub fn stop(&self) {
        self.0.stop();
    }
}
