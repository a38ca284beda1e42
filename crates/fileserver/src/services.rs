//! The services that the handlers of a package use.
//!
//! | type | packages | services |
//! | --- | --- | --- |
//! | [`FileServices`] | RXAFS, AFSOSD | callers, client machines, volumes, objects, counters |
//! | [`VolumeServices`] | AFSVol | callers, promises, volumes, objects, transactions, scrubs |
//!
//! Both share the services; [`crate::server`] makes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cellar_auth::Authority;
use cellar_fileobjects::Objects;
use cellar_wire::ids::AfsTime;

use crate::afsvol::{Scrubs, Transactions};
use crate::callbacks::Callbacks;
use crate::config::WallClock;
use crate::load::Load;
use crate::network::Networks;
use crate::recall_limits::RecallLimits;
use crate::session::Sessions;
use crate::statistics::Statistics;
use crate::volumes::Volumes;

/// The services for calls of clients.
pub(crate) struct FileServices {
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) callbacks: Arc<Callbacks>,
    pub(crate) volumes: Arc<Volumes>,
    pub(crate) objects: Arc<Objects>,
    pub(crate) recall_limits: RecallLimits,
    pub(crate) statistics: Statistics,
    pub(crate) load: Arc<Load>,
}

/// The services for calls of administrators and other servers about volumes.
pub(crate) struct VolumeServices {
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) callbacks: Arc<Callbacks>,
    pub(crate) volumes: Arc<Volumes>,
    pub(crate) objects: Arc<Objects>,
    pub(crate) transactions: Transactions,
    pub(crate) scrubs: Scrubs,
    /// Answers GetLoad.
    pub(crate) load: Arc<Load>,
    pub(crate) networks: Arc<Networks>,
    /// Makes tickets for calls to other servers.
    pub(crate) authority: Option<Authority>,
    pub(crate) clock: WallClock,
    /// The idle time after which a transaction ends.
    pub(crate) transaction_idle: Duration,
    pub(crate) stopping: Stopping,
}

impl VolumeServices {
    /// The current time in the seconds of the wire.
    pub(crate) fn now(&self) -> AfsTime {
        AfsTime::after_1970((self.clock)())
    }

    /// The current time in seconds since 1970.
    pub(crate) fn now_secs(&self) -> u32 {
        self.now().0
    }
}

/// Whether the server stops. Background work ends then.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stopping(Arc<AtomicBool>);

impl Stopping {
    /// Ends the background work.
    pub(crate) fn begin(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
