//! Counters: calls by procedure, transfers, refusals.
//!
//! Every call updates counters, so they are kept in *stripes*: each thread adds to its own stripe,
//! and readers sum the stripes. No call waits for a cache line of another.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cellar_volume::FileType;
use cellar_wire::rxafs;

use crate::abort_map::Refusal;
use crate::stripe;

const STRIPES: usize = 8;
/// Bound of the procedures that are counted by name; larger than any package.
const PROCEDURES_MAX: usize = 64;
/// Upper bounds of the size classes of transfers. One more class counts larger transfers.
pub(crate) const TRANSFER_SIZES: [u64; 8] =
    [128, 1024, 8192, 16384, 32768, 131_072, 524_288, 1_048_576];
const REFUSALS: usize = 20;

/// A direction of transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// FetchData.
    Fetch = 0,
    /// StoreData.
    Store = 1,
}

/// The kinds of refusals that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// Undecodable arguments.
    BadArguments,
    /// Unknown procedures.
    UnknownOpcode,
    /// Names with slashes or NULs, too long, `.` and `..`, arguments out of range.
    Invalid,
    /// Fids with volume 0 or vnode 0.
    NoFid,
    /// Fids that do not exist, or no longer exist.
    StaleFid,
    /// Names that do not exist, or exist already.
    Name,
    /// Directories in place of files, or files in place of directories.
    WrongKind,
    /// Missing rights.
    NoRight,
    /// Volumes that are not on this server, or off line.
    Volume,
    /// Busy volumes and hosts: the client retries.
    Busy,
    /// Changes to read-only volumes.
    ReadOnly,
    /// Stores over quota.
    OverQuota,
    /// Stores to a full partition.
    DiskFull,
    /// Damaged files and other errors of the machine.
    Machine,
    /// Conflicting locks.
    Locked,
    /// Hosts that do not answer.
    HostSilent,
    /// The protection database cannot be reached.
    NoProtection,
    /// Clients that stopped sending, or disconnected during a call.
    ClientGone,
    /// Everything else.
    Other,
}

const KINDS: [(RefusalKind, &str); 19] = [
    (RefusalKind::BadArguments, "bad_arguments"),
    (RefusalKind::UnknownOpcode, "unknown_opcode"),
    (RefusalKind::Invalid, "invalid"),
    (RefusalKind::NoFid, "no_fid"),
    (RefusalKind::StaleFid, "stale_fid"),
    (RefusalKind::Name, "name"),
    (RefusalKind::WrongKind, "wrong_kind"),
    (RefusalKind::NoRight, "no_right"),
    (RefusalKind::Volume, "volume"),
    (RefusalKind::Busy, "busy"),
    (RefusalKind::ReadOnly, "read_only"),
    (RefusalKind::OverQuota, "over_quota"),
    (RefusalKind::DiskFull, "disk_full"),
    (RefusalKind::Machine, "machine"),
    (RefusalKind::Locked, "locked"),
    (RefusalKind::HostSilent, "host_silent"),
    (RefusalKind::NoProtection, "no_protection"),
    (RefusalKind::ClientGone, "client_gone"),
    (RefusalKind::Other, "other"),
];

const _: () = assert!(KINDS.len() <= REFUSALS);

#[derive(Default)]
struct Durations {
    /// Nanoseconds, because most calls take less than a microsecond.
    sum: AtomicU64,
    squares: AtomicU64,
    /// The minimum plus one; 0 before the first.
    minimum: AtomicU64,
    maximum: AtomicU64,
}

impl Durations {
    fn add(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let micros = nanos / 1000;
        self.sum.fetch_add(nanos, Ordering::Relaxed);
        self.squares
            .fetch_add(micros.saturating_mul(micros), Ordering::Relaxed);
        let minimum = self.minimum.load(Ordering::Relaxed);
        if minimum == 0 || micros + 1 < minimum {
            self.minimum.store(micros + 1, Ordering::Relaxed);
        }
        if micros > self.maximum.load(Ordering::Relaxed) {
            self.maximum.store(micros, Ordering::Relaxed);
        }
    }

