//! As whom servers are called for each user of this machine.
//!
//! Whoever has no token is *anybody*, and all such users are one: they share connections, and what is
//! known about rights. Who has tokens has connections of his own. Tokens that come, are renewed or given
//! up are noticed by the identity's stamp. It is asked for every [`STAMP_TIME`], and before a
//! request is made where a [glance](Identities::glance) says that something changed, or a login
//! told us ([`Cache::look_again`]): the first request after a login has the new tokens.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cellar_rpc::Security;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::Cache;
use super::attributes::Owners;
use crate::cell::CellName;
use crate::client::{Client, Config};
use crate::error::Result;
use crate::latency::Latency;
use crate::servers::Renewal;

/// How often it is asked whether a user has other tokens.
const STAMP_TIME: Duration = Duration::from_secs(5);

/// Users who are remembered at a time; when more come, those go who were not seen for longest, first of all those without
/// tokens, of whom nothing is lost.
const USERS_MAX: usize = 4_096;

/// The number of whoever has no token.
pub(crate) const ANYBODY: u32 = u32::MAX;

/// Where users' tokens come from.
pub trait Identities: Send + Sync + 'static {
    /// Something that is another when the user's tokens are others. `None`: he has none. Asked every few seconds while
    /// he is busy; others of his calls do not wait for it.
    fn stamp(&self, uid: u32) -> Pin<Box<dyn Future<Output = Option<u64>> + Send + '_>>;

    /// A look that costs next to nothing, taken before each request of a user: another number than
    /// before says that the stamp may be another. `None`: there is no such look.
    fn glance(&self, _uid: u32) -> Option<u64> {
        None
    }

    /// How the servers of each cell are called for him, with the tokens that the last stamp was of.
    fn securities<'a>(
        &'a self,
        uid: u32,
    ) -> Pin<Box<dyn Future<Output = HashMap<CellName, Security>> + Send + 'a>>;

    /// Who is asked when one of his tokens has run out.
    fn renewal(&self, uid: u32) -> Option<Arc<dyn Renewal>>;

    /// Whether what is sent and received with tokens is encrypted.
    fn encrypts(&self) -> bool {
        false
    }

    /// From now on it is, or is not; where nobody has tokens, it is not.
    fn set_encrypt(&self, _on: bool) {}
}

/// Nobody has tokens.
#[derive(Clone, Copy, Debug)]
pub struct Anonymous;

impl Identities for Anonymous {
    fn stamp(&self, _uid: u32) -> Pin<Box<dyn Future<Output = Option<u64>> + Send + '_>> {
        Box::pin(std::future::ready(None))
    }

    fn securities<'a>(
        &'a self,
        _uid: u32,
    ) -> Pin<Box<dyn Future<Output = HashMap<CellName, Security>> + Send + 'a>> {
        Box::pin(std::future::ready(HashMap::new()))
    }

    fn renewal(&self, _uid: u32) -> Option<Arc<dyn Renewal>> {
        None
    }
}

/// A user of this machine as file servers know him.
pub struct User {
    uid: u32,
    id: u32,
    client: Client,
    owners: Owners,
}

impl std::fmt::Debug for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "User({})", self.id)
    }
}

impl User {
    /// Which user of this machine he is, also tomorrow; [`ANYBODY`] without a token.
    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }

    /// The number under which his rights are kept.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Where he may not change owners.
    pub(crate) fn owners(&self) -> &Owners {
        &self.owners
    }

    /// What calls servers for him.
    pub fn client(&self) -> &Client {
        &self.client
    }
}

/// How long servers took to answer.
type Latencies = BTreeMap<SocketAddr, Latency>;

/// Those who were seen.
#[derive(Debug, Default)]
pub(crate) struct Users {
    known: Mutex<HashMap<u32, Known>>,
    /// The answers that those had who went: counts never go down. Locked after `known`.
    past: Mutex<Latencies>,
    /// Who has other tokens gets another number: what was known of his rights is not known of him now.
    next: AtomicU32,
}

#[derive(Debug)]
struct Known {
    user: Arc<User>,
    stamp: Option<u64>,
    asked: Instant,
    /// As it was before the stamp was asked for.
    glance: Option<u64>,
    /// How often a login has told us that the stamp is another, and how often it had when the
    /// stamp was asked for.
    told: u32,
    heard: u32,
}

fn merge(all: &mut Latencies, user: &User) {
    for (server, latency) in user.client().servers().latencies() {
        all.entry(server).or_default().merge(&latency);
    }
}

