//! Telling servers of the files that were made here without asking ([`super::early`]): many with
//! one call, MakeMany.
//!
//! 1. What was made stands in a line, one for each volume and user. One call of a line is under way
//!    at a time.
//! 2. A program may wait for a file: one that closes a small file brings its contents, which go
//!    with the same call; one that
//!    asks a server about something that it may not know waits first ([`Cache::told`]). Where no
//!    program waits, because
//!    `close` need not ([`super::behind`]), the call waits for others, [`LINGER`] at most. The rest
//!    is told after [`AGE`].
//! 3. A file that is still written is told of without contents, when it must be, and stored as every other. So is a large one.
//! 4. Numbers make a call that is sent again, as its answer was lost, do nothing the second time. So what a call brought that was
//!    never answered is not brought again by another: the file is made, if it was not, and then stored as every other.
//! 5. What the server refuses stays in the line. Whoever waits hears why, its name is taken out of the directory, and it is tried
//!    again as a store is that fails, every [`RETRY`].
//! 6. A volume that was moved or restored knows no numbers that were reserved before. What was to be made under one is made by asking,
//!    and has another from then on ([`Vnode::fid`]); programs that have it open notice nothing. It
//!    is then stored as every other.

mod again;

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cellar_rpc::CallError;
use cellar_wire::abort::AbortCode;
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::{
    AfsFetchStatus, AfsStoreStatus, MAKE_BYTES_MAX, MAKE_MAX, Made, MadeIn, MakeMany,
    MakeManyReply, Making, Makings,
};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::Cache;
use super::behind::RETRY;
use super::gone::Gone;
use super::lock_order::{LEAF, Ordered};
use super::status::Asked;
use super::user::User;
use super::vnode::Vnode;
use crate::course::Course;
use crate::errno::of_call;
use crate::error::{Error, Result};
use crate::volume::Volume;

/// Contents that go with the call that makes the file.
pub(crate) const SMALL: u64 = 64 << 10;
/// How long a call waits for others where nobody waits for it.
const LINGER: Duration = Duration::from_millis(20);
/// How long something is not told that nobody asks for.
pub(super) const AGE: Duration = Duration::from_secs(1);
/// How often it is looked for such things.
const LOOK: Duration = Duration::from_millis(500);
/// Things in a line from which on whoever makes another waits.
const LINE_MAX: usize = 4_096;
/// Lines that are kept though nothing is in them.
const LINES_MAX: usize = 256;

/// What became of something: its status, and whether it has what it was to be made with; or why it was not made.
pub(super) type Outcome = std::result::Result<(AfsFetchStatus, bool), CallError>;

/// What a vnode knows of itself as long as no server knows it.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) queue: Arc<Queue>,
    pub(crate) number: u64,
    pub(crate) name: Bytes,
}

/// The line of one volume and user.
#[derive(Debug)]
pub(crate) struct Queue {
    volume: Arc<Volume>,
    user: Arc<User>,
    next: AtomicU64,
    line: Ordered<LEAF, Line>,
    /// Somebody waits, or there is enough for a call.
    due: Notify,
}

#[derive(Debug, Default)]
struct Line {
    items: BTreeMap<u64, Item>,
    /// Somebody sends what there is.
    sending: bool,
    asked: Demand,
}

/// What is asked for and not sent.
#[derive(Clone, Copy, Debug, Default)]
struct Demand {
    /// Things that programs wait for.
    now: usize,
    /// Things that are asked for.
    all: usize,
    /// Bytes of contents.
    bytes: u64,
}

impl Demand {
    /// Whether a call does not wait for more.
    fn is_urgent(&self) -> bool {
        self.now > 0 || self.all >= MAKE_MAX || self.bytes >= MAKE_BYTES_MAX / 2
    }
}

#[derive(Debug)]
struct Item {
    vnode: Arc<Vnode>,
    directory: Arc<Vnode>,
    making: Making,
    contents: Bytes,
    wanted: Wanted,
    since: Instant,
    /// When it was last refused.
    failed: Option<Instant>,
    /// A call with it is under way.
    sent: bool,
    /// A call with it was not answered: it may have been made, and what contents it has then nobody knows.
    doubtful: bool,
    waiting: Vec<oneshot::Sender<Outcome>>,
}

/// Who asks for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wanted {
    /// Nobody.
    No,
    /// Somebody whom no program waits for.
    Soon,
    /// A program.
    Now,
}

