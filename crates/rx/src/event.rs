//! What the endpoint tells its driver.

use std::net::{IpAddr, SocketAddr};

use crate::id::{CallId, ConnectionId};
use crate::packet::DebugQuery;

/// Something happened. Events come in the order in which they happened; a call has at most one
/// `Readable` and one `Writable` outstanding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer called: the first packet is here, authenticated and from a proven address where the
    /// service wants that. Answer it, or turn it away with [`crate::Endpoint::refuse`].
    NewCall {
        /// The new call.
        call: CallId,
        /// The connection it came over.
        connection: ConnectionId,
        /// The service that was called.
        service: u16,
    },
    /// Data (or the end) can be read after `read` had answered [`crate::ReadOutcome::Pending`].
    Readable(CallId),
    /// Room for writing again after `write` had answered [`crate::WriteOutcome::Full`].
    Writable(CallId),
    /// The call is over with this code: the peer's abort, or a local one of [`crate::code`].
    /// The id means nothing afterwards.
    CallFailed {
        /// The call.
        call: CallId,
        /// The abort code.
        code: i32,
    },
    /// A connection is in error for good; its calls have failed before this event. A client must
    /// [`crate::Endpoint::close`] it and make another.
    ConnectionFailed {
        /// The connection.
        connection: ConnectionId,
        /// The abort code.
        code: i32,
    },
    /// A server connection was forgotten (idle, or making room). The id means nothing afterwards.
    ConnectionClosed {
        /// The connection.
        connection: ConnectionId,
    },
    /// A channel of a client connection became free after [`crate::StartCallError::NoChannel`].
    ChannelFree(ConnectionId),
    /// Somebody asks as `rxdebug` does; only with [`crate::DebugMode::Event`].
    /// Answer with [`crate::Endpoint::answer_debug`].
    Debug {
        /// Who asks.
        from: SocketAddr,
        /// The local address that was asked.
        local: Option<IpAddr>,
        /// The question.
        query: DebugQuery,
    },
}
