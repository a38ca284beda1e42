//! MIT's Kerberos programs: they know every kind of credential cache and every way to prove who one is
//! (passwords, smart cards, one-time codes), and read the site's configuration (decision 0009).
//!
//! What they print for people is not read but for four things that have not changed in twenty years: the
//! name of the cache in `klist`'s first line, or in its complaint that there is none; the services in its list;
//! and the principals of a keytab.
//! Tickets are read from a cache of form FILE: a copy of one ticket is made there by
//! `kvno --cached-only --out-cache`, which works for all kinds of caches (MIT 1.19 and later).

use std::ffi::OsStr;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

use super::Error;
use super::principal::KerberosPrincipal;

/// How long a program that asks the KDC may take. MIT's library gives up a realm's silent KDCs after less
/// than this.
const KDC_TIME: Duration = Duration::from_secs(60);
/// How long one may take that only looks into a cache or keytab; a daemon may be behind it.
const LOCAL_TIME: Duration = Duration::from_secs(10);

/// The group of a program that runs for somebody else.
const NOBODYS_GROUP: u32 = 65534;

/// The most output that is looked at, in bytes.
const OUTPUT_MAX: usize = 1 << 20;

/// What `klist` says about a credential cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The name of the cache, with its kind.
    pub cache: String,
    /// The services that there are tickets for.
    pub services: Vec<KerberosPrincipal>,
    /// Another one when the tickets are others, or have other times.
    pub stamp: u64,
}

/// A credential cache to work on: the one that is named, or the user's own (`KRB5CCNAME` or the
/// library's default).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheName {
    name: Option<String>,
    /// Of a file: whose it must be.
    owner: Option<u32>,
    /// The programs look for it as this user, who is not ours.
    user: Option<u32>,
}

impl CacheName {
    /// The user's own.
    pub fn own() -> Self {
        Self::default()
    }

    /// The one of that name, `KIND:REST` or a path.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: Some(name.into()),
            ..Self::default()
        }
    }

    /// One in a file.
    pub fn file(path: &Path) -> Self {
        Self::named(format!("FILE:{}", path.display()))
    }

    /// One in a file where others may make files too: what is there is no cache unless it is a plain file of
    /// that user's.
    pub fn file_of(path: &Path, uid: u32) -> Self {
        Self {
            owner: Some(uid),
            ..Self::file(path)
        }
    }

    /// Where the library looks for the tickets of this user of the machine, who has no `KRB5CCNAME` that we know:
    /// in the kernel's keyrings, at a daemon (KCM), in files. Only root can look for those of others.
    pub fn of_user(uid: u32) -> Self {
        Self {
            name: None,
            owner: Some(uid),
            user: Some(uid),
        }
    }

    /// The same cache; the programs work on it as this user of the machine, who can do with it what he can do himself
    /// and no more. Only root can have them do so for others.
    pub fn by_user(self, uid: u32) -> Self {
        Self {
            user: Some(uid),
            ..self
        }
    }

    /// As whom it is looked for, if not as ourselves.
    pub(crate) fn user(&self) -> Option<u32> {
        let own = rustix::process::geteuid().as_raw();
        self.user.filter(|user| *user != own)
    }

    /// Whose the file has to be, if that matters.
    pub(crate) fn owner(&self) -> Option<u32> {
        self.owner
    }

    /// The name; `None`: whatever the library's default is.
    pub fn name(&self) -> Option<String> {
        let from_environment = || match self.user {
            None => std::env::var("KRB5CCNAME").ok(),
            Some(_) => None,
        };
        let name = self.name.clone().or_else(from_environment);
        name.filter(|name| !name.is_empty())
    }

    /// The file, if it is known to be one without asking the library.
    pub fn path(&self) -> Option<PathBuf> {
        self.name().as_deref().and_then(path_of)
    }
}

/// The file behind a cache's name: `FILE:PATH`, `PATH`, or one cache of a directory, `DIR::PATH`.
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
    let mut command = Command::new(located(name));
    if let Some(user) = cache.user() {
        // Without the groups of ours; none of his is needed. What is in our environment would be his to read.
        command.env_clear().env("PATH", "/usr/bin:/bin");
        command.envs(std::env::var_os("KRB5_CONFIG").map(|file| ("KRB5_CONFIG", file)));
        command.uid(user).gid(NOBODYS_GROUP).current_dir("/");
    }
    // Their English is read.
    command.env("LC_ALL", "C").kill_on_drop(true);
    match (&cache.name, cache.user) {
        (Some(name), _) => drop(command.env("KRB5CCNAME", name)),
        (None, Some(_)) => drop(command.env_remove("KRB5CCNAME")),
        (None, None) => {}
    }
    command
}

/// Where the programs are that a mount runs, looked for once and before there is a mount: a directory of `PATH` may be in it, and
/// would then be looked up by those who wait for the program. Others, and what is in no directory: the bare name.
fn located(name: &'static str) -> PathBuf {
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

/// Runs a program and answers what it printed.
async fn run(
    name: &'static str,
    mut command: Command,
    patience: Duration,
) -> Result<String, Error> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // The start waits until the file of the program is found, which may be on any file system.
    let started = tokio::task::spawn_blocking(move || command.spawn()).await;
    let started = started.unwrap_or_else(|cause| Err(std::io::Error::other(cause)));
    let mut child = started.map_err(|cause| cannot_run(name, cause))?;
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    let ended = async { tokio::join!(said(output), said(errors), child.wait()) };
    let (output, errors, status) = tokio::time::timeout(patience, ended)
        .await
        .map_err(|_| Error::Silent(name))?;
    let status = status.map_err(|cause| cannot_run(name, cause))?;
    if status.success() {
        return Ok(output);
    }
    Err(Error::Refused {
        program: name,
        message: errors,
    })
}

