//! The disk of the cache directory is full. Files of others fill it: the cache stays within its own
//! size.
//!
//! 1. The cache drops a quarter of the bytes that the server has, too. It does so once for all
//!    tasks that find the disk full at the same time. An operation fails only if its bytes still do
//!    not fit.
//! 2. *Reading needs no room.* For [`FULL_TIME`], missing bytes go from the server to the program
//!    and are not kept.
//! 3. Bytes that programs write must be kept until a server has them. A write waits for the store
//!    of dirty bytes of the same file, if there are any. If that does not help, it returns
//!    `ENOSPC`.

use std::io::{self, ErrorKind};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cellar_wire::abort::AbortCode;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::lock_order::{MAKING_ROOM, Ordered};
use crate::reads::Reads;
use crate::reads::{TRIES, local};
use crate::request::refused;
use crate::user::User;
use crate::vnode::Vnode;
use cellar_cachestore::Body;
use cellar_client::error::{Error, Result};

/// How long the disk counts as full after it was.
const FULL_TIME: Duration = Duration::from_secs(5);

/// The time at which the disk was full and no room could be made.
#[derive(Debug, Default)]
pub(crate) struct FullDisk {
    at: Mutex<Option<Instant>>,
    /// Held by the task that makes room.
    making: Ordered<MAKING_ROOM, ()>,
}

impl FullDisk {
    /// Whether the disk was full within [`FULL_TIME`].
    pub(crate) fn is_full_now(&self) -> bool {
        self.at.lock().is_some_and(|at| at.elapsed() < FULL_TIME)
    }
}

fn says_full(cause: &io::Error) -> bool {
    matches!(
        cause.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded
    )
}

/// Whether the cache's own disk is full.
pub(crate) fn is_full(error: &Error) -> bool {
    matches!(error, Error::Local { cause, .. } if says_full(cause))
}

impl Reads {
    /// Notes that bytes were stored, so the disk may have room again.
    pub(crate) fn disk_may_have_room(&self) {
        *self.full.at.lock() = None;
    }

    /// Puts bytes into the cache. If the disk is full, makes room and tries again. `needed`: the
    /// range of this file that stays.
    pub(crate) fn with_room<T>(
        &self,
        vnode: &Vnode,
        needed: Range<u64>,
        mut put: impl FnMut(&mut Body) -> io::Result<T>,
    ) -> Result<T> {
        let mut put = || put(&mut vnode.body.lock());
        let mut done = put();
        let is_full = |done: &io::Result<T>| done.as_ref().is_err_and(says_full);
        if is_full(&done) && !self.full.is_full_now() {
            let _one = self.full.making.lock();
            // Another task may have made room.
            done = put();
            if is_full(&done) && !self.full.is_full_now() {
                let used = self.env.used();
                tracing::warn!(used, "the disk of the cache is full");
                let goal = used - used / 4;
                let around = [0..needed.start, needed.end..u64::MAX];
                self.shrink(goal, goal, Some((vnode, around)));
                if let Some(index) = self.vnodes.index() {
                    index.retry_log();
                }
                done = put();
            }
            *self.full.at.lock() = is_full(&done).then(Instant::now);
        }
        done.map_err(|cause| local(vnode, cause))
    }

    /// Rule 2: reads at most `length` bytes of a file from `start`; fewer only at its end.
    pub(crate) async fn read_past(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        start: u64,
        length: u64,
    ) -> Result<Vec<u8>> {
        for _ in 0..TRIES {
            self.statuses.status(user, vnode).await?;
            let (end, missing) = cached_part(&mut vnode.body.lock(), start, length);
            if start >= end {
                return Ok(Vec::new());
            }
            let mut fetched = Vec::new();
            for (from, to) in &missing {
                let (pieces, status) = self.statuses.fetch(user, vnode, *from, *to).await?;
                fetched.push((status.data_version, pieces.concat()));
            }
            let is_same = |body: &mut Body| {
                let version = body.version();
                let is_same = cached_part(body, start, length) == (end, missing.clone());
                is_same && fetched.iter().all(|(of, _)| *of == version)
            };
            {
                let mut body = vnode.body.lock();
                if is_same(&mut body) {
                    let read = put_together(&mut body, start..end, &missing, &fetched);
                    return read.map_err(|cause| local(vnode, cause));
                }
            }
            // A store of ours is under way: the fetched bytes may be from before or after it.
            drop(vnode.store_turn.lock().await);
        }
        Err(refused(
            format!("reading {}: it changed during each attempt", vnode.fid()),
            AbortCode::from_errno(11),
        ))
    }
}

/// Returns the end of a read, and the ranges that must be fetched.
fn cached_part(body: &mut Body, start: u64, length: u64) -> (u64, Vec<(u64, u64)>) {
    let end = start.saturating_add(length).min(body.length());
    (end, body.gaps(start, end))
}

/// Joins cached bytes with fetched ranges, which are given as version and bytes.
fn put_together(
    body: &mut Body,
    range: Range<u64>,
    missing: &[(u64, u64)],
    fetched: &[(u64, Vec<u8>)],
) -> io::Result<Vec<u8>> {
    let mut bytes = match missing == [(range.start, range.end)] {
        // The cache may have no file for it.
        true => vec![0; (range.end - range.start) as usize],
        false => body.read(range.start, range.end)?,
    };
    for ((from, to), (_, part)) in missing.iter().zip(fetched) {
        let place = &mut bytes[(from - range.start) as usize..(to - range.start) as usize];
        let count = part.len().min(place.len());
        place[..count].copy_from_slice(&part[..count]);
        // Bytes beyond the end on the server are zero.
        place[count..].fill(0);
    }
    Ok(bytes)
}
