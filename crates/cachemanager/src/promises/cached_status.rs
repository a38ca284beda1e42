//! The cached status of a vnode: the last answer of a server, the promise about it, and the rights
//! of users.

use std::net::SocketAddr;

use cellar_wire::acl::Rights;
use cellar_wire::ids::{AfsTime, Fid};
use cellar_wire::rxafs::{AfsFetchStatus, Callback};
use tokio::time::{Duration, Instant};

use super::kernel_state::NOTICE_EARLIER;
use super::status_request::StatusRequest;
use cellar_client::operation::STALL_GRACE;

/// The most users whose rights to one vnode are kept.
const RIGHTS_MAX: usize = 16;
/// A promise ends this much earlier for us than for the server. Source: kAFS.
const MARGIN: Duration = Duration::from_secs(10);

/// See the head of the file.
#[derive(Debug, Default)]
pub(crate) struct CachedStatus {
    status: Option<AfsFetchStatus>,
    promise: Option<Promise>,
    /// The server that gave the last promise.
    promiser: Option<SocketAddr>,
    /// The known rights, each with the id of its user. The oldest comes first.
    rights: Vec<(u32, Rights)>,
    own_change: OwnChange,
}

/// A promise in force.
#[derive(Clone, Copy, Debug)]
struct Promise {
    /// The time until which the status is valid.
    expires: Instant,
    /// The time at which the promise about an open file is given up.
    give_up_at: Instant,
}

/// The knowledge about a change of our own that had no answer.
#[derive(Clone, Copy, Debug, Default)]
enum OwnChange {
    /// There is none.
    #[default]
    Decided,
    /// No server has answered about the vnode since.
    Unanswered,
    /// A server answered about the vnode for the first time since.
    AnsweredAt(Instant),
}

impl CachedStatus {
    /// The last known status, promised or not.
    pub(crate) fn last(&self) -> Option<AfsFetchStatus> {
        self.status
    }

    /// The promised status with this user's rights. `None`: nothing is promised, or the rights are
    /// unknown.
    pub(crate) fn promised(&self, user: u32) -> Option<AfsFetchStatus> {
        let status = self.status?;
        (self.promise?.expires > Instant::now()).then_some(())?;
        let (_, rights) = self.rights.iter().find(|(id, _)| *id == user)?;
        Some(AfsFetchStatus {
            caller_access: *rights,
            ..status
        })
    }

    /// The time for which the status is valid.
    pub(crate) fn valid(&self) -> Duration {
        self.promise.map_or(Duration::ZERO, |promise| {
            promise.expires.saturating_duration_since(Instant::now())
        })
    }

    /// The server that gave the last promise.
    pub(crate) fn promiser(&self) -> Option<SocketAddr> {
        self.promiser
    }

    /// Whether a promise is in force that this server may have given.
    pub(crate) fn is_promised_by(&self, server: SocketAddr) -> bool {
        self.promise.is_some() && self.promiser.is_none_or(|by| by == server)
    }

    /// Whether the promise about an open file must be given up by `now`.
    pub(crate) fn must_give_up(&self, now: Instant) -> bool {
        self.promise
            .is_some_and(|promise| promise.give_up_at <= now)
    }

    /// Ends the promise. Returns whether a promise was in force.
    pub(crate) fn end_promise(&mut self) -> bool {
        let promise = self.promise.take();
        promise.is_some_and(|promise| promise.expires > Instant::now())
    }

    /// Replaces the status.
    pub(crate) fn replace(&mut self, status: &AfsFetchStatus) {
        self.status = Some(*status);
    }

    /// We moved the file to another directory.
    pub(crate) fn moved_to(&mut self, directory: Fid) {
        if let Some(status) = &mut self.status {
            status.parent_vnode = directory.vnode;
            status.parent_uniquifier = directory.uniquifier;
        }
    }

    /// A file was created locally in the directory.
    pub(crate) fn local_create_at(&mut self, now: AfsTime) {
        if let Some(status) = &mut self.status {
            status.client_mod_time = now;
            status.server_mod_time = status.server_mod_time.max(now);
        }
    }

    /// Notes a user's rights. Rights change without the data. So the known rights of other users
    /// hold no longer than the promise, which a change of the access list breaks.
    pub(crate) fn set_rights(&mut self, user: u32, rights: Rights) {
        if self
            .promise
            .is_none_or(|promise| promise.expires <= Instant::now())
        {
            self.rights.clear();
        }
        self.rights.retain(|(id, _)| *id != user);
        if self.rights.len() >= RIGHTS_MAX {
            self.rights.remove(0);
        }
        self.rights.push((user, rights));
    }

    /// Replaces the promise by that of an answer. `doubtful`: the answer may be older than the
    /// status or than a break, so it gives none.
    pub(crate) fn set_promise(
        &mut self,
        callback: &Callback,
        asked: &StatusRequest,
        doubtful: bool,
    ) {
        let given = callback.expires_in_secs > 0
            && callback.callback_type != Callback::DROPPED
            && !doubtful;
        let lifetime = Duration::from_secs(callback.expires_in_secs.into());
        let lifetime = lifetime.saturating_sub(MARGIN.min(lifetime / 10));
        let earlier = NOTICE_EARLIER.min(lifetime / 2);
        self.promise = given.then(|| Promise {
            expires: asked.at() + lifetime,
            give_up_at: asked.at() + (lifetime - earlier),
        });
        self.promiser = asked.by();
    }

    /// A change of our own had no answer, so the server may still make it.
    pub(crate) fn own_change_unanswered(&mut self) {
        self.own_change = OwnChange::Unanswered;
    }

    /// Whether all changes of our own are decided for an answer to this request. A change without
    /// an answer is made, or will never be made, when the server has answered for [`STALL_GRACE`]
    /// since.
    pub(crate) fn own_changes_decided(&mut self, asked: &StatusRequest) -> bool {
        match self.own_change {
            OwnChange::Decided => {}
            OwnChange::AnsweredAt(first) if asked.at() >= first + STALL_GRACE => {
                self.own_change = OwnChange::Decided;
            }
            OwnChange::AnsweredAt(_) => return false,
            OwnChange::Unanswered => {
                self.own_change = OwnChange::AnsweredAt(Instant::now());
                return false;
            }
        }
        true
    }
}
