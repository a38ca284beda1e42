//! A directory whose promise a server has just broken. `names/compare.rs` finds the names that
//! changed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cellar_wire::rxafs::AfsFetchStatus;
use tokio::time::Instant;

use super::kernel_state::Owed;
use super::user::User;
use super::vnode::{Listing, Vnode};

/// The least time between two comparisons of a directory.
const PAUSE: Duration = Duration::from_secs(1);

/// A directory as it was when its promise was broken.
#[derive(Clone, Debug)]
pub struct Before {
    pub(super) vnode: Arc<Vnode>,
    pub(super) user: Arc<User>,
    pub(super) status: AfsFetchStatus,
    pub(super) listing: Arc<Listing>,
    /// The number of broken promises, this one included.
    pub(super) breaks: u64,
}

impl Vnode {
    /// Ends the promise after a server's break. Returns the notice that is owed to the kernel. With
    /// [`Before`], only the changed names need a notice, and the kernel continues to hold the
    /// others.
    pub(crate) fn broken_by_server(self: &Arc<Self>) -> (Owed, Option<Before>) {
        let breaks = self.breaks.fetch_add(1, Ordering::AcqRel) + 1;
        let mut state = self.state.lock();
        let promised = state.end_promise();
        let owed = state.held.end();
        let rested = state.compared.is_none_or(|at| at.elapsed() >= PAUSE);
        // The server may not know the names in a leased directory yet.
        let is_shared = state.lease.is_none() && state.pending_creates == 0;
        let before = (promised && owed == Owed::ALL && rested && is_shared)
            .then(|| {
                let status = state.status?;
                let (version, listing) = state.listing.clone()?;
                let user = state.lister.clone()?;
                (version == status.data_version).then(|| Before {
                    vnode: self.clone(),
                    user,
                    status,
                    listing,
                    breaks,
                })
            })
            .flatten();
        if before.is_some() {
            state.compared = Some(Instant::now());
            state.held.keep_names();
        }
        (owed, before)
    }
}
