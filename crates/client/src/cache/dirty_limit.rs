//! A cache that is full of what no server takes.
//!
//! 1. What programs wrote is kept until a server has it, however often a store fails. Beyond half of the cache each
//!    write is a store, so that a program hears at once that nothing is taken; but its bytes are here, and whoever goes on to
//!    the next file brings more of them.
//! 2. So beyond the whole cache a volume whose last store failed takes nothing for [`RETRY`]: such a write is told what
//!    the store was told (`EDQUOT`, `ETIMEDOUT`), before its bytes are kept. Then one may try again. Files of other volumes are
//!    written on, each write at once to its server.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cellar_wire::abort::AbortCode;
use cellar_wire::ids::VolumeId;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::Cache;
use super::request::RETRY;
use super::request::refused;
use super::vnode::Vnode;
use crate::errno::errno;
use crate::error::{Error, Result};

/// Volumes about which this is remembered.
const VOLUMES_MAX: usize = 10_000;

/// Volumes, by cell and number, whose last store failed: when, and the errno.
#[derive(Debug, Default)]
pub(crate) struct Brim(Mutex<HashMap<(u32, VolumeId), (Instant, i32)>>);

impl Brim {
    /// A store in the volume of `vnode` failed.
    pub(crate) fn failed(&self, vnode: &Vnode, error: &Error) {
        let mut volumes = self.0.lock();
        if volumes.len() >= VOLUMES_MAX {
            volumes.retain(|_, (at, _)| at.elapsed() < RETRY);
        }
        volumes.insert(of(vnode), (Instant::now(), errno(error)));
    }

    /// A store in the volume of `vnode` succeeded.
    pub(crate) fn stored(&self, vnode: &Vnode) {
        let mut volumes = self.0.lock();
        if !volumes.is_empty() {
            volumes.remove(&of(vnode));
        }
    }

    fn refusal(&self, vnode: &Vnode) -> Option<i32> {
        let volumes = self.0.lock();
        let (at, errno) = volumes.get(&of(vnode))?;
        (at.elapsed() < RETRY).then_some(*errno)
    }
}

fn of(vnode: &Vnode) -> (u32, VolumeId) {
    (vnode.key.0, vnode.fid().volume)
}

impl Cache {
    /// Whether bytes for a file may be kept until they are stored (rule 2).
    ///
    /// # Errors
    /// What the last store in its volume was told.
    pub(crate) fn has_room_for(&self, vnode: &Arc<Vnode>) -> Result<()> {
        if self.space.dirty.load(Ordering::Relaxed) <= self.size() {
            return Ok(());
        }
        match self.brim.refusal(vnode) {
            Some(errno) => Err(refused(
                "a write: the cache is full of what is not stored",
                AbortCode::from_errno(errno),
            )),
            None => Ok(()),
        }
    }
}
