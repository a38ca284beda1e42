//! Locks on files: the locks of this machine's programs, and the locks that servers keep for us to
//! cover them.
//!
//! 1. Programs of this machine exclude each other by ranges, as fcntl(2) says; a lock by flock(2)
//!    covers the whole file. These are two families: locks of one do not conflict with locks of the
//!    other, as on every local file system. A Cellar server keeps the ranges that any program of
//!    this machine has locked, under a number that only this cache knows. After each change the
//!    cache sends all ranges to the server. An AFS server has only locks on the whole file, to read
//!    or to write. There the cache sets the strongest lock that its programs need. For volumes that
//!    cannot be written, no server is asked.
//! 2. A server forgets a lock after `LOCK_SECS`. While a program has a lock, the cache extends it
//!    every [`EXTEND_TIME`]. It also does so when a server returns or answers that it does not know
//!    us. If the lock was lost anyway (the server was restarted), it is set again. If another
//!    client has taken it, a line of the log reports it, because no program waits for an answer.
//!    The cache retries at the same interval.
//! 3. A lock on the whole file has no owner. A client that extends or releases a lock that it has
//!    lost extends or releases the lock of another client. So neither is done with a lock that was
//!    not extended in time, for instance on a machine that slept. Such a lock is set again instead.
//! 4. Such a lock cannot be changed from one kind to the other. To get a write lock instead of a
//!    read lock, the read lock is released and a write lock is set. If that is refused, the read
//!    lock is set again, unless another client took the lock in between. From writing to reading,
//!    the server keeps the write lock until the last lock of this machine is released.
//! 5. Bytes that were written under a lock are stored before the lock is released. If other clients
//!    may store other ranges at the same time, a store truncates nothing behind it (`store.rs`).
//! 6. A program that waits for a lock asks again at an interval (`wait.rs`), and at once when
//!    programs of this machine release one.
//!
//! Source: FS/CM specification, locks; `AFS_LOCKWAIT`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cellar_wire::abort::AbortCode;
use cellar_wire::ids::AfsTime;
use cellar_wire::rxafs::{ExtendLock, LockRange, ReleaseLock, SetLock};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::creates::Creates;
use super::environment::Environment;
use super::lock_order::{Ordered, TABLE};
use super::promises::Promises;
use super::reads::Reads;
use super::request::refused;
use super::statuses::Statuses;
use super::user::User;
use super::vnode::{Key, Vnode};
use super::write_back::WriteBack;
use cellar_client::errno::errno;
use cellar_client::error::Result;

pub(crate) mod lock_table;
mod range_locks;
mod wait;

use lock_table::{Lock, LockKind, LockOwner, ServerLock, ServerLockKind};
use range_locks::RangeLocks;
use wait::interrupted;

/// The interval at which locks are extended.
pub(crate) const EXTEND_TIME: Duration = Duration::from_secs(60);
/// The least time between two rounds of extensions, whatever servers say.
pub(crate) const RECLAIM_TIME: Duration = Duration::from_millis(250);
const EAGAIN: i32 = 11;
pub(crate) const ENOLCK: i32 = 37;

/// See the head of the file.
pub struct FileLocks {
    env: Arc<Environment>,
    creates: Arc<Creates>,
    promises: Arc<Promises>,
    statuses: Arc<Statuses>,
    reads: Arc<Reads>,
    write_back: Arc<WriteBack>,
    /// Vnodes on which a program of this machine has a lock.
    locked: Ordered<TABLE, HashMap<Key, Arc<Vnode>>>,
    range_locks: RangeLocks,
    /// Notified when a server that may keep locks for us was restarted.
    lost: Arc<Notify>,
}

impl FileLocks {
    pub(super) fn new(write_back: &Arc<WriteBack>) -> Self {
        Self {
            env: write_back.env.clone(),
            creates: write_back.creates.clone(),
            promises: write_back.promises.clone(),
            statuses: write_back.statuses.clone(),
            reads: write_back.reads.clone(),
            write_back: write_back.clone(),
            locked: Ordered::default(),
            range_locks: RangeLocks::default(),
            lost: Arc::default(),
        }
    }

    /// A server that may keep locks for us was restarted: they are extended soon.
    pub(super) fn may_be_lost(&self) {
        self.lost.notify_one();
    }

    /// Notified when locks may be lost.
    pub(super) fn lost(&self) -> Arc<Notify> {
        self.lost.clone()
    }

    /// Releases all locks of this machine.
    pub(super) async fn release_all(&self) {
        let locked: Vec<_> = self.locked.lock().values().cloned().collect();
        for vnode in locked {
            self.forget_locks(&vnode, true).await;
        }
    }

