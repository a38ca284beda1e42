//! As whom `cellar mount` calls servers: with the tickets in the Kerberos caches of the machine's users.
//!
//! 1. Whoever mounts has his own wherever his `KRB5CCNAME` says.
//! 2. Where MIT's library has users' caches elsewhere than in `/tmp/krb5cc_UID` (in the kernel's keyrings, at the daemon
//!    of KCM, in directories: `default_ccache_name` of `krb5.conf`), its programs look there, as the user. They are
//!    asked only then, and at most every few seconds for each user that is busy.
//! 3. Else, or if there is nothing, in `/tmp/krb5cc_UID`.
//!
//! Who has a ticket-granting ticket and no ticket for the home cell, as after `kinit`, a login by PAM, or `kinit -R`, which
//! throws it away, gets one: `kvno`, as the user, puts it into his cache. That is done once for each ticket-granting ticket,
//! so that `cellar logout` holds. A ticket that has run out is none: he goes on as anybody.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cellar_client::cache::Identities;
use cellar_client::{CellName, Renewal};
use cellar_kerberos::programs::{self, Contents};
use cellar_kerberos::{self as kerberos, CacheName, DomainRealm, RealmHints, Ticket};
use cellar_rpc::Security;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::watch::{Place, Watched, stamp_at, stamp_of};
use crate::identity::{self, now};

/// Users whose caches are remembered.
const USERS_MAX: usize = 4_096;
/// How long a KDC is waited for. Whoever is waiting is a program that wants a file.
const KDC_TIME: Duration = Duration::from_secs(10);
/// When one that gave no ticket is asked again.
const RETRY: Duration = Duration::from_secs(300);

/// The tokens in users' Kerberos caches.
#[derive(Debug)]
pub(super) struct Tokens {
    /// The cell that tickets are got for.
    home: CellName,
    protection: identity::Protection,
    /// Who mounts.
    own: u32,
    /// The library has users' caches elsewhere than in the customary files.
    elsewhere: bool,
    /// What was found last.
    found: Mutex<HashMap<u32, Found>>,
    /// The places of caches that MIT's programs looked into. A user of whom nothing was found has
    /// one here, too. Never locked together with `found`.
    places: Mutex<HashMap<u32, Watched>>,
    started: Instant,
    /// Users whose caches are being looked at: one look at a time.
    looking: Mutex<HashMap<u32, Arc<tokio::sync::Mutex<()>>>>,
}

/// A user's tickets.
#[derive(Clone, Debug)]
struct Found {
    cache: CacheName,
    /// Of the cache: another one when what is in it is another.
    stamp: u64,
    /// How often something changed by itself: what ran out.
    passed: u64,
    /// When the next ticket for a cell ends, in Unix seconds.
    ends: Option<u32>,
    /// There is a ticket for the home cell.
    at_home: bool,
    /// The ticket-granting ticket that one was got with, or was found beside.
    served: Option<u64>,
    /// The KDC gave none, and is asked again then.
    again: Option<Instant>,
    /// When he was last looked at.
    seen: Instant,
}

impl Found {
    fn stamp(&self) -> u64 {
        self.stamp ^ self.passed.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Nothing has changed, and nothing has run out.
    fn holds(&self, cache: &CacheName, stamp: u64) -> bool {
        let over = self.ends.is_some_and(|ends| ends <= now());
        let again = self.again.is_some_and(|again| again <= Instant::now());
        self.cache == *cache && self.stamp == stamp && !over && !again
    }
}

/// Those that are still good, and of these when the first one ends.
fn next_end(tickets: &[Ticket], now: u32) -> Option<u32> {
    let ends = tickets.iter().map(|ticket| ticket.ends);
    ends.filter(|ends| *ends > now).min()
}

fn hash_of(ticket: &Ticket) -> u64 {
    let mut hasher = DefaultHasher::new();
    ticket.ticket.hash(&mut hasher);
    hasher.finish()
}

impl Tokens {
    /// Asks the library where it has users' caches.
    pub(super) async fn of(own: u32, home: CellName, protection: identity::Protection) -> Self {
        let usual = programs::default_name(&CacheName::of_user(own)).await;
        let elsewhere = usual.is_ok_and(|name| name != format!("FILE:{}", customary(own)));
        Self {
            home,
            protection,
            own,
            elsewhere,
            found: Mutex::default(),
            places: Mutex::default(),
            started: Instant::now(),
            looking: Mutex::default(),
        }
    }

