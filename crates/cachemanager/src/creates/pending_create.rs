//! The queues of pending creates (`creates/local_create.rs`). One call, MakeMany, creates many
//! files on the server.
//!
//! 1. There is one queue for each volume and user. One call of a queue is under way at a time.
//! 2. A program may wait for a file. A close of a small file adds its contents, which the same call
//!    carries. A request to a server about something that the server may not know waits first
//!    ([`Creates::flush_pending`]). If no program waits, because `close` need not
//!    (`write_back/queue.rs`), the call waits for other files, at most [`LINGER`]. All other files
//!    are sent after `AGE`.
//! 3. If a file must be created while it is still being written, it is created without contents.
//!    Its bytes are stored like those of other files. The same holds for a large file.
//! 4. The reserved vnode numbers make a repeated call harmless: if its answer was lost, the server
//!    does nothing the second time. So contents in a call without an answer are not sent again by
//!    another call. The file is created, if it was not, and then stored like other files.
//! 5. A file that the server refuses stays in the queue. The programs that wait for it receive the
//!    error, and its name is removed from our copy of the directory. The create is retried every
//!    `RETRY`, like a failed store.
//! 6. After a volume was moved or restored, its server does not know the numbers that were reserved
//!    before. A file with such a number is created by an ordinary call, and has another number from
//!    then on ([`Vnode::fid`]). Programs that have it open notice nothing. It is then stored like
//!    other files.

mod again;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use cellar_rpc::CallError;
use cellar_wire::abort::AbortCode;
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::{
    AfsFetchStatus, AfsStoreStatus, ChangedDirectory, CreateRequests, CreateResult, MakeMany,
    MakeManyReply,
};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::creates::Creates;
use crate::creates::create_queue::{Outcome, Queue, Sent, Urgency};
use crate::creates::given_up::Gone;
use crate::user::User;
use crate::vnode::Vnode;
use cellar_client::errno::of_call;
use cellar_client::error::{Error, Result};
use cellar_client::operation::VolumeOperation;

/// The largest contents that the create carries.
pub(crate) const SMALL: u64 = 64 << 10;
/// How long a call waits for other files if no program waits for it.
const LINGER: Duration = Duration::from_millis(20);
/// The interval of the checks for old pending creates.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// The number of queues from which on empty ones are dropped.
const QUEUES_MAX: usize = 256;

impl Creates {
    /// Whether the vnode is a pending create.
    pub(crate) fn is_pending(&self, vnode: &Vnode) -> bool {
        self.pending_creates.load(Ordering::Acquire) > 0
            && vnode.state.lock().life.pending().is_some()
    }

    /// Waits until the server knows a file or, for a directory, the files that were created in it.
    /// Needed before a call to the server about the vnode.
    ///
    /// # Errors
    /// The server refuses to create the file.
    pub async fn flush_pending(&self, vnode: &Arc<Vnode>) -> Result<()> {
        if self.pending_creates.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        if !vnode.is_directory() {
            return self.flush_create(vnode).await;
        }
        if !vnode.state.lock().lease.has_pending() {
            return Ok(());
        }
        let of_volume = (vnode.key().0, vnode.key().1.volume);
        let queues: Vec<Arc<Queue>> = {
            let all = self.queues.lock();
            let its = all.iter().filter(|(key, _)| (key.0, key.1) == of_volume);
            its.map(|(_, queue)| queue.clone()).collect()
        };
        for queue in queues {
            self.send_queue(&queue, Some(vnode)).await;
        }
        Ok(())
    }

    /// Sends a queue, or its items in a directory, and waits for the answers. An error goes to the
    /// program that created the file, not to the caller.
    pub(super) async fn send_queue(&self, queue: &Arc<Queue>, directory: Option<&Vnode>) {
        let receivers = queue.want_all(directory);
        self.start_sending(queue);
        for receiver in receivers {
            let _outcome = receiver.await;
        }
    }