/// What a program says, up to [`OUTPUT_MAX`]; one that says more is cut off.
async fn said(stream: Option<impl AsyncRead + Unpin>) -> String {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        // What came before a failure counts.
        let _failed = stream.take(OUTPUT_MAX as u64).read_to_end(&mut bytes).await;
    }
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

/// Gets tickets with a password or whatever else the realm asks for, on the terminal.
///
/// # Errors
/// It does not run, or did not succeed: then it has said why.
pub async fn kinit(
    cache: &CacheName,
    principal: Option<&str>,
    options: &[String],
) -> Result<(), Error> {
    let mut command = program("kinit", cache);
    command.env_remove("LC_ALL").args(options).args(principal);
    let status = command
        .status()
        .await
        .map_err(|cause| cannot_run("kinit", cause))?;
    if status.success() {
        Ok(())
    } else {
        Err(Error::Said("kinit"))
    }
}

/// Gets tickets with a key from a keytab.
///
/// # Errors
/// It does not run, or is refused.
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

/// Renews the cache's ticket-granting ticket. All other tickets are gone then.
///
/// # Errors
/// It does not run, or is refused.
pub async fn renew(cache: &CacheName) -> Result<(), Error> {
    let mut command = program("kinit", cache);
    command.arg("-R");
    run("kinit", command, KDC_TIME).await.map(drop)
}

/// Gets a ticket for a service into the cache, if there is none yet.
///
/// # Errors
/// It does not run, or is refused: [`Error::is_unknown_service`] where another name may do.
pub async fn get_service(cache: &CacheName, service: &KerberosPrincipal) -> Result<(), Error> {
    let mut command = program("kvno", cache);
    command.arg("-q").arg(service.to_string());
    run("kvno", command, KDC_TIME).await.map(drop)
}

/// Copies a ticket of the cache into a new one in a file.
///
/// # Errors
/// It does not run, or there is no such ticket.
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

/// What is in a cache; `None` if there is none.
///
/// # Errors
/// It does not run.
pub async fn list(cache: &CacheName) -> Result<Option<Listing>, Error> {
    Ok(match contents(cache).await? {
        Contents::Tickets(listing) => Some(listing),
        Contents::Missing { .. } => None,
    })
}

/// The result of a look into a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// There is a cache.
    Tickets(Listing),
    /// There is none.
    Missing {
        /// The name that it would have, with its kind, if `klist` says it.
        name: Option<String>,
    },
}

/// Looks into a cache.
///
/// # Errors
/// `klist` does not run.
pub async fn contents(cache: &CacheName) -> Result<Contents, Error> {
    let name = match run("klist", program("klist", cache), LOCAL_TIME).await {
        Ok(text) => match parse_listing(&text) {
            Some(listing) if cache.user().is_none() || is_his_own(&listing.cache) => {
                return Ok(Contents::Tickets(listing));
            }
            other => other.map(|listing| listing.cache),
        },
        Err(Error::Refused { message, .. }) => parse_missing(&message),
        Err(error) => return Err(error),
    };
    Ok(Contents::Missing { name })
}

/// Whether what a program finds that runs as a user is that user's: the keyrings of sessions and processes go on from who
/// started it to the program, and are ours.
fn is_his_own(cache: &str) -> bool {
    let keyring = cache.strip_prefix("KEYRING:");
    keyring.is_none_or(|rest| rest.starts_with("persistent:") || rest.starts_with("user:"))
}

/// The name that a cache without a name has, also when there is none yet.
///
/// # Errors
/// It does not run.
pub async fn default_name(cache: &CacheName) -> Result<String, Error> {
    Ok(match contents(cache).await? {
        Contents::Tickets(listing) => listing.cache,
        Contents::Missing { name } => name.unwrap_or_default(),
    })
}

/// Reads two of klist's complaints: `klist: No credentials cache found (filename: /tmp/krb5cc_0)`
/// and `klist: Credentials cache keyring 'persistent:0:0' not found`. Other kinds do not say a
/// name.
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
/// It does not run, or cannot.
pub async fn destroy(cache: &CacheName) -> Result<(), Error> {
    let mut command = program("kdestroy", cache);
    command.arg("-q");
    run("kdestroy", command, LOCAL_TIME).await.map(drop)
}

/// The first principal of a keytab.
///
/// # Errors
/// The keytab cannot be read, or is empty.
pub async fn first_of_keytab(keytab: &Path) -> Result<String, Error> {
    let mut command = program("klist", &CacheName::own());
    command.arg("-k").arg(keytab);
    let text = run("klist", command, LOCAL_TIME).await?;
    first_principal(&text).ok_or_else(|| Error::EmptyKeytab(keytab.to_owned()))
}

/// `Keytab name: …`, `KVNO Principal`, `---- …`, then `   1 alice@TEST.CELL`.
fn first_principal(text: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (version, principal) = line.trim().split_once(char::is_whitespace)?;
        version.parse::<u32>().ok()?;
        Some(principal.trim().to_owned())
    })
}

/// `Ticket cache: FILE:/tmp/krb5cc_0`, `Default principal: …`, then a ticket a line whose last word is the
/// service.
fn parse_listing(text: &str) -> Option<Listing> {
    let cache = text
        .lines()
        .find_map(|line| line.strip_prefix("Ticket cache: "))?;
    // Dates come first: lines of flags and addresses do not begin with a digit.
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
            assert!(is_his_own(own), "{own}");
        }
        for ours in [
            "KEYRING:session:x",
            "KEYRING:legacy",
            "KEYRING:process:x",
            "KEYRING:thread:x",
        ] {
            assert!(!is_his_own(ours), "{ours}");
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
