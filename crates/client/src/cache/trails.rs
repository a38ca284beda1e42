//! Small files that are read one after the other: those that follow are fetched before anybody asks for them.
//!
//! 1. Whoever reads files of a directory in the order of their names (in which directories are read here), or of a number in
//!    their names, is on a *trail*. A directory has [`TRAILS_MAX`] of them, whosever: programs that read it
//!    at the same time do not disturb each other.
//! 2. After [`NEEDS`] files in their order a trail is believed: so many files beyond the last one are guessed as its *window*
//!    says, twice as many each time a guess was right. Who reads on in the next directory after the end of one is believed
//!    there at once.
//! 3. A guess that is passed by may still be read, as by several workers that share the files; when more than
//!    [`PASSED_MAX`] are passed by, the window is halved. At nothing the trail needs [`NEEDS_TIMES`] as many
//!    files as before to be believed again.
//! 4. Guessed are only files of whose status and directory something is promised to this user, which he may read, and
//!    which have [`SMALL`] bytes at most and nothing of ours in them. They are fetched as he, as if he had read them: what
//!    is checked of bytes and rights when they are read is the same.
//! 5. A guess makes nobody wait: there are [`CALLS_MAX`] at a time and none that would make the cache drop something;
//!    who reads a file that is on its way waits for that and asks no second time (`read.rs`).

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use cellar_wire::acl::Rights;
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::{AfsFetchStatus, FileType};
use tokio::sync::OwnedSemaphorePermit;

use super::Cache;
use super::change::rights_to_file;
use super::user::User;
use super::vnode::{Listing, Vnode};

/// Guesses that are fetched at a time: half the calls that there may be to a server, so that those somebody waits for
/// find room.
pub(crate) const CALLS_MAX: usize = 32;
/// The largest file that is guessed.
const SMALL: u64 = 64 << 10;
/// A file of more counts as several calls: 1 MiB is on its way at most.
const OF_CALL: u64 = 32 << 10;
/// Trails of one directory.
const TRAILS_MAX: usize = 4;
/// Files in their order before a trail is believed, at first and at most.
const NEEDS: u32 = 4;
const NEEDS_MAX: u32 = 256;
/// How many times as many it needs after its guesses were wrong.
const NEEDS_TIMES: u32 = 4;
/// Files that are guessed beyond the last one, at first and at most.
const WINDOW_MIN: usize = 2;
const WINDOW_MAX: usize = 64;
/// The same in the next directory, at first.
const WINDOW_NEXT: usize = 8;
/// Guesses that may be passed by.
const PASSED_MAX: usize = 4;
/// Names that are looked at for each guess that may be made.
const LOOKS: usize = 4;

/// The order in which files are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Name,
    /// By a number in the name, as in `f9`, `f10`.
    Number,
}

impl Order {
    /// What follows a name.
    fn next<'a>(self, listing: &'a Listing, name: &[u8]) -> Option<(&'a Bytes, Fid)> {
        let (name, fid) = match self {
            Self::Name => {
                let after = (Bound::Excluded(name), Bound::Unbounded);
                listing.range::<[u8], _>(after).next()?
            }
            Self::Number => listing.get_key_value(successor(name)?.as_slice())?,
        };
        Some((name, *fid))
    }

    /// The file that follows a name, if there are not too many directories between.
    fn next_file<'a>(self, listing: &'a Listing, name: &'a Bytes) -> Option<&'a Bytes> {
        let mut at = name;
        for _ in 0..LOOKS {
            let (next, fid) = self.next(listing, at)?;
            if !fid.vnode.is_directory() {
                return Some(next);
            }
            at = next;
        }
        None
    }
}

/// The name with its last number, before any extension, greater by one.
fn successor(name: &[u8]) -> Option<Vec<u8>> {
    let is_digit = u8::is_ascii_digit;
    let dot = name.iter().rposition(|byte| *byte == b'.');
    let stem = dot.filter(|dot| name[..*dot].iter().any(is_digit));
    let stem = stem.unwrap_or(name.len());
    let end = name[..stem].iter().rposition(is_digit)? + 1;
    let digits = name[..end].iter().rev().take_while(|byte| is_digit(byte));
    let start = end - digits.count();
    let mut next = name.to_vec();
    for at in (start..end).rev() {
        if next[at] < b'9' {
            next[at] += 1;
            return Some(next);
        }
        next[at] = b'0';
    }
    next.insert(start, b'1');
    Some(next)
}

/// A file beyond the last one that was read.
#[derive(Debug)]
struct Guess {
    name: Bytes,
    /// It was to be fetched: else it was here, or is not for us to guess.
    fetched: bool,
}

/// How somebody read a directory who has just read its last file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walked(Order, usize);

