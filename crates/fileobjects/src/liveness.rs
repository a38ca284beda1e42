//! Checks that devices are alive before an object is placed on them without a copy or parity.
//!
//! The database calls a device dead after some seconds of silence. In that time a file with copies
//! or parity can be stored nevertheless. A new file without them would fail, although there are
//! other devices. So its devices are asked, unless they answered recently; then the check costs
//! nothing.

use std::collections::HashMap;

use cellar_rpc::{CallError, CallOptions};
use cellar_wire::AbortCode;
use cellar_wire::object::{Layout, Scheme};
use cellar_wire::osd::GetSpace;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::Objects;
use super::failure::Failure;
use super::layouts::{NewFile, NoLayout};
use super::limits::{ALIVE_PATIENCE, ALIVE_TIME, STATES_INTERVAL, STATES_PATIENCE};
use super::{Storage, layouts};

/// No device has room for the file, and no missing device would have.
const NO_PLACE: Failure = Failure::Volume(cellar_volume::Error::DiskFull);

/// How often other devices are chosen.
const TRIES: usize = 4;

/// The time of each device's last answer.
#[derive(Debug, Default)]
pub(crate) struct DeviceLiveness(Mutex<HashMap<u32, Instant>>);

impl DeviceLiveness {
    fn answered_recently(&self, osd: u32) -> bool {
        let answered = self.0.lock().get(&osd).copied();
        answered.is_some_and(|answered| answered.elapsed() < ALIVE_TIME)
    }

    fn note_answer(&self, osd: u32) {
        self.0.lock().insert(osd, Instant::now());
    }
}

/// A layout for a new file: in the wanted shape, or a degraded one while devices are missing.
/// `None` if the cell has no devices for a file of that size, and only its size made it a file for
/// objects.
///
/// Before a degraded layout is used, the list is loaded again. The function also waits for devices
/// that the database has not heard from since its start.
pub(crate) async fn new_layout(
    objects: &Objects,
    file: &NewFile<'_>,
) -> Result<Option<Layout>, Failure> {
    let storage = objects.needed()?;
    let wanted = file.wanted;
    let alone = wanted.shape.scheme == Scheme::Striped && wanted.shape.copies == 1;
    let deadline = Instant::now() + STATES_PATIENCE;
    let (mut looked, mut silent) = (false, 0);
    loop {
        match layouts::whole(objects, storage, file, silent == 0) {
            Ok(layout) if !alone || all_answer(objects, storage, &layout).await => {
                return Ok(Some(layout));
            }
            Ok(_) if silent < TRIES => silent += 1,
            Ok(_) => break,
            Err(NoLayout::NoDevices) if looked && wanted.by_size => return Ok(None),
            Err(NoLayout::NoDevices) if looked => return Err(NO_PLACE),
            Err(NoLayout::NoReportYet) if Instant::now() < deadline => {
                tokio::time::sleep(STATES_INTERVAL).await;
                storage.refresh_devices().await;
            }
            Err(_) if !looked => {
                storage.refresh_devices().await;
                looked = true;
            }
            Err(_) => break,
        }
    }
    // The last attempt includes devices that failed recently, because they may be back.
    for attempt in 0..=TRIES {
        match layouts::degraded(objects, storage, file, attempt == TRIES) {
            Ok(layout) if !alone || all_answer(objects, storage, &layout).await => {
                return Ok(Some(layout));
            }
            _ => {}
        }
    }
    // Not "disk full", and not the local disk: room returns with the missing devices.
    Err(Failure::Devices(AbortCode::EIO))
}

/// Asks the devices of a layout. Devices that do not answer, or take no changes, are suspect from
/// then on and not chosen again.
async fn all_answer(objects: &Objects, storage: &Storage, layout: &Layout) -> bool {
    let liveness = &objects.liveness;
    let mut all = true;
    for osd in layout.objects.iter().map(|placed| placed.osd) {
        if liveness.answered_recently(osd) {
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
                let name = objects.device_name(osd);
                tracing::info!(
                    osd,
                    name,
                    "a device takes no changes: a new file goes to another device"
                );
                storage.devices.suspect(osd);
                all = false;
            }
            Ok(_) | Err(CallError::Aborted(_)) => liveness.note_answer(osd),
            Err(cause) => {
                let name = objects.device_name(osd);
                tracing::info!(osd, name, %cause, "a device does not answer: a new file goes to another device");
                storage.devices.failed(osd, &cause);
                all = false;
            }
        }
    }
    all
}
