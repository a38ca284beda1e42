//! A cache that is full of dirty bytes which no server takes.
//!
//! 1. Dirty bytes are kept until a server has them, however often a store fails. If they exceed
//!    half of the cache, each write includes a store, so the program receives an error at once. But
//!    the bytes of that write are kept, and a program that goes on to the next file adds more.
//! 2. So if dirty bytes exceed the whole cache, a volume whose last store failed takes no writes
//!    for [`RETRY`]. Such a write returns the error of the store (`EDQUOT`, `ETIMEDOUT`), and its
//!    bytes are not kept. After that time one write may try again. Writes to other volumes go on,
//!    each with a store.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cellar_wire::abort::AbortCode;
use cellar_wire::ids::VolumeId;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::request::RETRY;
use crate::request::refused;
use crate::vnode::Vnode;
use crate::write_back::WriteBack;
use cellar_client::errno::errno;
use cellar_client::error::{Error, Result};

/// The most volumes in the table.
const VOLUMES_MAX: usize = 10_000;

/// Volumes, by cell and number, whose last store failed: the time and the errno.
#[derive(Debug, Default)]
pub(crate) struct FailedVolumes(Mutex<HashMap<(u32, VolumeId), (Instant, i32)>>);

impl FailedVolumes {
    /// A store in the volume of `vnode` failed.
    pub(crate) fn failed(&self, vnode: &Vnode, error: &Error) {
        let mut volumes = self.0.lock();
        if volumes.len() >= VOLUMES_MAX {
            volumes.retain(|_, (at, _)| at.elapsed() < RETRY);
        }
        volumes.insert(volume_key(vnode), (Instant::now(), errno(error)));
    }

    /// A store in the volume of `vnode` succeeded.
    pub(crate) fn stored(&self, vnode: &Vnode) {
        let mut volumes = self.0.lock();
        if !volumes.is_empty() {
            volumes.remove(&volume_key(vnode));
        }
    }

    fn refusal(&self, vnode: &Vnode) -> Option<i32> {
        let volumes = self.0.lock();
        let (at, errno) = volumes.get(&volume_key(vnode))?;
        (at.elapsed() < RETRY).then_some(*errno)
    }
}

fn volume_key(vnode: &Vnode) -> (u32, VolumeId) {
    (vnode.key().0, vnode.fid().volume)
}

impl WriteBack {
    /// Checks whether the cache may keep more dirty bytes of a file (rule 2).
    ///
    /// # Errors
    /// The error of the last store in its volume.
    pub(crate) fn has_room_for(&self, vnode: &Arc<Vnode>) -> Result<()> {
        if self.env.space.dirty.load(Ordering::Relaxed) <= self.env.size() {
            return Ok(());
        }
        match self.failed_volumes.refusal(vnode) {
            Some(errno) => Err(refused(
                "a write: the cache is full of what is not stored",
                AbortCode::from_errno(errno),
            )),
            None => Ok(()),
        }
    }
}
