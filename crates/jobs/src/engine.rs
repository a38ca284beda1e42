//! The engine: one scheduler, and a task for each running job.
//!
//! | state | owner |
//! | --- | --- |
//! | rows of a running job | its task (`run.rs`) |
//! | rows of any other job | the engine's caller; the job leaves the queue first |
//! | order, limits, pauses, holds | [`Inner`], under one lock |
//!
//! The lock is never held while the database is called. The database comes first: a change of
//! [`Inner`] that makes a job visible as queued, started or ended follows its transaction. So a
//! crash finds at most a job that ran a step whose end is not recorded (rule 2 of the crate).
//!
//! The start of a job is recorded only if its kind cleans up: then it matters after a crash. The
//! row of any other job is `Queued` or `Waiting` until its first step ends or is checkpointed.
//! Answers about such a job have its state from [`Inner`].
//!
//! After an error of the database no further job starts. Running steps end, and their jobs stay
//! `Running` or `Queued` in the database. The next open queues them again.

mod requests;
mod run;
mod schedule;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use cellar_celldb::CellDb;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;

use crate::error::Error;
use crate::job::{Ended, Job, JobId, State, Time};
use crate::kind::{Clock, JobKind};
use crate::queue::{Placement, PoolId, Queue};
use crate::record::{Live, Spec};
use crate::store;

pub use requests::{Counts, Filter};

/// Settings of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Jobs of all kinds that run at the same time.
    pub running: usize,
    /// Ended jobs in the history, at most.
    pub history_max: usize,
    /// Time for which an ended job stays in the history.
    pub history_age: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            running: 64,
            history_max: 100_000,
            history_age: Duration::from_secs(30 * 24 * 3600),
        }
    }
}

/// The job engine. Clones share it.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

struct Shared {
    db: Arc<dyn CellDb>,
    kinds: Vec<Arc<dyn JobKind>>,
    clock: Arc<dyn Clock>,
    settings: Settings,
    inner: Mutex<Inner>,
    /// Wakes the scheduler.
    wake: Notify,
    /// The engine stops: no job starts, and running steps are asked to stop.
    stopping: watch::Sender<bool>,
}

/// Everything in memory. See the table at the head.
struct Inner {
    queue: Queue,
    /// Unfinished jobs.
    jobs: HashMap<JobId, Entry>,
    /// Unfinished jobs of a kind and user.
    unfinished: HashMap<(usize, Arc<str>), usize>,
    /// Jobs that pause.
    waiting: BTreeSet<(Time, JobId)>,
    deadlines: BTreeSet<(Time, JobId)>,
    /// Resources that are down.
    held: BTreeSet<(Time, PoolId)>,
    /// Failures of a resource in a row, for the length of the next hold.
    failures: HashMap<(usize, Arc<str>), u32>,
    waiters: HashMap<JobId, Vec<oneshot::Sender<Ended>>>,
    ended: usize,
    failed: Option<Error>,
    tasks: Vec<JoinHandle<()>>,
}

/// An unfinished job in memory.
struct Entry {
    placement: Placement,
    deadline: Option<Time>,
    phase: Phase,
}

/// The place of an unfinished job in memory.
enum Phase {
    /// In the queue.
    Queued,
    /// In `waiting`.
    Waiting(Time),
    /// A task runs it.
    Running(Running),
    /// A method of the engine changes its row. It does not start meanwhile.
    Changing,
    /// Its kind is not known to this program.
    Unknown,
}

/// A job that a task runs.
struct Running {
    /// Interrupts the step.
    interrupt: watch::Sender<Option<Interrupt>>,
    /// The time at which the task began.
    started: Time,
}

/// The reason why a running step shall stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interrupt {
    /// A user cancelled the job.
    Cancel,
    /// The deadline has passed.
    Deadline,
}

impl Engine {
    /// Opens the engine on a database, and starts its scheduler. Interrupted jobs are queued again.
    ///
    /// Jobs whose kind is not among `kinds` stay unfinished and do not start.
    ///
    /// # Errors
    /// The database cannot be read or written, or a row does not parse.
    pub async fn open(
        db: Arc<dyn CellDb>,
        kinds: Vec<Arc<dyn JobKind>>,
        clock: Arc<dyn Clock>,
        settings: Settings,
    ) -> Result<Self, Error> {
        let read_from = Arc::clone(&db);
        let loaded = blocking(move || store::load(&*read_from)).await?;
        let limits = kinds.iter().map(|kind| kind.limits());
        let mut inner = Inner {
            queue: Queue::new(limits, settings.running),
            jobs: HashMap::new(),
            unfinished: HashMap::new(),
            waiting: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            held: BTreeSet::new(),
            failures: HashMap::new(),
            waiters: HashMap::new(),
            ended: loaded.ended,
            failed: None,
            tasks: Vec::new(),
        };
        for (id, spec, live) in &loaded.unfinished {
            let kind = kinds.iter().position(|kind| kind.name() == spec.kind);
            inner.add(*id, kind, spec, live);
        }
        let (stopping, _) = watch::channel(false);
        let shared = Arc::new(Shared {
            db,
            kinds,
            clock,
            settings,
            inner: Mutex::new(inner),
            wake: Notify::new(),
            stopping,
        });
        let scheduler = tokio::spawn(schedule::run(Arc::clone(&shared)));
        shared.inner.lock().tasks.push(scheduler);
        Ok(Self { shared })
    }

