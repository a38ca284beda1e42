//! Ranges of locks, told to servers that know them: HoldRanges says all that this cache's programs have of a file.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cellar_wire::abort::AbortCode;
use cellar_wire::ids::VolumeId;
use cellar_wire::rxafs::{HeldRanges, HoldRanges, LockRange, TestRange};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::Cache;
use super::locks::ENOLCK;
use super::status::refused;
use super::user::User;
use super::vnode::Vnode;
use crate::error::{Error, Result};

/// How long a server that knows whole files only is not asked again.
const ASK_RANGES_AGAIN: Duration = Duration::from_secs(300);

/// Servers that do not know ranges of locks, and our own number on those that do.
#[derive(Debug)]
pub(crate) struct RangeLocks {
    /// Hard to guess: who knows it could give our ranges back.
    owner: [u32; 4],
    /// What was said before does not count any more.
    serial: AtomicU64,
    /// Volumes on servers that do not, and until when that is believed: a volume moves, a server is renewed.
    unknown: Mutex<HashMap<(u32, VolumeId), Instant>>,
}

impl Default for RangeLocks {
    fn default() -> Self {
        let number = uuid::Uuid::new_v4().as_u128();
        Self {
            owner: [96, 64, 32, 0].map(|shift| (number >> shift) as u32),
            serial: AtomicU64::new(0),
            unknown: Mutex::default(),
        }
    }
}

impl Cache {
    pub(crate) fn knows_no_ranges(&self, vnode: &Vnode) -> bool {
        let unknown = self.range_locks.unknown.lock();
        let until = unknown.get(&(vnode.key.0, vnode.key.1.volume));
        until.is_some_and(|until| Instant::now() < *until)
    }

    /// Tells the server what bytes all programs here have. Answers whether it knows such locks.
    pub(crate) async fn hold(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        ranges: &HeldRanges,
    ) -> Result<bool> {
        let what = format!("a lock on {}", vnode.fid());
        let Some(ranges) = ranges.to_list() else {
            return Err(refused(what, AbortCode::from_errno(ENOLCK)));
        };
        self.told(vnode).await?;
        let hold = HoldRanges {
            fid: vnode.fid(),
            owner: self.range_locks.owner,
            serial: self.range_locks.serial.fetch_add(1, Ordering::AcqRel),
            ranges,
        };
        let client = user.client();
        let known = match client.call_volume(&vnode.volume, &what, &hold).await {
            Ok(_) => true,
            Err(error) if self.is_unknown(vnode, &error) => false,
            Err(error) => return Err(error),
        };
        let shared = known && !hold.ranges.is_empty();
        // What could not be stored before a lock was given back must not cut what others append from now on.
        if shared || !vnode.body.lock().is_changed() {
            vnode.shared.store(shared, Ordering::Release);
        }
        Ok(known)
    }

    /// Asks what is in the way of a range; `None`: the server knows whole files only.
    pub(crate) async fn test_range(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        range: LockRange,
    ) -> Result<Option<Option<LockRange>>> {
        if self.knows_no_ranges(vnode) {
            return Ok(None);
        }
        self.told(vnode).await?;
        let what = format!("locks on {}", vnode.fid());
        let test = TestRange {
            fid: vnode.fid(),
            owner: self.range_locks.owner,
            range,
        };
        let client = user.client();
        match client.call_volume(&vnode.volume, &what, &test).await {
            Ok(reply) => Ok(Some(reply.found.first().copied())),
            Err(error) if self.is_unknown(vnode, &error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether the server does not know such calls, which is remembered for a while.
    fn is_unknown(&self, vnode: &Vnode, error: &Error) -> bool {
        if error.code() != Some(AbortCode::RXGEN_OPCODE) {
            return false;
        }
        let now = Instant::now();
        let mut unknown = self.range_locks.unknown.lock();
        unknown.retain(|_, until| now < *until);
        unknown.insert((vnode.key.0, vnode.key.1.volume), now + ASK_RANGES_AGAIN);
        true
    }
}