    fn merge_into(&self, into: &mut DurationFigures) {
        into.sum += self.sum.load(Ordering::Relaxed) / 1000;
        into.squares = into
            .squares
            .saturating_add(self.squares.load(Ordering::Relaxed));
        let minimum = self.minimum.load(Ordering::Relaxed);
        if minimum > 0 && (into.minimum == 0 || minimum - 1 < into.minimum) {
            into.minimum = minimum - 1;
        }
        into.maximum = into.maximum.max(self.maximum.load(Ordering::Relaxed));
    }
}

#[derive(Default)]
struct Operation {
    calls: AtomicU64,
    refused: AtomicU64,
    durations: Durations,
}

#[derive(Default)]
struct Transfer {
    transfers: AtomicU64,
    succeeded: AtomicU64,
    bytes: AtomicU64,
    /// The minimum plus one; 0 before the first.
    smallest: AtomicU64,
    largest: AtomicU64,
    by_size: [AtomicU64; TRANSFER_SIZES.len() + 1],
    durations: Durations,
}

#[repr(align(128))]
struct Stripe {
    operations: [Operation; PROCEDURES_MAX],
    transfers: [Transfer; 2],
    refusals: [AtomicU64; REFUSALS],
    /// Lookups of directories; of files and links.
    looks: [AtomicU64; 2],
}

/// Time spent, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurationFigures {
    /// Sum, µs.
    pub sum: u64,
    /// Sum of squares, µs².
    pub squares: u64,
    /// Shortest, µs; 0 before the first.
    pub minimum: u64,
    /// Longest, µs.
    pub maximum: u64,
}

/// One procedure's figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationFigures {
    /// The procedure's name.
    pub name: &'static str,
    /// Its number.
    pub opcode: u32,
    /// Calls that ended.
    pub calls: u64,
    /// Of these, refused.
    pub refused: u64,
    /// Time from the decoding of the opcode to the end of the call.
    pub durations: DurationFigures,
}

/// Figures of fetches or stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferFigures {
    /// Transfers that ended.
    pub transfers: u64,
    /// Of these, complete transfers.
    pub succeeded: u64,
    /// Bytes of complete transfers.
    pub bytes: u64,
    /// Smallest complete transfer, in bytes.
    pub smallest: u64,
    /// Largest complete transfer, in bytes.
    pub largest: u64,
    /// Number by size: up to 128 bytes, 1, 8, 16, 32, 128, 512 KiB, 1 MiB, and larger.
    pub by_size: [u64; TRANSFER_SIZES.len() + 1],
    /// Duration of the transfers.
    pub durations: DurationFigures,
}

/// The counters of a file server.
pub(crate) struct Statistics {
    stripes: Box<[Stripe]>,
}

impl Statistics {
    pub(crate) fn new() -> Self {
        let stripe = || Stripe {
            operations: std::array::from_fn(|_| Operation::default()),
            transfers: std::array::from_fn(|_| Transfer::default()),
            refusals: std::array::from_fn(|_| AtomicU64::new(0)),
            looks: std::array::from_fn(|_| AtomicU64::new(0)),
        };
        Self {
            stripes: (0..STRIPES).map(|_| stripe()).collect(),
        }
    }

    /// Counts the end of a call of the procedure at `index` of the package.
    pub(crate) fn operation(&self, index: usize, refused: bool, took: Duration) {
        let Some(operation) = self.stripes[stripe::of_this_thread(STRIPES)]
            .operations
            .get(index)
        else {
            return;
        };
        operation.calls.fetch_add(1, Ordering::Relaxed);
        if refused {
            operation.refused.fetch_add(1, Ordering::Relaxed);
        } else {
            operation.durations.add(took);
        }
    }

