//! Locks on files: those of this machine's programs, and what servers keep for all of them.
//!
//! 1. Programs here exclude each other by ranges, as fcntl(2) has it; flock(2) is the whole
//!    file. Those are two families, and locks of one are not in the way of the other's, as on
//!    every local file system. Cellar's servers
//!    keep the bytes that any program here has, under a number that this cache alone knows, and are told all
//!    of them whenever they become others. AFS's servers have locks on the file as a whole, to read or to
//!    write: there this cache has them keep the strongest that its programs need. In volumes that cannot be
//!    written nothing is asked of servers.
//! 2. A server forgets a lock after [`LOCK_SECS`]. It is extended every [`EXTEND_TIME`] for as
//!    long as a program here has one, and when a server comes back or says that it does not know
//!    us. If it was lost all the same (the server was started again) it is set again. If another
//!    client has one by then, the log says so, as no program waits for an answer, and it is tried
//!    again as often.
//! 3. A lock on the whole file has no owner: who extends or gives back one that he has lost does it with another's.
//!    So neither is done for one that was not extended in time, as on a machine that slept: it is set anew.
//! 4. Nor is there a way from one kind to the other. To write instead of to read, such a lock is
//!    given back and another set; who is refused that has the old one again, unless somebody came between. From
//!    writing to reading nothing is changed there until the last lock goes.
//! 5. What was written under a lock is stored before the lock is given back. Where others may store other ranges
//!    meanwhile, a store cuts nothing off behind it (`store.rs`).
//! 6. Who waits asks again every [`ASK_TIME`], and at once when a lock is given back here.
//!
//! Source: FS/CM specification, locks; `AFS_LOCKWAIT`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cellar_wire::abort::AbortCode;
use cellar_wire::ids::AfsTime;
use cellar_wire::rxafs::{ExtendLock, HeldRanges, LockRange, ReleaseLock, SetLock};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::Cache;
use super::status::refused;
use super::user::User;
use super::vnode::Vnode;
use crate::errno::errno;
use crate::error::Result;

/// How often locks are extended.
pub(crate) const EXTEND_TIME: Duration = Duration::from_secs(60);
/// How long after that they are not extended again, whatever servers say.
pub(crate) const RECLAIM_TIME: Duration = Duration::from_millis(250);
/// How long a server keeps a lock that is not extended, in seconds. Source: `AFS_LOCKWAIT`.
const LOCK_SECS: u32 = 300;
/// How often who waits for a lock asks again.
const ASK_TIME: Duration = Duration::from_millis(500);
/// Locks on one file.
const LOCKS_MAX: usize = 4_096;

const EINTR: i32 = 4;
const EAGAIN: i32 = 11;
pub(crate) const ENOLCK: i32 = 37;

/// Whether others may have a lock beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockKind {
    /// Shared.
    Read,
    /// Alone.
    Write,
}

impl LockKind {
    /// `ViceLockType`.
    fn on_the_wire(self) -> i32 {
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

/// The owner of a lock: locks of one owner are not in each other's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockOwner {
    /// The family.
    pub family: LockFamily,
    /// The kernel's number of the owner.
    pub number: u64,
}

impl LockOwner {
    /// The owner of that number of locks by fcntl(2).
    pub fn record(number: u64) -> Self {
        let family = LockFamily::Record;
        Self { family, number }
    }

    /// The owner of that number of locks by flock(2).
    pub fn flock(number: u64) -> Self {
        let family = LockFamily::Flock;
        Self { family, number }
    }
}

/// A program's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Whose it is.
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
    fn hinders(&self, other: &Self) -> bool {
        let alone = self.kind == LockKind::Write || other.kind == LockKind::Write;
        let meets = self.first <= other.last && other.first <= self.last;
        let one_family = self.owner.family == other.owner.family;
        alone && meets && one_family && self.owner != other.owner
    }

    fn range(&self) -> LockRange {
        LockRange {
            first: self.first,
            last: self.last,
            alone: self.kind == LockKind::Write,
        }
    }
}

/// What a server keeps for us.
#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    /// The whole file.
    Whole(LockKind),
    /// At least these bytes.
    Ranges(HeldRanges),
}

/// A lock that a server keeps for us.
#[derive(Clone, Debug)]
struct Kept {
    what: What,
    /// Who set it.
    user: Arc<User>,
    /// When it was last set or extended.
    at: AfsTime,
}

impl Kept {
    /// One that is to be set again.
    fn lost(self) -> Self {
        let at = AfsTime(0);
        Self { at, ..self }
    }

