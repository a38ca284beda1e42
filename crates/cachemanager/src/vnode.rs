//! One vnode: the sum of the parts that the owners of the cache have in it.
//!
//! | part | owner | content |
//! | --- | --- | --- |
//! | `state.life` (`life.rs`) | `Creates`, `Names` | created locally, present, renamed, removed or gone |
//! | `state.status`, `changes` | [`Promises`](crate::Promises) | status, promise, rights of users |
//! | `state.kernel` | [`Promises`](crate::Promises) | the facts that the kernel may hold |
//! | `state.lease` | [`Creates`](crate::Creates) | lease and pending creates of a directory |
//! | `state.contents`, `devices` | [`Statuses`](crate::Statuses) | names in it, text of a link; devices |
//! | `read_ahead` | [`Reads`](crate::Reads) | the last reader, bytes that were fetched ahead |
//! | `state.stores`, `store_turn` | [`WriteBack`](crate::WriteBack) | writer, results and turns of stores |
//! | `locks` | [`FileLocks`](crate::FileLocks) | locks of programs and of the server |
//! | `state.names` | [`Names`](crate::Names) | the order of lookups, removals |
//! | `state.opens` | [`Cache`](crate::Cache) | open handles |
//! | `last_use` | `VnodeTable` | the age |
//! | `body` (`cellar_cachestore`) | `Reads`, `WriteBack` | bytes, and what of them is dirty |
//!
//! The fields of a part are private to its file. Parts below `state` share one lock, because an
//! answer of a server changes several of them in one step ([`Vnode::apply_status`]).

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use cellar_cachestore::{Body, Piece};
use cellar_wire::ids::{AfsTime, Fid};
use cellar_wire::rxafs::{AfsFetchStatus, Callback, FileType};
use tokio::time::{Duration, Instant};

use crate::creates::lease::DirectoryLease;
use crate::file_locks::lock_table::Locks;
use crate::files::opens::Opens;
use crate::life::Life;
use crate::lock_order::{BODY, Ordered, STATE};
use crate::names::name_state::NameState;
use crate::promises::cached_status::CachedStatus;
use crate::promises::kernel_state::{KernelState, Owed};
use crate::promises::status_request::{ChangeCounts, StatusRequest};
use crate::reads::reader::ReadAheadState;
use crate::statuses::cached_names::CachedNames;
use crate::statuses::device_locations::DeviceLocations;
use crate::user::User;
use crate::vnode_table::last_use::LastUse;
use crate::write_back::store_state::{StoreState, StoreTurn};
use cellar_client::mount_point::is_mount_point;
use cellar_client::volume::Volume;

/// The links of a directory that has a name: its name, and the entry `.` in it.
const DIRECTORY_LINKS_MIN: u32 = 2;

/// A vnode of one of the cells that the cache knows: the cell's number, and the fid.
pub type Key = (u32, Fid);

/// One vnode in the cache. Each owner has a part of it, whose fields only the owner's files know.
#[derive(Debug)]
pub struct Vnode {
    key: Key,
    /// The fid that the server gave it. Set if it was created locally under a fid that the server
    /// had forgotten.
    renumbered: OnceLock<Fid>,
    volume: Arc<Volume>,
    pub(crate) state: Ordered<STATE, State>,
    /// Its bytes, and what of them is dirty.
    pub(crate) body: Ordered<BODY, Body>,
    pub(crate) changes: ChangeCounts,
    /// Held during a request to the server, so that other tasks wait for the same answer.
    asking: tokio::sync::Mutex<()>,
    pub(crate) store_turn: StoreTurn,
    pub(crate) locks: Locks,
    /// The location of its bytes: objects or the file server.
    pub(crate) devices: DeviceLocations,
    pub(crate) read_ahead: ReadAheadState,
    pub(crate) last_use: LastUse,
}

