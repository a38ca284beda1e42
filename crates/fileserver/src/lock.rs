//! Advisory locks: AFS locks on whole files, which are counters with a lifetime, and range locks
//! for clients that know them.
//!
//! A lock on a whole file belongs to the file, not to a caller: any caller with the rights may
//! release it. It ends [`LOCK_SECS`] after the last set or extend on the file, by any caller.
//! Clients extend their locks. Locks are kept in memory only. After a crash there are none, which a
//! client cannot distinguish from an expiry. Source: FS/CM specification, locks; observed of
//! OpenAFS 1.8's file server.
//!
//! A client with range locks has an owner number, which only that client knows. In each call it
//! sends the full list of its ranges of a file. Such a list sets, changes, extends and releases
//! ranges, and may be sent twice. Ranges last as long as a lock.
//!
//! The two kinds conflict as follows. For whole-file locks, ranges to write count as one writer,
//! and each client with only ranges to read counts as one reader. For ranges, a reader or writer of
//! the whole file counts as a range over the whole file.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;

use cellar_wire::ids::{Fid, VolumeId};
use cellar_wire::rxafs::{HeldRanges, LockRange};
use parking_lot::Mutex;

use crate::callback::fid_hash;
use crate::limits::{
    HOLDERS_PER_FILE, LOCK_SECS, LOCKS, RANGES_PER_FILE, RANGES_PER_HOST, TABLE_SHARDS,
};

/// The requested kind of lock (`ViceLockType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockType {
    /// Shared with other readers.
    Read,
    /// Exclusive.
    Write,
}

impl LockType {
    /// The lock type of a wire value: 0 is read, 1 is write. The historical 2 (extend) and 3
    /// (release) are not kinds of lock to set.
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
    /// Another lock conflicts.
    Conflict,
    /// There is no lock to extend.
    NotLocked,
    /// The server holds as many locks as it can.
    TooMany,
    /// The limit of ranges is reached, or of clients with ranges: for the file, or for the machine.
    TooManyRanges,
    /// The server already has a newer list of the owner.
    Overtaken,
}

/// The owner number of a client with ranges.
pub type Owner = [u32; 4];

/// The ranges of one client in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) owner: Owner,
    pub(crate) serial: u64,
    /// Server's seconds.
    pub(crate) expires: u32,
    /// The machine to which the ranges are charged. `None` for restored ranges and for those of the
    /// local administrator.
    pub(crate) host: Option<IpAddr>,
    /// Never empty.
    pub(crate) ranges: HeldRanges,
}

#[derive(Default)]
struct Lock {
    /// Locks on the whole file: the number of readers, -1 for a writer, 0 for none.
    count: i32,
    /// Server's seconds.
    expires: u32,
    holders: Vec<Holder>,
}

impl Lock {
    /// The count of locks on the whole file; 0 after they expired.
    fn whole(&self, now: u32) -> i32 {
        if self.expires > now { self.count } else { 0 }
    }

    fn live(&self, now: u32) -> impl Iterator<Item = &Holder> {
        self.holders
            .iter()
            .filter(move |holder| holder.expires > now)
    }

    /// The lock that conflicts with a range, if any.
    fn conflict(&self, owner: Owner, wanted: LockRange, now: u32) -> Option<LockRange> {
        let whole = self.whole(now);
        if whole < 0 || (whole > 0 && wanted.alone) {
            return Some(LockRange {
                first: 0,
                last: i64::MAX as u64,
                alone: whole < 0,
            });
        }
        let mut others = self.live(now).filter(|holder| holder.owner != owner);
        others.find_map(|holder| holder.ranges.conflict(wanted))
    }

    fn count(&self, now: u32) -> i32 {
        let mut count = self.whole(now);
        for holder in self.live(now) {
            if holder.ranges.ranges().iter().any(|range| range.alone) {
                return -1;
            }
            count = count.saturating_add(1);
        }
        count
    }

