//! Users: the identity with which servers are called for each user of this machine.
//!
//! All users without tokens are one, *anonymous*: they share connections, and the known rights. A
//! user with tokens has connections of its own. The cache notices new, renewed and discarded tokens
//! by the identity's stamp. It reads the stamp every [`STAMP_TIME`]. It also reads it before a
//! request if a [glance](crate::Identities::glance) shows a change, or after a login or
//! logout reported itself ([`Environment::look_again`]). So the first request after a login has the
//! new tokens.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cellar_rpc::Security;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::environment::Environment;
use crate::user::{ANONYMOUS, User};
use cellar_client::cell::CellName;
use cellar_client::client::{Client, Config};
use cellar_client::error::Result;
use cellar_client::latency::Latency;

/// The interval at which a user's stamp is read.
const STAMP_TIME: Duration = Duration::from_secs(5);

/// The most users that the cache remembers. When there are more, the user who was not seen for the
/// longest time is dropped, users without tokens first: nothing about them is lost.
const USERS_MAX: usize = 4_096;

/// The response times of servers.
type Latencies = BTreeMap<SocketAddr, Latency>;

/// The users that the cache knows.
#[derive(Debug, Default)]
pub(crate) struct Users {
    known: Mutex<HashMap<u32, KnownUser>>,
    /// The response times of dropped users, so that counts never decrease. Locked after `known`.
    past: Mutex<Latencies>,
    /// A user with new tokens gets a new number, because the known rights are no longer valid.
    next: AtomicU32,
}

#[derive(Debug)]
struct KnownUser {
    user: Arc<User>,
    stamp: Option<u64>,
    asked: Instant,
    /// The glance before the stamp was read.
    glance: Option<u64>,
    /// `reports`: how often a login or logout reported itself. `reports_seen`: the value of
    /// `reports` when the stamp was read.
    reports: u32,
    reports_seen: u32,
}

fn merge(all: &mut Latencies, user: &User) {
    for (server, latency) in user.client().servers().latencies() {
        all.entry(server).or_default().merge(&latency);
    }
}

impl Users {
    /// Returns the response times of each server since the start, for all users.
    pub(crate) fn latencies(&self) -> Latencies {
        let known = self.known.lock();
        let mut all = self.past.lock().clone();
        // All users without tokens are one user, under many numbers.
        let mut seen = HashSet::new();
        for known in known.values() {
            if seen.insert(known.user.id()) {
                merge(&mut all, &known.user);
            }
        }
        all
    }

    /// Adds a user under this number.
    fn put(&self, uid: u32, new: KnownUser) {
        let mut known = self.known.lock();
        if known.len() >= USERS_MAX && !known.contains_key(&uid) {
            let others = known.iter().filter(|(uid, _)| **uid != ANONYMOUS);
            let oldest = others.min_by_key(|(_, one)| (one.user.uid() != ANONYMOUS, one.asked));
            if let Some(oldest) = oldest.map(|(uid, _)| *uid) {
                let gone = known.remove(&oldest);
                self.forget(gone);
            }
        }
        // A login may have reported itself while the stamp was read.
        let reports = known
            .get(&uid)
            .map_or(new.reports_seen, |known| known.reports);
        let gone = known.insert(uid, KnownUser { reports, ..new });
        self.forget(gone);
    }

    /// Keeps the counts of a dropped user. Those of *anonymous* stay with it.
    fn forget(&self, gone: Option<KnownUser>) {
        let user = gone.map(|gone| gone.user);
        if let Some(user) = user.filter(|user| user.uid() != ANONYMOUS) {
            merge(&mut self.past.lock(), &user);
        }
    }

    /// Returns all users.
    pub(crate) fn all(&self) -> Vec<Arc<User>> {
        self.known
            .lock()
            .values()
            .map(|known| known.user.clone())
            .collect()
    }
}

impl Environment {
    fn new_user(&self, uid: u32, security: HashMap<CellName, Security>) -> Result<Arc<User>> {
        let config = Config {
            // The cells of this cache are used.
            cells: Vec::new(),
            administrator: None,
            security,
            renewal: self.identities.renewal(uid),
        };
        let (port, cells) = (self.port.clone(), self.cells.clone());
        let client = Client::without_callbacks(port, cells, config, self.reach.clone());
        let id = self.users.next.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(User::new(uid, id, client)))
    }

    /// Returns the identity with which servers are called for a user of this machine.
    ///
    /// # Errors
    /// No cell is known.
    pub(crate) async fn user(&self, uid: u32) -> Result<Arc<User>> {
        let now = Instant::now();
        let glance = self.identities.glance(uid);
        let mut reports_seen = 0;
        if let Some(known) = self.users.known.lock().get_mut(&uid) {
            reports_seen = known.reports;
            let is_another = known.reports != known.reports_seen || known.glance != glance;
            if !is_another && now.duration_since(known.asked) < STAMP_TIME {
                return Ok(known.user.clone());
            }
            // If nothing shows a change, other requests continue with the known user while this one
            // reads the stamp.
            known.asked = now;
        }
        let stamp = self.identities.stamp(uid).await;
        if let Some(known) = self.users.known.lock().get_mut(&uid)
            && known.stamp == stamp
        {
            known.glance = glance;
            known.reports_seen = reports_seen;
            return Ok(known.user.clone());
        }
        let security = match stamp {
            Some(_) => self.identities.securities(uid).await,
            None => HashMap::new(),
        };
        let user = if security.is_empty() {
            self.anonymous()?
        } else {
            self.new_user(uid, security)?
        };
        let known = KnownUser {
            // If no tickets could be obtained now, they are requested again.
            stamp: stamp.filter(|_| user.uid() != ANONYMOUS),
            user: user.clone(),
            asked: Instant::now(),
            glance,
            reports: reports_seen,
            reports_seen,
        };
        self.users.put(uid, known);
        Ok(user)
    }

    /// Notes that a user of this machine has logged in or out. The user's next request reads the
    /// stamp.
    pub(crate) fn look_again(&self, uid: u32) {
        if let Some(known) = self.users.known.lock().get_mut(&uid) {
            known.reports = known.reports.wrapping_add(1);
        }
    }

    /// Returns the user without tokens.
    ///
    /// # Errors
    /// No cell is known.
    pub(crate) fn anonymous(&self) -> Result<Arc<User>> {
        if let Some(known) = self.users.known.lock().get(&ANONYMOUS) {
            return Ok(known.user.clone());
        }
        let user = self.new_user(ANONYMOUS, HashMap::new())?;
        let mut users = self.users.known.lock();
        let known = users.entry(ANONYMOUS).or_insert_with(|| KnownUser {
            user,
            stamp: None,
            asked: Instant::now(),
            glance: None,
            reports: 0,
            reports_seen: 0,
        });
        Ok(known.user.clone())
    }
}
