//! Whether devices are there at this moment, before an object is placed where nothing stands in for it.
//!
//! The database calls a device dead after some seconds of silence. What has copies or parity is stored all the same in that
//! time; a new file without would fail, though there are other devices. So its devices are asked, unless
//! they have answered a moment ago: then it costs nothing.

use std::collections::HashMap;

use cellar_rpc::{CallError, CallOptions};
use cellar_wire::AbortCode;
use cellar_wire::object::{Layout, Scheme};
use cellar_wire::osd::GetSpace;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::layouts::{Lack, NewFile};
use super::{Storage, layouts};
use crate::abort_map::Refusal;
use crate::limits::{ALIVE_PATIENCE, ALIVE_TIME, STATES_INTERVAL, STATES_PATIENCE};
use crate::server::Server;

/// No device has room for the file, and none is away that would have.
const NO_PLACE: Refusal = Refusal::Store(cellar_volume::Error::DiskFull);

/// How often other devices are chosen.
const TRIES: usize = 4;

/// When devices answered last.
#[derive(Debug, Default)]
pub(crate) struct Alive(Mutex<HashMap<u32, Instant>>);

impl Alive {
    fn was_there(&self, osd: u32) -> bool {
        let heard = self.0.lock().get(&osd).copied();
        heard.is_some_and(|heard| heard.elapsed() < ALIVE_TIME)
    }

    fn is_there(&self, osd: u32) {
        self.0.lock().insert(osd, Instant::now());
    }
}

/// A layout for a new file: as it is wanted, or with what is left where devices are away. `None`:
/// the cell has no devices for a file of that size, and only its size had it wanted there.
///
/// Before less is made of it than is wanted the list is asked for once more, and devices that the
/// database has not heard since its start are waited for.
pub(crate) async fn fresh(server: &Server, file: &NewFile<'_>) -> Result<Option<Layout>, Refusal> {
    let storage = server.objects.needed()?;
    let wanted = file.wanted;
    let alone = wanted.shape.scheme == Scheme::Striped && wanted.shape.copies == 1;
    let deadline = Instant::now() + STATES_PATIENCE;
    let (mut looked, mut silent) = (false, 0);
    loop {
        match layouts::whole(server, storage, file, silent == 0) {
            Ok(layout) if !alone || all_answer(server, storage, &layout).await => {
                return Ok(Some(layout));
            }
            Ok(_) if silent < TRIES => silent += 1,
            Ok(_) => break,
            Err(Lack::NoDevices) if looked && wanted.by_size => return Ok(None),
            Err(Lack::NoDevices) if looked => return Err(NO_PLACE),
            Err(Lack::Unheard) if Instant::now() < deadline => {
                tokio::time::sleep(STATES_INTERVAL).await;
                storage.look().await;
            }
            Err(_) if !looked => {
                storage.look().await;
                looked = true;
            }
            Err(_) => break,
        }
    }
    // Those that failed a moment ago last: they may be there again.
    for attempt in 0..=TRIES {
        match layouts::degraded(server, storage, file, attempt == TRIES) {
            Ok(layout) if !alone || all_answer(server, storage, &layout).await => {
                return Ok(Some(layout));
            }
            _ => {}
        }
    }
    // Not "full", and not the local disk: it comes back with its devices.
    Err(Refusal::Objects(AbortCode::EIO))
}

/// Asks the devices of a layout; those that do not answer, or take no changes, are suspect from
/// then on, and not chosen again.
async fn all_answer(server: &Server, storage: &Storage, layout: &Layout) -> bool {
    let alive = &server.objects.alive;
    let mut all = true;
    for osd in layout.objects.iter().map(|placed| placed.osd) {
        if alive.was_there(osd) {
            continue;
        }
        let options = CallOptions {
            timeout: Some(ALIVE_PATIENCE),
        };
        let answer = match storage.devices.connection(osd) {
            Some(connection) => connection.call_with(&GetSpace {}, options).await,
            None => Err(CallError::Dead),
        };
        match answer {
            Ok(reply) if reply.devices.iter().any(|at| at.osd == osd && at.free == 0) => {
                tracing::info!(osd, "a device takes no changes: a new file goes elsewhere");
                storage.devices.suspect(osd);
                all = false;
            }
            Ok(_) | Err(CallError::Aborted(_)) => alive.is_there(osd),
            Err(cause) => {
                tracing::info!(osd, %cause, "a device does not answer: a new file goes elsewhere");
                storage.devices.failed(osd, &cause);
                all = false;
            }
        }
    }
    all
}
