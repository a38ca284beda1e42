//! An open UDP port: the handle for services and callers.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cellar_rx::{NullSecurity, Path, Security, ServerSecurity};

use crate::CallError;
use crate::connection::{CallOptions, Carrier, Connection, ConnectionOptions};
use crate::driver::Driver;
use crate::limits::{
    CALLS_PER_CONNECTION, RUNNING_CALLS_MAX, SEND_BUFFER_BYTES, WAITING_CALLS_MAX,
};
use crate::outgoing::{CallCarrier, CallShared, OutgoingCall};
use crate::service::Service;
use crate::shard::{self, ShardHandle};
use crate::socket::SocketFigures;
use crate::statistics::PortStatistics;

/// Configuration of a port. Start from [`PortConfig::new`].
#[derive(Clone)]
pub struct PortConfig {
    /// Addresses to bind; port 0 selects any free port. All must succeed unless `lenient`.
    pub addresses: Vec<SocketAddr>,
    /// Services of the port. More can be added later.
    pub services: Vec<Arc<dyn Service>>,
    /// Which shards serve the port.
    pub spread: Spread,
    /// Whether addresses that the system lacks (no IPv6) are skipped, as long as one is left.
    pub lenient: bool,
    /// Most waiting calls, for each shard; beyond, the host with the most is refused.
    pub waiting_calls_max: usize,
    /// Most calls running on this machine, for each shard, without those that wait for peers.
    pub running_calls_max: usize,
    /// Most bytes that each call may hold unacknowledged; at least 512 KiB. More lets a single
    /// stream fill a longer path, and costs that much for each stalled reader.
    pub send_buffer_bytes: usize,
    /// Security classes beside the null class, by index, for every service without
    /// [`crate::ServiceOptions::security`] of its own. A security class belongs to a port, as in
    /// OpenAFS.
    pub security: Vec<(u8, Arc<dyn ServerSecurity>)>,
    /// Whether each shard logs the packets of calls that it receives, for [`Port::share`]. A log
    /// takes 256 KiB.
    pub log_packets: bool,
}

/// Descriptors of one shard of a port, for another process.
#[derive(Debug)]
pub struct SharedShard {
    /// A socket for each address of the port.
    pub sockets: Vec<OwnedFd>,
    /// The log of received packets, if [`PortConfig::log_packets`] asked for it.
    pub log: Option<OwnedFd>,
}

/// The shards that serve a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// All shards: a connection belongs to shard `(cid >> 2) % shards`.
    AllShards,
    /// One shard, by its number modulo the number of shards: for clients with their own port.
    OneShard(usize),
}

impl PortConfig {
    /// A port on one address with the default limits, on all shards.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        Self {
            addresses: vec![address],
            services: Vec::new(),
            spread: Spread::AllShards,
            lenient: false,
            waiting_calls_max: WAITING_CALLS_MAX,
            running_calls_max: RUNNING_CALLS_MAX,
            send_buffer_bytes: SEND_BUFFER_BYTES,
            security: Vec::new(),
            log_packets: false,
        }
    }

    /// Adds a service.
    #[must_use]
    pub fn service(mut self, service: Arc<dyn Service>) -> Self {
        self.services.push(service);
        self
    }

    /// Adds an address.
    #[must_use]
    pub fn address(mut self, address: SocketAddr) -> Self {
        self.addresses.push(address);
        self
    }

    /// Adds a security class beside the null class, under its index.
    #[must_use]
    pub fn security(mut self, index: u8, class: Arc<dyn ServerSecurity>) -> Self {
        self.security.push((index, class));
        self
    }

    /// Chooses the shards.
    #[must_use]
    pub fn spread(mut self, spread: Spread) -> Self {
        self.spread = spread;
        self
    }
}

impl fmt::Debug for PortConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortConfig")
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

/// An open UDP port: serves its services and makes calls. Cheap to clone.
#[derive(Clone)]
pub struct Port(pub(crate) Arc<PortInner>);

pub(crate) struct PortInner {
    /// Index into each shard's table of ports.
    pub(crate) id: usize,
    /// The shards that serve it.
    pub(crate) shards: Vec<Arc<ShardHandle>>,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) statistics: Arc<PortStatistics>,
    /// The null class and the other default classes of services here.
    pub(crate) security: Vec<(u8, Arc<dyn ServerSecurity>)>,
    next_shard: AtomicUsize,
}

impl PortInner {
    pub(crate) fn new(
        id: usize,
        shards: Vec<Arc<ShardHandle>>,
        addresses: Vec<SocketAddr>,
        statistics: Arc<PortStatistics>,
        classes: &[(u8, Arc<dyn ServerSecurity>)],
    ) -> Self {
        let mut security: Vec<(u8, Arc<dyn ServerSecurity>)> = vec![(0, Arc::new(NullSecurity))];
        security.extend(classes.iter().cloned());
        Self {
            id,
            shards,
            addresses,
            statistics,
            security,
            next_shard: AtomicUsize::new(0),
        }
    }
}

