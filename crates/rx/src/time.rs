//! Time in the core: microseconds since a start that only the driver knows.
//!
//! Every entry point of [`crate::Endpoint`] takes `now`. Nothing here reads a clock, so a test can
//! simulate a day in a millisecond and repeat it exactly.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A point in time: microseconds since an arbitrary start. It must never go backwards between calls
/// of one endpoint (a smaller value is treated as the last one seen).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(u64);

impl Time {
    /// The start.
    pub const ZERO: Self = Self(0);
    /// Later than every real time.
    pub const NEVER: Self = Self(u64::MAX);

    /// The time `micros` microseconds after the start.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the start.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Time passed since `earlier`; zero if that lies in the future.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// Microseconds passed since `earlier`; zero if that lies in the future.
    #[must_use]
    pub(crate) const fn micros_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// This time plus some microseconds.
    #[must_use]
    pub(crate) const fn plus_micros(self, micros: u64) -> Self {
        Self(self.0.saturating_add(micros))
    }
}

impl Add<Duration> for Time {
    type Output = Self;
    fn add(self, duration: Duration) -> Self {
        self.plus_micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
    }
}

impl Sub<Duration> for Time {
    type Output = Self;
    fn sub(self, duration: Duration) -> Self {
        Self(
            self.0
                .saturating_sub(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)),
        )
    }
}
