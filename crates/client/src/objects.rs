//! Reads and writes files in objects at their devices instead of through the file server.
//!
//! 1. `BeginFetch` returns the places of a file's objects and the right to read them. The bytes
//!    come from all devices at the same time ([`cellar_objects::Reader`]). The right is renewed
//!    while a long file is read. If the file has another version by then, the reader receives an
//!    error, because a mix of two versions would be neither of them.
//! 2. A store is done in parts: `BeginStore`, bytes to the devices, `EndStore`. Each part takes
//!    effect as a whole or not at all, and an interrupted copy can continue behind the stored
//!    parts. The first part has [`PART_BYTES_FIRST`]. Each later part has as many bytes as ten
//!    seconds take at the speed of the part before it, at most [`PART_BYTES_MAX`]. So a fast store
//!    has few parts, and a slow one loses little when it is interrupted.
//! 3. Plain FetchData and StoreData are the fallback of [`Client::download`] and
//!    [`Client::upload`]. They are used if the server has no objects, the file is not in objects,
//!    or a device cannot be reached. The result is the same; only the speed differs.

mod download;
mod reasons;
mod upload;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cellar_objects::{Capabilities, Devices, ObjectSet};
use cellar_rpc::{CallError, CallOptions, Connection};
use cellar_wire::abort::AbortCode;
use cellar_wire::afsosd::{self, Access, BeginFetch, RepairStatus};
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::{AfsFetchStatus, Callback};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::cell::CellName;
use crate::client::Client;
use crate::error::{Error, Result};
use crate::operation::VolumeOperation;
use crate::volume::Volume;

pub use download::Download;
pub use upload::Stored;
pub use upload::{Upload, UploadStep};

/// Shorter files are fetched and stored through the file server: the call for the places of the
/// objects costs as much as the bytes.
pub const DIRECT_MIN: u64 = 1 << 20;

/// The bytes that the first `EndStore` of a store makes visible. Every other part has at least as
/// many, except the last.
pub const PART_BYTES_FIRST: u64 = 64 << 20;

/// The most bytes that one `EndStore` makes visible.
pub const PART_BYTES_MAX: u64 = 1 << 30;

/// The time before the end of a right or lease at which it is renewed.
const RENEW_BEFORE: Duration = Duration::from_secs(30);

/// The time-out of the call that finds out whether a file server keeps objects. Servers without the
/// service do not answer at all.
const PROBE_TIME: Duration = Duration::from_secs(1);

/// The time for which a file server that did not answer counts as one without objects.
const ASK_AGAIN: Duration = Duration::from_secs(300);

/// The shortest life of a right to read; a shorter one is not believed, because clocks differ.
const LIFE_MIN: Duration = Duration::from_secs(60);

/// The devices of the cells in use, and the file servers whose service is known.
#[derive(Debug, Default)]
pub(crate) struct CellDevices {
    devices: Mutex<HashMap<CellName, Devices>>,
    /// By address; `None` is a server behind an administrator's socket.
    servers: Arc<Mutex<HashMap<Option<SocketAddr>, Server>>>,
}

impl CellDevices {
    /// Replaces the connections to devices.
    pub(crate) fn renew(&self) {
        for devices in self.devices.lock().values() {
            devices.renew();
        }
    }
}

/// Whether a file server keeps files in objects.
#[derive(Clone, Copy, Debug)]
enum Server {
    Keeps,
    /// The server lacks the service, or did not answer. It is asked again after this time.
    No(Instant),
    /// A background call is finding out, until this time at most.
    StatusRequest(Instant),
}

/// The places of a file's objects, and the right to read them.
#[derive(Debug)]
pub struct Granted {
    /// The objects of one version of the file.
    pub set: ObjectSet,
    /// The time at which the right has to be renewed.
    pub renew: Instant,
    /// The file's status with that version.
    pub status: AfsFetchStatus,
    /// The promise that the file server gave with the reply.
    pub callback: Callback,
    /// The address of the file server that gave the promise.
    pub by: SocketAddr,
}

impl Client {
    /// The object storage devices of a cell, as far as file servers have named them.
    pub fn devices(&self, cell: &CellName) -> Devices {
        let mut cells = self.cell_devices().devices.lock();
        let make = || Devices::with_fallback(self.servers().port().clone());
        cells.entry(cell.clone()).or_insert_with(make).clone()
    }