    /// Stops the engine: no job starts, running steps get [`crate::Limits::stopping`] to end, and
    /// are dropped then. Their jobs run again after the next open.
    pub async fn stop(&self) {
        self.shared.stopping.send_replace(true);
        self.shared.wake.notify_one();
        loop {
            let tasks = std::mem::take(&mut self.shared.inner.lock().tasks);
            if tasks.is_empty() {
                return;
            }
            for task in tasks {
                let _ = task.await;
            }
        }
    }

    /// The error of the database after which no job starts.
    pub fn failed(&self) -> Option<Error> {
        self.shared.inner.lock().failed.clone()
    }
}

impl Shared {
    /// Runs a transaction on a thread of the blocking pool. An error of the database stops the
    /// engine.
    async fn transact<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&dyn CellDb) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let db = Arc::clone(&self.db);
        let done = blocking(move || work(&*db)).await;
        if let Err(error @ (Error::Database(_) | Error::BadRow { .. })) = &done {
            tracing::error!(%error, "the job engine starts no more jobs");
            let mut inner = self.inner.lock();
            inner.failed.get_or_insert(error.clone());
            inner.waiters.clear();
            drop(inner);
            self.wake.notify_one();
        }
        done
    }

    fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }
}

impl Inner {
    /// Adds an unfinished job from its rows.
    fn add(&mut self, id: JobId, kind: Option<usize>, spec: &Spec, live: &Live) {
        let placement = Placement {
            kind: kind.unwrap_or(usize::MAX),
            user: spec.user.as_str().into(),
            resource: spec.resource.as_str().into(),
            group: spec.group.as_str().into(),
            priority: live.priority,
            order: live.order,
        };
        let deadline = spec.deadline;
        let deadline = deadline.filter(|_| live.cleaning.is_none() && !live.no_deadline);
        *self.unfinished_of(&placement) += 1;
        let phase = match live.state {
            _ if kind.is_none() => Phase::Unknown,
            State::Waiting(until) => Phase::Waiting(until),
            _ => Phase::Queued,
        };
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, id));
        }
        match phase {
            Phase::Queued => self.queue.insert(id, placement.clone()),
            Phase::Waiting(until) => {
                self.waiting.insert((until, id));
            }
            Phase::Running(_) | Phase::Changing | Phase::Unknown => {}
        }
        let entry = Entry {
            placement,
            deadline,
            phase,
        };
        self.jobs.insert(id, entry);
    }

    /// Enters into an answer that the job runs, which its row may not say yet.
    fn enter_running(&self, job: &mut Job) {
        if let Some(entry) = self.jobs.get(&job.id)
            && let Phase::Running(running) = &entry.phase
            && !job.state.is_ended()
        {
            job.state = State::Running;
            job.started.get_or_insert(running.started);
        }
    }

    fn unfinished_of(&mut self, placement: &Placement) -> &mut usize {
        let key = (placement.kind, Arc::clone(&placement.user));
        self.unfinished.entry(key).or_default()
    }

    /// Takes a job that does not run out of the queue, so that its row can be changed.
    fn take(&mut self, id: JobId) -> Option<()> {
        let entry = self.jobs.get_mut(&id)?;
        match entry.phase {
            Phase::Queued => {
                self.queue.remove(id)?;
            }
            Phase::Waiting(until) => {
                self.waiting.remove(&(until, id));
            }
            Phase::Unknown => {}
            Phase::Running(_) | Phase::Changing => return None,
        }
        entry.phase = Phase::Changing;
        Some(())
    }

    /// Puts a job back into the place that its state demands.
    fn put_back(&mut self, id: JobId, state: State, kinds: usize) {
        let Some(entry) = self.jobs.get_mut(&id) else {
            return;
        };
        match state {
            State::Done | State::Failed | State::Cancelled => self.forget(id, state),
            _ if entry.placement.kind >= kinds => entry.phase = Phase::Unknown,
            State::Waiting(until) => {
                entry.phase = Phase::Waiting(until);
                self.waiting.insert((until, id));
            }
            State::Queued | State::Running => {
                entry.phase = Phase::Queued;
                self.queue.insert(id, entry.placement.clone());
            }
        }
    }

    /// Forgets a job that has ended, and tells its waiters.
    fn forget(&mut self, id: JobId, state: State) {
        let Some(entry) = self.jobs.remove(&id) else {
            return;
        };
        if let Some(deadline) = entry.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        let of_user = self.unfinished_of(&entry.placement);
        *of_user -= 1;
        if *of_user == 0 {
            let key = (entry.placement.kind, Arc::clone(&entry.placement.user));
            self.unfinished.remove(&key);
        }
        self.ended += 1;
        let waiters = self.waiters.remove(&id).unwrap_or_default();
        if let Some(ended) = state.ended() {
            for waiter in waiters {
                let _ = waiter.send(ended);
            }
        }
    }
}

/// Runs work on a thread of the blocking pool.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or(Err(Error::Stopped))
}
