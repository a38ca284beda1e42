//! The queue of pending creates of one volume and user. The rules are in
//! `creates/pending_create.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cellar_rpc::CallError;
use cellar_wire::rxafs::{
    AfsFetchStatus, AfsStoreStatus, CreateRequest, MAKE_MANY_BYTES_MAX, MAKE_MANY_MAX,
};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::lock_order::{LEAF, Ordered};
use crate::promises::status_request::StatusRequest;
use crate::request::RETRY;
use crate::user::User;
use crate::vnode::Vnode;
use cellar_client::volume::Volume;

/// The length of a queue from which on a further local create waits.
const QUEUE_MAX: usize = 4_096;
/// How long a pending create waits if nothing asks for it.
pub(super) const AGE: Duration = Duration::from_secs(1);

/// The result of a pending create: the status, and whether the file has the contents of the create.
/// An error is the reason why it was not created.
pub(super) type Outcome = std::result::Result<(AfsFetchStatus, bool), CallError>;

/// The link from a vnode to its pending create.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) queue: Arc<Queue>,
    pub(crate) number: u64,
    pub(crate) name: Bytes,
}

/// The queue of one volume and user.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(super) volume: Arc<Volume>,
    pub(super) user: Arc<User>,
    pub(super) next: AtomicU64,
    pub(super) state: Ordered<LEAF, QueueState>,
    /// Notified when a program waits, or when there is enough for a call.
    pub(super) due: Notify,
}

#[derive(Debug, Default)]
pub(super) struct QueueState {
    pub(super) items: BTreeMap<u64, Item>,
    /// A task is sending the queue.
    pub(super) sending: bool,
    pub(super) asked: Demand,
}

/// The items that are requested and not sent yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Demand {
    /// The number of items that programs wait for.
    pub(super) now: usize,
    /// The number of requested items.
    pub(super) all: usize,
    /// Bytes of contents.
    pub(super) bytes: u64,
}

impl Demand {
    /// Whether the next call starts at once.
    pub(super) fn is_urgent(&self) -> bool {
        self.now > 0 || self.all >= MAKE_MANY_MAX || self.bytes >= MAKE_MANY_BYTES_MAX / 2
    }
}

#[derive(Debug)]
pub(super) struct Item {
    pub(super) vnode: Arc<Vnode>,
    pub(super) directory: Arc<Vnode>,
    pub(super) create_arguments: CreateRequest,
    pub(super) contents: Bytes,
    pub(super) wanted: Urgency,
    pub(super) since: Instant,
    /// The time of the last refusal.
    pub(super) failed: Option<Instant>,
    /// A call with it is under way.
    pub(super) sent: bool,
    /// A call with it had no answer. The file may have been created, and its contents are unknown.
    pub(super) doubtful: bool,
    pub(super) waiting: Vec<oneshot::Sender<Outcome>>,
}

/// How urgently an item is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Urgency {
    /// Not requested.
    No,
    /// Requested, and no program waits.
    Soon,
    /// Requested, and a program waits.
    Now,
}

/// One item of a call.
pub(super) struct Sent {
    pub(super) number: u64,
    pub(super) vnode: Arc<Vnode>,
    pub(super) directory: Arc<Vnode>,
    pub(super) create_arguments: CreateRequest,
    pub(super) contents: Bytes,
    pub(super) asked: StatusRequest,
}

impl Queue {
    pub(crate) fn new(volume: &Arc<Volume>, user: &Arc<User>) -> Self {
        Self {
            volume: volume.clone(),
            user: user.clone(),
            next: AtomicU64::new(0),
            state: Ordered::default(),
            due: Notify::new(),
        }
    }

    pub(crate) fn user(&self) -> &Arc<User> {
        &self.user
    }

    pub(crate) fn is_full(&self) -> bool {
        self.state.lock().items.len() >= QUEUE_MAX
    }

    /// Returns the number of the next item.
    pub(crate) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn enter(
        &self,
        number: u64,
        vnode: &Arc<Vnode>,
        directory: &Arc<Vnode>,
        (create_arguments, doubtful): (CreateRequest, bool),
    ) {
        let item = Item {
            vnode: vnode.clone(),
            directory: directory.clone(),
            create_arguments,
            contents: Bytes::new(),
            wanted: Urgency::No,
            since: Instant::now(),
            failed: None,
            sent: false,
            doubtful,
            waiting: Vec::new(),
        };
        self.state.lock().items.insert(number, item);
    }

