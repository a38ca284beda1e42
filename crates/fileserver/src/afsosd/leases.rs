//! Stores that clients make directly: begun, and not ended yet.
//!
//! Each has the store lock of its file until it ends, is aborted, or was not renewed for
//! [`STORE_LEASE`] seconds. In the last two cases no vnode names the written data, and the devices
//! are told to remove it. The next store of the file then gets the lock. A restart forgets all
//! direct stores, and their clients begin again.

use std::collections::HashMap;
use std::sync::Arc;

use cellar_volume::{VnodeStatus, Volume};
use cellar_wire::AbortCode;
use cellar_wire::afsosd::STORE_LEASE;
use cellar_wire::ids::{Fid, ViceId};
use cellar_wire::object::Layout;
use parking_lot::Mutex;

use crate::abort_map::Refusal;
use crate::limits::STORE_LEASES_MAX;
use crate::objects::pending_versions::VersionGuard;
use crate::objects::store_locks::StoreLock;

/// A direct store of a client.
pub(crate) struct Lease {
    pub(crate) fid: Fid,
    pub(crate) volume: Arc<Volume>,
    /// The user that makes it.
    pub(crate) user: ViceId,
    /// The file before the store.
    pub(crate) before: VnodeStatus,
    /// The layout before the store. `None` if the file is empty and not in objects yet.
    pub(crate) old: Option<Arc<Layout>>,
    /// The objects with their present versions, and the version that is written.
    pub(crate) next: Layout,
    /// The largest length that the file may get.
    pub(crate) length: u64,
    /// In seconds since 1970.
    pub(crate) expires: u64,
    /// Keeps other writers from the file.
    pub(crate) store_lock: StoreLock,
    /// Keeps garbage collection from the written data.
    pub(crate) version_guard: VersionGuard,
}

/// All direct stores, by number.
#[derive(Default)]
pub(crate) struct Leases(Mutex<HashMap<u64, Lease>>);

impl Leases {
    /// Adds a store and returns its number.
    pub(crate) fn add(&self, lease: Lease) -> Result<u64, Refusal> {
        let mut leases = self.0.lock();
        if leases.len() >= STORE_LEASES_MAX {
            return Err(Refusal::Busy);
        }
        loop {
            let number: u64 = rand::random();
            if number != 0 && !leases.contains_key(&number) {
                leases.insert(number, lease);
                return Ok(number);
            }
        }
    }

    /// Looks at a store. It must be of that user and file, and not expired.
    pub(crate) fn with<T>(
        &self,
        number: u64,
        fid: Fid,
        user: ViceId,
        now: u64,
        look: impl FnOnce(&mut Lease) -> T,
    ) -> Result<T, Refusal> {
        let mut leases = self.0.lock();
        match leases.get_mut(&number) {
            Some(lease) if is(lease, fid, user, now) => Ok(look(lease)),
            _ => Err(GONE),
        }
    }

    /// Removes a store from the table, to end it.
    pub(crate) fn take(
        &self,
        number: u64,
        fid: Fid,
        user: ViceId,
        now: u64,
    ) -> Result<Lease, Refusal> {
        let mut leases = self.0.lock();
        if !leases
            .get(&number)
            .is_some_and(|lease| is(lease, fid, user, now))
        {
            return Err(GONE);
        }
        leases.remove(&number).ok_or(GONE)
    }

    /// Removes the stores that were not renewed, to abort them.
    pub(crate) fn sweep(&self, now: u64) -> Vec<Lease> {
        let mut leases = self.0.lock();
        let expired = leases.extract_if(|_, lease| lease.expires < now);
        let expired: Vec<Lease> = expired.map(|(_, lease)| lease).collect();
        for lease in &expired {
            tracing::info!(fid = %lease.fid, user = lease.user.0, "a direct store expired");
        }
        expired
    }
}

/// The store does not exist, or no longer, or belongs to another caller.
const GONE: Refusal = Refusal::Code(AbortCode::ESTALE);

fn is(lease: &Lease, fid: Fid, user: ViceId, now: u64) -> bool {
    lease.fid == fid && lease.user == user && lease.expires >= now
}

/// The end of a lease that is renewed now.
pub(crate) fn end(now: u64) -> u64 {
    now + u64::from(STORE_LEASE)
}
