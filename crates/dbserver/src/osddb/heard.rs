//! What is heard of devices: how full they are, and that they are there.
//!
//! A server says so every two seconds. A device that was not heard of for [`DEAD_AFTER`] is dead: four
//! heartbeats in a row were lost, or nobody is there. For as long after its own start this database calls
//! nobody dead whom it could not have heard yet; such a device has no free room as far as is known, so
//! nothing is placed there, but what is there is read.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use cellar_wire::osddb::{OsdEntry, OsdListed, OsdState};
use parking_lot::Mutex;

use super::Stopwatch;
use super::tables::LOCAL_DISK;

/// Silence after which a device is dead.
pub const DEAD_AFTER: Duration = Duration::from_secs(8);

/// `silence` of a device that was never heard of.
const NEVER: u32 = u32::MAX;

pub(super) struct Heard {
    stopwatch: Stopwatch,
    started: Instant,
    devices: Mutex<HashMap<u32, (OsdState, Instant)>>,
}

impl Heard {
    pub(super) fn new(stopwatch: Stopwatch) -> Self {
        let started = stopwatch();
        Self {
            stopwatch,
            started,
            devices: Mutex::default(),
        }
    }

    /// Takes a device's word.
    pub(super) fn hear(&self, state: OsdState) {
        let now = (self.stopwatch)();
        self.devices.lock().insert(state.id, (state, now));
    }

    /// The entry and what is known of it.
    pub(super) fn listed(&self, entry: &OsdEntry) -> OsdListed {
        let now = (self.stopwatch)();
        let heard = self.devices.lock().get(&entry.id).copied();
        let (silence, state) = match heard {
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
            // The file servers' own disks are no device that could be silent.
            dead: entry.id != LOCAL_DISK && quiet > DEAD_AFTER,
        }
    }
}
