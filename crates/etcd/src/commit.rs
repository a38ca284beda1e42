//! Transactions in groups, and the commits of groups.
//!
//! A writer runs its body under the lock of [`Groups`], over the copy and the changes of the open
//! group. Then its transaction has one of these states:
//!
//! | state | event | next |
//! |---|---|---|
//! | run | it wrote nothing, and there is no open group | done |
//! | run | it read a row that a group in flight changes | deferred |
//! | run | the open group is full, or a large transaction is being finished | waits, runs again |
//! | run | otherwise | member of the open group |
//! | deferred | that group has ended | runs again |
//! | member | the copy has other rows than its group read | runs again |
//! | member | its group has waited, and the cluster is silent | runs again: the server refuses |
//! | member | no deferred writer is left, no group is in flight or gathered | in flight, with it |
//! | member | few groups are in flight; its group is full or has waited | in flight, with it |
//! | in flight | committed, and the copy has it | done |
//! | in flight | conflict, or certainly not committed | runs again, when the copy is newer |
//! | in flight | refused, or in doubt | error |
//!
//! A single writer therefore commits alone and at once. Writers that need each other's rows (a
//! counter of ids) share the next commit. So do writers that find a group in flight.
//!
//! At the end of a group, its writers often have another transaction soon. The open group is
//! gathered: it waits a short time for them. Otherwise writers would form two groups that take
//! turns, and etcd would have two requests instead of one.
//!
//! Lock order: groups, the copy, the history.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use cellar_celldb::{Error, Overlay, Revision, Transaction, Verdict, run};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rand::Rng as _;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::client::Fault;
use crate::copy::{Copy, Recorded};
use crate::follow::Followed;
use crate::guards::Guards;
use crate::large;
use crate::slots::{Attempt, Commit, Slot};

/// Operations of a group. etcd takes 128 unless it is configured for more
/// (`--max-txn-ops`). Some are left for the engine's own keys.
const GROUP_MAX: usize = 100;
/// Bytes of a group: etcd takes requests of 1.5 MiB.
const GROUP_BYTES_MAX: usize = 1 << 20;
/// The longest time for a transaction that conflicts again and again.
const CONFLICTS: Duration = Duration::from_secs(20);
/// The longest wait until the copy has a commit.
const ARRIVAL: Duration = Duration::from_secs(20);
/// The longest wait until the copy is newer after a conflict.
const NEWER: Duration = Duration::from_secs(2);
/// Groups in flight at the same time. A request costs etcd far more than a row in it. So writers
/// share the next group while one is in flight. A second one goes only if it is full, or after
/// [`LINGER`].
const IN_FLIGHT_MAX: usize = 2;
/// A group waits at most this long for deferred writers, or for the end of the group before.
const LINGER: Duration = Duration::from_millis(50);
/// The part of a group's time in flight for which the next group is gathered: one over this.
const GATHER_PART: u32 = 4;
/// The longest time for which a group is gathered.
const GATHER_MAX: Duration = Duration::from_millis(10);
/// Pause after a conflict, at most, in microseconds: two servers do not meet again at once.
const SPREAD_MICROSECONDS: u64 = 3000;
/// Pause between attempts to find out about a commit in doubt.
const RESOLVE_EVERY: Duration = Duration::from_secs(1);

