//! A kind of job: its steps, its limits, and the interface between a step and the engine.

use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::Value;

use crate::job::{Job, Time};

/// The source of the time of day.
pub trait Clock: Send + Sync + 'static {
    /// The time of day.
    fn now(&self) -> Time;
}

/// A kind of job. Several jobs of a kind run at the same time.
pub trait JobKind: Send + Sync + 'static {
    /// The name in the database: it must not change. Commands show it.
    fn name(&self) -> &'static str;

    /// The names of the steps. A job begins with the first. Names in the database must stay: a new
    /// release keeps the old ones, or a job with such a step fails.
    fn steps(&self) -> &'static [&'static str];

    /// The limits of this kind.
    fn limits(&self) -> Limits;

    /// The step that undoes a job which failed or was cancelled. `None`: there is nothing to undo.
    fn cleanup(&self) -> Option<&'static str> {
        None
    }

    /// Runs a step from its beginning.
    ///
    /// A step is idempotent: it may run again after it has had all of its effects. When a job is
    /// cancelled, the future has [`Limits::stopping`] to end after [`StepContext::cancelled`]. Then
    /// it is dropped.
    ///
    /// # Errors
    /// See [`StepError`].
    fn step<'a>(
        &'a self,
        step: &'a str,
        context: &'a dyn StepContext,
    ) -> BoxFuture<'a, Result<Next, StepError>>;
}

/// The engine, as a step sees it.
pub trait StepContext: Send + Sync {
    /// The job, as it was at the beginning of the step.
    fn job(&self) -> &Job;

    /// Adds finished bytes to the job's progress. Durable with the end of the step, or with
    /// [`StepContext::checkpoint`]. A step that ends with [`StepError::Transient`] or
    /// [`StepError::Unavailable`] loses those since its last checkpoint: it counts them again.
    fn add_bytes(&self, bytes: u64);

    /// Adds the result of an item. Durable as [`StepContext::add_bytes`].
    fn add_item(&self, name: &str, result: Result<(), String>);

    /// Makes progress, items and new step data durable in the middle of a step. The step then
    /// begins with these data if it runs again.
    ///
    /// # Errors
    /// The database takes no writes: the step should end with this error.
    fn checkpoint(&self, data: Value) -> BoxFuture<'_, Result<(), StepError>>;

    /// Ends when the job is cancelled, its deadline has passed, or the engine stops. The step then
    /// returns [`StepError::Cancelled`].
    fn cancelled(&self) -> BoxFuture<'_, ()>;
}

/// The result of a finished step.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// The job goes on with this step, and these data.
    Step(&'static str, Value),
    /// The job is done, with this result.
    Done(Value),
}

/// The reason why a step did not finish.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// The same step may succeed later. It runs again after a pause ([`Retry`]).
    #[error("{0}")]
    Transient(String),
    /// The job's resource is down. The job goes back to the queue without a failed attempt. No job
    /// of this kind and resource starts before a pause is over.
    #[error("{0}")]
    Unavailable(String),
    /// The job cannot succeed.
    #[error("{0}")]
    Permanent(String),
    /// The step has stopped because of [`StepContext::cancelled`].
    #[error("cancelled")]
    Cancelled,
}

/// The limits of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Jobs of this kind that run at the same time.
    pub running: usize,
    /// Jobs of this kind and one resource that run at the same time.
    pub running_per_resource: usize,
    /// Jobs of this kind and one user that run at the same time.
    pub running_per_user: usize,
    /// Unfinished jobs of this kind and one user. A submission beyond them is refused.
    pub unfinished_per_user: usize,
    /// Jobs of one group that may start one after the other while jobs of other groups wait. 0 or
    /// 1: the order ignores groups.
    pub group_run: u32,
    /// Time that a cancelled step has to stop before it is dropped.
    pub stopping: Duration,
    /// Retries.
    pub retry: Retry,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            running: 16,
            running_per_resource: 4,
            running_per_user: usize::MAX,
            unfinished_per_user: usize::MAX,
            group_run: 0,
            stopping: Duration::from_secs(10),
            retry: Retry::default(),
        }
    }
}

/// Pauses after failed attempts: each is twice the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Attempts of one step, the first included. 0: without limit.
    pub attempts: u32,
    /// The first pause.
    pub first: Duration,
    /// The longest pause.
    pub longest: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts: 10,
            first: Duration::from_secs(5),
            longest: Duration::from_secs(3600),
        }
    }
}

impl Retry {
    /// The pause after the n-th failed attempt; n counts from 1.
    #[must_use]
    pub fn pause(&self, failed: u32) -> Duration {
        let doublings = failed.saturating_sub(1).min(31);
        let pause = self.first.saturating_mul(1 << doublings);
        pause.min(self.longest)
    }
}