    /// Sets a lock, which replaces its owner's locks on the range. A shared lock by flock(2) that
    /// cannot become exclusive is released: otherwise two programs that both wait for that would
    /// wait for each other. Source: flock(2).
    ///
    /// # Errors
    /// `EAGAIN`: another owner's lock conflicts; `ENOLCK`: there are too many; the server's error.
    pub async fn set_lock(&self, user: &Arc<User>, vnode: &Arc<Vnode>, lock: Lock) -> Result<()> {
        self.set_lock_if(user, vnode, lock, || true).await
    }

    /// Like [`FileLocks::set_lock`]. Asks `is_wanted` at most once: when the server has granted the
    /// lock, or before the lock that could not be upgraded is released.
    ///
    /// # Errors
    /// As [`FileLocks::set_lock`]; `EINTR`: the lock is no longer wanted, and was released.
    async fn set_lock_if(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        lock: Lock,
        is_wanted: impl Fn() -> bool,
    ) -> Result<()> {
        let set = self.try_lock(user, vnode, lock, &is_wanted).await;
        if let Err(error) = &set
            && errno(error) == EAGAIN
            && vnode.locks.is_upgrade(&lock)
            && is_wanted()
        {
            self.unlock(vnode, lock.owner, 0, u64::MAX).await;
        }
        set?;
        self.refresh_under_lock(user, vnode).await;
        Ok(())
    }

    /// Makes bytes visible that another machine stored before it released the lock. The kernel then
    /// holds nothing older than this lock (`promises/coherence.rs`, rule 5).
    async fn refresh_under_lock(&self, user: &Arc<User>, vnode: &Arc<Vnode>) {
        self.env.audience.notified(vnode).await;
        if let Err(error) = self.statuses.status(user, vnode).await {
            tracing::info!(fid = %vnode.fid(), %error, "the status of the locked file is not known");
            self.promises.invalidate(vnode);
        }
        self.reads.lengthen(user, vnode).await;
        self.env.audience.notified(vnode).await;
    }

    async fn try_lock(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        lock: Lock,
        is_wanted: impl Fn() -> bool,
    ) -> Result<()> {
        let mut server = vnode.locks.server.lock().await;
        if vnode.locks.conflict_with(&lock).is_some() {
            return Err(conflict(vnode));
        }
        self.hold_at_server(user, vnode, &mut server, &lock).await?;
        if !is_wanted() {
            self.release_unused(vnode, &mut server).await;
            return Err(interrupted());
        }
        if !vnode.locks.put(lock) {
            return Err(refused("a lock", AbortCode::from_errno(ENOLCK)));
        }
        self.locked.lock().insert(vnode.key(), vnode.clone());
        Ok(())
    }

    /// Returns a lock that conflicts with a wanted one, if any. If the server locks only whole
    /// files, the status shows how many locks other machines have.
    ///
    /// # Errors
    /// The server's error.
    pub async fn test_lock(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        lock: Lock,
    ) -> Result<Option<Lock>> {
        let server = vnode.locks.server.lock().await;
        let here = vnode.locks.conflict_with(&lock);
        if here.is_some() || vnode.volume().is_read_only() {
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
            Some(ServerLockKind::Whole(kind)) => Some(*kind),
            _ => None,
        };
        if whole.is_none()
            && let Some(found) = self.test_range(user, vnode, lock.range()).await?
        {
            return Ok(found.map(there));
        }
        let count = self.statuses.ask(user, vnode).await?.lock_count;
        let others = others(count, whole);
        let all = LockRange {
            first: 0,
            last: i64::MAX as u64,
            alone: others < 0,
        };
        let conflicts = others < 0 || (others > 0 && lock.kind == LockKind::Write);
        Ok(conflicts.then(|| there(all)))
    }

    /// Releases the owner's locks on a range.
    pub async fn unlock(&self, vnode: &Arc<Vnode>, owner: LockOwner, first: u64, last: u64) {
        if !vnode.locks.has(owner) {
            return;
        }
        let take = || vnode.locks.take(owner, first, last);
        self.store_and_release(vnode, take).await;
    }

    /// Releases all locks that were set through an open file, at its last close.
    pub async fn unlock_open_file(&self, vnode: &Arc<Vnode>, open_file: u64) {
        let is_its = |lock: &Lock| lock.open_file == open_file;
        self.unlock_matching(vnode, is_its).await;
    }