/// One thing of a call.
struct Sent {
    number: u64,
    vnode: Arc<Vnode>,
    directory: Arc<Vnode>,
    making: Making,
    contents: Bytes,
    asked: Asked,
}

impl Queue {
    pub(crate) fn new(volume: &Arc<Volume>, user: &Arc<User>) -> Self {
        Self {
            volume: volume.clone(),
            user: user.clone(),
            next: AtomicU64::new(0),
            line: Ordered::default(),
            due: Notify::new(),
        }
    }

    pub(crate) fn user(&self) -> &Arc<User> {
        &self.user
    }

    pub(crate) fn is_full(&self) -> bool {
        self.line.lock().items.len() >= LINE_MAX
    }

    /// The place of the next one.
    pub(crate) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn enter(
        &self,
        number: u64,
        vnode: &Arc<Vnode>,
        directory: &Arc<Vnode>,
        (making, doubtful): (Making, bool),
    ) {
        let item = Item {
            vnode: vnode.clone(),
            directory: directory.clone(),
            making,
            contents: Bytes::new(),
            wanted: Wanted::No,
            since: Instant::now(),
            failed: None,
            sent: false,
            doubtful,
            waiting: Vec::new(),
        };
        self.line.lock().items.insert(number, item);
    }

    /// Asks for all, or for all in a directory, that was not refused lately. What a call brought
    /// that was not answered is asked for: it may be there, or come, whatever the server says of
    /// the directory before.
    fn want_all(&self, directory: Option<&Vnode>) -> Vec<oneshot::Receiver<Outcome>> {
        let mut line = self.line.lock();
        let items = line.items.iter().filter(|(_, item)| {
            let is_in = directory.is_none_or(|directory| item.directory.key == directory.key);
            let rests = item.failed.is_some_and(|at| at.elapsed() < RETRY);
            is_in && (item.doubtful || !rests)
        });
        let numbers: Vec<u64> = items.map(|(number, _)| *number).collect();
        let wanted = numbers.into_iter().map(|number| {
            let (sender, receiver) = oneshot::channel();
            line.change(number, |item| {
                item.failed = None;
                item.wanted = Wanted::Now;
                item.waiting.push(sender);
            });
            receiver
        });
        wanted.collect()
    }

    /// Takes those who wait for one.
    pub(super) fn take_waiting(&self, number: u64) -> Vec<oneshot::Sender<Outcome>> {
        let mut line = self.line.lock();
        let taken = line.change(number, |item| std::mem::take(&mut item.waiting));
        taken.unwrap_or_default()
    }

    /// What is to be made in a directory, but for what a call under way tells.
    pub(super) fn resting_in(&self, directory: &Arc<Vnode>) -> Vec<(u64, Arc<Vnode>)> {
        let line = self.line.lock();
        let resting = line.items.iter();
        let resting =
            resting.filter(|(_, item)| !item.sent && Arc::ptr_eq(&item.directory, directory));
        resting
            .map(|(number, item)| (*number, item.vnode.clone()))
            .collect()
    }

    /// Asks for what nobody has asked for in a while.
    fn want_old(&self, now: Instant) {
        let mut line = self.line.lock();
        let old = line.items.iter().filter(|(_, item)| {
            let rests = item.failed.is_some_and(|at| now - at < RETRY);
            item.wanted == Wanted::No && !item.sent && !rests && now - item.since >= AGE
        });
        let numbers: Vec<u64> = old.map(|(number, _)| *number).collect();
        for number in numbers {
            line.change(number, |item| item.wanted = Wanted::Soon);
        }
    }
}

impl Item {
    /// Whether a call that is made now has it.
    fn is_due(&self, now: Instant) -> bool {
        let rests = self.failed.is_some_and(|at| now - at < RETRY);
        !self.sent && !rests && self.wanted != Wanted::No
    }

    /// These are its contents, and what it has besides after all.
    fn bring(&mut self, contents: Bytes, set: &AfsStoreStatus) {
        self.making.length = contents.len() as u32;
        self.contents = contents;
        let status = &mut self.making.in_status;
        status.client_mod_time = set.client_mod_time.or(status.client_mod_time);
        status.unix_mode = set.unix_mode.or(status.unix_mode);
        status.owner = set.owner.or(status.owner);
        status.group = set.group.or(status.group);
    }