impl Port {
    /// The bound addresses, with the port numbers that the system chose.
    #[must_use]
    pub fn local_addresses(&self) -> &[SocketAddr] {
        &self.0.addresses
    }

    /// The first of [`Self::local_addresses`].
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.0.addresses[0]
    }

    /// Adds a service. Calls that arrive before all shards know it are refused with
    /// `RX_INVALID_OPERATION`.
    pub fn add_service(&self, service: &Arc<dyn Service>) {
        for handle in &self.0.shards {
            let service = service.clone();
            let port = self.0.id;
            handle.submit(Box::new(move |shard| {
                if let Some(driver) = shard.driver(port) {
                    driver.add_service(service);
                }
            }));
        }
    }

    /// Index of the caller's shard among those of the port; `None` on any other thread. A caller
    /// that keeps a connection for each shard has calls that never cross threads.
    #[must_use]
    pub fn shard_here(&self) -> Option<usize> {
        let here = shard::current_handle()?;
        let mut shards = self.0.shards.iter();
        shards.position(|shard| Arc::ptr_eq(shard, &here))
    }

    /// Creates a connection from this port to a service of a server. Nothing is sent yet.
    ///
    /// On a shard's own thread the connection belongs to that shard; otherwise shards are used in
    /// turn.
    #[must_use]
    pub fn connect(&self, peer: SocketAddr, service_id: u16, security: Security) -> Connection {
        self.connect_with(peer, service_id, security, ConnectionOptions::default())
    }

    /// Like [`Self::connect`], with its own time-outs.
    #[must_use]
    pub fn connect_with(
        &self,
        peer: SocketAddr,
        service_id: u16,
        security: Security,
        options: ConnectionOptions,
    ) -> Connection {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let chosen = self.shard_here().unwrap_or_else(|| {
            self.0.next_shard.fetch_add(1, Ordering::Relaxed) % self.0.shards.len()
        });
        Connection(Carrier::Rx(Arc::new(RxConnection {
            key: NEXT.fetch_add(1, Ordering::Relaxed),
            port: self.clone(),
            shard: self.0.shards[chosen].clone(),
            peer,
            service_id,
            security,
            options,
            used: AtomicBool::new(false),
            path: AtomicU64::new(0),
            repeats: AtomicU64::new(0),
        })))
    }

    /// Reports that datagrams leave from another address of this machine than before. Servers
    /// answer to the address of a connection's first packet. Outgoing calls begun before `since`
    /// therefore fail with [`CallError::Dead`] now. The caller must create new connections.
    pub fn handle_new_address(&self, since: Instant) {
        for handle in &self.0.shards {
            let port = self.0.id;
            handle.submit(Box::new(move |shard| {
                if let Some(driver) = shard.driver(port) {
                    driver.handle_new_address(since);
                }
            }));
        }
    }

    /// Processes a datagram as if `from` had sent it to this port: another process had the port
    /// when it came. The caller vouches for the sender.
    pub fn deliver(&self, from: SocketAddr, datagram: &Bytes) {
        for handle in &self.0.shards {
            let (port, datagram) = (self.0.id, datagram.clone());
            handle.submit(Box::new(move |shard| {
                if let Some(driver) = shard.driver(port) {
                    driver.take_delivered(from, datagram);
                }
            }));
        }
    }

    /// Sends a datagram that gets no answer from this port, so that address translators on the way
    /// keep passing packets from `peer`.
    pub fn keep_mapping(&self, peer: SocketAddr) {
        if let Some(handle) = self.0.shards.first() {
            let port = self.0.id;
            handle.submit(Box::new(move |shard| {
                if let Some(driver) = shard.driver(port) {
                    driver.keep_mapping(peer);
                }
            }));
        }
    }

    /// Duplicates the sockets and logs of the port, for a process that takes its packets when this
    /// one has ended. Packets that this process does not read stay in the sockets. See
    /// [`crate::Runtime::open_with`] and [`crate::LoggedPacket::read_all`].
    ///
    /// # Errors
    /// `NotConnected` if the port is closed; the error of the system, such as too many open files.
    pub async fn share(&self) -> io::Result<Vec<SharedShard>> {
        let mut all = Vec::new();
        for shard in &self.0.shards {
            let shared = crate::debug::on_shard(&self.0, shard, Driver::share).await;
            all.push(shared.ok_or(io::ErrorKind::NotConnected)??);
        }
        Ok(all)
    }

    /// Closes the port: its sockets close and its calls fail. Other ports of the runtime continue.
    pub fn close(&self) {
        for handle in &self.0.shards {
            let port = self.0.id;
            handle.submit(Box::new(move |shard| shard.close_port(port)));
        }
    }

    /// Sets counters of procedures to 0. Bits of `flags`: 0 calls, 1 bytes sent, 2 bytes received;
    /// 3 to 6 sum, squares, minimum and maximum of queue times; 7 to 10 the same of execution
    /// times.
    pub fn clear_statistics(&self, flags: u32) {
        for handle in &self.0.shards {
            let port = self.0.id;
            handle.submit(Box::new(move |shard| {
                if let Some(driver) = shard.driver(port) {
                    driver.clear_statistics(flags);
                }
            }));
        }
    }

    /// Counters of everything received, sent and refused here.
    #[must_use]
    pub fn statistics(&self) -> &PortStatistics {
        &self.0.statistics
    }

    /// Protocol counters, summed over all shards, as `rxdebug -rxstats` shows them. `None` if the
    /// port is closed.
    pub async fn transport_statistics(&self) -> Option<cellar_rx::Statistics> {
        crate::debug::transport_statistics(&self.0).await
    }

    /// Figures of the sockets together: drops by the system, and the fill of the receive buffers.
    /// `None` if the port is closed.
    pub async fn socket_figures(&self) -> Option<SocketFigures> {
        crate::debug::socket_figures(&self.0).await
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port")
            .field("addresses", &self.0.addresses)
            .finish_non_exhaustive()
    }
}