type Body<'b> = &'b mut dyn FnMut(&mut Transaction<'_>) -> Verdict;

/// The end of a group.
#[derive(Clone, Debug)]
enum Outcome {
    Committed(Revision),
    Again,
    Failed(Error),
}

struct Group {
    number: u64,
    changes: Overlay,
    bytes: usize,
    guards: Guards,
    members: usize,
    opened: Instant,
    /// It had no room for a writer.
    is_full: bool,
    outcome: Arc<OnceLock<Outcome>>,
}

/// The gathering of the open group.
struct Gathering {
    /// The writers of the group that has ended and of the open one. The open group needs no more.
    writers: usize,
    until: Instant,
}

#[derive(Default)]
struct Groups {
    open: Option<Group>,
    gathering: Option<Gathering>,
    in_flight: BTreeMap<u64, Arc<Overlay>>,
    /// Writers that wait for the end of a group.
    deferred: BTreeMap<u64, usize>,
    /// Writers that were woken to run again, and have not yet.
    reruns: usize,
    free: Vec<Slot>,
    last_number: u64,
}

impl Groups {
    /// Whether the open group still waits for writers of the group that has ended.
    fn is_gathered(&self) -> bool {
        let Some(gathering) = &self.gathering else {
            return false;
        };
        let is_complete = |group: &Group| group.is_full || group.members >= gathering.writers;
        !self.open.as_ref().is_some_and(is_complete) && Instant::now() < gathering.until
    }

    /// Gathers the open group after one with so many writers, which has been in flight for a time.
    fn gather(&mut self, ended: usize, flight: Duration) {
        let writers = ended + self.open.as_ref().map_or(0, |group| group.members);
        self.gathering = (writers > 1).then(|| Gathering {
            writers,
            until: Instant::now() + (flight / GATHER_PART).min(GATHER_MAX),
        });
    }
}

/// What became of a body that ran.
enum Step {
    Done(Revision),
    Deferred(u64),
    Full,
    Member(Arc<OnceLock<Outcome>>),
}

/// Commits the transactions of one engine.
pub(crate) struct Committer {
    followed: Arc<Followed>,
    handle: Handle,
    groups: Mutex<Groups>,
    progress: Condvar,
    /// Ids of requests begin with this, which no other process has.
    instance: String,
    requests: AtomicU64,
}

impl Committer {
    pub(crate) fn new(followed: Arc<Followed>, handle: Handle, free: Vec<Slot>) -> Arc<Self> {
        Arc::new(Self {
            followed,
            handle,
            groups: Mutex::new(Groups {
                free,
                ..Groups::default()
            }),
            progress: Condvar::new(),
            instance: uuid::Uuid::new_v4().to_string(),
            requests: AtomicU64::new(0),
        })
    }

    /// Finishes large transactions. Runs until it is dropped.
    pub(crate) async fn finish_plans(&self) {
        large::run(&self.followed, &self.instance).await;
    }

    /// Runs a transaction to its end.
    pub(crate) fn transact(self: &Arc<Self>, body: Body<'_>) -> Result<Revision, Error> {
        let begun = Instant::now();
        let mut groups = self.groups.lock();
        let mut is_rerun = false;
        loop {
            let step = match self.refusal(begun) {
                Some(error) => Err(error),
                None => self.attempt(&mut groups, body),
            };
            if std::mem::take(&mut is_rerun) {
                groups.reruns = groups.reruns.saturating_sub(1);
            }
            match step {
                Err(error) => {
                    self.launch(&mut groups);
                    return Err(error);
                }
                Ok(Step::Done(revision)) => {
                    self.launch(&mut groups);
                    return Ok(revision);
                }
                Ok(Step::Deferred(number)) => {
                    *groups.deferred.entry(number).or_default() += 1;
                    self.launch(&mut groups);
                    while groups.in_flight.contains_key(&number) {
                        self.wait(&mut groups);
                    }
                    is_rerun = true;
                }
                Ok(Step::Full) => {
                    self.launch(&mut groups);
                    self.wait(&mut groups);
                }
                Ok(Step::Member(outcome)) => {
                    let outcome = loop {
                        self.launch(&mut groups);
                        if let Some(outcome) = outcome.get() {
                            break outcome.clone();
                        }
                        self.wait(&mut groups);
                    };
                    match outcome {
                        Outcome::Committed(revision) => return Ok(revision),
                        Outcome::Failed(error) => return Err(error),
                        Outcome::Again => is_rerun = true,
                    }
                }
            }
        }
    }

    fn wait(&self, groups: &mut MutexGuard<'_, Groups>) {
        let gathering = groups.gathering.as_ref();
        let left = gathering.map(|gathering| gathering.until - Instant::now());
        let left = left.filter(|left| !left.is_zero()).unwrap_or(LINGER);
        self.progress.wait_for(groups, left);
    }

    fn refusal(&self, begun: Instant) -> Option<Error> {
        if let Some(reason) = self.followed.figures.refusal(begun.elapsed()) {
            return Some(Error::Unavailable(reason.into()));
        }
        (begun.elapsed() > CONFLICTS).then(|| {
            Error::Unavailable("other servers keep changing the rows of this transaction".into())
        })
    }

    /// Runs a body, and lets its transaction join the open group.
    fn attempt(&self, groups: &mut Groups, body: Body<'_>) -> Result<Step, Error> {
        let copy = self.followed.copy.read_recursive();
        // A body sees one state: not the changes of a group over a copy with which they conflict.
        if let Some(group) = groups.open.take() {
            self.keep_open(groups, group, &copy);
        }
        if copy.has_plan() {
            return Ok(Step::Full);
        }
        let recorded = Recorded::new(&copy);
        let layers: Vec<&Overlay> = groups.open.iter().map(|group| &group.changes).collect();
        let changes = run(&recorded, &layers, body)?.unwrap_or_default();
        let reads = recorded.into_reads();
        if changes.is_empty() && groups.open.is_none() {
            return Ok(Step::Done(self.followed.history.newest()));
        }
        let disturbing = groups.in_flight.iter().rev();
        for (number, theirs) in disturbing {
            if reads.touch(theirs) {
                return Ok(Step::Deferred(*number));
            }
        }
        let bytes: usize = changes
            .iter()
            .map(|(_, key, value)| key.len() + value.as_ref().map_or(0, Bytes::len))
            .sum();
        if let Some(group) = &mut groups.open {
            let has_room = group.changes.len() + changes.len() <= GROUP_MAX
                && group.bytes + bytes <= GROUP_BYTES_MAX
                && group.guards.have_room_for(&reads);
            if !has_room {
                group.is_full = true;
                return Ok(Step::Full);
            }
        }
        groups.last_number += 1;
        let number = groups.last_number;
        let group = groups.open.get_or_insert_with(|| Group {
            number,
            changes: Overlay::default(),
            bytes: 0,
            guards: Guards::default(),
            members: 0,
            opened: Instant::now(),
            is_full: false,
            outcome: Arc::default(),
        });
        group.changes.absorb(&changes);
        group.bytes += bytes;
        group.guards.add(reads, &copy);
        group.members += 1;
        Ok(Step::Member(Arc::clone(&group.outcome)))
    }

    /// Leaves a group open, unless it is certain to conflict: then its members run again.
    fn keep_open(&self, groups: &mut Groups, mut group: Group, copy: &Copy) {
        match group.guards.hold(copy) {
            true => groups.open = Some(group),
            false => self.run_again(groups, &group),
        }
    }

    fn run_again(&self, groups: &mut Groups, group: &Group) {
        groups.reruns += group.members;
        let _first = group.outcome.set(Outcome::Again);
        self.progress.notify_all();
    }

    /// Sends the open group on its way if it is complete and a slot is free.
    fn launch(self: &Arc<Self>, groups: &mut Groups) {
        let lingers = |group: &Group| group.opened.elapsed() < LINGER;
        if groups.reruns > 0 && groups.open.as_ref().is_some_and(lingers) {
            return;
        }
        let is_next = match groups.in_flight.len() {
            0 => !groups.is_gathered(),
            others if others < IN_FLIGHT_MAX => {
                let open = groups.open.as_ref();
                open.is_some_and(|group| group.is_full || !lingers(group))
            }
            _ => false,
        };
        if groups.free.is_empty() || !is_next {
            return;
        }
        let Some(group) = groups.open.take() else {
            return;
        };
        if self
            .followed
            .figures
            .refusal(group.opened.elapsed())
            .is_some()
        {
            self.run_again(groups, &group);
            return;
        }
        let Some(slot) = groups.free.pop() else {
            return;
        };
        groups.gathering = None;
        // A writer whose body has failed in a panic does not delay later groups.
        groups.reruns = 0;
        let changes = Arc::new(group.changes.clone());
        groups.in_flight.insert(group.number, changes);
        let committer = Arc::clone(self);
        self.handle
            .spawn(async move { committer.commit(group, slot).await });
        // Writers that found the group full.
        self.progress.notify_all();
    }

    async fn commit(self: Arc<Self>, group: Group, mut slot: Slot) {
        let begun = Instant::now();
        let request = self.requests.fetch_add(1, Ordering::Relaxed);
        let id = Bytes::from(format!("{} {request}", self.instance));
        let Followed {
            keys,
            client,
            figures,
            ..
        } = &*self.followed;
        let Group {
            number,
            changes,
            bytes,
            guards,
            members,
            outcome,
            ..
        } = group;
        let is_large = changes.len() > GROUP_MAX || bytes > GROUP_BYTES_MAX;
        let staged = match is_large {
            true => Some(self.stage(&guards, request, &changes).await),
            false => None,
        };
        let compare = guards.compares(keys);
        let size = changes.len().max(compare.len());
        let success = match &staged {
            None => Ok(large::made(keys, changes.iter())),
            Some(Ok(Some(plan))) => Ok(large::operations(keys, plan)),
            // Another large transaction is first.
            Some(Ok(None)) => Err(Attempt::Conflict(0)),
            Some(Err(fault)) => Err(Attempt::Failed(fault.clone())),
        };
        let attempt = match success {
            Ok(success) => {
                let commit = Commit { compare, success };
                slot.commit(client, &keys.last(), &id, commit).await
            }
            Err(attempt) => attempt,
        };
        let mut slot = Some(slot);
        let end = match attempt {
            Attempt::Committed(revision) => {
                figures.answered();
                figures.groups.fetch_add(1, Ordering::Relaxed);
                figures.commits.fetch_add(members as u64, Ordering::Relaxed);
                match self.followed.reaches(revision, ARRIVAL).await {
                    true => Outcome::Committed(self.followed.revision(revision)),
                    false => Outcome::Failed(Error::Unavailable(
                        "the change is made, but has not arrived through the watch".into(),
                    )),
                }
            }
            Attempt::Conflict(last) => {
                figures.answered();
                figures.conflicts.fetch_add(1, Ordering::Relaxed);
                let _ = self.followed.reaches(last, NEWER).await;
                let pause = rand::rng().random_range(0..SPREAD_MICROSECONDS);
                tokio::time::sleep(Duration::from_micros(pause)).await;
                Outcome::Again
            }
            Attempt::Lost => {
                figures.answered();
                Outcome::Again
            }
            Attempt::Failed(Fault::Unknown(reason)) => {
                figures.silent(&reason);
                tokio::time::sleep(Duration::from_millis(20)).await;
                Outcome::Again
            }
            Attempt::Failed(Fault::TooLarge(_)) => Outcome::Failed(Error::TooLarge {
                what: "a request to etcd (--max-txn-ops, --max-request-bytes)",
                size,
                limit: GROUP_MAX,
            }),
            Attempt::Failed(fault) => Outcome::Failed(Error::Unavailable(fault.to_string().into())),
            Attempt::InDoubt(reason) => {
                figures.silent(&reason);
                if let Some(slot) = slot.take() {
                    let committer = Arc::clone(&self);
                    self.handle
                        .spawn(async move { committer.resolve(slot, id).await });
                }
                let reason = format!("{reason}; it is not known whether the change is made");
                Outcome::Failed(Error::Unavailable(reason.into()))
            }
        };
        let mut groups = self.groups.lock();
        groups.in_flight.remove(&number);
        groups.free.extend(slot);
        groups.reruns += groups.deferred.remove(&number).unwrap_or_default();
        match end {
            Outcome::Again => groups.reruns += members,
            Outcome::Committed(_) => groups.gather(members, begun.elapsed()),
            Outcome::Failed(_) => {}
        }
        let _first = outcome.set(end);
        drop(groups);
        self.progress.notify_all();
    }

    /// Stages the changes of a large transaction. Returns the id of its plan; `None` if there is a
    /// newer plan than its members know.
    async fn stage(
        &self,
        guards: &Guards,
        request: u64,
        changes: &Overlay,
    ) -> Result<Option<String>, Fault> {
        if !guards.is_of_plan(&self.followed.copy.read()) {
            return Ok(None);
        }
        let id = format!("{}-{request}", self.instance);
        large::stage(&self.followed.client, &self.followed.keys, &id, changes).await?;
        Ok(Some(id))
    }

    /// Finds out about a commit in doubt, however long that takes, and frees its slot.
    async fn resolve(self: Arc<Self>, mut slot: Slot, id: Bytes) {
        loop {
            tokio::time::sleep(RESOLVE_EVERY).await;
            let Followed {
                client, figures, ..
            } = &*self.followed;
            if let Ok(revision) = slot.resolve(client, &id).await {
                let is_made = revision.is_some();
                tracing::info!(is_made, "the outcome of a cut write to etcd is known");
                figures.resolved.fetch_add(1, Ordering::Relaxed);
                break;
            }
        }
        self.groups.lock().free.push(slot);
        self.progress.notify_all();
    }
}
