//! Tokens for the AFS client inside the Linux kernel (kAFS): keys of type `rxrpc` in a keyring.
//!
//! When a process accesses a file, the kernel looks for a key `afs@CELL` in the session keyring of
//! the process. It also searches the keyrings that are linked there. A key holds a ticket, its
//! session key and its end time. The kernel removes the key at that time.
//!
//! 1. Child processes inherit a session keyring and share it with the parent. So the shell in which
//!    `cellar login` was typed finds the token that `cellar login` puts there. A process without a
//!    session keyring uses the default session keyring of its user. We attach to that keyring; no
//!    other process would see a new one.
//! 2. [`join_new_session`] makes a keyring for this process and its children alone, like a "process
//!    authentication group" of OpenAFS. Other processes of the same user do not have its tokens.
//!    [`give_session_to_parent`] makes it the parent's too, as `aklog -setpag` does.
//! 3. A keyring belongs to a thread: call [`join_new_session`] on the thread that starts the
//!    processes.
//!
//! Source: Linux, `net/rxrpc/key.c` (payload version 1, and the form in which keys are read);
//! keyrings(7).

use std::borrow::Cow;
use std::io;

use keyutils::{Key, KeyPayload, KeyType, Keyring, SpecialKeyring};
use zeroize::Zeroizing;

/// The text before the cell's name in the description of a key.
const PREFIX: &str = "afs@";
/// The most levels of keyrings within keyrings that are searched.
const DEPTH_MAX: u32 = 3;
/// The most keyrings that are searched, which bounds the time if many are linked.
const KEYRINGS_MAX: usize = 64;
/// The most tokens of one key that are read.
const TOKENS_MAX: u32 = 8;
/// The security index of rxkad.
const RXKAD: u32 = 2;
/// The errors that mean that there are no such keys. `ENODEV`: a kernel without the key type.
/// `ENOSYS`: a kernel without keyrings. `EPERM`: a container that may not use keyrings.
const NO_KEYS: [i32; 3] = [19, 38, 1];

/// The keyring into which a token is put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyringKind {
    /// The session keyring: of this shell or service, and of the processes that it starts.
    #[default]
    Session,
    /// The user keyring: of all sessions of the user in which it is linked (as PAM usually does).
    User,
}

/// The reason why a keyring cannot be read or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel has no keys of this type, or refuses them to this process.
    #[error(
        "no 'rxrpc' keys here: the kernel's AFS client is not loaded ('modprobe kafs'), or this is a \
         container that may not use keyrings"
    )]
    NoKernelClient,
    /// The ticket is too long for a key.
    #[error("the ticket is too long for a kernel key")]
    TooLong,
    /// Another error of the kernel.
    #[error("kernel keyring: {0}")]
    Kernel(#[from] io::Error),
}

impl Error {
    fn of(cause: impl Into<io::Error>) -> Self {
        let cause = cause.into();
        if cause
            .raw_os_error()
            .is_some_and(|code| NO_KEYS.contains(&code))
        {
            Self::NoKernelClient
        } else {
            Self::Kernel(cause)
        }
    }
}

/// The contents of a key, without its secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelToken {
    /// The cell.
    pub cell: String,
    /// The encryption type and the version of the service's key under which the ticket is
    /// encrypted, if the ticket contains them.
    pub sealed_with: Option<(i32, Option<u32>)>,
    /// The end of the token's validity, in Unix seconds.
    pub expires: u32,
}

/// Puts a token for `cell` into a keyring. kAFS uses it for the cell from then on.
///
/// # Errors
/// [`Error::NoKernelClient`] on machines without kAFS; [`Error::TooLong`]; [`Error::Kernel`], for
/// instance if the user's quota of keys is used up.
pub fn add(place: KeyringKind, cell: &str, token: &cellar_auth::Token) -> Result<(), Error> {
    let payload = Payload::new(token).ok_or(Error::TooLong)?;
    let mut keyring = keyring(place)?;
    keyring
        .add_key::<RxRpc, _, Payload>(description(cell), payload)
        .map(drop)
        .map_err(Error::of)
}

/// The tokens that the kernel would find for this process. Empty on machines without kAFS.
///
/// # Errors
/// [`Error::Kernel`].
pub fn list() -> Result<Vec<KernelToken>, Error> {
    let mut tokens = Vec::new();
    for (_, key, cell) in keys()? {
        let Ok(payload) = key.read().map(Zeroizing::new) else {
            // The key has expired, was removed in the meantime, or may not be read by this user.
            continue;
        };
        if let Some((ticket, expires)) = parse_read(&payload) {
            let token = KernelToken {
                cell,
                sealed_with: cellar_auth::sealed_with(ticket),
                expires,
            };
            if !tokens.contains(&token) {
                tokens.push(token);
            }
        }
    }
    Ok(tokens)
}

