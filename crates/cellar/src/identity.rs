//! The identity under which the servers of each cell are called.
//!
//! 1. `--noauth`: unauthenticated.
//! 2. `--localauth`, on a server: as the cell's own service, by a ticket that is made from the
//!    cell's key. Any account that can read the key is the cell's administrator.
//! 3. Otherwise with the tokens in the user's Kerberos credential cache ([`kerberos`]), and
//!    unauthenticated in cells without a token. If a token expires during a command, the cache is
//!    read again.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use cellar_auth::{Authority, Level};
use cellar_client::{Cell, CellName, Renewal};
use cellar_kerberos::{self as kerberos, CacheName, DomainRealm};
use cellar_rpc::Security;
use cellar_wire::ids::AfsTime;

use crate::cell_directory::CellDirectory;
use crate::failure::{Failure, Outcome};

/// Key directories of OpenAFS's servers: Debian's path, then the traditional one.
const OPENAFS_SERVER_DIRECTORIES: [&str; 2] = ["/etc/openafs/server", "/usr/afs/etc"];

/// The options that select the identity.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct IdentityOptions {
    /// Make calls without a token, as system:anyuser.
    #[arg(long, conflicts_with = "localauth")]
    pub(crate) noauth: bool,
    /// Encrypt all data sent and received. Needs a token or --localauth.
    #[arg(long)]
    pub(crate) encrypt: bool,
    /// Act as administrator with the cell's key. Works on a server of the cell.
    #[arg(long)]
    pub(crate) localauth: bool,
}

impl IdentityOptions {
    pub(crate) fn level(self) -> Level {
        if self.encrypt {
            Level::Crypt
        } else {
            Level::Clear
        }
    }

    /// The source of another token when one expires during a command.
    pub(crate) fn renewal(self) -> Option<Arc<dyn Renewal>> {
        let by_token = !self.noauth && !self.localauth;
        by_token.then(|| renewal_from(CacheName::own(), self.level().into()))
    }

    /// The security of calls to the servers of `cells`, the first of which is the home cell.
    /// `directory` is the home cell's directory, if it is on this machine. If `home_by_token` is
    /// set, the home cell's servers are called with a token too, not only those of other cells.
    pub(crate) async fn securities(
        self,
        cells: &[Cell],
        directory: Option<&CellDirectory>,
        home_by_token: bool,
    ) -> Outcome<HashMap<CellName, Security>> {
        if self.noauth {
            return Ok(HashMap::new());
        }
        if !self.localauth {
            let home = cells.first().map(|cell| &cell.name);
            let home = home.filter(|_| home_by_token);
            return Ok(tokens(home, self.level()).await);
        }
        let home = cells.first().map(|cell| cell.name.clone());
        let home = home.ok_or_else(|| Failure::new("--localauth: which cell?"))?;
        let security = localauth(&home, directory, self.level())?;
        Ok(HashMap::from([(home, security)]))
    }
}

impl IdentityOptions {
    /// The security of the cell's own service, if the key can be read.
    pub(crate) fn by_key(
        self,
        cell: &CellName,
        directory: Option<&CellDirectory>,
    ) -> Option<Security> {
        localauth(cell, directory, self.level()).ok()
    }
}

/// How calls with tokens are protected. That may change while the tokens are in use.
#[derive(Clone, Debug)]
pub(crate) struct Protection(Arc<AtomicBool>);

impl From<Level> for Protection {
    fn from(level: Level) -> Self {
        Self(Arc::new(AtomicBool::new(level == Level::Crypt)))
    }
}

impl Protection {
    pub(crate) fn encrypts(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set_encrypt(&self, on: bool) {
        self.0.store(on, Ordering::Relaxed);
    }

    pub(crate) fn level(&self) -> Level {
        match self.encrypts() {
            true => Level::Crypt,
            false => Level::Clear,
        }
    }
}

/// A [`Renewal`] that reads a credential cache.
pub(crate) fn renewal_from(cache: CacheName, protection: Protection) -> Arc<dyn Renewal> {
    Arc::new(FromCache(cache, protection))
}

/// A credential cache, which `cellar login --keep` may have refilled.
#[derive(Debug)]
struct FromCache(CacheName, Protection);

impl Renewal for FromCache {
    fn renew<'a>(
        &'a self,
        cell: &'a CellName,
    ) -> Pin<Box<dyn Future<Output = Option<Security>> + Send + 'a>> {
        Box::pin(async move {
            let ticket = kerberos::cached_token(&self.0, cell.as_str(), now()).await;
            let token = ticket.ok()??.token(cell.as_str()).ok()?;
            Some(token.security(self.1.level()))
        })
    }
}

