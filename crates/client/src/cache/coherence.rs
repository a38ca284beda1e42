//! Notices to the kernel: the one rule that says when a notice is sent, and why that is right.
//!
//! "The kernel" is whatever shows the cache to programs ([`Watcher`]). It keeps attributes, names
//! and bytes without asking.
//!
//! # The rule
//!
//! 1. A notice about a vnode is owed if the kernel may hold something of the vnode that has
//!    stopped being true: the promise was broken, has run out, or was lost with its server, or an
//!    answer of a server shows another version. It is owed once.
//! 2. The server that breaks a promise is answered after the notice has taken effect, or after
//!    [`SETTLE_TIME`].
//! 3. News that reaches the kernel with the next answer is no reason for a notice.
//! 4. A request for attributes, an open and a lock wait for the notices about their vnode that are
//!    under way. Reads, writes and changes of attributes do not: notices wait for pages that these
//!    requests hold.
//! 5. A lock is granted to a program after the server was asked about the file, unless its status
//!    is promised.
//! 6. The kernel is told the length of a file that grew, if it can use the old one without asking
//!    ([`super::renew`]).
//!
//! # Why
//!
//! The kernel numbers the states of an inode. Each notice raises the number, as does a write.
//! Attributes of an answer count only if the number is still the one from when the kernel asked.
//! So an answer that is overtaken by a notice is lost, and so is one that a notice follows
//! closely, because the answer is applied by the task that asked, some time after it was written.
//! The kernel then goes on with the old length: read(2) and lseek(2) ask once and do not look
//! again; sendfile(2) and copy_file_range(2) do not even ask. Hence rule 3: the notice that
//! matters was sent when the promise ended, before the server (and so the other machine's `close`)
//! was answered. Nothing is held since, and the next answer brings the new length.
//!
//! Rule 3 needs care where a promise ended and the kernel was not told. Pages of the old version
//! may then be in the kernel. If the length differs, the kernel drops all pages in the same step
//! as it takes the length (without `FUSE_EXPLICIT_INVAL_DATA`). If it does not, the pages are
//! dropped by a notice before the answer ([`Question::settle`]); that the answer's attributes are
//! lost then does no harm, as the length is right. A promise that runs out is given up
//! [`TOLD_EARLIER`] before the kernel stops believing it ([`Vnode::ran_out`]), so that no question
//! comes between the two.
//!
//! A second break while an answer is on its way cannot be seen by the answer. [`Question::settle`]
//! sees those that come before the answer is written, and then tells the length of an open file by
//! itself (rule 6). It does so, too, if a notice was sent within the last [`QUEUED`]: the question
//! may have waited in the kernel's queue since before that. What remains is a break between the
//! answer and the moment when the kernel applies it, by a program that does not respect the lock
//! which the reader holds.
//!
//! # What is kept of a vnode
//!
//! [`Held`] says what the kernel was given since the last notice, and which of its questions are
//! unanswered:
//!
//! | event | attributes | contents | owed |
//! | --- | --- | --- | --- |
//! | an answer with attributes that may be believed | held | | |
//! | bytes are read, written, or given away; names are given | | held | |
//! | the promise ends, the file vanishes | none | none | what was held |
//! | a server breaks the promise of a directory | none | the names that did not change | what was held, by [`super::compare`] |
//! | another version, nothing was asked | none | none | what was held |
//! | another version, attributes are asked for | | outdated | by the question, for equal lengths |
//!
//! The marks are set before the answer is computed, under the lock under which promises end. So a
//! promise that ends meanwhile finds them, and its notice comes after the answer: the kernel locks
//! the pages that it asks for. [`Vnode::attributes`] is the only source of a time for which
//! attributes may be believed, and marks them. [`Owed`] must be used, and only [`Cache::pay`] uses
//! it.
//!
//! Lines of a directory that the kernel keeps are no part of this. A program gets them after an
//! open alone, and the mount's answer to the open says whether they are those of now.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::Instant;

use super::Cache;
use super::compare::Before;
use super::user::User;
use super::vnode::{Attributes, State, Vnode};

