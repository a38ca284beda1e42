//! Tokens from Kerberos: a user's credential cache is the only store of tokens for our own commands.
//!
//! 1. `cellar login` puts a ticket for the cell's service into the user's credential cache, whatever kind
//!    that is ([`get_token`]).
//! 2. Every command makes its token from that ticket ([`cached_token`]). It asks no KDC: a command in a
//!    cell without Kerberos, or on a machine without network, is not delayed.
//! 3. Logging out takes the ticket away again ([`forget_token`]).
//!
//! The cache of form FILE is read directly; for others MIT's programs make a copy of one ticket
//! (decision 0009).

// Foreign bytes are parsed here: nothing may panic on them.
#![cfg_attr(
    not(test),
    deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic)
)]

mod configuration;
mod credential_cache;
mod principal;
pub mod programs;
mod service;

use std::cmp::Reverse;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use cellar_auth::{KerberosCredential, Token};
use cellar_wire::ids::AfsTime;
use zeroize::Zeroizing;

use crate::cell::CellName;

pub use configuration::DomainRealm;
pub use credential_cache::{BadCache, CACHE_BYTES_MAX, CredentialCache, Ticket};
pub use principal::KerberosPrincipal;
pub use programs::CacheName;
pub use service::{RealmHints, candidates};

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// One of MIT's programs is not there.
    #[error(
        "no program '{0}' here: install MIT Kerberos' programs (Debian: krb5-user; others: krb5-workstation)"
    )]
    NoProgram(&'static str),
    /// One of them cannot be run.
    #[error("cannot run {program}: {cause}")]
    Program {
        /// Which.
        program: &'static str,
        /// Why.
        #[source]
        cause: std::io::Error,
    },
    /// One of them does not come to an end.
    #[error("{0} does not come to an end: does the KDC answer?")]
    Silent(&'static str),
    /// One of them failed, and this is what it printed.
    #[error("{message}")]
    Refused {
        /// Which.
        program: &'static str,
        /// Its words.
        message: String,
    },
    /// One of them failed and has said why.
    #[error("{0} failed")]
    Said(&'static str),
    /// The user has no credential cache, or no good ticket in it.
    #[error("you have no Kerberos ticket: 'cellar login PRINCIPAL' gets one")]
    NoTicket,
    /// No realm knows the cell's service.
    #[error(
        "no realm knows a service for cell {cell}. Tried {tried}: give --realm, or ask the cell's administrator ('addprinc afs/{cell}')"
    )]
    NoService {
        /// The cell.
        cell: String,
        /// The principals that were tried.
        tried: String,
    },
    /// The credential cache cannot be read or written.
    #[error("{}: {cause}", path.display())]
    File {
        /// Its file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: std::io::Error,
    },
    /// The credential cache makes no sense.
    #[error("{}: {cause}", path.display())]
    BadCache {
        /// Its file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: BadCache,
    },
    /// A keytab without keys.
    #[error("{}: no keys in this keytab", .0.display())]
    EmptyKeytab(PathBuf),
    /// Single tickets cannot be taken out of such a cache.
    #[error(
        "single tickets cannot be taken out of {0}: 'cellar logout --all' destroys the whole cache"
    )]
    NotRemovable(String),
}

impl Error {
    /// Whether a KDC does not know the service (or no way to its realm): another name may do.
    ///
    /// The programs tell by their words only; any refusal but "the KDC cannot be reached" counts.
    pub fn is_unknown_service(&self) -> bool {
        matches!(self, Self::Refused { message, .. }
            if !message.contains("Cannot contact") && !message.contains("No credentials cache")
                && !message.contains("Ticket expired"))
    }
}

/// The [`best`] ticket for a cell's servers, from the user's cache, if there is a good one at `now` (Unix
/// seconds).
///
/// # Errors
/// The cache is there but cannot be read.
pub async fn cached_token(
    cache: &CacheName,
    cell: &str,
    now: u32,
) -> Result<Option<Ticket>, Error> {
    let tickets = cell_tickets(cache, Some(cell)).await?;
    Ok(best(&tickets, cell, now, &DomainRealm::load()).cloned())
}

