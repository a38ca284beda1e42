//! The periodic work of a cache.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Cache;
use super::creates::Creates;
use super::file_locks::{EXTEND_TIME, RECLAIM_TIME};
use super::names::Names;
use super::request::RETRY;
use super::statuses::Statuses;
use super::write_back::WriteBack;

/// The interval of the checks for open files whose promise is about to run out. It is less than
/// [`NOTICE_EARLIER`](super::promises::kernel_state::NOTICE_EARLIER).
const EXPIRY_TIME: Duration = Duration::from_secs(5);

impl Cache {
    /// Runs the periodic work, for the life of the cache. The program calls it once, in a task of
    /// its own.
    pub async fn keep(self: Arc<Self>) {
        let cache = Arc::downgrade(&self);
        let expiring = async move {
            loop {
                tokio::time::sleep(EXPIRY_TIME).await;
                let Some(cache) = cache.upgrade() else {
                    return;
                };
                cache.promises.end_expired(Instant::now());
            }
        };
        let cache = Arc::downgrade(&self);
        let extending = async move {
            loop {
                let Some(lost) = cache.upgrade().map(|cache| cache.locks.lost()) else {
                    return;
                };
                let _either = tokio::time::timeout(EXTEND_TIME, lost.notified()).await;
                let Some(cache) = cache.upgrade() else {
                    return;
                };
                cache.locks.extend_locks(cache.env.now()).await;
                drop(cache);
                tokio::time::sleep(RECLAIM_TIME).await;
            }
        };
        let cache = Arc::downgrade(&self);
        let taking_up = async move {
            loop {
                tokio::time::sleep(RETRY).await;
                let Some(cache) = cache.upgrade() else {
                    return;
                };
                cache.write_back.recover().await;
            }
        };
        let storing = WriteBack::keep_storing(Arc::downgrade(&self.write_back));
        let alive = Statuses::keep_alive(Arc::downgrade(&self.statuses));
        let creating = Creates::keep_creating(Arc::downgrade(&self.creates));
        let removing = Names::keep_removing(Arc::downgrade(&self.names));
        drop(self);
        tokio::join!(
            storing, taking_up, expiring, extending, alive, creating, removing
        );
    }
}
