//! Storing: what programs wrote goes to the server.
//!
//! 1. One store of a file at a time, in calls of at most [`STORE_BYTES`] (more to a server that is far, [`super::far`]), or at its devices ([`super::direct`]);
//!    bytes may be written meanwhile.
//! 2. On close and `fsync`, whoever asked hears how it went; `close` need not wait for all of it
//!    ([`super::behind`]). Beyond [`BACKGROUND_BYTES`] of one file the store begins while the program still writes.
//! 3. What failed stays dirty and is tried again every [`RETRY`]; in a cache directory it is then synced, so that
//!    a crash of the machine loses nothing either. Only when the file is gone there is nobody to take it.
//! 4. A program that has a file open and reads what the kernel keeps of it makes no request. When
//!    the promise is about to run out, of which no server tells, it is given up, and the kernel is
//!    told ([`super::coherence`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use cellar_cachestore::{Piece, STORE_BYTES, checksums};
use cellar_wire::rxafs::{AfsFetchStatus, AfsStoreStatus, StoreData64};
use tokio::time::Instant;

use super::Cache;
use super::attributes::without_attributes;
use super::behind::RETRY;
use super::coherence::Owed;
use super::files::LENGTH_MAX;
use super::locks::{EXTEND_TIME, RECLAIM_TIME};
use super::pending::SMALL;
use super::read::{in_chunks, local};
use super::user::User;
use super::vnode::Vnode;
use crate::course::Course;
use crate::errno::errno;
use crate::error::Result;
use crate::store::store;

/// Dirty bytes of a file from which on they are stored while it is still written.
const BACKGROUND_BYTES: u64 = 2 * STORE_BYTES;
/// How often it is looked for open files whose promise is about to run out; less than
/// [`TOLD_EARLIER`](super::coherence::TOLD_EARLIER).
const EXPIRY_TIME: Duration = Duration::from_secs(5);

/// A piece that is being stored.
struct UnderWay<'a> {
    cache: &'a Cache,
    vnode: &'a Arc<Vnode>,
    piece: Option<Piece>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if let Some(piece) = self.piece.take() {
            let owed = self.vnode.not_stored(&piece);
            self.cache.pay(self.vnode, owed);
        }
    }
}

impl Cache {
    /// Our own programs change a file. Waits where too much is dirty already.
    pub(crate) async fn changed<T>(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        mut change: impl FnMut(&mut super::Body) -> std::io::Result<T>,
    ) -> Result<T> {
        self.touch(vnode);
        let change = |body: &mut super::Body| {
            body.set_writer(user.uid());
            Ok((change(body)?, body.dirty_bytes()))
        };
        let (result, dirty) = self.change_with_room(vnode, change).await?;
        vnode.state.lock().writer = Some(user.clone());
        self.unstored.lock().insert(vnode.key, vnode.clone());
        if self.space.dirty.load(Ordering::Relaxed) > self.size() / 2 {
            self.store(vnode, false).await?;
            self.make_room(None);
        } else if dirty >= BACKGROUND_BYTES
            && vnode.storing.try_lock().is_ok()
            && let Some(cache) = self.me()
        {
            let vnode = vnode.clone();
            tokio::spawn(async move {
                if let Err(error) = cache.store_some(&vnode, STORE_BYTES, false).await {
                    tracing::info!(fid = %vnode.fid(), %error, "not stored yet");
                }
                cache.make_room(None);
            });
        }
        Ok(result)
    }

    /// Stores what is dirty.
    ///
    /// # Errors
    /// The server does not take it: it stays dirty, and is tried again.
    pub async fn store(&self, vnode: &Arc<Vnode>, durable: bool) -> Result<()> {
        self.store_some(vnode, 0, durable).await
    }

    /// Stores until at most `leave` bytes are dirty.
    pub(crate) async fn store_some(
        &self,
        vnode: &Arc<Vnode>,
        leave: u64,
        durable: bool,
    ) -> Result<()> {
        if !vnode.body.lock().is_changed() {
            return self.born(vnode).await;
        }
        let mut begun = false;
        while !self.store_next(vnode, leave, durable, begun).await? {
            begun = true;
        }
        Ok(())
    }

