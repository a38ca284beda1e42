//! Reads of files: cached bytes come from the cache, others are fetched from the server in chunks.
//! Sequential reads are fetched ahead.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use cellar_cachestore::Body;
use cellar_wire::abort::AbortCode;
use cellar_wire::rxafs::AfsFetchStatus;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::environment::Environment;
use super::lock_order::{Ordered, TABLE};
use super::promises::Promises;
use super::request::refused;
use super::statuses::Statuses;
use super::user::User;
use super::vnode::{Attributes, Key, Vnode};
use super::vnode_table::VnodeTable;
use cellar_client::error::{Error, Result};

mod attributes_request;
mod full_disk;
mod long_path;
mod read_ahead;
pub(crate) mod reader;
mod renew;
mod size;

use attributes_request::AttributesRequest;
use full_disk::FullDisk;
pub(crate) use full_disk::is_full;
use long_path::AHEAD_FAR;
pub(crate) use renew::Renewals;

/// The bytes fetched with one call. Source: OpenAFS's default chunk.
pub(crate) const CHUNK: u64 = 1 << 20;
/// How often a read is repeated after other clients changed the file during it.
pub(crate) const TRIES: u32 = 16;

/// The position of one reader of a file, for read-ahead.
#[derive(Debug, Default)]
pub(crate) struct ReadPosition(Mutex<Ahead>);

#[derive(Clone, Copy, Debug, Default)]
struct Ahead {
    /// The position of the next read if the reads are sequential.
    next: u64,
    /// The number of chunks to fetch ahead.
    window: u64,
}

impl ReadPosition {
    /// Notes a read. Returns the number of chunks to fetch beyond it; 0 also if an earlier read
    /// returned them.
    fn read(&self, start: u64, end: u64) -> u64 {
        let mut ahead = self.0.lock();
        // The kernel's own read-ahead arrives in any order.
        let goes_on =
            start <= ahead.next.saturating_add(CHUNK) && end.saturating_add(CHUNK) >= ahead.next;
        if !goes_on {
            ahead.window = 0;
        }
        let says = goes_on && (end / CHUNK != ahead.next / CHUNK || ahead.window == 0);
        ahead.next = end;
        if !says {
            return 0;
        }
        ahead.window = (ahead.window * 2).clamp(1, AHEAD_FAR);
        // A read of the first bytes alone does not show a sequential reader.
        if start == 0 {
            ahead.window.min(1)
        } else {
            ahead.window
        }
    }
}

/// The lock that a task holds while it fetches a chunk.
type Turn = Arc<tokio::sync::Mutex<()>>;

/// The most concurrent fetches ahead of readers.
const PREFETCHES_MAX: usize = 64;

/// Reads of programs: attributes and bytes. See the head of the file.
pub struct Reads {
    pub(super) env: Arc<Environment>,
    pub(super) vnodes: Arc<VnodeTable>,
    pub(super) promises: Arc<Promises>,
    pub(super) statuses: Arc<Statuses>,
    full: FullDisk,
    /// Chunks that are being fetched, each with its lock.
    fetching: Ordered<TABLE, HashMap<(Key, u64), Turn>>,
    prefetches: Arc<Semaphore>,
    /// Limits the fetches of small files ahead of requests for them.
    ahead: Arc<Semaphore>,
    me: Weak<Self>,
}

/// A task that wants a chunk. The last one removes the chunk from the table.
struct ChunkTurn<'a> {
    reads: &'a Reads,
    key: (Key, u64),
    turn: Turn,
}

impl Drop for ChunkTurn<'_> {
    fn drop(&mut self) {
        let mut fetching = self.reads.fetching.lock();
        // One reference of the table and one of this task.
        if Arc::strong_count(&self.turn) <= 2 {
            fetching.remove(&self.key);
        }
    }
}