    /// Counts the end of a transfer of `bytes`.
    pub(crate) fn transfer(&self, direction: Direction, bytes: u64, whole: bool, took: Duration) {
        let transfer = &self.stripes[stripe::of_this_thread(STRIPES)].transfers[direction as usize];
        transfer.transfers.fetch_add(1, Ordering::Relaxed);
        if !whole {
            return;
        }
        transfer.succeeded.fetch_add(1, Ordering::Relaxed);
        transfer.bytes.fetch_add(bytes, Ordering::Relaxed);
        let smallest = transfer.smallest.load(Ordering::Relaxed);
        if smallest == 0 || bytes + 1 < smallest {
            transfer.smallest.store(bytes + 1, Ordering::Relaxed);
        }
        if bytes > transfer.largest.load(Ordering::Relaxed) {
            transfer.largest.store(bytes, Ordering::Relaxed);
        }
        let size = TRANSFER_SIZES.iter().position(|&bound| bytes <= bound);
        transfer.by_size[size.unwrap_or(TRANSFER_SIZES.len())].fetch_add(1, Ordering::Relaxed);
        transfer.durations.add(took);
    }

    /// Counts a lookup of a vnode by a call.
    pub(crate) fn count_lookup(&self, kind: FileType) {
        let which = usize::from(kind != FileType::Directory);
        self.stripes[stripe::of_this_thread(STRIPES)].looks[which].fetch_add(1, Ordering::Relaxed);
    }

    /// The number of lookups by calls: of directories, and of files and links.
    pub(crate) fn lookups(&self) -> [u64; 2] {
        [0, 1].map(|which| {
            let of = |stripe: &Stripe| stripe.looks[which].load(Ordering::Relaxed);
            self.stripes.iter().map(of).sum()
        })
    }

    /// Counts a refused call.
    pub(crate) fn refused(&self, kind: RefusalKind) {
        self.stripes[stripe::of_this_thread(STRIPES)].refusals[kind as usize]
            .fetch_add(1, Ordering::Relaxed);
    }

    /// Figures of every procedure, in the order of the package.
    pub(crate) fn operations(&self) -> Vec<OperationFigures> {
        let procedures = rxafs::PACKAGE.procedures;
        let figures = |(index, procedure): (usize, &cellar_wire::ProcedureInfo)| {
            let mut figures = OperationFigures {
                name: procedure.name,
                opcode: procedure.opcode,
                ..OperationFigures::default()
            };
            for operation in self.stripes.iter().filter_map(|s| s.operations.get(index)) {
                figures.calls += operation.calls.load(Ordering::Relaxed);
                figures.refused += operation.refused.load(Ordering::Relaxed);
                operation.durations.merge_into(&mut figures.durations);
            }
            figures
        };
        procedures.iter().enumerate().map(figures).collect()
    }

    /// Figures of one direction.
    pub(crate) fn transfers(&self, direction: Direction) -> TransferFigures {
        let mut figures = TransferFigures::default();
        let mut smallest = u64::MAX;
        for stripe in &self.stripes {
            let transfer = &stripe.transfers[direction as usize];
            figures.transfers += transfer.transfers.load(Ordering::Relaxed);
            figures.succeeded += transfer.succeeded.load(Ordering::Relaxed);
            figures.bytes += transfer.bytes.load(Ordering::Relaxed);
            figures.largest = figures
                .largest
                .max(transfer.largest.load(Ordering::Relaxed));
            if let Some(least) = transfer.smallest.load(Ordering::Relaxed).checked_sub(1) {
                smallest = smallest.min(least);
            }
            for (sum, count) in figures.by_size.iter_mut().zip(&transfer.by_size) {
                *sum += count.load(Ordering::Relaxed);
            }
            transfer.durations.merge_into(&mut figures.durations);
        }
        figures.smallest = if smallest == u64::MAX { 0 } else { smallest };
        figures
    }

    /// The number of refused calls, by kind.
    pub(crate) fn refusals(&self) -> Vec<(&'static str, u64)> {
        let count = |kind: RefusalKind| {
            let of = |stripe: &Stripe| stripe.refusals[kind as usize].load(Ordering::Relaxed);
            self.stripes.iter().map(of).sum()
        };
        KINDS
            .iter()
            .map(|&(kind, name)| (name, count(kind)))
            .collect()
    }
}