/// How long a file server, or a program, waits for notices.
pub const SETTLE_TIME: Duration = Duration::from_millis(250);
/// A promise that runs out is given up so much earlier than the kernel stops believing it: more
/// than the time between two looks ([`super::store`]) and the time of a notice.
pub(crate) const TOLD_EARLIER: Duration = Duration::from_secs(6);

/// How long a question may be on its way from the kernel to us. One that comes sooner after a notice
/// may be older than the notice.
const QUEUED: Duration = Duration::from_secs(1);

/// Something that the kernel must not believe any more.
#[derive(Clone, Debug)]
pub enum Notice {
    /// The attributes.
    Attributes,
    /// The attributes, and all bytes of a file or names of a directory.
    Contents,
    /// Of a directory, the attributes and the names that changed: [`Cache::changed_names`].
    Names(Before),
    /// A file is longer than the kernel was told.
    Length(Length),
}

/// The length of a file that grew.
#[derive(Clone, Debug)]
pub struct Length {
    vnode: Arc<Vnode>,
    length: u64,
    last: u8,
    breaks: u64,
}

impl Length {
    /// `last`: the last byte of the file, as it was while so many promises had been broken.
    pub(crate) fn new(vnode: &Arc<Vnode>, length: u64, last: u8, breaks: u64) -> Self {
        let vnode = vnode.clone();
        Self {
            vnode,
            length,
            last,
            breaks,
        }
    }

    /// Where the last byte is, and the byte; `None` if the file may be another by now.
    pub fn last(&self) -> Option<(u64, u8)> {
        let is_so = self.vnode.breaks() == self.breaks && self.vnode.length() == self.length;
        let at = self.length.checked_sub(1)?;
        is_so.then_some((at, self.last))
    }
}

/// The kernel, or what stands for it: shows the cache to programs, and has to know what is no
/// longer true.
pub trait Watcher: Send + Sync {
    /// The kernel is to be told. Does not wait. Notices about one vnode take effect in the order
    /// of the calls; equal ones may become one.
    fn changed(&self, vnode: &Arc<Vnode>, notice: Notice);
    /// Whether a notice about this vnode is under way. Names in a directory do not count: a
    /// question may hold the directory's lock.
    fn is_telling(&self, vnode: &Vnode) -> bool;
    /// Done when the notices about this vnode have taken effect that were under way at the call.
    fn told<'a>(&'a self, vnode: &'a Vnode) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;
    /// Done when all notices have taken effect that were under way at the call, or after
    /// [`SETTLE_TIME`].
    fn settled(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
    /// Names in the dynamic root may lead to other volumes now: the kernel is to look them up
    /// again.
    fn cells_changed(&self) {}
    /// The cache remembers too many vnodes. These were not asked about for long, and the kernel is
    /// shown them: it is asked to let go of those that no program uses.
    fn crowded(&self, vnodes: Vec<Arc<Vnode>>) {
        drop(vnodes);
    }
}

/// The watcher, if there is one. Only this file sends it notices.
#[derive(Default)]
pub(crate) struct Audience(OnceLock<Arc<dyn Watcher>>);

impl Audience {
    /// The first call counts.
    pub(crate) fn set(&self, watcher: Arc<dyn Watcher>) {
        if self.0.set(watcher).is_err() {
            tracing::debug!("the cache has a watcher already");
        }
    }

    pub(crate) fn crowded(&self, vnodes: Vec<Arc<Vnode>>) {
        if let Some(watcher) = self.0.get() {
            watcher.crowded(vnodes);
        }
    }

    /// See [`Watcher::cells_changed`].
    pub(crate) fn cells_changed(&self) {
        if let Some(watcher) = self.0.get() {
            watcher.cells_changed();
        }
    }

    /// See [`Watcher::settled`].
    pub(crate) async fn settled(&self) {
        if let Some(watcher) = self.0.get() {
            watcher.settled().await;
        }
    }

    /// See [`Watcher::told`].
    pub(crate) async fn told(&self, vnode: &Vnode) {
        if let Some(watcher) = self.0.get()
            && watcher.is_telling(vnode)
        {
            watcher.told(vnode).await;
        }
    }

