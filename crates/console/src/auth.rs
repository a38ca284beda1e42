//! Who may use the console: one-time tokens, sessions, and the checks of each request.
//!
//! The rest of a service sees four things of this module:
//!
//! 1. [`Gate`] admits people. [`Gate::issue`] makes a one-time token, [`Gate::redeem`] turns it
//!    into a session. Another method of authentication calls [`Gate::open`] when it has proved who
//!    asks. SPNEGO would be such a method; it is not there.
//! 2. [`Viewer`] in the arguments of a handler admits requests with a session.
//! 3. [`Asked`] in the arguments of a handler admits forms that the page of a session sent.
//! 4. [`Change`] in the arguments of a handler admits forms that an administrator sent from a page
//!    of this service. All handlers that change something take it.
//!
//! Rules:
//!
//! - A token has 256 random bits. The process holds only the SHA-256 of tokens and cookies, and
//!   compares them in constant time.
//! - A token opens one session, within [`TOKEN_TIME`]. A session ends [`IDLE_TIME`] after its last
//!   request, and [`SESSION_TIME`] after its beginning. All sessions end with the process.
//! - The log has a line for each token, session and change. A change names the session, a token the
//!   account of the machine that asked for it.
//! - A form has the random number of its session. Besides, the browser must say that the form comes
//!   from a page of this service, by `Sec-Fetch-Site` or `Origin`.

mod request;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::time::Instant;

pub use request::{
    Asked, Change, Fields, Query, Viewer, cookie, ended_cookie, is_own_page, session_cookie,
};
pub(crate) use request::{FORM_BYTES_MAX, FORM_TOKEN};

/// The time in which a token can be used.
pub const TOKEN_TIME: Duration = Duration::from_secs(10 * 60);
/// The time after the last request at which a session ends.
pub const IDLE_TIME: Duration = Duration::from_secs(60 * 60);
/// The time after its beginning at which a session ends.
pub const SESSION_TIME: Duration = Duration::from_secs(12 * 60 * 60);
/// Tokens that wait for their use. A further one replaces the oldest.
const TOKENS_MAX: usize = 64;
/// Open sessions. A further one replaces the one that was idle longest.
const SESSIONS_MAX: usize = 256;

/// The rights of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sees the pages, except for the audit log.
    Reader,
    /// Sees all pages, and makes changes.
    Administrator,
}

impl Role {
    /// The role in a word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Administrator => "administrator",
        }
    }

    /// The role of a word.
    pub fn of_word(word: &str) -> Option<Self> {
        [Self::Reader, Self::Administrator]
            .into_iter()
            .find(|role| role.word() == word)
    }
}

/// A session, as handlers see it.
#[derive(Clone, Debug)]
pub struct Session {
    /// Its number since the start of the process, for the log.
    pub number: u64,
    /// Its rights.
    pub role: Role,
    /// The random number that forms of the session carry.
    pub form_token: String,
}

impl Session {
    /// Whether it may make changes.
    pub fn may_change(&self) -> bool {
        self.role == Role::Administrator
    }
}

/// The SHA-256 of a secret.
type Hash = [u8; 32];

struct Waiting {
    hash: Hash,
    role: Role,
    until: Instant,
}

struct Open {
    hash: Hash,
    session: Session,
    begun: Instant,
    used: Instant,
}

impl Open {
    fn is_over(&self, now: Instant) -> bool {
        now >= self.begun + SESSION_TIME || now >= self.used + IDLE_TIME
    }
}

/// Admits people by tokens and sessions.
pub struct Gate {
    tokens: Mutex<Vec<Waiting>>,
    sessions: Mutex<Vec<Open>>,
    /// The number of the last session.
    number: AtomicU64,
    /// The service is reached by TLS only.
    secure: bool,
}

impl Gate {
    /// A gate without tokens and sessions. `secure`: the service is reached by TLS only.
    pub fn new(secure: bool) -> Self {
        Self {
            tokens: Mutex::new(Vec::new()),
            sessions: Mutex::new(Vec::new()),
            number: AtomicU64::new(0),
            secure,
        }
    }

    /// Whether the service is reached by TLS only.
    pub fn is_secure(&self) -> bool {
        self.secure
    }

    /// Makes a one-time token.
    pub fn issue(&self, role: Role) -> String {
        let (token, now) = (secret(), Instant::now());
        let mut tokens = self.tokens.lock();
        tokens.retain(|waiting| waiting.until > now);
        if tokens.len() >= TOKENS_MAX {
            tokens.remove(0);
        }
        tokens.push(Waiting {
            hash: hash(&token),
            role,
            until: now + TOKEN_TIME,
        });
        token
    }

