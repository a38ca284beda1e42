//! The task of a running job: its steps, one after the other.
//!
//! Each step has one transaction at its end, which also appends the results of items. For a kind
//! that cleans up, a transaction before the first step records the start. A crash before the
//! transaction of a step runs the step again; a crash after it does not.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;

use super::{Interrupt, Shared};
use crate::error::Error;
use crate::job::{Ended, Item, Job, JobId, Progress, State, Time};
use crate::kind::{JobKind, Next, StepContext, StepError};
use crate::limits::{
    ARGUMENTS_BYTES_MAX, ERROR_BYTES_MAX, ITEM_NAME_BYTES_MAX, ITEMS_PENDING_MAX, cut,
};
use crate::record::{Live, job};
use crate::store;

/// The end of a task.
enum Outcome {
    /// The job has this state in the database.
    State(State),
    /// The job's resource is down; the job is queued.
    ResourceDown,
    /// The engine stops, or the database failed: the job stays as it is.
    Left,
}

/// A job that the scheduler has marked as running.
pub(super) struct Start {
    pub(super) id: JobId,
    pub(super) kind: Arc<dyn JobKind>,
    /// The time of the start.
    pub(super) at: Time,
    pub(super) interrupted: watch::Receiver<Option<Interrupt>>,
}

/// Runs a job.
pub(super) async fn run(shared: Arc<Shared>, start: Start) {
    let id = start.id;
    let outcome = match steps(&shared, start).await {
        Ok(outcome) => outcome,
        Err(error) => {
            tracing::warn!(job = id.0, %error, "a job stopped without a record");
            Outcome::Left
        }
    };
    leave(&shared, id, outcome);
    shared.wake.notify_one();
}

/// Takes the job out of the running ones, to the place that its outcome demands.
fn leave(shared: &Shared, id: JobId, outcome: Outcome) {
    let now = shared.clock.now();
    let mut inner = shared.inner.lock();
    let Some(placement) = inner.queue.leave(id) else {
        return;
    };
    let resource = (placement.kind, Arc::clone(&placement.resource));
    match outcome {
        Outcome::Left => {}
        Outcome::ResourceDown => {
            // Jobs that ran at the same time report the same outage: it counts once.
            if !inner
                .queue
                .is_held(placement.kind, &placement.resource, now)
            {
                let failures = inner.failures.entry(resource).or_default();
                *failures = failures.saturating_add(1);
                let pause = shared.kinds[placement.kind].limits().retry.pause(*failures);
                let until = now.after(pause);
                let pool = inner.queue.hold(placement.kind, &placement.resource, until);
                inner.held.insert((until, pool));
            }
            inner.put_back(id, State::Queued, shared.kinds.len());
        }
        Outcome::State(state) => {
            if state == State::Done {
                inner.failures.remove(&resource);
            }
            inner.put_back(id, state, shared.kinds.len());
        }
    }
}

/// Runs steps until the job leaves.
async fn steps(shared: &Arc<Shared>, start: Start) -> Result<Outcome, Error> {
    let Start {
        id,
        kind,
        at,
        interrupted,
    } = start;
    let cleans_up = kind.cleanup().is_some();
    let started = shared.transact(move |db| match cleans_up {
        true => store::modify(db, id, &[], |spec, live| {
            begin(live, at);
            Ok(spec.clone())
        }),
        false => store::read_rows(db, id).map(|(spec, mut live)| {
            begin(&mut live, at);
            (live, spec)
        }),
    });
    let (live, spec) = started.await?;
    let mut job = (live.cleaning.is_some(), job(id, spec, live));
    loop {
        let (cleaning, shown) = job;
        if shared.is_stopping() {
            return Ok(Outcome::Left);
        }
        // A cancellation or deadline before the step, also one before a crash.
        let why = match cleaning {
            true => None,
            false if shown.cancelling => Some(Interrupt::Cancel),
            false => *interrupted.borrow(),
        };
        let context = Context::new(Arc::clone(shared), shown, at, interrupted.clone(), cleaning);
        let result = match why {
            Some(_) => Err(StepError::Cancelled),
            None => run_step(&*kind, &context).await,
        };
        let why = why.or(*interrupted.borrow()).filter(|_| !cleaning);
        if matches!(result, Err(StepError::Cancelled)) && why.is_none() && shared.is_stopping() {
            return Ok(Outcome::Left);
        }
        let is_down = matches!(result, Err(StepError::Unavailable(_)));
        let (live, shown) = record(&context, Arc::clone(&kind), result, why).await?;
        match live.state {
            State::Running => job = (live.cleaning.is_some(), shown),
            State::Queued if is_down => return Ok(Outcome::ResourceDown),
            state => return Ok(Outcome::State(state)),
        }
    }
}

