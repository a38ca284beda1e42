//! What is known of one vnode: its status for as long as a promise holds, and what depends on it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use cellar_wire::acl::Rights;
use cellar_wire::ids::{AfsTime, Fid};
use cellar_wire::rxafs::{AfsFetchStatus, Callback, FileType};
use parking_lot::Mutex;
use tokio::time::{Duration, Instant};

use super::body::Body;
use super::user::User;
use crate::mount_point::is_mount_point;
use crate::volume::Volume;

/// Users whose rights to one vnode are kept.
const RIGHTS_MAX: usize = 16;
/// A promise ends this much earlier for us than for the server. Source: kAFS.
const MARGIN: Duration = Duration::from_secs(10);

/// A vnode of one of the cells that the cache knows: the cell's number, and the fid.
pub type Key = (u32, Fid);

/// Names in a directory, in their order, and what they stand for.
pub type Listing = BTreeMap<Bytes, Fid>;

/// One vnode in the cache.
#[derive(Debug)]
pub struct Vnode {
    pub(crate) key: Key,
    pub(crate) volume: Arc<Volume>,
    pub(crate) state: Mutex<State>,
    pub(crate) body: Mutex<Body>,
    /// Held by whoever asks the server about it, so that others wait for the same answer.
    pub(crate) asking: tokio::sync::Mutex<()>,
    /// Held by whoever stores.
    pub(crate) storing: tokio::sync::Mutex<()>,
    /// Promises broken so far: an answer that was under way meanwhile promises nothing.
    pub(crate) breaks: AtomicU64,
    /// When it was last used, by the cache's count.
    pub(crate) used: AtomicU64,
}

/// What changes all the time.
#[derive(Debug, Default)]
pub(crate) struct State {
    status: Option<AfsFetchStatus>,
    /// Until when the status may be believed.
    expires: Option<Instant>,
    rights: Vec<(u32, Rights)>,
    pub(crate) listing: Option<(u64, Arc<Listing>)>,
    pub(crate) link: Option<(u64, Bytes)>,
    /// Files: how often it is open.
    pub(crate) opens: u32,
    /// Who wrote last: the store is his.
    pub(crate) writer: Option<Arc<User>>,
    /// The name it got when its last name was removed while it was open: gone when it is closed.
    pub(crate) leftover: Option<Leftover>,
    /// Why the last store failed.
    pub(crate) failed: Option<i32>,
    /// Names of it were looked at one after the other: those that follow are asked for too.
    pub(crate) walked: bool,
    /// The server said that it is no more.
    pub(crate) gone: bool,
}

/// A file that waits for its last close to be removed.
#[derive(Clone, Debug)]
pub(crate) struct Leftover {
    pub(crate) directory: Arc<Vnode>,
    pub(crate) name: Bytes,
    pub(crate) user: Arc<User>,
}

/// What `stat` tells of a vnode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// As the server gave it, with the length and time of what is not stored yet.
    pub status: AfsFetchStatus,
    /// For how long it may be believed without asking.
    pub valid: Duration,
}

impl Vnode {
    pub(crate) fn new(key: Key, volume: Arc<Volume>, body: Body) -> Self {
        Self {
            key,
            volume,
            state: Mutex::default(),
            body: Mutex::new(body),
            asking: tokio::sync::Mutex::default(),
            storing: tokio::sync::Mutex::default(),
            breaks: AtomicU64::new(0),
            used: AtomicU64::new(0),
        }
    }

    /// Which it is.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Its fid.
    pub fn fid(&self) -> Fid {
        self.key.1
    }

    /// The volume it is in.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// The last status that was heard, promised or not.
    pub fn last_status(&self) -> Option<AfsFetchStatus> {
        self.state.lock().status
    }

    /// Whether it is a directory; its number says so.
    pub fn is_directory(&self) -> bool {
        self.key.1.vnode.is_directory()
    }