    /// Stores the next piece: whoever else waits to store has his turn between two. Answers whether that was all.
    async fn store_next(
        &self,
        vnode: &Arc<Vnode>,
        leave: u64,
        durable: bool,
        begun: bool,
    ) -> Result<bool> {
        let enough = || {
            let body = vnode.body.lock();
            // Who has stored a piece has to end it, too.
            (!begun && !body.is_changed()) || (leave > 0 && body.unstored_bytes() <= leave)
        };
        if enough() {
            return Ok(true);
        }
        let _alone = vnode.storing.lock().await;
        if enough() {
            return Ok(true);
        }
        let user = self.writer(vnode).await?;
        let left_over = vnode.body.lock().left_over().cloned();
        if let Some(left_over) = left_over {
            self.ask_about(&user, vnode, &left_over).await?;
        }
        let most = self.store_bytes(&user, vnode);
        let piece = vnode.body.lock().next_piece(most);
        if let Some(piece) = piece {
            // Whoever waits may be told to give up: the piece is dirty again then.
            let mut under_way = UnderWay {
                cache: self,
                vnode,
                piece: Some(piece.clone()),
            };
            let stored = self.store_piece(&user, vnode, &piece, durable).await;
            return match stored {
                Ok((status, sums)) => {
                    under_way.piece = None;
                    let owed = vnode.stored(user.id(), &piece, &status, &sums);
                    self.brim.stored(vnode);
                    let shown = Some(&status);
                    vnode.body.lock().attributes_stored(&piece.set, shown);
                    self.pay(vnode, owed);
                    Ok(false)
                }
                Err(error) => {
                    drop(under_way);
                    vnode.state.lock().failed = Some(errno(&error));
                    self.brim.failed(vnode, &error);
                    self.note_failure(vnode, &error);
                    Err(error)
                }
            };
        }
        if self.store_attributes(&user, vnode).await? {
            return Ok(false);
        }
        Ok(self.settled(vnode))
    }

    /// A file that has nothing to be stored any more is no longer among those that do. Answers whether it is such a one.
    pub(crate) fn settled(&self, vnode: &Arc<Vnode>) -> bool {
        let mut unstored = self.unstored.lock();
        let is_changed = vnode.body.lock().is_changed();
        if !is_changed {
            unstored.remove(&vnode.key);
        }
        drop(unstored);
        vnode.rest();
        !is_changed
    }

    async fn store_piece(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        piece: &Piece,
        durable: bool,
    ) -> Result<(AfsFetchStatus, Vec<(u64, u64, u32)>)> {
        let bytes = vnode
            .body
            .lock()
            .read(piece.start, piece.end)
            .map_err(|cause| local(vnode, cause))?;
        let sums = match self.index {
            Some(_) => checksums(piece.start, &bytes),
            None => Vec::new(),
        };
        let mut arguments = StoreData64 {
            fid: vnode.fid(),
            in_status: AfsStoreStatus {
                client_mod_time: piece.modified,
                fsync: durable,
                ..piece.set
            },
            position: piece.start,
            length: piece.end - piece.start,
            file_length: match piece.cuts() {
                // What others have put behind it stays.
                false if vnode.shared.load(Ordering::Acquire) => LENGTH_MAX,
                _ => piece.file_length,
            },
        };
        if self.is_pending(vnode) {
            let whole = piece.start == 0 && piece.end == piece.file_length && !piece.cuts();
            if whole && piece.end > 0 && piece.end <= SMALL {
                let hurry = !vnode.unhurried.load(Ordering::Acquire);
                let made = self.born_with(vnode, &bytes, &arguments.in_status, hurry);
                if let Some(status) = made.await? {
                    return Ok((status, sums));
                }
            }
            self.born(vnode).await?;
            // It may have been made under another number.
            arguments.fid = vnode.fid();
        }
        let chunks = in_chunks(bytes);
        if let Some(status) = self.store_directly(user, vnode, piece, &chunks).await? {
            return Ok((status, sums));
        }
        let mut sent = self.send_piece(user, vnode, &arguments, &chunks).await;
        if let Err(error) = &sent
            && let Some(arguments) = without_attributes(&arguments, error)
        {
            let again = self.send_piece(user, vnode, &arguments, &chunks).await;
            if again.is_ok() {
                self.attributes_refused(vnode, &piece.set, error);
                sent = again;
            }
        }
        Ok((sent?, sums))
    }