/// One reader's.
#[derive(Debug)]
struct Trail {
    user: u32,
    last: Bytes,
    order: Order,
    /// Files read in their order so far, and how many it needs.
    run: u32,
    needs: u32,
    window: usize,
    guesses: VecDeque<Guess>,
    passed: VecDeque<Bytes>,
}

impl Trail {
    fn new(user: u32, name: Bytes) -> Self {
        Self {
            user,
            last: name,
            order: Order::Name,
            run: 1,
            needs: NEEDS,
            window: 0,
            guesses: VecDeque::new(),
            passed: VecDeque::new(),
        }
    }

    /// Goes on to a file, if that is on this trail.
    fn goes_on(&mut self, listing: &Listing, name: &Bytes) -> bool {
        if self.last == *name {
            return true;
        }
        if let Some(at) = self.passed.iter().position(|passed| passed == name) {
            self.passed.remove(at);
            return true;
        }
        let guessed = self.guesses.iter().position(|guess| guess.name == *name);
        let mut passed = match guessed {
            Some(at) => self.guesses.drain(..=at).collect::<Vec<_>>(),
            None => {
                let other = match self.order {
                    Order::Name => Order::Number,
                    Order::Number => Order::Name,
                };
                // The first two say which it is.
                let orders = [self.order, other];
                let count = if self.run < 2 { 2 } else { 1 };
                let mut orders = orders[..count].iter();
                let leads = |order: &&Order| order.next_file(listing, &self.last) == Some(name);
                let Some(order) = orders.find(leads) else {
                    return false;
                };
                self.order = *order;
                self.guesses.drain(..).collect()
            }
        };
        passed.retain(|guess| guess.fetched && guess.name != *name);
        self.last = name.clone();
        self.run = self.run.saturating_add(1);
        if passed.is_empty() {
            if self.run >= self.needs {
                self.widen();
            }
            return true;
        }
        self.passed
            .extend(passed.into_iter().map(|guess| guess.name));
        while self.passed.len() > PASSED_MAX {
            self.passed.pop_front();
            self.window /= 2;
        }
        if self.window == 0 {
            self.run = 0;
            self.needs = self.needs.saturating_mul(NEEDS_TIMES).min(NEEDS_MAX);
            self.guesses.clear();
            self.passed.clear();
        }
        true
    }

    /// Its reader comes from the end of another directory.
    fn follows(&mut self, walked: Option<Walked>) {
        let Some(Walked(order, window)) = walked else {
            return;
        };
        self.order = order;
        self.window = window.min(WINDOW_NEXT);
        self.run = self.needs;
    }

    fn widen(&mut self) {
        self.window = (self.window * 2).clamp(WINDOW_MIN, WINDOW_MAX);
    }
}

/// Those of a directory, the one that was used last at the end.
#[derive(Debug, Default)]
pub(crate) struct Trails(Vec<Trail>);

impl Trails {
    /// A user reads a file. Answers his trail.
    fn read(&mut self, user: &User, listing: &Listing, name: &Bytes) -> Option<&mut Trail> {
        let trails = self.0.iter_mut().enumerate().rev();
        let mut of_user = trails.filter(|(_, trail)| trail.user == user.id());
        let found = of_user.find_map(|(at, trail)| trail.goes_on(listing, name).then_some(at));
        let trail = match found {
            Some(at) => self.0.remove(at),
            None => {
                if self.0.len() >= TRAILS_MAX {
                    self.0.remove(0);
                }
                let mut trail = Trail::new(user.id(), name.clone());
                let mut walked = user.walked.lock();
                if walked.is_some() && is_first(listing, name) {
                    trail.follows(walked.take());
                }
                trail
            }
        };
        if trail.window > 0 && trail.order.next_file(listing, name).is_none() {
            *user.walked.lock() = Some(Walked(trail.order, trail.window));
        }
        self.0.push(trail);
        self.0.last_mut()
    }
}

/// Whether it is the first file, of the first names at least.
fn is_first(listing: &Listing, name: &Bytes) -> bool {
    let some = listing.iter().take(WINDOW_MAX * LOOKS);
    let mut files = some.filter(|(_, fid)| !fid.vnode.is_directory());
    files.next().is_some_and(|(first, _)| first == name)
}

/// What is to be done about a file that a trail leads to.
enum Verdict {
    /// To be fetched.
    Fetch(Arc<Vnode>, OwnedSemaphorePermit),
    /// Not a file, or not one to be fetched.
    Leave { is_file: bool },
    /// Nothing is known yet, or there is no room: not now.
    Wait,
}