    fn is_telling(&self, vnode: &Vnode) -> bool {
        let watcher = self.0.get();
        watcher.is_some_and(|watcher| watcher.is_telling(vnode))
    }

    fn tell(&self, vnode: &Arc<Vnode>, notice: Notice) {
        if let Some(watcher) = self.0.get() {
            watcher.changed(vnode, notice);
        }
    }
}

/// What the kernel is to be told of a vnode: [`Cache::pay`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "the kernel goes on believing it"]
pub(crate) struct Owed {
    attributes: bool,
    contents: bool,
}

impl Owed {
    /// All of it.
    pub(crate) const ALL: Self = Self {
        attributes: true,
        contents: true,
    };
    /// The attributes.
    pub(crate) const ATTRIBUTES: Self = Self {
        attributes: true,
        contents: false,
    };
    /// Nothing.
    pub(crate) const NOTHING: Self = Self {
        attributes: false,
        contents: false,
    };

    fn notice(self) -> Option<Notice> {
        match self {
            Self { contents: true, .. } => Some(Notice::Contents),
            Self::ATTRIBUTES => Some(Notice::Attributes),
            _ => None,
        }
    }
}

/// What the kernel may hold of a vnode, and what it asks.
#[derive(Debug, Default)]
pub(crate) struct Held {
    attributes: bool,
    contents: bool,
    /// It was given attributes, ever: it has a length.
    has_length: bool,
    /// The file is longer than the kernel was told.
    longer: bool,
    /// Requests for attributes that are unanswered.
    questions: u32,
    /// Bytes of another version are held, which was found while it asked: the length that the file had.
    outdated: Option<u64>,
    /// Notices that were owed so far.
    notices: u64,
    /// When the last of them was.
    noticed: Option<Instant>,
    /// How often the server was asked again, without the kernel having asked for anything.
    unasked: u32,
}

impl Held {
    fn take(&mut self) -> Owed {
        self.outdated = None;
        let owed = Owed {
            attributes: std::mem::take(&mut self.attributes),
            contents: std::mem::take(&mut self.contents),
        };
        if owed != Owed::NOTHING {
            self.owes();
        }
        owed
    }

    fn owes(&mut self) {
        self.notices += 1;
        self.noticed = Some(Instant::now());
    }

    /// Nothing that was promised holds any more.
    pub(super) fn end(&mut self) -> Owed {
        self.take()
    }

    /// Names of a directory are told one by one, and the kernel holds the others.
    pub(super) fn keep_names(&mut self) {
        self.contents = true;
    }

    /// A server's answer shows another version of a file, whose length was and is this.
    pub(super) fn news(&mut self, (was, is): (u64, u64)) -> Owed {
        self.longer |= self.has_length && is > was;
        if self.questions == 0 {
            return self.take();
        }
        if self.contents {
            self.outdated.get_or_insert(was);
        }
        Owed::NOTHING
    }

    /// A question is about to be answered with this length. `crossed`: the kernel may ignore the
    /// answer.
    fn answer(&mut self, length: u64, crossed: bool) -> Owed {
        match self.outdated.take() {
            Some(was) if was == length || crossed => self.take(),
            _ => Owed::NOTHING,
        }
    }

    /// Whether the server should be asked again for a kernel that has not asked. Counts.
    pub(super) fn may_renew(&mut self, most: u32) -> bool {
        self.unasked += 1;
        self.has_length && self.unasked <= most
    }

    /// Whether the kernel has to be told that the file is longer.
    pub(super) fn is_longer(&self) -> bool {
        self.longer
    }

    /// It was told.
    pub(super) fn length_told(&mut self) {
        self.longer = false;
    }
}

impl State {
    fn valid(&self) -> Duration {
        let left = |at: Instant| at.saturating_duration_since(Instant::now());
        self.expires().map_or(Duration::ZERO, left)
    }
}

impl Vnode {
    /// What `stat` tells, if it is known. The kernel holds it from now on, if it may be believed.
    pub fn attributes(&self) -> Option<Attributes> {
        let mut state = self.state.lock();
        let status = self.with_changes_in(&state, state.status?);
        let valid = state.valid();
        state.held.has_length = true;
        state.held.attributes |= !valid.is_zero();
        Some(Attributes { status, valid })
    }