/// The mutable part of a vnode.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Created, present, removed or gone.
    pub(crate) life: Life,
    pub(crate) status: CachedStatus,
    /// The facts that the kernel was given and may still hold.
    pub(crate) kernel: KernelState,
    /// The names in a directory, or the text of a link.
    pub(crate) contents: CachedNames,
    /// How its names are used.
    pub(crate) names: NameState,
    /// Files: the open handles.
    pub(crate) opens: Opens,
    /// Files: the writer, and the results of stores.
    pub(crate) stores: StoreState,
    /// Directories: the lease and the pending creates.
    pub(crate) lease: DirectoryLease,
}

/// The attributes of a vnode for `stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The server's status, with the length and times of changes that are not stored yet.
    pub status: AfsFetchStatus,
    /// The time for which the attributes are valid without a request.
    pub valid: Duration,
}

impl StatusRequest {
    pub(crate) fn about(vnode: &Vnode) -> Self {
        vnode.changes.request()
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
            changes: ChangeCounts::default(),
            asking: tokio::sync::Mutex::default(),
            store_turn: StoreTurn::default(),
            locks: Locks::default(),
            devices: DeviceLocations::default(),
            read_ahead: ReadAheadState::default(),
            last_use: LastUse::default(),
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

    /// Gives it the fid that the server has chosen. Only the first call has an effect.
    pub(crate) fn renumber(&self, fid: Fid) {
        let _once = self.renumbered.set(fid);
    }

    /// Waits until no other request to the server about its status or names is under way.
    pub(crate) async fn alone(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.asking.lock().await
    }

    /// The volume it is in.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// The last known status, promised or not.
    pub fn last_status(&self) -> Option<AfsFetchStatus> {
        self.state.lock().status.last()
    }

    /// Whether it is a directory, by its vnode number.
    pub fn is_directory(&self) -> bool {
        self.key.1.vnode.is_directory()
    }

    /// The promised status with this user's rights. `None`: nothing is promised, or the rights are
    /// unknown.
    pub(crate) fn promised(&self, user: &User) -> Option<AfsFetchStatus> {
        self.state.lock().status.promised(user.id())
    }

    /// The last known status, with the changes that programs of this machine made since.
    pub(crate) fn shown_status(&self) -> Option<AfsFetchStatus> {
        let state = self.state.lock();
        Some(self.with_changes_in(&state, state.status.last()?))
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
            .last()
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
            status = self.body.lock().with_local_changes(status);
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
        state
            .contents
            .advance(count, status.data_version, |_names| {});
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
        state.stores.set_failed(None);
        let owed = self.apply(&mut state, user, status, None);
        match others && owed == Owed::NOTHING {
            true => state.kernel.new_version((before, self.length())),
            false => owed,
        }
    }

    /// The server did not store a piece. Returns the notice that is owed to the kernel.
    pub(crate) fn not_stored(&self, piece: &Piece) -> Owed {
        let mut state = self.state.lock();
        let before = self.length();
        match self.body.lock().not_stored(piece) {
            true => state.kernel.new_version((before, self.length())),
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
            Some((_, asked)) => self.changes.changed_since(asked),
            None => {
                self.changes.count_own_change();
                true
            }
        };
        let known = state.status.last().map(|known| known.data_version);
        let older = overtaken && known.is_some_and(|known| known > status.data_version);
        if older && promise.is_none() {
            return Owed::NOTHING;
        }
        let is_broken = |asked: &StatusRequest| self.changes.broken_since(asked);
        let mut owed = Owed::NOTHING;
        if !older {
            let before = self.length();
            if status.file_type == FileType::File && self.body.lock().apply_status(status) {
                owed = state.kernel.new_version((before, self.length()));
            }
            state.status.replace(status);
            let from_before = promise.as_ref().is_some_and(|(_, asked)| is_broken(asked));
            let is_unlinked = from_before || status.link_count < DIRECTORY_LINKS_MIN;
            state.life.seen(self.is_directory() && is_unlinked);
        }
        state.status.set_rights(user, status.caller_access);
        if let Some((callback, asked)) = promise {
            // With equal versions, either answer may be the newer one: a mode changes without a new
            // version.
            let is_same_version = known == Some(status.data_version);
            let doubtful = is_broken(&asked) || (overtaken && is_same_version);
            state.status.set_promise(&callback, &asked, doubtful);
        }
        owed
    }

    /// Returns the promise of an answer, or none while an earlier change without an answer is
    /// undecided.
    pub(crate) fn decided(
        &self,
        (callback, asked): (Callback, StatusRequest),
    ) -> (Callback, StatusRequest) {
        let is_decided = self.state.lock().status.own_changes_decided(&asked);
        let callback = if is_decided { callback } else { Callback::NONE };
        (callback, asked)
    }

    /// The server that gave the last promise.
    pub(crate) fn promised_by(&self) -> Option<SocketAddr> {
        self.state.lock().status.promiser()
    }

    /// Whether a promise is in force that this server may have given.
    pub(crate) fn is_promised_by(&self, server: SocketAddr) -> bool {
        self.state.lock().status.is_promised_by(server)
    }

    /// Ends the promise after a break. Returns the notice that is owed to the kernel.
    pub(crate) fn broken(&self) -> Owed {
        self.changes.count_break();
        let mut state = self.state.lock();
        state.status.end_promise();
        state.kernel.end()
    }

    /// Notes that we moved the file to another directory.
    pub(crate) fn moved_to(&self, directory: Fid) {
        self.state.lock().status.moved_to(directory);
    }

    /// The number of broken promises. If it changes, facts from before need not be true any more.
    pub fn breaks(&self) -> u64 {
        self.changes.breaks()
    }

    /// Gives up the promise about an open file if it is due by `now`. Returns the notice that is
    /// owed to the kernel. A file that is not open needs none. The kernel believes its attributes
    /// no longer than the promise, and its pages are checked at the next open.
    pub(crate) fn ran_out(&self, now: Instant) -> Owed {
        let mut state = self.state.lock();
        if !state.opens.is_open() || !state.status.must_give_up(now) {
            return Owed::NOTHING;
        }
        state.status.end_promise();
        state.kernel.end()
    }

    /// Closes its file in the cache directory if no program has it open.
    pub(crate) fn rest(&self) {
        let state = self.state.lock();
        if !state.opens.is_open() {
            self.body.lock().close();
        }
    }

    /// Whether a program has it open.
    pub fn is_open(&self) -> bool {
        self.state.lock().opens.is_open()
    }

    /// Whether no server has it any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.state.lock().life.is_gone()
    }

