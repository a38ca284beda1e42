//! One writer at a time of each file in objects.
//!
//! A store of such a file writes new versions of objects while others may read the old ones, and counts
//! only if nobody else's store came between. Two at the same time would undo each other, so they
//! take turns: whoever stores through this server, or was given leave to store directly.

use std::collections::HashMap;
use std::sync::Arc;

use cellar_wire::ids::Fid;
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
use tokio::time::timeout;

use crate::limits::OBJECT_TURN_PATIENCE;

/// The files that somebody writes, or waits to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns(Arc<Mutex<HashMap<Fid, Arc<tokio::sync::Mutex<()>>>>>);

/// Leave to write a file; ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Turns,
    fid: Fid,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    /// Waits for the turn; `None` if the others take too long.
    pub(crate) async fn wait(&self, fid: Fid) -> Option<Turn> {
        let waiting = Waiting::new(self, fid);
        let lock = waiting.lock.clone();
        let guard = timeout(OBJECT_TURN_PATIENCE, lock.lock_owned()).await.ok();
        drop(waiting);
        guard.map(|guard| self.turn(fid, guard))
    }

    /// The turn, if nobody has it.
    pub(crate) fn take(&self, fid: Fid) -> Option<Turn> {
        let lock = self.0.lock().entry(fid).or_default().clone();
        let guard = lock.try_lock_owned().ok();
        guard.map(|guard| self.turn(fid, guard))
    }

    fn turn(&self, fid: Fid, guard: OwnedMutexGuard<()>) -> Turn {
        Turn {
            turns: self.clone(),
            fid,
            guard: Some(guard),
        }
    }

    /// Forgets a file that nobody writes and nobody waits for.
    fn tidy(&self, fid: Fid) {
        let mut files = self.0.lock();
        if files
            .get(&fid)
            .is_some_and(|lock| Arc::strong_count(lock) == 1)
        {
            files.remove(&fid);
        }
    }

    /// Files that somebody writes, or waits to.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().len()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        drop(self.guard.take());
        self.turns.tidy(self.fid);
    }
}

/// Somebody who waits, and may give up.
struct Waiting<'a> {
    turns: &'a Turns,
    fid: Fid,
    lock: Arc<tokio::sync::Mutex<()>>,
}

impl<'a> Waiting<'a> {
    fn new(turns: &'a Turns, fid: Fid) -> Self {
        let lock = turns.0.lock().entry(fid).or_default().clone();
        Self { turns, fid, lock }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // Our own share goes first.
        self.lock = Arc::default();
        self.turns.tidy(self.fid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_at_a_time_and_nothing_is_left() {
        let turns = Turns::default();
        let (one, other) = (Fid::new(1, 2, 3), Fid::new(1, 4, 3));
        let first = turns.wait(one).await.unwrap();
        let _other = turns.take(other).unwrap();
        assert!(turns.take(one).is_none());
        assert!(turns.wait(one).await.is_none(), "waits no longer than that");
        let waiter = tokio::spawn({
            let turns = turns.clone();
            async move { turns.wait(one).await }
        });
        tokio::task::yield_now().await;
        drop(first);
        let second = waiter.await.unwrap().unwrap();
        assert_eq!(turns.count(), 2);
        drop((second, _other));
        assert_eq!(turns.count(), 0);
    }
}
