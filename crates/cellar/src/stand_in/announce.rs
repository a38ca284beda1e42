//! A database server's messages to the stand-in of its directory.
//!
//! The server sends its addresses as one line of JSON, and the stand-in closes their ports and
//! answers with one line. The connection then stays open, and the stand-in notices its end.
//!
//! A thread announces the server again if the stand-in starts later, or again.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::cell_directory::CellDirectory;

/// The pause before the next attempt to reach a stand-in.
const RETRY: Duration = Duration::from_secs(1);
/// The longest wait for the stand-in's answer. It closes two sockets.
const ANSWER: Duration = Duration::from_secs(2);
/// The stand-in's answer.
pub(super) const RELEASED: &str = "released";

/// The line that a server sends.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Announcement {
    /// Addresses of the ports of PR and VL.
    pub(super) addresses: Vec<SocketAddr>,
}

/// A server that its stand-in watches, until this is dropped.
pub(crate) struct Watched(Arc<Mutex<Connection>>);

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
    pub(crate) fn new(directory: &CellDirectory, addresses: Vec<SocketAddr>) -> Self {
        let path = directory.stand_in_socket();
        let announcement = Announcement { addresses };
        let first = match announce(&path, &announcement) {
            Ok(stream) => Connection::Open(stream),
            Err(cause) => {
                if !is_absent(&cause) {
                    tracing::warn!(%cause, "the stand-in of this server does not answer");
                }
                Connection::Missing
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
                *connection =
                    announce(&path, &announcement).map_or(Connection::Missing, Connection::Open);
            }
        });
        if let Err(cause) = started {
            tracing::warn!(%cause, "a stand-in that starts later will not know this server");
        }
        Self(connection)
    }
}

impl Drop for Watched {
    /// The stand-in takes the ports as soon as the server has closed them.
    fn drop(&mut self) {
        let before = std::mem::replace(&mut *self.0.lock(), Connection::Ended);
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

fn announce(path: &std::path::Path, announcement: &Announcement) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_write_timeout(Some(ANSWER))?;
    let mut line = serde_json::to_string(announcement).map_err(io::Error::other)?;
    line.push('\n');
    stream.write_all(line.as_bytes())?;
    let mut answer = String::new();
    let most = RELEASED.len() as u64 + 1;
    BufReader::new((&stream).take(most)).read_line(&mut answer)?;
    if answer.trim_end() != RELEASED {
        return Err(io::Error::other("the stand-in gave no answer"));
    }
    stream.set_read_timeout(None)?;
    Ok(stream)
}
