//! The locks on one file: those of programs of this machine, and the one that the server keeps. The
//! rules are in `file_locks.rs`.

use std::sync::Arc;

use cellar_wire::ids::AfsTime;
use cellar_wire::rxafs::{HeldRanges, LockRange};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::user::User;

/// How long a server keeps a lock that is not extended, in seconds. Source: `AFS_LOCKWAIT`.
pub(super) const LOCK_SECS: u32 = 300;
/// The most locks on one file.
const LOCKS_MAX: usize = 4_096;

/// Whether other owners may have a lock at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockKind {
    /// Shared.
    Read,
    /// Exclusive.
    Write,
}

impl LockKind {
    /// `ViceLockType`.
    pub(super) fn on_the_wire(self) -> i32 {
        match self {
            Self::Read => 0,
            Self::Write => 1,
        }
    }
}

/// The two kinds of locks that programs set. On one machine they are independent of each other.
/// Source: flock(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockFamily {
    /// fcntl(2): bytes, of a process or of an open file.
    Record,
    /// flock(2): the whole file, of an open file.
    Flock,
}

/// The owner of a lock. Locks of one owner do not conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockOwner {
    /// The family.
    pub family: LockFamily,
    /// The kernel's number of the owner.
    pub number: u64,
}

impl LockOwner {
    /// The owner with this number of locks by fcntl(2).
    pub fn record(number: u64) -> Self {
        let family = LockFamily::Record;
        Self { family, number }
    }

    /// The owner with this number of locks by flock(2).
    pub fn flock(number: u64) -> Self {
        let family = LockFamily::Flock;
        Self { family, number }
    }
}

/// A program's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Its owner.
    pub owner: LockOwner,
    /// The open file through which it was set: the lock ends with it.
    pub open_file: u64,
    /// The process that set it.
    pub pid: u32,
    /// The first byte.
    pub first: u64,
    /// The last byte.
    pub last: u64,
    /// Whether it is shared.
    pub kind: LockKind,
}

impl Lock {
    pub(super) fn conflicts(&self, other: &Self) -> bool {
        let alone = self.kind == LockKind::Write || other.kind == LockKind::Write;
        let meets = self.first <= other.last && other.first <= self.last;
        let one_family = self.owner.family == other.owner.family;
        alone && meets && one_family && self.owner != other.owner
    }

    pub(super) fn range(&self) -> LockRange {
        LockRange {
            first: self.first,
            last: self.last,
            alone: self.kind == LockKind::Write,
        }
    }
}

/// The kinds of lock that a server keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServerLockKind {
    /// The whole file.
    Whole(LockKind),
    /// At least these bytes.
    Ranges(HeldRanges),
}

/// A lock that a server keeps for us.
#[derive(Clone, Debug)]
pub(super) struct ServerLock {
    pub(super) what: ServerLockKind,
    /// The user whose call set it.
    pub(super) user: Arc<User>,
    /// When it was last set or extended.
    pub(super) at: AfsTime,
}

impl ServerLock {
    /// Marks it as lost, so that it is set again.
    pub(super) fn lost(self) -> Self {
        let at = AfsTime(0);
        Self { at, ..self }
    }

    /// Whether another client may have it now.
    pub(super) fn is_over(&self, now: AfsTime) -> bool {
        now.0.saturating_sub(self.at.0) >= LOCK_SECS
    }
}

/// The locks on one file.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    pub(super) held: Mutex<Vec<Lock>>,
    /// The lock that the server keeps for us. Held during calls to the server.
    pub(super) server: tokio::sync::Mutex<Option<ServerLock>>,
    /// Notified when a lock is released.
    pub(super) freed: Notify,
}

impl Locks {
    /// Returns a lock that conflicts with a wanted one.
    pub(super) fn conflict_with(&self, wanted: &Lock) -> Option<Lock> {
        let held = self.held.lock();
        held.iter().find(|lock| lock.conflicts(wanted)).copied()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.lock().is_empty()
    }

    /// Returns the ranges that programs of this machine have locked, with another lock added.
    pub(super) fn all_with(&self, other: Option<&Lock>) -> HeldRanges {
        let held = self.held.lock();
        // The new lock replaces its owner's locks on the range.
        let mut all = match other {
            Some(lock) => without(&held, lock.owner, lock.first, lock.last),
            None => held.clone(),
        };
        all.extend(other);
        HeldRanges::of_all(all.iter().map(Lock::range))
    }