/// The best token for each cell. An unreadable cache is reported and is not a failure, since many
/// commands need no token. The same holds for an expired token for `home`.
async fn tokens(home: Option<&CellName>, level: Level) -> HashMap<CellName, Security> {
    let tickets = match kerberos::cell_tickets(&CacheName::own(), None).await {
        Ok(tickets) => tickets,
        Err(error) => {
            crate::output::errln!("cellar: no token, continuing as system:anyuser: {error}");
            return HashMap::new();
        }
    };
    let now = now();
    let of_home = |ticket: &&kerberos::Ticket| {
        let cell = ticket.server.afs_cell();
        home.is_some_and(|home| cell.is_some_and(|cell| home.as_str().eq_ignore_ascii_case(&cell)))
    };
    let mut of_home = tickets.iter().filter(of_home).peekable();
    if let Some(ticket) = of_home.peek().copied()
        && of_home.all(|ticket| ticket.ends <= now)
        && let Some(cell) = home
    {
        crate::output::errln!(
            "cellar: the token of {} for cell {cell} has expired, continuing as system:anyuser: 'cellar login' \
             gets a new one",
            ticket.client
        );
    }
    best_tokens(&tickets, level)
}

/// The user whose token is used for a cell, for people.
pub(crate) async fn token_holder(cell: &CellName) -> String {
    let tickets = kerberos::cell_tickets(&CacheName::own(), None).await;
    let tickets = tickets.unwrap_or_default();
    let best = kerberos::best(&tickets, cell.as_str(), now(), &DomainRealm::load());
    match best {
        Some(ticket) => format!("{}, with a token for cell {cell}", ticket.client),
        None => format!("the user of a token for cell {cell}"),
    }
}

/// The best token for each cell in a credential cache; empty if the cache cannot be read.
pub(crate) async fn tokens_in(cache: &CacheName, level: Level) -> HashMap<CellName, Security> {
    match kerberos::cell_tickets(cache, None).await {
        Ok(tickets) => best_tokens(&tickets, level),
        Err(error) => {
            tracing::warn!(%error, "cannot read a user's tokens");
            HashMap::new()
        }
    }
}

fn best_tokens(tickets: &[kerberos::Ticket], level: Level) -> HashMap<CellName, Security> {
    let now = now();
    let named = tickets.iter().filter_map(|ticket| ticket.server.afs_cell());
    let cells: HashSet<CellName> = named.filter_map(|cell| CellName::new(&cell).ok()).collect();
    let domains = DomainRealm::load();
    let security = |cell: CellName| {
        let ticket = kerberos::best(tickets, cell.as_str(), now, &domains)?;
        match ticket.token(cell.as_str()) {
            Ok(token) => Some((cell, token.security(level))),
            Err(error) => {
                crate::output::errln!(
                    "cellar: no token for {cell}, continuing as system:anyuser: {error}"
                );
                None
            }
        }
    };
    cells.into_iter().filter_map(security).collect()
}

fn localauth(
    cell: &CellName,
    directory: Option<&CellDirectory>,
    level: Level,
) -> Outcome<Security> {
    let place = match directory {
        Some(directory) => directory.server_etc(),
        None => openafs_server(cell).ok_or_else(|| {
            Failure::new(format!(
                "--localauth works only on a server of cell {cell}: give --dir, the directory of \
                 a cell on this machine"
            ))
        })?,
    };
    let authority = Authority::open(&place, cell.as_str())?;
    authority.localauth(level).map_err(|error| {
        Failure::new(format!(
            "--localauth: {error}. The keys are in {}; only root and the owner of the cell may \
             read them",
            place.display()
        ))
    })
}

/// The key directory of an OpenAFS server on this machine, if it belongs to the cell.
fn openafs_server(cell: &CellName) -> Option<PathBuf> {
    OPENAFS_SERVER_DIRECTORIES
        .into_iter()
        .map(PathBuf::from)
        .find(|place| {
            let this_cell = std::fs::read_to_string(place.join("ThisCell")).unwrap_or_default();
            let name = this_cell.split_whitespace().next().map(CellName::new);
            matches!(name, Some(Ok(name)) if name == *cell)
        })
}

/// The current time in Unix seconds.
pub(crate) fn now() -> u32 {
    AfsTime::from(SystemTime::now()).0
}