    /// Opens the session of a token, which then is used up. Returns the secret of the cookie;
    /// `None` if there is no such token.
    pub fn redeem(&self, token: &str) -> Option<String> {
        let (wanted, now) = (hash(token), Instant::now());
        let mut tokens = self.tokens.lock();
        tokens.retain(|waiting| waiting.until > now);
        let found = position(tokens.iter().map(|waiting| &waiting.hash), &wanted)?;
        let role = tokens.remove(found).role;
        drop(tokens);
        Some(self.open(role))
    }

    /// Opens a session for a caller whose identity was proved. Returns the secret of the cookie.
    pub fn open(&self, role: Role) -> String {
        let (cookie, now) = (secret(), Instant::now());
        let mut sessions = self.sessions.lock();
        sessions.retain(|open| !open.is_over(now));
        if sessions.len() >= SESSIONS_MAX {
            let idle = sessions
                .iter()
                .enumerate()
                .min_by_key(|(_, open)| open.used);
            if let Some((place, _)) = idle {
                sessions.remove(place);
            }
        }
        let number = self.number.fetch_add(1, Ordering::Relaxed) + 1;
        tracing::info!(session = number, role = role.word(), "a session begins");
        sessions.push(Open {
            hash: hash(&cookie),
            session: Session {
                number,
                role,
                form_token: secret(),
            },
            begun: now,
            used: now,
        });
        cookie
    }

    /// The session of a cookie. This is a use of it.
    pub fn session(&self, cookie: &str) -> Option<Session> {
        let (wanted, now) = (hash(cookie), Instant::now());
        let mut sessions = self.sessions.lock();
        sessions.retain(|open| !open.is_over(now));
        let found = position(sessions.iter().map(|open| &open.hash), &wanted)?;
        let open = sessions.get_mut(found)?;
        open.used = now;
        Some(open.session.clone())
    }

    /// Ends the session of a cookie.
    pub fn close(&self, cookie: &str) {
        let wanted = hash(cookie);
        let mut sessions = self.sessions.lock();
        if let Some(found) = position(sessions.iter().map(|open| &open.hash), &wanted) {
            let ended = sessions.remove(found).session.number;
            tracing::info!(session = ended, "a session ends by a logout");
        }
    }
}

/// 256 random bits as text.
fn secret() -> String {
    let bytes: [u8; 32] = rand::random();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hash(secret: &str) -> Hash {
    Sha256::digest(secret.as_bytes()).into()
}

/// Whether two texts are equal, in constant time.
fn is_same(one: &str, other: &str) -> bool {
    hash(one).ct_eq(&hash(other)).into()
}

/// The place of a hash. All of them are compared, each in constant time.
fn position<'a>(hashes: impl Iterator<Item = &'a Hash>, wanted: &Hash) -> Option<usize> {
    let mut found = None;
    for (place, hash) in hashes.enumerate() {
        if bool::from(hash.ct_eq(wanted)) {
            found = Some(place);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_token_opens_one_session_in_its_time() {
        let gate = Gate::new(false);
        let token = gate.issue(Role::Reader);
        assert_eq!(token.len(), 64);
        assert!(gate.redeem("").is_none());
        let cookie = gate.redeem(&token).expect("a session");
        assert!(gate.redeem(&token).is_none(), "used up");
        let session = gate.session(&cookie).expect("open");
        assert_eq!(session.role, Role::Reader);
        assert!(!session.may_change());
        assert!(gate.session(&token).is_none(), "a token is no cookie");
        let late = gate.issue(Role::Administrator);
        tokio::time::advance(TOKEN_TIME).await;
        assert!(gate.redeem(&late).is_none(), "too late");
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_end() {
        let gate = Gate::new(false);
        let idle = gate.open(Role::Administrator);
        tokio::time::advance(IDLE_TIME).await;
        assert!(gate.session(&idle).is_none());
        let busy = gate.open(Role::Administrator);
        let step = IDLE_TIME / 2;
        for _ in 1..SESSION_TIME.as_secs() / step.as_secs() {
            tokio::time::advance(step).await;
            assert!(gate.session(&busy).is_some());
        }
        tokio::time::advance(step).await;
        assert!(gate.session(&busy).is_none(), "its time is over");
        let closed = gate.open(Role::Reader);
        gate.close(&closed);
        assert!(gate.session(&closed).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn tables_have_a_bound() {
        let gate = Gate::new(false);
        let first = gate.issue(Role::Reader);
        for _ in 0..TOKENS_MAX {
            gate.issue(Role::Reader);
        }
        assert!(gate.redeem(&first).is_none(), "the oldest went");
        let used = gate.open(Role::Reader);
        let idle = gate.open(Role::Reader);
        for _ in 0..SESSIONS_MAX {
            tokio::time::advance(Duration::from_millis(1)).await;
            assert!(gate.session(&used).is_some());
            gate.open(Role::Reader);
        }
        assert!(gate.session(&idle).is_none());
        assert!(gate.session(&used).is_some());
    }
}
