//! Calls out: a connection to one service of one server, usable from any thread.
//!
//! A [`Connection`] is a handle. Behind it, on one shard, are as many Rx connections as its calls
//! need at the same time (four calls each), made when they are needed and remade after an error.
//! A caller on that shard's thread enters the protocol directly; any other goes through the
//! shard's queue of commands.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cellar_rx::Path as NetworkPath;
use cellar_wire::package::Procedure;

use crate::CallError;
use crate::local::LocalConnection;
use crate::outgoing::OutgoingCall;
use crate::port::RxConnection;

/// Time-outs and bounds of a connection. What is `None` follows the runtime's settings.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectionOptions {
    /// Silence after which the server counts as dead; at least 6 s.
    pub dead_time: Option<Duration>,
    /// Longest time without progress of a call.
    pub idle_dead_time: Option<Duration>,
    /// Longest life of each call, waiting for a channel included.
    pub call_timeout: Option<Duration>,
    /// Calls in progress at a time; more wait. Default 64 (16 Rx connections).
    pub calls_max: Option<usize>,
}

/// Limits of one call, over those of its connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallOptions {
    /// Longest life of the call, waiting for a channel included.
    pub timeout: Option<Duration>,
}

/// A way to call one service of one server. Cheap to clone; clones share everything.
#[derive(Clone, Debug)]
pub struct Connection(pub(crate) Carrier);

#[derive(Clone, Debug)]
pub(crate) enum Carrier {
    Rx(Arc<RxConnection>),
    Local(Arc<LocalConnection>),
}

impl Connection {
    /// How many calls failed, so far, that had been sent more than once. Such a call may have
    /// been done by a process that has ended, and refused by the one that was started in its
    /// place.
    #[must_use]
    pub fn repeats(&self) -> u64 {
        match &self.0 {
            Carrier::Rx(connection) => connection.repeats(),
            Carrier::Local(_) => 0,
        }
    }

    /// The server's address; `None` for the local administrator's socket.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        match &self.0 {
            Carrier::Rx(connection) => Some(connection.peer()),
            Carrier::Local(_) => None,
        }
    }

    /// The local administrator's socket; `None` for a connection over Rx.
    #[must_use]
    pub fn local_path(&self) -> Option<&Path> {
        match &self.0 {
            Carrier::Rx(_) => None,
            Carrier::Local(connection) => Some(connection.path()),
        }
    }

    /// The path to the server as the last call that succeeded found it; `None`: none did, or it is the local
    /// administrator's socket.
    #[must_use]
    pub fn network_path(&self) -> Option<NetworkPath> {
        match &self.0 {
            Carrier::Rx(connection) => connection.path(),
            Carrier::Local(_) => None,
        }
    }

    /// Calls a procedure and waits for its results.
    ///
    /// # Errors
    /// [`CallError`]. A call whose future is dropped is aborted.
    pub async fn call<P: Procedure>(&self, arguments: &P) -> Result<P::Reply, CallError> {
        self.call_with(arguments, CallOptions::default()).await
    }

    /// [`Self::call`] with limits of its own.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn call_with<P: Procedure>(
        &self,
        arguments: &P,
        options: CallOptions,
    ) -> Result<P::Reply, CallError> {
        let mut call = self.begin(arguments, options, true)?;
        call.finish();
        call.results().await
    }

    /// Starts a call that streams: the arguments are sent, the rest is up to the caller.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn open<P: Procedure>(&self, arguments: &P) -> Result<OutgoingCall, CallError> {
        self.open_with(arguments, CallOptions::default()).await
    }

    /// [`Self::open`] with limits of its own.
    ///
    /// # Errors
    /// [`CallError`].
    #[allow(
        clippy::unused_async,
        reason = "a transport may have to wait here; callers await"
    )]
    pub async fn open_with<P: Procedure>(
        &self,
        arguments: &P,
        options: CallOptions,
    ) -> Result<OutgoingCall, CallError> {
        self.begin(arguments, options, false)
    }

    /// Starts a call whose request is given as bytes, opcode first; for tests and for requests
    /// that are no XDR structure. On the local socket `package` names the service.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn open_raw(
        &self,
        package: &'static cellar_wire::package::Package,
        request: Bytes,
        options: CallOptions,
    ) -> Result<OutgoingCall, CallError> {
        match &self.0 {
            Carrier::Rx(connection) => connection.start(request, options, false),
            Carrier::Local(connection) => connection.start(package, request, options),
        }
    }

    fn begin<P: Procedure>(
        &self,
        arguments: &P,
        options: CallOptions,
        last: bool,
    ) -> Result<OutgoingCall, CallError> {
        let mut request = BytesMut::new();
        arguments.encode_request(&mut request);
        match &self.0 {
            Carrier::Rx(connection) => connection.start(request.freeze(), options, last),
            Carrier::Local(connection) => connection.start(P::package(), request.freeze(), options),
        }
    }
}
