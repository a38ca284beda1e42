//! Advisory locks on whole files, as AFS has them: counters with a lifetime, not owners.
//!
//! A lock belongs to the file, not to a caller: anybody with the rights may release it. It ends
//! [`LOCK_SECS`] after the last set or extend on the file, whoever that was; clients extend. The
//! locks live in memory only: after a crash there are none, which a client cannot tell from an
//! expiry. Source: FS/CM specification, locks; observed of OpenAFS 1.8's file server.

use std::collections::HashMap;

use cellar_wire::ids::{Fid, VolumeId};
use parking_lot::Mutex;

use crate::callback::fid_hash;
use crate::limits::{LOCK_SECS, LOCKS, TABLE_SHARDS};

/// What kind of lock is asked for (`ViceLockType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockType {
    /// Shared with other readers.
    Read,
    /// Held alone.
    Write,
}

impl LockType {
    /// From the wire: 0 is read, 1 is write; the historical 2 (extend) and 3 (release) are not
    /// kinds of lock to set.
    #[must_use]
    pub fn from_wire(word: i32) -> Option<Self> {
        match word {
            0 => Some(Self::Read),
            1 => Some(Self::Write),
            _ => None,
        }
    }
}

/// Why a lock was not set or extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockError {
    /// Another lock is in the way.
    Conflict,
    /// There is no lock to extend.
    NotLocked,
    /// The server holds as many locks as it can.
    TooMany,
}

#[derive(Clone, Copy)]
struct Lock {
    /// Readers, or -1 for a writer. Never 0.
    count: i32,
    /// Server's seconds.
    expires: u32,
}

/// All locks on files.
pub struct LockTable {
    shards: Box<[Mutex<HashMap<Fid, Lock>>]>,
}

impl Default for LockTable {
    fn default() -> Self {
        Self {
            shards: (0..TABLE_SHARDS)
                .map(|_| Mutex::new(HashMap::new()))
                .collect(),
        }
    }
}

impl LockTable {
    /// Sets a lock, until [`LOCK_SECS`] from `now`.
    pub fn set(&self, fid: Fid, kind: LockType, now: u32) -> Result<(), LockError> {
        let mut shard = self.shard(fid).lock();
        let full = shard.len() >= LOCKS / TABLE_SHARDS;
        let held = shard
            .get(&fid)
            .filter(|lock| lock.expires > now)
            .map_or(0, |lock| lock.count);
        let count = match kind {
            LockType::Read if held >= 0 => held + 1,
            LockType::Write if held == 0 => -1,
            _ => return Err(LockError::Conflict),
        };
        if full && !shard.contains_key(&fid) {
            return Err(LockError::TooMany);
        }
        shard.insert(
            fid,
            Lock {
                count,
                expires: now.saturating_add(LOCK_SECS),
            },
        );
        Ok(())
    }

    /// Extends whatever lock the file has, even one that expired but was not yet cleared away.
    pub fn extend(&self, fid: Fid, now: u32) -> Result<(), LockError> {
        let mut shard = self.shard(fid).lock();
        let lock = shard.get_mut(&fid).ok_or(LockError::NotLocked)?;
        lock.expires = now.saturating_add(LOCK_SECS);
        Ok(())
    }

    /// Releases one reader, or the writer. Returns whether the file has become free, so that
    /// waiting clients must be told. Releasing what is not locked is no error.
    pub fn release(&self, fid: Fid, now: u32) -> bool {
        let mut shard = self.shard(fid).lock();
        let Some(lock) = shard.get_mut(&fid) else {
            return false;
        };
        if lock.count > 1 && lock.expires > now {
            lock.count -= 1;
            return false;
        }
        shard.remove(&fid);
        true
    }

    /// What a status says: 0 not locked, n readers, -1 a writer.
    #[must_use]
    pub fn count(&self, fid: Fid, now: u32) -> i32 {
        let shard = self.shard(fid).lock();
        if shard.is_empty() {
            return 0;
        }
        shard
            .get(&fid)
            .filter(|lock| lock.expires > now)
            .map_or(0, |lock| lock.count)
    }

