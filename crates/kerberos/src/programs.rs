//! MIT's Kerberos programs `kinit`, `klist`, `kvno` and `kdestroy`.
//!
//! The programs know every kind of credential cache and every way of authentication (passwords,
//! smart cards, one-time codes). They read the configuration of the site (decision 0009).
//!
//! Only five parts of their output are parsed. The first four have not changed in twenty years:
//!
//! 1. the name of the cache in the first line of `klist`;
//! 2. the name of the cache in the error message of `klist` if the cache does not exist;
//! 3. the services in the list of `klist`;
//! 4. the principals of a keytab;
//! 5. the address of the KDC in the trace of `kinit` (`KRB5_TRACE`, MIT 1.9 and later).
//!
//! Tickets are read from a cache of kind FILE. `kvno --cached-only --out-cache` copies one ticket
//! into such a file, from a cache of any kind (MIT 1.19 and later).

mod kdc;

use std::ffi::OsStr;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

use crate::Error;
use crate::principal::KerberosPrincipal;

pub use kdc::{KdcAnswer, ask_kdc};

/// The time limit of a program that calls the KDC. MIT's library gives up the silent KDCs of a
/// realm earlier.
const KDC_TIME: Duration = Duration::from_secs(60);
/// The time limit of a program that only reads a cache or keytab, which may need a daemon (KCM).
const LOCAL_TIME: Duration = Duration::from_secs(10);

/// The group (`nogroup`) of a program that runs as another user.
const NOGROUP: u32 = 65534;

/// The most output of a program that is read, in bytes.
const OUTPUT_MAX: usize = 1 << 20;

/// The output of `klist` for a credential cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The name of the cache, with its kind.
    pub cache: String,
    /// The services of the tickets.
    pub services: Vec<KerberosPrincipal>,
    /// A hash of the tickets and their times: it changes when they change.
    pub stamp: u64,
}

/// A credential cache: a named one, or the user's own (`KRB5CCNAME` or the default of the library).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheName {
    name: Option<String>,
    /// The required owner of the file, if the cache is a file.
    owner: Option<u32>,
    /// The programs run as this user; `None`: as the calling user.
    user: Option<u32>,
}

impl CacheName {
    /// The user's own cache.
    pub fn own() -> Self {
        Self::default()
    }

    /// The cache of this name: `KIND:REST` or a path.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: Some(name.into()),
            ..Self::default()
        }
    }

    /// A cache in a file.
    pub fn file(path: &Path) -> Self {
        Self::named(format!("FILE:{}", path.display()))
    }

    /// A cache in a directory where other users may make files too. The file counts only if it is a
    /// regular file of the user `uid`.
    pub fn file_of(path: &Path, uid: u32) -> Self {
        Self {
            owner: Some(uid),
            ..Self::file(path)
        }
    }

    /// The default cache of a user of the machine, whose `KRB5CCNAME` is not known. The library
    /// looks in the kernel's keyrings, at a daemon (KCM), or in files. Only root can do this for
    /// another user.
    pub fn of_user(uid: u32) -> Self {
        Self {
            name: None,
            owner: Some(uid),
            user: Some(uid),
        }
    }

    /// The same cache, but the programs run as this user of the machine, with the rights of that
    /// user. Only root can do this for another user.
    pub fn by_user(self, uid: u32) -> Self {
        Self {
            user: Some(uid),
            ..self
        }
    }

    /// The user as which the programs run, if it is not the calling user.
    pub(crate) fn user(&self) -> Option<u32> {
        let own = rustix::process::geteuid().as_raw();
        self.user.filter(|user| *user != own)
    }

    /// The required owner of the file, if any.
    pub(crate) fn owner(&self) -> Option<u32> {
        self.owner
    }

    /// The name; `None`: the default of the library.
    pub fn name(&self) -> Option<String> {
        let from_environment = || match self.user {
            None => std::env::var("KRB5CCNAME").ok(),
            Some(_) => None,
        };
        let name = self.name.clone().or_else(from_environment);
        name.filter(|name| !name.is_empty())
    }

    /// The file, if the name shows that the cache is a file.
    pub fn path(&self) -> Option<PathBuf> {
        self.name().as_deref().and_then(path_of)
    }
}

/// The file of a cache's name: `FILE:PATH`, `PATH`, or one cache of a directory, `DIR::PATH`.
pub fn path_of(name: &str) -> Option<PathBuf> {
    let path = match name.split_once(':') {
        Some(("FILE", path)) => path,
        Some(("DIR", rest)) => rest.strip_prefix(':')?,
        Some(_) => return None,
        None => name,
    };
    (!path.is_empty()).then(|| PathBuf::from(path))
}

