//! Configuration of a file server.

use std::sync::Arc;
use std::time::Duration;

use cellar_auth::Authority;
use cellar_auth::audit::Audit;
use cellar_wire::acl::Rights;
use cellar_wire::ids::AfsUuid;

use crate::limits::{CALLBACKS_DEFAULT, HOSTS_DEFAULT, LEASE, VOLUME_TRANSACTION_IDLE};

/// The wall clock: time since 1970. An argument, so that tests choose it.
pub type WallClock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// Settings of a file server.
#[derive(Clone)]
pub struct Config {
    /// This server's identity in the volume location database; must stay the same for life.
    pub uuid: AfsUuid,
    /// The wall clock.
    pub clock: WallClock,
    /// Largest number of promises, about 64 bytes each.
    pub callbacks_max: usize,
    /// Largest number of hosts.
    pub hosts_max: usize,
    /// Rights that members of `system:administrators` have everywhere, in addition to lookup.
    /// Default: none.
    pub implicit_rights: Rights,
    /// Identifies callers with tickets. `None`: every caller except the local administrator is
    /// anonymous.
    pub authority: Option<Authority>,
    /// The log of administrative acts. Default: none.
    pub audit: Audit,
    /// The file in which callback state is saved over a clean restart. `None` saves nothing.
    pub callback_state: Option<std::path::PathBuf>,
    /// A volume transaction that was not used for this long, at least a second, is ended.
    pub transaction_idle: Duration,
    /// How long the lease of a directory lasts, in whole seconds.
    pub lease: Duration,
}

impl Config {
    /// The usual settings.
    #[must_use]
    pub fn new(uuid: AfsUuid, clock: WallClock) -> Self {
        Self {
            uuid,
            clock,
            callbacks_max: CALLBACKS_DEFAULT,
            hosts_max: HOSTS_DEFAULT,
            implicit_rights: Rights::NONE,
            authority: None,
            audit: Audit::none(),
            callback_state: None,
            transaction_idle: VOLUME_TRANSACTION_IDLE,
            lease: LEASE,
        }
    }
}
