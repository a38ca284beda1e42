//! Counters for each procedure, as RXSTATS shows them, and for each port.
//!
//! Each shard has its own copy of every counter and is its only writer. Counting is therefore a
//! load, an addition and a store without exclusive access. Readers add the copies up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cellar_wire::package::Package;
use parking_lot::Mutex;

/// A counter that one thread changes and any thread reads.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds to the value. Only the owning thread may call this.
    #[inline]
    pub(crate) fn add(&self, by: u64) {
        self.0.store(
            self.0.load(Ordering::Relaxed).wrapping_add(by),
            Ordering::Relaxed,
        );
    }

    /// Replaces the value. Only the owning thread may call this.
    #[inline]
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Sum, sum of squares, minimum and maximum of some durations, microseconds.
#[derive(Debug, Default)]
pub(crate) struct Durations {
    sum: Counter,
    squares: Counter,
    /// The minimum plus 1; 0: none yet.
    minimum: Counter,
    maximum: Counter,
}

impl Durations {
    #[inline]
    fn add(&self, micros: u64) {
        self.sum.add(micros);
        self.squares.add(micros.saturating_mul(micros));
        let minimum = self.minimum.value();
        if minimum == 0 || micros + 1 < minimum {
            self.minimum.set(micros + 1);
        }
        if micros > self.maximum.value() {
            self.maximum.set(micros);
        }
    }
}

/// Sum, sum of squares, minimum and maximum of some durations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurationFigures {
    /// Sum, µs.
    pub sum: u64,
    /// Sum of squares, µs².
    pub squares: u64,
    /// Smallest, µs; `None` before the first.
    pub minimum: Option<u64>,
    /// Largest, µs.
    pub maximum: u64,
}

impl DurationFigures {
    fn merge(&mut self, from: &Durations) {
        self.sum += from.sum.value();
        self.squares = self.squares.saturating_add(from.squares.value());
        let minimum = from.minimum.value().checked_sub(1);
        self.minimum = match (self.minimum, minimum) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        self.maximum = self.maximum.max(from.maximum.value());
    }
}

/// Upper bounds of the counts of execution times, µs. The last count has no bound.
///
/// Two for each power of ten tell enough. A call from memory takes some ten microseconds, a durable
/// change milliseconds, a call that waits for a peer seconds.
pub const LATENCY_BOUNDS_MICROS: [u64; 13] = [
    30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000,
    60_000_000,
];

/// Counts of execution times, for each bound and above the last.
pub type LatencyCounts = [u64; LATENCY_BOUNDS_MICROS.len() + 1];

/// Counters of one procedure on one shard.
#[derive(Debug, Default)]
pub(crate) struct ProcedureCounters {
    invocations: Counter,
    aborts: Counter,
    bytes_received: Counter,
    bytes_sent: Counter,
    queued: Durations,
    executed: Durations,
    latencies: [Counter; LATENCY_BOUNDS_MICROS.len() + 1],
}

/// Outcome of one call.
pub(crate) struct CallRecord {
    pub(crate) aborted: bool,
    pub(crate) bytes_received: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) queued_micros: u64,
    pub(crate) executed_micros: u64,
}

/// Counters of one package on one shard.
#[derive(Debug)]
pub(crate) struct PackageCounters {
    package: &'static Package,
    procedures: Box<[ProcedureCounters]>,
    /// Number of calls with opcodes that the package does not have.
    unknown: Counter,
}

impl PackageCounters {
    pub(crate) fn new(package: &'static Package) -> Self {
        let procedures = package
            .procedures
            .iter()
            .map(|_| ProcedureCounters::default())
            .collect();
        Self {
            package,
            procedures,
            unknown: Counter::default(),
        }
    }

    /// Sets the counters that `flags` names (rx-wire facts 5.1) to 0. Only the owning shard may
    /// call this.
    pub(crate) fn clear(&self, flags: u32) {
        for procedure in &self.procedures {
            let plain = [
                &procedure.invocations,
                &procedure.bytes_sent,
                &procedure.bytes_received,
                &procedure.queued.sum,
                &procedure.queued.squares,
                &procedure.queued.minimum,
                &procedure.queued.maximum,
                &procedure.executed.sum,
                &procedure.executed.squares,
                &procedure.executed.minimum,
                &procedure.executed.maximum,
            ];
            for (bit, counter) in plain.into_iter().enumerate() {
                if flags & (1 << bit) != 0 {
                    counter.set(0);
                }
            }
            if flags & 1 != 0 {
                procedure.aborts.set(0);
                for count in &procedure.latencies {
                    count.set(0);
                }
            }
        }
    }

