//! Write-back: stores that no program waits for. Their bytes were left by `close`, have been dirty
//! in an open file for long, or could not be stored before.
//!
//! 1. A file is in the queue at most once. It is stored like any other file, one store at a time.
//!    The queue has [`WAITING_MAX`] places. When it is full, `close` waits for its store, as
//!    without write-back.
//! 2. At most [`STORES_MAX`] files are stored at once, [`PER_SERVER_MAX`] of them at one server. So
//!    a silent server delays only its own files.
//! 3. If the last store of a file failed, `close` waits for the next one and returns its result.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cellar_wire::ids::VolumeId;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use crate::creates::SMALL;
use crate::request::RETRY;
use crate::vnode::Vnode;
use crate::write_back::WriteBack;
use crate::write_back::attributes::is_stored_now;
use cellar_client::error::{Error, Result};

/// The most files in the queue.
const WAITING_MAX: usize = 4_096;
/// The most files that are stored at once.
const STORES_MAX: usize = 16;
/// The most of them at one server.
const PER_SERVER_MAX: usize = 5;
/// The most servers that are remembered for rule 2.
const SERVERS_MAX: usize = 1_024;
/// How long dirty bytes of an open file wait before they are stored.
const AGE: Duration = Duration::from_secs(30);

/// The server of a file, or its volume if the server is not known without a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Site {
    Server(IpAddr),
    Volume(u32, VolumeId),
}

/// The queue.
#[derive(Debug)]
pub(crate) struct StoreQueue {
    places: Arc<Semaphore>,
    at_once: Arc<Semaphore>,
    servers: Mutex<HashMap<Site, Arc<Semaphore>>>,
}

impl Default for StoreQueue {
    fn default() -> Self {
        Self {
            places: Arc::new(Semaphore::new(WAITING_MAX)),
            at_once: Arc::new(Semaphore::new(STORES_MAX)),
            servers: Mutex::default(),
        }
    }
}

impl StoreQueue {
    fn of(&self, site: Site) -> Arc<Semaphore> {
        let mut servers = self.servers.lock();
        if servers.len() >= SERVERS_MAX {
            servers.retain(|_, turns| Arc::strong_count(turns) > 1);
        }
        let turns = servers.entry(site);
        turns
            .or_insert_with(|| Arc::new(Semaphore::new(PER_SERVER_MAX)))
            .clone()
    }

    /// Waits until rule 2 allows a store at this server. The store is counted while the result
    /// lives. `None`: never.
    async fn turn(&self, site: Site) -> Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)> {
        // In this order: a task that waits for its server does not delay stores at other servers.
        let of_server = self.of(site).acquire_owned().await.ok()?;
        let of_all = self.at_once.clone().acquire_owned().await.ok()?;
        Some((of_server, of_all))
    }
}

impl WriteBack {
    /// The number of bytes of a file that may stay dirty at close. `None`: the file has no value of
    /// its own.
    pub fn store_behind_of(&self, vnode: &Vnode) -> Option<u64> {
        vnode.state.lock().stores.store_behind()
    }

    /// Sets that number for one file, for as long as the cache knows it. `None`: the value for all
    /// files.
    pub fn set_store_behind_of(&self, vnode: &Vnode, bytes: Option<u64>) {
        vnode.state.lock().stores.set_store_behind(bytes);
    }

    /// Does the store of `close(2)`: stores until at most the allowed number of bytes is dirty, and
    /// leaves these to write-back.
    ///
    /// # Errors
    /// The server refuses the store. The bytes stay dirty, and the store is retried.
    pub(crate) async fn store_at_close(&self, vnode: &Arc<Vnode>) -> Result<()> {
        let (own, failed) = {
            let stores = &vnode.state.lock().stores;
            (stores.store_behind(), stores.failed().is_some())
        };
        let may_wait = own.unwrap_or_else(|| self.env.store_behind());
        if may_wait == 0 || failed {
            return self.store(vnode, false).await;
        }
        if !vnode.body.lock().is_changed() {
            self.creates.record_pending(vnode);
            return Ok(());
        }
        self.store_some(vnode, may_wait, false).await?;
        if vnode.body.lock().is_changed() && !self.store_later(vnode) {
            return self.store(vnode, false).await;
        }
        Ok(())
    }

    /// Puts a file into the queue. Returns `false` if the queue is full.
    pub(crate) fn store_later(&self, vnode: &Arc<Vnode>) -> bool {
        let Some(this) = self.me() else {
            return false;
        };
        if !vnode.store_turn.enter_queue() {
            return true;
        }
        let Ok(place) = self.queue.places.clone().try_acquire_owned() else {
            vnode.store_turn.leave_queue();
            return false;
        };
        let vnode = vnode.clone();
        tokio::spawn(async move {
            let _place = place;
            let stored = this.store_in_turn(&vnode).await;
            if let Some(error) = stored.err().filter(|_| this.creates.is_retried(&vnode)) {
                tracing::warn!(fid = %vnode.fid(), %error, "not stored yet; the store is retried");
                this.sync(&vnode).await;
            }
            this.reads.make_room(None);
        });
        true
    }