/// Enters that the job runs.
fn begin(live: &mut Live, at: Time) {
    live.state = State::Running;
    live.started.get_or_insert(at);
}

/// Runs one step. A panic is a transient error. An interrupted step has some time to stop.
async fn run_step(kind: &dyn JobKind, context: &Context) -> Result<Next, StepError> {
    let step = context.job.step.as_str();
    if !kind.steps().contains(&step) && kind.cleanup() != Some(step) {
        return Err(StepError::Permanent(format!(
            "this program knows no step {step}"
        )));
    }
    let work = AssertUnwindSafe(kind.step(step, context)).catch_unwind();
    let patience = async {
        context.cancelled().await;
        tokio::time::sleep(kind.limits().stopping).await;
    };
    tokio::select! {
        biased;
        done = work => done.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or(panic.downcast_ref::<String>().map(String::as_str));
            Err(StepError::Transient(format!("the step panicked: {}", text.unwrap_or("no message"))))
        }),
        () = patience => Err(StepError::Cancelled),
    }
}

/// Records the end of a step.
async fn record(
    context: &Context,
    kind: Arc<dyn JobKind>,
    result: Result<Next, StepError>,
    why: Option<Interrupt>,
) -> Result<(Live, Job), Error> {
    let shared = &context.shared;
    let (id, at, now) = (context.job.id, context.started, shared.clock.now());
    let mut pending = std::mem::take(&mut *context.pending.lock());
    let result = match result {
        Err(StepError::Transient(_) | StepError::Unavailable(_)) if why.is_some() => {
            Err(StepError::Cancelled)
        }
        result => result,
    };
    if matches!(
        result,
        Err(StepError::Transient(_) | StepError::Unavailable(_))
    ) {
        // The step runs again from its last checkpoint, and counts them again.
        pending = Pending::default();
    }
    shared
        .transact(move |db| {
            let (live, spec) = store::modify(db, id, &pending.items, |spec, live| {
                begin(live, at);
                add(&mut live.progress, pending.progress);
                apply(live, &*kind, result.clone(), why, now);
                Ok(spec.clone())
            })?;
            Ok((live.clone(), job(id, spec, live)))
        })
        .await
}

/// The transition of a running job at the end of a step: see the table at [`State`].
fn apply(
    live: &mut Live,
    kind: &dyn JobKind,
    result: Result<Next, StepError>,
    why: Option<Interrupt>,
    now: Time,
) {
    let retry = kind.limits().retry;
    let result = result.and_then(|next| match &next {
        Next::Step(_, data) | Next::Done(data) if data.to_string().len() > ARGUMENTS_BYTES_MAX => {
            Err(StepError::Permanent(
                "the step returned too many data".to_owned(),
            ))
        }
        _ => Ok(next),
    });
    match result {
        Ok(Next::Step(step, data)) => {
            live.step = step.to_owned();
            live.data = data;
            live.attempts = 0;
        }
        Ok(Next::Done(data)) => {
            live.data = data;
            live.error = live.error.take().filter(|_| live.cleaning.is_some());
            end(live, live.cleaning.unwrap_or(Ended::Done), now);
        }
        Err(StepError::Cancelled) => match why {
            Some(Interrupt::Cancel) => stop(live, kind, Ended::Cancelled, None, now),
            Some(Interrupt::Deadline) => {
                stop(
                    live,
                    kind,
                    Ended::Failed,
                    Some("the deadline has passed"),
                    now,
                );
            }
            None => stop(live, kind, Ended::Failed, Some("the step gave up"), now),
        },
        Err(StepError::Unavailable(error)) => {
            live.error = Some(cut(&error, ERROR_BYTES_MAX));
            live.state = State::Queued;
        }
        Err(StepError::Transient(error)) => {
            live.attempts = live.attempts.saturating_add(1);
            let is_last = retry.attempts > 0 && live.attempts >= retry.attempts;
            if is_last && live.cleaning.is_none() {
                stop(live, kind, Ended::Failed, Some(&error), now);
            } else {
                live.error = Some(cut(&error, ERROR_BYTES_MAX));
                live.state = State::Waiting(now.after(retry.pause(live.attempts)));
            }
        }
        Err(StepError::Permanent(error)) => stop(live, kind, Ended::Failed, Some(&error), now),
    }
}

/// Ends a job that has not succeeded, or lets it clean up first.
fn stop(live: &mut Live, kind: &dyn JobKind, ended: Ended, error: Option<&str>, now: Time) {
    if let Some(error) = error {
        live.error = Some(cut(error, ERROR_BYTES_MAX));
    }
    match (live.cleaning, kind.cleanup()) {
        // A cleanup that fails is retried without limit.
        (Some(_), _) => {
            live.attempts = live.attempts.saturating_add(1);
            live.state = State::Waiting(now.after(kind.limits().retry.pause(live.attempts)));
        }
        (None, Some(step)) if live.started.is_some() => {
            live.cleaning = Some(ended);
            live.step = step.to_owned();
            live.attempts = 0;
            live.state = State::Queued;
        }
        (None, _) => end(live, ended, now),
    }
}