    /// The status that holds now, with this user's rights in it.
    pub(crate) fn promised(&self, user: &User) -> Option<AfsFetchStatus> {
        let state = self.state.lock();
        let status = state.status?;
        (state.expires? > Instant::now()).then_some(())?;
        let (_, rights) = state.rights.iter().find(|(id, _)| *id == user.id())?;
        Some(AfsFetchStatus {
            caller_access: *rights,
            ..status
        })
    }

    /// What `stat` tells, if it is known.
    pub fn attributes(&self) -> Option<Attributes> {
        let (status, expires) = {
            let state = self.state.lock();
            (state.status?, state.expires)
        };
        let valid = expires.map_or(Duration::ZERO, |at| {
            at.saturating_duration_since(Instant::now())
        });
        Some(Attributes {
            status: self.with_own_changes(status),
            valid,
        })
    }

    pub(crate) fn with_own_changes(&self, mut status: AfsFetchStatus) -> AfsFetchStatus {
        if status.file_type == FileType::File {
            let body = self.body.lock();
            if body.is_changed() {
                status.length = body.length();
                if let Some(time) = body.modified() {
                    status.client_mod_time = time;
                }
            }
        }
        status
    }

    /// A server answered `status` for `user` to a call that was begun at `asked`, before which
    /// `breaks` promises had been broken. Answers whether contents that were here are no longer true.
    pub(crate) fn heard(
        &self,
        user: &User,
        status: &AfsFetchStatus,
        promise: Option<(Callback, Instant, u64)>,
    ) -> bool {
        // The body first: whoever sees the status sees contents of that version or newer.
        let stale = status.file_type == FileType::File && self.body.lock().meet(status);
        let mut state = self.state.lock();
        let state = &mut *state;
        let older = state
            .status
            .is_some_and(|known| known.data_version > status.data_version)
            && promise.is_none();
        if older {
            return stale;
        }
        // Who may do what changes without the data: what was known of others holds no longer than
        // the promise, which an access list's change breaks.
        if state.expires.is_none_or(|at| at <= Instant::now()) {
            state.rights.clear();
        }
        state.status = Some(*status);
        state.gone = false;
        state.rights.retain(|(id, _)| *id != user.id());
        if state.rights.len() >= RIGHTS_MAX {
            state.rights.remove(0);
        }
        state.rights.push((user.id(), status.caller_access));
        if let Some((callback, asked, breaks)) = promise {
            let broken = self.breaks.load(Ordering::Acquire) != breaks;
            let given = callback.expires_in_secs > 0
                && callback.callback_type != Callback::DROPPED
                && !broken;
            let lifetime = Duration::from_secs(callback.expires_in_secs.into());
            let lifetime = lifetime.saturating_sub(MARGIN.min(lifetime / 10));
            state.expires = given.then(|| asked + lifetime);
        }
        stale
    }

    /// The promise is broken.
    pub(crate) fn broken(&self) {
        self.breaks.fetch_add(1, Ordering::AcqRel);
        let mut state = self.state.lock();
        state.expires = None;
    }

    /// The server says that there is no such vnode any more.
    pub(crate) fn vanished(&self) {
        let mut state = self.state.lock();
        state.expires = None;
        state.gone = true;
    }

    /// The rights of a user who has other tokens now are no longer known.
    pub(crate) fn forget_rights(&self, user: u32) {
        self.state.lock().rights.retain(|(id, _)| *id != user);
    }

    /// Whether a symbolic link with this status is a mount point.
    pub(crate) fn is_mount_point(status: &AfsFetchStatus) -> bool {
        status.file_type == FileType::Symlink && is_mount_point(status.unix_mode)
    }

    /// A number that changes when others than our own programs changed the contents.
    pub fn contents(&self) -> u64 {
        self.body.lock().contents()
    }

    /// When our own programs changed its contents, if that is not stored yet.
    pub fn unstored_since(&self) -> Option<AfsTime> {
        let body = self.body.lock();
        body.modified().filter(|_| body.is_changed())
    }
}
