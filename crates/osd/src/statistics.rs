//! Counters of a server, by name.

use std::sync::atomic::{AtomicU64, Ordering};

use cellar_wire::AfsString;
use cellar_wire::osd::{Figure, PACKAGE};

use crate::refusal::Refusal;

/// Most procedures that are counted.
const PROCEDURES_MAX: usize = 32;

/// Counters since the start.
#[derive(Debug, Default)]
pub(crate) struct Statistics {
    calls: [AtomicU64; PROCEDURES_MAX],
    pub(crate) bytes_read: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    pub(crate) bytes_copied: AtomicU64,
    pub(crate) heartbeats: AtomicU64,
    pub(crate) heartbeats_failed: AtomicU64,
    pub(crate) purged: AtomicU64,
    unknown: AtomicU64,
    busy: AtomicU64,
    damaged: AtomicU64,
    full: AtomicU64,
    not_superuser: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl Statistics {
    /// Counts the end of a call of the procedure at that place in the package.
    pub(crate) fn ended(&self, procedure: Option<usize>, outcome: &Result<(), Refusal>) {
        let counter = procedure.and_then(|place| self.calls.get(place));
        add(counter.unwrap_or(&self.unknown), 1);
        use cellar_volume::Error;
        match outcome {
            Err(Refusal::Busy) => add(&self.busy, 1),
            Err(Refusal::Store(Error::DiskFull)) => add(&self.full, 1),
            Err(Refusal::Store(Error::ObjectIo { .. })) => add(&self.damaged, 1),
            Err(Refusal::NotSuperuser) => add(&self.not_superuser, 1),
            _ => {}
        }
    }

    /// The counters that concern no single procedure, each with its meaning.
    pub(crate) fn counters(&self) -> [(&'static str, &'static str, &AtomicU64); 11] {
        [
            ("bytes_read", "Bytes of objects read", &self.bytes_read),
            (
                "bytes_written",
                "Bytes of objects written",
                &self.bytes_written,
            ),
            (
                "bytes_copied",
                "Bytes copied between devices",
                &self.bytes_copied,
            ),
            (
                "heartbeats",
                "Heartbeats that the databases answered",
                &self.heartbeats,
            ),
            (
                "heartbeats_failed",
                "Heartbeats without an answer",
                &self.heartbeats_failed,
            ),
            (
                "objects_purged",
                "Removed objects whose room was freed",
                &self.purged,
            ),
            (
                "refused_unknown_procedure",
                "Calls with an unknown opcode",
                &self.unknown,
            ),
            ("refused_busy", "Calls refused for load", &self.busy),
            (
                "refused_not_superuser",
                "Calls that only superusers may make",
                &self.not_superuser,
            ),
            (
                "failed_damaged",
                "Reads that found damaged bytes",
                &self.damaged,
            ),
            ("failed_full", "Writes that found no room", &self.full),
        ]
    }

    /// Returns all counters.
    pub(crate) fn figures(&self) -> Vec<Figure> {
        let calls = PACKAGE.procedures.iter().zip(&self.calls);
        let calls = calls.map(|(procedure, count)| (format!("calls_{}", procedure.name), count));
        let others = self.counters().into_iter();
        let others = others.map(|(name, _, count)| (name.to_owned(), count));
        calls
            .chain(others)
            .map(|(name, count)| figure(&name, count.load(Ordering::Relaxed)))
            .collect()
    }
}

/// Creates a counter of the answer; names here are short.
pub(crate) fn figure(name: &str, value: u64) -> Figure {
    Figure {
        name: AfsString::new(name.to_owned()).unwrap_or_default(),
        value,
    }
}