    fn demand(&self) -> Demand {
        match self.wanted {
            Wanted::No => Demand::default(),
            _ if self.sent => Demand::default(),
            wanted => Demand {
                now: usize::from(wanted == Wanted::Now),
                all: 1,
                bytes: self.contents.len() as u64,
            },
        }
    }
}

impl Line {
    /// Changes one, keeping the sums.
    fn change<T>(&mut self, number: u64, change: impl FnOnce(&mut Item) -> T) -> Option<T> {
        let item = self.items.get_mut(&number)?;
        let before = item.demand();
        let result = change(item);
        let after = item.demand();
        let asked = &mut self.asked;
        asked.now = asked.now + after.now - before.now;
        asked.all = asked.all + after.all - before.all;
        asked.bytes = asked.bytes + after.bytes - before.bytes;
        Some(result)
    }

    /// Takes one out.
    fn take_out(&mut self, number: u64) -> Option<Item> {
        self.change(number, |item| item.wanted = Wanted::No)?;
        self.items.remove(&number)
    }

    /// What the next call tells, if anything of it is asked for.
    fn choose(&mut self, now: Instant) -> Vec<Sent> {
        if self.asked.all == 0 {
            return Vec::new();
        }
        let mut bytes = 0;
        let due = self.items.iter().filter(|(_, item)| item.is_due(now));
        let fit = due.take(MAKE_MAX).take_while(|(_, item)| {
            bytes += item.contents.len() as u64;
            bytes <= MAKE_BYTES_MAX
        });
        let numbers: Vec<u64> = fit.map(|(number, _)| *number).collect();
        let chosen = numbers.into_iter().filter_map(|number| {
            self.change(number, |item| {
                item.sent = true;
                Sent {
                    number,
                    vnode: item.vnode.clone(),
                    directory: item.directory.clone(),
                    making: item.making.clone(),
                    contents: item.contents.clone(),
                    asked: Asked::about(&item.vnode),
                }
            })
        });
        chosen.collect()
    }
}

impl Cache {
    /// Whether no server knows this vnode yet.
    pub(crate) fn is_pending(&self, vnode: &Vnode) -> bool {
        self.early.untold.load(Ordering::Acquire) > 0 && vnode.state.lock().life.pending().is_some()
    }

    /// Waits until the server knows a file or, of a directory, what was made in it: before it is
    /// asked about that, or told to
    /// change it.
    ///
    /// # Errors
    /// The server does not take the file.
    pub async fn told(&self, vnode: &Arc<Vnode>) -> Result<()> {
        if self.early.untold.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        if !vnode.is_directory() {
            return self.born(vnode).await;
        }
        if vnode.state.lock().untold == 0 {
            return Ok(());
        }
        let of_volume = (vnode.key.0, vnode.key.1.volume);
        let queues: Vec<Arc<Queue>> = {
            let all = self.early.queues.lock();
            let its = all.iter().filter(|(key, _)| (key.0, key.1) == of_volume);
            its.map(|(_, queue)| queue.clone()).collect()
        };
        for queue in queues {
            self.tell_line(&queue, Some(vnode)).await;
        }
        Ok(())
    }

    /// Tells of a line, or of what it has in a directory, and waits. Of a refusal the file's own
    /// maker hears.
    pub(super) async fn tell_line(&self, queue: &Arc<Queue>, directory: Option<&Vnode>) {
        let receivers = queue.want_all(directory);
        self.tell_of(queue);
        for receiver in receivers {
            let _heard = receiver.await;
        }
    }

    /// Waits until the server knows a file.
    ///
    /// # Errors
    /// The server does not take it.
    pub(crate) async fn born(&self, vnode: &Arc<Vnode>) -> Result<()> {
        match self.want(vnode, None, Wanted::Now).await {
            Some(Err(cause)) => Err(not_made(vnode, cause)),
            Some(Ok(_)) | None => Ok(()),
        }
    }

    /// Makes a small file with all of its contents, `hurry`: while a program waits for it. `None`: the server knows the file, perhaps
    /// since now, and has none of them.
    ///
    /// # Errors
    /// The server does not take it.
    pub(crate) async fn born_with(
        &self,
        vnode: &Arc<Vnode>,
        contents: &[u8],
        set: &AfsStoreStatus,
        hurry: bool,
    ) -> Result<Option<AfsFetchStatus>> {
        let wanted = if hurry { Wanted::Now } else { Wanted::Soon };
        let with = Some((Bytes::copy_from_slice(contents), *set));
        match self.want(vnode, with, wanted).await {
            Some(Ok((status, _))) => {
                let stored = &self.counts.stored;
                stored.fetch_add(contents.len() as u64, Ordering::Relaxed);
                Ok(Some(status))
            }
            Some(Err(cause)) => Err(not_made(vnode, cause)),
            None => Ok(None),
        }
    }

