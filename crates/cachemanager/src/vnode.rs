//! One vnode: its status, which is valid as long as a promise holds, and all that depends on the
//! status.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use cellar_cachestore::{Body, Piece};
use cellar_wire::abort::AbortCode;
use cellar_wire::acl::Rights;
use cellar_wire::ids::{AfsTime, Fid};
use cellar_wire::rxafs::{AfsFetchStatus, Callback, FileType};
use parking_lot::Mutex;
use tokio::time::{Duration, Instant};

use crate::device_locations::DeviceLocations;
use crate::kernel_state::{Held, Owed, TOLD_EARLIER};
use crate::lease::{Busy, Lease};
use crate::life::Life;
use crate::lock_order::{BODY, Ordered, STATE};
use crate::lock_table::Locks;
use crate::reader::Reader;
use crate::request::StatusRequest;
use crate::user::User;
use cellar_client::course::SETTLE_TIME;
use cellar_client::mount_point::is_mount_point;
use cellar_client::store::Unanswered;
use cellar_client::volume::Volume;

/// The most users whose rights to one vnode are kept.
const RIGHTS_MAX: usize = 16;
/// A promise ends this much earlier for us than for the server. Source: kAFS.
const MARGIN: Duration = Duration::from_secs(10);

/// A vnode of one of the cells that the cache knows: the cell's number, and the fid.
pub type Key = (u32, Fid);

/// The names in a directory in their order, each with its fid.
pub type Listing = BTreeMap<Bytes, Fid>;

/// One vnode in the cache.
#[derive(Debug)]
pub struct Vnode {
    pub(crate) key: Key,
    /// The fid that the server gave it. Set if it was created locally under a fid that the server
    /// had forgotten.
    pub(crate) renumbered: OnceLock<Fid>,
    pub(crate) volume: Arc<Volume>,
    pub(crate) state: Ordered<STATE, State>,
    pub(crate) body: Ordered<BODY, Body>,
    /// Held during a request to the server, so that other tasks wait for the same answer.
    pub(crate) asking: tokio::sync::Mutex<()>,
    /// Held during a store; serialises the stores of one file.
    pub(crate) storing: tokio::sync::Mutex<()>,
    /// Stores without an answer. Used by the task that holds `storing`.
    pub(crate) unanswered: Unanswered,
    /// It is in the queue of files to store (`write_back.rs`).
    pub(crate) waits: AtomicBool,
    pub(crate) locks: Locks,
    /// No program waits for the store that is under way.
    pub(crate) unhurried: AtomicBool,
    /// A server keeps locks on ranges for us. Other clients may store other bytes while ours are
    /// not stored.
    pub(crate) shared: AtomicBool,
    /// The location of its bytes: objects or the file server.
    pub(crate) devices: DeviceLocations,
    /// The number of broken promises. An answer gives no promise if the number changed while it was
    /// under way.
    pub(crate) breaks: AtomicU64,
    /// The number of our own changes that were answered. No server breaks our promise for these. So
    /// if the number changed while an answer was under way, the answer may show the state before
    /// the change.
    pub(crate) own: AtomicU64,
    /// The cache's tick at its last use.
    pub(crate) used: AtomicU64,
    /// Directories: the last reader of a file in it.
    pub(crate) reader: Mutex<Reader>,
    /// Its bytes were fetched ahead, and no program has read them yet.
    pub(crate) is_ahead: AtomicBool,
}

/// The mutable part of a vnode.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Created, present, removed or gone.
    pub(crate) life: Life,
    pub(crate) status: Option<AfsFetchStatus>,
    /// The time until which the status is valid.
    expires: Option<Instant>,
    /// The time at which the promise about an open file is given up.
    given_up: Option<Instant>,
    /// The kernel's knowledge of the vnode: what it was given and may still hold.
    pub(crate) held: Held,
    /// The server that gave the promise.
    promised_by: Option<SocketAddr>,
    rights: Vec<(u32, Rights)>,
    pub(crate) listing: Option<(u64, Arc<Listing>)>,
    /// Directories: the user for whom the names were fetched.
    pub(crate) lister: Option<Arc<User>>,
    /// Directories: when the names were last compared after a break (`names/compare.rs`).
    pub(crate) compared: Option<Instant>,
    pub(crate) link: Option<(u64, Bytes)>,
    /// Files: the number of open handles.
    pub(crate) opens: u32,
    /// The user who opened it last. Repeated requests to the server are made for this user.
    pub(crate) opener: Option<Arc<User>>,
    /// The user who wrote last. Stores are made as this user.
    pub(crate) writer: Option<Arc<User>>,
    /// The number of programs of this machine that are about to remove its last name.
    pub(crate) removing: u32,
    /// It was just created, and no program has closed it since.
    pub(crate) made: bool,
    /// The server refused attributes or bytes, for good. The next close or `fsync` returns this
    /// error.
    pub(crate) refused: Option<AbortCode>,
    /// The error of the last store, if it failed (an errno).
    pub(crate) failed: Option<i32>,
    /// The number of bytes that may stay dirty at close, if the file has a value of its own.
    pub(crate) store_behind: Option<u64>,
    /// Its names are looked up in order, so the following names are fetched too.
    pub(crate) walked: bool,
    /// The last name in it that was looked up and led to a vnode without a promise.
    pub(crate) looked_up: Option<Bytes>,
    /// Files: the name by which it was found last.
    pub(crate) name: Option<Bytes>,
    /// Directories: the lease, while the server admits no other client.
    pub(crate) lease: Option<Lease>,
    pub(crate) busy: Busy,
    /// Set if a change of it had no answer. The inner value is the time of the server's first
    /// answer about it since then.
    pub(crate) undecided: Option<Option<Instant>>,
    /// Directories: the number of pending creates in it.
    pub(crate) pending_creates: u32,
}