    async fn unlock_matching(&self, vnode: &Arc<Vnode>, which: impl Fn(&Lock) -> bool) {
        if !vnode.locks.held.lock().iter().any(&which) {
            return;
        }
        let take = || vnode.locks.held.lock().retain(|lock| !which(lock));
        self.store_and_release(vnode, take).await;
    }

    /// Rule 5: stores the bytes, takes the locks out, and releases those of the server that no
    /// program needs any more.
    async fn store_and_release(&self, vnode: &Arc<Vnode>, take: impl FnOnce()) {
        if let Err(error) = self.write_back.store(vnode, false).await {
            tracing::info!(fid = %vnode.fid(), %error, "not stored before the lock was released");
        }
        let mut server = vnode.locks.server.lock().await;
        take();
        self.release_unused(vnode, &mut server).await;
        vnode.locks.freed.notify_waiters();
    }

    /// Makes the server keep the locks of this machine's programs and another one.
    async fn hold_at_server(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        server: &mut Option<ServerLock>,
        lock: &Lock,
    ) -> Result<()> {
        if vnode.volume().is_read_only() {
            return Ok(());
        }
        let whole = matches!(
            server.as_ref().map(|kept| &kept.what),
            Some(ServerLockKind::Whole(_))
        );
        if whole || self.knows_no_ranges(vnode) {
            return self.hold_whole(user, vnode, server, lock.kind).await;
        }
        let wanted = vnode.locks.all_with(Some(lock));
        let now = self.env.now();
        if let Some(kept) = server
            && let ServerLockKind::Ranges(has) = &kept.what
            && *has == wanted
            && !kept.is_over(now)
        {
            return Ok(());
        }
        // A user who may write may also read.
        let before = server.as_ref().filter(|_| lock.kind == LockKind::Read);
        let keeper = before.map_or(user, |kept| &kept.user).clone();
        match self.hold(user, vnode, &wanted).await {
            Ok(true) => {
                *server = Some(ServerLock {
                    what: ServerLockKind::Ranges(wanted),
                    user: keeper,
                    at: now,
                });
                Ok(())
            }
            Ok(false) => {
                *server = None;
                self.hold_whole(user, vnode, server, lock.kind).await
            }
            Err(error) => {
                // Unless the call was refused, the server has either the old ranges or the new
                // ones.
                if errno(&error) != EAGAIN {
                    *server = server.take().map(ServerLock::lost);
                }
                Err(error)
            }
        }
    }