    /// Forgets the lock of a deleted file.
    pub fn forget(&self, fid: Fid) {
        let mut shard = self.shard(fid).lock();
        if !shard.is_empty() {
            shard.remove(&fid);
        }
    }

    /// Forgets the locks of a volume that is gone.
    pub fn forget_volume(&self, volume: VolumeId) {
        for shard in &self.shards {
            shard.lock().retain(|fid, _| fid.volume != volume);
        }
    }

    /// Clears away what expired at least [`LOCK_SECS`] ago: until then it may be extended.
    pub fn sweep(&self, now: u32) {
        for shard in &self.shards {
            shard
                .lock()
                .retain(|_, lock| lock.expires.saturating_add(LOCK_SECS) > now);
        }
    }

    /// Every lock: fid, count, expiry.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(Fid, i32, u32)) {
        for shard in &self.shards {
            for (fid, lock) in shard.lock().iter() {
                visit(*fid, lock.count, lock.expires);
            }
        }
    }

    /// Puts back a saved lock, unless it has expired.
    pub(crate) fn restore(&self, fid: Fid, count: i32, expires: u32, now: u32) {
        if count != 0 && expires > now {
            self.shard(fid).lock().insert(fid, Lock { count, expires });
        }
    }

    /// Locks held, expired ones included.
    #[must_use]
    pub fn held(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    fn shard(&self, fid: Fid) -> &Mutex<HashMap<Fid, Lock>> {
        &self.shards[(fid_hash(fid, 0) >> 40) as usize % self.shards.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FID: Fid = Fid::new(1, 2, 3);

    #[test]
    fn readers_share_and_a_writer_is_alone() {
        let locks = LockTable::default();
        assert_eq!(locks.set(FID, LockType::Read, 0), Ok(()));
        assert_eq!(locks.set(FID, LockType::Read, 0), Ok(()));
        assert_eq!(locks.count(FID, 1), 2);
        assert_eq!(locks.set(FID, LockType::Write, 1), Err(LockError::Conflict));
        assert!(!locks.release(FID, 1));
        assert!(locks.release(FID, 1));
        assert!(!locks.release(FID, 1), "releasing nothing is no error");
        assert_eq!(locks.set(FID, LockType::Write, 1), Ok(()));
        assert_eq!(locks.count(FID, 1), -1);
        assert_eq!(locks.set(FID, LockType::Read, 1), Err(LockError::Conflict));
        assert_eq!(locks.set(FID, LockType::Write, 1), Err(LockError::Conflict));
        assert!(locks.release(FID, 1));
        assert_eq!(locks.count(FID, 1), 0);
    }

    #[test]
    fn a_lock_ends_unless_extended() {
        let locks = LockTable::default();
        assert_eq!(locks.extend(FID, 0), Err(LockError::NotLocked));
        assert_eq!(locks.set(FID, LockType::Write, 0), Ok(()));
        assert_eq!(locks.extend(FID, 200), Ok(()));
        assert_eq!(locks.count(FID, 499), -1);
        assert_eq!(locks.count(FID, 500), 0);
        // Expired, not cleared away: it may still be extended.
        assert_eq!(locks.extend(FID, 510), Ok(()));
        assert_eq!(locks.count(FID, 510), -1);
        locks.sweep(810 + LOCK_SECS);
        assert_eq!(locks.held(), 0);
        assert_eq!(locks.extend(FID, 1200), Err(LockError::NotLocked));
    }

    #[test]
    fn an_expired_lock_is_discarded_by_the_next() {
        let locks = LockTable::default();
        assert_eq!(locks.set(FID, LockType::Write, 0), Ok(()));
        assert_eq!(locks.set(FID, LockType::Read, LOCK_SECS), Ok(()));
        assert_eq!(locks.count(FID, LOCK_SECS), 1);
        locks.forget(FID);
        assert_eq!(locks.held(), 0);
    }
}