    /// Counts a call. Only the owning shard may call this.
    pub(crate) fn record(&self, opcode: Option<u32>, call: &CallRecord) {
        let procedure = opcode.and_then(|opcode| self.package.procedure(opcode));
        let counters = procedure.and_then(|procedure| self.procedures.get(procedure.index));
        let Some(counters) = counters else {
            self.unknown.add(1);
            return;
        };
        counters.invocations.add(1);
        counters.aborts.add(u64::from(call.aborted));
        counters.bytes_received.add(call.bytes_received);
        counters.bytes_sent.add(call.bytes_sent);
        counters.queued.add(call.queued_micros);
        counters.executed.add(call.executed_micros);
        let slot = LATENCY_BOUNDS_MICROS.partition_point(|bound| *bound < call.executed_micros);
        if let Some(count) = counters.latencies.get(slot) {
            count.add(1);
        }
    }
}

/// Statistics of one procedure, over all shards.
#[derive(Clone, Debug)]
pub struct ProcedureFigures {
    /// The package.
    pub package: &'static Package,
    /// Index in the package's table.
    pub index: usize,
    /// Calls that ended, successful or not.
    pub invocations: u64,
    /// The number of these that ended with an abort of the server.
    pub aborts: u64,
    /// Bytes of requests.
    pub bytes_received: u64,
    /// Bytes of replies.
    pub bytes_sent: u64,
    /// Time between arrival and start.
    pub queued: DurationFigures,
    /// Time between start and end.
    pub executed: DurationFigures,
    /// The calls by [`LATENCY_BOUNDS_MICROS`]: each is counted once, at the first bound that is not
    /// below its time between start and end.
    pub latencies: LatencyCounts,
}

/// Counters of one port on one shard, without those of the protocol.
#[derive(Debug, Default)]
pub(crate) struct ShardCounters {
    pub(crate) datagrams_received: Counter,
    pub(crate) receive_calls: Counter,
    pub(crate) runs_passed_on: Counter,
    pub(crate) send_calls: Counter,
    pub(crate) calls_inline: Counter,
    pub(crate) calls_pending: Counter,
    pub(crate) calls_refused: Counter,
    pub(crate) calls_waiting: Counter,
    pub(crate) calls_running: Counter,
    pub(crate) send_failures: Counter,
    pub(crate) handler_panics: Counter,
}

/// Statistics of one port, over all shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortFigures {
    /// Datagrams received.
    pub datagrams_received: u64,
    /// System calls that received them.
    pub receive_calls: u64,
    /// Runs of datagrams that arrived at another shard and were passed on to the right one.
    pub runs_passed_on: u64,
    /// System calls that sent datagrams.
    pub send_calls: u64,
    /// Calls answered at their handler's first poll.
    pub calls_inline: u64,
    /// Calls whose handler had to wait.
    pub calls_pending: u64,
    /// Calls refused because the queue was full.
    pub calls_refused: u64,
    /// Current number of calls that wait to be run.
    pub calls_waiting: u64,
    /// Current number of running calls, without those that wait for their peers.
    pub calls_running: u64,
    /// Sends that the system rejected.
    pub send_failures: u64,
    /// Handlers that panicked: bugs, answered with `RX_USER_ABORT`.
    pub handler_panics: u64,
}

impl ShardCounters {
    fn read(&self) -> PortFigures {
        PortFigures {
            datagrams_received: self.datagrams_received.value(),
            receive_calls: self.receive_calls.value(),
            runs_passed_on: self.runs_passed_on.value(),
            send_calls: self.send_calls.value(),
            calls_inline: self.calls_inline.value(),
            calls_pending: self.calls_pending.value(),
            calls_refused: self.calls_refused.value(),
            calls_waiting: self.calls_waiting.value(),
            calls_running: self.calls_running.value(),
            send_failures: self.send_failures.value(),
            handler_panics: self.handler_panics.value(),
        }
    }
}

