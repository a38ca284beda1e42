//! Cheap signs that a user's tickets changed, for caches that only MIT's programs can read.
//!
//! `klist` costs a process, so the mount runs it every few seconds. These signs are read before
//! each request; another number makes the mount run `klist` at once. A user's first request after
//! `kinit` therefore has the new tickets.
//!
//! | place of the cache | sign |
//! | --- | --- |
//! | a file | its inode and time of change |
//! | a directory | the same, and the directory's time of change |
//! | the kernel's keyrings | how many keys the user has, and their bytes (`/proc/key-users`) |
//! | elsewhere (KCM, unknown) | the time in quarters of a second, while the user has no token |
//!
//! A sign may change without need: that costs one `klist`. `klist` itself makes keys that the
//! kernel removes a little later, so [`Watched`] keeps all signs that one set of tickets showed.
//! Tickets in a keyring that are replaced by as many tickets of the same sizes change no sign. The
//! look every few seconds finds them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cellar_kerberos::programs;
use tokio::time::Instant;

/// The signs that are kept of one set of tickets.
const SIGNS_MAX: usize = 16;
/// Interval at which a cache without a sign is read while its user has no token.
const OFTEN: Duration = Duration::from_millis(250);

/// The place where MIT's library keeps a user's tickets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TicketCache {
    /// In a file, or in a file of a directory of caches.
    File { path: PathBuf, in_directory: bool },
    /// In the kernel's keyrings.
    Keyring,
    /// At a daemon, or at a place that `klist` does not name.
    Elsewhere,
}

impl TicketCache {
    /// The place of a cache with this name, as `klist` says it.
    pub(super) fn of(name: &str) -> Self {
        if name.starts_with("KEYRING:") {
            return Self::Keyring;
        }
        match programs::path_of(name) {
            Some(path) => Self::File {
                path,
                in_directory: name.starts_with("DIR:"),
            },
            None => Self::Elsewhere,
        }
    }

    /// The sign; `has_token`: the last look found a token that is still good.
    pub(super) fn sign(&self, uid: u32, has_token: bool, started: Instant) -> u64 {
        let mut sign = DefaultHasher::new();
        match self {
            Self::File { path, in_directory } => {
                stamp_at(path).hash(&mut sign);
                if *in_directory {
                    path.parent().and_then(stamp_at).hash(&mut sign);
                }
            }
            Self::Keyring => {
                let users = std::fs::read_to_string("/proc/key-users").unwrap_or_default();
                keys_of(&users, uid).hash(&mut sign);
            }
            Self::Elsewhere if has_token => {}
            Self::Elsewhere => {
                let quarters = started.elapsed().as_millis() / OFTEN.as_millis();
                quarters.hash(&mut sign);
            }
        }
        sign.finish()
    }
}

/// A user's place, and the signs that the tickets of the last look showed.
#[derive(Debug)]
pub(super) struct Watched {
    place: TicketCache,
    tickets: Option<u64>,
    /// The last one is the newest, and stands for all.
    signs: Vec<u64>,
}

impl Watched {
    /// A place that was looked into for the first time.
    pub(super) fn new(place: TicketCache) -> Self {
        Self {
            place,
            tickets: None,
            signs: Vec::new(),
        }
    }

    /// The place.
    pub(super) fn place(&self) -> &TicketCache {
        &self.place
    }

    /// The number that stands for a sign: another one if the sign is new.
    pub(super) fn number(&self, sign: u64) -> u64 {
        match self.signs.last() {
            Some(newest) if self.signs.contains(&sign) => *newest,
            _ => sign,
        }
    }

    /// Records that a look found these tickets (their stamp) at this place; `sign` was read before
    /// the look.
    pub(super) fn looked(&mut self, place: TicketCache, tickets: Option<u64>, sign: Option<u64>) {
        if self.tickets != tickets || self.place != place {
            self.signs.clear();
        }
        (self.tickets, self.place) = (tickets, place);
        let Some(sign) = sign.filter(|sign| !self.signs.contains(sign)) else {
            return;
        };
        if self.signs.len() >= SIGNS_MAX {
            self.signs.remove(0);
        }
        self.signs.push(sign);
    }
}

