//! Stores the bytes that programs wrote at the server.
//!
//! 1. A file has one store at a time. It consists of calls of at most [`STORE_BYTES`] (more to a
//!    far server, `reads/long_path.rs`), or goes directly to the devices (`statuses/direct.rs`).
//!    Programs may write during a store.
//! 2. `close` and `fsync` return the result of the store. `close` need not wait for all of it
//!    (`write_back/queue.rs`). When one file has more than [`BACKGROUND_BYTES`] dirty bytes, a
//!    store begins while the program still writes.
//! 3. After a failed store the bytes stay dirty, and the store is retried every `RETRY`. In a cache
//!    directory they are then synced, so that even a crash of the machine loses nothing. Only if
//!    the file is gone is there no server that can take them.
//! 4. A program that reads an open file from the kernel's cache makes no request. No server reports
//!    that a promise runs out. So the cache gives the promise up shortly before, and sends a notice
//!    to the kernel (`promises/coherence.rs`).

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use cellar_cachestore::{Body, Piece, STORE_BYTES, checksums};
use cellar_wire::rxafs::{AfsFetchStatus, AfsStoreStatus, StoreData64};

use crate::creates::SMALL;
use crate::files::LENGTH_MAX;
use crate::promises::Promises;
use crate::reads::is_full;
use crate::reads::{in_chunks, local};
use crate::user::User;
use crate::vnode::Vnode;
use crate::write_back::WriteBack;
use crate::write_back::attributes::without_attributes;
use cellar_client::errno::errno;
use cellar_client::error::Result;
use cellar_client::operation::VolumeOperation;
use cellar_client::store::store;

/// The number of dirty bytes of a file at which a store begins while the file is still being
/// written.
const BACKGROUND_BYTES: u64 = 2 * STORE_BYTES;

/// A piece that is being stored. A drop makes it dirty again.
struct UnderWay<'a> {
    promises: &'a Promises,
    vnode: &'a Arc<Vnode>,
    piece: Option<Piece>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if let Some(piece) = self.piece.take() {
            let owed = self.vnode.not_stored(&piece);
            self.promises.send_notices(self.vnode, owed);
        }
    }
}

impl WriteBack {
    /// The same for a change by a program. It may wait for the store of earlier changes.
    pub(crate) async fn change_with_room<T>(
        &self,
        vnode: &Arc<Vnode>,
        mut put: impl FnMut(&mut Body) -> io::Result<T>,
    ) -> Result<T> {
        let done = self.reads.with_room(vnode, 0..0, &mut put);
        match done {
            Err(error) if is_full(&error) && vnode.body.lock().dirty_bytes() > 0 => {
                self.store(vnode, false).await?;
                self.reads.disk_may_have_room();
                self.reads.with_room(vnode, 0..0, &mut put)
            }
            other => other,
        }
    }

    /// Applies a change of a file by a program of this machine. Stores first if too many bytes are
    /// dirty.
    pub(crate) async fn changed<T>(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        mut change: impl FnMut(&mut cellar_cachestore::Body) -> std::io::Result<T>,
    ) -> Result<T> {
        self.vnodes.touch(vnode);
        let change = |body: &mut cellar_cachestore::Body| {
            body.set_writer(user.uid());
            Ok((change(body)?, body.dirty_bytes()))
        };
        let (result, dirty) = self.change_with_room(vnode, change).await?;
        vnode.state.lock().stores.set_writer(user);
        self.vnodes.note_unstored(vnode);
        if self.env.space.dirty.load(Ordering::Relaxed) > self.env.size() / 2 {
            self.store(vnode, false).await?;
            self.reads.make_room(None);
        } else if dirty >= BACKGROUND_BYTES
            && !vnode.store_turn.is_taken()
            && let Some(this) = self.me()
        {
            let vnode = vnode.clone();
            tokio::spawn(async move {
                if let Err(error) = this.store_some(&vnode, STORE_BYTES, false).await {
                    tracing::info!(fid = %vnode.fid(), %error, "not stored yet");
                }
                this.reads.make_room(None);
            });
        }
        Ok(result)
    }