    /// Whether the file server of a volume keeps files in objects. The server is asked once.
    async fn knows_objects(&self, volume: &Volume) -> Result<bool> {
        let operation = VolumeOperation::start_with(&afsosd::PACKAGE, self, volume).await?;
        let server = operation.connection().peer();
        let servers = &self.cell_devices().servers;
        if let Some(known) = known(servers, server) {
            return Ok(known);
        }
        let said = ask(operation.connection()).await;
        servers.lock().insert(server, said);
        Ok(matches!(said, Server::Keeps))
    }

    /// As `knows_objects`, without a wait: `None` if the server has not answered yet.
    /// Servers without objects never answer.
    pub async fn is_known_to_keep_objects(&self, volume: &Volume) -> Option<bool> {
        let operation = VolumeOperation::start_with(&afsosd::PACKAGE, self, volume)
            .await
            .ok()?;
        let server = operation.connection().peer();
        let servers = &self.cell_devices().servers;
        if let Some(known) = known(servers, server) {
            return Some(known);
        }
        // One call at a time asks a server, even if several callers need the answer.
        let now = Instant::now();
        let asked = Server::StatusRequest(now + ASK_AGAIN);
        match servers.lock().insert(server, asked) {
            Some(Server::StatusRequest(until)) if now < until => return None,
            _ => {}
        }
        let (connection, servers) = (operation.connection().clone(), servers.clone());
        tokio::spawn(async move {
            let said = ask(&connection).await;
            servers.lock().insert(server, said);
        });
        None
    }

    /// Requests the places of a file's bytes, and the right to read them.
    ///
    /// # Errors
    /// An error for which [`is_plain`] is true if the bytes are on the file server; other errors of
    /// the call.
    pub async fn ask_where(
        &self,
        volume: &Volume,
        fid: Fid,
        what: &str,
        range: Range<u64>,
    ) -> Result<Granted> {
        let arguments = BeginFetch {
            fid,
            position: range.start,
            length: range.end.saturating_sub(range.start),
        };
        let asked = format!("reading {what}");
        let (reply, by) = self.call_volume_at(volume, &asked, &arguments).await?;
        let access: Access = reply.access;
        self.devices(&volume.cell).merge(&access.devices);
        let life = u64::from(access.expires.0).saturating_sub(now());
        let life = Duration::from_secs(life).max(LIFE_MIN);
        Ok(Granted {
            set: object_set(fid, access),
            renew: Instant::now() + life - RENEW_BEFORE.min(life / 2),
            status: reply.status,
            callback: reply.callback,
            by,
        })
    }
}

type Servers = Mutex<HashMap<Option<SocketAddr>, Server>>;

fn known(servers: &Servers, server: Option<SocketAddr>) -> Option<bool> {
    match servers.lock().get(&server)? {
        Server::Keeps => Some(true),
        Server::No(until) => (Instant::now() < *until).then_some(false),
        Server::StatusRequest(_) => None,
    }
}

async fn ask(connection: &Connection) -> Server {
    let options = CallOptions {
        timeout: Some(PROBE_TIME),
    };
    match connection.call_with(&RepairStatus {}, options).await {
        Ok(_) => Server::Keeps,
        // Other servers have no such service; one of ours may have no repair queue.
        Err(CallError::Aborted(code)) if code != AbortCode::RX_INVALID_OPERATION => Server::Keeps,
        Err(_) => Server::No(Instant::now() + ASK_AGAIN),
    }
}

/// The object set that an `Access` allows to use.
fn object_set(fid: Fid, access: Access) -> ObjectSet {
    ObjectSet {
        vnode: fid.vnode,
        uniquifier: fid.uniquifier,
        layout: access.layout,
        capabilities: Capabilities::Listed(access.capabilities.into()),
    }
}

/// Seconds since 1970, for comparison with the times that servers send.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Whether a failure means that plain calls have to be used: no such service, no such procedure, or
/// no objects.
pub fn is_plain(failure: &Error) -> bool {
    let Error::Fileserver { cause, .. } = failure else {
        return false;
    };
    matches!(
        cause,
        CallError::Aborted(code) if matches!(
            code.to_plain(),
            AbortCode::RXGEN_OPCODE
                | AbortCode::RX_INVALID_OPERATION
                | AbortCode::ENODATA
                | AbortCode::EOPNOTSUPP
                // Directories and links have no objects.
                | AbortCode::EISDIR
                | AbortCode::EINVAL
        )
    )
}
