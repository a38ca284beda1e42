//! What is known of one vnode: its status for as long as a promise holds, and what depends on it.

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

use super::coherence::{Held, Owed, TOLD_EARLIER};
use super::direct::Places;
use super::leases::{Busy, Lease};
use super::life::Life;
use super::lock_order::{BODY, Ordered, STATE};
use super::locks::Locks;
use super::neighbours::Reader;
use super::status::Asked;
use super::user::User;
use crate::course::SETTLE_TIME;
use crate::mount_point::is_mount_point;
use crate::store::Unanswered;
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
    /// The fid that the server gave it, where it was made here under one that the server had forgotten.
    pub(crate) renumbered: OnceLock<Fid>,
    pub(crate) volume: Arc<Volume>,
    pub(crate) state: Ordered<STATE, State>,
    pub(crate) body: Ordered<BODY, Body>,
    /// Held by whoever asks the server about it, so that others wait for the same answer.
    pub(crate) asking: tokio::sync::Mutex<()>,
    /// Held by whoever stores.
    pub(crate) storing: tokio::sync::Mutex<()>,
    /// Of whoever stores.
    pub(crate) unanswered: Unanswered,
    /// It waits to be stored (`behind.rs`).
    pub(crate) waits: AtomicBool,
    pub(crate) locks: Locks,
    /// No program waits for the store that is under way.
    pub(crate) unhurried: AtomicBool,
    /// A server keeps ranges for us: others may store other bytes while ours are not stored.
    pub(crate) shared: AtomicBool,
    /// Where its bytes are.
    pub(crate) places: Places,
    /// Promises broken so far: an answer that was under way meanwhile promises nothing.
    pub(crate) breaks: AtomicU64,
    /// Changes of our own that were answered so far: nobody breaks a promise for them, so an answer that was
    /// under way meanwhile may be of before.
    pub(crate) own: AtomicU64,
    /// When it was last used, by the cache's count.
    pub(crate) used: AtomicU64,
    /// Directories: who read a file of it last.
    pub(crate) reader: Mutex<Reader>,
    /// Its bytes were fetched before a program asked for them, and none has yet.
    pub(crate) is_ahead: AtomicBool,
}

/// What changes all the time.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Created, present, removed or gone.
    pub(crate) life: Life,
    pub(crate) status: Option<AfsFetchStatus>,
    /// Until when the status may be believed.
    expires: Option<Instant>,
    /// When the promise of an open file is given up.
    given_up: Option<Instant>,
    /// What the kernel was given and may still hold.
    pub(crate) held: Held,
    /// Whose promise that is.
    promised_by: Option<SocketAddr>,
    rights: Vec<(u32, Rights)>,
    pub(crate) listing: Option<(u64, Arc<Listing>)>,
    /// Directories: the user for whom the names were asked for.
    pub(crate) lister: Option<Arc<User>>,
    /// Directories: when the names were last compared after a break ([`super::compare`]).
    pub(crate) compared: Option<Instant>,
    pub(crate) link: Option<(u64, Bytes)>,
    /// Files: how often it is open.
    pub(crate) opens: u32,
    /// Who opened it last: the server is asked again for this user.
    pub(crate) opener: Option<Arc<User>>,
    /// Who wrote last: the store is his.
    pub(crate) writer: Option<Arc<User>>,
    /// How many programs here are about to remove its last name.
    pub(crate) removing: u32,
    /// It was just made, and no program has closed it since.
    pub(crate) made: bool,
    /// The server refused attributes that programs had set: whoever closes the file next hears of it.
    pub(crate) refused: Option<AbortCode>,
    /// Why the last store failed.
    pub(crate) failed: Option<i32>,
    /// Bytes that may wait when it is closed, where that is not as of all files.
    pub(crate) store_behind: Option<u64>,
    /// Names of it are looked at one after the other: those that follow are asked for too.
    pub(crate) walked: bool,
    /// The last name of it that was looked up and led to what nothing was promised about.
    pub(crate) looked_up: Option<Bytes>,
    /// Files: the name by which it was found last.
    pub(crate) name: Option<Bytes>,
    /// Directories: the server keeps others out.
    pub(crate) lease: Option<Lease>,
    pub(crate) busy: Busy,
    /// A change of it was not answered; and when the server first answered something about it
    /// since.
    pub(crate) undecided: Option<Option<Instant>>,
    /// Directories: files in it that the server has not been told of.
    pub(crate) untold: u32,
}

/// What `stat` tells of a vnode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// As the server gave it, with the length and time of what is not stored yet.
    pub status: AfsFetchStatus,
    /// For how long it may be believed without asking.
    pub valid: Duration,
}

impl State {
    /// Until when the status may be believed.
    pub(crate) fn expires(&self) -> Option<Instant> {
        self.expires
    }