    /// Whether any lock conflicts with the ranges that an owner wants. For each pair of lists, the
    /// ranges of the shorter one are looked up in the longer one. So the number of lookups is at
    /// most the number of ranges of the file.
    fn has_conflict(&self, owner: Owner, wanted: &HeldRanges, now: u32) -> bool {
        let any_alone = || wanted.ranges().iter().any(|range| range.alone);
        let whole = self.whole(now);
        if !wanted.is_empty() && (whole < 0 || (whole > 0 && any_alone())) {
            return true;
        }
        let mut others = self.live(now).filter(|holder| holder.owner != owner);
        others.any(|holder| {
            let (mut few, mut many) = (wanted, &holder.ranges);
            if few.ranges().len() > many.ranges().len() {
                std::mem::swap(&mut few, &mut many);
            }
            let mut each = few.ranges().iter();
            each.any(|range| many.conflict(*range).is_some())
        })
    }

    fn drop_holders(&mut self, tally: &mut Tally, drops: impl Fn(&Holder) -> bool) {
        self.holders.retain(|holder| {
            let dropped = drops(holder);
            if dropped {
                tally.take(holder);
            }
            !dropped
        });
    }

    fn ranges(&self) -> usize {
        let each = |holder: &Holder| holder.ranges.ranges().len();
        self.holders.iter().map(each).sum()
    }

    /// Whether nothing is left that could be extended.
    fn is_over(&self) -> bool {
        self.count == 0 && self.holders.is_empty()
    }
}

/// The number of ranges in a shard.
#[derive(Default)]
struct Tally {
    all: usize,
    /// The number of ranges of each machine that has any.
    hosts: HashMap<IpAddr, usize>,
}

impl Tally {
    fn add(&mut self, holder: &Holder) {
        let count = holder.ranges.ranges().len();
        self.all += count;
        if let Some(host) = holder.host {
            *self.hosts.entry(host).or_default() += count;
        }
    }

    fn take(&mut self, holder: &Holder) {
        let count = holder.ranges.ranges().len();
        self.all -= count;
        if let Some(host) = holder.host
            && let Entry::Occupied(mut entry) = self.hosts.entry(host)
        {
            *entry.get_mut() -= count;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }

    fn of(&self, host: IpAddr) -> usize {
        self.hosts.get(&host).copied().unwrap_or(0)
    }
}

#[derive(Default)]
struct Shard {
    files: HashMap<Fid, Lock>,
    tally: Tally,
}

impl Shard {
    /// Changes the lock on a whole file.
    fn change<T>(&mut self, fid: Fid, change: impl FnOnce(&mut Lock) -> T) -> T {
        let lock = self.files.entry(fid).or_default();
        let result = change(lock);
        if lock.is_over() {
            self.files.remove(&fid);
        }
        result
    }

    fn put(&mut self, fid: Fid, holder: Holder) {
        self.tally.add(&holder);
        self.files.entry(fid).or_default().holders.push(holder);
    }

    /// Removes the holders of a file that match. Returns whether any was removed.
    fn drop_holders(&mut self, fid: Fid, drops: impl Fn(&Holder) -> bool) -> bool {
        let Some(lock) = self.files.get_mut(&fid) else {
            return false;
        };
        let had = lock.holders.len();
        lock.drop_holders(&mut self.tally, drops);
        let any = had > lock.holders.len();
        if lock.is_over() {
            self.files.remove(&fid);
        }
        any
    }

    fn forget(&mut self, fid: Fid) {
        if let Some(mut lock) = self.files.remove(&fid) {
            lock.drop_holders(&mut self.tally, |_| true);
        }
    }
}

/// All locks on files.
pub struct LockTable {
    shards: Box<[Mutex<Shard>]>,
}

impl Default for LockTable {
    fn default() -> Self {
        Self {
            shards: (0..TABLE_SHARDS)
                .map(|_| Mutex::new(Shard::default()))
                .collect(),
        }
    }
}

impl LockTable {
    /// Sets a lock on the whole file, until [`LOCK_SECS`] from `now`.
    pub fn set(&self, fid: Fid, kind: LockType, now: u32) -> Result<(), LockError> {
        let mut shard = self.shard(fid).lock();
        let known = shard.files.get(&fid);
        let (held, all) = known.map_or((0, 0), |lock| (lock.whole(now), lock.count(now)));
        let count = match kind {
            LockType::Read if all >= 0 => held + 1,
            LockType::Write if all == 0 => -1,
            _ => return Err(LockError::Conflict),
        };
        if known.is_none() && shard.files.len() >= LOCKS / TABLE_SHARDS {
            return Err(LockError::TooMany);
        }
        shard.change(fid, |lock| {
            lock.count = count;
            lock.expires = now.saturating_add(LOCK_SECS);
        });
        Ok(())
    }