    /// Whether it may be another's by now.
    fn is_over(&self, now: AfsTime) -> bool {
        now.0.saturating_sub(self.at.0) >= LOCK_SECS
    }
}

/// The locks on one file.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    held: Mutex<Vec<Lock>>,
    /// What the server keeps for us. Held by whoever asks the server.
    server: tokio::sync::Mutex<Option<Kept>>,
    /// One was given back.
    freed: Notify,
}

impl Locks {
    /// What is in the way of a lock.
    fn hindrance(&self, wanted: &Lock) -> Option<Lock> {
        let held = self.held.lock();
        held.iter().find(|lock| lock.hinders(wanted)).copied()
    }

    fn is_empty(&self) -> bool {
        self.held.lock().is_empty()
    }

    /// The bytes that programs here have, and another lock.
    fn all_with(&self, other: Option<&Lock>) -> HeldRanges {
        let held = self.held.lock();
        // What its owner has of the range goes.
        let mut all = match other {
            Some(lock) => without(&held, lock.owner, lock.first, lock.last),
            None => held.clone(),
        };
        all.extend(other);
        HeldRanges::of_all(all.iter().map(Lock::range))
    }

    fn strongest(&self) -> Option<LockKind> {
        self.held.lock().iter().map(|lock| lock.kind).max()
    }

    fn has(&self, owner: LockOwner) -> bool {
        self.held.lock().iter().any(|lock| lock.owner == owner)
    }

    /// Whether an owner has a shared lock by flock(2) that `wanted` is to replace by an
    /// exclusive one.
    fn is_upgrade(&self, wanted: &Lock) -> bool {
        let is_flock = wanted.owner.family == LockFamily::Flock;
        is_flock && wanted.kind == LockKind::Write && self.has(wanted.owner)
    }

    /// The owner has nothing of that range any more.
    fn take(&self, owner: LockOwner, first: u64, last: u64) {
        let mut held = self.held.lock();
        *held = without(&held, owner, first, last);
    }

    /// Answers false if there are too many.
    fn put(&self, lock: Lock) -> bool {
        if self.held.lock().len() >= LOCKS_MAX {
            return false;
        }
        self.take(lock.owner, lock.first, lock.last);
        self.held.lock().push(lock);
        true
    }
}