impl Cache {
    /// A user begins to read a file with this status.
    pub(crate) fn follow_trail(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        status: &AfsFetchStatus,
    ) {
        if status.length > SMALL || status.file_type != FileType::File {
            return;
        }
        let parent = Fid {
            volume: vnode.fid().volume,
            vnode: status.parent_vnode,
            uniquifier: status.parent_uniquifier,
        };
        let Some(directory) = self.known(vnode.key.0, parent) else {
            return;
        };
        let listing = directory.state.lock().listing.clone();
        let (Some((_, listing)), Some(name)) = (listing, vnode.state.lock().name.clone()) else {
            return;
        };
        if listing.get(&name) != Some(&vnode.fid()) {
            return;
        }
        let mut trails = directory.trails.lock();
        let Some(trail) = trails.read(user, &listing, &name) else {
            return;
        };
        // Many at a time, and not each with the one before it.
        if trail.guesses.len() > trail.window / 2 {
            return;
        }
        let Some(rights) = directory.promised(user).map(|status| status.caller_access) else {
            return;
        };
        let last = trail
            .guesses
            .back()
            .map_or(&trail.last, |guess| &guess.name);
        let mut at = last.clone();
        for _ in 0..trail.window * LOOKS {
            if trail.guesses.len() >= trail.window {
                return;
            }
            let Some((name, fid)) = trail.order.next(&listing, &at) else {
                return;
            };
            at = name.clone();
            let fetched = match self.judge(user, rights, (vnode.key.0, fid), status.length) {
                Verdict::Fetch(vnode, permit) => {
                    self.fetch_guess(user.clone(), vnode, permit);
                    true
                }
                Verdict::Leave { is_file: true } => false,
                Verdict::Leave { is_file: false } => continue,
                Verdict::Wait => return,
            };
            let name = name.clone();
            trail.guesses.push_back(Guess { name, fetched });
        }
    }

    /// Rules 4 and 5; `wanted` bytes of another file are about to be fetched.
    fn judge(
        &self,
        user: &User,
        of_directory: Rights,
        (cell, fid): (u32, Fid),
        wanted: u64,
    ) -> Verdict {
        if fid.vnode.is_directory() {
            return Verdict::Leave { is_file: false };
        }
        let Some(vnode) = self.known(cell, fid) else {
            return Verdict::Wait;
        };
        let Some(status) = vnode.promised(user) else {
            return Verdict::Wait;
        };
        let is_file = status.file_type == FileType::File;
        let rights = rights_to_file(status.caller_access, of_directory);
        let of_mode = status.unix_mode & 0o500 != 0 || rights.contains(Rights::ADMINISTER);
        let may = rights.contains(Rights::READ) && of_mode;
        // Where somebody else is at the bytes, nothing is waited for.
        let body = vnode.body.try_lock();
        let missing = body.is_some_and(|body| !body.is_changed() && body.lacks(0, status.length));
        if !is_file || !may || !missing || status.length > SMALL || self.is_fetched(&vnode, 0) {
            return Verdict::Leave { is_file };
        }
        let under_way = CALLS_MAX - self.guesses.available_permits().min(CALLS_MAX);
        let coming = wanted + status.length + under_way as u64 * OF_CALL;
        if self.used() + coming > self.size() {
            return Verdict::Wait;
        }
        let calls = status.length.div_ceil(OF_CALL).max(1) as u32;
        match self.guesses.clone().try_acquire_many_owned(calls) {
            Ok(permit) => Verdict::Fetch(vnode, permit),
            Err(_) => Verdict::Wait,
        }
    }

    fn fetch_guess(&self, user: Arc<User>, vnode: Arc<Vnode>, permit: OwnedSemaphorePermit) {
        let Some(cache) = self.me() else {
            return;
        };
        self.touch(&vnode);
        tokio::spawn(async move {
            if let Err(error) = cache.fetch_chunk(&user, &vnode, 0, true).await {
                tracing::debug!(%error, "fetching a file that may be read next");
            }
            vnode.rest();
            drop(permit);
        });
    }

    /// The vnode of a fid, if there is one.
    fn known(&self, cell: u32, fid: Fid) -> Option<Arc<Vnode>> {
        self.vnodes.lock().get(&(cell, fid)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_go_on() {
        let next = |name: &str| {
            let next = successor(name.as_bytes())?;
            Some(String::from_utf8(next).expect("text"))
        };
        for (name, then) in [
            ("f9", "f10"),
            ("f099.mp3", "f100.mp3"),
            ("12-a3b", "12-a4b"),
            ("part.1", "part.2"),
            ("9.9.tar", "9.10.tar"),
            ("99", "100"),
        ] {
            assert_eq!(next(name).as_deref(), Some(then));
        }
        for name in ["", ".", "makefile", "a.txt"] {
            assert_eq!(next(name), None, "{name}");
        }
    }
}
