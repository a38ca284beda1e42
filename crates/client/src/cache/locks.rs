//! Locks on files: those of this machine's programs, and the one on the whole file that servers know.
//!
//! 1. Programs here exclude each other by ranges, as fcntl(2) has it; flock(2) is the whole file. A server has
//!    locks on the file as a whole, to read or to write: this cache has it keep the strongest that its programs
//!    need, and so keeps other machines from the whole file. In volumes that cannot be written nothing is
//!    asked of servers.
//! 2. A server forgets a lock after [`LOCK_SECS`]. It is extended every [`EXTEND_TIME`] for as long as somebody
//!    here has one. If it was lost all the same (the server was started again) it is set again; if somebody else
//!    has one by then, the log says so, for there is nobody to tell, and it is tried again as often.
//! 3. A server knows no owners: who extends or gives back a lock that he has lost does it with another's. So
//!    neither is done for one that was not extended in time, as on a machine that slept: it is set anew.
//! 4. Nor is there a way from one kind to the other. To write instead of to read, a lock is
//!    given back and another set; who is refused that has the old one again, unless somebody came between. From
//!    writing to reading nothing is changed there until the last lock goes.
//! 5. What was written under a lock is stored before the lock is given back.
//! 6. Who waits asks again every [`ASK_TIME`], and at once when a lock is given back here.
//!
//! Source: FS/CM specification, locks; `AFS_LOCKWAIT`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cellar_wire::abort::AbortCode;
use cellar_wire::ids::AfsTime;
use cellar_wire::rxafs::{ExtendLock, ReleaseLock, SetLock};
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
/// How long a server keeps a lock that is not extended, in seconds. Source: `AFS_LOCKWAIT`.
const LOCK_SECS: u32 = 300;
/// How often who waits for a lock asks again.
const ASK_TIME: Duration = Duration::from_millis(500);
/// Locks on one file.
const LOCKS_MAX: usize = 4_096;

const EINTR: i32 = 4;
const EAGAIN: i32 = 11;
const ENOLCK: i32 = 37;

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

/// A program's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Whose it is: locks of one owner are not in each other's way.
    pub owner: u64,
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
        alone && meets && self.owner != other.owner
    }
}

/// A lock that a server keeps for us.
#[derive(Clone, Debug)]
struct Kept {
    kind: LockKind,
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

    fn strongest(&self) -> Option<LockKind> {
        self.held.lock().iter().map(|lock| lock.kind).max()
    }

    fn has(&self, owner: u64) -> bool {
        self.held.lock().iter().any(|lock| lock.owner == owner)
    }

    /// The owner has nothing of that range any more.
    fn take(&self, owner: u64, first: u64, last: u64) {
        let mut held = self.held.lock();
        let mut kept = Vec::with_capacity(held.len());
        for lock in held.drain(..) {
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
        *held = kept;
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

impl Cache {
    /// Sets a lock, in place of what its owner has of that range.
    ///
    /// # Errors
    /// `EAGAIN`: somebody else's is in the way; `ENOLCK`: there are too many; the server's.
    pub async fn set_lock(&self, user: &Arc<User>, vnode: &Arc<Vnode>, lock: Lock) -> Result<()> {
        let mut server = vnode.locks.server.lock().await;
        if vnode.locks.hindrance(&lock).is_some() {
            return Err(in_the_way(vnode));
        }
        self.reach(user, vnode, &mut server, lock.kind).await?;
        if !vnode.locks.put(lock) {
            return Err(refused("a lock", AbortCode::from_errno(ENOLCK)));
        }
        self.locked.lock().insert(vnode.key, vnode.clone());
        Ok(())
    }

    /// Sets a lock as soon as nothing is in the way.
    ///
    /// # Errors
    /// As [`Cache::set_lock`]; `EINTR`: whoever waits does not any more.
    pub async fn wait_for_lock(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        lock: Lock,
        gave_up: impl Fn() -> bool,
    ) -> Result<()> {
        loop {
            let mut freed = std::pin::pin!(vnode.locks.freed.notified());
            freed.as_mut().enable();
            match self.set_lock(user, vnode, lock).await {
                Err(error) if errno(&error) == EAGAIN => {}
                other => return other,
            }
            if gave_up() {
                return Err(refused("waiting for a lock", AbortCode::from_errno(EINTR)));
            }
            let _asked = tokio::time::timeout(ASK_TIME, freed).await;
        }
    }

    /// What is in the way of a lock, if anything is. Of other machines a status says only how many locks there
    /// are.
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
        let count = self.ask(user, vnode).await?.lock_count;
        let others = match server.as_ref().map(|kept| kept.kind) {
            None => count,
            Some(LockKind::Read) => count - 1,
            Some(LockKind::Write) => 0,
        };
        let kind = match others < 0 {
            true => LockKind::Write,
            false => LockKind::Read,
        };
        let there = Lock {
            owner: 0,
            pid: 0,
            first: 0,
            last: i64::MAX as u64,
            kind,
        };
        let hinders = others < 0 || (others > 0 && lock.kind == LockKind::Write);
        Ok(hinders.then_some(there))
    }

    /// The owner has no lock on that range any more.
    pub async fn unlock(&self, vnode: &Arc<Vnode>, owner: u64, first: u64, last: u64) {
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

    /// Has the server keep a lock of at least that kind.
    async fn reach(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        server: &mut Option<Kept>,
        kind: LockKind,
    ) -> Result<()> {
        let has = |kept: &Kept| kept.kind >= kind && !kept.is_over(self.now());
        if vnode.volume.is_read_only() || server.as_ref().is_some_and(has) {
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

    /// The server need not keep a lock that nobody here has.
    async fn give_back(&self, vnode: &Arc<Vnode>, server: &mut Option<Kept>) {
        if !vnode.locks.is_empty() {
            return;
        }
        self.locked.lock().remove(&vnode.key);
        if let Some(kept) = server.take() {
            self.call_release(&kept, vnode).await;
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
        if !kept.is_over(now) {
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
        match self.call_set(&kept.user, vnode, kept.kind).await {
            Ok(kept) => kept,
            Err(error) => {
                tracing::warn!(fid = %vnode.fid(), %error, "the server keeps a lock for us no more");
                kept.lost()
            }
        }
    }

    /// Whether somebody here has a lock on it.
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
        let at = self.now();
        let what = format!("a lock on {}", vnode.fid());
        let set = SetLock {
            fid: vnode.fid(),
            lock_type: kind.on_the_wire(),
        };
        let client = user.client();
        client.call_volume(&vnode.volume, &what, &set).await?;
        let user = user.clone();
        Ok(Kept { kind, user, at })
    }

    async fn call_extend(&self, kept: &Kept, vnode: &Arc<Vnode>) -> Result<()> {
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

fn in_the_way(vnode: &Vnode) -> crate::error::Error {
    let what = format!("a lock on {}", vnode.fid());
    refused(what, AbortCode::from_errno(EAGAIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(owner: u64, first: u64, last: u64, kind: LockKind) -> Lock {
        Lock {
            owner,
            pid: 1,
            first,
            last,
            kind,
        }
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
        locks.take(1, 45, 49);
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
        locks.take(1, 0, u64::MAX);
        assert!(locks.is_empty());
    }
}