    /// Extends the lock of the whole file, even one that expired but was not yet removed.
    pub fn extend(&self, fid: Fid, now: u32) -> Result<(), LockError> {
        let mut shard = self.shard(fid).lock();
        let lock = shard.files.get_mut(&fid).filter(|lock| lock.count != 0);
        let lock = lock.ok_or(LockError::NotLocked)?;
        // Another client set ranges after the expiry.
        let lost = lock.expires <= now && {
            let others = lock.count(now);
            others < 0 || (others > 0 && lock.count < 0)
        };
        if lost {
            return Err(LockError::NotLocked);
        }
        lock.expires = now.saturating_add(LOCK_SECS);
        Ok(())
    }

    /// Releases one reader, or the writer, of the whole file. Returns whether the file became free;
    /// waiting clients must then be notified. Releasing an unlocked file is no error.
    pub fn release(&self, fid: Fid, now: u32) -> bool {
        let mut shard = self.shard(fid).lock();
        if shard.files.get(&fid).is_none_or(|lock| lock.count == 0) {
            return false;
        }
        shard.change(fid, |lock| {
            lock.count = match lock.count {
                count if count > 1 && lock.expires > now => count - 1,
                _ => 0,
            };
            lock.count(now) == 0
        })
    }

    /// Replaces the ranges of `owner` by `ranges`, until [`LOCK_SECS`] from `now`, if no new range
    /// conflicts. The ranges are charged to `host`. Returns whether the file became free.
    pub fn hold(
        &self,
        fid: Fid,
        (owner, serial): (Owner, u64),
        host: Option<IpAddr>,
        ranges: &HeldRanges,
        now: u32,
    ) -> Result<bool, LockError> {
        let mut shard = self.shard(fid).lock();
        // The owner's own expired entry stays, because its serial is compared below.
        let over = |holder: &Holder| holder.owner != owner && holder.expires <= now;
        let expired = shard.drop_holders(fid, over);
        let (files, all) = (shard.files.len(), shard.tally.all);
        let known = shard.files.get(&fid);
        let mine = known.and_then(|lock| lock.holders.iter().find(|holder| holder.owner == owner));
        if mine.is_some_and(|holder| holder.serial > serial) {
            return Err(LockError::Overtaken);
        }
        let before = mine.map_or(0, |holder| holder.ranges.ranges().len());
        let more = ranges.ranges().len().saturating_sub(before);
        // An owner that adds no ranges is not refused if it calls from another address. Its ranges
        // stay charged to the earlier one.
        let counted = mine.and_then(|holder| holder.host);
        let host = counted.filter(|_| more == 0).or(host);
        if let Some(host) = host.filter(|_| more > 0) {
            let has = shard.tally.of(host);
            let others = has - if counted == Some(host) { before } else { 0 };
            if others + ranges.ranges().len() > RANGES_PER_HOST / TABLE_SHARDS {
                return Err(LockError::TooManyRanges);
            }
        }
        if let Some(lock) = known {
            let full = mine.is_none() && lock.holders.len() >= HOLDERS_PER_FILE;
            if more > 0 && (full || lock.ranges() + more > RANGES_PER_FILE) {
                return Err(LockError::TooManyRanges);
            }
            // A range that the owner holds cannot have been given to another owner.
            let mine = mine.filter(|holder| holder.expires > now);
            let has = |range: &LockRange| mine.is_some_and(|holder| holder.ranges.has(*range));
            if !ranges.ranges().iter().all(has) && lock.has_conflict(owner, ranges, now) {
                return Err(LockError::Conflict);
            }
        }
        let full = known.is_none() && files >= LOCKS / TABLE_SHARDS;
        if more > 0 && (full || all + more > LOCKS / TABLE_SHARDS) {
            return Err(LockError::TooMany);
        }
        let had = shard.drop_holders(fid, |holder| holder.owner == owner);
        if !ranges.is_empty() {
            let holder = Holder {
                owner,
                serial,
                expires: now.saturating_add(LOCK_SECS),
                host,
                ranges: ranges.clone(),
            };
            shard.put(fid, holder);
        }
        let lock = shard.files.get(&fid);
        Ok((expired || had) && lock.is_none_or(|lock| lock.count(now) == 0))
    }