fn end(live: &mut Live, ended: Ended, now: Time) {
    live.state = ended.into();
    live.ended = Some(now);
    live.cleaning = None;
    live.attempts = 0;
}

/// Ends a job that does not run, whose entry is [`super::Phase::Changing`].
pub(super) async fn end_idle(
    shared: &Arc<Shared>,
    id: JobId,
    ended: Ended,
    error: Option<&'static str>,
) -> Result<State, Error> {
    let now = shared.clock.now();
    let kinds = shared.kinds.clone();
    let changed = shared
        .transact(move |db| {
            store::modify(db, id, &[], |spec, live| {
                match kinds.iter().find(|kind| kind.name() == spec.kind) {
                    Some(_) if live.cleaning.is_some() => live.state = State::Queued,
                    Some(kind) => stop(live, &**kind, ended, error, now),
                    None => end(live, ended, now),
                }
                Ok(())
            })
        })
        .await;
    // After an error of the database no job starts, so its place does not matter.
    let state = changed
        .as_ref()
        .map_or(State::Queued, |(live, ())| live.state);
    shared.inner.lock().put_back(id, state, shared.kinds.len());
    shared.wake.notify_one();
    changed.map(|(live, ())| live.state)
}

fn add(sum: &mut Progress, more: Progress) {
    sum.bytes = sum.bytes.saturating_add(more.bytes);
    sum.items = sum.items.saturating_add(more.items);
    sum.failed = sum.failed.saturating_add(more.failed);
}

/// Progress that is not durable yet.
#[derive(Debug, Default)]
struct Pending {
    progress: Progress,
    items: Vec<Item>,
}

/// The engine, as a step sees it.
struct Context {
    shared: Arc<Shared>,
    job: Job,
    /// The time at which the task began.
    started: Time,
    interrupted: watch::Receiver<Option<Interrupt>>,
    /// A cleanup is interrupted by a stop of the engine only.
    is_cleaning: bool,
    pending: Mutex<Pending>,
}

impl Context {
    fn new(
        shared: Arc<Shared>,
        job: Job,
        started: Time,
        interrupted: watch::Receiver<Option<Interrupt>>,
        is_cleaning: bool,
    ) -> Self {
        Self {
            shared,
            job,
            started,
            interrupted,
            is_cleaning,
            pending: Mutex::default(),
        }
    }
}

impl StepContext for Context {
    fn job(&self) -> &Job {
        &self.job
    }

    fn add_bytes(&self, bytes: u64) {
        let mut pending = self.pending.lock();
        pending.progress.bytes = pending.progress.bytes.saturating_add(bytes);
    }

    fn add_item(&self, name: &str, result: Result<(), String>) {
        let mut pending = self.pending.lock();
        pending.progress.items += 1;
        pending.progress.failed += u64::from(result.is_err());
        if pending.items.len() < ITEMS_PENDING_MAX {
            pending.items.push(Item {
                name: cut(name, ITEM_NAME_BYTES_MAX),
                error: result.err().map(|error| cut(&error, ERROR_BYTES_MAX)),
            });
        }
    }

    fn checkpoint(&self, data: Value) -> BoxFuture<'_, Result<(), StepError>> {
        Box::pin(async move {
            if data.to_string().len() > ARGUMENTS_BYTES_MAX {
                return Err(StepError::Permanent(
                    "the step has too many data".to_owned(),
                ));
            }
            let pending = std::mem::take(&mut *self.pending.lock());
            let (id, at) = (self.job.id, self.started);
            let written = self.shared.transact(move |db| {
                store::modify(db, id, &pending.items, |_, live| {
                    begin(live, at);
                    add(&mut live.progress, pending.progress);
                    live.data = data.clone();
                    Ok(())
                })
            });
            match written.await {
                Ok(_) => Ok(()),
                Err(error) => Err(StepError::Transient(error.to_string())),
            }
        })
    }

    fn cancelled(&self) -> BoxFuture<'_, ()> {
        let mut interrupted = self.interrupted.clone();
        let mut stopping = self.shared.stopping.subscribe();
        let is_cleaning = self.is_cleaning;
        Box::pin(async move {
            let interrupted = async {
                if is_cleaning || interrupted.wait_for(Option::is_some).await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                () = interrupted => {}
                _ = stopping.wait_for(|stopping| *stopping) => {}
            }
        })
    }
}