    /// Waits until the server has created a file.
    ///
    /// # Errors
    /// The server refuses to create it.
    pub(crate) async fn flush_create(&self, vnode: &Arc<Vnode>) -> Result<()> {
        match self.want(vnode, None, Urgency::Now).await {
            Some(Err(cause)) => Err(create_error(vnode, cause)),
            Some(Ok(_)) | None => Ok(()),
        }
    }

    /// Creates a small file with all of its contents. `hurry`: a program waits. Returns `None` if
    /// the server has the file, perhaps since this call, without these contents.
    ///
    /// # Errors
    /// The server refuses to create it.
    pub(crate) async fn create_with(
        &self,
        vnode: &Arc<Vnode>,
        contents: &[u8],
        set: &AfsStoreStatus,
        hurry: bool,
    ) -> Result<Option<AfsFetchStatus>> {
        let wanted = if hurry { Urgency::Now } else { Urgency::Soon };
        let with = Some((Bytes::copy_from_slice(contents), *set));
        match self.want(vnode, with, wanted).await {
            Some(Ok((status, _))) => {
                let stored = &self.env.counts.stored;
                stored.fetch_add(contents.len() as u64, Ordering::Relaxed);
                Ok(Some(status))
            }
            Some(Err(cause)) => Err(create_error(vnode, cause)),
            None => Ok(None),
        }
    }

    /// Requests an item and waits for the result. `None`: the server knew the file already, or has
    /// created it without these contents.
    async fn want(
        &self,
        vnode: &Arc<Vnode>,
        contents: Option<(Bytes, AfsStoreStatus)>,
        wanted: Urgency,
    ) -> Option<Outcome> {
        let (queue, number) = {
            let state = vnode.state.lock();
            let pending = state.life.pending()?;
            (pending.queue.clone(), pending.number)
        };
        let (receiver, too_late) = {
            let (sender, receiver) = oneshot::channel();
            let mut state = queue.state.lock();
            let too_late = state.change(number, |item| {
                item.waiting.push(sender);
                item.wanted = item.wanted.max(wanted);
                item.failed = None;
                let too_late = item.sent || item.doubtful;
                if let Some((bytes, set)) = contents.filter(|_| !too_late) {
                    item.bring(bytes, &set);
                }
                too_late
            });
            (receiver, too_late?)
        };
        self.start_sending(&queue);
        let outcome = receiver.await.unwrap_or(Err(CallError::Closed));
        match outcome {
            Ok((_, whole)) if too_late || !whole => None,
            outcome => Some(outcome),
        }
    }

    /// Starts a task that sends the requested items of a queue, unless one is running.
    fn start_sending(&self, queue: &Arc<Queue>) {
        let begins = {
            let mut state = queue.state.lock();
            if state.asked.is_urgent() {
                queue.due.notify_one();
            }
            state.asked.all > 0 && !std::mem::replace(&mut state.sending, true)
        };
        if begins && let Some(this) = self.me() {
            let queue = queue.clone();
            tokio::spawn(async move { this.send_all(&queue).await });
        }
    }

    /// Rule 1: sends calls, one after the other, until no item is requested.
    async fn send_all(&self, queue: &Arc<Queue>) {
        loop {
            let asked = queue.state.lock().asked;
            if asked.all > 0 && !asked.is_urgent() {
                let due = queue.due.notified();
                let _either = tokio::time::timeout(LINGER, due).await;
            }
            let chosen = {
                let mut state = queue.state.lock();
                let chosen = state.choose(Instant::now());
                state.sending = !chosen.is_empty();
                chosen
            };
            if chosen.is_empty() {
                return;
            }
            let mut under_way = UnderWay {
                creates: self,
                queue,
                sent: chosen,
            };
            let asked = Instant::now();
            let answer = self.make_many(queue, &under_way.sent).await;
            let sent = std::mem::take(&mut under_way.sent);
            match answer {
                Ok((reply, by)) => self.apply_created(queue, sent, &reply, (asked, by)).await,
                Err(error) => {
                    tracing::info!(count = sent.len(), %error, "not created yet");
                    let cause = cause_of(&error);
                    for one in sent {
                        self.failed(queue, &one, (&error, &cause));
                    }
                }
            }
        }
    }

