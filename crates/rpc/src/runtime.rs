//! The runtime: shards and their open ports.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use cellar_rx::Security;
use parking_lot::Mutex;

use crate::clock::Clock;
use crate::connection::Connection;
use crate::driver::{Driver, DriverSetup, protocol_limits};
use crate::limits::{BLOCKING_THREADS, SHARDS_MAX, SOCKET_BUFFER_BYTES};
use crate::port::{Port, PortConfig, PortInner, Spread};
use crate::shard::{self, ShardHandle};
use crate::socket::{adopt_group, open_group};
use crate::statistics::PortStatistics;

/// Settings of a runtime.
#[derive(Clone, Debug)]
pub struct RuntimeConfig {
    /// Threads that drive the network; default one for each processor.
    pub shards: usize,
    /// Threads for blocking work, for each shard.
    pub blocking_threads: usize,
    /// Requested size of each socket's receive and send buffers, bytes.
    pub socket_buffer_bytes: usize,
    /// Silence after which a peer counts as dead; at least 6 s. Default 30 s.
    pub dead_time: Duration,
    /// Answer to VERSION packets (`rxdebug -version`); 64 bytes are sent.
    pub version: String,
    /// Name of the threads.
    pub name: String,
    /// Whether datagrams larger than the interface's MTU may be probed for and used.
    pub probe_mtu: bool,
    /// Whether calls on a long path share its measured capacity. Default: yes.
    pub path_share: bool,
    /// Whether anonymous callers may read statistics of procedures (RXSTATS). Default: only
    /// superusers.
    pub open_statistics: bool,
}

impl Default for RuntimeConfig {
    fn default() -> Self {
        Self {
            shards: std::thread::available_parallelism()
                .map_or(1, usize::from)
                .min(SHARDS_MAX),
            blocking_threads: BLOCKING_THREADS,
            socket_buffer_bytes: SOCKET_BUFFER_BYTES,
            dead_time: Duration::from_secs(30),
            version: format!("Cellar {}", env!("CARGO_PKG_VERSION")),
            name: "rx".to_owned(),
            probe_mtu: true,
            path_share: true,
            open_statistics: false,
        }
    }
}

/// Shards, and the state to open ports on them. Cheap to clone. The threads end when the last clone
/// is dropped or [`Runtime::shutdown`] is called.
#[derive(Clone)]
pub struct Runtime(Arc<Inner>);

struct Inner {
    shards: Vec<Arc<ShardHandle>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    config: RuntimeConfig,
    clock: Clock,
    /// Epoch of all client connections of this runtime.
    epoch: u32,
    /// Counters of the bounds for the process.
    shared: Arc<cellar_rx::Shared>,
    next_port: AtomicUsize,
    client: Mutex<Option<Port>>,
}

impl Runtime {
    /// Starts the shards. No port is open yet.
    ///
    /// # Errors
    /// The system refuses threads or event queues.
    pub fn start(config: RuntimeConfig) -> io::Result<Self> {
        let count = config.shards.clamp(1, SHARDS_MAX);
        let mut shards = Vec::with_capacity(count);
        let mut threads = Vec::with_capacity(count);
        for index in 0..count {
            let name = format!("{}-{index}", config.name);
            let (handle, thread) = shard::start(name, config.blocking_threads)?;
            shards.push(handle);
            threads.push(thread);
        }
        Ok(Self(Arc::new(Inner {
            shards,
            threads: Mutex::new(threads),
            config,
            clock: Clock::start(),
            epoch: rand::random(),
            shared: cellar_rx::Shared::new(&protocol_limits()),
            next_port: AtomicUsize::new(0),
            client: Mutex::new(None),
        })))
    }

    /// Creates a runtime for a tool: one shard, and a port for outgoing calls that the system
    /// chooses.
    ///
    /// # Errors
    /// As [`Runtime::start`], or no socket can be opened.
    pub fn client_only() -> io::Result<Self> {
        let runtime = Self::start(RuntimeConfig {
            shards: 1,
            name: "rx-client".to_owned(),
            ..RuntimeConfig::default()
        })?;
        runtime.client_port()?;
        Ok(runtime)
    }

