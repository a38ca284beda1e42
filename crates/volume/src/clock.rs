//! The machine's time of day, for the dates of objects and the days of access counts. Every other
//! time is an argument; `clippy.toml` forbids other readings of the clock in this crate.

use std::time::{SystemTime, UNIX_EPOCH};

use cellar_wire::ids::AfsTime;

#[expect(clippy::disallowed_methods, reason = "the one place of this crate")]
fn now() -> SystemTime {
    SystemTime::now()
}

/// Seconds since 1970.
pub(crate) fn seconds() -> u64 {
    let since = now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// The present time as an AFS time.
pub(crate) fn time() -> AfsTime {
    AfsTime::from(now())
}