fn program(name: &'static str, cache: &CacheName) -> Command {
    let mut command = Command::new(program_path(name));
    if let Some(user) = cache.user() {
        // The program must not have our groups, and needs none of the user's. The user could read
        // the environment of the program, so ours is not passed on.
        command.env_clear().env("PATH", "/usr/bin:/bin");
        command.envs(std::env::var_os("KRB5_CONFIG").map(|file| ("KRB5_CONFIG", file)));
        command.uid(user).gid(NOGROUP).current_dir("/");
    }
    // The English messages are parsed.
    command.env("LC_ALL", "C").kill_on_drop(true);
    match (&cache.name, cache.user) {
        (Some(name), _) => drop(command.env("KRB5CCNAME", name)),
        (None, Some(_)) => drop(command.env_remove("KRB5CCNAME")),
        (None, None) => {}
    }
    command
}

/// The path of a program; its bare name if it is not found or if a mount does not run it.
///
/// The programs that a mount runs are looked up once, before the mount exists. A directory of
/// `PATH` may be in the mounted tree: a lookup in it would wait for the mount, which waits for the
/// program.
fn program_path(name: &'static str) -> PathBuf {
    static PLACES: OnceLock<[(&str, Option<PathBuf>); 2]> = OnceLock::new();
    let places = PLACES.get_or_init(|| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        ["klist", "kvno"].map(|name| {
            let places = std::env::split_paths(&path).map(|directory| directory.join(name));
            (name, places.into_iter().find(|place| place.is_file()))
        })
    });
    let place = places.iter().find(|(known, _)| *known == name);
    place
        .and_then(|(_, place)| place.clone())
        .unwrap_or_else(|| name.into())
}

fn cannot_run(program: &'static str, cause: std::io::Error) -> Error {
    if cause.kind() == std::io::ErrorKind::NotFound {
        Error::NoProgram(program)
    } else {
        Error::Program { program, cause }
    }
}

/// Runs a program and returns its output.
async fn run(
    name: &'static str,
    mut command: Command,
    patience: Duration,
) -> Result<String, Error> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // `spawn` blocks until the program's file is found, which may be on any file system.
    let started = tokio::task::spawn_blocking(move || command.spawn()).await;
    let started = started.unwrap_or_else(|cause| Err(std::io::Error::other(cause)));
    let mut child = started.map_err(|cause| cannot_run(name, cause))?;
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    let ended = async { tokio::join!(read_output(output), read_output(errors), child.wait()) };
    let (output, errors, status) = tokio::time::timeout(patience, ended)
        .await
        .map_err(|_| Error::TimedOut(name))?;
    let status = status.map_err(|cause| cannot_run(name, cause))?;
    if status.success() {
        return Ok(output);
    }
    Err(Error::Refused {
        program: name,
        message: errors,
    })
}

/// The output of a program, cut off at [`OUTPUT_MAX`].
async fn read_output(stream: Option<impl AsyncRead + Unpin>) -> String {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        // The bytes before a read error count.
        let _failed = stream.take(OUTPUT_MAX as u64).read_to_end(&mut bytes).await;
    }
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

/// Gets tickets with a password, or by whatever the realm asks for on the terminal. The questions
/// are on standard output, and warnings on standard error.
///
/// # Errors
/// `kinit` does not run, or is refused.
pub async fn kinit(
    cache: &CacheName,
    principal: Option<&str>,
    options: &[String],
) -> Result<(), Error> {
    let mut command = program("kinit", cache);
    command.env_remove("LC_ALL").args(options).args(principal);
    command.stderr(Stdio::piped());
    let failed = |cause| cannot_run("kinit", cause);
    let mut child = command.spawn().map_err(failed)?;
    let errors = child.stderr.take();
    let (message, status) = tokio::join!(read_output(errors), child.wait());
    match (status.map_err(failed)?.success(), message.as_str()) {
        (true, "") => Ok(()),
        (true, warning) => {
            eprintln!("{warning}");
            Ok(())
        }
        (false, "") => Err(Error::Failed("kinit")),
        (false, _) => Err(Error::Refused {
            program: "kinit",
            message,
        }),
    }
}

/// Gets tickets with a key from a keytab.
///
/// # Errors
/// `kinit` does not run, or is refused.
pub async fn kinit_with_keytab(
    cache: &CacheName,
    principal: &str,
    keytab: &Path,
    options: &[String],
) -> Result<(), Error> {
    let mut command = program("kinit", cache);
    command.arg("-k").arg("-t").arg(keytab);
    command.args(options).arg(principal);
    run("kinit", command, KDC_TIME).await.map(drop)
}

