//! The promises that servers made about vnodes, and the notices that the kernel receives when one
//! ends.
//!
//! 1. Every answer of a server about a vnode passes through [`Promises::apply_status`], which
//!    decides whether the answer gives a promise.
//! 2. An answer gives none if a break may have been missed since the call began. Reasons: a break
//!    of the vnode or of an unknown one, or a silent server that returned.
//! 3. `coherence.rs` has the rules for notices to the kernel. No other file sends them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cellar_wire::rxafs::{AfsFetchStatus, Callback};
use tokio::time::Instant;

use super::environment::Environment;
use super::statuses::cached_names::Listing;
use super::user::User;
use super::vnode::Vnode;
use super::vnode_table::VnodeTable;

pub(crate) mod cached_status;
mod coherence;
pub(crate) mod kernel_state;
mod promisers;
pub(crate) mod status_request;

use kernel_state::Owed;
use promisers::Promisers;
use status_request::StatusRequest;

/// See the head of the file.
pub struct Promises {
    env: Arc<Environment>,
    vnodes: Arc<VnodeTable>,
    /// The number of breaks of unknown vnodes. An answer that was under way at such a break may be
    /// about one of these vnodes.
    unknown_breaks: AtomicU64,
    promisers: Promisers,
}

impl Promises {
    pub(super) fn new(env: Arc<Environment>, vnodes: Arc<VnodeTable>) -> Self {
        Self {
            env,
            vnodes,
            unknown_breaks: AtomicU64::new(0),
            promisers: Promisers::default(),
        }
    }

    /// The servers that gave promises.
    pub(crate) fn promisers(&self) -> &Promisers {
        &self.promisers
    }

    /// Notes that a break concerned unknown vnodes, or that breaks may have been missed.
    pub(crate) fn note_unknown_break(&self) {
        self.unknown_breaks.fetch_add(1, Ordering::AcqRel);
    }

    /// Applies a server's answer about a vnode.
    pub(crate) fn apply_status(
        &self,
        user: &User,
        vnode: &Arc<Vnode>,
        status: &AfsFetchStatus,
        promise: Option<(Callback, StatusRequest)>,
    ) {
        let promise = promise.map(|promise| vnode.decided(self.judged(promise)));
        let owed = vnode.apply_status(user.id(), status, promise);
        self.send_notices(vnode, owed);
        // This comes last, so that a task that ends the promises of a server finds this one.
        if let Some((callback, asked)) = &promise {
            self.promisers.promised(vnode, callback, asked);
        }
    }

    /// Like [`Promises::apply_status`], for a directory in which we created `count` things that its
    /// listing already has.
    pub(crate) fn apply_growth(
        &self,
        user: &User,
        directory: &Arc<Vnode>,
        grown: (u64, &AfsFetchStatus),
        promise: Option<(Callback, StatusRequest)>,
    ) {
        let promise = promise.map(|promise| directory.decided(self.judged(promise)));
        let owed = directory.apply_growth(user.id(), grown, promise);
        self.send_notices(directory, owed);
        if let Some((callback, asked)) = &promise {
            self.promisers.promised(directory, callback, asked);
        }
    }

    /// Drops the promise if a break may have been missed since the call began.
    fn judged(&self, (callback, asked): (Callback, StatusRequest)) -> (Callback, StatusRequest) {
        let unknown_breaks = self.unknown_breaks.load(Ordering::Acquire);
        let returned = |by| self.env.reach.returned_since(by, asked.at());
        let missed = asked.missed_unknown_break(unknown_breaks) || asked.by().is_some_and(returned);
        let callback = if missed { Callback::NONE } else { callback };
        (callback, asked)
    }

    pub(crate) fn directory_changed(
        &self,
        user: &Arc<User>,
        directory: &Arc<Vnode>,
        status: &AfsFetchStatus,
        edit: impl FnOnce(&mut Listing),
    ) {
        let edit = |listing: &mut Arc<Listing>| edit(Arc::make_mut(listing));
        let version = status.data_version;
        directory.state.lock().contents.advance(1, version, edit);
        self.apply_status(user, directory, status, None);
    }

    /// Notes that a change of these vnodes had no answer, so that the server may still make it.
    /// Until that is decided, no answer about them gives a promise ([`Vnode::decided`]).
    pub(crate) fn undecided(&self, vnodes: &[&Arc<Vnode>]) {
        for vnode in vnodes {
            vnode.state.lock().status.own_change_unanswered();
        }
        self.end_promises(vnodes);
    }

    /// Gives up the promises about these vnodes, which may no longer be true although no server
    /// broke them.
    pub(crate) fn end_promises(&self, vnodes: &[&Arc<Vnode>]) {
        for vnode in vnodes {
            let owed = vnode.broken();
            self.send_notices(vnode, owed);
        }
    }

    /// Gives up the promises about all directories, so that names are looked up at the servers
    /// again.
    pub(crate) fn distrust_directories(&self) {
        let directories = self.vnodes.matching(|vnode| vnode.is_directory());
        self.end_promises(&directories.iter().collect::<Vec<_>>());
    }

    /// Begins a request about a vnode that the answer will name.
    pub(crate) fn begin_new(&self) -> StatusRequest {
        StatusRequest::about_new(self.unknown_breaks.load(Ordering::Acquire))
    }

    /// Gives up the promises about open files that are due by `now`, and sends the notices to the
    /// kernel.
    pub fn end_expired(&self, now: Instant) {
        let mut all = Vec::new();
        self.vnodes.for_each(|vnode| {
            let owed = vnode.ran_out(now);
            if owed != Owed::NOTHING {
                all.push((vnode.clone(), owed));
            }
        });
        for (vnode, owed) in all {
            self.send_notices(&vnode, owed);
        }
    }
}