    /// The ranges of `owner` in a file.
    #[must_use]
    pub fn held_by(&self, fid: Fid, owner: Owner, now: u32) -> HeldRanges {
        let shard = self.shard(fid).lock();
        let lock = shard.files.get(&fid);
        let mine = lock.and_then(|lock| lock.live(now).find(|holder| holder.owner == owner));
        mine.map(|holder| holder.ranges.clone()).unwrap_or_default()
    }

    /// The lock that conflicts with a range of `owner`, if any.
    #[must_use]
    pub fn test(&self, fid: Fid, owner: Owner, wanted: LockRange, now: u32) -> Option<LockRange> {
        let shard = self.shard(fid).lock();
        shard.files.get(&fid)?.conflict(owner, wanted, now)
    }

    /// The lock count of a file status: 0 not locked, n readers, -1 a writer.
    #[must_use]
    pub fn count(&self, fid: Fid, now: u32) -> i32 {
        let shard = self.shard(fid).lock();
        if shard.files.is_empty() {
            return 0;
        }
        shard.files.get(&fid).map_or(0, |lock| lock.count(now))
    }

    /// Removes the locks of a deleted file.
    pub fn forget(&self, fid: Fid) {
        let mut shard = self.shard(fid).lock();
        if !shard.files.is_empty() {
            shard.forget(fid);
        }
    }

    /// Removes the locks of a deleted volume.
    pub fn forget_volume(&self, volume: VolumeId) {
        for shard in &self.shards {
            let Shard { files, tally } = &mut *shard.lock();
            files.retain(|fid, lock| {
                let stays = fid.volume != volume;
                if !stays {
                    lock.drop_holders(tally, |_| true);
                }
                stays
            });
        }
    }

    /// Removes expired locks. A whole-file lock is removed only [`LOCK_SECS`] after its expiry,
    /// because until then it may be extended.
    pub fn sweep(&self, now: u32) {
        for shard in &self.shards {
            let Shard { files, tally } = &mut *shard.lock();
            files.retain(|_, lock| {
                lock.drop_holders(tally, |holder| holder.expires <= now);
                if lock.expires.saturating_add(LOCK_SECS) <= now {
                    lock.count = 0;
                }
                !lock.is_over()
            });
        }
    }

    /// Visits every lock on a whole file (fid, count, expiry) and all ranges.
    pub(crate) fn for_each(
        &self,
        mut whole: impl FnMut(Fid, i32, u32),
        mut ranges: impl FnMut(Fid, &Holder),
    ) {
        for shard in &self.shards {
            for (fid, lock) in &shard.lock().files {
                if lock.count != 0 {
                    whole(*fid, lock.count, lock.expires);
                }
                for holder in &lock.holders {
                    ranges(*fid, holder);
                }
            }
        }
    }

    /// Restores a saved lock, unless it has expired.
    pub(crate) fn restore(&self, fid: Fid, count: i32, expires: u32, now: u32) {
        if expires > now {
            self.shard(fid).lock().change(fid, |lock| {
                lock.count = count;
                lock.expires = expires;
            });
        }
    }

    /// Restores saved ranges, unless they have expired.
    pub(crate) fn restore_ranges(&self, fid: Fid, holder: Holder, now: u32) {
        if holder.expires > now {
            self.shard(fid).lock().put(fid, holder);
        }
    }

    /// The number of files with locks, expired ones included.
    #[must_use]
    pub fn held(&self) -> usize {
        let files = |shard: &Mutex<Shard>| shard.lock().files.len();
        self.shards.iter().map(files).sum()
    }

    fn shard(&self, fid: Fid) -> &Mutex<Shard> {
        &self.shards[(fid_hash(fid, 0) >> 40) as usize % self.shards.len()]
    }
}

#[cfg(test)]
mod tests;