/// Renews the ticket-granting ticket of the cache. This removes all other tickets.
///
/// # Errors
/// `kinit` does not run, or is refused.
pub async fn renew(cache: &CacheName) -> Result<(), Error> {
    let mut command = program("kinit", cache);
    command.arg("-R");
    run("kinit", command, KDC_TIME).await.map(drop)
}

/// Gets a ticket for a service into the cache, if the cache has none yet.
///
/// # Errors
/// `kvno` does not run, or is refused. If [`Error::is_unknown_service`] holds, another name may
/// succeed.
pub async fn get_service(cache: &CacheName, service: &KerberosPrincipal) -> Result<(), Error> {
    let mut command = program("kvno", cache);
    command.arg("-q").arg(service.to_string());
    run("kvno", command, KDC_TIME).await.map(drop)
}

/// Copies a ticket of the cache into a new cache in a file.
///
/// # Errors
/// `kvno` does not run, or the cache has no such ticket.
pub async fn copy_service(
    cache: &CacheName,
    service: &KerberosPrincipal,
    to: &Path,
) -> Result<(), Error> {
    let mut command = program("kvno", cache);
    let mut file = std::ffi::OsString::from("FILE:");
    file.push(to);
    command
        .args(["-q", "--cached-only", "--out-cache"])
        .args([file.as_os_str(), OsStr::new(&service.to_string())]);
    run("kvno", command, LOCAL_TIME).await.map(drop)
}

/// The contents of a cache; `None` if the cache does not exist.
///
/// # Errors
/// `klist` does not run.
pub async fn list(cache: &CacheName) -> Result<Option<Listing>, Error> {
    Ok(match contents(cache).await? {
        Contents::Tickets(listing) => Some(listing),
        Contents::Missing { .. } => None,
    })
}

/// The result of [`contents`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// The cache exists.
    Tickets(Listing),
    /// The cache does not exist.
    Missing {
        /// The name that the cache would have, with its kind, if `klist` prints it.
        name: Option<String>,
    },
}

/// Lists the contents of a cache.
///
/// # Errors
/// `klist` does not run.
pub async fn contents(cache: &CacheName) -> Result<Contents, Error> {
    let name = match run("klist", program("klist", cache), LOCAL_TIME).await {
        Ok(text) => match parse_listing(&text) {
            Some(listing) if cache.user().is_none() || belongs_to_user(&listing.cache) => {
                return Ok(Contents::Tickets(listing));
            }
            other => other.map(|listing| listing.cache),
        },
        Err(Error::Refused { message, .. }) => parse_missing(&message),
        Err(error) => return Err(error),
    };
    Ok(Contents::Missing { name })
}

/// Whether a cache that a program found while it ran as a user belongs to that user. A program
/// inherits the keyrings of session and process from its parent: these belong to us.
fn belongs_to_user(cache: &str) -> bool {
    let keyring = cache.strip_prefix("KEYRING:");
    keyring.is_none_or(|rest| rest.starts_with("persistent:") || rest.starts_with("user:"))
}

/// The name of the default cache, which need not exist yet.
///
/// # Errors
/// `klist` does not run.
pub async fn default_name(cache: &CacheName) -> Result<String, Error> {
    Ok(match contents(cache).await? {
        Contents::Tickets(listing) => listing.cache,
        Contents::Missing { name } => name.unwrap_or_default(),
    })
}

/// The name of the cache in an error message of `klist`. Two messages contain it: `klist: No
/// credentials cache found (filename: /tmp/krb5cc_0)` and `klist: Credentials cache keyring
/// 'persistent:0:0' not found`.
fn parse_missing(message: &str) -> Option<String> {
    if let Some((_, rest)) = message.split_once("cache keyring '") {
        let (name, _) = rest.split_once('\'')?;
        return Some(format!("KEYRING:{name}"));
    }
    let (_, rest) = message.split_once("(filename: ")?;
    let (path, _) = rest.rsplit_once(')')?;
    Some(format!("FILE:{path}"))
}

/// Destroys a cache.
///
/// # Errors
/// `kdestroy` does not run, or fails.
pub async fn destroy(cache: &CacheName) -> Result<(), Error> {
    let mut command = program("kdestroy", cache);
    command.arg("-q");
    run("kdestroy", command, LOCAL_TIME).await.map(drop)
}

/// The first principal of a keytab.
///
/// # Errors
/// The keytab cannot be read, or has no keys.
pub async fn first_of_keytab(keytab: &Path) -> Result<String, Error> {
    let mut command = program("klist", &CacheName::own());
    command.arg("-k").arg(keytab);
    let text = run("klist", command, LOCAL_TIME).await?;
    first_principal(&text).ok_or_else(|| Error::EmptyKeytab(keytab.to_owned()))
}