/// Removes the tokens for one cell, or for all cells. Returns the number of removed keys.
///
/// # Errors
/// [`Error::Kernel`].
pub fn remove(cell: Option<&str>) -> Result<usize, Error> {
    let mut removed = 0;
    for (mut keyring, key, of) in keys()? {
        // A key that two keyrings link is found twice; the second removal fails.
        if cell.is_none_or(|cell| cell == of) && keyring.unlink_key(&key).is_ok() {
            removed += 1;
        }
    }
    Ok(removed)
}

/// Whether this kernel has an AFS client loaded.
pub fn kernel_has_client() -> bool {
    // A key without a token in the process keyring. It is visible only to this process, and ends
    // with it.
    let Ok(mut keyring) = Keyring::attach_or_create(SpecialKeyring::Process) else {
        return false;
    };
    let probe = Payload(Zeroizing::new(Vec::new()));
    keyring
        .add_key::<RxRpc, _, Payload>("cellar-probe".to_owned(), probe)
        .is_ok()
}

/// Gives this process, and the processes that it starts from then on, a new session keyring.
///
/// # Errors
/// [`Error::Kernel`].
pub fn join_new_session() -> Result<(), Error> {
    Keyring::join_anonymous_session()
        .map(drop)
        .map_err(Error::of)
}

/// Gives the parent process the session keyring of the calling thread. The parent has it when it
/// next returns from the kernel, at the latest after it has waited for this process.
///
/// # Errors
/// [`Error::Kernel`]: the parent belongs to another user or has several threads, or keyrings are
/// refused.
pub fn give_session_to_parent() -> Result<(), Error> {
    keyutils_raw::keyctl_session_to_parent().map_err(|cause| Error::Kernel(cause.into()))
}

fn description(cell: &str) -> String {
    format!("{PREFIX}{cell}")
}

fn keyring(place: KeyringKind) -> Result<Keyring, Error> {
    let id = match place {
        KeyringKind::Session => SpecialKeyring::Session,
        KeyringKind::User => SpecialKeyring::User,
    };
    Keyring::attach(id).map_err(Error::of)
}

/// The keys that are tokens, each with its keyring and its cell. Searched are the session keyring
/// and the user keyring, which may not be linked in the session keyring.
fn keys() -> Result<Vec<(Keyring, Key, String)>, Error> {
    let mut found = Vec::new();
    let mut looked_into = 0;
    let mut to_look_into = Vec::new();
    for place in [KeyringKind::User, KeyringKind::Session] {
        match keyring(place) {
            Ok(keyring) => to_look_into.push((keyring, 0)),
            Err(Error::NoKernelClient) => {}
            Err(error) => return Err(error),
        }
    }
    while let Some((keyring, depth)) = to_look_into.pop() {
        looked_into += 1;
        if looked_into > KEYRINGS_MAX {
            break;
        }
        // The kernel does not search a keyring for us either, if we may not read it.
        let Ok((keys, keyrings)) = keyring.read() else {
            continue;
        };
        for key in keys {
            if let Ok(description) = key.description()
                && description.type_ == RxRpc::name()
                && let Some(cell) = description.description.strip_prefix(PREFIX)
            {
                found.push((keyring.clone(), key, cell.to_owned()));
            }
        }
        if depth < DEPTH_MAX {
            to_look_into.extend(keyrings.into_iter().map(|keyring| (keyring, depth + 1)));
        }
    }
    Ok(found)
}

/// The key type. (The type of the same name in `keyutils` writes a payload that no kernel accepts.)
struct RxRpc;

impl KeyType for RxRpc {
    type Description = String;
    type Payload = Payload;

    fn name() -> &'static str {
        "rxrpc"
    }
}

/// The payload from which the kernel makes a key: version 1, in the machine's byte order.
struct Payload(Zeroizing<Vec<u8>>);

impl Payload {
    fn new(token: &cellar_auth::Token) -> Option<Self> {
        let ticket_length = u16::try_from(token.ticket.len()).ok()?;
        let security_index = u16::try_from(RXKAD).ok()?;
        let mut bytes = Zeroizing::new(Vec::with_capacity(24 + token.ticket.len()));
        bytes.extend(1u32.to_ne_bytes());
        bytes.extend(security_index.to_ne_bytes());
        bytes.extend(ticket_length.to_ne_bytes());
        bytes.extend(token.expires.0.to_ne_bytes());
        bytes.extend(token.kvno.to_ne_bytes());
        bytes.extend(token.session_key.iter());
        bytes.extend(&token.ticket);
        Some(Self(bytes))
    }
}

impl KeyPayload for Payload {
    fn payload(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.0)
    }
}

