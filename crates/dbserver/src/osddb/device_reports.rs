//! Reports of devices: their free space, and their presence.
//!
//! A server reports every two seconds. A device without a report for [`DEAD_AFTER`] is dead: four
//! heartbeats in a row were lost, or its server is down. For the same time after its own start,
//! this database does not call a device dead that has not reported yet. The free space of such a
//! device is unknown and counts as none. Therefore no new objects go there, but existing ones are
//! read.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use cellar_wire::osddb::{OsdEntry, OsdListed, OsdState};
use parking_lot::Mutex;

use super::Stopwatch;
use super::tables::LOCAL_DISK;

/// The time without a report after which a device is dead.
pub const DEAD_AFTER: Duration = Duration::from_secs(8);

/// The `silence` of a device that has never reported.
const NEVER: u32 = u32::MAX;

pub(super) struct DeviceReports {
    stopwatch: Stopwatch,
    started: Instant,
    devices: Mutex<HashMap<u32, (OsdState, Instant)>>,
}

impl DeviceReports {
    pub(super) fn new(stopwatch: Stopwatch) -> Self {
        let started = stopwatch();
        Self {
            stopwatch,
            started,
            devices: Mutex::default(),
        }
    }

    /// Stores a report.
    pub(super) fn record(&self, state: OsdState) {
        let now = (self.stopwatch)();
        self.devices.lock().insert(state.id, (state, now));
    }

    /// The entry of a device with its last report.
    pub(super) fn listed(&self, entry: &OsdEntry) -> OsdListed {
        let now = (self.stopwatch)();
        let last = self.devices.lock().get(&entry.id).copied();
        let (silence, state) = match last {
            Some((state, at)) => (Some(now.saturating_duration_since(at)), state),
            None => (None, OsdState::default()),
        };
        let quiet = silence.unwrap_or_else(|| now.saturating_duration_since(self.started));
        OsdListed {
            entry: entry.clone(),
            state: OsdState {
                id: entry.id,
                silence: silence.map_or(NEVER, |silence| {
                    u32::try_from(silence.as_secs()).map_or(NEVER - 1, |secs| secs.min(NEVER - 1))
                }),
                ..state
            },
            // The file servers' own disks do not report.
            dead: entry.id != LOCAL_DISK && quiet > DEAD_AFTER,
        }
    }
}
