//! Locks on ranges, at servers that support them. HoldRanges sends all ranges that programs of this
//! machine have locked in a file.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cellar_wire::abort::AbortCode;
use cellar_wire::ids::VolumeId;
use cellar_wire::rxafs::{HeldRanges, HoldRanges, LockRange, TestRange};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::file_locks::ENOLCK;
use crate::file_locks::FileLocks;
use crate::request::refused;
use crate::user::User;
use crate::vnode::Vnode;
use cellar_client::error::{Error, Result};

/// How long a server that locks only whole files is not asked again.
const ASK_RANGES_AGAIN: Duration = Duration::from_secs(300);

/// The servers without locks on ranges, and our own number at the others.
#[derive(Debug)]
pub(crate) struct RangeLocks {
    /// Hard to guess: a client that knows it could release our ranges.
    owner: [u32; 4],
    /// The number of the next call. A server refuses a call older than the last one.
    serial: AtomicU64,
    /// Volumes on servers without locks on ranges, and the time until which that is assumed. A
    /// volume may move, and a server may be updated.
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

impl FileLocks {
    pub(crate) fn knows_no_ranges(&self, vnode: &Vnode) -> bool {
        let unknown = self.range_locks.unknown.lock();
        let until = unknown.get(&(vnode.key().0, vnode.key().1.volume));
        until.is_some_and(|until| Instant::now() < *until)
    }

    /// Sends the ranges of all programs of this machine to the server. Returns whether the server
    /// supports such locks.
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
        self.creates.flush_pending(vnode).await?;
        let hold = HoldRanges {
            fid: vnode.fid(),
            owner: self.range_locks.owner,
            serial: self.range_locks.serial.fetch_add(1, Ordering::AcqRel),
            ranges,
        };
        let client = user.client();
        let known = match client.call_volume(vnode.volume(), &what, &hold).await {
            Ok(_) => true,
            Err(error) if self.is_unknown(vnode, &error) => false,
            Err(error) => return Err(error),
        };
        let shared = known && !hold.ranges.is_empty();
        // Bytes that could not be stored before the release of a lock must not truncate bytes that
        // other clients append from now on.
        if shared || !vnode.body.lock().is_changed() {
            vnode.store_turn.set_shared(shared);
        }
        Ok(known)
    }

    /// Returns the lock that conflicts with a range, if any. `None`: the server locks only whole
    /// files.
    pub(crate) async fn test_range(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        range: LockRange,
    ) -> Result<Option<Option<LockRange>>> {
        if self.knows_no_ranges(vnode) {
            return Ok(None);
        }
        self.creates.flush_pending(vnode).await?;
        let what = format!("locks on {}", vnode.fid());
        let test = TestRange {
            fid: vnode.fid(),
            owner: self.range_locks.owner,
            range,
        };
        let client = user.client();
        match client.call_volume(vnode.volume(), &what, &test).await {
            Ok(reply) => Ok(Some(reply.found.first().copied())),
            Err(error) if self.is_unknown(vnode, &error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns whether the error means that the server does not support the call. Remembers that
    /// for a while.
    fn is_unknown(&self, vnode: &Vnode, error: &Error) -> bool {
        if error.code() != Some(AbortCode::RXGEN_OPCODE) {
            return false;
        }
        let now = Instant::now();
        let mut unknown = self.range_locks.unknown.lock();
        unknown.retain(|_, until| now < *until);
        unknown.insert(
            (vnode.key().0, vnode.key().1.volume),
            now + ASK_RANGES_AGAIN,
        );
        true
    }
}