impl Reads {
    pub(super) fn new(statuses: &Arc<Statuses>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            env: statuses.env.clone(),
            vnodes: statuses.vnodes.clone(),
            promises: statuses.promises.clone(),
            statuses: statuses.clone(),
            full: FullDisk::default(),
            fetching: Ordered::default(),
            prefetches: Arc::new(Semaphore::new(PREFETCHES_MAX)),
            ahead: Arc::new(Semaphore::new(read_ahead::FETCHES_MAX)),
            me: me.clone(),
        })
    }

    /// A reference for background tasks.
    fn me(&self) -> Option<Arc<Self>> {
        self.me.upgrade()
    }

    /// Answers a request of the kernel for attributes. Waits for notices about the vnode.
    ///
    /// # Errors
    /// As [`Statuses::status`].
    pub async fn attributes(&self, user: &Arc<User>, vnode: &Arc<Vnode>) -> Result<Attributes> {
        let request = AttributesRequest::begin(self, vnode).await;
        let status = match self.statuses.status(user, vnode).await {
            Err(error) if error.code() == Some(AbortCode::VNOVNODE) => {
                let status = vnode.removed_directory().ok_or(error)?;
                let valid = std::time::Duration::ZERO;
                return Ok(Attributes { status, valid });
            }
            status => status?,
        };
        request.finish(user).await;
        Ok(Statuses::attributes_with(vnode, status))
    }

    /// Reads at most `length` bytes of a file from `start`. Returns fewer only at the end of the
    /// file.
    pub(crate) async fn read_file(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        course: &ReadPosition,
        start: u64,
        length: u64,
    ) -> Result<Vec<u8>> {
        self.vnodes.touch(vnode);
        for attempt in 0..TRIES {
            let status = self.statuses.status(user, vnode).await?;
            // Not earlier: a new version that this request finds out needs no notice. The notice
            // would make the kernel ignore the shorter length that the answer shows.
            if vnode.hold_contents() {
                self.lengthen_before_read(user, vnode).await;
            }
            if start == 0 && attempt == 0 {
                self.fetch_neighbours(user, vnode, &status);
            }
            let missing = {
                let mut body = vnode.body.lock();
                let end = start.saturating_add(length).min(body.length());
                if start >= end {
                    return Ok(Vec::new());
                }
                let missing = body.gaps(start, end);
                if missing.is_empty() {
                    let bytes = body.read(start, end).map_err(|cause| local(vnode, cause))?;
                    drop(body);
                    if attempt == 0 {
                        self.env.counts.reads.hit();
                    }
                    if start == 0 && vnode.read_ahead.take_ahead() {
                        self.env.counts.ahead_used.fetch_add(1, Ordering::Relaxed);
                    }
                    let ahead = course.read(start, end);
                    self.read_ahead(user, vnode, end, ahead);
                    return Ok(bytes);
                }
                missing
            };
            if attempt == 0 {
                self.env.counts.reads.missed();
            }
            if self.full.is_full_now() {
                return self.read_past(user, vnode, start, length).await;
            }
            let ahead = course.read(start, start + length);
            self.read_ahead(user, vnode, start + length, ahead);
            let mut chunks: Vec<u64> = missing
                .iter()
                .flat_map(|(from, to)| from / CHUNK..to.div_ceil(CHUNK))
                .collect();
            chunks.dedup();
            for chunk in chunks {
                let fetched = self.fetch_chunk(user, vnode, chunk, false).await;
                if fetched.as_ref().is_err_and(is_full) {
                    return self.read_past(user, vnode, start, length).await;
                }
                fetched?;
            }
            self.make_room(Some((vnode, start..start + length)));
        }
        Err(refused(
            format!("reading {}: it changed during each attempt", vnode.fid()),
            AbortCode::from_errno(11),
        ))
    }

    /// Notes that all of a small file was read at once from the cache.
    pub(crate) fn read_all(&self, user: &Arc<User>, vnode: &Arc<Vnode>, status: &AfsFetchStatus) {
        self.vnodes.touch(vnode);
        self.fetch_neighbours(user, vnode, status);
        self.env.counts.reads.hit();
        if vnode.read_ahead.take_ahead() {
            self.env.counts.ahead_used.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Fetches the missing bytes of a chunk, once for all tasks that want it at the same time.
    /// `ahead`: no program has read the file yet.
    pub(crate) async fn fetch_chunk(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        chunk: u64,
        ahead: bool,
    ) -> Result<()> {
        if ahead && self.full.is_full_now() {
            return Ok(());
        }
        let key = (vnode.key(), chunk);
        let turn = self.fetching.lock().entry(key).or_default().clone();
        let turn = ChunkTurn {
            reads: self,
            key,
            turn,
        };
        let _alone = turn.turn.lock().await;
        if self.fetch_chunk_alone(user, vnode, chunk).await? {
            if ahead {
                self.env
                    .counts
                    .fetched_ahead
                    .fetch_add(1, Ordering::Relaxed);
            }
            vnode.read_ahead.set_ahead(ahead);
        }
        Ok(())
    }

    /// Whether a fetch of a chunk is under way.
    pub(crate) fn is_fetched(&self, vnode: &Vnode, chunk: u64) -> bool {
        self.fetching.lock().contains_key(&(vnode.key(), chunk))
    }

    /// Fetches the missing bytes of a chunk. Returns whether there were any.
    async fn fetch_chunk_alone(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        chunk: u64,
    ) -> Result<bool> {
        let (start, end) = {
            let mut body = vnode.body.lock();
            let missing = body.gaps(chunk * CHUNK, (chunk + 1) * CHUNK);
            match (missing.first(), missing.last()) {
                (Some((start, _)), Some((_, end))) => (*start, *end),
                _ => return Ok(false),
            }
        };
        let (pieces, status) = self.statuses.fetch(user, vnode, start, end).await?;
        let needed = start..end;
        let fill = |body: &mut Body| body.fill(&status, needed.clone(), &pieces);
        if !self.with_room(vnode, needed.clone(), fill)? {
            // A store of ours is under way, so it is unknown whether the bytes are from before it
            // or after it.
            drop(vnode.store_turn.lock().await);
        }
        Ok(true)
    }

    /// Starts fetches of chunks that will probably be read, unless they are being fetched already.
    fn read_ahead(&self, user: &Arc<User>, vnode: &Arc<Vnode>, from: u64, chunks: u64) {
        if chunks == 0 || self.full.is_full_now() {
            return;
        }
        let first = from.div_ceil(CHUNK);
        let chunks = chunks.min(self.ahead_of(user, vnode));
        for chunk in first..first + chunks {
            let wanted = vnode.body.lock().lacks(chunk * CHUNK, (chunk + 1) * CHUNK);
            if !wanted || self.is_fetched(vnode, chunk) {
                continue;
            }
            let (Ok(permit), Some(this)) = (self.prefetches.clone().try_acquire_owned(), self.me())
            else {
                return;
            };
            let (user, vnode) = (user.clone(), vnode.clone());
            tokio::spawn(async move {
                if let Err(error) = this.fetch_chunk(&user, &vnode, chunk, false).await {
                    tracing::debug!(%error, "reading ahead");
                }
                this.make_room(Some((&vnode, from..from)));
                vnode.rest();
                drop(permit);
            });
        }
    }
}

/// Makes an error of a failure of the cache itself.
pub(crate) fn local(vnode: &Vnode, cause: std::io::Error) -> Error {
    Error::Local {
        what: format!("cached bytes of {}", vnode.fid()),
        cause,
    }
}

/// Divides bytes of a body into the chunks of a call.
pub(crate) fn in_chunks(bytes: Vec<u8>) -> Vec<Bytes> {
    let mut all = Bytes::from(bytes);
    let mut chunks = Vec::new();
    while !all.is_empty() {
        chunks.push(all.split_to(all.len().min(256 << 10)));
    }
    chunks
}