    /// Requests all items, or all in a directory, except those that were refused lately. Items of a
    /// call without an answer are always requested. Their files may exist already, or may still be
    /// created, whatever the server says about the directory before.
    pub(super) fn want_all(&self, directory: Option<&Vnode>) -> Vec<oneshot::Receiver<Outcome>> {
        let mut state = self.state.lock();
        let items = state.items.iter().filter(|(_, item)| {
            let is_in = directory.is_none_or(|directory| item.directory.key() == directory.key());
            let rests = item.failed.is_some_and(|at| at.elapsed() < RETRY);
            is_in && (item.doubtful || !rests)
        });
        let numbers: Vec<u64> = items.map(|(number, _)| *number).collect();
        let wanted = numbers.into_iter().map(|number| {
            let (sender, receiver) = oneshot::channel();
            state.change(number, |item| {
                item.failed = None;
                item.wanted = Urgency::Now;
                item.waiting.push(sender);
            });
            receiver
        });
        wanted.collect()
    }

    /// Takes the senders of all tasks that wait for an item.
    pub(super) fn take_waiting(&self, number: u64) -> Vec<oneshot::Sender<Outcome>> {
        let mut state = self.state.lock();
        let taken = state.change(number, |item| std::mem::take(&mut item.waiting));
        taken.unwrap_or_default()
    }

    /// The pending creates in a directory, except those of a call that is under way.
    pub(super) fn resting_in(&self, directory: &Arc<Vnode>) -> Vec<(u64, Arc<Vnode>)> {
        let state = self.state.lock();
        let resting = state.items.iter();
        let resting =
            resting.filter(|(_, item)| !item.sent && Arc::ptr_eq(&item.directory, directory));
        resting
            .map(|(number, item)| (*number, item.vnode.clone()))
            .collect()
    }

    /// Requests the items that have waited for [`AGE`] without a request.
    pub(super) fn want_old(&self, now: Instant) {
        let mut state = self.state.lock();
        let old = state.items.iter().filter(|(_, item)| {
            let rests = item.failed.is_some_and(|at| now - at < RETRY);
            item.wanted == Urgency::No && !item.sent && !rests && now - item.since >= AGE
        });
        let numbers: Vec<u64> = old.map(|(number, _)| *number).collect();
        for number in numbers {
            state.change(number, |item| item.wanted = Urgency::Soon);
        }
    }
}

impl Item {
    /// Whether a call that starts now includes it.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        let rests = self.failed.is_some_and(|at| now - at < RETRY);
        !self.sent && !rests && self.wanted != Urgency::No
    }

    /// Adds the contents, and the attributes that the file has now.
    pub(super) fn bring(&mut self, contents: Bytes, set: &AfsStoreStatus) {
        self.create_arguments.length = contents.len() as u32;
        self.contents = contents;
        let status = &mut self.create_arguments.in_status;
        status.client_mod_time = set.client_mod_time.or(status.client_mod_time);
        status.unix_mode = set.unix_mode.or(status.unix_mode);
        status.owner = set.owner.or(status.owner);
        status.group = set.group.or(status.group);
    }

    pub(super) fn demand(&self) -> Demand {
        match self.wanted {
            Urgency::No => Demand::default(),
            _ if self.sent => Demand::default(),
            wanted => Demand {
                now: usize::from(wanted == Urgency::Now),
                all: 1,
                bytes: self.contents.len() as u64,
            },
        }
    }
}

impl QueueState {
    /// Changes an item and updates the sums.
    pub(super) fn change<T>(
        &mut self,
        number: u64,
        change: impl FnOnce(&mut Item) -> T,
    ) -> Option<T> {
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

    /// Removes an item.
    pub(super) fn take_out(&mut self, number: u64) -> Option<Item> {
        self.change(number, |item| item.wanted = Urgency::No)?;
        self.items.remove(&number)
    }

    /// Chooses the items of the next call, if any item is requested.
    pub(super) fn choose(&mut self, now: Instant) -> Vec<Sent> {
        if self.asked.all == 0 {
            return Vec::new();
        }
        let mut bytes = 0;
        let due = self.items.iter().filter(|(_, item)| item.is_due(now));
        let fit = due.take(MAKE_MANY_MAX).take_while(|(_, item)| {
            bytes += item.contents.len() as u64;
            bytes <= MAKE_MANY_BYTES_MAX
        });
        let numbers: Vec<u64> = fit.map(|(number, _)| *number).collect();
        let chosen = numbers.into_iter().filter_map(|number| {
            self.change(number, |item| {
                item.sent = true;
                Sent {
                    number,
                    vnode: item.vnode.clone(),
                    directory: item.directory.clone(),
                    create_arguments: item.create_arguments.clone(),
                    contents: item.contents.clone(),
                    asked: StatusRequest::about(&item.vnode),
                }
            })
        });
        chosen.collect()
    }
}
