//! Clock of a runtime: the only code of the transport that reads a clock.

use std::time::{Duration, Instant, SystemTime};

use cellar_rx::Time;

/// Microseconds since the runtime started, and the wall clock time of that start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
    unix_start: Duration,
}

impl Clock {
    pub(crate) fn start() -> Self {
        let unix_start = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self {
            start: Instant::now(),
            unix_start: unix_start.unwrap_or_default(),
        }
    }

    /// Current time.
    #[inline]
    pub(crate) fn now(&self) -> Time {
        let micros = self.start.elapsed().as_micros();
        Time::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// The wall clock at [`Time::ZERO`], microseconds since 1970.
    pub(crate) fn unix_start_micros(&self) -> u64 {
        u64::try_from(self.unix_start.as_micros()).unwrap_or(0)
    }

    /// Current time, microseconds since 1970.
    pub(crate) fn unix_micros(&self) -> u64 {
        self.unix_start_micros()
            .saturating_add(self.now().as_micros())
    }

    /// Converts an `Instant` into protocol time.
    pub(crate) fn time(&self, moment: Instant) -> Time {
        let micros = moment.saturating_duration_since(self.start).as_micros();
        Time::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// Converts protocol time into the `Instant` of the event loop's timers.
    pub(crate) fn instant(&self, time: Time) -> Instant {
        self.start + Duration::from_micros(time.as_micros())
    }
}
