//! Files in objects, read and written at their devices instead of through the file server.
//!
//! 1. `BeginFetch` tells where a file's objects are and gives the right to read them; the bytes come from the
//!    devices, all at once ([`cellar_objects::Reader`]). The right is renewed while a long file is read; if
//!    another version of the file is there by then, the reader is told, for half of each would be neither.
//! 2. A store goes in parts of [`PART_BYTES`]: `BeginStore`, bytes to the devices, `EndStore`. Each part is
//!    there as a whole or not at all, and what a broken copy has stored can be gone on from.
//! 3. Whoever cannot do that (the server knows no objects, the file is not in objects, a device cannot be
//!    reached from here) uses plain FetchData and StoreData, and nothing is different but the speed. So
//!    these are what [`Client::download`] and [`Client::upload`] fall back to.

mod download;
mod upload;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cellar_objects::{Capabilities, Devices, ObjectSet};
use cellar_rpc::{CallError, CallOptions};
use cellar_wire::abort::AbortCode;
use cellar_wire::afsosd::{self, Access, RepairStatus};
use cellar_wire::ids::Fid;
use parking_lot::Mutex;

use crate::cell::CellName;
use crate::client::Client;
use crate::course::Course;
use crate::error::{Error, Result};
use crate::volume::Volume;

pub use download::Download;
pub use upload::Upload;

/// Shorter files are fetched and stored plainly: the question where they are costs as much as the bytes.
pub const DIRECT_MIN: u64 = 1 << 20;

/// Bytes that one `EndStore` makes visible.
pub const PART_BYTES: u64 = 1 << 30;

/// Time before the end of a right or lease at which it is renewed.
const RENEW_BEFORE: Duration = Duration::from_secs(30);

/// How long a file server that is not known yet may take to say whether it keeps objects: those that do not know the
/// service at all do not answer.
const PROBE_TIME: Duration = Duration::from_secs(1);

/// The devices of the cells that were used, and the file servers that were asked.
#[derive(Debug, Default)]
pub(crate) struct CellDevices {
    devices: Mutex<HashMap<CellName, Devices>>,
    /// By address (none: behind an administrator's socket), whether they keep objects.
    servers: Mutex<HashMap<Option<SocketAddr>, bool>>,
}

impl Client {
    /// The object storage devices of a cell, as far as file servers have named them.
    pub fn devices(&self, cell: &CellName) -> Devices {
        let mut cells = self.cell_devices().devices.lock();
        let make = || Devices::new(self.servers().port().clone());
        cells.entry(cell.clone()).or_insert_with(make).clone()
    }

    /// Whether the file server of a volume keeps files in objects: asked once.
    async fn knows_objects(&self, volume: &Volume) -> Result<bool> {
        let course = Course::by(&afsosd::PACKAGE, self, volume).await?;
        let server = course.connection().peer();
        let servers = &self.cell_devices().servers;
        if let Some(known) = servers.lock().get(&server) {
            return Ok(*known);
        }
        let options = CallOptions {
            timeout: Some(PROBE_TIME),
        };
        let call = course.connection().call_with(&RepairStatus {}, options);
        let knows = match call.await {
            Ok(_) => true,
            // Other servers have no such service; one of ours may have no repair queue.
            Err(CallError::Aborted(code)) => code != AbortCode::RX_INVALID_OPERATION,
            Err(_) => false,
        };
        servers.lock().insert(server, knows);
        Ok(knows)
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
fn is_plain(failure: &Error) -> bool {
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