    async fn make_many(&self, queue: &Queue, sent: &[Sent]) -> Result<(MakeManyReply, SocketAddr)> {
        let volume = &queue.volume;
        let what = format!("creating {} files in {}", sent.len(), volume.full_name());
        let arguments = MakeMany {
            volume: volume.id,
            creates: CreateRequests::from_iter_cut(
                sent.iter().map(|one| one.create_arguments.clone()),
            ),
        };
        let contents = sent.iter().map(|one| &one.contents);
        let chunks: Vec<&Bytes> = contents.filter(|bytes| !bytes.is_empty()).collect();
        let mut operation = VolumeOperation::start(queue.user.client(), volume).await?;
        loop {
            let answer = async {
                let mut call = operation.connection().open(&arguments).await?;
                for chunk in &chunks {
                    match call.write(Bytes::clone(chunk)).await {
                        Ok(()) => {}
                        // The answer has the reason.
                        Err(CallError::AnsweredEarly) => break,
                        Err(error) => return Err(error),
                    }
                }
                call.finish();
                call.read::<MakeManyReply>().await
            };
            match answer.await {
                Ok(reply) => {
                    operation.succeeded();
                    if reply.results.len() != sent.len() {
                        return Err(Error::BadAnswer {
                            what,
                            detail: format!("{} were created", reply.results.len()),
                        });
                    }
                    return Ok((reply, operation.address()));
                }
                Err(error) => operation.failed(error, &what).await?,
            }
        }
    }

    /// Applies the answer of a call.
    async fn apply_created(
        &self,
        queue: &Arc<Queue>,
        sent: Vec<Sent>,
        reply: &MakeManyReply,
        (asked, by): (Instant, SocketAddr),
    ) {
        let volume = queue.volume.id;
        let fid_of = |changed: &ChangedDirectory| Fid {
            volume,
            vnode: changed.vnode,
            uniquifier: changed.uniquifier,
        };
        // For each directory: how many files were created in it, and its status after that.
        let mut directories: HashMap<Fid, (u64, ChangedDirectory)> = HashMap::new();
        let known = reply.directories.iter();
        for changed in known.filter(|changed| changed.status.error_code == AbortCode(0)) {
            directories.insert(fid_of(changed), (0, *changed));
        }
        for (one, result) in sent.iter().zip(&reply.results) {
            let of = directories.get_mut(&one.directory.fid());
            if let Some((count, _)) = of.filter(|_| result.code == AbortCode(0)) {
                *count += 1;
            }
        }
        let mut outcomes: Vec<(u64, Outcome)> = Vec::new();
        let mut parents: Vec<Arc<Vnode>> = Vec::new();
        let mut again: Vec<u64> = Vec::new();
        for (one, result) in sent.iter().zip(&reply.results) {
            if !parents
                .iter()
                .any(|known| Arc::ptr_eq(known, &one.directory))
            {
                parents.push(one.directory.clone());
            }
            if result.code == AbortCode::VNOVNODE {
                self.forget_numbers(&one.directory);
            }
            if result.code != AbortCode(0) && !is_final(result.code) {
                again.push(one.number);
                continue;
            }
            if result.code != AbortCode(0) {
                self.refused(queue, one, (&CallError::Aborted(result.code), true));
                continue;
            }
            self.note_created(queue, one, result, by);
            outcomes.push((one.number, Ok((result.status, true))));
        }
        for directory in parents {
            let Some((count, changed)) = directories.get(&directory.fid()) else {
                continue;
            };
            self.apply_directory(&queue.user, &directory, (*count, changed), asked);
        }
        let waiting: Vec<_> = {
            let mut state = queue.state.lock();
            let items = outcomes.into_iter().map(|(number, outcome)| {
                let item = state.items.remove(&number);
                (item.map(|item| item.waiting).unwrap_or_default(), outcome)
            });
            items.collect()
        };
        for one in sent.iter().filter(|one| again.contains(&one.number)) {
            self.make_again(queue, one).await;
        }
        for (senders, outcome) in waiting {
            for sender in senders {
                let _gone = sender.send(outcome.clone());
            }
        }
    }