    /// Where a user's tickets are, and something that is another when they are others.
    async fn look(&self, uid: u32) -> Option<(CacheName, u64)> {
        let named = (uid == self.own).then(CacheName::own);
        let named = named.filter(|own| own.name().is_some());
        let asked = match &named {
            Some(own) => own.path().is_none(),
            None => self.elsewhere,
        };
        if asked {
            let sign = self.sign(uid);
            let cache = named.clone().unwrap_or_else(|| CacheName::of_user(uid));
            match programs::contents(&cache).await {
                Ok(Contents::Tickets(listing)) => {
                    let stamp = Some(listing.stamp);
                    self.watch(uid, Place::of(&listing.cache), stamp, sign);
                    if !listing.services.is_empty() {
                        return Some((cache, listing.stamp));
                    }
                }
                Ok(Contents::Missing { name }) => {
                    self.watch(uid, Place::of(&name.unwrap_or_default()), None, sign);
                }
                Err(error) => {
                    tracing::warn!(uid, %error, "a user's tickets cannot be looked for");
                    if let Some(last) = self.last(uid) {
                        return Some((last.cache, last.stamp));
                    }
                }
            }
        }
        let file = self.file(uid);
        let data = std::fs::symlink_metadata(&file).ok()?;
        if !data.is_file() || data.uid() != uid {
            return None;
        }
        let stamp = stamp_of(&data);
        // Somebody else's file would be somebody else's identity, also if it comes to that place just now.
        Some((CacheName::file_of(&file, uid), stamp))
    }

    /// The file that a user's tickets are in, if they are in none that the library knows.
    fn file(&self, uid: u32) -> PathBuf {
        let named = (uid == self.own).then(CacheName::own);
        let file = named.and_then(|own| own.path());
        file.unwrap_or_else(|| PathBuf::from(customary(uid)))
    }

    /// What a user has now, and what he gets with it.
    async fn refresh(&self, uid: u32) -> Option<Found> {
        let (cache, stamp) = self.look(uid).await?;
        let last = self.last(uid);
        if let Some(last) = &last
            && last.holds(&cache, stamp)
        {
            return Some(last.clone());
        }
        let mut found = Found {
            cache,
            stamp,
            passed: last.as_ref().map_or(0, |last| last.passed),
            ends: None,
            at_home: false,
            served: last.as_ref().and_then(|last| last.served),
            again: None,
            seen: Instant::now(),
        };
        let tickets = self.tickets(&found.cache).await;
        found.ends = next_end(&tickets, now());
        found.at_home = self.has_home(&tickets);
        if let Some(last) = last.filter(|last| last.ends.is_some_and(|ends| ends <= now())) {
            found.passed += 1;
            // Not he gave it up, but time.
            if last.at_home && !found.at_home {
                found.served = None;
            }
        }
        let got = self.get_home(uid, &mut found).await;
        if got && let Some((cache, stamp)) = self.look(uid).await {
            let tickets = self.tickets(&cache).await;
            found.ends = next_end(&tickets, now());
            found.at_home = self.has_home(&tickets);
            (found.cache, found.stamp) = (cache, stamp);
        }
        Some(found)
    }

    async fn tickets(&self, cache: &CacheName) -> Vec<Ticket> {
        // That they cannot be read is said by whoever wants to use them.
        kerberos::cell_tickets(cache, None)
            .await
            .unwrap_or_default()
    }

    fn has_home(&self, tickets: &[Ticket]) -> bool {
        let now = now();
        let of_home =
            |ticket: &Ticket| ticket.server.afs_cell().as_deref() == Some(self.home.as_str());
        tickets
            .iter()
            .any(|ticket| of_home(ticket) && ticket.ends > now)
    }

