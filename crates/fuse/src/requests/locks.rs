//! Requests about locks.

use cellar_cachemanager::{Lock, LockOwner};

use crate::caller::Caller;

use super::{Answer, Requests, code};

impl Requests {
    /// Sets a lock. If the thread is `waiting`, waits until there is no conflict.
    pub(crate) async fn set_lock(
        &self,
        handle: u64,
        lock: Lock,
        waiting: Option<&Caller>,
    ) -> Answer<()> {
        let handle = self.handle(handle)?;
        let (user, vnode) = (handle.user(), handle.vnode());
        let set = match waiting {
            Some(caller) => {
                let waited =
                    self.cache
                        .locks()
                        .wait_for_lock(user, vnode, lock, caller.interrupted());
                waited.await
            }
            None => self.cache.locks().set_lock(user, vnode, lock).await,
        };
        set.map_err(code)
    }

    /// Returns the lock that conflicts with a lock.
    pub(crate) async fn test_lock(&self, handle: u64, lock: Lock) -> Answer<Option<Lock>> {
        let handle = self.handle(handle)?;
        let test = self
            .cache
            .locks()
            .test_lock(handle.user(), handle.vnode(), lock);
        test.await.map_err(code)
    }

    /// Releases an owner's locks in a range.
    pub(crate) async fn unlock(
        &self,
        handle: u64,
        owner: LockOwner,
        range: (u64, u64),
    ) -> Answer<()> {
        let handle = self.handle(handle)?;
        let (first, last) = range;
        self.cache
            .locks()
            .unlock(handle.vnode(), owner, first, last)
            .await;
        Ok(())
    }

    /// A process has closed a descriptor of a file: its fcntl(2) locks on the file are released.
    /// Source: fcntl(2).
    pub(crate) async fn descriptor_closed(&self, handle: u64, owner: u64) {
        let all = (0, u64::MAX);
        let _closed = self.unlock(handle, LockOwner::record(owner), all).await;
    }
}