/// The attributes of a vnode for `stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The server's status, with the length and times of changes that are not stored yet.
    pub status: AfsFetchStatus,
    /// The time for which the attributes are valid without a request.
    pub valid: Duration,
}

impl State {
    /// The time until which the status is valid.
    pub(crate) fn expires(&self) -> Option<Instant> {
        self.expires
    }

    /// Ends the promise. Returns whether a promise was in force.
    pub(super) fn end_promise(&mut self) -> bool {
        let expires = self.expires.take();
        expires.is_some_and(|at| at > Instant::now())
    }
}

impl StatusRequest {
    pub(crate) fn about(vnode: &Vnode) -> Self {
        Self {
            at: Instant::now(),
            breaks: vnode.breaks.load(Ordering::Acquire),
            own: vnode.own.load(Ordering::Acquire),
            unknown_breaks: None,
            by: None,
        }
    }
}

impl Vnode {
    pub(crate) fn new(key: Key, volume: Arc<Volume>, body: Body) -> Self {
        Self {
            key,
            renumbered: OnceLock::new(),
            volume,
            state: Ordered::default(),
            body: Ordered::new(body),
            asking: tokio::sync::Mutex::default(),
            storing: tokio::sync::Mutex::default(),
            unanswered: Unanswered::default(),
            waits: AtomicBool::new(false),
            unhurried: AtomicBool::new(false),
            locks: Locks::default(),
            shared: AtomicBool::new(false),
            devices: DeviceLocations::default(),
            breaks: AtomicU64::new(0),
            own: AtomicU64::new(0),
            used: AtomicU64::new(0),
            reader: Mutex::default(),
            is_ahead: AtomicBool::new(false),
        }
    }

    /// The cell and fid under which the cache knows it.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Its fid: that of its key, unless the server gave it another one.
    pub fn fid(&self) -> Fid {
        self.renumbered.get().copied().unwrap_or(self.key.1)
    }

    /// The volume it is in.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// The last known status, promised or not.
    pub fn last_status(&self) -> Option<AfsFetchStatus> {
        self.state.lock().status
    }

    /// Whether it is a directory, by its vnode number.
    pub fn is_directory(&self) -> bool {
        self.key.1.vnode.is_directory()
    }

    /// The promised status with this user's rights. `None`: nothing is promised, or the rights are
    /// unknown.
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

    /// The last known status, with the changes that programs of this machine made since.
    pub(crate) fn shown_status(&self) -> Option<AfsFetchStatus> {
        let state = self.state.lock();
        Some(self.with_changes_in(&state, state.status?))
    }

    /// The length of a file, with the changes that programs of this machine made.
    pub(crate) fn length(&self) -> u64 {
        self.body.lock().length()
    }

    /// Adds to a server's status the changes that programs of this machine made since.
    pub(crate) fn with_own_changes(&self, status: AfsFetchStatus) -> AfsFetchStatus {
        let state = self.state.lock();
        let newer = state
            .status
            .filter(|known| known.data_version > status.data_version);
        let status = newer.map_or(status, |known| AfsFetchStatus {
            caller_access: status.caller_access,
            ..known
        });
        self.with_changes_in(&state, status)
    }

    /// Like [`Vnode::with_own_changes`], for the status in `state` or a newer one. The caller holds
    /// the lock on the state. A store first updates the status, then removes the change from the
    /// body. A reader without the lock could take the status before the store and the body after
    /// it. It would miss the change, and see a file that is too short.
    pub(crate) fn with_changes_in(
        &self,
        state: &State,
        mut status: AfsFetchStatus,
    ) -> AfsFetchStatus {
        if state.life.is_silly_renamed() || (state.life.is_removed() && self.is_directory()) {
            // For programs, its last name is removed.
            status.link_count = 0;
        }
        if status.file_type == FileType::File {
            status = self.body.lock().shown(status);
        }
        status
    }

