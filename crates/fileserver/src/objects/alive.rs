//! Whether devices are there at this moment, before an object is placed where nothing stands in for it.
//!
//! The database calls a device dead after some seconds of silence. What has copies or parity is stored all the same in that
//! time; a new file without would fail, though there are other devices. So its devices are asked, unless
//! they have answered a moment ago: then it costs nothing.

use std::collections::HashMap;

use cellar_rpc::{CallError, CallOptions};
use cellar_wire::ids::VolumeId;
use cellar_wire::object::{Layout, Scheme};
use cellar_wire::osd::GetSpace;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::policies::Wanted;
use super::{Storage, layouts};
use crate::abort_map::Refusal;
use crate::limits::{ALIVE_PATIENCE, ALIVE_TIME};
use crate::server::Server;

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

/// A new layout as [`layouts::fresh`] makes it, on devices that answer if nothing stands in for them.
pub(crate) async fn fresh(
    server: &Server,
    volume: VolumeId,
    wanted: &Wanted,
    size: u64,
    last: (u32, u64),
) -> Result<Option<Layout>, Refusal> {
    let make = || layouts::fresh(server, volume, wanted, size, last);
    let storage = server.objects.needed()?;
    let alone = wanted.shape.scheme == Scheme::Striped && wanted.shape.copies == 1;
    let mut made = make()?;
    for _ in 1..TRIES {
        match &made {
            Some(layout) if alone && !all_answer(server, storage, layout).await => made = make()?,
            _ => break,
        }
    }
    Ok(made)
}

/// Asks the devices of a layout; those that do not answer are suspect from then on, and not chosen again.
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
            Some(connection) => connection.call_with(&GetSpace {}, options).await.map(drop),
            None => Err(CallError::Dead),
        };
        match answer {
            Ok(()) | Err(CallError::Aborted(_)) => alive.is_there(osd),
            Err(cause) => {
                tracing::info!(osd, %cause, "a device does not answer: a new file goes elsewhere");
                storage.devices.failed(osd, &cause);
                all = false;
            }
        }
    }
    all
}
