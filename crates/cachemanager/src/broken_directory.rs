//! A directory whose promise a server has just broken. `names/compare.rs` finds the names that
//! changed.

use std::sync::Arc;
use std::time::Duration;

use cellar_wire::rxafs::AfsFetchStatus;

use super::promises::kernel_state::Owed;
use super::statuses::cached_names::Listing;
use super::user::User;
use super::vnode::Vnode;

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
        let breaks = self.changes.count_break();
        let mut state = self.state.lock();
        let promised = state.status.end_promise();
        let owed = state.kernel.end();
        // The server may not know the names in a leased directory yet.
        let is_shared = state.lease.is_known_to_server();
        let before = (promised && owed == Owed::ALL && is_shared)
            .then(|| {
                let status = state.status.last()?;
                let names = &mut state.contents;
                let (listing, user) = names.begin_comparison(status.data_version, PAUSE)?;
                Some(Before {
                    vnode: self.clone(),
                    user,
                    status,
                    listing,
                    breaks,
                })
            })
            .flatten();
        if before.is_some() {
            state.kernel.give_contents();
        }
        (owed, before)
    }
}
