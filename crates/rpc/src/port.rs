//! A UDP port that is open: the handle that services and callers hold.

use std::fmt;
use std::net::SocketAddr;
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
use crate::statistics::PortStatistics;

/// What to open. Start from [`PortConfig::new`].
#[derive(Clone)]
pub struct PortConfig {
    /// Addresses to bind; port 0 takes any. At least one must succeed unless `lenient`.
    pub addresses: Vec<SocketAddr>,
    /// Services that answer here. More can be added later.
    pub services: Vec<Arc<dyn Service>>,
    /// Which shards serve the port.
    pub spread: Spread,
    /// Addresses that the system lacks (no IPv6) are skipped, as long as one is left.
    pub lenient: bool,
    /// Calls that may wait to be run, for each shard; beyond, the host with most is refused.
    pub waiting_calls_max: usize,
    /// Calls that may be running on this machine, for each shard; waiting for peers not counted.
    pub running_calls_max: usize,
    /// Bytes written and not yet acknowledged that each call may hold; at least 512 KiB. More lets a
    /// single stream fill a longer path, and costs that much for each reader that is stuck.
    pub send_buffer_bytes: usize,
    /// Security classes beside the null class, by index, for every service that names none itself
    /// in [`crate::ServiceOptions::security`]. A security class is a port's, as in OpenAFS.
    pub security: Vec<(u8, Arc<dyn ServerSecurity>)>,
}

/// Which shards serve a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// All of them: a connection belongs to shard `(cid >> 2) % shards`.
    AllShards,
    /// One, given by its number modulo the number of shards: for clients with a port of their own.
    OneShard(usize),
}

impl PortConfig {
    /// A port on one address with the usual limits, on all shards.
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

    /// Accepts a security class beside the null class, under its index.
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

/// An open UDP port: answers calls to its services, and makes calls. Cheap to clone.
#[derive(Clone)]
pub struct Port(pub(crate) Arc<PortInner>);

pub(crate) struct PortInner {
    /// Index into each shard's table of ports.
    pub(crate) id: usize,
    /// The shards that serve it.
    pub(crate) shards: Vec<Arc<ShardHandle>>,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) statistics: Arc<PortStatistics>,
    /// The null class and the others that services here accept unless they say otherwise.
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
    /// The addresses that are bound, with the port numbers that the system chose.
    #[must_use]
    pub fn local_addresses(&self) -> &[SocketAddr] {
        &self.0.addresses
    }

    /// The first of [`Self::local_addresses`].
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.0.addresses[0]
    }

    /// Adds a service to those that answer here. Calls that arrive before it is known to all shards
    /// are refused with `RX_INVALID_OPERATION`.
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

    /// On which of the port's shards the caller runs; `None` on any other thread. Who keeps a connection for each
    /// shard has calls that never cross threads.
    #[must_use]
    pub fn shard_here(&self) -> Option<usize> {
        let here = shard::current_handle()?;
        let mut shards = self.0.shards.iter();
        shards.position(|shard| Arc::ptr_eq(shard, &here))
    }

    /// A connection to a service of another server, from this port. Nothing is sent yet.
    ///
    /// Made on a shard's own thread it belongs to that shard, otherwise to each in turn.
    #[must_use]
    pub fn connect(&self, peer: SocketAddr, service_id: u16, security: Security) -> Connection {
        self.connect_with(peer, service_id, security, ConnectionOptions::default())
    }

    /// [`Self::connect`] with time-outs of its own.
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

    /// Tells that datagrams leave from another address of this machine than before: servers answer a connection where its
    /// first packet came from, so calls out that were begun before `since` fail with [`CallError::Dead`] now. Connections
    /// stay as they are, and are to be made anew.
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

    /// Sends a datagram that nobody answers from this port, so that address translators on the way go on to let
    /// through what comes from `peer`.
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

    /// Stops the port: its sockets close, its calls fail. Other ports of the runtime go on.
    pub fn close(&self) {
        for handle in &self.0.shards {
            let port = self.0.id;
            handle.submit(Box::new(move |shard| shard.close_port(port)));
        }
    }

    /// Sets counters of procedures to 0: bit 0 of `flags` the calls, 1 bytes sent, 2 bytes received,
    /// 3 to 6 sum, squares, minimum and maximum of times in the queue, 7 to 10 of execution.
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

    /// Counters of everything that was received, sent and refused here.
    #[must_use]
    pub fn statistics(&self) -> &PortStatistics {
        &self.0.statistics
    }

    /// Counters of the protocol, over all shards: the same that `rxdebug -rxstats` shows. `None`
    /// when the port is closed.
    pub async fn transport_statistics(&self) -> Option<cellar_rx::Statistics> {
        crate::debug::transport_statistics(&self.0).await
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port")
            .field("addresses", &self.0.addresses)
            .finish_non_exhaustive()
    }
}

/// The shared part of a [`Connection`] over Rx.
pub(crate) struct RxConnection {
    /// Names the set of Rx connections behind this, in the driver's table.
    pub(crate) key: u64,
    port: Port,
    shard: Arc<ShardHandle>,
    peer: SocketAddr,
    pub(crate) service_id: u16,
    pub(crate) security: Security,
    pub(crate) options: ConnectionOptions,
    /// A call was made: the driver knows the key.
    used: AtomicBool,
    /// [`Path`] as the last call found it: microseconds, and whether it is wide in the lowest bit; 0: not known.
    path: AtomicU64,
    /// How many calls failed that had been sent more than once.
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

    /// A call failed of which something was sent more than once.
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

    /// Lets the driver look at a call whose caller has changed something.
    pub(crate) fn pump(self: &Arc<Self>, call: &Arc<CallShared>) {
        if let Some(driver) = self.driver_here() {
            driver.pump(call);
            return;
        }
        if std::mem::replace(&mut call.state.lock().pump_queued, true) {
            return;
        }
        let call = call.clone();
        // A shard that is gone has failed the call already.
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
            // Always by the queue: this may be dropped in the middle of a driver's step.
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
