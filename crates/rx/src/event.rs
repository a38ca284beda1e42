//! Events from the endpoint to its driver.

use std::net::{IpAddr, SocketAddr};

use crate::id::{CallId, ConnectionId};
use crate::packet::DebugQuery;

/// An event. Events are delivered in the order in which they occurred. A call has at most one
/// `Readable` and one `Writable` outstanding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer started a call. Its first packet is here, authenticated and from a verified address
    /// if the service requires that. Answer it, or reject it with [`crate::Endpoint::refuse`].
    NewCall {
        /// The new call.
        call: CallId,
        /// The connection it came over.
        connection: ConnectionId,
        /// The service that was called.
        service: u16,
    },
    /// Data (or the end) can be read after `read` returned [`crate::ReadOutcome::Pending`].
    Readable(CallId),
    /// There is room for writing again after `write` returned [`crate::WriteOutcome::Full`].
    Writable(CallId),
    /// The call ended with this code: the peer's abort, or a local one of [`crate::code`]. The id
    /// is invalid afterwards.
    CallFailed {
        /// The call.
        call: CallId,
        /// The abort code.
        code: i32,
    },
    /// A connection failed permanently; its calls have failed before this event. A client must
    /// [`crate::Endpoint::close`] it and create another.
    ConnectionFailed {
        /// The connection.
        connection: ConnectionId,
        /// The abort code.
        code: i32,
    },
    /// A server connection was dropped (idle, or to make room). The id is invalid afterwards.
    ConnectionClosed {
        /// The connection.
        connection: ConnectionId,
    },
    /// A channel of a client connection became free after [`crate::StartCallError::NoChannel`].
    ChannelFree(ConnectionId),
    /// A query in the manner of `rxdebug`; only with [`crate::DebugMode::Event`]. Reply with
    /// [`crate::Endpoint::answer_debug`].
    Debug {
        /// Address of the querier.
        from: SocketAddr,
        /// Local address that received the query.
        local: Option<IpAddr>,
        /// The query.
        query: DebugQuery,
    },
}