impl Users {
    /// How long each server took to answer, whoever asked, since the start.
    pub(crate) fn latencies(&self) -> Latencies {
        let known = self.known.lock();
        let mut all = self.past.lock().clone();
        // Whoever has no token is one user, under many numbers.
        let mut seen = HashSet::new();
        for known in known.values() {
            if seen.insert(known.user.id()) {
                merge(&mut all, &known.user);
            }
        }
        all
    }

    /// He is known by this number from now on.
    fn put(&self, uid: u32, new: Known) {
        let mut known = self.known.lock();
        if known.len() >= USERS_MAX && !known.contains_key(&uid) {
            let others = known.iter().filter(|(uid, _)| **uid != ANYBODY);
            let oldest = others.min_by_key(|(_, one)| (one.user.uid() != ANYBODY, one.asked));
            if let Some(oldest) = oldest.map(|(uid, _)| *uid) {
                let gone = known.remove(&oldest);
                self.forget(gone);
            }
        }
        // A login may have told us while the stamp was asked for.
        let told = known.get(&uid).map_or(new.heard, |known| known.told);
        let gone = known.insert(uid, Known { told, ..new });
        self.forget(gone);
    }

    /// Keeps the counts of somebody who goes; those of anybody stay with him.
    fn forget(&self, gone: Option<Known>) {
        let user = gone.map(|gone| gone.user);
        if let Some(user) = user.filter(|user| user.uid() != ANYBODY) {
            merge(&mut self.past.lock(), &user);
        }
    }

    /// All that call servers.
    pub(crate) fn all(&self) -> Vec<Arc<User>> {
        self.known
            .lock()
            .values()
            .map(|known| known.user.clone())
            .collect()
    }
}

impl Cache {
    fn new_user(&self, uid: u32, security: HashMap<CellName, Security>) -> Result<Arc<User>> {
        let config = Config {
            // Those of this cache.
            cells: Vec::new(),
            administrator: None,
            security,
            renewal: self.identities().renewal(uid),
        };
        let (port, cells) = (self.port().clone(), self.known_cells().clone());
        let client = Client::without_callbacks(port, cells, config, self.reach.clone());
        let id = self.users().next.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(User {
            uid,
            id,
            client,
            owners: Owners::default(),
        }))
    }

    /// As whom servers are called for this user of the machine.
    ///
    /// # Errors
    /// No cell is known.
    pub async fn user(&self, uid: u32) -> Result<Arc<User>> {
        let now = Instant::now();
        let glance = self.identities().glance(uid);
        let mut heard = 0;
        if let Some(known) = self.users().known.lock().get_mut(&uid) {
            heard = known.told;
            let is_another = known.told != known.heard || known.glance != glance;
            if !is_another && now.duration_since(known.asked) < STAMP_TIME {
                return Ok(known.user.clone());
            }
            // Where nothing says that it is another, other requests go on with what is known while
            // one asks.
            known.asked = now;
        }
        let stamp = self.identities().stamp(uid).await;
        if let Some(known) = self.users().known.lock().get_mut(&uid)
            && known.stamp == stamp
        {
            known.glance = glance;
            known.heard = heard;
            return Ok(known.user.clone());
        }
        let security = match stamp {
            Some(_) => self.identities().securities(uid).await,
            None => HashMap::new(),
        };
        let user = if security.is_empty() {
            self.anybody()?
        } else {
            self.new_user(uid, security)?
        };
        let known = Known {
            // Tickets that could not be had just now are asked for again.
            stamp: stamp.filter(|_| user.uid != ANYBODY),
            user: user.clone(),
            asked: Instant::now(),
            glance,
            told: heard,
            heard,
        };
        self.users().put(uid, known);
        Ok(user)
    }

    /// A user of the machine has logged in or out: his next request asks for his tokens.
    pub fn look_again(&self, uid: u32) {
        if let Some(known) = self.users().known.lock().get_mut(&uid) {
            known.told = known.told.wrapping_add(1);
        }
    }

    /// Whoever has no token.
    ///
    /// # Errors
    /// No cell is known.
    pub fn anybody(&self) -> Result<Arc<User>> {
        if let Some(known) = self.users().known.lock().get(&ANYBODY) {
            return Ok(known.user.clone());
        }
        let user = self.new_user(ANYBODY, HashMap::new())?;
        let mut users = self.users().known.lock();
        let known = users.entry(ANYBODY).or_insert_with(|| Known {
            user,
            stamp: None,
            asked: Instant::now(),
            glance: None,
            told: 0,
            heard: 0,
        });
        Ok(known.user.clone())
    }
}
