//! Rx as a deterministic state machine without sockets, clocks or threads.
//!
//! [`Endpoint`] is everything behind one UDP port: it takes datagrams and the time, and gives
//! datagrams, [`Event`]s and the time at which it wants to be called again. The loop of a driver:
//!
//! 1. for each received datagram [`Endpoint::handle_datagram`]; when [`Endpoint::poll_timeout`] has
//!    passed, [`Endpoint::handle_timeout`];
//! 2. [`Endpoint::poll_event`] until `None`, working on calls with `read`, `write`, `finish`, `abort`;
//! 3. [`Endpoint::poll_transmit`] until it answers false. Only here packets are made: whatever steps 1
//!    and 2 had to say to one peer about one call goes out together, so a reply carries the
//!    acknowledgement of its request and a batch of received packets costs one ACK.
//!
//! A call is half duplex, as Rx has it: the client writes, finishes, reads; the server reads, writes,
//! finishes. The driver's interest in a call, and with it the [`CallId`], ends
//! - for a server with `finish` (delivery goes on without it), `abort` or `refuse`,
//! - for a client with `read` answering `End`, or `abort`,
//! - for both with `read` or `write` answering `Failed`, or [`Event::CallFailed`].
//!
//! What a stock peer sees is what OpenAFS 1.8 would send, with the better manners that rx-wire facts
//! 2.2 and 2.3 ask for; what two Cellar endpoints do beyond is in `docs/protocol/rx-extensions.md`.

// Bytes of strangers are parsed here: nothing may panic on them.
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
pub use statistics::Statistics;
pub use time::Time;
pub use transmit::TransmitBuffer;