    async fn send_piece(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        arguments: &StoreData64,
        chunks: &[Bytes],
    ) -> Result<AfsFetchStatus> {
        let what = format!("storing {}", vnode.fid());
        let mut course = Course::start(user.client(), &vnode.volume).await?;
        let reply = store(&mut course, &vnode.unanswered, arguments, chunks, &what).await?;
        let stored = &self.counts.stored;
        stored.fetch_add(arguments.length, Ordering::Relaxed);
        Ok(reply.status)
    }

    /// Makes dirty bytes survive a crash of this machine, where they are in a directory.
    pub(crate) async fn sync(&self, vnode: &Arc<Vnode>) {
        let to_sync = vnode.body.lock().unsynced();
        let (file, index, changes) = match to_sync {
            Ok(Some(to_sync)) => to_sync,
            Ok(None) => return,
            Err(cause) => return tracing::warn!(%cause, "the cache cannot be synced"),
        };
        let both = move || file.sync_data().and_then(|()| index.sync());
        match tokio::task::spawn_blocking(both).await {
            Ok(Ok(())) => vnode.body.lock().synced(changes),
            Ok(Err(cause)) => tracing::warn!(%cause, "the cache cannot be synced"),
            Err(_panicked) => {}
        }
    }

    /// Files with bytes that the server does not have, and why the last store failed, if one did (an errno).
    pub fn unstored(&self) -> Vec<(Arc<Vnode>, Option<i32>)> {
        let all: Vec<_> = self.unstored.lock().values().cloned().collect();
        all.into_iter()
            .filter(|vnode| vnode.body.lock().is_changed())
            .map(|vnode| {
                let failed = vnode.state.lock().failed;
                (vnode, failed)
            })
            .collect()
    }

    /// What has to be done all the time, for as long as the cache lives. To be run once, beside everything
    /// else.
    pub async fn keep(self: Arc<Self>) {
        let cache = Arc::downgrade(&self);
        let expiring = async move {
            loop {
                tokio::time::sleep(EXPIRY_TIME).await;
                let Some(cache) = cache.upgrade() else {
                    return;
                };
                cache.tell_expired(Instant::now());
            }
        };
        let cache = Arc::downgrade(&self);
        let extending = async move {
            loop {
                let Some(lost) = cache.upgrade().map(|cache| cache.locks_lost.clone()) else {
                    return;
                };
                let _either = tokio::time::timeout(EXTEND_TIME, lost.notified()).await;
                let Some(cache) = cache.upgrade() else {
                    return;
                };
                cache.extend_locks(cache.now()).await;
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
                cache.take_up().await;
            }
        };
        let alive = super::alive::keep(Arc::downgrade(&self));
        let telling = Self::keep_telling(Arc::downgrade(&self));
        let removing = Self::keep_removing(Arc::downgrade(&self));
        tokio::join!(
            self.keep_storing(),
            taking_up,
            expiring,
            extending,
            alive,
            telling,
            removing
        );
    }

    /// Rule 4: of open files whose promise is to be given up by `now`, the kernel is told.
    pub fn tell_expired(&self, now: Instant) {
        let owed: Vec<_> = {
            let all = self.vnodes.lock();
            let owed = all.values().map(|vnode| (vnode, vnode.ran_out(now)));
            let owed = owed.filter(|(_, owed)| *owed != Owed::NOTHING);
            owed.map(|(vnode, owed)| (vnode.clone(), owed)).collect()
        };
        for (vnode, owed) in owed {
            self.pay(&vnode, owed);
        }
    }
}
