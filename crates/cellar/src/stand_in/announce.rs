//! A database server's messages to the stand-in of its directory.
//!
//! The server sends its addresses as one line of JSON, and the stand-in closes their ports and
//! answers with another. It has the packets of clients that wait for the server. The connection
//! then stays open, and the stand-in notices its end. Meanwhile the server sends its sockets, and
//! each change that begins ([`super::message`]).
//!
//! A thread announces the server again if the stand-in starts later, or again.

use std::io::{self, BufRead as _, BufReader, IoSlice, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cellar_dbserver::ChangeObserver;
use cellar_rpc::{IncomingCall, Port};
use parking_lot::Mutex;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::{Deserialize, Serialize};

use super::message::{Begun, MESSAGE_BYTES, SOCKETS, SOCKETS_MAX};
use crate::cell_directory::{CellDirectory, Identity};

/// The pause before the next attempt to reach a stand-in.
const RETRY: Duration = Duration::from_secs(1);
/// The longest wait for the stand-in's answer. It closes two sockets.
const ANSWER: Duration = Duration::from_secs(2);
/// The length of an answer: all held packets.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// The line that a server sends.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Announcement {
    /// The address of PR.
    pub(super) users: SocketAddr,
    /// The address of VL.
    pub(super) locations: SocketAddr,
}

/// The stand-in's answer.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Released {
    pub(super) held: Vec<Held>,
}

/// A packet that came while the server was away.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Held {
    /// The server's address.
    pub(crate) to: SocketAddr,
    /// The client's.
    pub(crate) from: SocketAddr,
    pub(crate) packet: Vec<u8>,
}

/// A server that its stand-in watches, until this is dropped.
pub(crate) struct Watched {
    link: Arc<Link>,
    announcement: Announcement,
    held: Vec<Held>,
}

/// The server's end of the connection to its stand-in.
struct Link(Mutex<LinkState>);

struct LinkState {
    connection: Connection,
    /// Duplicates of the sockets of PR and VL. The stand-in gets their packets when the server has
    /// ended. Empty until the ports are open.
    sockets: Vec<OwnedFd>,
}

/// | connection | event | next |
/// | --- | --- | --- |
/// | missing | a stand-in answers | open |
/// | open | the stand-in ends | missing |
/// | any | the server stops | ended |
enum Connection {
    Missing,
    Open(UnixStream),
    Ended,
}

/// Whether a stand-in runs for a directory. It may have the ports of the databases.
pub(crate) fn is_there(directory: &CellDirectory) -> bool {
    UnixStream::connect(directory.stand_in_socket()).is_ok()
}

impl Watched {
    /// Announces a server that is about to open its ports. Without a stand-in, it is announced to
    /// one that starts later.
    pub(crate) fn new(directory: &CellDirectory, identity: &Identity) -> Self {
        let path = directory.stand_in_socket();
        let ports = &identity.cell.ports;
        let announcement = Announcement {
            users: SocketAddr::new(identity.bind, ports.protection),
            locations: SocketAddr::new(identity.bind, ports.location),
        };
        let (connection, held) = match announce(&path, &announcement) {
            Ok((stream, held)) => (Connection::Open(stream), held),
            Err(cause) => {
                if !is_absent(&cause) {
                    tracing::warn!(%cause, "the stand-in of this server does not answer");
                }
                (Connection::Missing, Vec::new())
            }
        };
        let link = Arc::new(Link(Mutex::new(LinkState {
            connection,
            sockets: Vec::new(),
        })));
        let kept = Arc::clone(&link);
        let keeper = thread::Builder::new().name("stand-in".into());
        if let Err(cause) = keeper.spawn(move || kept.keep(&path, &announcement)) {
            tracing::warn!(%cause, "a stand-in that starts later will not know this server");
        }
        Self {
            link,
            announcement,
            held,
        }
    }

    /// Tells the stand-in of changes that begin.
    pub(crate) fn observer(&self) -> Arc<dyn ChangeObserver> {
        Arc::clone(&self.link) as _
    }

