//! A database server's messages to the stand-in of its directory.
//!
//! The server sends its addresses as one line of JSON, and the stand-in closes their ports and
//! answers with another. It has the packets of clients that wait for the server. The connection
//! then stays open, and the stand-in notices its end.
//!
//! A thread announces the server again if the stand-in starts later, or again.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cellar_rpc::Port;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

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
    connection: Arc<Mutex<Connection>>,
    held: Vec<Held>,
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
        let (first, held) = match announce(&path, &announcement) {
            Ok((stream, held)) => (Connection::Open(stream), held),
            Err(cause) => {
                if !is_absent(&cause) {
                    tracing::warn!(%cause, "the stand-in of this server does not answer");
                }
                (Connection::Missing, Vec::new())
            }
        };
        let connection = Arc::new(Mutex::new(first));
        let kept = Arc::clone(&connection);
        let keeper = thread::Builder::new().name("stand-in".into());
        let started = keeper.spawn(move || {
            loop {
                let open = match &*kept.lock() {
                    Connection::Ended => return,
                    Connection::Open(stream) => stream.try_clone().ok(),
                    Connection::Missing => None,
                };
                if let Some(mut stream) = open {
                    // The stand-in sends no more: this ends with it, or with the server.
                    let _ended = stream.read(&mut [0]);
                }
                thread::sleep(RETRY);
                let mut connection = kept.lock();
                if matches!(*connection, Connection::Ended) {
                    return;
                }
                // The ports are open: the stand-in holds no packets.
                *connection = announce(&path, &announcement)
                    .map_or(Connection::Missing, |(stream, _)| Connection::Open(stream));
            }
        });
        if let Err(cause) = started {
            tracing::warn!(%cause, "a stand-in that starts later will not know this server");
        }
        Self { connection, held }
    }

    /// Gives the packets that came while the server was away to its open ports.
    pub(crate) fn deliver_held(&mut self, ports: &[Port]) {
        for Held { to, from, packet } in std::mem::take(&mut self.held) {
            let port = ports
                .iter()
                .find(|port| port.local_addresses().contains(&to));
            if let Some(port) = port {
                port.deliver(from, &packet.into());
            }
        }
    }
}

impl Drop for Watched {
    /// The stand-in takes the ports as soon as the server has closed them.
    fn drop(&mut self) {
        let before = std::mem::replace(&mut *self.connection.lock(), Connection::Ended);
        if let Connection::Open(stream) = before {
            let _closed = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

fn is_absent(cause: &io::Error) -> bool {
    matches!(
        cause.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    )
}

fn announce(
    path: &std::path::Path,
    announcement: &Announcement,
) -> io::Result<(UnixStream, Vec<Held>)> {
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
