//! A database server's messages to the stand-in of its directory.
//!
//! The server sends its addresses as one line of JSON, and the stand-in stops reading there and
//! answers with another. It has the packets of clients that wait for the server, and comes with
//! the sockets of the server before. So the ports are never closed. The connection
//! then stays open, and the stand-in notices its end. When the ports are open, the server shares
//! their sockets and the logs of received packets ([`super::message`]).
//!
//! A thread announces the server again if the stand-in starts later, or again.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cellar_rpc::Port;
use parking_lot::Mutex;

use super::message::{self, Announcement, Held, Released, Shared};
use crate::cell_directory::{CellDirectory, Identity};

/// The pause before the next attempt to reach a stand-in.
const RETRY: Duration = Duration::from_secs(1);
/// The longest wait for the stand-in's answer. It closes two sockets.
const ANSWER: Duration = Duration::from_secs(2);
/// The length of an answer: all held packets.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// A server that its stand-in watches, until this is dropped.
pub(crate) struct Watched {
    link: Arc<Link>,
    announcement: Announcement,
    held: Vec<Held>,
    given: Vec<UdpSocket>,
}

/// The server's end of the connection to its stand-in.
struct Link(Mutex<LinkState>);

struct LinkState {
    connection: Connection,
    /// The open ports, and their descriptors. Empty until the ports are open.
    shared: Vec<(Shared, Vec<OwnedFd>)>,
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
        let (connection, held, given) = match announce(&path, &announcement) {
            Ok(answer) => {
                let connection = Connection::Open(answer.stream);
                (connection, answer.held, answer.sockets)
            }
            Err(cause) => {
                if !is_absent(&cause) {
                    tracing::warn!(%cause, "the stand-in of this server does not answer");
                }
                (Connection::Missing, Vec::new(), Vec::new())
            }
        };
        let link = Arc::new(Link(Mutex::new(LinkState {
            connection,
            shared: Vec::new(),
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
            given,
        }
    }

    /// The sockets of the ports, if the stand-in had them. They have packets that came since.
    pub(crate) fn take_sockets(&mut self) -> Vec<UdpSocket> {
        std::mem::take(&mut self.given)
    }

    /// Shares the open ports with the stand-in, and gives them the packets that came while the
    /// server was away.
    pub(crate) fn ports_open(&mut self, ports: &[Port]) {
        let Announcement { users, locations } = self.announcement;
        let of = |address: SocketAddr| {
            let has = move |port: &&Port| port.local_addresses().contains(&address);
            ports.iter().find(has)
        };
        let mut shared = Vec::new();
        for (address, port) in [users, locations].map(|address| (address, of(address))) {
            match port.map(|port| share(address, port)).transpose() {
                Ok(port) => shared.extend(port),
                Err(cause) => {
                    tracing::warn!(%cause, %address, "the stand-in opens a socket of its own");
                }
            }
        }
        self.link.0.lock().share(shared);
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
        state.shared.clear();
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
            state.connection = again.map_or(Connection::Missing, |answer| {
                Connection::Open(answer.stream)
            });
            state.send_shared();
        }
    }
}

impl LinkState {
    fn share(&mut self, shared: Vec<(Shared, Vec<OwnedFd>)>) {
        if !matches!(self.connection, Connection::Ended) {
            self.shared = shared;
            self.send_shared();
        }
    }

    fn send_shared(&self) {
        let Connection::Open(stream) = &self.connection else {
            return;
        };
        for (port, descriptors) in &self.shared {
            let line = message::line(port);
            let sent = line.and_then(|line| message::send(stream, line.as_bytes(), descriptors));
            if let Err(cause) = sent {
                tracing::warn!(%cause, "the stand-in does not get the sockets");
            }
        }
    }
}

/// Duplicates the descriptors of a port: its sockets, then its logs.
fn share(address: SocketAddr, port: &Port) -> io::Result<(Shared, Vec<OwnedFd>)> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let shards = runtime.block_on(port.share())?;
    let (mut descriptors, mut logs) = (Vec::new(), Vec::new());
    for shard in shards {
        descriptors.extend(shard.sockets);
        logs.extend(shard.log);
    }
    let shared = Shared {
        address,
        sockets: descriptors.len(),
        logs: logs.len(),
    };
    descriptors.extend(logs);
    Ok((shared, descriptors))
}

fn is_absent(cause: &io::Error) -> bool {
    matches!(
        cause.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    )
}

/// The stand-in's answer, with its sockets of the ports.
struct Answer {
    stream: UnixStream,
    held: Vec<Held>,
    sockets: Vec<UdpSocket>,
}

fn announce(path: &Path, announcement: &Announcement) -> io::Result<Answer> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_write_timeout(Some(ANSWER))?;
    stream.write_all(message::line(announcement)?.as_bytes())?;
    let (mut answer, mut sockets, mut part) = (Vec::new(), Vec::new(), vec![0; 1 << 16]);
    while answer.last() != Some(&b'\n') && answer.len() < ANSWER_BYTES_MAX {
        let received = message::receive(&stream, &mut part, &mut sockets)?;
        if received == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        answer.extend_from_slice(part.get(..received).unwrap_or_default());
    }
    let Released { held } = serde_json::from_slice(&answer).map_err(io::Error::other)?;
    stream.set_read_timeout(None)?;
    let sockets = sockets.into_iter().map(UdpSocket::from).collect();
    Ok(Answer {
        stream,
        held,
        sockets,
    })
}