/// Parses a key in the form in which the kernel returns it: flags, cell, count, and for each token
/// its length, security index and body. Returns the ticket and the end time of the first rxkad
/// token.
fn parse_read(payload: &[u8]) -> Option<(&[u8], u32)> {
    let word = |at: usize| {
        let bytes = payload.get(at..at.checked_add(4)?)?;
        Some(u32::from_be_bytes(bytes.try_into().ok()?))
    };
    let size = |at: usize| usize::try_from(word(at)?).ok();
    let mut at = 8usize.checked_add(size(4)?.checked_next_multiple_of(4)?)?;
    let count = word(at)?;
    at += 4;
    for _ in 0..count.min(TOKENS_MAX) {
        let length = size(at)?;
        if word(at + 4)? == RXKAD {
            // viceid, kvno, key (8 bytes), begin, end, primary flag, ticket.
            let ticket = at + 40;
            let end = ticket.checked_add(size(at + 36)?)?;
            return Some((payload.get(ticket..end)?, word(at + 28)?));
        }
        at = at.checked_add(4)?.checked_add(length)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use cellar_wire::ids::AfsTime;

    use super::*;

    /// The bytes that a kernel returns for a ticket of 16 bytes.
    fn read_form() -> Vec<u8> {
        let mut bytes = Vec::new();
        let words = |bytes: &mut Vec<u8>, words: &[u32]| {
            bytes.extend(words.iter().flat_map(|word| word.to_be_bytes()));
        };
        words(&mut bytes, &[0, 9]);
        bytes.extend(b"test.cell\0\0\0");
        words(&mut bytes, &[1, 0x34, 2, 100, 213]);
        bytes.extend([7; 8]);
        words(&mut bytes, &[0x6000_0000, 0x6001_0000, 0, 16]);
        bytes.extend(0..16u8);
        bytes
    }

    /// The step that a process of the next test does.
    const STEP: &str = "CELLAR_TEST_KEYRING_STEP";

    /// The number of the calling thread's session keyring.
    fn session() -> i32 {
        let session = keyutils_raw::KEY_SPEC_SESSION_KEYRING;
        keyutils_raw::keyctl_get_keyring_id(session, false).map_or(0, |serial| serial.get())
    }

    /// Does nothing unless the next test runs it as a process of its own.
    #[test]
    fn step_of_a_child() {
        match std::env::var(STEP).as_deref() {
            Ok("give") => {
                join_new_session().expect("a session");
                println!("\nsession {}", session());
                give_session_to_parent().expect("given");
            }
            Ok(_) => println!("\nsession {}", session()),
            Err(_) => {}
        }
    }

    #[test]
    fn a_child_gives_its_parent_a_new_session() {
        if session() == 0 {
            println!("skipped: no keyrings here");
            return;
        }
        let child = "--exact keyring::tests::step_of_a_child --nocapture";
        let step = |step: &str| format!("{STEP}={step} \"$0\" {child}");
        let script = [step("show"), step("give"), step("show")].join("\n");
        let this = std::env::current_exe().expect("this program");
        let shell = std::process::Command::new("sh")
            .arg("-c")
            .arg(script)
            .arg(this)
            .output()
            .expect("sh");
        let said = String::from_utf8_lossy(&shell.stdout).into_owned();
        let seen: Vec<&str> = said
            .lines()
            .filter_map(|line| line.strip_prefix("session "))
            .collect();
        let [before, given, after] = seen[..] else {
            panic!("{said}");
        };
        assert_ne!(before, given, "{said}");
        assert_eq!(given, after, "{said}");
    }

    #[test]
    fn a_key_is_read() {
        let bytes = read_form();
        assert_eq!(bytes.len(), 80);
        let (ticket, expires) = parse_read(&bytes).expect("a token");
        assert_eq!(ticket, (0..16u8).collect::<Vec<_>>());
        assert_eq!(expires, 0x6001_0000);
        for length in 0..bytes.len() {
            assert_eq!(parse_read(&bytes[..length]), None, "{length}");
        }
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] = 0xff;
            let _any = parse_read(&bad);
        }
    }

    #[test]
    fn a_key_is_written_in_version_1() {
        let token = cellar_auth::Token {
            cell: "test.cell".to_owned(),
            principal: "alice@TEST.CELL".to_owned(),
            kvno: 213,
            session_key: Zeroizing::new([7; 8]),
            ticket: vec![1, 2, 3],
            begins: AfsTime(0),
            expires: AfsTime(0x6001_0000),
        };
        let payload = Payload::new(&token).expect("short");
        let mut wanted = Vec::new();
        wanted.extend(1u32.to_ne_bytes());
        wanted.extend(2u16.to_ne_bytes());
        wanted.extend(3u16.to_ne_bytes());
        wanted.extend(0x6001_0000u32.to_ne_bytes());
        wanted.extend(213u32.to_ne_bytes());
        wanted.extend([7; 8]);
        wanted.extend([1, 2, 3]);
        assert_eq!(*payload.0, wanted);
        let long = cellar_auth::Token {
            ticket: vec![0; 70_000],
            ..token
        };
        assert!(Payload::new(&long).is_none());
    }
}