impl Refusal {
    /// The kind under which a refusal is counted.
    pub(crate) fn kind(&self) -> RefusalKind {
        use cellar_volume::Error;
        use cellar_wire::AbortCode;
        match self {
            Self::Store(error) => match error {
                Error::NoVnode(_) | Error::NotReserved(_) | Error::Changed(_) => {
                    RefusalKind::StaleFid
                }
                Error::NoVolume(_) | Error::VolumeExists(_) => RefusalKind::Volume,
                Error::NotFound | Error::Exists | Error::NotEmpty => RefusalKind::Name,
                Error::NotDirectory | Error::IsDirectory => RefusalKind::WrongKind,
                Error::OverQuota => RefusalKind::OverQuota,
                Error::DiskFull => RefusalKind::DiskFull,
                Error::ReadOnly => RefusalKind::ReadOnly,
                Error::Io { .. } | Error::Partition(_) | Error::Format(_) | Error::Stopped(_) => {
                    RefusalKind::Machine
                }
                Error::InObjects(_) => RefusalKind::Machine,
                Error::Stale(_) | Error::Archived(_) => RefusalKind::Busy,
                Error::WouldBlock => RefusalKind::Other,
                _ => RefusalKind::Invalid,
            },
            Self::NoRight | Self::NotAdministrator => RefusalKind::NoRight,
            Self::Invalid
            | Self::NameTooLong
            | Self::ListTooLong
            | Self::TooBig
            | Self::ConnectionRefused
            | Self::NotSupported => RefusalKind::Invalid,
            Self::NoFid => RefusalKind::NoFid,
            Self::NoVolume | Self::Offline | Self::Moved => RefusalKind::Volume,
            Self::Busy | Self::NotKnownYet | Self::Leased(..) => RefusalKind::Busy,
            Self::NotRecalled | Self::OverRecallLimit => RefusalKind::Other,
            Self::HostSilent => RefusalKind::HostSilent,
            Self::NoProtection => RefusalKind::NoProtection,
            Self::Locked | Self::TooManyLocks => RefusalKind::Locked,
            Self::StoppedSending => RefusalKind::ClientGone,
            Self::Call(AbortCode::RXGEN_SS_UNMARSHAL | AbortCode::RXGEN_DECODE) => {
                RefusalKind::BadArguments
            }
            Self::Code(AbortCode::RXGEN_OPCODE) => RefusalKind::UnknownOpcode,
            Self::Call(_) => RefusalKind::ClientGone,
            Self::Objects(AbortCode::VBUSY) => RefusalKind::Busy,
            Self::Objects(_) => RefusalKind::Machine,
            Self::Code(_) => RefusalKind::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_add_up_over_threads() {
        let statistics = std::sync::Arc::new(Statistics::new());
        let work = |millis: u64| {
            let statistics = statistics.clone();
            std::thread::spawn(move || {
                statistics.operation(2, false, Duration::from_millis(millis));
                statistics.operation(2, true, Duration::from_millis(999));
                statistics.transfer(Direction::Fetch, millis * 1000, true, Duration::ZERO);
                statistics.refused(RefusalKind::NoFid);
            })
        };
        for thread in [1, 2, 3].map(work) {
            thread.join().unwrap();
        }
        let operation = statistics.operations()[2];
        assert_eq!((operation.calls, operation.refused), (6, 3));
        assert_eq!(operation.durations.sum, 6000);
        assert_eq!(operation.durations.minimum, 1000);
        assert_eq!(operation.durations.maximum, 3000);
        let fetched = statistics.transfers(Direction::Fetch);
        assert_eq!(
            (fetched.bytes, fetched.smallest, fetched.largest),
            (6000, 1000, 3000)
        );
        assert_eq!(fetched.by_size[1..3], [1, 2]);
        assert!(statistics.refusals().contains(&("no_fid", 3)));
    }

    #[test]
    fn every_procedure_has_a_counter() {
        assert!(rxafs::PACKAGE.procedures.len() <= PROCEDURES_MAX);
        for (index, (kind, _)) in KINDS.iter().enumerate() {
            assert_eq!(*kind as usize, index);
        }
    }
}