    /// The same of a directory of which names are given. The kernel holds the names from now on.
    pub fn attributes_with_names(&self) -> Option<Attributes> {
        self.hold_contents();
        self.attributes()
    }

    /// The kernel gets bytes or names of it, and may hold them.
    pub(crate) fn hold_contents(&self) {
        let mut state = self.state.lock();
        state.held.contents = true;
        state.held.unasked = 0;
    }
}

/// The kernel asks for the attributes of a vnode.
#[derive(Debug)]
pub(crate) struct Question<'a> {
    cache: &'a Cache,
    vnode: &'a Arc<Vnode>,
    /// How many notices had been owed.
    notices: u64,
    /// One was under way.
    crossed: bool,
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        let owed = {
            let mut state = self.vnode.state.lock();
            let held = &mut state.held;
            held.questions = held.questions.saturating_sub(1);
            match held.outdated {
                // There is no answer that would have brought it.
                Some(_) if held.questions == 0 => held.take(),
                _ => Owed::NOTHING,
            }
        };
        self.cache.pay(self.vnode, owed);
    }
}

impl<'a> Question<'a> {
    /// Rule 4.
    pub(crate) async fn begin(cache: &'a Cache, vnode: &'a Arc<Vnode>) -> Self {
        let notices = {
            let mut state = vnode.state.lock();
            state.held.questions += 1;
            state.held.unasked = 0;
            state.held.notices
        };
        let crossed = cache.audience.is_telling(vnode);
        let question = Self {
            cache,
            vnode,
            notices,
            crossed,
        };
        cache.audience.told(vnode).await;
        question
    }

    /// The status is known: does what has to be done before the answer.
    pub(crate) async fn settle(self, user: &Arc<User>) {
        let (cache, vnode) = (self.cache, self.vnode);
        let (owed, crossed) = {
            let mut state = vnode.state.lock();
            let length = vnode.body.lock().length();
            let recent = |at: Instant| at.elapsed() < QUEUED;
            let crossed = self.crossed
                || state.held.notices != self.notices
                || state.held.noticed.is_some_and(recent);
            let owed = state.held.answer(length, crossed);
            if !crossed {
                state.held.length_told();
            }
            // A file that is opened later is looked at then.
            (owed, crossed && state.opens > 0)
        };
        cache.pay(vnode, owed);
        cache.audience.told(vnode).await;
        if crossed {
            cache.lengthen(user, vnode).await;
        }
    }
}

impl Cache {
    /// Sends the notice that is owed.
    pub(crate) fn pay(&self, vnode: &Arc<Vnode>, owed: Owed) {
        if let Some(notice) = owed.notice() {
            self.audience.tell(vnode, notice);
        }
    }

    /// Sends the notice about a directory whose names are compared: in place of all that is owed.
    pub(crate) fn tell_names(&self, directory: &Arc<Vnode>, before: Before) {
        self.audience.tell(directory, Notice::Names(before));
    }

    /// The kernel was answered, or given something, that need not be true any more; or was given
    /// something else than it believes.
    pub fn take_back(&self, vnode: &Arc<Vnode>) {
        let _all = vnode.state.lock().held.end();
        self.pay(vnode, Owed::ALL);
    }

    /// The kernel may hold attributes that were never the server's.
    pub(crate) fn take_back_attributes(&self, vnode: &Arc<Vnode>) {
        let held = {
            let mut state = vnode.state.lock();
            let held = std::mem::take(&mut state.held.attributes);
            if held {
                state.held.owes();
            }
            held
        };
        if held {
            self.pay(vnode, Owed::ATTRIBUTES);
        }
    }

    /// A file is longer than the kernel was told, which has the last byte with this.
    pub(crate) fn tell_length(&self, vnode: &Arc<Vnode>, length: Length) {
        vnode.state.lock().held.contents = true;
        self.audience.tell(vnode, Notice::Length(length));
    }
}

#[cfg(test)]
mod tests;