    /// Asks for something, and waits. `None`: the server knew it already, or was told of it without these contents.
    async fn want(
        &self,
        vnode: &Arc<Vnode>,
        contents: Option<(Bytes, AfsStoreStatus)>,
        wanted: Wanted,
    ) -> Option<Outcome> {
        let (queue, number) = {
            let state = vnode.state.lock();
            let pending = state.life.pending()?;
            (pending.queue.clone(), pending.number)
        };
        let (receiver, too_late) = {
            let (sender, receiver) = oneshot::channel();
            let mut line = queue.line.lock();
            let too_late = line.change(number, |item| {
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
        self.tell_of(&queue);
        let outcome = receiver.await.unwrap_or(Err(CallError::Closed));
        match outcome {
            Ok((_, whole)) if too_late || !whole => None,
            outcome => Some(outcome),
        }
    }

    /// Sees to it that what is asked for in a line is told.
    fn tell_of(&self, queue: &Arc<Queue>) {
        let begins = {
            let mut line = queue.line.lock();
            if line.asked.is_urgent() {
                queue.due.notify_one();
            }
            line.asked.all > 0 && !std::mem::replace(&mut line.sending, true)
        };
        if begins && let Some(cache) = self.me() {
            let queue = queue.clone();
            tokio::spawn(async move { cache.send_all(&queue).await });
        }
    }

    /// Rule 1: tells what there is, until nothing is asked for.
    async fn send_all(&self, queue: &Arc<Queue>) {
        loop {
            let asked = queue.line.lock().asked;
            if asked.all > 0 && !asked.is_urgent() {
                let due = queue.due.notified();
                let _either = tokio::time::timeout(LINGER, due).await;
            }
            let chosen = {
                let mut line = queue.line.lock();
                let chosen = line.choose(Instant::now());
                line.sending = !chosen.is_empty();
                chosen
            };
            if chosen.is_empty() {
                return;
            }
            let mut under_way = UnderWay {
                cache: self,
                queue,
                sent: chosen,
            };
            let asked = Instant::now();
            let answer = self.make_many(queue, &under_way.sent).await;
            let sent = std::mem::take(&mut under_way.sent);
            match answer {
                Ok((reply, by)) => self.are_born(queue, sent, &reply, (asked, by)).await,
                Err(error) => {
                    tracing::info!(count = sent.len(), %error, "not made yet");
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
        let what = format!("making {} things in {}", sent.len(), volume.full_name());
        let arguments = MakeMany {
            volume: volume.id,
            makings: Makings::from_iter_cut(sent.iter().map(|one| one.making.clone())),
        };
        let contents = sent.iter().map(|one| &one.contents);
        let chunks: Vec<&Bytes> = contents.filter(|bytes| !bytes.is_empty()).collect();
        let mut course = Course::start(queue.user.client(), volume).await?;
        loop {
            let answer = async {
                let mut call = course.connection().open(&arguments).await?;
                for chunk in &chunks {
                    match call.write(Bytes::clone(chunk)).await {
                        Ok(()) => {}
                        // Its answer says why.
                        Err(CallError::AnsweredEarly) => break,
                        Err(error) => return Err(error),
                    }
                }
                call.finish();
                call.read::<MakeManyReply>().await
            };
            match answer.await {
                Ok(reply) => {
                    course.succeeded();
                    if reply.made.len() != sent.len() {
                        return Err(Error::BadAnswer {
                            what,
                            detail: format!("{} were made", reply.made.len()),
                        });
                    }
                    return Ok((reply, course.address()));
                }
                Err(error) => course.failed(error, &what).await?,
            }
        }
    }

    /// A call was answered.
    async fn are_born(
        &self,
        queue: &Arc<Queue>,
        sent: Vec<Sent>,
        reply: &MakeManyReply,
        (asked, by): (Instant, SocketAddr),
    ) {
        let volume = queue.volume.id;
        let fid_of = |made_in: &MadeIn| Fid {
            volume,
            vnode: made_in.vnode,
            uniquifier: made_in.uniquifier,
        };
        // How many were made in each directory, and what it is after that.
        let mut directories: HashMap<Fid, (u64, MadeIn)> = HashMap::new();
        let known = reply.directories.iter();
        for made_in in known.filter(|made_in| made_in.status.error_code == AbortCode(0)) {
            directories.insert(fid_of(made_in), (0, *made_in));
        }
        for (one, made) in sent.iter().zip(&reply.made) {
            let of = directories.get_mut(&one.directory.fid());
            if let Some((count, _)) = of.filter(|_| made.code == AbortCode(0)) {
                *count += 1;
            }
        }
        let mut told: Vec<(u64, Outcome)> = Vec::new();
        let mut parents: Vec<Arc<Vnode>> = Vec::new();
        let mut again: Vec<u64> = Vec::new();
        for (one, made) in sent.iter().zip(&reply.made) {
            if !parents
                .iter()
                .any(|known| Arc::ptr_eq(known, &one.directory))
            {
                parents.push(one.directory.clone());
            }
            if made.code == AbortCode::VNOVNODE {
                self.forget_numbers(&one.directory);
            }
            if made.code != AbortCode(0) && !is_final(made.code) {
                again.push(one.number);
                continue;
            }
            if made.code != AbortCode(0) {
                self.refused(queue, one, (&CallError::Aborted(made.code), true));
                continue;
            }
            self.is_born(queue, one, made, by);
            told.push((one.number, Ok((made.status, true))));
        }
        for directory in parents {
            let Some((count, made_in)) = directories.get(&directory.fid()) else {
                continue;
            };
            self.grew(&queue.user, &directory, (*count, made_in), asked);
        }
        let waiting: Vec<_> = {
            let mut line = queue.line.lock();
            let items = told.into_iter().map(|(number, outcome)| {
                let item = line.items.remove(&number);
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

    /// The server has made a file.
    fn is_born(&self, queue: &Queue, one: &Sent, made: &Made, by: SocketAddr) {
        let Sent { vnode, asked, .. } = one;
        let asked = asked.answered_by(by);
        let user = &queue.user;
        let shown = vnode.shown_status();
        {
            let mut state = vnode.state.lock();
            state.life.created();
            state.failed = None;
            vnode.body.lock().is_born();
        }
        self.early.untold.fetch_sub(1, Ordering::AcqRel);
        let promise = Some((made.callback, asked));
        self.heard(user, vnode, &made.status, promise);
        shrank(&one.directory);
        let now = vnode.shown_status();
        let differ = |a: &AfsFetchStatus, b: &AfsFetchStatus| {
            (a.owner, a.group, a.unix_mode, a.caller_access)
                != (b.owner, b.group, b.unix_mode, b.caller_access)
        };
        if let (Some(shown), Some(now)) = (shown, now)
            && differ(&shown, &now)
        {
            self.take_back_attributes(vnode);
        }
    }

    /// Something more was made in a directory, which is `made_in` now.
    fn grew(
        &self,
        user: &Arc<User>,
        directory: &Arc<Vnode>,
        (count, made_in): (u64, &MadeIn),
        asked: Instant,
    ) {
        let grown = (count, &made_in.status);
        self.heard_grown(user, directory, grown, None);
        let lost = directory
            .state
            .lock()
            .lease_lasts(asked, made_in.lease_secs);
        if lost {
            self.lease_ends(directory);
        }
    }

    /// No call that is to make it succeeded; whether it was made is not known.
    fn failed(&self, queue: &Queue, one: &Sent, (error, cause): (&Error, &CallError)) {
        match Gone::of(error) {
            Some(gone) => {
                let of = (&one.vnode, &one.directory);
                self.creation_gone(queue, one.number, of, (gone, cause));
            }
            None => self.refused(queue, one, (cause, false)),
        }
    }

    /// Rule 5. `known`: that it was not made.
    fn refused(&self, queue: &Queue, one: &Sent, (cause, known): (&CallError, bool)) {
        let (name, fid) = {
            let state = one.vnode.state.lock();
            let name = state.life.pending().map(|pending| pending.name.clone());
            (name, one.vnode.fid())
        };
        tracing::info!(%fid, %cause, "not made yet; it is tried again");
        one.vnode.state.lock().failed = Some(of_call(cause));
        if let Some(name) = name.filter(|_| known) {
            let mut state = one.directory.state.lock();
            if let Some((_, listing)) = &mut state.listing
                && listing.get(&name) == Some(&fid)
            {
                Arc::make_mut(listing).remove(&name);
            }
            drop(state);
            self.take_back(&one.directory);
        }
        let waiting = {
            let mut line = queue.line.lock();
            line.change(one.number, |item| {
                item.wanted = Wanted::No;
                item.sent = false;
                item.failed = Some(Instant::now());
                item.doubtful |= !known;
                item.contents = Bytes::new();
                item.making.length = 0;
                std::mem::take(&mut item.waiting)
            })
        };
        for sender in waiting.unwrap_or_default() {
            let _gone = sender.send(Err(cause.clone()));
        }
    }

    /// What a server refused to make, beside files with bytes to be stored, and whose it is.
    pub(crate) fn unmade(&self) -> Vec<(Arc<Vnode>, u32)> {
        let queues: Vec<_> = self.early.queues.lock().values().cloned().collect();
        let refused = queues.iter().flat_map(|queue| {
            let line = queue.line.lock();
            let refused = line.items.values().filter(|item| item.failed.is_some());
            let vnodes: Vec<_> = refused.map(|item| item.vnode.clone()).collect();
            vnodes.into_iter().map(|vnode| (vnode, queue.user.uid()))
        });
        let mut all: Vec<_> = refused.collect();
        all.retain(|(vnode, _)| !vnode.body.lock().is_changed());
        all
    }

    /// It cannot be made: nobody is told of it any more. Answers whether it stood in a line.
    pub(crate) fn never_born(&self, vnode: &Arc<Vnode>) -> bool {
        let pending = vnode.state.lock().life.create_failed();
        let Some(pending) = pending else {
            return false;
        };
        let item = pending.queue.line.lock().take_out(pending.number);
        if let Some(item) = item {
            self.early.untold.fetch_sub(1, Ordering::AcqRel);
            shrank(&item.directory);
        }
        self.unstored.lock().remove(&vnode.key);
        let owed = vnode.vanished();
        self.pay(vnode, owed);
        true
    }

    /// Rule 2: tells of what is old, for as long as the cache lives.
    pub(crate) async fn keep_telling(cache: std::sync::Weak<Self>) {
        loop {
            tokio::time::sleep(LOOK).await;
            let Some(cache) = cache.upgrade() else {
                return;
            };
            let queues: Vec<_> = {
                let mut queues = cache.early.queues.lock();
                if queues.len() > LINES_MAX {
                    queues.retain(|_, queue| {
                        Arc::strong_count(queue) > 1 || !queue.line.lock().items.is_empty()
                    });
                }
                queues.values().cloned().collect()
            };
            for queue in queues {
                queue.want_old(Instant::now());
                cache.tell_of(&queue);
            }
        }
    }

    /// Tells of everything. Answers what could not be told.
    pub(crate) async fn tell_all(&self) -> Vec<(Arc<Vnode>, Error)> {
        let queues: Vec<_> = self.early.queues.lock().values().cloned().collect();
        let mut failed = Vec::new();
        for queue in queues {
            self.tell_line(&queue, None).await;
            let line = queue.line.lock();
            failed.extend(line.items.values().map(|item| item.vnode.clone()));
        }
        let why = |vnode: Arc<Vnode>| {
            let error = not_made(&vnode, CallError::Aborted(AbortCode::from_errno(5)));
            (vnode, error)
        };
        failed.into_iter().map(why).collect()
    }
}

/// A call that is under way; whoever made it may be stopped with the runtime.
struct UnderWay<'a> {
    cache: &'a Cache,
    queue: &'a Arc<Queue>,
    sent: Vec<Sent>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        for one in std::mem::take(&mut self.sent) {
            let why = (&CallError::Closed, false);
            self.cache.refused(self.queue, &one, why);
        }
    }
}

/// One file fewer in a directory has not been told.
fn shrank(directory: &Vnode) {
    let mut state = directory.state.lock();
    state.untold = state.untold.saturating_sub(1);
}

/// Whether a code says that something cannot be made, and not that its number is unknown or its volume is on its way elsewhere.
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

fn not_made(vnode: &Vnode, cause: CallError) -> Error {
    Error::Fileserver {
        what: format!("making {}", vnode.fid()),
        cause,
    }
}

/// What a server said, or what nobody said.
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