    /// Notes that the server has created a file.
    fn note_created(&self, queue: &Queue, one: &Sent, result: &CreateResult, by: SocketAddr) {
        let Sent { vnode, asked, .. } = one;
        let asked = asked.answered_by(by);
        let user = &queue.user;
        let shown = vnode.shown_status();
        {
            let mut state = vnode.state.lock();
            state.life.created();
            state.stores.set_failed(None);
            vnode.body.lock().create_done();
        }
        self.pending_creates.fetch_sub(1, Ordering::AcqRel);
        let promise = Some((result.callback, asked));
        self.promises
            .apply_status(user, vnode, &result.status, promise);
        uncount_pending(&one.directory);
        let now = vnode.shown_status();
        let differ = |a: &AfsFetchStatus, b: &AfsFetchStatus| {
            (a.owner, a.group, a.unix_mode, a.caller_access)
                != (b.owner, b.group, b.unix_mode, b.caller_access)
        };
        if let (Some(shown), Some(now)) = (shown, now)
            && differ(&shown, &now)
        {
            self.promises.invalidate_attributes(vnode);
        }
    }

    /// Applies the server's answer about a directory in which `count` more files were created.
    fn apply_directory(
        &self,
        user: &Arc<User>,
        directory: &Arc<Vnode>,
        (count, changed): (u64, &ChangedDirectory),
        asked: Instant,
    ) {
        let grown = (count, &changed.status);
        self.promises.apply_growth(user, directory, grown, None);
        let lost = directory
            .state
            .lock()
            .lease
            .extend(asked, changed.lease_secs);
        if lost {
            self.lease_ends(directory);
        }
    }

    /// Notes that a call failed. It is unknown whether the server has created the file.
    fn failed(&self, queue: &Queue, one: &Sent, (error, cause): (&Error, &CallError)) {
        match Gone::of(error) {
            Some(gone) => {
                let of = (&one.vnode, &one.directory);
                self.abandon_create(queue, one.number, of, (gone, cause));
            }
            None => self.refused(queue, one, (cause, false)),
        }
    }

    /// Rule 5. `known`: the server has certainly not created it.
    fn refused(&self, queue: &Queue, one: &Sent, (cause, known): (&CallError, bool)) {
        let (name, fid) = {
            let state = one.vnode.state.lock();
            let name = state.life.pending().map(|pending| pending.name.clone());
            (name, one.vnode.fid())
        };
        tracing::info!(%fid, %cause, "not created yet; the create is retried");
        let errno = Some(of_call(cause));
        one.vnode.state.lock().stores.set_failed(errno);
        if let Some(name) = name.filter(|_| known) {
            let mut state = one.directory.state.lock();
            state.contents.remove_refused(&name, fid);
            drop(state);
            self.promises.invalidate(&one.directory);
        }
        let waiting = {
            let mut state = queue.state.lock();
            state.change(one.number, |item| {
                item.wanted = Urgency::No;
                item.sent = false;
                item.failed = Some(Instant::now());
                item.doubtful |= !known;
                item.contents = Bytes::new();
                item.create_arguments.length = 0;
                std::mem::take(&mut item.waiting)
            })
        };
        for sender in waiting.unwrap_or_default() {
            let _gone = sender.send(Err(cause.clone()));
        }
    }

    /// Returns the refused creates without bytes to be stored, each with the id of its user.
    pub(crate) fn refused_creates(&self) -> Vec<(Arc<Vnode>, u32)> {
        let queues: Vec<_> = self.queues.lock().values().cloned().collect();
        let refused = queues.iter().flat_map(|queue| {
            let state = queue.state.lock();
            let refused = state.items.values().filter(|item| item.failed.is_some());
            let vnodes: Vec<_> = refused.map(|item| item.vnode.clone()).collect();
            vnodes.into_iter().map(|vnode| (vnode, queue.user.uid()))
        });
        let mut all: Vec<_> = refused.collect();
        all.retain(|(vnode, _)| !vnode.body.lock().is_changed());
        all
    }

