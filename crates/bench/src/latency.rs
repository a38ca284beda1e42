//! Histogram of latencies with a fixed size: 1 µs to a day, two digits (1 % apart).

use std::time::Duration;

use hdrhistogram::Histogram;

const LEAST: Duration = Duration::from_micros(1);
const MOST: Duration = Duration::from_hours(24);

/// Histogram of latencies. Recording allocates nothing.
#[derive(Clone, Debug)]
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    pub(crate) fn new() -> Self {
        let histogram = Histogram::new_with_bounds(nanos(LEAST), nanos(MOST), 2);
        Self(histogram.expect("valid bounds of a histogram"))
    }

    pub(crate) fn record(&mut self, latency: Duration) {
        self.0.saturating_record(nanos(latency));
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.0 += &other.0;
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    pub(crate) fn max(&self) -> Duration {
        Duration::from_nanos(self.0.max())
    }

    /// Returns the latency that `share` (0..=1) of all calls did not exceed, rounded up to the
    /// upper edge of its step.
    pub(crate) fn quantile(&self, share: f64) -> Duration {
        Duration::from_nanos(self.0.value_at_quantile(share))
    }
}

fn nanos(latency: Duration) -> u64 {
    u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Latencies;

    #[test]
    fn quantiles_are_within_a_step() {
        let mut latencies = Latencies::new();
        for micros in 1..=1000 {
            latencies.record(Duration::from_micros(micros));
        }
        let median = latencies.quantile(0.5).as_micros();
        assert!((495..=510).contains(&median), "{median}");
        assert_eq!(latencies.quantile(1.0), latencies.max());
        assert!((1000..=1010).contains(&latencies.max().as_micros()));
        assert_eq!(latencies.count(), 1000);
    }

    #[test]
    fn extremes_do_not_overflow() {
        let mut latencies = Latencies::new();
        latencies.record(Duration::ZERO);
        latencies.record(Duration::MAX);
        assert!(latencies.max() >= Duration::from_hours(24));
        assert_eq!(latencies.count(), 2);
    }
}