    /// Applies `status`, which a server answered for a user: to a request, or (without a promise)
    /// to a change of our own. Returns the notice that is owed to the kernel.
    ///
    /// Answers may overtake each other. The result of our own change is newer than any lower
    /// version. A promise that was given before the change holds all the same: a change by another
    /// client would have broken it.
    pub(crate) fn apply_status(
        &self,
        user: u32,
        status: &AfsFetchStatus,
        promise: Option<(Callback, StatusRequest)>,
    ) -> Owed {
        self.apply(&mut self.state.lock(), user, status, promise)
    }

    /// Like [`Vnode::apply_status`], for a directory in which we created `count` things that its
    /// listing already has. If the version grew by another number, other clients made changes too,
    /// and the listing is dropped.
    pub(crate) fn apply_growth(
        &self,
        user: u32,
        (count, status): (u64, &AfsFetchStatus),
        promise: Option<(Callback, StatusRequest)>,
    ) -> Owed {
        let mut state = self.state.lock();
        match &mut state.listing {
            Some((version, _)) if version.wrapping_add(count) == status.data_version => {
                *version = status.data_version;
            }
            _ => state.listing = None,
        }
        self.apply(&mut state, user, status, promise)
    }

    /// The server stored a piece. Returns the notice that is owed to the kernel.
    ///
    /// This is one step under the lock. Between two steps, an answer to an earlier request could
    /// arrive. It would look like a change by another client, and the cut-off bytes like bytes that
    /// it had appended.
    pub(crate) fn stored(
        &self,
        user: u32,
        piece: &Piece,
        status: &AfsFetchStatus,
        sums: &[(u64, u64, u32)],
    ) -> Owed {
        let mut state = self.state.lock();
        let before = self.length();
        let others = self.body.lock().stored(piece, status, sums);
        state.failed = None;
        let heard = self.apply(&mut state, user, status, None);
        match others && heard == Owed::NOTHING {
            true => state.held.news((before, self.length())),
            false => heard,
        }
    }

    /// The server did not store a piece. Returns the notice that is owed to the kernel.
    pub(crate) fn not_stored(&self, piece: &Piece) -> Owed {
        let mut state = self.state.lock();
        let before = self.length();
        match self.body.lock().not_stored(piece) {
            true => state.held.news((before, self.length())),
            false => Owed::NOTHING,
        }
    }

    fn apply(
        &self,
        state: &mut State,
        user: u32,
        status: &AfsFetchStatus,
        promise: Option<(Callback, StatusRequest)>,
    ) -> Owed {
        let overtaken = match &promise {
            Some((_, asked)) => self.own.load(Ordering::Acquire) != asked.own,
            None => {
                self.own.fetch_add(1, Ordering::AcqRel);
                true
            }
        };
        let known = state.status.map(|known| known.data_version);
        let older = overtaken && known.is_some_and(|known| known > status.data_version);
        if older && promise.is_none() {
            return Owed::NOTHING;
        }
        let mut owed = Owed::NOTHING;
        if !older {
            let before = self.length();
            if status.file_type == FileType::File && self.body.lock().apply_status(status) {
                owed = state.held.news((before, self.length()));
            }
            state.status = Some(*status);
            let from_before =
                |asked: StatusRequest| asked.breaks != self.breaks.load(Ordering::Acquire);
            let is_old =
                self.is_directory() && promise.is_some_and(|(_, asked)| from_before(asked));
            state.life.seen(is_old);
        }
        // Rights change without the data. So the known rights of other users hold no longer than
        // the promise, which a change of the access list breaks.
        if state.expires.is_none_or(|at| at <= Instant::now()) {
            state.rights.clear();
        }
        state.rights.retain(|(id, _)| *id != user);
        if state.rights.len() >= RIGHTS_MAX {
            state.rights.remove(0);
        }
        state.rights.push((user, status.caller_access));
        if let Some((callback, asked)) = promise {
            let broken = self.breaks.load(Ordering::Acquire) != asked.breaks;
            // With equal versions, either answer may be the newer one: a mode changes without a new
            // version.
            let doubtful = overtaken && known == Some(status.data_version);
            let given = callback.expires_in_secs > 0
                && callback.callback_type != Callback::DROPPED
                && !broken
                && !doubtful;
            let lifetime = Duration::from_secs(callback.expires_in_secs.into());
            let lifetime = lifetime.saturating_sub(MARGIN.min(lifetime / 10));
            state.expires = given.then(|| asked.at + lifetime);
            let earlier = TOLD_EARLIER.min(lifetime / 2);
            state.given_up = given.then(|| asked.at + (lifetime - earlier));
            state.promised_by = asked.by;
        }
        owed
    }

