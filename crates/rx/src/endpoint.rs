//! The endpoint: all connections, calls and peers behind one UDP port.
//!
//! `input` parses datagrams and finds their connection; `data` and `acknowledge` process the
//! packets of calls; `secure` authenticates; `unverified` limits what unverified addresses get;
//! `calls` and `connections` are the driver's operations; `transmit` and `run` build packets;
//! `timeout` handles timers; `show` answers `rxdebug`.

mod acknowledge;
mod aging;
mod buffered;
mod calls;
mod connections;
mod data;
mod input;
mod run;
mod secure;
mod show;
mod timeout;
mod transmit;
mod unverified;

pub use show::Path;

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;

use self::aging::Aging;
use self::buffered::Buffered;
use crate::Caller;
use crate::call::Call;
use crate::config::{Config, MAX_EXTENDED_WINDOW, ServiceConfig};
use crate::connection::Connection;
use crate::event::Event;
use crate::packet::{HEADER_SIZE, Header};
use crate::peer::Peer;
use crate::random::Random;
use crate::ready::Ready;
use crate::shared::{EndpointShare, Shared};
use crate::statistics::Statistics;
use crate::table::{SeededHash, Slots};
use crate::time::Time;
use crate::timers::{TimerOwner, Timers};

/// Result of `read`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// The next user bytes, in order; never empty.
    Chunk(Bytes),
    /// No data yet; [`Event::Readable`] follows.
    Pending,
    /// The peer's last byte was read before. At the client end the call is over and its id is
    /// invalid from now on.
    End,
    /// The call failed with this code, and its id is invalid from now on.
    Failed(i32),
}

/// Result of `write`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// All data was accepted.
    Accepted,
    /// Nothing was accepted (the data is returned), since the send buffer is full;
    /// [`Event::Writable`] follows.
    Full(Bytes),
}

/// Reason why a call cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The id refers to no call (any more).
    #[error("no such call")]
    Gone,
    /// The call failed with this abort code.
    #[error("call failed with code {0}")]
    Failed(i32),
    /// Written after `finish`, or by a client after its reply began.
    #[error("call is not in the writing phase")]
    NotWriting,
}

/// Reason why a call cannot start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartCallError {
    /// The id refers to no client connection (any more).
    #[error("no such connection")]
    Gone,
    /// The connection failed with this code; close it and create another.
    #[error("connection failed with code {0}")]
    Failed(i32),
    /// All four channels are in use; [`Event::ChannelFree`] follows.
    #[error("all four channels are in use")]
    NoChannel,
}

/// How a server rejects a new call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// BUSY: the client retries by retransmission, and no state is kept here.
    Busy,
    /// ABORT with this code (for instance [`crate::code::BUSY`]), repeated for repeated packets.
    Abort(i32),
}

/// The two ends of a connection.
#[derive(Clone, Debug)]
pub struct ConnectionInfo {
    /// Address of the peer, to which we send.
    pub peer: SocketAddr,
    /// Our address that the peer used (server end), if known.
    pub local: Option<IpAddr>,
    /// Epoch.
    pub epoch: u32,
    /// Connection id, channel bits 0.
    pub cid: u32,
    /// Service id.
    pub service: u16,
    /// Security index.
    pub security_index: u8,
    /// Whether we are the server end.
    pub server: bool,
    /// Identity of the caller, as the security class reports it (server end).
    pub caller: Caller,
}

/// An address without port, for limits per host.
#[derive(Debug)]
struct Host {
    address: IpAddr,
    peers: u32,
    calls: usize,
    /// Server connections of its peers that count as unverified, the oldest first.
    unverified: Aging,
}

/// A packet that is complete and needs no call.
#[derive(Debug)]
struct ControlPacket {
    to: SocketAddr,
    local: Option<IpAddr>,
    bytes: Vec<u8>,
}

/// All connections, calls and peers behind one UDP port. The crate's head describes how to drive
/// it.
pub struct Endpoint {
    config: Config,
    random: Random,
    services: Vec<ServiceConfig>,
    connections: Slots<Connection>,
    by_key: HashMap<u64, u32, SeededHash>,
    peers: Slots<Peer>,
    by_address: HashMap<SocketAddr, u32, SeededHash>,
    hosts: Slots<Host>,
    by_host: HashMap<IpAddr, u32, SeededHash>,
    calls: Slots<Call>,
    timers: Timers,
    events: VecDeque<Event>,
    /// Call slots with data to send.
    ready: Ready,
    control: VecDeque<ControlPacket>,
    statistics: Statistics,
    now: Time,
    buffered: Buffered,
    /// This endpoint's use of the bounds of the process.
    counts: EndpointShare,
    /// Server connections of unverified addresses, the oldest first.
    unverified: Aging,
    /// Whether a sweep released much memory.
    freed: bool,
    next_generation: u32,
    next_connection: u32,
    scratch: Vec<u8>,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint")
            .field("connections", &self.connections.len())
            .field("calls", &self.calls.len())
            .field("peers", &self.peers.len())
            .finish_non_exhaustive()
    }
}