/// A number that changes with the contents of a file; `None` if there is no file.
pub(super) fn stamp_at(path: &Path) -> Option<u64> {
    let data = std::fs::symlink_metadata(path).ok()?;
    Some(stamp_of(&data))
}

/// The same number for a file's metadata.
pub(super) fn stamp_of(data: &std::fs::Metadata) -> u64 {
    let time = (data.mtime() as u64).wrapping_mul(1_000_000_007);
    time.wrapping_add(data.mtime_nsec() as u64) ^ data.ino()
}

/// The part of a user's line in `/proc/key-users` about keys: their number, and their use of the
/// quota (proc(5)). The count of references is left out, since each login changes it.
fn keys_of(users: &str, uid: u32) -> Option<(&str, &str)> {
    users.lines().find_map(|line| {
        let (user, rest) = line.trim_start().split_once(':')?;
        if user.parse::<u32>().ok()? != uid {
            return None;
        }
        let mut fields = rest.split_whitespace().skip(2);
        Some((fields.next()?, fields.next()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_cache_has_its_sign() {
        let file = |path: &str, in_directory| TicketCache::File {
            path: path.into(),
            in_directory,
        };
        for (name, place) in [
            ("FILE:/run/user/7/cc", file("/run/user/7/cc", false)),
            ("DIR::/run/user/7/cc/tkt", file("/run/user/7/cc/tkt", true)),
            ("KEYRING:persistent:7:7", TicketCache::Keyring),
            ("KCM:7", TicketCache::Elsewhere),
            ("", TicketCache::Elsewhere),
        ] {
            assert_eq!(TicketCache::of(name), place, "{name}");
        }
    }

    #[test]
    fn all_signs_of_one_set_of_tickets_count_as_one() {
        let mut watched = Watched::new(TicketCache::Keyring);
        watched.looked(TicketCache::Keyring, Some(1), Some(10));
        assert_eq!(watched.number(10), 10);
        assert_eq!(watched.number(11), 11, "a new sign is another number");
        watched.looked(TicketCache::Keyring, Some(1), Some(11));
        assert_eq!((watched.number(10), watched.number(11)), (11, 11));
        watched.looked(TicketCache::Keyring, Some(2), Some(12));
        assert_eq!(watched.number(12), 12);
        assert_eq!(
            watched.number(10),
            10,
            "signs of other tickets are forgotten"
        );
        for sign in 100..200 {
            watched.looked(TicketCache::Keyring, Some(2), Some(sign));
        }
        assert_eq!(watched.signs.len(), SIGNS_MAX);
    }

    #[test]
    fn new_keys_of_a_user_change_the_sign() {
        let text = "    0:     9 8/8 3/1000000 40/25000000\n  107:     4 4/4 4/200 1440/20000\n";
        assert_eq!(keys_of(text, 107), Some(("4/200", "1440/20000")));
        assert_eq!(keys_of(text, 7), None);
        let more = text.replace("4/200 1440/", "5/200 1502/");
        assert_ne!(keys_of(&more, 107), keys_of(text, 107));
        let another_login = text.replace("     4 4/4", "     6 4/4");
        assert_eq!(keys_of(&another_login, 107), keys_of(text, 107));
    }

    #[tokio::test(start_paused = true)]
    async fn a_cache_without_a_sign_is_looked_at_often_until_there_is_a_token() {
        let started = Instant::now();
        let sign = |has_token| TicketCache::Elsewhere.sign(7, has_token, started);
        let (without, with) = (sign(false), sign(true));
        tokio::time::advance(OFTEN).await;
        assert_ne!(sign(false), without);
        assert_eq!(sign(true), with);
    }
}