    /// Returns the promise of an answer, or none while an earlier change without an answer is
    /// undecided. The change is made, or will never be made, when the server has answered for
    /// [`SETTLE_TIME`] since.
    pub(crate) fn decided(
        &self,
        (callback, asked): (Callback, StatusRequest),
    ) -> (Callback, StatusRequest) {
        let mut state = self.state.lock();
        let Some(first) = state.undecided else {
            return (callback, asked);
        };
        let decided = first.is_some_and(|first| asked.at >= first + SETTLE_TIME);
        state.undecided = match (decided, first) {
            (true, _) => None,
            (false, None) => Some(Some(Instant::now())),
            (false, first) => Some(first),
        };
        let callback = if decided { callback } else { Callback::NONE };
        (callback, asked)
    }

    /// The server that gave the last promise.
    pub(crate) fn promised_by(&self) -> Option<SocketAddr> {
        self.state.lock().promised_by
    }

    /// Whether a promise is in force that this server may have given.
    pub(crate) fn is_promised_by(&self, server: SocketAddr) -> bool {
        let state = self.state.lock();
        state.expires.is_some() && state.promised_by.is_none_or(|by| by == server)
    }

    /// Ends the promise after a break. Returns the notice that is owed to the kernel.
    pub(crate) fn broken(&self) -> Owed {
        self.breaks.fetch_add(1, Ordering::AcqRel);
        let mut state = self.state.lock();
        state.expires = None;
        state.held.end()
    }

    /// Notes that we moved the file to another directory.
    pub(crate) fn moved_to(&self, directory: Fid) {
        if let Some(status) = &mut self.state.lock().status {
            status.parent_vnode = directory.vnode;
            status.parent_uniquifier = directory.uniquifier;
        }
    }

    /// The number of broken promises. If it changes, facts from before need not be true any more.
    pub fn breaks(&self) -> u64 {
        self.breaks.load(Ordering::Acquire)
    }

    /// Gives up the promise about an open file if it is due by `now`. Returns the notice that is
    /// owed to the kernel. A file that is not open needs none. The kernel believes its attributes
    /// no longer than the promise, and its pages are checked at the next open.
    pub(crate) fn ran_out(&self, now: Instant) -> Owed {
        let mut state = self.state.lock();
        let promised = state.expires.and(state.given_up);
        if state.opens == 0 || promised.is_none_or(|at| at > now) {
            return Owed::NOTHING;
        }
        state.expires = None;
        state.held.end()
    }

    /// Closes its file in the cache directory if no program has it open.
    pub(crate) fn rest(&self) {
        let state = self.state.lock();
        if state.opens == 0 {
            self.body.lock().close();
        }
    }

    /// Whether a program has it open.
    pub fn is_open(&self) -> bool {
        self.state.lock().opens > 0
    }

    /// Whether no server has it any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.state.lock().life.is_gone()
    }

    /// Notes that the server has no such vnode any more. Returns the notice that is owed to the
    /// kernel.
    pub(crate) fn vanished(&self) -> Owed {
        let mut state = self.state.lock();
        state.expires = None;
        state.life.vanished();
        state.held.end()
    }

    /// Notes that we removed this directory.
    pub(crate) fn directory_removed(&self) {
        // An earlier answer that is under way gives no promise.
        self.breaks.fetch_add(1, Ordering::AcqRel);
        // The kernel has removed it already.
        let _known = self.vanished();
        self.state.lock().life.removed();
    }

    /// The status of a directory that we removed, for programs that have it open.
    pub(crate) fn removed_directory(&self) -> Option<AfsFetchStatus> {
        let state = self.state.lock();
        let is_removed = self.is_directory() && state.life.is_removed();
        let status = state.status.filter(|_| is_removed)?;
        Some(self.with_changes_in(&state, status))
    }

    /// Whether a symbolic link with this status is a mount point.
    pub(crate) fn is_mount_point(status: &AfsFetchStatus) -> bool {
        status.file_type == FileType::Symlink && is_mount_point(status.unix_mode)
    }

    /// A number that changes when another client changed the contents.
    pub fn contents(&self) -> u64 {
        self.body.lock().contents()
    }

    /// The number of bytes that programs of this machine wrote and no server has.
    pub fn unstored_bytes(&self) -> u64 {
        self.body.lock().unstored_bytes()
    }

    /// The time of the last change by a program of this machine, if the change is not stored yet.
    pub fn unstored_since(&self) -> Option<AfsTime> {
        let body = self.body.lock();
        body.is_changed().then(|| body.touched())
    }
}

#[cfg(test)]
pub(super) mod tests;