    /// Notes that the server has no such vnode any more. Returns the notice that is owed to the
    /// kernel.
    pub(crate) fn vanished(&self) -> Owed {
        let mut state = self.state.lock();
        state.status.end_promise();
        state.life.vanished();
        state.kernel.end()
    }

    /// Notes that we removed this directory.
    pub(crate) fn directory_removed(&self) {
        // An earlier answer that is under way gives no promise.
        self.changes.count_break();
        // The kernel has removed it already.
        let _known = self.vanished();
        self.state.lock().life.removed();
    }

    /// The status of a directory that we removed, for programs that have it open.
    pub(crate) fn removed_directory(&self) -> Option<AfsFetchStatus> {
        let state = self.state.lock();
        let is_removed = self.is_directory() && state.life.is_removed();
        let status = state.status.last().filter(|_| is_removed)?;
        Some(self.with_changes_in(&state, status))
    }

    /// Whether a symbolic link with this status is a mount point.
    pub(crate) fn is_mount_point(status: &AfsFetchStatus) -> bool {
        status.file_type == FileType::Symlink && is_mount_point(status.unix_mode)
    }

    /// A number that changes when another client changed the contents.
    pub fn content_generation(&self) -> u64 {
        self.body.lock().content_generation()
    }

    /// The number of bytes that programs of this machine wrote and no server has.
    pub fn unstored_bytes(&self) -> u64 {
        self.body.lock().unstored_bytes()
    }

    /// The time of the last change by a program of this machine, if the change is not stored yet.
    pub fn unstored_since(&self) -> Option<AfsTime> {
        let body = self.body.lock();
        body.is_changed().then(|| body.last_change())
    }
}

#[cfg(test)]
pub(super) mod tests;
