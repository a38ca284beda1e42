//! Serialises the writers of each file in objects.
//!
//! A store of such a file writes new versions of objects while others may read the old ones. It is
//! effective only if no other store came in between. Two at the same time would undo each other, so
//! each takes the store lock of the file. This covers stores through this server and direct stores
//! that it permitted.

use std::collections::HashMap;
use std::sync::Arc;

use cellar_wire::ids::Fid;
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
use tokio::time::timeout;

use super::limits::STORE_LOCK_PATIENCE;

/// The files with a writer or a waiting writer.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoreLocks(Arc<Mutex<HashMap<Fid, Arc<tokio::sync::Mutex<()>>>>>);

/// Permission to write a file. Ends when it is dropped.
#[derive(Debug)]
pub struct StoreLock {
    store_locks: StoreLocks,
    fid: Fid,
    guard: Option<OwnedMutexGuard<()>>,
}

impl StoreLocks {
    /// Waits for the lock. `None` if the other writers take too long.
    pub(crate) async fn wait(&self, fid: Fid) -> Option<StoreLock> {
        let waiting = Waiter::new(self, fid);
        let lock = waiting.lock.clone();
        let guard = timeout(STORE_LOCK_PATIENCE, lock.lock_owned()).await.ok();
        drop(waiting);
        guard.map(|guard| self.store_lock(fid, guard))
    }

    fn store_lock(&self, fid: Fid, guard: OwnedMutexGuard<()>) -> StoreLock {
        StoreLock {
            store_locks: self.clone(),
            fid,
            guard: Some(guard),
        }
    }

    /// Forgets a file without a writer and without waiting writers.
    fn tidy(&self, fid: Fid) {
        let mut files = self.0.lock();
        if files
            .get(&fid)
            .is_some_and(|lock| Arc::strong_count(lock) == 1)
        {
            files.remove(&fid);
        }
    }

    /// The number of files with a writer or a waiting writer.
    #[cfg(test)]
    fn count(&self) -> usize {
        self.0.lock().len()
    }
}

impl Drop for StoreLock {
    fn drop(&mut self) {
        drop(self.guard.take());
        self.store_locks.tidy(self.fid);
    }
}

/// A waiting writer, which may give up.
struct Waiter<'a> {
    store_locks: &'a StoreLocks,
    fid: Fid,
    lock: Arc<tokio::sync::Mutex<()>>,
}

impl<'a> Waiter<'a> {
    fn new(store_locks: &'a StoreLocks, fid: Fid) -> Self {
        let lock = store_locks.0.lock().entry(fid).or_default().clone();
        Self {
            store_locks,
            fid,
            lock,
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        // Drops its own reference first.
        self.lock = Arc::default();
        self.store_locks.tidy(self.fid);
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use super::*;

    async fn one_at_a_time(store_locks: StoreLocks) {
        let (one, other) = (Fid::new(1, 2, 3), Fid::new(1, 4, 3));
        let first = store_locks.wait(one).await.unwrap();
        let second = store_locks.wait(other).await.unwrap();
        let mut waiter = pin!(store_locks.wait(one));
        let early = poll_fn(|cx| Poll::Ready(waiter.as_mut().poll(cx).is_ready()));
        assert!(!early.await, "another writer has the turn");
        drop(first);
        let third = waiter.await.unwrap();
        assert_eq!(store_locks.count(), 2);
        drop((second, third));
        assert_eq!(store_locks.count(), 0);
    }

    #[test]
    fn one_at_a_time_and_nothing_is_left() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        runtime.block_on(one_at_a_time(StoreLocks::default()));
    }
}
