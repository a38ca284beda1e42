//! The tickets for cells in a user's credential cache: to find, get and remove them.

use std::cmp::Reverse;
use std::path::PathBuf;

use cellar_auth::{KerberosCredential, Token};
use cellar_wire::ids::AfsTime;

use crate::cache_file::{PrivateFile, parse_cache, read_owned, replace};
use crate::credential_cache::{CredentialCache, Ticket};
use crate::error::Error;
use crate::krb5_conf::DomainRealm;
use crate::principal::KerberosPrincipal;
use crate::programs::{self, CacheName};
use crate::service::{self, RealmHints};

/// The [`best`] ticket for a cell's servers from the user's cache; `None` if no ticket is valid at
/// `now` (Unix seconds).
///
/// # Errors
/// The cache exists but cannot be read.
pub async fn cached_token(
    cache: &CacheName,
    cell: &str,
    now: u32,
) -> Result<Option<Ticket>, Error> {
    let tickets = cell_tickets(cache, Some(cell)).await?;
    Ok(best(&tickets, cell, now, &DomainRealm::load()).cloned())
}

/// The best of a cell's tickets that are valid at `now`.
///
/// The realms are tried in the order in which the cell's service is looked for (see
/// [`candidates`](crate::candidates)). Of several tickets of one realm, the one that ends last is
/// taken. The KDC of a realm knows the session keys of its tickets, and can therefore impersonate
/// the cell's servers. A realm that was named at a login may belong neither to the user nor to the
/// cell. It comes after all others, even if its tickets last longer.
pub fn best<'a>(
    tickets: &'a [Ticket],
    cell: &str,
    now: u32,
    domains: &DomainRealm,
) -> Option<&'a Ticket> {
    let place = |ticket: &Ticket| {
        let hints = RealmHints {
            user: &ticket.client.realm,
            ..RealmHints::default()
        };
        let realms = service::realms(cell, hints, domains);
        let place = realms
            .iter()
            .position(|realm| *realm == ticket.server.realm);
        place.unwrap_or(realms.len())
    };
    tickets
        .iter()
        .filter(|ticket| ticket.server.afs_cell().as_deref() == Some(cell))
        .filter(|ticket| ticket.ends > now)
        .min_by_key(|ticket| (place(ticket), Reverse(ticket.ends)))
}

/// All tickets for cells in the user's cache, or those for one cell. Expired tickets are included.
///
/// # Errors
/// As [`cached_token`].
pub async fn cell_tickets(cache: &CacheName, cell: Option<&str>) -> Result<Vec<Ticket>, Error> {
    let is_wanted = |service: &KerberosPrincipal| {
        let of = service.afs_cell();
        of.is_some() && (cell.is_none() || of.as_deref() == cell)
    };
    let (file, listing) = match cache.path() {
        Some(path) => (Some(path), None),
        None => match programs::list(cache).await {
            Ok(Some(listing)) => (programs::path_of(&listing.cache), Some(listing)),
            Ok(None) => return Ok(Vec::new()),
            // Without the programs, no login can have put a ticket into the cache.
            Err(Error::NoProgram(_)) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        },
    };
    if let Some(path) = file {
        let cache = parse_cache(&path, read_owned(&path, cache.owner())?)?;
        let tickets = cache.map_or_else(Vec::new, |cache| cache.tickets);
        let wanted = |ticket: &Ticket| is_wanted(&ticket.server);
        return Ok(tickets.into_iter().filter(wanted).collect());
    }
    let mut tickets = Vec::new();
    let services = listing.into_iter().flat_map(|listing| listing.services);
    for service in services.filter(|service| is_wanted(service)) {
        tickets.extend(copied(cache, &service).await?);
    }
    Ok(tickets)
}

/// Gets a ticket for the cell into the cache and returns the ticket. `services` are tried in order.
///
/// # Errors
/// [`Error::NoTicket`] without a ticket-granting ticket; [`Error::NoService`] if no service of the
/// list is known; [`Error::TimedOut`] or [`Error::Refused`] if the KDC does not answer.
pub async fn get_token(
    cache: &CacheName,
    cell: &str,
    services: &[KerberosPrincipal],
    now: u32,
) -> Result<Ticket, Error> {
    for service in services {
        match programs::get_service(cache, service).await {
            Ok(()) => {
                let tickets = cell_tickets(cache, Some(cell)).await?;
                let asked = |ticket: &&Ticket| ticket.server == *service && ticket.ends > now;
                let found = tickets
                    .iter()
                    .filter(asked)
                    .max_by_key(|ticket| ticket.ends);
                // A KDC may issue the ticket under another form of the service's name. Then any
                // valid ticket for the cell is taken.
                let found = found.or_else(|| best(&tickets, cell, now, &DomainRealm::load()));
                return found.cloned().ok_or(Error::NoTicket);
            }
            Err(error) if error.is_unknown_service() => {
                tracing::debug!(%service, %error, "not the cell's service");
            }
            Err(Error::Refused { message, .. })
                if message.contains("No credentials cache")
                    || message.contains("Ticket expired") =>
            {
                return Err(Error::NoTicket);
            }
            Err(error) => return Err(error),
        }
    }
    let tried: Vec<_> = services.iter().map(ToString::to_string).collect();
    Err(Error::NoService {
        cell: cell.to_owned(),
        tried: tried.join(", "),
    })
}