/// Parses `klist -k`: three head lines, then `   1 alice@TEST.CELL`.
fn first_principal(text: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (version, principal) = line.trim().split_once(char::is_whitespace)?;
        version.parse::<u32>().ok()?;
        Some(principal.trim().to_owned())
    })
}

/// Parses `klist`: `Ticket cache: FILE:/tmp/krb5cc_0`, `Default principal: …`, then one line for
/// each ticket, whose last word is the service.
fn parse_listing(text: &str) -> Option<Listing> {
    let cache = text
        .lines()
        .find_map(|line| line.strip_prefix("Ticket cache: "))?;
    // A ticket's line begins with a date; lines of flags and addresses do not begin with a digit.
    let tickets = text
        .lines()
        .filter(|line| line.starts_with(|c: char| c.is_ascii_digit()));
    let mut stamp = std::hash::DefaultHasher::new();
    cache.hash(&mut stamp);
    let whose = text
        .lines()
        .find(|line| line.starts_with("Default principal: "));
    whose.hash(&mut stamp);
    let mut services = Vec::new();
    for line in tickets {
        line.hash(&mut stamp);
        let service = line.split_whitespace().last();
        services.extend(service.and_then(KerberosPrincipal::parse));
    }
    Some(Listing {
        cache: cache.trim().to_owned(),
        services,
        stamp: stamp.finish(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keyrings_of_sessions_are_of_who_started_the_program() {
        for own in [
            "KEYRING:persistent:7:7",
            "KEYRING:user:name",
            "KCM:7",
            "FILE:/tmp/krb5cc_7",
            "DIR::/run/user/7/krb5cc/tkt",
        ] {
            assert!(belongs_to_user(own), "{own}");
        }
        for ours in [
            "KEYRING:session:x",
            "KEYRING:legacy",
            "KEYRING:process:x",
            "KEYRING:thread:x",
        ] {
            assert!(!belongs_to_user(ours), "{ours}");
        }
    }

    #[test]
    fn listings_are_read() {
        let text = "Ticket cache: KEYRING:persistent:0:0\nDefault principal: bob@TEST.CELL\n\n\
             Valid starting     Expires            Service principal\n\
             11/21/26 15:01:21  11/22/26 15:01:21  krbtgt/TEST.CELL@TEST.CELL\n\
             \trenew until 11/28/26 15:01:21\n\
             11/21/26 15:01:21  11/22/26 15:01:21  afs/test.cell@TEST.CELL\n";
        let listing = parse_listing(text).expect("a listing");
        assert_eq!(listing.cache, "KEYRING:persistent:0:0");
        let services: Vec<_> = listing.services.iter().map(ToString::to_string).collect();
        assert_eq!(
            services,
            ["krbtgt/TEST.CELL@TEST.CELL", "afs/test.cell@TEST.CELL"]
        );
        let renewed = text.replace("11/22/26 15:01:21  afs", "11/22/26 16:07:09  afs");
        let renewed = parse_listing(&renewed).expect("a listing");
        assert_ne!(renewed.stamp, listing.stamp);
        assert_eq!(renewed.services, listing.services);
        let moved = text.replace("persistent:0:0", "persistent:0:1");
        let moved = parse_listing(&moved).expect("a listing");
        assert_ne!(moved.stamp, listing.stamp);
        assert_eq!(parse_listing(""), None);
        let missing = "klist: No credentials cache found (filename: /tmp/krb5cc_0)";
        assert_eq!(
            parse_missing(missing).as_deref(),
            Some("FILE:/tmp/krb5cc_0")
        );
        assert_eq!(
            parse_missing("klist: Credentials cache keyring 'persistent:0:0' not found").as_deref(),
            Some("KEYRING:persistent:0:0")
        );
        assert_eq!(parse_missing("klist: Matching credential not found"), None);
    }

    #[test]
    fn keytabs_are_read() {
        let text = "Keytab name: FILE:/k\nKVNO Principal\n---- -----\n   2 alice@TEST.CELL\n   2 bob@TEST.CELL";
        assert_eq!(first_principal(text).as_deref(), Some("alice@TEST.CELL"));
        assert_eq!(
            first_principal("Keytab name: FILE:/k\nKVNO Principal\n"),
            None
        );
    }

    #[test]
    fn files_behind_names() {
        let path = |name| path_of(name).map(|path| path.display().to_string());
        assert_eq!(path("FILE:/tmp/cc").as_deref(), Some("/tmp/cc"));
        assert_eq!(path("/tmp/cc").as_deref(), Some("/tmp/cc"));
        assert_eq!(path("DIR::/run/cc/tkt1").as_deref(), Some("/run/cc/tkt1"));
        assert_eq!(path("DIR:/run/cc"), None);
        assert_eq!(path("KCM:0"), None);
        assert_eq!(path(""), None);
    }
}
