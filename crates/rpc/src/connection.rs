//! Outgoing calls: a connection to one service of one server, usable from any thread.
//!
//! A [`Connection`] is a handle. It stands for as many Rx connections on one shard as its
//! concurrent calls need (four calls each). They are created on demand and recreated after an
//! error. A caller on that shard's thread enters the protocol directly; other callers use the
//! shard's command queue.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cellar_rx::Path as NetworkPath;
use cellar_wire::package::{Package, Procedure};
use cellar_xdr::Decode;

use crate::CallError;
use crate::local::LocalConnection;
use crate::outgoing::OutgoingCall;
use crate::port::RxConnection;

/// Time-outs and bounds of a connection. `None` selects the runtime's setting.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectionOptions {
    /// Silence after which the server counts as dead; at least 6 s.
    pub dead_time: Option<Duration>,
    /// Longest time without progress of a call.
    pub idle_dead_time: Option<Duration>,
    /// Longest duration of each call, including the wait for a channel.
    pub call_timeout: Option<Duration>,
    /// Most calls in progress at a time; further calls wait. Default 64 (16 Rx connections).
    pub calls_max: Option<usize>,
}

/// Limits of one call, which override those of its connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallOptions {
    /// Longest duration of the call, including the wait for a channel.
    pub timeout: Option<Duration>,
}

/// The encoded request of a call.
///
/// Code that routes or repeats calls takes it in place of typed arguments. The compiler then
/// translates that code once, and not once for each procedure.
#[derive(Clone)]
pub struct EncodedRequest {
    package: &'static Package,
    name: &'static str,
    bytes: Bytes,
}

impl EncodedRequest {
    /// Encodes the arguments of a procedure.
    #[must_use]
    pub fn new<P: Procedure>(arguments: &P) -> Self {
        Self {
            package: P::package(),
            name: P::NAME,
            bytes: arguments.to_request(),
        }
    }

    /// The package of the procedure.
    #[must_use]
    pub fn package(&self) -> &'static Package {
        self.package
    }

    /// The name of the procedure, without the package's prefix.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Decodes the results of a procedure.
    ///
    /// # Errors
    /// [`CallError::BadReply`] if they do not parse.
    pub fn reply<P: Procedure>(results: &[u8]) -> Result<P::Reply, CallError> {
        Ok(P::Reply::from_xdr(results)?)
    }
}

impl fmt::Debug for EncodedRequest {
    /// Without the arguments, which may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EncodedRequest")
            .field("package", &self.package.name)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A connection to one service of one server. Cheap to clone; clones share all state.
#[derive(Clone, Debug)]
pub struct Connection(pub(crate) Carrier);

#[derive(Clone, Debug)]
pub(crate) enum Carrier {
    Rx(Arc<RxConnection>),
    Local(Arc<LocalConnection>),
}

impl Connection {
    /// Number of failed calls whose data was retransmitted. Such a call may have been executed by a
    /// process that has ended, and refused by the process that replaced it.
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

    /// Path to the server as measured by the last successful call. `None` if there was none, and
    /// for the local administrator's socket.
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
    /// [`CallError`]. Dropping the future aborts the call.
    pub async fn call<P: Procedure>(&self, arguments: &P) -> Result<P::Reply, CallError> {
        let request = EncodedRequest::new(arguments);
        EncodedRequest::reply::<P>(&self.call_encoded(&request, CallOptions::default()).await?)
    }

    /// Like [`Self::call`], with its own limits.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn call_with<P: Procedure>(
        &self,
        arguments: &P,
        options: CallOptions,
    ) -> Result<P::Reply, CallError> {
        let request = EncodedRequest::new(arguments);
        EncodedRequest::reply::<P>(&self.call_encoded(&request, options).await?)
    }

    /// Calls a procedure with an encoded request, and returns the encoded results.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn call_encoded(
        &self,
        request: &EncodedRequest,
        options: CallOptions,
    ) -> Result<Bytes, CallError> {
        let mut call = self.begin(request, options, true)?;
        call.finish();
        call.result_bytes().await
    }

    /// Starts a streaming call: sends the arguments and leaves the rest to the caller.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn open<P: Procedure>(&self, arguments: &P) -> Result<OutgoingCall, CallError> {
        self.open_with(arguments, CallOptions::default()).await
    }

    /// Like [`Self::open`], with its own limits.
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
        self.begin(&EncodedRequest::new(arguments), options, false)
    }

    /// Starts a call with a request given as bytes, opcode first; for tests and for requests that
    /// are not an XDR structure. On the local socket `package` names the service.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn open_raw(
        &self,
        package: &'static Package,
        request: Bytes,
        options: CallOptions,
    ) -> Result<OutgoingCall, CallError> {
        match &self.0 {
            Carrier::Rx(connection) => connection.start(request, options, false),
            Carrier::Local(connection) => connection.start(package, request, options),
        }
    }

    /// Whether the server answers at all within a time, also while it executes other calls. The
    /// call has opcode 0, which no package has, so the server refuses it at once.
    pub async fn answers(&self, package: &'static Package, within: Duration) -> bool {
        let options = CallOptions {
            timeout: Some(within),
        };
        let request = Bytes::from_static(&[0; 4]);
        let Ok(mut call) = self.open_raw(package, request, options) else {
            return false;
        };
        call.finish();
        matches!(
            call.result_bytes().await,
            Ok(_) | Err(CallError::Aborted(_))
        )
    }

    fn begin(
        &self,
        request: &EncodedRequest,
        options: CallOptions,
        last: bool,
    ) -> Result<OutgoingCall, CallError> {
        let bytes = request.bytes.clone();
        match &self.0 {
            Carrier::Rx(connection) => connection.start(bytes, options, last),
            Carrier::Local(connection) => connection.start(request.package, bytes, options),
        }
    }
}
