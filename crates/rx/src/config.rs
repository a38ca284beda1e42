//! Settings of an endpoint, and bounds for everything that can grow.

use std::sync::Arc;
use std::time::Duration;

use crate::security::ServerSecurity;
use crate::shared::Shared;
use crate::time::Time;

/// Settings of an [`crate::Endpoint`].
#[derive(Clone, Debug)]
pub struct Config {
    /// Epoch of our client connections: random, and equal for all endpoints of a process. Bit 31 is
    /// set and bit 30 cleared when used, as OpenAFS does for random epochs.
    pub epoch: u32,
    /// First serial of a server connection: an ACK that names a serial proves that its sender
    /// received it. It comes from a random generator whose numbers cannot be predicted from earlier
    /// ones. `None`: from the endpoint's seed, for simulations.
    pub serial_base: Option<fn() -> u32>,
    /// Selects the cids of our client connections: `(cid >> 2) % cid_shards == cid_shard`.
    pub cid_shard: u32,
    /// Number of endpoints that share one port; at least 1.
    pub cid_shards: u32,
    /// Unix time at [`crate::Time::ZERO`], microseconds; for ticket lifetimes and `rxdebug`.
    pub unix_start_micros: u64,
    /// Receive window offered to stock peers, packets, 1..=255.
    pub receive_window: u32,
    /// Receive window offered to Cellar peers, packets, at most [`MAX_EXTENDED_WINDOW`]. With less
    /// than 256 the extension is not offered.
    pub extended_window: u32,
    /// Largest send window towards stock peers, packets, 1..=255.
    pub send_window: u32,
    /// Packet size, including the 28 bytes of header, that the local interfaces carry unfragmented.
    pub mtu: u16,
    /// Largest datagram that the driver can receive, 1444..=16384. Limits path MTU discovery.
    pub max_datagram: u16,
    /// Whether probes look for packets larger than `mtu`. Only useful if the socket forbids
    /// fragmentation.
    pub probe_mtu: bool,
    /// Whether calls to a Cellar peer on a long path divide its capacity and start with their
    /// share. Otherwise each call measures the rate for itself.
    pub path_share: bool,
    /// Most packets of a jumbogram that we announce to accept; 1: no jumbograms.
    pub jumbo_receive: u8,
    /// Whether to send jumbograms to peers that accept them, if the path carries them.
    pub jumbo_send: bool,
    /// Silence after which a peer counts as dead; at least 6 s.
    pub dead_time: Duration,
    /// Longest time without progress by the application at either end of a call.
    pub idle_dead_time: Option<Duration>,
    /// Longest duration of a call.
    pub hard_dead_time: Option<Duration>,
    /// Longest time that the peer of a server call may accept none of the written data, even if it
    /// answers pings.
    pub stall_dead_time: Duration,
    /// Time after which idle server connections are dropped.
    pub connection_idle: Duration,
    /// Bounds.
    pub limits: Limits,
    /// Shared counters of the bounds for the process. `None`: they apply to this endpoint alone.
    pub shared: Option<Arc<Shared>>,
    /// Answer to VERSION; at most 64 bytes are sent.
    pub version: String,
    /// Receiver of `rxdebug` queries.
    pub debug: DebugMode,
}

