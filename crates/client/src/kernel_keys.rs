//! Tokens for the AFS client inside the Linux kernel (kAFS): keys of type `rxrpc` in a keyring.
//!
//! The kernel looks for a key `afs@CELL` in the keyrings of the process that touches a file: its session
//! keyring, and what is linked there. A key holds a ticket, its session key and when it ends; the kernel
//! drops it then.
//!
//! 1. A session keyring is inherited by child processes and shared with them, so a token that `cellar
//!    login` puts there is seen by the shell it was typed in. A process without one uses its user's default
//!    session keyring; we attach to that instead of making a new one, which nobody else would see.
//! 2. [`join_new_session`] makes a keyring for this process and its children alone, as a "process
//!    authentication group" of OpenAFS: what they are, others of the same user are not.
//!
//! Source: Linux, `net/rxrpc/key.c` (payload version 1, and the form in which keys are read); keyrings(7).

use std::borrow::Cow;
use std::io;

use keyutils::{Key, KeyPayload, KeyType, Keyring, SpecialKeyring};
use zeroize::Zeroizing;

use crate::cell::CellName;

/// What stands before the cell's name in a key's description.
const PREFIX: &str = "afs@";
/// How deep keyrings are searched in keyrings.
const DEPTH_MAX: u32 = 3;
/// Keyrings that are looked into.
const KEYRINGS_MAX: usize = 64;
/// Tokens of one key.
const TOKENS_MAX: u32 = 8;
/// The security index of rxkad.
const RXKAD: u32 = 2;
/// What is answered where there are no such keys: `ENODEV` for a key type that the kernel does not have,
/// `ENOSYS` for a kernel without keyrings, `EPERM` for those in a container, where they are kept out.
const NO_KEYS: [i32; 3] = [19, 38, 1];

/// Which keyring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// The session's: this shell or service and what it starts.
    #[default]
    Session,
    /// The user's: all his sessions that have it linked (usual after a login through PAM).
    User,
}

/// Why keys cannot be handed over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel has no such keys, or not for us.
    #[error(
        "no 'rxrpc' keys here: the kernel's AFS client is not loaded ('modprobe kafs'), or this is a \
         container that may not use keyrings"
    )]
    NoKernelClient,
    /// The ticket is too long for a key.
    #[error("the ticket is too long for a kernel key")]
    TooLong,
    /// The kernel refuses.
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

/// What a key of ours holds, but for its secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelToken {
    /// The cell.
    pub cell: String,
    /// Encryption type and version of the service's key that the ticket is sealed with, where the
    /// ticket says.
    pub sealed_with: Option<(i32, Option<u32>)>,
    /// When it ends, in Unix seconds.
    pub expires: u32,
}

/// Hands a token over: the kernel's client acts as its owner in the cell from now on.
///
/// # Errors
/// [`Error::NoKernelClient`] on machines without kAFS; [`Error::Kernel`], for instance when the
/// user's keys have used up their quota.
pub fn add(place: Place, cell: &CellName, token: &cellar_auth::Token) -> Result<(), Error> {
    let payload = Payload::new(token).ok_or(Error::TooLong)?;
    let mut keyring = keyring(place)?;
    keyring
        .add_key::<RxRpc, _, Payload>(description(cell), payload)
        .map(drop)
        .map_err(Error::of)
}

/// The tokens that the kernel would find for this process. None where there is no kernel client.
///
/// # Errors
/// [`Error::Kernel`].
pub fn list() -> Result<Vec<KernelToken>, Error> {
    let mut tokens = Vec::new();
    for (_, key, cell) in keys()? {
        let Ok(payload) = key.read().map(Zeroizing::new) else {
            // Ended or taken away meanwhile, or not ours to read.
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

/// Takes the tokens for a cell away, or for all cells; answers how many there were.
///
/// # Errors
/// [`Error::Kernel`].
pub fn remove(cell: Option<&CellName>) -> Result<usize, Error> {
    let mut removed = 0;
    for (mut keyring, key, of) in keys()? {
        // One that was found by two ways is gone the second time.
        if cell.is_none_or(|cell| cell.as_str() == of) && keyring.unlink_key(&key).is_ok() {
            removed += 1;
        }
    }
    Ok(removed)
}

/// Whether this kernel has an AFS client loaded.
pub fn kernel_has_client() -> bool {
    // A key without a token, where nobody else looks, and which ends with this process.
    let Ok(mut keyring) = Keyring::attach_or_create(SpecialKeyring::Process) else {
        return false;
    };
    let probe = Payload(Zeroizing::new(Vec::new()));
    keyring
        .add_key::<RxRpc, _, Payload>("cellar-probe".to_owned(), probe)
        .is_ok()
}

/// Gives this process, and those it starts from now on, a session keyring of their own.
///
/// # Errors
/// [`Error::Kernel`].
pub fn join_new_session() -> Result<(), Error> {
    Keyring::join_anonymous_session()
        .map(drop)
        .map_err(Error::of)
}

fn description(cell: &CellName) -> String {
    format!("{PREFIX}{cell}")
}

fn keyring(place: Place) -> Result<Keyring, Error> {
    let id = match place {
        Place::Session => SpecialKeyring::Session,
        Place::User => SpecialKeyring::User,
    };
    Keyring::attach(id).map_err(Error::of)
}

/// The keys that are tokens, with the keyring each is in and its cell: those of the session, and the user's
/// if they are not linked there.
fn keys() -> Result<Vec<(Keyring, Key, String)>, Error> {
    let mut found = Vec::new();
    let mut looked_into = 0;
    let mut to_look_into = Vec::new();
    for place in [Place::User, Place::Session] {
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
        // One that must not be read is not searched for us by the kernel either.
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

/// The key type. (The crate's own of that name writes a payload that no kernel takes.)
struct RxRpc;

impl KeyType for RxRpc {
    type Description = String;
    type Payload = Payload;

    fn name() -> &'static str {
        "rxrpc"
    }
}

/// What a key is made of: payload version 1, in this machine's byte order.
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

/// A key as the kernel lets it be read: flags, cell, count, and for each token its length, index and body.
/// Answers the first rxkad token's ticket and end.
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

    /// As a kernel writes it for a 16-byte ticket.
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
