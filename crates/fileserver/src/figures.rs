//! All counters of a file server at one moment, for metrics and for calls that return statistics.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cellar_fileobjects::ObjectFigures;

use cellar_wire::afsosd::Repairing;
use cellar_wire::ids::PartitionId;
use serde::Serialize;

use crate::host::HostCounts;
use crate::services::{FileServices, VolumeServices};
use crate::statistics::{Direction, OperationFigures, TransferFigures};

/// The scrubs of a partition since the start of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubFigures {
    /// The partition.
    pub partition: PartitionId,
    /// A scrub runs.
    pub is_running: bool,
    /// Bytes that the running scrub has verified.
    pub bytes: u64,
    /// The end of the last scrub of the whole partition, in seconds since 1970; 0 if none ended.
    pub ended: u32,
    /// Damaged files that it found.
    pub damaged: u64,
}

/// A snapshot of a file server's counters.
#[derive(Clone, Debug)]
pub struct Figures {
    /// When the snapshot was taken, since 1970.
    pub now: Duration,
    /// When the server started, since 1970.
    pub started: Duration,
    /// Calls by procedure.
    pub operations: Vec<OperationFigures>,
    /// Data fetched.
    pub fetched: TransferFigures,
    /// Data stored.
    pub stored: TransferFigures,
    /// Calls refused, by kind.
    pub refusals: Vec<(&'static str, u64)>,
    /// Hosts; a host is active if it called within 15 minutes.
    pub hosts: HostCounts,
    /// Connections of hosts, each with its user.
    pub clients: usize,
    /// Volumes that calls have used since the start.
    pub volumes: usize,
    /// Directories that calls looked up.
    pub looks_at_directories: u64,
    /// Files and links that calls looked up.
    pub looks_at_files: u64,
    /// Figures of the volume store, all partitions together.
    pub store: StoreFigures,
    /// Callbacks.
    pub callbacks: CallbackFigures,
    /// Contacts with hosts.
    pub contacts: ContactFigures,
    /// Files in objects.
    pub objects: ObjectFigures,
    /// Repairs of objects of this server's files.
    pub repairs: Repairing,
    /// File locks held.
    pub locks: usize,
    /// Leases of directories.
    pub leases: usize,
    /// Volume transactions open.
    pub transactions: usize,
}

/// Figures of the volume store.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreFigures {
    /// Vnodes in memory.
    pub cached_vnodes: u64,
    /// Vnodes that had to be read from disk.
    pub cache_misses: u64,
    /// Changes.
    pub commits: u64,
}

/// Figures of callbacks.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct CallbackFigures {
    /// Promises held.
    pub held: usize,
    /// Promises that can be held.
    pub capacity: usize,
    /// Files with at least one promise.
    pub files: usize,
    /// Memory used by the table, in bytes.
    pub bytes: usize,
    /// Changes that looked for promises to break.
    pub collections: u64,
    /// Promises broken.
    pub broken: u64,
    /// Of these, breaks kept for a host that was down.
    pub delayed: u64,
    /// Hosts marked down because they were late.
    pub late: u64,
    /// Changes that wait now for hosts to be notified.
    pub breaking: u64,
    /// Files deleted.
    pub files_deleted: u64,
    /// Promises given or extended.
    pub promised: u64,
    /// Promises that hosts gave up one by one.
    pub given_up: u64,
    /// Hosts that gave up or lost all their promises.
    pub given_up_whole: u64,
    /// Promises that expired.
    pub timed_out: u64,
    /// How often the full table had to make room.
    pub room_made: u64,
}

/// Figures of contacts with hosts.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct ContactFigures {
    /// Hosts asked who they are.
    pub introductions: u64,
    /// Known hosts found at a new address.
    pub moves: u64,
    /// Hosts that were told to forget everything.
    pub resets: u64,
    /// `CallBack` calls answered.
    pub breaks_told: u64,
    /// Contacts without an answer.
    pub silences: u64,
    /// Hosts dropped.
    pub expired: u64,
}

/// A host that called within this many seconds is active.
const ACTIVE_SECS: u32 = 15 * 60;

/// The services whose counters make up the figures.
pub(crate) struct Counters {
    pub(crate) files: Arc<FileServices>,
    pub(crate) volumes: Arc<VolumeServices>,
    /// When the server started.
    pub(crate) started: Duration,
}

impl Counters {
    /// A snapshot of every counter.
    pub(crate) fn figures(&self) -> Figures {
        let server = &self.files;
        let now = server.sessions.wall();
        let (files, bytes) = server.callbacks.table.files_and_bytes();
        let (breaks, contacts) = (
            &server.callbacks.breaker.counters,
            &server.callbacks.contacts.counters,
        );
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let promises = server.callbacks.table.counts();
        let [looks_at_directories, looks_at_files] = server.statistics.lookups();
        let mut store = StoreFigures::default();
        for (_, partition) in server.volumes.partitions() {
            let counters = partition.counters();
            store.cached_vnodes += counters.cached_vnodes;
            store.cache_misses += counters.cache_misses;
            store.commits += counters.commits;
        }
        Figures {
            now,
            started: self.started,
            operations: server.statistics.operations(),
            fetched: server.statistics.transfers(Direction::Fetch),
            stored: server.statistics.transfers(Direction::Store),
            refusals: server.statistics.refusals(),
            hosts: server
                .callbacks
                .hosts
                .counts((now.as_secs() as u32).saturating_sub(ACTIVE_SECS)),
            clients: server.sessions.clients.count(),
            volumes: server.volumes.homes_len(),
            looks_at_directories,
            looks_at_files,
            store,
            callbacks: CallbackFigures {
                held: server.callbacks.table.held(),
                capacity: server.callbacks.table.capacity(),
                files,
                bytes,
                collections: load(&breaks.collections),
                broken: load(&breaks.broken),
                delayed: load(&breaks.delayed),
                late: load(&breaks.late),
                breaking: load(&breaks.breaking),
                files_deleted: load(&breaks.files_deleted),
                promised: promises.promised,
                given_up: promises.given_up,
                given_up_whole: load(&contacts.given_up_whole),
                timed_out: promises.timed_out,
                room_made: load(&contacts.room_made),
            },
            contacts: ContactFigures {
                introductions: load(&contacts.introductions),
                moves: load(&contacts.moves),
                resets: load(&contacts.resets),
                breaks_told: load(&contacts.breaks_told),
                silences: load(&contacts.silences),
                expired: load(&contacts.expired),
            },
            objects: server.objects.figures(),
            repairs: server.objects.repair_status(),
            locks: server.callbacks.locks.held(),
            leases: server.callbacks.leases.count(),
            transactions: self.volumes.transactions.count(),
        }
    }
}

impl Figures {
    /// Calls of a procedure, by name; 0 for an unknown one.
    #[must_use]
    pub fn calls(&self, procedure: &str) -> u64 {
        self.operation(procedure).calls
    }

    /// Figures of a procedure, by name; zeros for an unknown one.
    #[must_use]
    pub fn operation(&self, procedure: &str) -> OperationFigures {
        self.operations
            .iter()
            .find(|figures| figures.name == procedure)
            .copied()
            .unwrap_or_default()
    }

    /// Calls refused of one kind.
    #[must_use]
    pub fn refused(&self, kind: &str) -> u64 {
        self.refusals
            .iter()
            .find(|(name, _)| *name == kind)
            .map_or(0, |(_, count)| *count)
    }

    /// Calls of every procedure.
    #[must_use]
    pub fn calls_in_all(&self) -> u64 {
        self.operations.iter().map(|figures| figures.calls).sum()
    }
}