    /// Drops a pending create that can never be made. Returns whether it was in a queue.
    pub(crate) fn cancel_create(&self, vnode: &Arc<Vnode>) -> bool {
        let pending = vnode.state.lock().life.create_failed();
        let Some(pending) = pending else {
            return false;
        };
        let item = pending.queue.state.lock().take_out(pending.number);
        if let Some(item) = item {
            self.pending_creates.fetch_sub(1, Ordering::AcqRel);
            uncount_pending(&item.directory);
        }
        self.vnodes.forget_unstored(vnode);
        let owed = vnode.vanished();
        self.promises.send_notices(vnode, owed);
        true
    }

    /// Rule 2: sends old pending creates, for the life of the cache.
    pub(crate) async fn keep_creating(this: Weak<Self>) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let Some(this) = this.upgrade() else {
                return;
            };
            let queues: Vec<_> = {
                let mut queues = this.queues.lock();
                if queues.len() > QUEUES_MAX {
                    queues.retain(|_, queue| {
                        Arc::strong_count(queue) > 1 || !queue.state.lock().items.is_empty()
                    });
                }
                queues.values().cloned().collect()
            };
            for queue in queues {
                queue.want_old(Instant::now());
                this.start_sending(&queue);
            }
        }
    }

    /// Sends all queues. Returns the files that could not be created.
    pub(crate) async fn flush_creates(&self) -> Vec<(Arc<Vnode>, Error)> {
        let queues: Vec<_> = self.queues.lock().values().cloned().collect();
        let mut failed = Vec::new();
        for queue in queues {
            self.send_queue(&queue, None).await;
            let state = queue.state.lock();
            failed.extend(state.items.values().map(|item| item.vnode.clone()));
        }
        let why = |vnode: Arc<Vnode>| {
            let error = create_error(&vnode, CallError::Aborted(AbortCode::from_errno(5)));
            (vnode, error)
        };
        failed.into_iter().map(why).collect()
    }
}

/// A call that is under way. Its task may be stopped together with the runtime.
struct UnderWay<'a> {
    creates: &'a Creates,
    queue: &'a Arc<Queue>,
    sent: Vec<Sent>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        for one in std::mem::take(&mut self.sent) {
            let why = (&CallError::Closed, false);
            self.creates.refused(self.queue, &one, why);
        }
    }
}

/// Counts one pending create less in a directory.
fn uncount_pending(directory: &Vnode) {
    directory.state.lock().lease.remove_pending();
}

/// Whether a code means that the file cannot be created. Other codes mean that its number is
/// unknown, or that its volume is being moved.
fn is_final(code: AbortCode) -> bool {
    let errors = [
        AbortCode::EEXIST,
        AbortCode::EACCES,
        AbortCode::EPERM,
        AbortCode::EINVAL,
    ];
    // ENOTDIR, EFBIG, ENOSPC, EMLINK, ENAMETOOLONG, EDQUOT; VOVERQUOTA and VDISKFULL.
    let others = [20, 27, 28, 31, 36, 122, 109, 110];
    errors.contains(&code) || others.contains(&code.0)
}

fn create_error(vnode: &Vnode, cause: CallError) -> Error {
    Error::Fileserver {
        what: format!("creating {}", vnode.fid()),
        cause,
    }
}

/// The error of the server's answer, or of the missing answer.
fn cause_of(error: &Error) -> CallError {
    match error {
        Error::Fileserver { cause, .. }
        | Error::Database { cause, .. }
        | Error::DatabaseUnreachable { cause, .. } => cause.clone(),
        // ENODEV.
        Error::NoSuchVolume { .. } | Error::NoSuchSite { .. } => {
            CallError::Aborted(AbortCode::from_errno(19))
        }
        _ => CallError::Aborted(AbortCode::from_errno(5)),
    }
}