    /// Gets a ticket for the home cell if there is none and there can be one. Answers whether it has.
    async fn get_home(&self, uid: u32, found: &mut Found) -> bool {
        let granting = kerberos::granting(&found.cache, now()).await;
        let Some((user, granting)) = granting.ok().flatten() else {
            return false;
        };
        let granting = hash_of(&granting);
        if found.at_home || found.served == Some(granting) {
            found.served = Some(granting);
            return false;
        }
        let hints = RealmHints {
            user: &user.realm,
            ..RealmHints::default()
        };
        let services = kerberos::candidates(self.home.as_str(), hints, &DomainRealm::load());
        // By nobody's rights but his: the file may be anybody's by now.
        let cache = match uid == self.own {
            true => found.cache.clone(),
            false => found.cache.clone().by_user(uid),
        };
        let asked = kerberos::get_token(&cache, self.home.as_str(), &services, now());
        let refused = match tokio::time::timeout(KDC_TIME, asked).await {
            Ok(Ok(_)) => {
                tracing::debug!(uid, cell = %self.home, "a user has got a token");
                found.served = Some(granting);
                return true;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the KDC does not answer".to_owned(),
        };
        tracing::info!(uid, cell = %self.home, refused, "a user with Kerberos tickets gets no token");
        found.again = Some(Instant::now() + RETRY);
        false
    }

    fn remember(&self, uid: u32, new: Option<Found>) {
        let mut all = self.found.lock();
        let Some(new) = new else {
            all.remove(&uid);
            return;
        };
        if all.len() >= USERS_MAX && !all.contains_key(&uid) {
            let oldest = all.iter().min_by_key(|(_, found)| found.seen);
            if let Some(oldest) = oldest.map(|(uid, _)| *uid) {
                all.remove(&oldest);
            }
        }
        let seen = Instant::now();
        all.insert(uid, Found { seen, ..new });
    }

    /// The sign of the place where the library keeps a user's tickets, if that was looked into.
    fn sign(&self, uid: u32) -> Option<u64> {
        let place = self.places.lock().get(&uid)?.place().clone();
        let has_token = self
            .last(uid)
            .is_some_and(|last| last.at_home && last.ends.is_none_or(|ends| ends > now()));
        Some(place.sign(uid, has_token, self.started))
    }

    /// A look found these tickets at this place.
    fn watch(&self, uid: u32, place: Place, tickets: Option<u64>, sign: Option<u64>) {
        let mut places = self.places.lock();
        if places.len() >= USERS_MAX && !places.contains_key(&uid) {
            // Each is found again by its user's next look.
            places.clear();
        }
        let new = Watched::new(place.clone());
        let watched = places.entry(uid).or_insert(new);
        watched.looked(place, tickets, sign);
    }

    fn last(&self, uid: u32) -> Option<Found> {
        self.found.lock().get(&uid).cloned()
    }
}

/// Where users' caches are if nobody says otherwise.
fn customary(uid: u32) -> String {
    format!("/tmp/krb5cc_{uid}")
}

impl Identities for Tokens {
    fn stamp(&self, uid: u32) -> Pin<Box<dyn Future<Output = Option<u64>> + Send + '_>> {
        Box::pin(async move {
            let gate = self.looking.lock().entry(uid).or_default().clone();
            let found = {
                let _one = gate.lock().await;
                let found = self.refresh(uid).await;
                self.remember(uid, found.clone());
                found
            };
            let mut looking = self.looking.lock();
            // The map has one, this has one.
            if Arc::strong_count(&gate) == 2 {
                looking.remove(&uid);
            }
            drop(looking);
            found.map(|found| found.stamp())
        })
    }

    fn glance(&self, uid: u32) -> Option<u64> {
        let file = stamp_at(&self.file(uid));
        let Some(sign) = self.sign(uid) else {
            return file;
        };
        let sign = match self.places.lock().get(&uid) {
            Some(watched) => watched.number(sign),
            None => sign,
        };
        Some(sign.rotate_left(1) ^ file.unwrap_or_default())
    }

    fn securities<'a>(
        &'a self,
        uid: u32,
    ) -> Pin<Box<dyn Future<Output = HashMap<CellName, Security>> + Send + 'a>> {
        Box::pin(async move {
            match self.last(uid) {
                Some(found) => identity::tokens_in(&found.cache, self.protection.level()).await,
                None => HashMap::new(),
            }
        })
    }

    fn renewal(&self, uid: u32) -> Option<Arc<dyn Renewal>> {
        let cache = self.last(uid)?.cache;
        Some(identity::renewal_from(cache, self.protection.clone()))
    }

    fn encrypts(&self) -> bool {
        self.protection.encrypts()
    }

    fn set_encrypt(&self, on: bool) {
        self.protection.set_encrypt(on);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_that_has_run_out_is_looked_at_again() {
        let mut found = Found {
            cache: CacheName::own(),
            stamp: 7,
            passed: 0,
            ends: Some(now() + 1000),
            at_home: true,
            served: None,
            again: None,
            seen: Instant::now(),
        };
        assert!(found.holds(&CacheName::own(), 7));
        assert!(!found.holds(&CacheName::own(), 8));
        assert!(!found.holds(&CacheName::named("FILE:/tmp/other"), 7));
        let before = found.stamp();
        found.passed += 1;
        assert_ne!(found.stamp(), before);
        found.ends = Some(now());
        assert!(!found.holds(&CacheName::own(), 7));
        found.ends = None;
        found.again = Some(Instant::now());
        assert!(!found.holds(&CacheName::own(), 7));
    }
}
