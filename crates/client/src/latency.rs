//! Answer times of servers: a histogram for each server.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use parking_lot::Mutex;

/// The most servers with counts; others are not counted.
const SERVERS_MAX: usize = 1_000;

/// The upper bounds of the counts, in seconds; the last count has no bound.
pub const LATENCY_BOUNDS: [f64; 12] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0, 5.0, 30.0,
];

/// The answers of one server.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latency {
    /// The number of answers up to each of [`LATENCY_BOUNDS`] and above the bound before it; the
    /// last count has all slower answers.
    pub counts: [u64; LATENCY_BOUNDS.len() + 1],
    /// The sum of all times.
    pub seconds: f64,
}

/// The answers of all servers.
#[derive(Debug, Default)]
pub(crate) struct Latencies(Mutex<BTreeMap<SocketAddr, Latency>>);

impl Latency {
    fn add(&mut self, took: Duration) {
        let seconds = took.as_secs_f64();
        let at = LATENCY_BOUNDS.partition_point(|bound| *bound < seconds);
        self.counts[at] += 1;
        self.seconds += seconds;
    }

    /// Adds the counts of another.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.seconds += other.seconds;
    }
}

impl Latencies {
    pub(crate) fn add(&self, server: SocketAddr, took: Duration) {
        let mut all = self.0.lock();
        if all.len() < SERVERS_MAX || all.contains_key(&server) {
            all.entry(server).or_default().add(took);
        }
    }

    pub(crate) fn all(&self) -> BTreeMap<SocketAddr, Latency> {
        self.0.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_by_time() {
        let latencies = Latencies::default();
        let server = SocketAddr::from(([192, 0, 2, 1], 7000));
        for micros in [90, 100, 101, 40_000_000] {
            latencies.add(server, Duration::from_micros(micros));
        }
        let latency = latencies.all()[&server];
        assert_eq!(latency.counts[..2], [2, 1]);
        assert_eq!(latency.counts[LATENCY_BOUNDS.len()], 1);
        assert!((latency.seconds - 40.000_291).abs() < 1e-6);
    }
}
