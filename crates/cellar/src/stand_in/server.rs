//! A server that its stand-in watches, as the stand-in sees it.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Interest};
use tokio::net::{UdpSocket, UnixStream};

use super::announce::{Announcement, Released};
use super::message::{Begun, MESSAGE_BYTES, SOCKETS_MAX};

/// The length of an announcement: some addresses.
const ANNOUNCEMENT_MAX: u64 = 4096;
/// Begun changes that are remembered. A server executes some thousand in a second, each for some
/// milliseconds. The end of a change is not reported: a client ignores the end of an ended call.
const BEGUN_MAX: usize = 4096;
/// The longest time for which they are remembered. No change takes longer.
const BEGUN_FOR: Duration = Duration::from_secs(10);
/// The bytes that are read at once: 64 messages.
const READ_BYTES: usize = 64 * MESSAGE_BYTES;

/// A server that has announced itself.
pub(super) struct Server {
    pub(super) announcement: Announcement,
    connection: UnixStream,
    /// Duplicates of its sockets.
    sockets: Vec<OwnedFd>,
    begun: VecDeque<(Instant, Begun)>,
    /// The beginning of a message.
    partial: Vec<u8>,
}

impl Server {
    /// Reads the announcement of a server. `None` if it only asked whether a stand-in is there.
    pub(super) async fn announced(connection: UnixStream) -> Option<Self> {
        let mut connection = BufReader::new(connection);
        let mut line = String::new();
        let mut limited = (&mut connection).take(ANNOUNCEMENT_MAX);
        if limited.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        match serde_json::from_str(&line) {
            Ok(announcement) => Some(Self {
                announcement,
                // The server sends no more before it is answered.
                connection: connection.into_inner(),
                sockets: Vec::new(),
                begun: VecDeque::new(),
                partial: Vec::new(),
            }),
            Err(cause) => {
                tracing::warn!(%cause, "an announcement cannot be read");
                None
            }
        }
    }

    /// Answers the announcement: the ports are free.
    pub(super) async fn answer(&mut self, released: &Released) {
        match serde_json::to_string(released) {
            // A server that has ended already is noticed as its end.
            Ok(mut answer) => {
                answer.push('\n');
                let _written = self.connection.write_all(answer.as_bytes()).await;
            }
            Err(cause) => tracing::warn!(%cause, "the server cannot be answered"),
        }
    }

    /// Waits for the end of the server.
    pub(super) async fn ended(&mut self) {
        loop {
            if self.connection.readable().await.is_err() {
                return;
            }
            match self.receive() {
                Ok(0) => return,
                Ok(_) => {}
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }

    fn receive(&mut self) -> io::Result<usize> {
        let mut bytes = [0; READ_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let connection = &self.connection;
        let received = connection.try_io(Interest::READABLE, || {
            let mut into = [IoSliceMut::new(&mut bytes)];
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            Ok(recvmsg(connection, &mut into, &mut control, flags)?.bytes)
        })?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(sockets) = message {
                self.sockets.extend(sockets);
            }
        }
        let bytes = bytes.get(..received).unwrap_or_default();
        self.partial.extend_from_slice(bytes);
        let now = Instant::now();
        let (messages, rest) = self.partial.as_chunks::<MESSAGE_BYTES>();
        self.begun.extend(
            messages
                .iter()
                .filter_map(|message| Some((now, Begun::decode(message)?))),
        );
        self.partial = rest.to_vec();
        let surplus = self.begun.len().saturating_sub(BEGUN_MAX);
        self.begun.drain(..surplus);
        Ok(received)
    }

    /// The sockets that the server had at an address, now of this process.
    pub(super) fn sockets_at(&self, address: SocketAddr) -> Vec<UdpSocket> {
        let sockets = self.sockets.iter().filter_map(|socket| {
            let socket = std::net::UdpSocket::from(socket.try_clone().ok()?);
            (socket.local_addr().ok()? == address).then_some(socket)
        });
        let own = |socket| {
            take_over(&socket)
                .and_then(|()| UdpSocket::from_std(socket))
                .inspect_err(|cause| tracing::warn!(%cause, "a socket cannot be taken over"))
        };
        sockets.filter_map(|socket| own(socket).ok()).collect()
    }

    /// The changes at a port that the server may not have answered.
    pub(super) fn begun_at(&self, port: u16) -> impl Iterator<Item = &Begun> {
        let here =
            move |begun: &&(Instant, Begun)| begun.1.port == port && begun.0.elapsed() < BEGUN_FOR;
        self.begun.iter().filter(here).map(|(_, begun)| begun)
    }
}

/// Each datagram is received alone, and ICMP messages are not kept in the socket.
fn take_over(socket: &std::net::UdpSocket) -> io::Result<()> {
    setsockopt(socket, sockopt::UdpGroSegment, &false)?;
    match socket.local_addr()? {
        SocketAddr::V4(_) => setsockopt(socket, sockopt::Ipv4RecvErr, &false)?,
        SocketAddr::V6(_) => setsockopt(socket, sockopt::Ipv6RecvErr, &false)?,
    }
    Ok(())
}