    /// Shares the open ports with the stand-in, and gives them the packets that came while the
    /// server was away.
    pub(crate) fn ports_open(&mut self, ports: &[Port]) {
        let Announcement { users, locations } = self.announcement;
        let of = |address: SocketAddr| {
            let has = move |port: &&Port| port.local_addresses().contains(&address);
            ports.iter().find(has)
        };
        let shared: Vec<_> = [users, locations].into_iter().filter_map(of).collect();
        match duplicates(&shared) {
            Ok(sockets) => self.link.0.lock().share(sockets),
            Err(cause) => {
                tracing::warn!(%cause, "the stand-in opens sockets of its own");
            }
        }
        for Held { to, from, packet } in std::mem::take(&mut self.held) {
            if let Some(port) = of(to) {
                port.deliver(from, &packet.into());
            }
        }
    }
}

impl Drop for Watched {
    /// The stand-in reads from the ports from now on.
    fn drop(&mut self) {
        let mut state = self.link.0.lock();
        state.sockets.clear();
        let before = std::mem::replace(&mut state.connection, Connection::Ended);
        if let Connection::Open(stream) = before {
            let _closed = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Link {
    /// Announces the server again when its stand-in has ended.
    fn keep(&self, path: &Path, announcement: &Announcement) {
        loop {
            let open = match &self.0.lock().connection {
                Connection::Ended => return,
                Connection::Open(stream) => stream.try_clone().ok(),
                Connection::Missing => None,
            };
            if let Some(mut stream) = open {
                // The stand-in sends no more: this ends with it, or with the server.
                let _ended = stream.read(&mut [0]);
            }
            thread::sleep(RETRY);
            // The ports are open: the stand-in holds no packets.
            let again = announce(path, announcement);
            let mut state = self.0.lock();
            if matches!(state.connection, Connection::Ended) {
                return;
            }
            state.connection =
                again.map_or(Connection::Missing, |(stream, _)| Connection::Open(stream));
            state.send_sockets();
        }
    }
}

impl LinkState {
    fn share(&mut self, sockets: Vec<OwnedFd>) {
        if !matches!(self.connection, Connection::Ended) {
            self.sockets = sockets;
            self.send_sockets();
        }
    }

    fn send_sockets(&self) {
        let Connection::Open(stream) = &self.connection else {
            return;
        };
        for some in self.sockets.chunks(SOCKETS_MAX) {
            let some: Vec<_> = some.iter().map(AsFd::as_fd).collect();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_MAX))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&some));
            let bytes = [IoSlice::new(&SOCKETS)];
            if let Err(cause) = sendmsg(stream, &bytes, &mut control, SendFlags::NOSIGNAL) {
                tracing::warn!(%cause, "the stand-in does not get the sockets");
            }
        }
    }

    /// Sends a message, unless the stand-in has stopped reading. A Unix socket takes a short one
    /// whole or not at all.
    fn send(&self, message: &[u8; MESSAGE_BYTES]) {
        let Connection::Open(stream) = &self.connection else {
            return;
        };
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if let Err(cause) = rustix::net::send(stream, message, flags) {
            tracing::debug!(%cause, "the stand-in does not know a change");
        }
    }
}

impl ChangeObserver for Link {
    fn begins(&self, call: &IncomingCall) {
        let (Some(port), Some(client)) = (call.port(), call.address()) else {
            return;
        };
        if let Some(abort) = call.abort_header() {
            let begun = Begun {
                port: port.local_address().port(),
                client,
                abort,
            };
            self.0.lock().send(&begun.encode());
        }
    }
}

fn duplicates(ports: &[&Port]) -> io::Result<Vec<OwnedFd>> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(async {
        let mut all = Vec::new();
        for port in ports {
            all.extend(port.duplicate_sockets().await?);
        }
        Ok(all)
    })
}

fn is_absent(cause: &io::Error) -> bool {
    matches!(
        cause.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    )
}

fn announce(path: &Path, announcement: &Announcement) -> io::Result<(UnixStream, Vec<Held>)> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_write_timeout(Some(ANSWER))?;
    let mut line = serde_json::to_string(announcement).map_err(io::Error::other)?;
    line.push('\n');
    stream.write_all(line.as_bytes())?;
    let mut answer = String::new();
    BufReader::new((&stream).take(ANSWER_BYTES_MAX)).read_line(&mut answer)?;
    let Released { held } = serde_json::from_str(&answer).map_err(io::Error::other)?;
    stream.set_read_timeout(None)?;
    Ok((stream, held))
}
