//! What the driver decides about an endpoint, and the bounds of everything that can grow.

use std::sync::Arc;
use std::time::Duration;

use crate::security::ServerSecurity;
use crate::shared::Shared;
use crate::time::Time;

/// Settings of an [`crate::Endpoint`].
#[derive(Clone, Debug)]
pub struct Config {
    /// Epoch of our client connections: random, the same for all endpoints of one process.
    /// Bit 31 is set and bit 30 cleared when used, as OpenAFS does for random epochs.
    pub epoch: u32,
    /// Where the serials of server connections begin: random, from a generator whose numbers cannot
    /// be told from earlier ones, as an ACK that names one proves that its sender has received it.
    /// `None`: from the endpoint's seed, for simulations.
    pub serial_base: Option<fn() -> u32>,
    /// Our client connections get cids with `(cid >> 2) % cid_shards == cid_shard`.
    pub cid_shard: u32,
    /// Number of endpoints that share one port; at least 1.
    pub cid_shards: u32,
    /// Unix time, in microseconds, at [`crate::Time::ZERO`]: for ticket life times and `rxdebug`.
    pub unix_start_micros: u64,
    /// Receive window offered to stock peers, packets, 1..=255.
    pub receive_window: u32,
    /// Receive window offered to Cellar peers, packets, at most [`MAX_EXTENDED_WINDOW`].
    /// Below 256 the extension is not offered.
    pub extended_window: u32,
    /// Send window used at most towards stock peers, packets, 1..=255.
    pub send_window: u32,
    /// Packet size, with the 28 bytes of header, that the local interfaces carry unfragmented.
    pub mtu: u16,
    /// Largest datagram that the driver can receive, 1444..=16384. Path MTU discovery stays below.
    pub max_datagram: u16,
    /// Look for larger packets than `mtu` by probes. Only sensible when the socket forbids fragmentation.
    pub probe_mtu: bool,
    /// Whether calls to a Cellar peer on a long path divide what the path carries, and start with
    /// their part. Without, each call looks for the rate alone.
    pub path_share: bool,
    /// How many packets a jumbogram may carry towards us (advertised); 1: none, please.
    pub jumbo_receive: u8,
    /// Send jumbograms to peers that ask for them, where the path proved large enough.
    pub jumbo_send: bool,
    /// Silence after which a peer is dead; at least 6 s.
    pub dead_time: Duration,
    /// Longest time without progress of the application at either end of a call.
    pub idle_dead_time: Option<Duration>,
    /// Longest life of a call.
    pub hard_dead_time: Option<Duration>,
    /// Longest time that the peer of a server call may take nothing of what is written for it,
    /// alive or not.
    pub stall_dead_time: Duration,
    /// Idle server connections are forgotten after this.
    pub connection_idle: Duration,
    /// Bounds.
    pub limits: Limits,
    /// Where the bounds that are one figure for the process are counted. `None`: this endpoint alone.
    pub shared: Option<Arc<Shared>>,
    /// What VERSION answers; at most 64 bytes are sent.
    pub version: String,
    /// Who answers `rxdebug`.
    pub debug: DebugMode,
}

/// Bounds of what peers can make us hold. Those of tables are figures for the process, if the
/// endpoint shares them ([`Config::shared`]).
#[derive(Clone, Debug)]
pub struct Limits {
    /// Server connections, for the process; when reached, those of unverified addresses and then
    /// idle ones make room, then new ones get a raw abort `VBUSY`.
    pub connections: usize,
    /// Server connections that were not used for a minute, for the process; of more those idle
    /// longest are forgotten. Their clients make them again, and authenticate again, when they call.
    pub idle_connections: usize,
    /// Server calls in progress (waiting or with the driver) of verified addresses, for the process;
    /// further ones get a raw abort `VBUSY`.
    pub calls: usize,
    /// The same of one peer address (without port); further ones get BUSY.
    pub calls_per_host: usize,
    /// Server connections of addresses that have not proved that they receive, for the process. The
    /// oldest makes room for the next one; its calls fail, and nothing is sent.
    pub unverified_connections: usize,
    /// The same of one address (without port), at each endpoint.
    pub unverified_per_host: usize,
    /// Calls on such connections that are with the driver, for the process. Beyond, an address must
    /// prove that it receives before its call begins: handlers are not kept busy by forged requests.
    pub unverified_calls: usize,
    /// Bytes received and unread, or written and unacknowledged, on such connections, for the
    /// process. The oldest connections make room.
    pub unverified_bytes: usize,
    /// Bytes written by our application and not yet acknowledged, per call, at least 65,536;
    /// `write` answers `Full` beyond.
    pub send_buffer: usize,
    /// The same on a path whose bandwidth and round trip ask for more: two congestion windows, up
    /// to this. A reader that stalls on a short path is not worth as much memory.
    pub send_buffer_long_path: usize,
    /// Bytes written and not yet acknowledged over all calls. A call may hold as many as are free,
    /// but always 65,536, and one write beyond either: `n` calls whose peers take nothing hold at
    /// most this and `n` times that.
    pub send_buffers: usize,
    /// Bytes received and not yet read, over all calls; windows shrink as this is approached, and
    /// packets that are not the next one of their call are dropped beyond.
    pub receive_buffer: usize,
    /// Peers remembered, for the process.
    pub peers: usize,
    /// Answers without a call (raw aborts, debug answers) waiting to be sent; more are dropped.
    pub control_packets: usize,
}

/// Who answers DEBUG and VERSION packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DebugMode {
    /// The endpoint, from what it knows itself.
    Answer,
    /// The driver, upon [`crate::Event::Debug`]; for several endpoints behind one port.
    Event,
    /// Nobody.
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

/// Largest extended window, packets: what one ACK can describe, packet for packet.
pub const MAX_EXTENDED_WINDOW: u32 = 8_192;

const _: () = assert!(
    crate::packet::MAX_EXTENSION_WORDS * 32 + crate::packet::MAX_ACKS
        >= MAX_EXTENDED_WINDOW as usize
);

/// A service that this endpoint answers.
#[derive(Clone)]
pub struct ServiceConfig {
    /// Service id in the packets.
    pub id: u16,
    /// Security classes by index.
    pub security: Vec<(u8, Arc<dyn ServerSecurity>)>,
    /// Hold calls of a peer back until it has answered a ping (or authenticated) within 60 s.
    pub reach_check: bool,
    /// Overrides [`Config::idle_dead_time`] for calls to this service.
    pub idle_dead_time: Option<Duration>,
}

/// Time-outs of one client connection; what is `None` follows [`Config`].
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectionOptions {
    /// Silence after which the peer is dead.
    pub dead_time: Option<Duration>,
    /// Longest time without progress.
    pub idle_dead_time: Option<Duration>,
    /// Longest life of a call.
    pub hard_dead_time: Option<Duration>,
}
