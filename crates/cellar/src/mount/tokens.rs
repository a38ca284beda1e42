//! As whom `cellar mount` calls servers: with the tickets in the Kerberos caches of the machine's users.
//!
//! 1. Whoever mounts has his own wherever his `KRB5CCNAME` says.
//! 2. Where MIT's library has users' caches elsewhere than in `/tmp/krb5cc_UID` (in the kernel's keyrings, at the daemon
//!    of KCM, in directories: `default_ccache_name` of `krb5.conf`), its programs look there, as the user. They are
//!    asked only then, and at most every few seconds for each user that is busy.
//! 3. Else, or if there is nothing, in `/tmp/krb5cc_UID`.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use cellar_client::cache::Identities;
use cellar_client::kerberos::{CacheName, programs};
use cellar_client::{CellName, Renewal};
use cellar_rpc::Security;
use parking_lot::Mutex;

use crate::identity;

/// Users whose caches are remembered.
const USERS_MAX: usize = 4_096;

/// The tokens in users' Kerberos caches.
#[derive(Debug)]
pub(super) struct Tokens {
    protection: identity::Protection,
    /// Who mounts.
    own: u32,
    /// The library has users' caches elsewhere than in the customary files.
    elsewhere: bool,
    /// Where tickets were found last, and their stamp.
    found: Mutex<HashMap<u32, (CacheName, u64)>>,
}

impl Tokens {
    /// Asks the library where it has users' caches.
    pub(super) async fn of(own: u32, protection: identity::Protection) -> Self {
        let usual = programs::default_name(&CacheName::of_user(own)).await;
        let elsewhere = usual.is_ok_and(|name| name != format!("FILE:{}", customary(own)));
        Self {
            protection,
            own,
            elsewhere,
            found: Mutex::default(),
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
            let cache = named.clone().unwrap_or_else(|| CacheName::of_user(uid));
            match programs::list(&cache).await {
                Ok(Some(listing)) if !listing.services.is_empty() => {
                    return Some((cache, listing.stamp));
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(uid, %error, "a user's tickets cannot be looked for");
                    let last = self.last(uid);
                    if last.is_some() {
                        return last;
                    }
                }
            }
        }
        let file = named.and_then(|own| own.path());
        let file = file.unwrap_or_else(|| PathBuf::from(customary(uid)));
        let data = std::fs::symlink_metadata(&file).ok()?;
        if !data.is_file() || data.uid() != uid {
            return None;
        }
        let time = (data.mtime() as u64).wrapping_mul(1_000_000_007);
        let stamp = time.wrapping_add(data.mtime_nsec() as u64) ^ data.ino();
        // Somebody else's file would be somebody else's identity, also if it comes to that place just now.
        Some((CacheName::file_of(&file, uid), stamp))
    }

    fn remember(&self, uid: u32, last: Option<(CacheName, u64)>) {
        let mut found = self.found.lock();
        match last {
            Some(last) if found.len() < USERS_MAX || found.contains_key(&uid) => {
                found.insert(uid, last);
            }
            _ => drop(found.remove(&uid)),
        }
    }

    fn last(&self, uid: u32) -> Option<(CacheName, u64)> {
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
            let last = self.look(uid).await;
            self.remember(uid, last.clone());
            last.map(|(_, stamp)| stamp)
        })
    }

    fn securities<'a>(
        &'a self,
        uid: u32,
    ) -> Pin<Box<dyn Future<Output = HashMap<CellName, Security>> + Send + 'a>> {
        Box::pin(async move {
            match self.last(uid) {
                Some((cache, _)) => identity::tokens_in(&cache, self.protection.level()).await,
                None => HashMap::new(),
            }
        })
    }

    fn renewal(&self, uid: u32) -> Option<Arc<dyn Renewal>> {
        let (cache, _) = self.last(uid)?;
        Some(identity::renewal_from(cache, self.protection.clone()))
    }

    fn encrypts(&self) -> bool {
        self.protection.encrypts()
    }

    fn set_encrypt(&self, on: bool) {
        self.protection.set_encrypt(on);
    }
}