    pub(super) fn strongest(&self) -> Option<LockKind> {
        self.held.lock().iter().map(|lock| lock.kind).max()
    }

    pub(super) fn has(&self, owner: LockOwner) -> bool {
        self.held.lock().iter().any(|lock| lock.owner == owner)
    }

    /// Whether an owner has a shared lock by flock(2) that `wanted` is to replace by an exclusive
    /// one.
    pub(super) fn is_upgrade(&self, wanted: &Lock) -> bool {
        let is_flock = wanted.owner.family == LockFamily::Flock;
        is_flock && wanted.kind == LockKind::Write && self.has(wanted.owner)
    }

    /// Removes the owner's locks on a range.
    pub(super) fn take(&self, owner: LockOwner, first: u64, last: u64) {
        let mut held = self.held.lock();
        *held = without(&held, owner, first, last);
    }

    /// Adds a lock. Returns `false` if there are too many.
    pub(super) fn put(&self, lock: Lock) -> bool {
        if self.held.lock().len() >= LOCKS_MAX {
            return false;
        }
        self.take(lock.owner, lock.first, lock.last);
        self.held.lock().push(lock);
        true
    }
}

/// Returns the locks without those of an owner on a range.
pub(super) fn without(held: &[Lock], owner: LockOwner, first: u64, last: u64) -> Vec<Lock> {
    let mut kept = Vec::with_capacity(held.len());
    for &lock in held {
        if lock.owner != owner || lock.last < first || lock.first > last {
            kept.push(lock);
            continue;
        }
        if lock.first < first {
            kept.push(Lock {
                last: first - 1,
                ..lock
            });
        }
        if lock.last > last {
            kept.push(Lock {
                first: last + 1,
                ..lock
            });
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use cellar_wire::rxafs::HeldRanges;

    use super::*;

    fn lock(owner: u64, first: u64, last: u64, kind: LockKind) -> Lock {
        Lock {
            owner: LockOwner::record(owner),
            open_file: 0,
            pid: 1,
            first,
            last,
            kind,
        }
    }

    #[test]
    fn flock_and_fcntl_are_independent() {
        use LockKind::{Read, Write};
        let all = |owner, kind| Lock {
            owner,
            ..lock(0, 0, u64::MAX, kind)
        };
        let locks = Locks::default();
        assert!(locks.put(all(LockOwner::flock(1), Read)));
        assert!(locks.put(all(LockOwner::record(1), Write)));
        assert_eq!(locks.conflict_with(&all(LockOwner::flock(2), Read)), None);
        assert!(
            locks
                .conflict_with(&all(LockOwner::record(2), Read))
                .is_some()
        );
        // The server keeps the stronger of both, and later the one that is left.
        let held = |alone| {
            let (first, last) = (0, u64::MAX);
            HeldRanges::of_all([LockRange { first, last, alone }])
        };
        assert_eq!(locks.all_with(None), held(true));
        locks.take(LockOwner::record(1), 0, u64::MAX);
        assert_eq!(locks.all_with(None), held(false));
        locks.take(LockOwner::flock(1), 0, u64::MAX);
        assert!(locks.is_empty());
    }

    #[test]
    fn ranges_exclude_each_other_as_fcntl_says() {
        use LockKind::{Read, Write};
        let locks = Locks::default();
        assert!(locks.put(lock(1, 0, 99, Read)));
        assert_eq!(locks.conflict_with(&lock(2, 50, 60, Read)), None);
        assert!(locks.conflict_with(&lock(2, 50, 60, Write)).is_some());
        assert_eq!(locks.conflict_with(&lock(2, 100, 200, Write)), None);
        assert_eq!(locks.conflict_with(&lock(1, 0, 99, Write)), None, "its own");
        // A part is exclusive now, and a part is free.
        assert!(locks.put(lock(1, 40, 59, Write)));
        locks.take(LockOwner::record(1), 45, 49);
        let mut held = locks.held.lock().clone();
        held.sort_by_key(|lock| lock.first);
        let ranges: Vec<_> = held.iter().map(|l| (l.first, l.last, l.kind)).collect();
        let expected = [
            (0, 39, Read),
            (40, 44, Write),
            (50, 59, Write),
            (60, 99, Read),
        ];
        assert_eq!(ranges, expected);
        assert_eq!(locks.conflict_with(&lock(2, 45, 49, Write)), None);
        locks.take(LockOwner::record(1), 0, u64::MAX);
        assert!(locks.is_empty());
    }
}
