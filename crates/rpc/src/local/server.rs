//! Server end of the local administrator's socket.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use cellar_rx::Caller;
use cellar_wire::abort::AbortCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};

use super::frame::Frame;
use crate::incoming::{IncomingCall, Peer, Transport};
use crate::limits::LOCAL_STREAMS_MAX;
use crate::runtime::Runtime;
use crate::service::Service;
use crate::shard;

/// An open local administrator's socket. Dropping it closes it and removes its name; calls in
/// progress continue.
pub struct Listener {
    path: PathBuf,
    stop: watch::Sender<bool>,
}

impl Listener {
    /// Listens at `path` and answers calls to `services` on a shard of `runtime`.
    ///
    /// Replaces the socket of a server that has ended.
    ///
    /// # Errors
    /// `AddrInUse` if a running server listens there; otherwise the system's error.
    pub fn bind(
        runtime: &Runtime,
        path: impl AsRef<Path>,
        services: Vec<Arc<dyn Service>>,
    ) -> io::Result<Self> {
        let path = path.as_ref().to_owned();
        let listener = cellar_private::socket(&path)?;
        let directory = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        let owner = std::fs::metadata(directory.unwrap_or(Path::new(".")))?.uid();
        let (stop, stopped) = watch::channel(false);
        runtime.spawn(0, move || accept(listener, owner, services, stopped));
        Ok(Self { path, stop })
    }

    /// Path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Err(cause) = std::fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %cause, "cannot remove the socket");
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

async fn accept(
    listener: StdListener,
    owner: u32,
    services: Vec<Arc<dyn Service>>,
    mut stopped: watch::Receiver<bool>,
) {
    let listener = match UnixListener::from_std(listener) {
        Ok(listener) => listener,
        Err(cause) => {
            tracing::error!(%cause, "cannot watch the local administrator's socket");
            return;
        }
    };
    let services = Rc::new(services);
    let places = Arc::new(Semaphore::new(LOCAL_STREAMS_MAX));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        let stream = tokio::select! {
            _ = stopped.wait_for(|stopped| *stopped) => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(cause) => {
                    // Probably out of descriptors: wait until some are released.
                    tracing::warn!(%cause, "cannot accept on the local administrator's socket");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                    continue;
                }
            },
        };
        let uid = match stream.peer_cred() {
            Ok(credentials) => credentials.uid(),
            Err(cause) => {
                tracing::warn!(%cause, "cannot identify the client of the local administrator's socket");
                continue;
            }
        };
        if uid != 0 && uid != owner {
            tracing::warn!(uid, "refused on the local administrator's socket");
            continue;
        }
        let services = services.clone();
        shard::spawn(async move {
            serve(stream, &services).await;
            drop(place);
        });
    }
}

/// Answers the calls of one stream in sequence, until it ends.
async fn serve(stream: UnixStream, services: &[Arc<dyn Service>]) {
    let mut call = LocalCall {
        stream,
        received: BytesMut::new(),
        unsent: BytesMut::new(),
        request_ended: true,
        broken: false,
    };
    loop {
        let name = match call.next_frame().await {
            Some(Frame::Call(name)) => name,
            _ => return,
        };
        call.request_ended = false;
        let service = services
            .iter()
            .find(|service| service.package().name.as_bytes() == name);
        let Some(service) = service else {
            call.abort(AbortCode::RX_INVALID_OPERATION).await;
            if call.skip_request().await {
                continue;
            } else {
                return;
            }
        };
        let peer = Peer {
            address: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
            local: None,
            epoch: 0,
            cid: 0,
            service_id: service.package().service_id,
            security_index: 0,
        };
        let limit = service.options().argument_bytes_max;
        let mut incoming =
            IncomingCall::new(Transport::Local(call), peer, Caller::Superuser, limit);
        let outcome = service.call(&mut incoming).await;
        incoming.complete(outcome).await;
        let Transport::Local(back) = incoming.into_transport() else {
            return;
        };
        call = back;
        if !call.skip_request().await {
            return;
        }
    }
}

/// A call over the local socket, for [`IncomingCall`].
pub(crate) struct LocalCall {
    stream: UnixStream,
    received: BytesMut,
    /// Unsent rest of frames whose send was cancelled; it goes before the next frame.
    unsent: BytesMut,
    request_ended: bool,
    /// The client is gone, or sent invalid data.
    broken: bool,
}

impl LocalCall {
    pub(crate) async fn read(&mut self) -> Result<Option<Bytes>, AbortCode> {
        while !self.request_ended {
            match self.next_frame().await {
                Some(Frame::Data(data)) if data.is_empty() => {}
                Some(Frame::Data(data)) => return Ok(Some(data)),
                Some(Frame::End) => self.request_ended = true,
                Some(Frame::Abort(code)) => {
                    self.request_ended = true;
                    return Err(AbortCode(code));
                }
                Some(Frame::Call(_)) | None => {
                    self.broken = true;
                    return Err(AbortCode::RX_CALL_DEAD);
                }
            }
        }
        Ok(None)
    }

    pub(crate) async fn write(&mut self, bytes: Bytes) -> Result<(), AbortCode> {
        Frame::Data(bytes).put(&mut self.unsent);
        self.send().await
    }

    pub(crate) async fn finish(&mut self, last: Bytes) -> Result<(), AbortCode> {
        Frame::Data(last).put(&mut self.unsent);
        Frame::End.put(&mut self.unsent);
        self.send().await
    }

    pub(crate) async fn abort(&mut self, code: AbortCode) {
        Frame::Abort(code.0).put(&mut self.unsent);
        // If the client is gone, it needs no code.
        let _gone = self.send().await;
    }

    /// Sends the queued frames. If the future is dropped, no partial frame is lost: the rest is
    /// sent before the next frame.
    async fn send(&mut self) -> Result<(), AbortCode> {
        while !self.broken && !self.unsent.is_empty() {
            match self.stream.write_buf(&mut self.unsent).await {
                Ok(count) if count > 0 => {}
                _ => self.broken = true,
            }
        }
        if self.broken {
            return Err(AbortCode::RX_CALL_DEAD);
        }
        Ok(())
    }

    /// Reads and drops the rest of a request. Returns whether the stream can be reused.
    async fn skip_request(&mut self) -> bool {
        while !self.broken && !self.request_ended {
            match self.next_frame().await {
                Some(Frame::Data(_)) => {}
                Some(Frame::End | Frame::Abort(_)) => self.request_ended = true,
                Some(Frame::Call(_)) | None => self.broken = true,
            }
        }
        !self.broken
    }

    /// Returns the next frame; `None` at the stream's end, or on invalid data.
    async fn next_frame(&mut self) -> Option<Frame> {
        loop {
            match Frame::take(&mut self.received) {
                Ok(Some(frame)) => return Some(frame),
                Ok(None) => {}
                Err(cause) => {
                    tracing::warn!(%cause, "on the local administrator's socket");
                    return None;
                }
            }
            match self.stream.read_buf(&mut self.received).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }
}
