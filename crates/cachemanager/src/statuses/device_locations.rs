//! The location of a file's bytes, as far as it is known: on devices or on the file server.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::user::User;
use cellar_client::objects::Granted;

/// How long a file is read through the file server after its devices failed, and stored through it
/// if the file server keeps the file.
pub(super) const PAUSE: Duration = Duration::from_secs(10);

/// Policies depend on sizes: a file that has grown by this factor may belong elsewhere.
pub(super) const GROWTH: u64 = 2;

/// The known locations of a file's bytes.
#[derive(Debug, Default)]
pub(crate) struct DeviceLocations {
    pub(super) known: Mutex<Option<KnownLocation>>,
    /// Held during a request, so that other tasks wait for the same answer.
    pub(super) asking: tokio::sync::Mutex<()>,
    /// The last answer to a store, if it was that the file server keeps the file.
    pub(super) kept: Mutex<Option<KeptThere>>,
}

/// The file server's answer that it stores a file itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeptThere {
    /// The user of the store: policies depend on users, too.
    pub(super) user: u32,
    /// The length of the file in the request.
    pub(super) length: u64,
    pub(super) until: Instant,
}

impl KeptThere {
    pub(super) fn holds(&self, user: u32, length: u64, now: Instant) -> bool {
        let grown = self.length.saturating_mul(GROWTH);
        self.user == user && (self.length..grown).contains(&length) && now < self.until
    }
}

/// The location of one version of a file.
#[derive(Clone, Debug)]
pub(super) enum KnownLocation {
    /// In objects, with the right of one user to read them.
    Granted { user: u32, granted: Arc<Granted> },
    /// On the file server.
    Plain { version: u64 },
    /// Every version must be read through the file server until then.
    Avoided { until: Instant },
}

impl DeviceLocations {
    /// Returns the known location of a version for a user. `Some(None)`: the bytes must be read
    /// through the file server.
    pub(super) fn of(&self, user: &User, version: u64) -> Option<Option<Arc<Granted>>> {
        let known = self.known.lock();
        let now = Instant::now();
        match known.as_ref()? {
            KnownLocation::Granted { user: id, granted } => {
                let holds = *id == user.id()
                    && granted.status.data_version == version
                    && now < granted.renew;
                holds.then(|| Some(granted.clone()))
            }
            KnownLocation::Plain { version: of } => (*of == version).then_some(None),
            KnownLocation::Avoided { until } => (now < *until).then_some(None),
        }
    }

    pub(super) fn learn(&self, known: KnownLocation) {
        *self.known.lock() = Some(known);
    }

    /// Forgets the location. The right to read belongs to this machine's address, which has
    /// changed.
    pub(crate) fn forget(&self) {
        *self.known.lock() = None;
    }

    pub(super) fn avoid(&self) {
        let until = Instant::now() + PAUSE;
        self.learn(KnownLocation::Avoided { until });
    }

    /// Whether the file server answered that it keeps a file of this length.
    pub(super) fn are_kept_there(&self, user: &User, length: u64) -> bool {
        let kept = self.kept.lock();
        kept.is_some_and(|kept| kept.holds(user.id(), length, Instant::now()))
    }
}
