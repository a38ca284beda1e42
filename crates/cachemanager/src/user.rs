//! A user of this machine, and the source of its tokens.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;

use cellar_rpc::Security;

use super::owner_refusals::Owners;
use cellar_client::cell::CellName;
use cellar_client::client::Client;
use cellar_client::servers::Renewal;

/// The number of a user without tokens.
pub(crate) const ANONYMOUS: u32 = u32::MAX;

/// The source of users' tokens.
pub trait Identities: Send + Sync + 'static {
    /// A number that changes when the user's tokens change. `None`: the user has no tokens. It is
    /// read every few seconds while the user makes requests. Other requests of the user do not wait
    /// for it.
    fn stamp(&self, uid: u32) -> Pin<Box<dyn Future<Output = Option<u64>> + Send + '_>>;

    /// A very cheap check, made before each request of a user. If the number changes, the stamp may
    /// have changed. `None`: there is no such check.
    fn glance(&self, _uid: u32) -> Option<u64> {
        None
    }

    /// The security for calls to the servers of each cell, with the tokens of the last stamp.
    fn securities<'a>(
        &'a self,
        uid: u32,
    ) -> Pin<Box<dyn Future<Output = HashMap<CellName, Security>> + Send + 'a>>;

    /// The source of a new token when one of the user's tokens has run out.
    fn renewal(&self, uid: u32) -> Option<Arc<dyn Renewal>>;

    /// Whether calls with tokens are encrypted.
    fn encrypts(&self) -> bool {
        false
    }

    /// Switches encryption on or off. No effect if users have no tokens.
    fn set_encrypt(&self, _on: bool) {}
}

/// A source without tokens.
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

/// A user of this machine, as file servers know it.
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
    pub(super) fn new(uid: u32, id: u32, client: Client) -> Self {
        let owners = Owners::default();
        Self {
            uid,
            id,
            client,
            owners,
        }
    }

    /// The user's id on this machine, which does not change with new tokens; [`ANONYMOUS`] without
    /// a token.
    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }

    /// The number under which the user's rights are kept.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// The volumes in which the user may not change owners.
    pub(crate) fn owners(&self) -> &Owners {
        &self.owners
    }

    /// The client that calls servers for the user.
    pub fn client(&self) -> &Client {
        &self.client
    }
}