    /// Nothing is promised any more. Answers whether something was.
    pub(super) fn end_promise(&mut self) -> bool {
        let expires = self.expires.take();
        expires.is_some_and(|at| at > Instant::now())
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
            places: Places::default(),
            breaks: AtomicU64::new(0),
            own: AtomicU64::new(0),
            used: AtomicU64::new(0),
            reader: Mutex::default(),
            is_ahead: AtomicBool::new(false),
        }
    }

    /// Which it is.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Its fid: that of its key, but where the server would not have that one.
    pub fn fid(&self) -> Fid {
        self.renumbered.get().copied().unwrap_or(self.key.1)
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

    /// The last status that was heard, with what programs here did since.
    pub(crate) fn shown_status(&self) -> Option<AfsFetchStatus> {
        let state = self.state.lock();
        Some(self.with_changes_in(&state, state.status?))
    }

    /// How long a file is, with what programs here did to it.
    pub(crate) fn length(&self) -> u64 {
        self.body.lock().length()
    }

    /// A status of the server's with what programs here did since.
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

    /// The same, of the status that is in `state`, or a newer one. What is stored is in that first, and then no longer a change of
    /// ours: whoever looked at one before and at the other after would find neither, and a file that is shorter than it was.
    pub(crate) fn with_changes_in(
        &self,
        state: &State,
        mut status: AfsFetchStatus,
    ) -> AfsFetchStatus {
        if state.life.is_silly_renamed() || (state.life.is_removed() && self.is_directory()) {
            // Its last name was removed, as far as programs know.
            status.link_count = 0;
        }
        if status.file_type == FileType::File {
            status = self.body.lock().shown(status);
        }
        status
    }

    /// A server answered `status` for a user, to a question or, without a promise, to a change of our own.
    /// Answers what the kernel is to be told.
    ///
    /// Answers may overtake each other. What our own change came to is newer than any lower version; a
    /// promise given before it holds all the same, as others would have broken it.
    pub(crate) fn heard(
        &self,
        user: u32,
        status: &AfsFetchStatus,
        promise: Option<(Callback, Asked)>,
    ) -> Owed {
        self.hear(&mut self.state.lock(), user, status, promise)
    }

    /// The same, of a directory in which `count` things were made by us that its names have already. Fewer than those that
    /// the answer has in it: others have made some, too, and the names are asked for again.
    pub(crate) fn heard_grown(
        &self,
        user: u32,
        (count, status): (u64, &AfsFetchStatus),
        promise: Option<(Callback, Asked)>,
    ) -> Owed {
        let mut state = self.state.lock();
        match &mut state.listing {
            Some((version, _)) if version.wrapping_add(count) == status.data_version => {
                *version = status.data_version;
            }
            _ => state.listing = None,
        }
        self.hear(&mut state, user, status, promise)
    }

    /// The server took a piece of what was to be stored. Answers what the kernel is to be told.
    ///
    /// One step: an answer to a question of before, heard between the two, would be taken for news of others, and what was cut
    /// off for something that they have put behind it.
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
        let heard = self.hear(&mut state, user, status, None);
        match others && heard == Owed::NOTHING {
            true => state.held.news((before, self.length())),
            false => heard,
        }
    }

    /// The server did not take a piece. Answers what the kernel is to be told.
    pub(crate) fn not_stored(&self, piece: &Piece) -> Owed {
        let mut state = self.state.lock();
        let before = self.length();
        match self.body.lock().not_stored(piece) {
            true => state.held.news((before, self.length())),
            false => Owed::NOTHING,
        }
    }

    fn hear(
        &self,
        state: &mut State,
        user: u32,
        status: &AfsFetchStatus,
        promise: Option<(Callback, Asked)>,
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
            if status.file_type == FileType::File && self.body.lock().meet(status) {
                owed = state.held.news((before, self.length()));
            }
            state.status = Some(*status);
            let from_before = |asked: Asked| asked.breaks != self.breaks.load(Ordering::Acquire);
            let is_old =
                self.is_directory() && promise.is_some_and(|(_, asked)| from_before(asked));
            state.life.seen(is_old);
        }
        // Who may do what changes without the data: what was known of others holds no longer than
        // the promise, which an access list's change breaks.
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
            // Of the same version, either may be the newer one: a mode changes without it.
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

    /// What an answer promises, if a change that was not answered before is decided: it is done,
    /// or never will be, when the server has answered for [`SETTLE_TIME`] since.
    pub(crate) fn decided(&self, (callback, asked): (Callback, Asked)) -> (Callback, Asked) {
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

    /// The server that last promised something.
    pub(crate) fn promised_by(&self) -> Option<SocketAddr> {
        self.state.lock().promised_by
    }

    /// Whether something is promised, and that server may have promised it.
    pub(crate) fn is_promised_by(&self, server: SocketAddr) -> bool {
        let state = self.state.lock();
        state.expires.is_some() && state.promised_by.is_none_or(|by| by == server)
    }

    /// The promise is broken. Answers what the kernel is to be told.
    pub(crate) fn broken(&self) -> Owed {
        self.breaks.fetch_add(1, Ordering::AcqRel);
        let mut state = self.state.lock();
        state.expires = None;
        state.held.end()
    }

    /// We have moved a file to another directory.
    pub(crate) fn moved_to(&self, directory: Fid) {
        if let Some(status) = &mut self.state.lock().status {
            status.parent_vnode = directory.vnode;
            status.parent_uniquifier = directory.uniquifier;
        }
    }

    /// How many promises were broken so far. What was true before [`Vnode::breaks`] became another number need
    /// not be true any more.
    pub fn breaks(&self) -> u64 {
        self.breaks.load(Ordering::Acquire)
    }

    /// If it is open, and its promise is to be given up by `now`, that is done. Answers what the
    /// kernel is to be told. Of what is not open the kernel believes nothing beyond that time by
    /// itself, and its pages are compared when it is opened.
    pub(crate) fn ran_out(&self, now: Instant) -> Owed {
        let mut state = self.state.lock();
        let promised = state.expires.and(state.given_up);
        if state.opens == 0 || promised.is_none_or(|at| at > now) {
            return Owed::NOTHING;
        }
        state.expires = None;
        state.held.end()
    }

    /// If no program has it open, no descriptor is kept for it.
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

    /// Whether the server said that it is no more.
    pub(crate) fn is_gone(&self) -> bool {
        self.state.lock().life.is_gone()
    }

    /// There is no such vnode any more. Answers what the kernel is to be told, if it does not know.
    pub(crate) fn vanished(&self) -> Owed {
        let mut state = self.state.lock();
        state.expires = None;
        state.life.vanished();
        state.held.end()
    }

    /// We have removed the name of this directory, and with it the directory.
    pub(crate) fn directory_removed(&self) {
        // An answer from before that is under way promises nothing.
        self.breaks.fetch_add(1, Ordering::AcqRel);
        // The kernel has removed it itself.
        let _known = self.vanished();
        self.state.lock().life.removed();
    }

    /// What programs that have it open are shown of a directory that we have removed.
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

    /// A number that changes when others than our own programs changed the contents.
    pub fn contents(&self) -> u64 {
        self.body.lock().contents()
    }

    /// Bytes that our own programs wrote and no server has.
    pub fn unstored_bytes(&self) -> u64 {
        self.body.lock().unstored_bytes()
    }

    /// When our own programs last changed it, if that is not stored yet.
    pub fn unstored_since(&self) -> Option<AfsTime> {
        let body = self.body.lock();
        body.is_changed().then(|| body.touched())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use cellar_wire::ids::VolumeId;

    use super::*;
    use crate::cell::CellName;
    use crate::mount_point::VolumeKind;

    const USER: u32 = 1;

    /// A file of volume 5, of which nothing is known.
    pub(in crate::cache) fn vnode() -> Vnode {
        let volume = Volume {
            cell: CellName::new("test.cell").expect("name"),
            name: "volume".to_owned(),
            kind: VolumeKind::ReadWrite,
            id: VolumeId(5),
        };
        let body = Body::in_memory(Arc::default());
        Vnode::new((0, Fid::new(5, 2, 1)), Arc::new(volume), body)
    }

    fn status(version: u64, length: u64, mode: u32) -> AfsFetchStatus {
        AfsFetchStatus {
            file_type: FileType::File,
            length,
            data_version: version,
            unix_mode: mode,
            ..AfsFetchStatus::failed(AbortCode(0))
        }
    }

    fn promise(asked: Asked) -> Option<(Callback, Asked)> {
        let callback = Callback {
            version: 1,
            expires_in_secs: 3600,
            callback_type: Callback::SHARED,
        };
        Some((callback, asked))
    }

    fn known(vnode: &Vnode) -> (u64, u64, u32, bool) {
        let Attributes { status, valid } = vnode.attributes().expect("known");
        let promised = !valid.is_zero();
        assert_eq!(vnode.body.lock().length(), status.length);
        (
            status.data_version,
            status.length,
            status.unix_mode,
            promised,
        )
    }

    #[test]
    fn an_answer_from_before_our_own_change_does_not_undo_it() {
        let vnode = vnode();
        let early = Asked::about(&vnode);
        let _nothing = vnode.heard(USER, &status(4, 10, 0o644), promise(early));
        let asked = Asked::about(&vnode);
        // We store meanwhile, and are answered first.
        let _nothing = vnode.heard(USER, &status(5, 20, 0o644), None);
        let _nothing = vnode.heard(USER, &status(4, 10, 0o644), promise(asked));
        assert_eq!(known(&vnode), (5, 20, 0o644, true));
        // The other way round it is newer.
        let _nothing = vnode.heard(USER, &status(6, 30, 0o644), promise(asked));
        assert_eq!(known(&vnode), (6, 30, 0o644, true));
        // A change of the mode leaves the version: which of both is newer cannot be said.
        let asked = Asked::about(&vnode);
        let _nothing = vnode.heard(USER, &status(6, 30, 0o600), None);
        let _nothing = vnode.heard(USER, &status(6, 30, 0o644), promise(asked));
        assert!(!known(&vnode).3);
    }

    #[test]
    fn answers_to_our_own_changes_may_overtake_each_other() {
        let vnode = vnode();
        let _nothing = vnode.heard(USER, &status(5, 20, 0o644), None);
        let _nothing = vnode.heard(USER, &status(4, 10, 0o600), None);
        assert_eq!(known(&vnode), (5, 20, 0o644, false));
    }
}
