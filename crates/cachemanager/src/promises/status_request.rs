//! A request to a server about a vnode, and the counts that decide whether its answer is current.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

/// The time at which a call began, and the counts of changes at that time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatusRequest {
    at: Instant,
    breaks: u64,
    own_changes: u64,
    /// The number of breaks of unknown vnodes, for a call about a vnode that is not known yet.
    unknown_breaks: Option<u64>,
    /// The address that answered; `None` before the answer.
    by: Option<SocketAddr>,
}

impl StatusRequest {
    /// For a call that creates the vnode.
    pub(crate) fn about_new(unknown_breaks: u64) -> Self {
        Self {
            at: Instant::now(),
            breaks: 0,
            own_changes: 0,
            unknown_breaks: Some(unknown_breaks),
            by: None,
        }
    }

    /// Adds the address that answered.
    pub(crate) fn answered_by(mut self, server: SocketAddr) -> Self {
        self.by = Some(server);
        self
    }

    /// The time at which the call began.
    pub(crate) fn at(&self) -> Instant {
        self.at
    }

    /// The address that answered; `None` before the answer.
    pub(crate) fn by(&self) -> Option<SocketAddr> {
        self.by
    }

    /// Whether a vnode that the answer names may have been broken since. `unknown_breaks`: the
    /// number of breaks of unknown vnodes now.
    pub(super) fn missed_unknown_break(&self, unknown_breaks: u64) -> bool {
        self.unknown_breaks
            .is_some_and(|before| before != unknown_breaks)
    }
}

/// The changes of a vnode that this machine knows of, counted.
#[derive(Debug, Default)]
pub(crate) struct ChangeCounts {
    /// The number of broken promises. An answer gives no promise if the number changed while it was
    /// under way.
    breaks: AtomicU64,
    /// The number of our own changes that were answered. No server breaks our promise for these. So
    /// if the number changed while an answer was under way, the answer may show the state before
    /// the change.
    own_changes: AtomicU64,
}

impl ChangeCounts {
    /// Begins a request about the vnode.
    pub(crate) fn request(&self) -> StatusRequest {
        StatusRequest {
            at: Instant::now(),
            breaks: self.breaks(),
            own_changes: self.own_changes.load(Ordering::Acquire),
            unknown_breaks: None,
            by: None,
        }
    }

    /// The number of broken promises.
    pub(crate) fn breaks(&self) -> u64 {
        self.breaks.load(Ordering::Acquire)
    }

    /// Counts a broken promise. Returns the number of them, this one included.
    pub(crate) fn count_break(&self) -> u64 {
        self.breaks.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Counts a change of our own that was answered.
    pub(crate) fn count_own_change(&self) {
        self.own_changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether a promise was broken since the request began.
    pub(crate) fn broken_since(&self, asked: &StatusRequest) -> bool {
        self.breaks() != asked.breaks
    }

    /// Whether a change of our own was answered since the request began.
    pub(crate) fn changed_since(&self, asked: &StatusRequest) -> bool {
        self.own_changes.load(Ordering::Acquire) != asked.own_changes
    }
}