    /// Makes the server keep a lock of at least this kind on the whole file.
    async fn hold_whole(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        server: &mut Option<ServerLock>,
        kind: LockKind,
    ) -> Result<()> {
        let has = |kept: &ServerLock| {
            let is_enough = matches!(kept.what, ServerLockKind::Whole(has) if has >= kind);
            is_enough && !kept.is_over(self.env.now())
        };
        if server.as_ref().is_some_and(has) {
            return Ok(());
        }
        let before = server.take();
        // Other programs may hold a stronger lock, under a server lock that has run out.
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

    /// Releases at the server the locks that no program of this machine has any more.
    async fn release_unused(&self, vnode: &Arc<Vnode>, server: &mut Option<ServerLock>) {
        let is_unused = vnode.locks.is_empty();
        if is_unused {
            self.locked.lock().remove(&vnode.key());
        }
        let Some(kept) = server.take() else {
            return;
        };
        match &kept.what {
            ServerLockKind::Whole(_) if is_unused => self.call_release(&kept, vnode).await,
            ServerLockKind::Whole(_) => *server = Some(kept),
            ServerLockKind::Ranges(before) => {
                let left = vnode.locks.all_with(None);
                if left != *before
                    && let Err(error) = self.hold(&kept.user, vnode, &left).await
                {
                    tracing::info!(fid = %vnode.fid(), %error, "the lock was not released; it runs out");
                }
                *server = (!is_unused).then(|| ServerLock {
                    what: ServerLockKind::Ranges(left),
                    ..kept
                });
            }
        }
    }

    /// Rules 2 and 3: extends all locks. Called every `EXTEND_TIME`, with the time. Volumes are
    /// handled in parallel, and the files of a volume one after the other. So a silent server costs
    /// no locks on others.
    pub async fn extend_locks(self: &Arc<Self>, now: AfsTime) {
        let mut volumes = HashMap::<_, Vec<_>>::new();
        for vnode in self.locked.lock().values() {
            let volume = (vnode.key().0, vnode.key().1.volume);
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
        // Ranges have an owner, so they may be sent again at any time.
        let is_ours = matches!(kept.what, ServerLockKind::Ranges(_));
        if is_ours || !kept.is_over(now) {
            match self.call_extend(&kept, vnode).await {
                Ok(()) => {
                    *server = Some(ServerLock { at: now, ..kept });
                    return;
                }
                // A server that does not answer may still have it.
                Err(error) if error.is_unreachable() => {
                    tracing::info!(fid = %vnode.fid(), %error, "the lock was not extended");
                    return;
                }
                Err(_) => {}
            }
        }
        *server = Some(self.set_again(kept, vnode).await);
    }

    async fn set_again(&self, kept: ServerLock, vnode: &Arc<Vnode>) -> ServerLock {
        let set = match &kept.what {
            ServerLockKind::Whole(kind) => self.call_set(&kept.user, vnode, *kind).await,
            ServerLockKind::Ranges(_) => self.hold_again(&kept, vnode).await,
        };
        set.unwrap_or_else(|error| {
            tracing::warn!(fid = %vnode.fid(), %error, "the server no longer keeps a lock for us");
            kept.lost()
        })
    }

    /// Sends the ranges of this machine's programs again. If the volume is now on a server that
    /// locks only whole files, locks the whole file.
    async fn hold_again(&self, kept: &ServerLock, vnode: &Arc<Vnode>) -> Result<ServerLock> {
        let all = vnode.locks.all_with(None);
        if self.hold(&kept.user, vnode, &all).await? {
            let (what, user, at) = (
                ServerLockKind::Ranges(all),
                kept.user.clone(),
                self.env.now(),
            );
            return Ok(ServerLock { what, user, at });
        }
        let kind = vnode.locks.strongest().unwrap_or(LockKind::Read);
        self.call_set(&kept.user, vnode, kind).await
    }

    /// Whether a program of this machine has a lock on the file.
    pub(crate) fn is_locked(&self, vnode: &Vnode) -> bool {
        !vnode.locks.is_empty()
    }

    /// Releases all locks of a file. If the file is open, only with `open`: a program that has
    /// opened it since keeps its locks.
    pub(crate) async fn forget_locks(&self, vnode: &Arc<Vnode>, open: bool) {
        if vnode.locks.is_empty() {
            return;
        }
        let mut server = vnode.locks.server.lock().await;
        if !open && vnode.is_open() {
            return;
        }
        vnode.locks.held.lock().clear();
        self.release_unused(vnode, &mut server).await;
        vnode.locks.freed.notify_waiters();
    }

    async fn call_set(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        kind: LockKind,
    ) -> Result<ServerLock> {
        self.creates.flush_pending(vnode).await?;
        let at = self.env.now();
        let what = format!("a lock on {}", vnode.fid());
        let set = SetLock {
            fid: vnode.fid(),
            lock_type: kind.on_the_wire(),
        };
        let client = user.client();
        client.call_volume(vnode.volume(), &what, &set).await?;
        let (what, user) = (ServerLockKind::Whole(kind), user.clone());
        Ok(ServerLock { what, user, at })
    }

    async fn call_extend(&self, kept: &ServerLock, vnode: &Arc<Vnode>) -> Result<()> {
        if let ServerLockKind::Ranges(_) = kept.what {
            let all = vnode.locks.all_with(None);
            return match self.hold(&kept.user, vnode, &all).await? {
                true => Ok(()),
                false => Err(conflict(vnode)),
            };
        }
        let what = format!("a lock on {}", vnode.fid());
        let extend = ExtendLock { fid: vnode.fid() };
        let client = kept.user.client();
        client.call_volume(vnode.volume(), &what, &extend).await?;
        Ok(())
    }

    async fn call_release(&self, kept: &ServerLock, vnode: &Arc<Vnode>) {
        if kept.is_over(self.env.now()) {
            return;
        }
        let what = format!("a lock on {}", vnode.fid());
        let release = ReleaseLock { fid: vnode.fid() };
        let client = kept.user.client();
        if let Err(error) = client.call_volume(vnode.volume(), &what, &release).await {
            tracing::info!(fid = %vnode.fid(), %error, "the lock was not released; it runs out");
        }
    }
}

/// Returns the number of other clients' locks, negative for a write lock. `count` is the number in
/// a status, which includes ours.
fn others(count: i32, ours: Option<LockKind>) -> i32 {
    match ours {
        None => count,
        Some(LockKind::Read) => count.saturating_sub(1),
        Some(LockKind::Write) => 0,
    }
}

fn conflict(vnode: &Vnode) -> cellar_client::error::Error {
    let what = format!("a lock on {}", vnode.fid());
    refused(what, AbortCode::from_errno(EAGAIN))
}

#[cfg(test)]
mod tests {
    use super::*;

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
