//! Files in objects, read and written at their devices instead of through the file server.
//!
//! 1. `BeginFetch` tells where a file's objects are and gives the right to read them; the bytes come from the
//!    devices, all at once ([`cellar_objects::Reader`]). The right is renewed while a long file is read; if
//!    another version of the file is there by then, the reader is told, for half of each would be neither.
//! 2. A store goes in parts: `BeginStore`, bytes to the devices, `EndStore`. Each part is there as a whole or not at
//!    all, and what a broken copy has stored can be gone on from. The first has [`PART_BYTES_FIRST`], those behind it
//!    what takes ten seconds at the speed of the one before, [`PART_BYTES_MAX`] at most: a fast store has few of them,
//!    and a slow one loses little.
//!    A mount stores the pieces that it would send to the file server in the same way.
//! 3. Whoever cannot do that (the server knows no objects, the file is not in objects, a device cannot be
//!    reached from here) uses plain FetchData and StoreData, and nothing is different but the speed. So
//!    these are what [`Client::download`] and [`Client::upload`] fall back to.

mod download;
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
use crate::course::Course;
use crate::error::{Error, Result};
use crate::volume::Volume;

pub use download::Download;
pub(crate) use upload::Stored;
pub use upload::{Upload, UploadStep};

/// Shorter files are fetched and stored plainly: the question where they are costs as much as the bytes.
pub const DIRECT_MIN: u64 = 1 << 20;

/// Bytes that the first `EndStore` of a store makes visible, and every other at least.
pub const PART_BYTES_FIRST: u64 = 64 << 20;

/// Bytes that one `EndStore` makes visible, at most.
pub const PART_BYTES_MAX: u64 = 1 << 30;

/// Time before the end of a right or lease at which it is renewed.
const RENEW_BEFORE: Duration = Duration::from_secs(30);

/// How long a file server that is not known yet may take to say whether it keeps objects: those that do not know the
/// service at all do not answer.
const PROBE_TIME: Duration = Duration::from_secs(1);

/// How long a file server that did not say counts as one that keeps none.
const ASK_AGAIN: Duration = Duration::from_secs(300);

/// Shortest life of a right to read that is believed: clocks differ.
const LIFE_MIN: Duration = Duration::from_secs(60);

/// The devices of the cells that were used, and the file servers that were asked.
#[derive(Debug, Default)]
pub(crate) struct CellDevices {
    devices: Mutex<HashMap<CellName, Devices>>,
    /// By address; none: behind an administrator's socket.
    servers: Arc<Mutex<HashMap<Option<SocketAddr>, Server>>>,
}

impl CellDevices {
    /// Connections to devices are made anew: this machine has another address, or has slept.
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
    /// It knows no such service, or did not say. Until then it is not asked again.
    No(Instant),
    /// It is being asked in the background, until then at most.
    Asked(Instant),
}

/// Where a file is, and the right to read it.
#[derive(Debug)]
pub(crate) struct Granted {
    /// Of one version of the file.
    pub(crate) set: ObjectSet,
    /// When the right is to be renewed.
    pub(crate) renew: Instant,
    /// The file's status with that version.
    pub(crate) status: AfsFetchStatus,
    /// What the file server promised with it.
    pub(crate) callback: Callback,
    /// Which address of it did.
    pub(crate) by: SocketAddr,
}

impl Client {
    /// The object storage devices of a cell, as far as file servers have named them.
    pub fn devices(&self, cell: &CellName) -> Devices {
        let mut cells = self.cell_devices().devices.lock();
        let make = || Devices::stood_in(self.servers().port().clone());
        cells.entry(cell.clone()).or_insert_with(make).clone()
    }

    /// Whether the file server of a volume keeps files in objects: asked once.
    async fn knows_objects(&self, volume: &Volume) -> Result<bool> {
        let course = Course::by(&afsosd::PACKAGE, self, volume).await?;
        let server = course.connection().peer();
        let servers = &self.cell_devices().servers;
        if let Some(known) = known(servers, server) {
            return Ok(known);
        }
        let said = ask(course.connection()).await;
        servers.lock().insert(server, said);
        Ok(matches!(said, Server::Keeps))
    }

    /// The same, as far as it is known: nobody waits for a server that has not said yet (`None`), which those that know
    /// no objects never do.
    pub(crate) async fn is_known_to_keep_objects(&self, volume: &Volume) -> Option<bool> {
        let course = Course::by(&afsosd::PACKAGE, self, volume).await.ok()?;
        let server = course.connection().peer();
        let servers = &self.cell_devices().servers;
        if let Some(known) = known(servers, server) {
            return Some(known);
        }
        // Asked once, whoever comes meanwhile.
        let now = Instant::now();
        let asked = Server::Asked(now + ASK_AGAIN);
        match servers.lock().insert(server, asked) {
            Some(Server::Asked(until)) if now < until => return None,
            _ => {}
        }
        let (connection, servers) = (course.connection().clone(), servers.clone());
        tokio::spawn(async move {
            let said = ask(&connection).await;
            servers.lock().insert(server, said);
        });
        None
    }

    /// Asks where a file's bytes are, and for the right to read them.
    ///
    /// # Errors
    /// [`is_plain`]: they are on the file server; others as it says.
    pub(crate) async fn ask_where(
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
        Server::Asked(_) => None,
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

/// What `Access` allows, for `cellar_objects`.
fn object_set(fid: Fid, access: Access) -> ObjectSet {
    ObjectSet {
        vnode: fid.vnode,
        uniquifier: fid.uniquifier,
        layout: access.layout,
        capabilities: Capabilities::Listed(access.capabilities.into()),
    }
}

/// Seconds since 1970: what servers say of time is compared with it.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Whether an answer means that plain calls are to be used: no such service, no such procedure, or no objects.
pub(crate) fn is_plain(failure: &Error) -> bool {
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
                // A directory, a link: they have no objects.
                | AbortCode::EISDIR
                | AbortCode::EINVAL
        )
    )
}
