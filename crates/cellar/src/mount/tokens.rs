//! The identity of calls by `cellar mount`: the tickets in the Kerberos caches of the machine's
//! users.
//!
//! 1. The mounting user's cache is the one that `KRB5CCNAME` names.
//! 2. MIT's library may keep users' caches elsewhere than in `/tmp/krb5cc_UID`: in the kernel's
//!    keyrings, at the KCM daemon, or in directories (`default_ccache_name` of `krb5.conf`). Then
//!    MIT's programs read them, run as the user. They are run only in this case, and at most every
//!    few seconds for each active user.
//! 3. Otherwise, or if no tickets are found there, the cache is `/tmp/krb5cc_UID`.
//!
//! A user may have a ticket-granting ticket and no ticket for the home cell: after `kinit`, a login
//! by PAM, or `kinit -R`, which discards it. The mount then gets one: `kvno`, run as the user, puts
//! it into the user's cache. That is done once for each ticket-granting ticket, so that `cellar
//! logout` stays in force. An expired ticket does not count: the user's calls are made as
//! `system:anyuser`.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cellar_cachemanager::Identities;
use cellar_client::{CellName, Renewal};
use cellar_kerberos::programs::{self, Contents};
use cellar_kerberos::{self as kerberos, CacheName, DomainRealm, RealmHints, Ticket};
use cellar_rpc::Security;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::watch::{TicketCache, Watched, stamp_at, stamp_of};
use crate::identity::{self, now};

/// Users whose caches are remembered.
const USERS_MAX: usize = 4_096;
/// How long to wait for a KDC. A program waits for its file meanwhile.
const KDC_TIME: Duration = Duration::from_secs(10);
/// Time after which a KDC that gave no ticket is asked again.
const RETRY: Duration = Duration::from_secs(300);

/// The tokens in users' Kerberos caches.
#[derive(Debug)]
pub(super) struct Tokens {
    /// The cell that tickets are obtained for.
    home: CellName,
    protection: identity::Protection,
    /// The user who mounted.
    own: u32,
    /// Whether the library keeps users' caches elsewhere than in the customary files.
    elsewhere: bool,
    /// The result of each user's last look.
    found: Mutex<HashMap<u32, CachedTokens>>,
    /// The places of caches that MIT's programs have read. A user without tickets has one here,
    /// too. Never locked together with `found`.
    places: Mutex<HashMap<u32, Watched>>,
    started: Instant,
    /// Users whose caches are being read, with a lock each: one look at a time.
    looking: Mutex<HashMap<u32, Arc<tokio::sync::Mutex<()>>>>,
}

/// A user's tickets.
#[derive(Clone, Debug)]
struct CachedTokens {
    cache: CacheName,
    /// The stamp of the cache, which changes with its contents.
    stamp: u64,
    /// How often a ticket expired, which changes the tickets without a change of the cache.
    passed: u64,
    /// When the next ticket for a cell ends, in Unix seconds.
    ends: Option<u32>,
    /// Whether there is a ticket for the home cell.
    at_home: bool,
    /// The ticket-granting ticket that the home cell's ticket was obtained with, or was found
    /// beside.
    served: Option<u64>,
    /// When to ask again a KDC that gave no ticket.
    again: Option<Instant>,
    /// When the user's cache was last read.
    seen: Instant,
}

impl CachedTokens {
    fn stamp(&self) -> u64 {
        self.stamp ^ self.passed.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Returns whether the cache is unchanged and no ticket has expired.
    fn holds(&self, cache: &CacheName, stamp: u64) -> bool {
        let over = self.ends.is_some_and(|ends| ends <= now());
        let again = self.again.is_some_and(|again| again <= Instant::now());
        self.cache == *cache && self.stamp == stamp && !over && !again
    }
}

/// When the first of the valid tickets expires.
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
    /// Finds out where the library keeps users' caches.
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