    /// Stores all dirty bytes and attributes.
    ///
    /// # Errors
    /// The server refuses the store. The bytes stay dirty, and the store is retried.
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
            return self.creates.flush_create(vnode).await;
        }
        let mut begun = false;
        while !self.store_next(vnode, leave, durable, begun).await? {
            begun = true;
        }
        Ok(())
    }

    /// Stores the next piece. Other tasks that wait for a store of this file get their turn between
    /// two pieces. Returns whether nothing is left.
    async fn store_next(
        &self,
        vnode: &Arc<Vnode>,
        leave: u64,
        durable: bool,
        begun: bool,
    ) -> Result<bool> {
        let enough = || {
            let body = vnode.body.lock();
            // A task that has stored a piece must also finish the store.
            (!begun && !body.is_changed()) || (leave > 0 && body.unstored_bytes() <= leave)
        };
        if enough() {
            return Ok(true);
        }
        let _alone = vnode.store_turn.lock().await;
        if enough() {
            return Ok(true);
        }
        let user = self.vnodes.writer(vnode).await?;
        let left_over = vnode.body.lock().recovered().cloned();
        if let Some(left_over) = left_over {
            self.check_recovered(&user, vnode, &left_over).await?;
        }
        let most = self.reads.store_bytes(&user, vnode);
        let piece = vnode.body.lock().next_piece(most);
        if let Some(piece) = piece {
            // The waiting task may be cancelled. Then the drop makes the piece dirty again.
            let mut under_way = UnderWay {
                promises: &self.promises,
                vnode,
                piece: Some(piece.clone()),
            };
            let stored = self.store_piece(&user, vnode, &piece, durable).await;
            return match stored {
                Ok((status, sums)) => {
                    under_way.piece = None;
                    let owed = vnode.stored(user.id(), &piece, &status, &sums);
                    self.failed_volumes.stored(vnode);
                    let shown = Some(&status);
                    vnode.body.lock().attributes_stored(&piece.set, shown);
                    self.promises.send_notices(vnode, owed);
                    Ok(false)
                }
                Err(error) => {
                    drop(under_way);
                    let errno = Some(errno(&error));
                    vnode.state.lock().stores.set_failed(errno);
                    self.failed_volumes.failed(vnode, &error);
                    self.creates.note_failure(vnode, &error);
                    Err(error)
                }
            };
        }
        if self.store_attributes(&user, vnode).await? {
            return Ok(false);
        }
        Ok(self.finish_store(vnode))
    }

    /// Removes a file without dirty bytes or attributes from the table of unstored files. Returns
    /// whether it is clean.
    pub(crate) fn finish_store(&self, vnode: &Arc<Vnode>) -> bool {
        let is_clean = self.vnodes.forget_unstored_if_clean(vnode);
        vnode.rest();
        is_clean
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
        let sums = match self.vnodes.index() {
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
            file_length: match piece.truncates() {
                // Bytes that other clients appended stay.
                false if vnode.store_turn.is_shared() => LENGTH_MAX,
                _ => piece.file_length,
            },
        };
        if self.creates.is_pending(vnode) {
            let whole = piece.start == 0 && piece.end == piece.file_length && !piece.truncates();
            if whole && piece.end > 0 && piece.end <= SMALL {
                let hurry = !vnode.store_turn.is_background();
                let made = self
                    .creates
                    .create_with(vnode, &bytes, &arguments.in_status, hurry);
                if let Some(status) = made.await? {
                    return Ok((status, sums));
                }
            }
            self.creates.flush_create(vnode).await?;
            // The server may have created it under another number.
            arguments.fid = vnode.fid();
        }
        let chunks = in_chunks(bytes);
        if let Some(status) = self
            .statuses
            .store_directly(user, vnode, piece, &chunks)
            .await?
        {
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
        let mut operation = VolumeOperation::start(user.client(), vnode.volume()).await?;
        let reply = store(
            &mut operation,
            vnode.store_turn.unanswered(),
            arguments,
            chunks,
            &what,
        )
        .await?;
        let stored = &self.env.counts.stored;
        stored.fetch_add(arguments.length, Ordering::Relaxed);
        Ok(reply.status)
    }

    /// Makes dirty bytes in a cache directory survive a crash of the machine.
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

    /// Returns the files with bytes that the server does not have. The second value is the error of
    /// the last store, if it failed (an errno).
    pub fn unstored(&self) -> Vec<(Arc<Vnode>, Option<i32>)> {
        let all = self.vnodes.unstored();
        all.into_iter()
            .filter(|vnode| vnode.body.lock().is_changed())
            .map(|vnode| {
                let failed = vnode.state.lock().stores.failed();
                (vnode, failed)
            })
            .collect()
    }
}
