//! The endpoint: every connection, call and peer behind one UDP port.
//!
//! `input` takes datagrams apart and finds their connection; `data` and `acknowledge` treat what belongs to
//! calls; `secure` authenticates; `unverified` is what addresses get that have proved nothing;
//! `calls` and `connections` are what the driver does; `transmit` and `run` make packets;
//! `timeout` does what is due; `show` answers `rxdebug`.

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
use crate::shared::{Held, Shared};
use crate::statistics::Statistics;
use crate::table::{SeededHash, Slots};
use crate::time::Time;
use crate::timers::{Target, Timers};

/// What `read` found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// The next user bytes, in order; never empty.
    Chunk(Bytes),
    /// Nothing yet; [`Event::Readable`] will follow.
    Pending,
    /// The peer's last byte was read before. At the client end the call is over and its id means
    /// nothing from now on.
    End,
    /// The call failed with this code, and its id means nothing from now on.
    Failed(i32),
}

/// What `write` did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// All taken.
    Accepted,
    /// Nothing taken (the bytes come back): the send buffer is full; [`Event::Writable`] will follow.
    Full(Bytes),
}

/// Why a call cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The id names no call (any more).
    #[error("no such call")]
    Gone,
    /// The call failed with this abort code.
    #[error("call failed with code {0}")]
    Failed(i32),
    /// Written after `finish`, or by a client after its reply began.
    #[error("call is not in the writing phase")]
    NotWriting,
}

/// Why a call cannot start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartCallError {
    /// The id names no client connection (any more).
    #[error("no such connection")]
    Gone,
    /// The connection is in error with this code; close it and make another.
    #[error("connection failed with code {0}")]
    Failed(i32),
    /// All four channels are in use; [`Event::ChannelFree`] will follow.
    #[error("all four channels are in use")]
    NoChannel,
}

/// How a server turns a new call away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// BUSY: the client tries again by retransmission, nothing is remembered here.
    Busy,
    /// ABORT with this code (say [`crate::code::BUSY`]), repeated for repeated packets.
    Abort(i32),
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub struct ConnectionInfo {
    /// Its address, to which we send.
    pub peer: SocketAddr,
    /// Our address that it used (server end), if known.
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
    /// The maker of its calls, as the security class says it (server end).
    pub caller: Caller,
}

/// An address without port: what shares of server slots are counted by.
#[derive(Debug)]
struct Host {
    address: IpAddr,
    peers: u32,
    calls: usize,
    /// Server connections of its peers that are counted as unverified, the oldest first.
    unverified: Aging,
}

/// A packet that is ready as it is.
#[derive(Debug)]
struct ControlPacket {
    to: SocketAddr,
    local: Option<IpAddr>,
    bytes: Vec<u8>,
}

/// Every connection, call and peer behind one UDP port. See the crate's head for how to drive it.
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
    /// Call slots with something to send.
    ready: Ready,
    control: VecDeque<ControlPacket>,
    statistics: Statistics,
    now: Time,
    buffered: Buffered,
    /// What of the process's bounds is held here.
    counts: Held,
    /// Server connections of unverified addresses, the oldest first.
    unverified: Aging,
    /// A sweep gave much memory back.
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
    /// A new endpoint; all its random choices follow from `seed`. Settings out of range are
    /// brought into it.
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
        let counts = Held::new(shared.unwrap_or_else(|| Shared::new(&config.limits)));
        let mut timers = Timers::default();
        timers.push(Time::ZERO + SWEEP_INTERVAL, Target::Sweep);
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

    /// Answers calls to a service from now on (in place of what was said of it before).
    pub fn add_service(&mut self, service: ServiceConfig) {
        self.services.retain(|other| other.id != service.id);
        self.services.push(service);
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether [`Endpoint::poll_event`] has something to tell.
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Entries that the tables have memory for.
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

    /// Whether tables have given much memory back since this was last asked: what a flood has made
    /// them hold. The allocator may keep it unless it is told.
    pub fn take_freed(&mut self) -> bool {
        std::mem::take(&mut self.freed)
    }

    /// Time never goes back.
    fn advance(&mut self, now: Time) -> Time {
        self.now = self.now.max(now);
        self.now
    }

    fn unix_seconds(&self, at: Time) -> u64 {
        self.config.unix_seconds(at)
    }

    /// Queues a packet that is ready as it is; drops it when too many wait.
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

    /// Puts a call into the queue of those that have something to send.
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

/// How often idle connections and peers are looked at.
const SWEEP_INTERVAL: std::time::Duration = std::time::Duration::from_secs(60);
/// Connection numbers are 30 bits of the cid.
const CONNECTION_NUMBERS: u32 = 0x3fff_ffff;
