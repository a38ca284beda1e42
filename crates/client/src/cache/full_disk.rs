//! A disk that is full, on which the cache directory is: of others' files, as nothing of the cache's exceeds its size.
//!
//! 1. What the server has, too, goes for what is needed now: a quarter of it, once for all who find the disk full at
//!    the same time. Only what still does not fit fails.
//! 2. *Nobody needs the cache to read.* Until [`FULL_TIME`] later what is not here goes from the server to the program,
//!    and is not kept.
//! 3. What programs write has to be kept until a server has it: they wait for that where bytes of the same file do,
//!    and are told `ENOSPC` where that is of no help.

use std::io::{self, ErrorKind};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cellar_wire::abort::AbortCode;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::lock_order::{MAKING_ROOM, Ordered};
use super::read::{TRIES, local};
use super::request::refused;
use super::user::User;
use super::vnode::Vnode;
use super::{Body, Cache};
use crate::error::{Error, Result};

/// How long a disk is taken for full that was.
const FULL_TIME: Duration = Duration::from_secs(5);

/// When the disk was found full, and no room could be made.
#[derive(Debug, Default)]
pub(crate) struct Full {
    at: Mutex<Option<Instant>>,
    /// Whoever makes room.
    making: Ordered<MAKING_ROOM, ()>,
}

impl Full {
    /// Whether it was lately.
    pub(crate) fn is_it(&self) -> bool {
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

impl Cache {
    /// Puts something into the cache; where its disk is full, again after room was made. `needed`: what stays of the file
    /// itself.
    pub(crate) fn with_room<T>(
        &self,
        vnode: &Vnode,
        needed: Range<u64>,
        mut put: impl FnMut(&mut Body) -> io::Result<T>,
    ) -> Result<T> {
        let mut put = || put(&mut vnode.body.lock());
        let mut done = put();
        let is_full = |done: &io::Result<T>| done.as_ref().is_err_and(says_full);
        if is_full(&done) && !self.full.is_it() {
            let _one = self.full.making.lock();
            // Others may have made some.
            done = put();
            if is_full(&done) && !self.full.is_it() {
                let used = self.used();
                tracing::warn!(used, "the disk of the cache is full");
                let goal = used - used / 4;
                let around = [0..needed.start, needed.end..u64::MAX];
                self.shrink(goal, goal, Some((vnode, around)));
                if let Some(index) = &self.index {
                    index.try_again();
                }
                done = put();
            }
            *self.full.at.lock() = is_full(&done).then(Instant::now);
        }
        done.map_err(|cause| local(vnode, cause))
    }

    /// The same of what programs change, which waits for what they changed before.
    pub(crate) async fn change_with_room<T>(
        &self,
        vnode: &Arc<Vnode>,
        mut put: impl FnMut(&mut Body) -> io::Result<T>,
    ) -> Result<T> {
        let done = self.with_room(vnode, 0..0, &mut put);
        match done {
            Err(error) if is_full(&error) && vnode.body.lock().dirty_bytes() > 0 => {
                self.store(vnode, false).await?;
                *self.full.at.lock() = None;
                self.with_room(vnode, 0..0, &mut put)
            }
            other => other,
        }
    }

    /// Rule 2: bytes of a file from `start`, at most `length`; fewer only at its end.
    pub(crate) async fn read_past(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        start: u64,
        length: u64,
    ) -> Result<Vec<u8>> {
        for _ in 0..TRIES {
            self.status(user, vnode).await?;
            let (end, missing) = here(&mut vnode.body.lock(), start, length);
            if start >= end {
                return Ok(Vec::new());
            }
            let mut fetched = Vec::new();
            for (from, to) in &missing {
                let (pieces, status) = self.fetch(user, vnode, *from, *to).await?;
                fetched.push((status.data_version, pieces.concat()));
            }
            let is_same = |body: &mut Body| {
                let version = body.version();
                let is_same = here(body, start, length) == (end, missing.clone());
                is_same && fetched.iter().all(|(of, _)| *of == version)
            };
            {
                let mut body = vnode.body.lock();
                if is_same(&mut body) {
                    let read = put_together(&mut body, start..end, &missing, &fetched);
                    return read.map_err(|cause| local(vnode, cause));
                }
            }
            // A store of ours is under way: what was fetched is either side of it.
            drop(vnode.storing.lock().await);
        }
        Err(refused(
            format!("reading {}: it changes all the time", vnode.fid()),
            AbortCode::from_errno(11),
        ))
    }
}

/// Where a read ends, and what has to be fetched for it.
fn here(body: &mut Body, start: u64, length: u64) -> (u64, Vec<(u64, u64)>) {
    let end = start.saturating_add(length).min(body.length());
    (end, body.gaps(start, end))
}

/// What is here, and what was fetched of the rest: the version, and the bytes.
fn put_together(
    body: &mut Body,
    range: Range<u64>,
    missing: &[(u64, u64)],
    fetched: &[(u64, Vec<u8>)],
) -> io::Result<Vec<u8>> {
    let mut bytes = match missing == [(range.start, range.end)] {
        // Not even its file may be here.
        true => vec![0; (range.end - range.start) as usize],
        false => body.read(range.start, range.end)?,
    };
    for ((from, to), (_, part)) in missing.iter().zip(fetched) {
        let place = &mut bytes[(from - range.start) as usize..(to - range.start) as usize];
        let count = part.len().min(place.len());
        place[..count].copy_from_slice(&part[..count]);
        // Behind the server's end it is zero.
        place[count..].fill(0);
    }
    Ok(bytes)
}