impl PortFigures {
    fn add(&mut self, other: &Self) {
        self.datagrams_received += other.datagrams_received;
        self.receive_calls += other.receive_calls;
        self.runs_passed_on += other.runs_passed_on;
        self.send_calls += other.send_calls;
        self.calls_inline += other.calls_inline;
        self.calls_pending += other.calls_pending;
        self.calls_refused += other.calls_refused;
        self.calls_waiting += other.calls_waiting;
        self.calls_running += other.calls_running;
        self.send_failures += other.send_failures;
        self.handler_panics += other.handler_panics;
    }
}

/// All counters of a port.
#[derive(Debug, Default)]
pub struct PortStatistics {
    packages: Mutex<Vec<Arc<PackageCounters>>>,
    shards: Mutex<Vec<Arc<ShardCounters>>>,
    /// Whether counting by procedure is switched off.
    off: AtomicBool,
}

impl PortStatistics {
    pub(crate) fn add_package(&self, counters: Arc<PackageCounters>) {
        self.packages.lock().push(counters);
    }

    pub(crate) fn add_shard(&self, counters: Arc<ShardCounters>) {
        self.shards.lock().push(counters);
    }

    /// Whether calls are counted by procedure.
    #[must_use]
    pub fn is_on(&self) -> bool {
        !self.off.load(Ordering::Relaxed)
    }

    /// Switches counting by procedure on or off. Initially it is on.
    pub fn set_on(&self, on: bool) {
        self.off.store(!on, Ordering::Relaxed);
    }

    /// Statistics of every procedure of every service on the port, in the order of service numbers
    /// and tables.
    #[must_use]
    pub fn procedures(&self) -> Vec<ProcedureFigures> {
        let copies = self.packages.lock().clone();
        let mut packages: Vec<&'static Package> = Vec::new();
        for copy in &copies {
            if !packages
                .iter()
                .any(|package| std::ptr::eq(*package, copy.package))
            {
                packages.push(copy.package);
            }
        }
        packages.sort_by_key(|package| package.service_id);
        let mut figures = Vec::new();
        for package in packages {
            for index in 0..package.procedures.len() {
                let counters = copies
                    .iter()
                    .filter(|copy| std::ptr::eq(copy.package, package))
                    .filter_map(|copy| copy.procedures.get(index));
                figures.push(sum_procedure(package, index, counters));
            }
        }
        figures
    }

    /// Number of calls of procedures that their service does not have, or without an opcode.
    #[must_use]
    pub fn unknown_opcodes(&self) -> u64 {
        let copies = self.packages.lock();
        copies.iter().map(|copy| copy.unknown.value()).sum()
    }

    /// Statistics of the port as a whole.
    #[must_use]
    pub fn port(&self) -> PortFigures {
        let mut sum = PortFigures::default();
        for shard in self.by_shard() {
            sum.add(&shard);
        }
        sum
    }

    /// Statistics of the port on each of its shards.
    #[must_use]
    pub fn by_shard(&self) -> Vec<PortFigures> {
        self.shards
            .lock()
            .iter()
            .map(|shard| shard.read())
            .collect()
    }
}

fn sum_procedure<'a>(
    package: &'static Package,
    index: usize,
    copies: impl Iterator<Item = &'a ProcedureCounters>,
) -> ProcedureFigures {
    let mut figures = ProcedureFigures {
        package,
        index,
        invocations: 0,
        aborts: 0,
        bytes_received: 0,
        bytes_sent: 0,
        queued: DurationFigures::default(),
        executed: DurationFigures::default(),
        latencies: LatencyCounts::default(),
    };
    for copy in copies {
        figures.invocations += copy.invocations.value();
        figures.aborts += copy.aborts.value();
        figures.bytes_received += copy.bytes_received.value();
        figures.bytes_sent += copy.bytes_sent.value();
        figures.queued.merge(&copy.queued);
        figures.executed.merge(&copy.executed);
        for (sum, count) in figures.latencies.iter_mut().zip(&copy.latencies) {
            *sum += count.value();
        }
    }
    figures
}
