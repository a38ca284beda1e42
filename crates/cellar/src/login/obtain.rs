//! One round: gets tickets from the KDC and tokens for the cells, and hands the tokens over.

use std::net::IpAddr;
use std::path::PathBuf;

use cellar_admin::HostNames;
use cellar_client::{Cell, CellName};
use cellar_kerberos::keyring::{self, KeyringKind};
use cellar_kerberos::{
    self as kerberos, CacheName, DomainRealm, KerberosPrincipal, RealmHints, Ticket, candidates,
    programs,
};

use super::database_entry;
use crate::failure::{Failure, Outcome};
use crate::identity::now;

/// How the user proves the identity.
pub(super) enum Proof {
    /// With a password typed on the terminal; for this principal, or the one that the realm knows
    /// the user by.
    Asked(Option<String>),
    /// With the tickets in the cache; if there are none, with a password.
    TicketsThere,
    /// With a principal's key from a keytab.
    Keytab(PathBuf, String),
}

/// A request for tokens.
pub(super) struct Request {
    /// The cells, and their servers if known.
    pub(super) cells: Vec<(CellName, Option<Cell>)>,
    pub(super) realm: Option<String>,
    pub(super) proof: Proof,
    /// Options for `kinit`.
    pub(super) kinit: Vec<String>,
    /// Whether the kernel gets the tokens. `Some(true)`: yes, otherwise fail. `Some(false)`: if it
    /// has an AFS client.
    pub(super) kernel: Option<bool>,
    pub(super) place: KeyringKind,
    /// Whether to make an entry in the protection databases of other realms' cells.
    pub(super) register: bool,
}

/// A token that was obtained.
pub(super) struct ObtainedToken {
    pub(super) cell: CellName,
    pub(super) ticket: Ticket,
    pub(super) in_kernel: bool,
}

impl Request {
    /// Gets a ticket-granting ticket, gets a token for each cell, and hands the tokens over.
    pub(super) async fn obtain(&self, cache: &CacheName) -> Outcome<Vec<ObtainedToken>> {
        self.prove(cache).await?;
        let held = self.tokens(cache).await?;
        let held = self.hand_over(held).await;
        crate::mounted::tokens_changed();
        held
    }

    /// Gets a ticket-granting ticket into the cache, unless the cache has a usable one.
    pub(super) async fn prove(&self, cache: &CacheName) -> Outcome {
        match &self.proof {
            Proof::Asked(principal) => {
                programs::kinit(cache, principal.as_deref(), &self.kinit).await?;
            }
            Proof::TicketsThere => {
                if kerberos::granting_ticket(cache, now()).await?.is_none() {
                    programs::kinit(cache, None, &self.kinit).await?;
                }
            }
            Proof::Keytab(keytab, principal) => {
                programs::kinit_with_keytab(cache, principal, keytab, &self.kinit).await?;
            }
        }
        Ok(())
    }

    /// Gets a ticket for each cell's service into the cache.
    pub(super) async fn tokens(&self, cache: &CacheName) -> Outcome<Vec<(CellName, Ticket)>> {
        let granting = kerberos::granting_ticket(cache, now()).await?;
        let (user, _) = granting.ok_or(kerberos::Error::NoTicket)?;
        let domains = DomainRealm::load();
        let mut held = Vec::new();
        for (cell, details) in &self.cells {
            let ticket = self.token(cache, cell, details.as_ref(), &user, &domains);
            held.push((cell.clone(), ticket.await?));
        }
        Ok(held)
    }

    async fn token(
        &self,
        cache: &CacheName,
        cell: &CellName,
        details: Option<&Cell>,
        user: &KerberosPrincipal,
        domains: &DomainRealm,
    ) -> Outcome<Ticket> {
        let mut hints = RealmHints {
            given: self.realm.as_deref(),
            user: &user.realm,
            server: None,
        };
        let services = candidates(cell.as_str(), hints, domains);
        let unknown = match kerberos::get_token(cache, cell.as_str(), &services, now()).await {
            Err(error @ kerberos::Error::NoService { .. }) if self.realm.is_none() => error,
            other => return Ok(other?),
        };
        // Only now is a reverse lookup of the database server's name worth the time.
        let address = details.and_then(|cell| cell.database_servers.first().copied());
        let name = match address {
            Some(address) if !address.is_loopback() => {
                let mut names = HostNames::new(true);
                names.learn([address]).await;
                Some(names.name(address)).filter(|name| name.parse::<IpAddr>().is_err())
            }
            _ => None,
        };
        hints.server = name.as_deref();
        let more = candidates(cell.as_str(), hints, domains);
        let more: Vec<_> = more
            .into_iter()
            .filter(|service| !services.contains(service))
            .collect();
        if more.is_empty() {
            return Err(unknown.into());
        }
        Ok(kerberos::get_token(cache, cell.as_str(), &more, now()).await?)
    }

    /// Hands the tokens to the kernel, and checks whether the cells know the user.
    pub(super) async fn hand_over(
        &self,
        tickets: Vec<(CellName, Ticket)>,
    ) -> Outcome<Vec<ObtainedToken>> {
        let mut all = Vec::new();
        for (cell, ticket) in tickets {
            let token = ticket.token(cell.as_str())?;
            let details = self.cells.iter().find(|(name, _)| *name == cell);
            if let Some((_, Some(details))) = details {
                database_entry::check(details, &ticket, &token, self.register).await;
            }
            let in_kernel = match self.kernel.map(|must| (must, self.place)) {
                None => false,
                Some((must, place)) => match keyring::add(place, cell.as_str(), &token) {
                    Ok(()) => true,
                    Err(keyring::Error::NoKernelClient) if !must => false,
                    Err(error) if must => return Err(error.into()),
                    Err(error) => {
                        eprintln!("cellar login: the kernel's AFS client got no token: {error}");
                        false
                    }
                },
            };
            all.push(ObtainedToken {
                cell,
                ticket,
                in_kernel,
            });
        }
        if all.is_empty() {
            return Err(Failure::new("no cell"));
        }
        Ok(all)
    }
}