/// Bounds of the memory that peers can make us use. Bounds of tables apply to the process if the
/// endpoint shares them ([`Config::shared`]).
#[derive(Clone, Debug)]
pub struct Limits {
    /// Server connections, for the process. At the bound, connections of unverified addresses are
    /// dropped first, then idle ones; after that, new ones get a raw abort `VBUSY`.
    pub connections: usize,
    /// Server connections not used for a minute, for the process. Beyond, those idle longest are
    /// dropped. Their clients create and authenticate them again at the next call.
    pub idle_connections: usize,
    /// Server calls in progress (waiting or with the driver) of verified addresses, for the
    /// process. Further ones get a raw abort `VBUSY`.
    pub calls: usize,
    /// The same for one peer address (without port). Further ones get BUSY.
    pub calls_per_host: usize,
    /// Server connections of unverified addresses, for the process. The oldest is dropped to make
    /// room for the next; its calls fail, and nothing is sent.
    pub unverified_connections: usize,
    /// The same for one address (without port), at each endpoint.
    pub unverified_per_host: usize,
    /// Calls on such connections that the driver works on, for the process. Beyond, an address must
    /// prove that it receives before its call begins, so forged requests cannot occupy the
    /// handlers.
    pub unverified_calls: usize,
    /// Bytes received and unread, or written and unacknowledged, on such connections, for the
    /// process. The oldest connections are dropped to make room.
    pub unverified_bytes: usize,
    /// Bytes written by our application and not yet acknowledged, per call, at least 65,536.
    /// Beyond, `write` returns `Full`.
    pub send_buffer: usize,
    /// The same on a path whose bandwidth and round trip need more: two congestion windows, up to
    /// this bound. On a short path a stalled reader does not get that much memory.
    pub send_buffer_long_path: usize,
    /// Bytes written and not yet acknowledged, over all calls. A call may use what is free, but
    /// always 65,536 bytes, and one write beyond either bound. If the peers of `n` calls accept
    /// nothing, they use at most this bound plus `n` times that.
    pub send_buffers: usize,
    /// Bytes received and not yet read, over all calls. Windows shrink as the total approaches this
    /// bound. Beyond it, packets that are not the next one of their call are dropped.
    pub receive_buffer: usize,
    /// Peers, for the process.
    pub peers: usize,
    /// Packets without a call (raw aborts, debug answers) that wait to be sent; further ones are
    /// dropped.
    pub control_packets: usize,
}

/// Answering of DEBUG and VERSION packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DebugMode {
    /// The endpoint answers from its own state.
    Answer,
    /// The driver answers, upon [`crate::Event::Debug`]; for several endpoints on one port.
    Event,
    /// Queries are ignored.
    Silent,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 200_000,
            idle_connections: 50_000,
            calls: 20_000,
            calls_per_host: 4_096,
            unverified_connections: 16_384,
            unverified_per_host: 1_024,
            unverified_calls: 256,
            unverified_bytes: 64 << 20,
            send_buffer: 1 << 20,
            send_buffer_long_path: 16 << 20,
            send_buffers: 256 << 20,
            receive_buffer: 256 << 20,
            peers: 100_000,
            control_packets: 4_096,
        }
    }
}

impl Config {
    pub(crate) fn unix_seconds(&self, at: Time) -> u64 {
        (self.unix_start_micros.saturating_add(at.as_micros())) / 1_000_000
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            epoch: 0x8000_0001,
            serial_base: None,
            cid_shard: 0,
            cid_shards: 1,
            unix_start_micros: 0,
            receive_window: 255,
            extended_window: 4096,
            send_window: 255,
            mtu: 1444,
            max_datagram: 16_384,
            probe_mtu: true,
            path_share: true,
            jumbo_receive: 1,
            jumbo_send: true,
            dead_time: Duration::from_secs(30),
            idle_dead_time: None,
            hard_dead_time: None,
            stall_dead_time: Duration::from_secs(60),
            connection_idle: Duration::from_secs(700),
            limits: Limits::default(),
            shared: None,
            version: String::from("Cellar"),
            debug: DebugMode::Answer,
        }
    }
}

/// Largest extended window, packets: as many as one ACK can describe individually.
pub const MAX_EXTENDED_WINDOW: u32 = 8_192;

const _: () = assert!(
    crate::packet::MAX_EXTENSION_WORDS * 32 + crate::packet::MAX_ACKS
        >= MAX_EXTENDED_WINDOW as usize
);

/// A service that this endpoint provides.
#[derive(Clone)]
pub struct ServiceConfig {
    /// Service id in the packets.
    pub id: u16,
    /// Security classes by index.
    pub security: Vec<(u8, Arc<dyn ServerSecurity>)>,
    /// Whether calls of a peer wait until it has answered a ping (or authenticated), for at most 60
    /// s.
    pub reach_check: bool,
    /// Overrides [`Config::idle_dead_time`] for calls to this service.
    pub idle_dead_time: Option<Duration>,
}

/// Time-outs of one client connection; `None` selects the value of [`Config`].
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectionOptions {
    /// Silence after which the peer counts as dead.
    pub dead_time: Option<Duration>,
    /// Longest time without progress.
    pub idle_dead_time: Option<Duration>,
    /// Longest duration of a call.
    pub hard_dead_time: Option<Duration>,
}