    /// Number of shards.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.0.shards.len()
    }

    /// Opens a port.
    ///
    /// # Errors
    /// An address cannot be bound; if the configuration is lenient, no address can be bound.
    pub fn open(&self, config: PortConfig) -> io::Result<Port> {
        self.open_with(config, &mut Vec::new())
    }

    /// Opens a port as [`Self::open`] does, with sockets that another process had for it
    /// ([`Port::share`]), in the order of its shards. They have the packets that this process did
    /// not read. Sockets of other addresses are left; a group of another size is closed, and new
    /// sockets are opened.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(&self, config: PortConfig, given: &mut Vec<UdpSocket>) -> io::Result<Port> {
        let shards: Vec<Arc<ShardHandle>> = match config.spread {
            Spread::AllShards => self.0.shards.clone(),
            Spread::OneShard(number) => vec![self.0.shards[number % self.shards()].clone()],
        };
        let mut sockets: Vec<Vec<_>> = shards.iter().map(|_| Vec::new()).collect();
        let mut addresses = Vec::new();
        let mut failure = None;
        for address in &config.addresses {
            // Without a port number of its own, each further address gets that of the first.
            let mut address = *address;
            if address.port() == 0
                && let Some(first) = addresses.first().map(SocketAddr::port)
            {
                address.set_port(first);
            }
            let group = match adopt_group(given, address, shards.len()) {
                Some(group) => Ok((address, group)),
                None => open_group(address, shards.len(), self.0.config.socket_buffer_bytes),
            };
            match group {
                Ok((bound, group)) => {
                    addresses.push(bound);
                    for (set, socket) in sockets.iter_mut().zip(group) {
                        set.push(socket);
                    }
                }
                Err(cause) if config.lenient => failure = Some(cause),
                Err(cause) => {
                    let text = format!("cannot open UDP {address}: {cause}");
                    return Err(io::Error::new(cause.kind(), text));
                }
            }
        }
        if addresses.is_empty() {
            let unbound = || io::Error::new(io::ErrorKind::InvalidInput, "no address to bind");
            return Err(failure.unwrap_or_else(unbound));
        }
        Ok(self.install(&config, shards, sockets, addresses))
    }

    fn install(
        &self,
        config: &PortConfig,
        shards: Vec<Arc<ShardHandle>>,
        sockets: Vec<Vec<UdpSocket>>,
        addresses: Vec<SocketAddr>,
    ) -> Port {
        let id = self.0.next_port.fetch_add(1, Ordering::Relaxed);
        let statistics = Arc::new(PortStatistics::default());
        let inner = PortInner::new(id, shards, addresses, statistics, &config.security);
        let port = Port(Arc::new(inner));
        let count = port.0.shards.len();
        for (number, sockets) in sockets.into_iter().enumerate() {
            let setup = DriverSetup {
                port: port.clone(),
                number,
                count,
                sockets,
                clock: self.0.clock,
                epoch: self.0.epoch,
                shared: self.0.shared.clone(),
                seed: rand::random(),
                dead_time: self.0.config.dead_time,
                version: self.0.config.version.clone(),
                probe_mtu: self.0.config.probe_mtu,
                path_share: self.0.config.path_share,
                open_statistics: self.0.config.open_statistics,
                waiting_calls_max: config.waiting_calls_max,
                running_calls_max: config.running_calls_max,
                send_buffer_bytes: config.send_buffer_bytes,
                services: config.services.clone(),
                log_packets: config.log_packets,
            };
            let opened = port.0.shards[number].submit(Box::new(move |shard| {
                let id = setup.port.0.id;
                match Driver::start(setup) {
                    Ok(driver) => shard.set_driver(id, driver),
                    Err(cause) => tracing::error!(%cause, "cannot watch a UDP socket"),
                }
            }));
            if !opened {
                tracing::warn!("a port was opened on a runtime that has ended");
            }
        }
        port
    }

    /// Returns the default port for outgoing calls: any free one, on IPv4 and, if available, IPv6.
    /// It is opened on first use.
    ///
    /// # Errors
    /// No socket can be opened.
    pub fn client_port(&self) -> io::Result<Port> {
        let mut client = self.0.client.lock();
        if let Some(port) = &*client {
            return Ok(port.clone());
        }
        let mut config = PortConfig::new(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0))
            .address(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0));
        config.lenient = true;
        let port = self.open(config)?;
        *client = Some(port.clone());
        Ok(port)
    }

    /// Creates a connection to a service of a server, from [`Runtime::client_port`]. Nothing is
    /// sent yet.
    ///
    /// # Errors
    /// The client port cannot be opened (never after [`Runtime::client_only`]).
    pub fn connect(
        &self,
        peer: SocketAddr,
        service_id: u16,
        security: Security,
    ) -> io::Result<Connection> {
        Ok(self.client_port()?.connect(peer, service_id, security))
    }

    /// Runs a future on a shard's thread (`shard` modulo their number), where calls over
    /// connections of that shard need no queue.
    pub fn spawn<F, T>(&self, shard: usize, make: F)
    where
        F: FnOnce() -> T + Send + 'static,
        T: Future<Output = ()> + 'static,
    {
        let handle = &self.0.shards[shard % self.shards()];
        handle.submit(Box::new(move |_| {
            shard::spawn(make());
        }));
    }

    /// Closes all ports and ends the threads. Waits for them, unless called on one of them.
    pub fn shutdown(&self) {
        self.0.shutdown();
    }
}

impl Inner {
    fn shutdown(&self) {
        // The client port refers to the shards, not to this runtime. There is no cycle, but sockets
        // close now.
        self.client.lock().take();
        for shard in &self.shards {
            shard.submit(Box::new(|shard: &Rc<shard::Shard>| shard.end()));
        }
        let here = std::thread::current().id();
        for thread in self.threads.lock().drain(..) {
            if thread.thread().id() != here && thread.join().is_err() {
                tracing::error!("a shard's thread ended by a panic");
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("shards", &self.shards())
            .finish_non_exhaustive()
    }
}
