//! The object storage server: state shared by its calls, start and stop.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cellar_auth::Authority;
use cellar_auth::capability::CapabilityKeys;
use cellar_rpc::{Port, Runtime, Service};
use cellar_volume::objects::ObjectStore;
use cellar_wire::osd::Figure;
use tokio::sync::Notify;

use crate::device::{Backing, Device};
use crate::limits::{DEVICES_MAX, PURGE_INTERVAL, STREAMS_MAX};
use crate::statistics::Statistics;
use crate::streams::Streams;

/// Configuration of an object storage server.
#[derive(Clone)]
pub struct Config {
    /// Authenticates callers with a ticket.
    pub authority: Authority,
    /// Keys that open capabilities.
    pub keys: Arc<CapabilityKeys>,
    /// The cell's OSD databases; each gets heartbeats.
    pub databases: Vec<SocketAddr>,
    /// Names of the databases' hosts, for the log.
    pub server_names: HashMap<IpAddr, String>,
    /// Addresses of this server for clients, the preferred one first.
    pub addresses: Vec<IpAddr>,
    /// Returns the time since 1970.
    pub clock: fn() -> Duration,
    /// Time for which a softly removed object can be restored.
    pub retention: Duration,
    /// Interval of checks for expired soft deletes.
    pub purge_interval: Duration,
    /// Read rate of the background scrub on each device, bytes per second; 0: no scrub.
    pub scrub_rate: u64,
    /// Time from the start of one background scrub to the start of the next, unless that is still
    /// running then; zero: no scrub.
    pub scrub_interval: Duration,
}

impl Config {
    /// The default settings: soft deletes end after a week, and everything is scrubbed about
    /// weekly, at up to 16 MiB/s.
    #[must_use]
    pub fn new(authority: Authority, keys: Arc<CapabilityKeys>, clock: fn() -> Duration) -> Self {
        let week = Duration::from_secs(7 * 86_400);
        Self {
            authority,
            keys,
            databases: Vec::new(),
            server_names: HashMap::new(),
            addresses: Vec::new(),
            clock,
            retention: week,
            purge_interval: PURGE_INTERVAL,
            scrub_rate: 16 << 20,
            scrub_interval: week,
        }
    }
}

/// An object storage server. Cheap to clone.
///
/// Call [`OsdServer::new`], add [`OsdServer::service`] to a port, and call [`OsdServer::start`].
/// When the port answers no more calls, [`OsdServer::stop`] closes the devices.
#[derive(Clone)]
pub struct OsdServer(pub(crate) Arc<Server>);

/// State shared by the calls.
pub(crate) struct Server {
    pub(crate) config: Config,
    /// Ordered by number.
    pub(crate) devices: Vec<Arc<Device>>,
    pub(crate) streams: Arc<Streams>,
    pub(crate) statistics: Statistics,
    /// Port for calls to other servers.
    pub(crate) port: OnceLock<Port>,
    /// Signals that a write has found no room.
    pub(crate) lacks_room: Notify,
    stopping: AtomicBool,
}

/// The room and the state of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceFigures {
    /// Its number in the cell.
    pub id: u32,
    /// Size of its file system, bytes.
    pub total_bytes: u64,
    /// Bytes that can still be written.
    pub free_bytes: u64,
    /// Number of present objects.
    pub objects: u64,
    /// Number of objects known to be damaged, up to 1024.
    pub damaged_objects: u64,
    /// Whether it accepts changes; it accepts none after an error of its disk.
    pub accepts_changes: bool,
}

impl std::fmt::Debug for OsdServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OsdServer({:?})", self.devices())
    }
}

impl OsdServer {
    /// Creates a server of these devices, by their numbers in the cell; devices beyond 64 are left
    /// out.
    #[must_use]
    pub fn new(config: Config, devices: Vec<(u32, impl Into<Backing>)>) -> Self {
        let devices = devices.into_iter().take(DEVICES_MAX);
        // Removals can be undone until a database says that they are final.
        let soft = !config.databases.is_empty();
        let mut devices: Vec<_> = devices
            .map(|(id, backing)| Arc::new(Device::new(id, backing.into(), soft)))
            .collect();
        devices.sort_by_key(|device| device.id);
        Self(Arc::new(Server {
            config,
            devices,
            streams: Streams::new(STREAMS_MAX),
            statistics: Statistics::default(),
            port: OnceLock::new(),
            lacks_room: Notify::new(),
            stopping: AtomicBool::new(false),
        }))
    }

    /// Returns the service for its port and for the local administrator's socket.
    #[must_use]
    pub fn service(&self) -> Arc<dyn Service> {
        Arc::new(crate::service::OsdService(self.0.clone()))
    }

    /// Returns the numbers of its devices, ascending.
    #[must_use]
    pub fn devices(&self) -> Vec<u32> {
        self.0.devices.iter().map(|device| device.id).collect()
    }

    /// Returns its counters, as in `GetStatistics`.
    #[must_use]
    pub fn figures(&self) -> Vec<Figure> {
        self.0.figures()
    }

    /// Returns the room and the state of each device. Queries the system.
    #[must_use]
    pub fn device_figures(&self) -> Vec<DeviceFigures> {
        let devices = self.0.devices.iter();
        devices.map(|device| device.figures()).collect()
    }

    /// Returns the counters that concern no single procedure: name, meaning, value. The calls are
    /// counted by the port.
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, &'static str, u64)> {
        let counters = self.0.statistics.counters().into_iter();
        counters
            .map(|(name, help, count)| (name, help, count.load(Ordering::Relaxed)))
            .collect()
    }

    /// Returns the counts of refused capabilities, by reason.
    #[must_use]
    pub fn refused_capabilities(&self) -> Vec<(&'static str, u64)> {
        let refused = self.0.config.keys.refused();
        refused.map(|(_, name, count)| (name, count)).collect()
    }

    /// Starts heartbeats and upkeep in the background. `port` is the one with the service.
    pub fn start(&self, runtime: &Runtime, port: &Port) {
        let _ = self.0.port.set(port.clone());
        let server = self.0.clone();
        runtime.spawn(0, || async move { server.send_heartbeats().await });
        let server = self.0.clone();
        runtime.spawn(0, || async move { server.run_upkeep().await });
    }

    /// Ends the background work and closes the devices.
    ///
    /// # Errors
    /// The error of the first device that did not close cleanly; no acknowledged change is lost.
    pub fn stop(&self) -> cellar_volume::Result<()> {
        self.0.stopping.store(true, Ordering::Release);
        let stores = self.0.devices.iter().filter_map(|device| device.store());
        let closed = stores.map(ObjectStore::close);
        closed.fold(Ok(()), Result::and)
    }
}

impl Server {
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Current time, seconds since 1970.
    pub(crate) fn now(&self) -> u64 {
        (self.config.clock)().as_secs()
    }

    /// A device that is served.
    pub(crate) fn device(&self, id: u32) -> Option<Arc<Device>> {
        let found = self.devices.binary_search_by_key(&id, |device| device.id);
        let device = &self.devices[found.ok()?];
        (!device.is_removed()).then(|| device.clone())
    }
}
