//! The endpoint: every connection, call and peer behind one UDP port.

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;

use crate::config::{Config, ConnectionOptions, ServiceConfig};
use crate::event::Event;
use crate::id::{CallId, ConnectionId};
use crate::packet::{BasicStatistics, ConnectionRecord, DebugQuery, PeerRecord};
use crate::security::ClientSecurity;
use crate::statistics::Statistics;
use crate::time::Time;
use crate::transmit::TransmitBuffer;

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
    /// ABORT with this code (say [`crate::code::BUSY`]), nothing is remembered here.
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
    /// Who the caller is, as the security class says it (server end).
    pub identity: Option<std::sync::Arc<dyn std::any::Any + Send + Sync>>,
}

/// Every connection, call and peer behind one UDP port. See the crate's head for how to drive it.
#[derive(Debug)]
pub struct Endpoint {
    config: Config,
    statistics: Statistics,
}

#[expect(
    unused_variables,
    clippy::needless_pass_by_value,
    reason = "signatures first"
)]
impl Endpoint {
    /// A new endpoint; all its random choices follow from `seed`.
    #[must_use]
    pub fn new(config: Config, seed: u64) -> Self {
        Self {
            config,
            statistics: Statistics::default(),
        }
    }

    /// Answers calls to a service from now on.
    pub fn add_service(&mut self, service: ServiceConfig) {}

    /// Takes one datagram. `local` is the address it was sent to, if known: answers come from there.
    /// Received data is kept as slices of `datagram`, so give small datagrams a buffer of their own.
    pub fn handle_datagram(
        &mut self,
        now: Time,
        from: SocketAddr,
        local: Option<IpAddr>,
        datagram: Bytes,
    ) {
    }

    /// Takes a run of datagrams of `segment` bytes each (the last may be shorter), as receive
    /// offload delivers them.
    pub fn handle_segments(
        &mut self,
        now: Time,
        from: SocketAddr,
        local: Option<IpAddr>,
        datagrams: Bytes,
        segment: usize,
    ) {
    }

    /// Tells that the network said `to` cannot be reached: its calls that have been waiting since
    /// before fail with -1.
    pub fn handle_unreachable(&mut self, now: Time, to: SocketAddr) {}

    /// Tells that datagrams of `size` bytes cannot go to `to` unfragmented.
    pub fn handle_too_big(&mut self, now: Time, to: SocketAddr, size: usize) {}

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Time) {}

    /// When `handle_timeout` wants to be called; may be earlier than necessary.
    pub fn poll_timeout(&mut self) -> Option<Time> {
        None
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        None
    }

    /// Fills `out` with one run of datagrams to one destination; false: nothing to send now.
    pub fn poll_transmit(&mut self, now: Time, out: &mut TransmitBuffer) -> bool {
        false
    }

    /// Makes a client connection. Nothing is sent before the first call.
    pub fn connect(
        &mut self,
        now: Time,
        peer: SocketAddr,
        service: u16,
        security: Box<dyn ClientSecurity>,
        options: ConnectionOptions,
    ) -> ConnectionId {
        ConnectionId {
            slot: 0,
            generation: 0,
        }
    }

    /// Ends a client connection; calls on it are aborted (-6).
    pub fn close(&mut self, now: Time, connection: ConnectionId) {}

    /// Who is at the other end.
    pub fn connection(&self, connection: ConnectionId) -> Option<ConnectionInfo> {
        None
    }

    /// Starts a call on a free channel.
    ///
    /// # Errors
    /// No channel is free, or the connection is in error or gone.
    pub fn start_call(
        &mut self,
        now: Time,
        connection: ConnectionId,
    ) -> Result<CallId, StartCallError> {
        Err(StartCallError::Gone)
    }

    /// Appends to what the peer will read. Whole packets go out with the next `poll_transmit`; the rest
    /// waits for more, `flush` or `finish`.
    ///
    /// # Errors
    /// The call is over, or not in its writing phase.
    pub fn write(
        &mut self,
        now: Time,
        call: CallId,
        data: Bytes,
    ) -> Result<WriteOutcome, CallError> {
        Err(CallError::Gone)
    }

    /// Lets the bytes written so far go out without waiting for a full packet.
    pub fn flush(&mut self, now: Time, call: CallId) {}

    /// Nothing more will be written. At the server end this ends the driver's interest in the call.
    pub fn finish(&mut self, now: Time, call: CallId) {}

    /// The next bytes from the peer.
    pub fn read(&mut self, now: Time, call: CallId) -> ReadOutcome {
        ReadOutcome::Failed(crate::code::INVALID_OPERATION)
    }

    /// Ends a call with a code that the peer will see (0 is sent as -6).
    pub fn abort(&mut self, now: Time, call: CallId, code: i32) {}

    /// Turns a new call away without keeping anything.
    pub fn refuse(&mut self, now: Time, call: CallId, how: Refusal) {}

    /// Counters.
    pub fn statistics(&self) -> Statistics {
        self.statistics.clone()
    }

    /// What GETSTATS shows.
    pub fn basic_statistics(&self) -> BasicStatistics {
        BasicStatistics::default()
    }

    /// The n-th connection for `rxdebug`; `interesting`: only those that do something.
    pub fn debug_connection(&self, index: usize, interesting: bool) -> Option<ConnectionRecord> {
        None
    }

    /// How many connections `debug_connection` can show.
    pub fn debug_connection_count(&self, interesting: bool) -> usize {
        0
    }

    /// The n-th peer for `rxdebug`.
    pub fn debug_peer(&self, index: usize) -> Option<PeerRecord> {
        None
    }

    /// How many peers `debug_peer` can show.
    pub fn debug_peer_count(&self) -> usize {
        0
    }

    /// Sends an answer to a question that came as [`Event::Debug`].
    pub fn answer_debug(
        &mut self,
        to: SocketAddr,
        local: Option<IpAddr>,
        query: &DebugQuery,
        payload: Vec<u8>,
    ) {
    }
}
