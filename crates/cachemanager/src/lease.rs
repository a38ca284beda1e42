//! One lease of a directory. The rules are in `creates/leases.rs`.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::user::User;

/// The time by which a lease ends earlier for us than for the server.
pub(super) const MARGIN: Duration = Duration::from_secs(2);

/// A lease that a server gave.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    /// The end of the lease for the server.
    pub(super) until: Instant,
    /// The user whose call requested it.
    pub(super) user: Arc<User>,
    /// No more files are created under it.
    pub(super) ended: bool,
}

impl Lease {
    pub(super) fn holds(&self, now: Instant) -> bool {
        !self.ended && now + MARGIN < self.until
    }
}

/// The facts about a directory that decide whether a lease of it is requested.
#[derive(Debug, Default)]
pub(crate) struct Busy {
    /// The time when a file was last created in it by a call.
    pub(super) made: Option<Instant>,
    /// The time until which no lease is requested.
    pub(super) refused: Option<Instant>,
}