/// Shared state of a [`Connection`] over Rx.
pub(crate) struct RxConnection {
    /// Key of its set of Rx connections in the driver's table.
    pub(crate) key: u64,
    port: Port,
    shard: Arc<ShardHandle>,
    peer: SocketAddr,
    pub(crate) service_id: u16,
    pub(crate) security: Security,
    pub(crate) options: ConnectionOptions,
    /// Whether a call was made, so that the driver knows the key.
    used: AtomicBool,
    /// [`Path`] of the last call: microseconds, and in the lowest bit whether it is wide; 0:
    /// unknown.
    path: AtomicU64,
    /// Number of failed calls whose data was retransmitted.
    repeats: AtomicU64,
}

impl RxConnection {
    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(crate) fn calls_max(&self) -> usize {
        self.options
            .calls_max
            .unwrap_or(CALLS_PER_CONNECTION)
            .max(1)
    }

    /// Counts a failed call whose data was retransmitted.
    pub(crate) fn note_repeat(&self) {
        self.repeats.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn repeats(&self) -> u64 {
        self.repeats.load(Ordering::Relaxed)
    }

    pub(crate) fn note_path(&self, path: Path) {
        let micros = u64::try_from(path.round_trip.as_micros()).unwrap_or(u64::MAX >> 1);
        let known = (micros << 1) | u64::from(path.wide);
        self.path.store(known, Ordering::Relaxed);
    }

    pub(crate) fn path(&self) -> Option<Path> {
        let known = self.path.load(Ordering::Relaxed);
        (known != 0).then(|| Path {
            round_trip: Duration::from_micros(known >> 1),
            wide: known & 1 == 1,
        })
    }

    /// Starts a call with the bytes of its request.
    pub(crate) fn start(
        self: &Arc<Self>,
        request: Bytes,
        options: CallOptions,
        finished: bool,
    ) -> Result<OutgoingCall, CallError> {
        let shared = CallShared::new(CallCarrier::Rx(self.clone()), request, finished);
        let timeout = options.timeout.or(self.options.call_timeout);
        self.used.store(true, Ordering::Relaxed);
        let call = shared.clone();
        self.with_driver(move |driver| match driver {
            Some(driver) => driver.start_call(call, timeout),
            None => call.fail(CallError::Closed),
        })?;
        Ok(OutgoingCall::new(shared))
    }

    /// Notifies the driver that the caller has changed something of a call.
    pub(crate) fn pump(self: &Arc<Self>, call: &Arc<CallShared>) {
        if let Some(driver) = self.driver_here() {
            driver.pump(call);
            return;
        }
        if std::mem::replace(&mut call.state.lock().pump_queued, true) {
            return;
        }
        let call = call.clone();
        // If the shard is gone, it has failed the call already.
        let _gone = self.with_driver(move |driver| {
            call.state.lock().pump_queued = false;
            match driver {
                Some(driver) => driver.pump(&call),
                None => call.fail(CallError::Closed),
            }
        });
    }

    fn driver_here(&self) -> Option<Rc<Driver>> {
        shard::with_current(&self.shard, |shard| shard.driver(self.port.0.id)).flatten()
    }

    fn with_driver(
        &self,
        action: impl FnOnce(Option<Rc<Driver>>) + Send + 'static,
    ) -> Result<(), CallError> {
        if let Some(driver) = self.driver_here() {
            action(Some(driver));
            return Ok(());
        }
        let port = self.port.0.id;
        if self
            .shard
            .submit(Box::new(move |shard| action(shard.driver(port))))
        {
            Ok(())
        } else {
            Err(CallError::Closed)
        }
    }
}

impl Drop for RxConnection {
    fn drop(&mut self) {
        if *self.used.get_mut() {
            let key = self.key;
            let port = self.port.0.id;
            // Always by the queue, since this may be dropped in the middle of a driver's step.
            self.shard.submit(Box::new(move |shard| {
                if let Some(driver) = shard.driver(port) {
                    driver.forget_connection(key);
                }
            }));
        }
    }
}

impl fmt::Debug for RxConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RxConnection")
            .field("peer", &self.peer)
            .field("service_id", &self.service_id)
            .finish_non_exhaustive()
    }
}
