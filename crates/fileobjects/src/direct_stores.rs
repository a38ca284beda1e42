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

use super::failure::Failure;
use super::limits::STORE_LEASES_MAX;
use super::pending_versions::VersionGuard;
use super::store_locks::StoreLock;

/// A direct store of a client.
pub(crate) struct DirectStore {
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
pub(crate) struct DirectStores(Mutex<HashMap<u64, DirectStore>>);

impl DirectStores {
    /// Adds a store and returns its number.
    pub(crate) fn add(&self, store: DirectStore) -> Result<u64, Failure> {
        let mut stores = self.0.lock();
        if stores.len() >= STORE_LEASES_MAX {
            return Err(Failure::Busy);
        }
        loop {
            let number: u64 = rand::random();
            if number != 0 && !stores.contains_key(&number) {
                stores.insert(number, store);
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
        look: impl FnOnce(&mut DirectStore) -> T,
    ) -> Result<T, Failure> {
        let mut stores = self.0.lock();
        match stores.get_mut(&number) {
            Some(store) if is(store, fid, user, now) => Ok(look(store)),
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
    ) -> Result<DirectStore, Failure> {
        let mut stores = self.0.lock();
        if !stores
            .get(&number)
            .is_some_and(|store| is(store, fid, user, now))
        {
            return Err(GONE);
        }
        stores.remove(&number).ok_or(GONE)
    }

    /// Removes the stores that were not renewed, to abort them.
    pub(crate) fn sweep(&self, now: u64) -> Vec<DirectStore> {
        let mut stores = self.0.lock();
        let expired = stores.extract_if(|_, store| store.expires < now);
        let expired: Vec<DirectStore> = expired.map(|(_, store)| store).collect();
        for store in &expired {
            tracing::info!(fid = %store.fid, user = store.user.0, "a direct store expired");
        }
        expired
    }
}

/// The store does not exist, or no longer, or belongs to another caller.
const GONE: Failure = Failure::Code(AbortCode::ESTALE);

fn is(store: &DirectStore, fid: Fid, user: ViceId, now: u64) -> bool {
    store.fid == fid && store.user == user && store.expires >= now
}

/// The end of a store that is renewed now.
pub(crate) fn end(now: u64) -> u64 {
    now + u64::from(STORE_LEASE)
}