/// Removes the tickets for a cell, or for all cells, from the cache. Returns their number.
///
/// # Errors
/// [`Error::NotRemovable`] if single tickets cannot be removed from a cache of this kind.
pub async fn forget_token(cache: &CacheName, cell: Option<&str>) -> Result<usize, Error> {
    let tickets = cell_tickets(cache, cell).await?;
    if tickets.is_empty() {
        return Ok(0);
    }
    let path = match file_of(cache).await? {
        Some(path) => path,
        None => return Err(Error::NotRemovable(cache.name().unwrap_or_default())),
    };
    let Some((bytes, owner)) = read_owned(&path, None)? else {
        return Ok(0);
    };
    let gone = |ticket: &Ticket| {
        let of = ticket.server.afs_cell();
        of.is_some() && (cell.is_none() || of.as_deref() == cell)
    };
    let rest = CredentialCache::without(&bytes, gone).map_err(|cause| Error::BadCache {
        path: path.clone(),
        cause,
    })?;
    // Root may do this to another user's cache. The cache keeps its owner.
    replace(&path, &rest, Some(owner))?;
    Ok(tickets.len())
}

/// The file of a cache; `None` if the cache is not in a file.
///
/// # Errors
/// `klist`, which knows the name of the user's default cache, does not run.
pub async fn file_of(cache: &CacheName) -> Result<Option<PathBuf>, Error> {
    if let Some(path) = cache.path() {
        return Ok(Some(path));
    }
    if cache.name().is_some() {
        // The cache is of another kind. A cache of kind DIR is a file of its directory.
        let listing = programs::list(cache).await?;
        return Ok(listing.and_then(|listing| programs::path_of(&listing.cache)));
    }
    let name = match programs::list(cache).await? {
        Some(listing) => listing.cache,
        // No cache exists yet. The message of `klist` contains the name that the library would use.
        None => programs::default_name(&CacheName::own()).await?,
    };
    Ok(programs::path_of(&name))
}

/// The owner of the cache and its ticket-granting ticket; `None` if no such ticket is valid at
/// `now`.
///
/// # Errors
/// The cache exists but cannot be read.
pub async fn granting_ticket(
    cache: &CacheName,
    now: u32,
) -> Result<Option<(KerberosPrincipal, Ticket)>, Error> {
    let path = match cache.path() {
        Some(path) => Some(path),
        None => match programs::list(cache).await? {
            None => return Ok(None),
            Some(listing) => match programs::path_of(&listing.cache) {
                Some(path) => Some(path),
                None => return granting_ticket_of_listing(cache, &listing, now).await,
            },
        },
    };
    let Some(path) = path else {
        return Ok(None);
    };
    let Some(found) = parse_cache(&path, read_owned(&path, cache.owner())?)? else {
        return Ok(None);
    };
    let ticket = found.granting_ticket(now).cloned();
    Ok(ticket.map(|ticket| (found.owner, ticket)))
}

async fn granting_ticket_of_listing(
    cache: &CacheName,
    listing: &programs::Listing,
    now: u32,
) -> Result<Option<(KerberosPrincipal, Ticket)>, Error> {
    for service in &listing.services {
        let own = service.components.get(1) == Some(&service.realm);
        if service.is_ticket_granting() && own {
            let tickets = copied(cache, service).await?;
            let good = tickets.into_iter().find(|ticket| ticket.ends > now);
            return Ok(good.map(|ticket| (ticket.client.clone(), ticket)));
        }
    }
    Ok(None)
}

/// A ticket from a cache that is not a file: `kvno` copies it into a private file.
async fn copied(cache: &CacheName, service: &KerberosPrincipal) -> Result<Vec<Ticket>, Error> {
    let private = PrivateFile::of(cache.user())?;
    match programs::copy_service(cache, service, &private.path()).await {
        Ok(()) => {}
        // The ticket has expired, or was removed in the meantime.
        Err(Error::Refused { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    }
    // Another user may have made the file: it must not be a link, nor belong to a third user.
    let path = private.path();
    let copy = parse_cache(&path, read_owned(&path, cache.user())?)?;
    Ok(copy.map_or_else(Vec::new, |cache| cache.tickets))
}

/// The name of an encryption type as Kerberos writes it; its number if cells do not use the type.
pub fn enctype_name(number: i32) -> String {
    match cellar_auth::Enctype::from_number(number) {
        Some(enctype) => enctype.name().to_owned(),
        None => format!("encryption type {number}"),
    }
}

impl Ticket {
    /// The token for the servers of `cell`, made from the ticket.
    ///
    /// # Errors
    /// [`cellar_auth::Error`]: the bytes are not a ticket, or rxkad cannot use the type of the
    /// session key.
    pub fn token(&self, cell: &str) -> Result<Token, cellar_auth::Error> {
        Token::from_kerberos(&KerberosCredential {
            cell,
            client: &self.client.to_string(),
            enctype: self.enctype,
            session_key: &self.session_key,
            ticket: &self.ticket,
            begins: AfsTime(self.begins),
            expires: AfsTime(self.ends),
        })
    }

    /// The encryption type and the version of the service's key under which the ticket is
    /// encrypted.
    pub fn sealed_with(&self) -> Option<(i32, Option<u32>)> {
        cellar_auth::sealed_with(&self.ticket)
    }
}
