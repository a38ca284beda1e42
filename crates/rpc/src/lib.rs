//! Typed outgoing calls and services: drives the Rx protocol core over UDP.
//!
//! * [`Runtime`]: threads ("shards"), each with an event loop that owns whole connections;
//! * [`Port`]: an open UDP port on them; answers calls to its [`Service`]s, makes [`Connection`]s;
//! * [`IncomingCall`]: a call at its handler; [`OutgoingCall`]: a call at its caller;
//! * [`local`]: the same calls over a Unix socket, for the administrator of this machine;
//! * [`rxperf`]: the service that measures Rx, and its client;
//! * [`blocking()`]: runs work of handlers that would block their shard.
//!
//! The path of a small call: one system call receives a batch of datagrams. The protocol core
//! ([`cellar_rx`]) turns them into a call. Admission control gives it its turn among those of other
//! hosts. Its handler is polled once and answers from memory. The reply leaves with those of the
//! other calls of the batch.
//!
//! Only this crate (and the program around it) reads clocks and opens sockets.

mod admission;
mod blocking;
mod clock;
mod connection;
mod debug;
mod driver;
mod error;
mod icmp;
mod incoming;
pub mod limits;
pub mod local;
mod memory;
mod outgoing;
mod packet_log;
mod port;
mod runtime;
pub mod rxperf;
mod rxstats;
mod service;
mod shard;
mod socket;
mod statistics;

pub use blocking::{begin_blocking, blocking};
pub use cellar_rx::{
    Caller, Path as NetworkPath, ROUND_TRIP_BOUNDS_MICROS, Security, ServerSecurity,
    Statistics as TransportStatistics,
};
pub use connection::{CallOptions, Connection, ConnectionOptions, EncodedRequest};
pub use error::CallError;
pub use incoming::{IncomingCall, Peer};
pub use outgoing::OutgoingCall;
pub use packet_log::LoggedPacket;
pub use port::{Port, PortConfig, SharedShard, Spread};
pub use runtime::{Runtime, RuntimeConfig};
pub use service::{LocalBoxFuture, Service, ServiceOptions, only};
pub use socket::SocketFigures;
pub use statistics::{
    DurationFigures, LATENCY_BOUNDS_MICROS, LatencyCounts, PortFigures, PortStatistics,
    ProcedureFigures,
};