/// Locks without what an owner has of a range.
fn without(held: &[Lock], owner: LockOwner, first: u64, last: u64) -> Vec<Lock> {
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

impl Cache {
    /// Sets a lock, in place of what its owner has of that range. A shared lock by flock(2) that
    /// cannot become exclusive is given back: two programs that both wait for that would wait
    /// for each other. Source: flock(2).
    ///
    /// # Errors
    /// `EAGAIN`: somebody else's is in the way; `ENOLCK`: there are too many; the server's.
    pub async fn set_lock(&self, user: &Arc<User>, vnode: &Arc<Vnode>, lock: Lock) -> Result<()> {
        let set = self.try_lock(user, vnode, lock).await;
        if let Err(error) = &set
            && errno(error) == EAGAIN
            && vnode.locks.is_upgrade(&lock)
        {
            self.unlock(vnode, lock.owner, 0, u64::MAX).await;
        }
        set?;
        self.look_under_lock(user, vnode).await;
        Ok(())
    }

    /// What another machine stored before it gave a lock back is seen by who gets the lock next:
    /// the kernel holds nothing older than this lock ([`super::coherence`], rule 5).
    async fn look_under_lock(&self, user: &Arc<User>, vnode: &Arc<Vnode>) {
        self.audience.told(vnode).await;
        if let Err(error) = self.status(user, vnode).await {
            tracing::info!(fid = %vnode.fid(), %error, "what was locked is not known to be as it is here");
            self.take_back(vnode);
        }
        self.lengthen(user, vnode).await;
        self.audience.told(vnode).await;
    }

    async fn try_lock(&self, user: &Arc<User>, vnode: &Arc<Vnode>, lock: Lock) -> Result<()> {
        let mut server = vnode.locks.server.lock().await;
        if vnode.locks.hindrance(&lock).is_some() {
            return Err(in_the_way(vnode));
        }
        self.reach(user, vnode, &mut server, &lock).await?;
        if !vnode.locks.put(lock) {
            return Err(refused("a lock", AbortCode::from_errno(ENOLCK)));
        }
        self.locked.lock().insert(vnode.key, vnode.clone());
        Ok(())
    }

    /// Sets a lock as soon as nothing is in the way. The wait ends when `gave_up` is done, but for
    /// a question to the server
    /// that is under way: its answer may be the lock.
    ///
    /// # Errors
    /// As [`Cache::set_lock`]; `EINTR`: it was given up.
    pub async fn wait_for_lock(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        lock: Lock,
        gave_up: impl Future<Output = ()>,
    ) -> Result<()> {
        let mut gave_up = std::pin::pin!(gave_up);
        loop {
            let mut freed = std::pin::pin!(vnode.locks.freed.notified());
            freed.as_mut().enable();
            match self.set_lock(user, vnode, lock).await {
                Err(error) if errno(&error) == EAGAIN => {}
                other => return other,
            }
            tokio::select! {
                biased;
                () = &mut gave_up => {
                    return Err(refused("waiting for a lock", AbortCode::from_errno(EINTR)));
                }
                _ = tokio::time::timeout(ASK_TIME, freed) => {}
            }
        }
    }

    /// What is in the way of a lock, if anything is. Of other machines, where servers know whole files only, a status
    /// says how many locks there are.
    ///
    /// # Errors
    /// The server's.
    pub async fn test_lock(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        lock: Lock,
    ) -> Result<Option<Lock>> {
        let server = vnode.locks.server.lock().await;
        let here = vnode.locks.hindrance(&lock);
        if here.is_some() || vnode.volume.is_read_only() {
            return Ok(here);
        }
        let there = |range: LockRange| Lock {
            owner: LockOwner::record(0),
            open_file: 0,
            pid: 0,
            first: range.first,
            last: range.last,
            kind: match range.alone {
                true => LockKind::Write,
                false => LockKind::Read,
            },
        };
        let whole = match server.as_ref().map(|kept| &kept.what) {
            Some(What::Whole(kind)) => Some(*kind),
            _ => None,
        };
        if whole.is_none()
            && let Some(found) = self.test_range(user, vnode, lock.range()).await?
        {
            return Ok(found.map(there));
        }
        let count = self.ask(user, vnode).await?.lock_count;
        let others = others(count, whole);
        let all = LockRange {
            first: 0,
            last: i64::MAX as u64,
            alone: others < 0,
        };
        let hinders = others < 0 || (others > 0 && lock.kind == LockKind::Write);
        Ok(hinders.then(|| there(all)))
    }

    /// The owner has no lock on that range any more.
    pub async fn unlock(&self, vnode: &Arc<Vnode>, owner: LockOwner, first: u64, last: u64) {
        if !vnode.locks.has(owner) {
            return;
        }
        if let Err(error) = self.store(vnode, false).await {
            tracing::info!(fid = %vnode.fid(), %error, "not stored before a lock is given back");
        }
        let mut server = vnode.locks.server.lock().await;
        vnode.locks.take(owner, first, last);
        self.give_back(vnode, &mut server).await;
        vnode.locks.freed.notify_waiters();
    }

    /// An open file is closed for the last time: all locks go that were set through it.
    pub async fn unlock_open_file(&self, vnode: &Arc<Vnode>, open_file: u64) {
        let is_its = |lock: &Lock| lock.open_file == open_file;
        self.unlock_those(vnode, is_its).await;
    }

    async fn unlock_those(&self, vnode: &Arc<Vnode>, which: impl Fn(&Lock) -> bool) {
        if !vnode.locks.held.lock().iter().any(&which) {
            return;
        }
        if let Err(error) = self.store(vnode, false).await {
            tracing::info!(fid = %vnode.fid(), %error, "not stored before a lock is given back");
        }
        let mut server = vnode.locks.server.lock().await;
        vnode.locks.held.lock().retain(|lock| !which(lock));
        self.give_back(vnode, &mut server).await;
        vnode.locks.freed.notify_waiters();
    }

    /// Has the server keep what programs here have, and another lock.
    async fn reach(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        server: &mut Option<Kept>,
        lock: &Lock,
    ) -> Result<()> {
        if vnode.volume.is_read_only() {
            return Ok(());
        }
        let whole = matches!(server.as_ref().map(|kept| &kept.what), Some(What::Whole(_)));
        if whole || self.knows_no_ranges(vnode) {
            return self.reach_whole(user, vnode, server, lock.kind).await;
        }
        let wanted = vnode.locks.all_with(Some(lock));
        let now = self.now();
        if let Some(kept) = server
            && let What::Ranges(has) = &kept.what
            && *has == wanted
            && !kept.is_over(now)
        {
            return Ok(());
        }
        // Who may write may also read.
        let before = server.as_ref().filter(|_| lock.kind == LockKind::Read);
        let keeper = before.map_or(user, |kept| &kept.user).clone();
        match self.hold(user, vnode, &wanted).await {
            Ok(true) => {
                *server = Some(Kept {
                    what: What::Ranges(wanted),
                    user: keeper,
                    at: now,
                });
                Ok(())
            }
            Ok(false) => {
                *server = None;
                self.reach_whole(user, vnode, server, lock.kind).await
            }
            Err(error) => {
                // Unless it was refused, the server has perhaps the one, perhaps the other.
                if errno(&error) != EAGAIN {
                    *server = server.take().map(Kept::lost);
                }
                Err(error)
            }
        }
    }

    /// Has the server keep a lock of at least that kind on the whole file.
    async fn reach_whole(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        server: &mut Option<Kept>,
        kind: LockKind,
    ) -> Result<()> {
        let has = |kept: &Kept| {
            let is_enough = matches!(kept.what, What::Whole(has) if has >= kind);
            is_enough && !kept.is_over(self.now())
        };
        if server.as_ref().is_some_and(has) {
            return Ok(());
        }
        let before = server.take();
        // Others here may have more, of one that has run out.
        let kind = vnode.locks.strongest().map_or(kind, |held| held.max(kind));
        if let Some(kept) = &before {
            self.call_release(kept, vnode).await;
        }
        match (self.call_set(user, vnode, kind).await, before) {
            (Ok(kept), _) => *server = Some(kept),
            (Err(error), None) => return Err(error),
            (Err(error), Some(before)) => {
                *server = Some(self.set_again(before, vnode).await);
                return Err(error);
            }
        }
        Ok(())
    }

    /// The server need not keep what nobody here has.
    async fn give_back(&self, vnode: &Arc<Vnode>, server: &mut Option<Kept>) {
        let nobody = vnode.locks.is_empty();
        if nobody {
            self.locked.lock().remove(&vnode.key);
        }
        let Some(kept) = server.take() else {
            return;
        };
        match &kept.what {
            What::Whole(_) if nobody => self.call_release(&kept, vnode).await,
            What::Whole(_) => *server = Some(kept),
            What::Ranges(before) => {
                let left = vnode.locks.all_with(None);
                if left != *before
                    && let Err(error) = self.hold(&kept.user, vnode, &left).await
                {
                    tracing::info!(fid = %vnode.fid(), %error, "a lock stays until it has run out");
                }
                *server = (!nobody).then(|| Kept {
                    what: What::Ranges(left),
                    ..kept
                });
            }
        }
    }

    /// Rules 2 and 3: to be called every `EXTEND_TIME`, with the time. Of each volume one after the other, so that
    /// a silent server costs no locks on others.
    pub async fn extend_locks(self: &Arc<Self>, now: AfsTime) {
        let mut volumes = HashMap::<_, Vec<_>>::new();
        for vnode in self.locked.lock().values() {
            let volume = (vnode.key.0, vnode.key.1.volume);
            volumes.entry(volume).or_default().push(vnode.clone());
        }
        let mut all = JoinSet::new();
        for vnodes in volumes.into_values() {
            let cache = self.clone();
            all.spawn(async move {
                for vnode in vnodes {
                    cache.extend_lock(&vnode, now).await;
                }
            });
        }
        let done = async { while all.join_next().await.is_some() {} };
        let _late = tokio::time::timeout(EXTEND_TIME, done).await;
    }

    async fn extend_lock(&self, vnode: &Arc<Vnode>, now: AfsTime) {
        let mut server = vnode.locks.server.lock().await;
        let Some(kept) = server.clone() else {
            return;
        };
        // Ranges have an owner: they may be said again at any time.
        let is_ours = matches!(kept.what, What::Ranges(_));
        if is_ours || !kept.is_over(now) {
            match self.call_extend(&kept, vnode).await {
                Ok(()) => {
                    *server = Some(Kept { at: now, ..kept });
                    return;
                }
                // A server that does not answer may have it still.
                Err(error) if error.is_unreachable() => {
                    tracing::info!(fid = %vnode.fid(), %error, "a lock is not extended");
                    return;
                }
                Err(_) => {}
            }
        }
        *server = Some(self.set_again(kept, vnode).await);
    }

    async fn set_again(&self, kept: Kept, vnode: &Arc<Vnode>) -> Kept {
        let set = match &kept.what {
            What::Whole(kind) => self.call_set(&kept.user, vnode, *kind).await,
            What::Ranges(_) => self.hold_again(&kept, vnode).await,
        };
        set.unwrap_or_else(|error| {
            tracing::warn!(fid = %vnode.fid(), %error, "the server keeps a lock for us no more");
            kept.lost()
        })
    }

    /// Says once more what programs here have; on a server that knows no ranges, where the volume may be by now, the
    /// whole file.
    async fn hold_again(&self, kept: &Kept, vnode: &Arc<Vnode>) -> Result<Kept> {
        let all = vnode.locks.all_with(None);
        if self.hold(&kept.user, vnode, &all).await? {
            let (what, user, at) = (What::Ranges(all), kept.user.clone(), self.now());
            return Ok(Kept { what, user, at });
        }
        let kind = vnode.locks.strongest().unwrap_or(LockKind::Read);
        self.call_set(&kept.user, vnode, kind).await
    }

    /// Whether a program here has a lock on it.
    pub(crate) fn is_locked(&self, vnode: &Vnode) -> bool {
        !vnode.locks.is_empty()
    }

    /// Gives back all locks, of a file that is still open only if `open`: whoever has opened it since keeps his.
    pub(crate) async fn forget_locks(&self, vnode: &Arc<Vnode>, open: bool) {
        if vnode.locks.is_empty() {
            return;
        }
        let mut server = vnode.locks.server.lock().await;
        if !open && vnode.state.lock().opens > 0 {
            return;
        }
        vnode.locks.held.lock().clear();
        self.give_back(vnode, &mut server).await;
        vnode.locks.freed.notify_waiters();
    }

    async fn call_set(&self, user: &Arc<User>, vnode: &Arc<Vnode>, kind: LockKind) -> Result<Kept> {
        self.told(vnode).await?;
        let at = self.now();
        let what = format!("a lock on {}", vnode.fid());
        let set = SetLock {
            fid: vnode.fid(),
            lock_type: kind.on_the_wire(),
        };
        let client = user.client();
        client.call_volume(&vnode.volume, &what, &set).await?;
        let (what, user) = (What::Whole(kind), user.clone());
        Ok(Kept { what, user, at })
    }

    async fn call_extend(&self, kept: &Kept, vnode: &Arc<Vnode>) -> Result<()> {
        if let What::Ranges(_) = kept.what {
            let all = vnode.locks.all_with(None);
            return match self.hold(&kept.user, vnode, &all).await? {
                true => Ok(()),
                false => Err(in_the_way(vnode)),
            };
        }
        let what = format!("a lock on {}", vnode.fid());
        let extend = ExtendLock { fid: vnode.fid() };
        let client = kept.user.client();
        client.call_volume(&vnode.volume, &what, &extend).await?;
        Ok(())
    }

    async fn call_release(&self, kept: &Kept, vnode: &Arc<Vnode>) {
        if kept.is_over(self.now()) {
            return;
        }
        let what = format!("a lock on {}", vnode.fid());
        let release = ReleaseLock { fid: vnode.fid() };
        let client = kept.user.client();
        if let Err(error) = client.call_volume(&vnode.volume, &what, &release).await {
            tracing::info!(fid = %vnode.fid(), %error, "a lock stays until it has run out");
        }
    }
}

/// How many locks others have, below 0 for one to write, where a status counts so many with ours.
fn others(count: i32, ours: Option<LockKind>) -> i32 {
    match ours {
        None => count,
        Some(LockKind::Read) => count.saturating_sub(1),
        Some(LockKind::Write) => 0,
    }
}

fn in_the_way(vnode: &Vnode) -> crate::error::Error {
    let what = format!("a lock on {}", vnode.fid());
    refused(what, AbortCode::from_errno(EAGAIN))
}

#[cfg(test)]
mod tests {
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
        assert_eq!(locks.hindrance(&all(LockOwner::flock(2), Read)), None);
        assert!(locks.hindrance(&all(LockOwner::record(2), Read)).is_some());
        // The server keeps the strongest of both, and what is left of one.
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
        assert_eq!(locks.hindrance(&lock(2, 50, 60, Read)), None);
        assert!(locks.hindrance(&lock(2, 50, 60, Write)).is_some());
        assert_eq!(locks.hindrance(&lock(2, 100, 200, Write)), None);
        assert_eq!(locks.hindrance(&lock(1, 0, 99, Write)), None, "his own");
        // A part of it is another now, and a part is free.
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
        assert_eq!(locks.hindrance(&lock(2, 45, 49, Write)), None);
        locks.take(LockOwner::record(1), 0, u64::MAX);
        assert!(locks.is_empty());
    }

    #[test]
    fn a_count_of_locks_may_be_anything() {
        for (count, ours, left) in [
            (i32::MIN, Some(LockKind::Read), i32::MIN),
            (3, Some(LockKind::Read), 2),
            (-1, Some(LockKind::Write), 0),
            (-1, None, -1),
        ] {
            assert_eq!(others(count, ours), left, "{count}, {ours:?}");
        }
    }
}
