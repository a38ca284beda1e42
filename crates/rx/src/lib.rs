//! Rx as a deterministic state machine without sockets, clocks or threads.
//!
//! [`Endpoint`] holds all state behind one UDP port. Its input is datagrams and the time. Its
//! output is datagrams, [`Event`]s and the time of the next timeout. A driver runs this loop:
//!
//! 1. Call [`Endpoint::handle_datagram`] for each received datagram. When the time of
//!    [`Endpoint::poll_timeout`] has passed, call [`Endpoint::handle_timeout`].
//! 2. Call [`Endpoint::poll_event`] until it returns `None`, and use `read`, `write`, `finish` and
//!    `abort` on calls.
//! 3. Call [`Endpoint::poll_transmit`] until it returns false. Packets are built only here, so
//!    everything that steps 1 and 2 produced for one peer about one call leaves together. A reply
//!    carries the acknowledgement of its request, and a batch of received packets costs one ACK.
//!
//! A call is half duplex, as in Rx: the client writes, finishes, then reads; the server reads,
//! writes, then finishes. The driver's interest in a call, and with it the [`CallId`], ends
//! - for a server with `finish` (the endpoint still delivers the reply), `abort` or `refuse`,
//! - for a client when `read` returns `End`, or with `abort`,
//! - for both when `read` or `write` returns `Failed`, or with [`Event::CallFailed`].
//!
//! A stock peer sees the packets that OpenAFS 1.8 would send, with the improvements of rx-wire
//! facts 2.2 and 2.3. `docs/protocol/rx-extensions.md` describes what two Cellar endpoints do
//! beyond that.

// This crate parses bytes from unauthenticated peers, so no input may cause a panic.
#![cfg_attr(
    not(test),
    deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic)
)]

mod allowance;
mod call;
mod caller;
pub mod code;
mod config;
mod congestion;
mod connection;
mod endpoint;
mod event;
mod id;
mod mtu;
pub mod packet;
mod peer;
mod random;
mod ready;
mod receive;
mod rtt;
mod security;
mod send;
mod share;
mod shared;
mod statistics;
mod stream;
mod table;
mod time;
mod timers;
mod transmit;

#[cfg(test)]
mod tests;

pub use caller::Caller;
pub use config::{
    Config, ConnectionOptions, DebugMode, Limits, MAX_EXTENDED_WINDOW, ServiceConfig,
};
pub use endpoint::{
    CallError, ConnectionInfo, Endpoint, Path, ReadOutcome, Refusal, StartCallError, WriteOutcome,
};
pub use event::Event;
pub use id::{CallId, ConnectionId};
pub use security::{
    ClientSecurity, ConnectionIdentity, NullSecurity, Overhead, PacketIdentity, PacketSecurity,
    Security, SecurityDetails, ServerConnectionSecurity, ServerSecurity,
};
pub use shared::Shared;
pub use statistics::{ROUND_TRIP_BOUNDS_MICROS, Statistics};
pub use time::Time;
pub use transmit::TransmitBuffer;
