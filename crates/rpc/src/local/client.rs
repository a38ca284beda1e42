//! Client end of the local administrator's socket.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use cellar_wire::abort::AbortCode;
use cellar_wire::package::Package;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::frame::Frame;
use crate::CallError;
use crate::connection::{CallOptions, Carrier, Connection};
use crate::limits::{LOCAL_CHUNK_BYTES_MAX, OUTGOING_RECEIVED_BYTES_MAX};
use crate::outgoing::{CallCarrier, CallShared, OutgoingCall};

/// Connects to the local administrator's socket at `path`. The connection's calls may use any
/// service of the socket, and run on the event loop of this call.
///
/// # Errors
/// No server listens there, or this user may not connect.
pub async fn connect(path: impl AsRef<Path>) -> io::Result<Connection> {
    let path = path.as_ref().to_owned();
    let stream = UnixStream::connect(&path).await.map_err(|cause| {
        let text = format!("cannot connect to {}: {cause}", path.display());
        io::Error::new(cause.kind(), text)
    })?;
    Ok(Connection(Carrier::Local(Arc::new(LocalConnection {
        path,
        handle: Handle::current(),
        idle: Mutex::new(vec![stream]),
    }))))
}

/// The shared part of a [`Connection`] over the local socket.
pub(crate) struct LocalConnection {
    path: PathBuf,
    handle: Handle,
    /// Streams without a call.
    idle: Mutex<Vec<UnixStream>>,
}

impl LocalConnection {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Starts a call with the bytes of its request.
    #[allow(clippy::unnecessary_wraps, reason = "the same shape as over Rx")]
    pub(crate) fn start(
        self: &Arc<Self>,
        package: &'static Package,
        request: Bytes,
        options: CallOptions,
    ) -> Result<OutgoingCall, CallError> {
        let notify = Arc::new(Notify::new());
        let shared = CallShared::new(CallCarrier::Local(notify.clone()), request, false);
        let connection = self.clone();
        let call = shared.clone();
        self.handle.spawn(async move {
            let carrying = connection.carry(package, &call, &notify);
            let outcome = match options.timeout {
                None => carrying.await,
                Some(timeout) => with_timeout(carrying, timeout).await,
            };
            match outcome {
                Ok(Some(stream)) => connection.return_to_pool(stream),
                Ok(None) => {}
                Err(failure) => call.fail(failure),
            }
        });
        Ok(OutgoingCall::new(shared))
    }

    fn return_to_pool(&self, stream: UnixStream) {
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_STREAMS_MAX {
            idle.push(stream);
        }
    }

    /// Carries one call from start to end. Returns the stream if it can be reused.
    async fn carry(
        &self,
        package: &'static Package,
        call: &CallShared,
        notify: &Notify,
    ) -> Result<Option<UnixStream>, CallError> {
        let kept = self.idle.lock().pop();
        let mut stream = match kept {
            Some(stream) => stream,
            None => UnixStream::connect(&self.path).await?,
        };
        let mut out = BytesMut::new();
        Frame::Call(Bytes::from_static(package.name.as_bytes())).put(&mut out);
        let mut received = BytesMut::new();
        let mut end_sent = false;
        loop {
            let room = match take_unsent(call, &mut out, &mut end_sent) {
                Step::GivenUp => return Ok(None),
                Step::Room(room) => room,
            };
            while room && let Some(frame) = Frame::take(&mut received).map_err(bad_stream)? {
                if accept(call, frame)? {
                    // If the request was not sent to its end, the stream is not at a frame boundary
                    // of calls.
                    return Ok((end_sent && out.is_empty()).then_some(stream));
                }
            }
            let (mut reader, mut writer) = stream.split();
            tokio::select! {
                read = reader.read_buf(&mut received), if room => {
                    if read? == 0 {
                        return Err(CallError::Dead);
                    }
                }
                written = writer.write(&out), if !out.is_empty() => out.advance(written?),
                () = notify.notified() => {}
            }
        }
    }
}

async fn with_timeout<T>(
    carrying: impl Future<Output = Result<T, CallError>>,
    timeout: Duration,
) -> Result<T, CallError> {
    let due = Instant::now() + timeout;
    tokio::time::timeout_at(due, carrying)
        .await
        .unwrap_or(Err(CallError::Timeout))
}

enum Step {
    GivenUp,
    /// Whether more may be received.
    Room(bool),
}

/// Moves the caller's written data into frames.
fn take_unsent(call: &CallShared, out: &mut BytesMut, end_sent: &mut bool) -> Step {
    let mut state = call.state.lock();
    if state.abandoned.is_some() {
        return Step::GivenUp;
    }
    while out.len() < LOCAL_CHUNK_BYTES_MAX
        && let Some(chunk) = state.unsent.pop_front()
    {
        state.unsent_bytes -= chunk.len();
        state.progressed = true;
        Frame::Data(chunk).put(out);
    }
    if state.finished && state.unsent.is_empty() && !*end_sent {
        *end_sent = true;
        Frame::End.put(out);
    }
    let room = state.received_bytes < OUTGOING_RECEIVED_BYTES_MAX;
    let wakers = state.take_due_wakers();
    drop(state);
    for waker in wakers.into_iter().flatten() {
        waker.wake();
    }
    Step::Room(room)
}

/// Passes a frame to the caller. Returns whether it ends the call.
fn accept(call: &CallShared, frame: Frame) -> Result<bool, CallError> {
    let mut state = call.state.lock();
    let over = match frame {
        Frame::Data(data) => {
            state.received_bytes += data.len();
            state.received.push_back(data);
            false
        }
        Frame::End => {
            state.ended = true;
            true
        }
        Frame::Abort(code) => {
            state.failed = Some(CallError::Aborted(AbortCode(code)));
            true
        }
        Frame::Call(_) => return Err(bad_stream("the server sent a call")),
    };
    state.progressed = true;
    let wakers = state.take_due_wakers();
    drop(state);
    for waker in wakers.into_iter().flatten() {
        waker.wake();
    }
    Ok(over)
}

fn bad_stream(cause: impl fmt::Display) -> CallError {
    let text = format!("the local administrator's socket: {cause}");
    CallError::from(io::Error::new(io::ErrorKind::InvalidData, text))
}

impl fmt::Debug for LocalConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalConnection")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// Most streams kept for further calls.
const IDLE_STREAMS_MAX: usize = 16;