/// The best of a cell's tickets at `now`: of the realm in which the cell's service is looked for first (see
/// [`candidates`]), and there the one that ends last. Whoever knows a ticket's session key can answer in the
/// servers' stead: a realm that has nothing to do with user or cell, which somebody named at a login, comes
/// after all others, however long its tickets last.
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

/// All tickets for cells in the user's cache, or those of one cell, expired ones included.
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
            // Without the programs there is no login either.
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

/// Gets a ticket for the cell into the cache and answers it.
///
/// # Errors
/// [`Error::NoTicket`] without a ticket-granting ticket; [`Error::NoService`]; the KDC does not answer.
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
                // A KDC may answer with a ticket of another form of the name; the cell is what counts then.
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

/// Takes a cell's tickets out of the cache, or those of all cells. Answers how many there were.
///
/// # Errors
/// [`Error::NotRemovable`] if the cache is of a kind that lets no single tickets be removed.
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
    // Root may do this for somebody else's cache: what was his stays his.
    replace(&path, &rest, Some(owner))?;
    Ok(tickets.len())
}

/// The file of a cache, if it is in one.
///
/// # Errors
/// MIT's programs, which must be asked for the name of the user's own cache, do not run.
pub async fn file_of(cache: &CacheName) -> Result<Option<PathBuf>, Error> {
    if let Some(path) = cache.path() {
        return Ok(Some(path));
    }
    if cache.name().is_some() {
        // Of another kind; but one cache of a directory is a file.
        let listing = programs::list(cache).await?;
        return Ok(listing.and_then(|listing| programs::path_of(&listing.cache)));
    }
    let name = match programs::list(cache).await? {
        Some(listing) => listing.cache,
        // There is none yet. The library would say which it would make, in words.
        None => programs::default_name(&CacheName::own()).await?,
    };
    Ok(programs::path_of(&name))
}

/// Copies a cache from file to file, in one step. The new one is ours and nobody else can read it; in somebody
/// else's directory, where root may keep tickets for him, it is his if the one before was.
///
/// # Errors
/// [`Error::File`]; [`Error::NoTicket`] if there is none.
pub fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    let bytes = read_file(from)?.ok_or(Error::NoTicket)?;
    replace(to, &bytes, heir(to))
}

/// Whose a file shall be that takes the place of `path`, if not ours. Anybody can make a file of that name in
/// a directory for all, as caches are called in `/tmp`: that gives no right to the tickets.
fn heir(path: &Path) -> Option<Owner> {
    let old = std::fs::symlink_metadata(path).ok()?;
    let directory = std::fs::metadata(directory_of(path)).ok()?;
    (old.uid() == directory.uid()).then(|| (old.uid(), old.gid()))
}

fn directory_of(path: &Path) -> &Path {
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    directory.unwrap_or(Path::new("."))
}

/// Whose the cache is, and until when it can get further tickets; `None` if it cannot at `now`.
///
/// # Errors
/// The cache is there but cannot be read.
pub async fn granting(
    cache: &CacheName,
    now: u32,
) -> Result<Option<(KerberosPrincipal, Ticket)>, Error> {
    let path = match cache.path() {
        Some(path) => Some(path),
        None => match programs::list(cache).await? {
            None => return Ok(None),
            Some(listing) => match programs::path_of(&listing.cache) {
                Some(path) => Some(path),
                None => return granting_elsewhere(cache, &listing, now).await,
            },
        },
    };
    let Some(path) = path else {
        return Ok(None);
    };
    let Some(found) = parse_cache(&path, read_owned(&path, cache.owner())?)? else {
        return Ok(None);
    };
    let ticket = found.granting(now).cloned();
    Ok(ticket.map(|ticket| (found.owner, ticket)))
}