impl Endpoint {
    /// Creates an endpoint; all its random choices follow from `seed`. Settings out of range are
    /// clamped.
    #[must_use]
    pub fn new(mut config: Config, seed: u64) -> Self {
        config.epoch = (config.epoch | 0x8000_0000) & !0x4000_0000;
        config.cid_shards = config.cid_shards.max(1);
        config.cid_shard %= config.cid_shards;
        config.receive_window = config.receive_window.clamp(1, 255);
        config.send_window = config.send_window.clamp(1, 255);
        config.extended_window = config.extended_window.min(MAX_EXTENDED_WINDOW);
        config.max_datagram = config.max_datagram.clamp(1444, 16_384);
        config.mtu = config.mtu.clamp(520, config.max_datagram);
        config.dead_time = config.dead_time.max(std::time::Duration::from_secs(6));
        config.limits.send_buffer = config.limits.send_buffer.max(65_536);
        let mut random = Random::new(seed);
        let hash = SeededHash(random.next());
        let next_connection = (random.next() as u32) & CONNECTION_NUMBERS;
        let shared = config.shared.take();
        let counts = EndpointShare::new(shared.unwrap_or_else(|| Shared::new(&config.limits)));
        let mut timers = Timers::default();
        timers.push(Time::ZERO + SWEEP_INTERVAL, TimerOwner::Sweep);
        Self {
            config,
            random,
            services: Vec::new(),
            connections: Slots::new(),
            by_key: HashMap::with_hasher(hash.clone()),
            peers: Slots::new(),
            by_address: HashMap::with_hasher(hash.clone()),
            hosts: Slots::new(),
            by_host: HashMap::with_hasher(hash),
            calls: Slots::new(),
            timers,
            events: VecDeque::new(),
            ready: Ready::default(),
            control: VecDeque::new(),
            statistics: Statistics::default(),
            now: Time::ZERO,
            buffered: Buffered::new(counts.unverified_bytes()),
            counts,
            unverified: Aging::default(),
            freed: false,
            next_generation: 0,
            next_connection,
            scratch: Vec::with_capacity(2048),
        }
    }

    /// Adds a service, replacing an earlier one with the same id.
    pub fn add_service(&mut self, service: ServiceConfig) {
        self.services.retain(|other| other.id != service.id);
        self.services.push(service);
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether [`Endpoint::poll_event`] has an event.
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Number of entries that the tables have allocated.
    #[cfg(test)]
    pub(crate) fn table_entries(&self) -> usize {
        let slots = [
            self.connections.capacity(),
            self.calls.capacity(),
            self.peers.capacity(),
            self.hosts.capacity(),
        ];
        let keys = [
            self.by_key.capacity(),
            self.by_address.capacity(),
            self.by_host.capacity(),
        ];
        slots.iter().chain(&keys).sum()
    }

    /// Returns whether tables released much memory, for instance after a flood, since the last call
    /// of this function. The allocator may keep that memory until it is told to trim.
    pub fn take_freed(&mut self) -> bool {
        std::mem::take(&mut self.freed)
    }

    /// Sets the time, which never goes back.
    fn advance(&mut self, now: Time) -> Time {
        self.now = self.now.max(now);
        self.now
    }

    fn unix_seconds(&self, at: Time) -> u64 {
        self.config.unix_seconds(at)
    }

    /// Queues a complete packet; drops it if too many wait.
    fn send_control(
        &mut self,
        to: SocketAddr,
        local: Option<IpAddr>,
        header: &Header,
        payload: &[u8],
    ) {
        if self.control.len() >= self.config.limits.control_packets {
            return;
        }
        let mut bytes = Vec::with_capacity(HEADER_SIZE + payload.len());
        bytes.extend_from_slice(&header.encode());
        bytes.extend_from_slice(payload);
        self.control.push_back(ControlPacket { to, local, bytes });
    }

    /// Puts a call into the queue of those with data to send.
    fn queue(&mut self, slot: u32) {
        if let Some(call) = self.calls.get_mut(slot)
            && !call.queued
            && let Some(connection) = self.connections.get(call.connection)
            && let Some(peer) = self.peers.get(connection.peer)
        {
            call.queued = true;
            self.ready.push(peer.host, connection.peer, slot);
        }
    }
}

/// Interval at which idle connections and peers are checked.
const SWEEP_INTERVAL: std::time::Duration = std::time::Duration::from_secs(60);
/// Mask: connection numbers are 30 bits of the cid.
const CONNECTION_NUMBERS: u32 = 0x3fff_ffff;
