//! Latencies in a histogram of fixed size: 1 µs to 67 s, 32 steps to each doubling (3 % apart).

use std::time::Duration;

const STEPS: u32 = 32;
const DOUBLINGS: u32 = 26;

/// Counts of latencies. Recording allocates nothing.
#[derive(Clone, Debug)]
pub(crate) struct Latencies {
    buckets: Vec<u64>,
    count: u64,
    max: Duration,
}

impl Latencies {
    pub(crate) fn new() -> Self {
        Self {
            buckets: vec![0; (STEPS * DOUBLINGS) as usize],
            count: 0,
            max: Duration::ZERO,
        }
    }

    pub(crate) fn record(&mut self, latency: Duration) {
        self.buckets[bucket(latency)] += 1;
        self.count += 1;
        self.max = self.max.max(latency);
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn max(&self) -> Duration {
        self.max
    }

    /// The latency below which `share` (0..=1) of all calls stayed, to the step's upper edge.
    pub(crate) fn quantile(&self, share: f64) -> Duration {
        let wanted = (share * self.count as f64).ceil() as u64;
        let mut seen = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted && *count > 0 {
                return upper_edge(index).min(self.max);
            }
        }
        self.max
    }
}

fn bucket(latency: Duration) -> usize {
    let micros = latency.as_nanos().max(1000) as f64 / 1000.0;
    let step = (micros.log2() * f64::from(STEPS)) as usize;
    step.min((STEPS * DOUBLINGS) as usize - 1)
}

fn upper_edge(index: usize) -> Duration {
    let micros = ((index + 1) as f64 / f64::from(STEPS)).exp2();
    Duration::from_nanos((micros * 1000.0) as u64)
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
        assert!((485..=520).contains(&median), "{median}");
        assert_eq!(latencies.quantile(1.0), Duration::from_millis(1));
        assert_eq!(latencies.count(), 1000);
    }

    #[test]
    fn extremes_do_not_overflow() {
        let mut latencies = Latencies::new();
        latencies.record(Duration::ZERO);
        latencies.record(Duration::from_secs(10_000));
        assert_eq!(latencies.max(), Duration::from_secs(10_000));
        assert_eq!(latencies.count(), 2);
    }
}