async fn granting_elsewhere(
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

/// A ticket from a cache that is no file, by way of a private one.
async fn copied(cache: &CacheName, service: &KerberosPrincipal) -> Result<Vec<Ticket>, Error> {
    let private = PrivateFile::of(cache.user())?;
    match programs::copy_service(cache, service, &private.path()).await {
        Ok(()) => {}
        // It went meanwhile, or has expired.
        Err(Error::Refused { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    }
    // Where somebody else has made it, it is no link, and no file of a third.
    let path = private.path();
    let copy = parse_cache(&path, read_owned(&path, cache.user())?)?;
    Ok(copy.map_or_else(Vec::new, |cache| cache.tickets))
}

/// A name for a cache that only its owner can read, in a directory of its own; removed when dropped.
#[derive(Debug)]
pub struct PrivateFile(Private);

#[derive(Debug)]
enum Private {
    Ours(tempfile::TempDir),
    /// Somebody else's directory in one of ours. He can put there what he likes, which is his to remove.
    His(PathBuf),
}

impl PrivateFile {
    /// Makes the directory, where this user's runtime files are, else in the directory for temporary
    /// ones.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn new() -> Result<Self, Error> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let places = runtime.into_iter().chain([std::env::temp_dir()]);
        let mut last = None;
        for place in places {
            // Mode 0700.
            match tempfile::Builder::new()
                .prefix("cellar-")
                .tempdir_in(&place)
            {
                Ok(directory) => return Ok(Self(Private::Ours(directory))),
                Err(cause) => last = Some(Error::File { path: place, cause }),
            }
        }
        Err(last.unwrap_or(Error::NoTicket))
    }

    /// For somebody else, who cannot reach our runtime files nor our own directory for temporary ones.
    fn of(user: Option<u32>) -> Result<Self, Error> {
        let Some(user) = user else {
            return Self::new();
        };
        let place = Path::new("/tmp");
        let made = (|| {
            let outer = tempfile::Builder::new()
                .prefix("cellar-")
                .tempdir_in(place)?;
            // Mode 0700, as the outer one has at first.
            let inner = tempfile::tempdir_in(outer.path())?.keep();
            std::os::unix::fs::chown(&inner, Some(user), None)?;
            std::fs::set_permissions(outer.path(), std::fs::Permissions::from_mode(0o711))?;
            // Nothing of his is removed by us, who could remove what he cannot.
            let _kept = outer.keep();
            Ok(inner)
        })();
        let made = made.map_err(|cause| Error::File {
            path: place.to_owned(),
            cause,
        });
        Ok(Self(Private::His(made?)))
    }

    /// The file, which is not there yet.
    pub fn path(&self) -> PathBuf {
        let directory = match &self.0 {
            Private::Ours(directory) => directory.path(),
            Private::His(directory) => directory,
        };
        directory.join("krb5cc")
    }
}

impl Drop for PrivateFile {
    fn drop(&mut self) {
        if let Private::His(directory) = &self.0 {
            let _none = std::fs::remove_file(self.path());
            let _his = std::fs::remove_dir(directory);
            let _not_empty = directory.parent().map(std::fs::remove_dir);
        }
    }
}

/// The name of an encryption type, as Kerberos writes it; its number where it is none that cells use.
pub fn enctype_name(number: i32) -> String {
    match cellar_auth::Enctype::from_number(number) {
        Some(enctype) => enctype.name().to_owned(),
        None => format!("encryption type {number}"),
    }
}

/// Reads a cache from a file; `None` if there is none.
///
/// # Errors
/// [`Error::File`], [`Error::BadCache`].
pub fn read_cache(path: impl AsRef<Path>) -> Result<Option<CredentialCache>, Error> {
    let path = path.as_ref();
    parse_cache(path, read_owned(path, None)?)
}

fn parse_cache(path: &Path, read: Option<Owned>) -> Result<Option<CredentialCache>, Error> {
    let Some((bytes, _)) = read else {
        return Ok(None);
    };
    if bytes.is_empty() {
        return Ok(None);
    }
    let cache = CredentialCache::parse(&bytes);
    cache.map(Some).map_err(|cause| Error::BadCache {
        path: path.to_owned(),
        cause,
    })
}

/// User and group.
type Owner = (u32, u32);
/// What is in a file, and whose that file is.
type Owned = (Zeroizing<Vec<u8>>, Owner);

fn read_file(path: &Path) -> Result<Option<Zeroizing<Vec<u8>>>, Error> {
    Ok(read_owned(path, None)?.map(|(bytes, _)| bytes))
}

/// A file; `None` if there is none, or none that is `owner`'s. Then it is not a link either, and not a pipe that
/// somebody would wait at.
fn read_owned(path: &Path, owner: Option<u32>) -> Result<Option<Owned>, Error> {
    let at = |cause| Error::File {
        path: path.to_owned(),
        cause,
    };
    let mut open = std::fs::File::options();
    open.read(true);
    if owner.is_some() {
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        open.custom_flags(flags.bits().cast_signed());
    }
    let file = match open.open(path) {
        Ok(file) => file,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(_) if owner.is_some() && path.is_symlink() => return Ok(None),
        Err(cause) => return Err(at(cause)),
    };
    // Of what was opened: the name may stand for something else by now.
    let metadata = file.metadata().map_err(at)?;
    if owner.is_some_and(|owner| !metadata.is_file() || metadata.uid() != owner) {
        return Ok(None);
    }
    // Of the full size at once: growing would leave copies of keys behind.
    let capacity = usize::try_from(metadata.len().min(CACHE_BYTES_MAX)).unwrap_or(0);
    let mut bytes = Zeroizing::new(Vec::with_capacity(capacity + 1));
    let read = file.take(CACHE_BYTES_MAX).read_to_end(&mut bytes);
    read.map_err(at)?;
    Ok(Some((bytes, (metadata.uid(), metadata.gid()))))
}

/// Replaces a cache in one step, with the owner's rights only. `owner`: if it shall not be ours.
fn replace(path: &Path, bytes: &[u8], owner: Option<Owner>) -> Result<(), Error> {
    use std::io::Write as _;
    let at = |cause| Error::File {
        path: path.to_owned(),
        cause,
    };
    let mut file = tempfile::Builder::new()
        .permissions(std::fs::Permissions::from_mode(0o600))
        .prefix(".krb5cc-")
        .tempfile_in(directory_of(path))
        .map_err(at)?;
    file.write_all(bytes).map_err(at)?;
    if let Some((user, group)) = owner {
        std::os::unix::fs::fchown(file.as_file(), Some(user), Some(group)).map_err(at)?;
    }
    file.persist(path).map_err(|error| at(error.error))?;
    Ok(())
}

impl Ticket {
    /// The token for a cell's servers that the ticket makes.
    ///
    /// # Errors
    /// [`cellar_auth::Error`]: it is no ticket, or of a type of session key that rxkad cannot use.
    pub fn token(&self, cell: &CellName) -> Result<Token, cellar_auth::Error> {
        Token::from_kerberos(&KerberosCredential {
            cell: cell.as_str(),
            client: &self.client.to_string(),
            enctype: self.enctype,
            session_key: &self.session_key,
            ticket: &self.ticket,
            begins: AfsTime(self.begins),
            expires: AfsTime(self.ends),
        })
    }

    /// Encryption type and version of the service's key that the ticket is sealed with.
    pub fn sealed_with(&self) -> Option<(i32, Option<u32>)> {
        cellar_auth::sealed_with(&self.ticket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_refusals_let_another_name_be_tried() {
        let refused = |message: &str| Error::Refused {
            program: "kvno",
            message: message.to_owned(),
        };
        let unknown =
            "kvno: Server afs/x@R not found in Kerberos database while getting credentials";
        assert!(refused(unknown).is_unknown_service());
        let silent =
            "kvno: Cannot contact any KDC for realm 'R' while getting credentials for afs/x@R";
        assert!(!refused(silent).is_unknown_service());
        assert!(!Error::NoTicket.is_unknown_service());
    }

    #[test]
    fn a_cache_is_replaced_with_its_owners_rights() {
        let home = tempfile::tempdir().expect("tempdir");
        let path = home.path().join("cc");
        replace(&path, b"one", None).expect("new");
        replace(&path, b"two", None).expect("again");
        assert_eq!(std::fs::read(&path).expect("read"), b"two");
        let mode = std::fs::metadata(&path)
            .expect("there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(home.path()).expect("dir").count(), 1);
    }

    /// Whoever reads others' caches, as root, is not led to a third one's.
    #[test]
    fn a_cache_that_must_be_somebodys_is_no_link_and_no_pipe() {
        let home = tempfile::tempdir().expect("tempdir");
        let at = |name: &str| home.path().join(name);
        let ours = std::fs::metadata(home.path()).expect("there").uid();
        std::fs::write(at("cc"), b"tickets").expect("write");
        std::os::unix::fs::symlink(at("cc"), at("link")).expect("link");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("pipe"),
            rustix::fs::FileType::Fifo,
            0o600.into(),
            0,
        )
        .expect("a pipe");
        let read = |name: &str, owner| read_owned(&at(name), owner).expect("looked at").is_some();
        assert!(read("cc", Some(ours)) && read("link", None));
        assert!(!read("cc", Some(ours + 1)), "another's");
        assert!(!read("link", Some(ours)) && !read("pipe", Some(ours)));
        assert!(!read("nothing", Some(ours)));
    }

    /// In `/tmp`, anybody can make a file that is called as root's cache is.
    #[test]
    fn tickets_are_not_given_to_whoever_made_the_file_first() {
        let home = tempfile::tempdir().expect("tempdir");
        let (from, to) = (home.path().join("from"), home.path().join("to"));
        let owner = |path: &Path| std::fs::metadata(path).expect("there").uid();
        let ours = owner(home.path());
        std::fs::write(&from, b"tickets").expect("write");
        std::fs::write(&to, b"bait").expect("write");
        if std::os::unix::fs::chown(&to, Some(12_345), None).is_err() {
            return; // Only root can be robbed so.
        }
        copy(&from, &to).expect("copy");
        assert_eq!(std::fs::read(&to).expect("read"), b"tickets");
        assert_eq!(owner(&to), ours);
        // In his own directory the cache stays his.
        let theirs = home.path().join("theirs");
        std::fs::create_dir(&theirs).expect("directory");
        let to = theirs.join("cc");
        std::fs::write(&to, b"old").expect("write");
        for path in [&theirs, &to] {
            std::os::unix::fs::chown(path, Some(12_345), None).expect("chown");
        }
        copy(&from, &to).expect("copy");
        assert_eq!(owner(&to), 12_345);
    }

    #[test]
    fn what_somebody_puts_beside_a_copy_for_him_is_not_removed() {
        let user = rustix::process::geteuid().as_raw();
        let file = PrivateFile::of(Some(user)).expect("a directory");
        let path = file.path();
        let directory = path.parent().expect("a directory").to_owned();
        std::fs::write(&path, b"tickets").expect("write");
        drop(file);
        assert!(!directory.parent().expect("ours").exists());

        let file = PrivateFile::of(Some(user)).expect("a directory");
        let directory = file.path().parent().expect("a directory").to_owned();
        std::fs::create_dir(directory.join("his own")).expect("mkdir");
        std::fs::write(directory.join("his own/letter"), b"dear").expect("write");
        drop(file);
        assert!(directory.join("his own/letter").exists());
        std::fs::remove_dir_all(directory.parent().expect("ours")).expect("clean up");
    }
}
