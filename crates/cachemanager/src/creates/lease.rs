//! One directory: its lease, and the number of pending creates in it. The rules are in
//! `creates/leases.rs`.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::user::User;

/// The time by which a lease ends earlier for us than for the server.
const MARGIN: Duration = Duration::from_secs(2);
/// The time within which a second file must be created for a lease to be worth a call.
const BUSY_TIME: Duration = Duration::from_secs(10);
/// How long no lease is requested for a directory that others use.
const REFUSED_TIME: Duration = Duration::from_secs(30);

/// A lease that a server gave.
#[derive(Clone, Debug)]
struct Lease {
    /// The end of the lease for the server.
    until: Instant,
    /// The user whose call requested it.
    user: Arc<User>,
    /// No more files are created under it.
    ended: bool,
}

impl Lease {
    fn holds(&self, now: Instant) -> bool {
        !self.ended && now + MARGIN < self.until
    }
}

/// See the head of the file.
#[derive(Debug, Default)]
pub(crate) struct DirectoryLease {
    /// The lease, while the server admits no other client.
    lease: Option<Lease>,
    /// The time when a file was last created in the directory by a call.
    created_by_call: Option<Instant>,
    /// The time until which no lease is requested.
    refused_until: Option<Instant>,
    /// The number of pending creates in the directory.
    pending_creates: u32,
}

impl DirectoryLease {
    /// Whether the lease holds: no other client reads or changes this directory now.
    pub(super) fn holds(&self, now: Instant) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.holds(now))
    }

    /// Whether a lease is worth a call.
    pub(super) fn is_worth_a_call(&self, now: Instant) -> bool {
        let is_busy = self.created_by_call.is_some_and(|at| now - at < BUSY_TIME);
        let is_refused = self.refused_until.is_some_and(|until| now < until);
        is_busy && !is_refused
    }

    /// A file was created in the directory by a call.
    pub(super) fn created_by_call(&mut self, now: Instant) {
        self.created_by_call = Some(now);
    }

    /// No lease is requested for `REFUSED_TIME`.
    pub(super) fn refuse(&mut self, now: Instant) {
        self.refused_until = Some(now + REFUSED_TIME);
    }

    /// The server gave a lease to the user.
    pub(super) fn grant(&mut self, until: Instant, user: &Arc<User>) {
        self.lease = Some(Lease {
            until,
            user: user.clone(),
            ended: false,
        });
    }

    /// Extends the lease to `seconds` after `asked`, as the server says. 0: the server has no lease
    /// for us any more. Returns whether a lease is lost.
    pub(super) fn extend(&mut self, asked: Instant, seconds: u32) -> bool {
        let Some(lease) = &mut self.lease else {
            return false;
        };
        if seconds > 0 {
            let until = asked + Duration::from_secs(seconds.into());
            lease.until = lease.until.max(until);
            return false;
        }
        !std::mem::replace(&mut lease.ended, true)
    }

    /// Ends the lease, if there is one. Returns its user if the server must be told.
    pub(super) fn end(&mut self, now: Instant) -> Option<Arc<User>> {
        let lease = self.lease.take()?;
        self.refuse(now);
        (lease.until >= now).then_some(lease.user)
    }

    /// A file was created locally in the directory.
    pub(super) fn add_pending(&mut self) {
        self.pending_creates += 1;
    }

    /// The server has created such a file, or it can never be created.
    pub(super) fn remove_pending(&mut self) {
        self.pending_creates = self.pending_creates.saturating_sub(1);
    }

    /// Whether the directory has pending creates.
    pub(crate) fn has_pending(&self) -> bool {
        self.pending_creates > 0
    }

    /// Whether the server knows all names in the directory.
    pub(crate) fn is_known_to_server(&self) -> bool {
        self.lease.is_none() && !self.has_pending()
    }
}
