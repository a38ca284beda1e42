//! Stores that clients make directly: begun, and not ended yet.
//!
//! Each has the turn to write its file until it ends, is given up, or nobody renews it for
//! [`STORE_LEASE`] seconds. What it wrote is named by no vnode then, and the devices are told so; the next store of
//! the file takes its place there. A restart forgets all of them, and their clients begin again.

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
use crate::objects::making::Making;
use crate::objects::turns::Turn;

/// A store that a client makes.
pub(crate) struct Lease {
    pub(crate) fid: Fid,
    pub(crate) volume: Arc<Volume>,
    /// Whose it is.
    pub(crate) user: ViceId,
    /// The file as the store found it.
    pub(crate) before: VnodeStatus,
    /// The layout then; `None`: the file is empty, and not in objects yet.
    pub(crate) old: Option<Arc<Layout>>,
    /// The objects with the versions that they have, and the version that is written.
    pub(crate) next: Layout,
    /// The length that the file may get.
    pub(crate) length: u64,
    /// In seconds since 1970.
    pub(crate) expires: u64,
    /// Nobody else may write the file.
    pub(crate) turn: Turn,
    /// What is written is no garbage.
    pub(crate) making: Making,
}

/// All of them, by number.
#[derive(Default)]
pub(crate) struct Leases(Mutex<HashMap<u64, Lease>>);

impl Leases {
    /// Remembers a store, and gives it a number.
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

    /// Looks at a store, which must be that user's, of that file, and not expired.
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

    /// Takes a store out, to be ended.
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

    /// Takes out the stores that nobody has renewed, to be given up.
    pub(crate) fn sweep(&self, now: u64) -> Vec<Lease> {
        let mut leases = self.0.lock();
        let expired = leases.extract_if(|_, lease| lease.expires < now);
        let expired: Vec<Lease> = expired.map(|(_, lease)| lease).collect();
        for lease in &expired {
            tracing::info!(fid = %lease.fid, user = lease.user.0, "a direct store was forgotten");
        }
        expired
    }
}

/// There is no such store, any more or of that caller.
const GONE: Refusal = Refusal::Code(AbortCode::ESTALE);

fn is(lease: &Lease, fid: Fid, user: ViceId, now: u64) -> bool {
    lease.fid == fid && lease.user == user && lease.expires >= now
}

/// When a lease that is renewed now ends.
pub(crate) fn end(now: u64) -> u64 {
    now + u64::from(STORE_LEASE)
}