    /// Stores a file when rule 2 allows it.
    pub(crate) async fn store_in_turn(&self, vnode: &Arc<Vnode>) -> Result<()> {
        // A small pending create shares its call with others, so it does not count.
        let with_others = self.creates.is_pending(vnode) && vnode.body.lock().length() <= SMALL;
        let turn = match with_others {
            true => None,
            false => self.queue.turn(self.site(vnode)).await,
        };
        // Bytes that are written from now on need a new place in the queue.
        vnode.store_turn.leave_queue();
        vnode.store_turn.set_background(true);
        let stored = self.store(vnode, false).await;
        vnode.store_turn.set_background(false);
        drop(turn);
        stored
    }

    /// Stores many files as rule 2 allows. Returns those that could not be stored. For each server
    /// at most as many tasks are started as stores are allowed, so that thousands of files do not
    /// need thousands of tasks.
    pub(crate) async fn store_all(&self, vnodes: Vec<Arc<Vnode>>) -> Vec<(Arc<Vnode>, Error)> {
        let mut sites = HashMap::<_, Vec<_>>::new();
        for vnode in vnodes.into_iter().rev() {
            sites.entry(self.site(&vnode)).or_default().push(vnode);
        }
        let mut stores = JoinSet::new();
        for vnodes in sites.into_values() {
            let stored_at_once = PER_SERVER_MAX.min(vnodes.len());
            let left = Arc::new(Mutex::new(vnodes));
            for _ in 0..stored_at_once {
                let (Some(this), left) = (self.me(), left.clone()) else {
                    continue;
                };
                stores.spawn(async move {
                    let mut failed = Vec::new();
                    let next = || left.lock().pop();
                    while let Some(vnode) = next() {
                        let stored = this.store_in_turn(&vnode).await;
                        if let Some(error) =
                            stored.err().filter(|_| this.creates.must_report(&vnode))
                        {
                            failed.push((vnode, error));
                        }
                    }
                    failed
                });
            }
        }
        let mut failed = Vec::new();
        while let Some(done) = stores.join_next().await {
            failed.extend(done.unwrap_or_default());
        }
        failed
    }

    fn site(&self, vnode: &Vnode) -> Site {
        let volume = vnode.volume();
        let writer = vnode.state.lock().stores.writer().cloned();
        let user = writer.map_or_else(|| self.env.anonymous().ok(), Some);
        let family = user.and_then(|user| user.client().locations().known(volume));
        let servers = family.map(|family| family.servers(volume.kind));
        let first = servers.and_then(|servers| servers.first()?.addresses.first().copied());
        first.map_or(Site::Volume(vnode.key().0, volume.id), Site::Server)
    }

    /// Puts files into the queue that have waited long enough, were closed, or failed. Runs for the
    /// life of the cache.
    pub(crate) async fn keep_storing(this: Weak<Self>) {
        loop {
            tokio::time::sleep(RETRY).await;
            let Some(this) = this.upgrade() else {
                return;
            };
            this.store_old();
        }
    }

    /// Puts the files that are due into the queue. [`Cache::keep`](crate::Cache::keep) calls
    /// it regularly.
    pub fn store_old(&self) {
        let old = self.env.now().0.saturating_sub(AGE.as_secs() as u32);
        for (vnode, failed) in self.unstored() {
            let since = vnode.unstored_since();
            let closed = !vnode.is_open();
            let is_due = failed.is_some() || closed || since.is_some_and(|time| time.0 <= old);
            // A file that is being stored needs no place, however long the store takes. If the
            // queue is full, the rest waits for the next round.
            if is_due && !is_stored_now(&vnode) && !self.store_later(&vnode) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_silent_server_holds_up_its_own_files_only() {
        let queue = Arc::new(StoreQueue::default());
        let site = |last| Site::Server(IpAddr::from([192, 0, 2, last]));
        let mut stuck = JoinSet::new();
        for _ in 0..4 * STORES_MAX {
            let queue = queue.clone();
            stuck.spawn(async move {
                let _turn = queue.turn(site(1)).await;
                std::future::pending::<()>().await;
            });
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        let mut others = Vec::new();
        for _ in 0..PER_SERVER_MAX {
            let turn = tokio::time::timeout(Duration::from_secs(30), queue.turn(site(2)));
            others.push(turn.await.expect("no wait"));
        }
        assert_eq!(
            queue.at_once.available_permits(),
            STORES_MAX - 2 * PER_SERVER_MAX
        );
        // A place that becomes free goes to the next task.
        let next = queue.turn(site(2));
        tokio::pin!(next);
        let early = tokio::time::timeout(Duration::from_millis(50), &mut next).await;
        assert!(early.is_err());
        others.pop();
        assert!(next.await.is_some());
    }
}