    /// The cache of a user's tickets, and a stamp that changes with them.
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
                    self.watch(uid, TicketCache::of(&listing.cache), stamp, sign);
                    if !listing.services.is_empty() {
                        return Some((cache, listing.stamp));
                    }
                }
                Ok(Contents::Missing { name }) => {
                    self.watch(uid, TicketCache::of(&name.unwrap_or_default()), None, sign);
                }
                Err(error) => {
                    tracing::warn!(uid, %error, "cannot look for a user's tickets");
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
        // A file of another user would give that user's identity. The owner is checked again when
        // the file is read, since the file may be replaced meanwhile.
        Some((CacheName::file_of(&file, uid), stamp))
    }

    /// The file of a user's tickets, if the library knows no other place.
    fn file(&self, uid: u32) -> PathBuf {
        let named = (uid == self.own).then(CacheName::own);
        let file = named.and_then(|own| own.path());
        file.unwrap_or_else(|| PathBuf::from(customary(uid)))
    }

    /// The user's tickets now. Gets a ticket for the home cell if it is missing.
    async fn refresh(&self, uid: u32) -> Option<CachedTokens> {
        let (cache, stamp) = self.look(uid).await?;
        let last = self.last(uid);
        if let Some(last) = &last
            && last.holds(&cache, stamp)
        {
            return Some(last.clone());
        }
        let mut found = CachedTokens {
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
        let mut expired = false;
        if let Some(last) = last.filter(|last| last.ends.is_some_and(|ends| ends <= now())) {
            found.passed += 1;
            // The ticket expired; the user did not discard it.
            expired = last.at_home && !found.at_home;
            if expired {
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
        if expired && !found.at_home {
            let user = tickets.first().map(|ticket| ticket.client.to_string());
            tracing::warn!(uid, user, cell = %self.home, "the token of a user has expired");
        }
        Some(found)
    }

    async fn tickets(&self, cache: &CacheName) -> Vec<Ticket> {
        // The code that uses the tickets reports a cache that cannot be read.
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

    /// Gets a ticket for the home cell if there is none and there can be one. Returns whether it
    /// got one.
    async fn get_home(&self, uid: u32, found: &mut CachedTokens) -> bool {
        let granting = kerberos::granting_ticket(&found.cache, now()).await;
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
        // Run with the user's rights only: the file may have been replaced by another user's.
        let cache = match uid == self.own {
            true => found.cache.clone(),
            false => found.cache.clone().by_user(uid),
        };
        let asked = kerberos::get_token(&cache, self.home.as_str(), &services, now());
        let refused = match tokio::time::timeout(KDC_TIME, asked).await {
            Ok(Ok(_)) => {
                tracing::debug!(uid, cell = %self.home, "got a token for a user");
                found.served = Some(granting);
                return true;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the KDC does not answer".to_owned(),
        };
        tracing::info!(uid, cell = %self.home, refused, "cannot get a token for a user with Kerberos tickets");
        found.again = Some(Instant::now() + RETRY);
        false
    }

    fn remember(&self, uid: u32, new: Option<CachedTokens>) {
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
        all.insert(uid, CachedTokens { seen, ..new });
    }

    /// The sign of the place where the library keeps a user's tickets, if that place has been read.
    fn sign(&self, uid: u32) -> Option<u64> {
        let place = self.places.lock().get(&uid)?.place().clone();
        let has_token = self
            .last(uid)
            .is_some_and(|last| last.at_home && last.ends.is_none_or(|ends| ends > now()));
        Some(place.sign(uid, has_token, self.started))
    }

    /// Records that a look found these tickets at this place.
    fn watch(&self, uid: u32, place: TicketCache, tickets: Option<u64>, sign: Option<u64>) {
        let mut places = self.places.lock();
        if places.len() >= USERS_MAX && !places.contains_key(&uid) {
            // Each user's next look finds the place again.
            places.clear();
        }
        let new = Watched::new(place.clone());
        let watched = places.entry(uid).or_insert(new);
        watched.looked(place, tickets, sign);
    }

    fn last(&self, uid: u32) -> Option<CachedTokens> {
        self.found.lock().get(&uid).cloned()
    }
}

/// The default place of users' caches.
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
            // The map holds one reference, and this function the other.
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
        let mut found = CachedTokens {
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
