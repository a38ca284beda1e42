//! Long operations that continue after an interruption: release and move.
//!
//! A job is a list of steps. After each step, the VLDB and the volume servers alone tell the state;
//! there is no journal. If a job's client or any server dies between two steps, the next run reads
//! that state and then continues or cleans up. The caller of a job sees each step
//! ([`Watcher::done`]) and may ask it to stop ([`Stop`]). The job then undoes as much as it can,
//! and its error says what is left. Tests end a job after each step, with a watcher that never
//! returns.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::Location;
use crate::error::{Error, Result};

pub use cellar_client::Stop;

/// The future that a watcher returns for a finished step.
pub type Watched<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// A step of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The step, by its name in the job's list of steps.
    pub name: &'static str,
    /// The location, for a step that is done at several.
    pub at: Option<Location>,
}

/// An observer of a job's progress.
pub trait Watcher: Send + Sync {
    /// Reports a finished step. The job starts the next step when the future ends.
    fn done(&self, step: Step) -> Watched<'_> {
        let _ = step;
        Box::pin(std::future::ready(()))
    }

    /// Reports a message for the administrator that does not end the job.
    fn say(&self, line: &str) {
        let _ = line;
    }
}

/// A watcher that ignores everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unwatched;

impl Watcher for Unwatched {}

/// A job under way: its watcher, and its stop flag.
#[derive(Clone, Copy)]
pub struct JobContext<'a> {
    watcher: &'a dyn Watcher,
    stop: &'a Stop,
    /// The idle time after which another client's transaction counts as abandoned.
    pub(super) stillness: Duration,
}

/// Longer than a living job is ever idle: it retries for 6 s to get a busy volume.
const STILLNESS: Duration = Duration::from_secs(10);

impl<'a> JobContext<'a> {
    /// A job watched by `watcher`, which `stop` may end.
    pub fn new(watcher: &'a dyn Watcher, stop: &'a Stop) -> Self {
        Self {
            watcher,
            stop,
            stillness: STILLNESS,
        }
    }

    /// The same job, with another idle time than 10 s before it takes over from a dead job.
    #[must_use]
    pub fn taking_over_after(self, stillness: Duration) -> Self {
        Self { stillness, ..self }
    }

    /// Reports a finished step. Returns an error if the job should stop here.
    pub(super) async fn done(&self, name: &'static str) -> Result<()> {
        self.done_at(name, None).await
    }

    pub(super) async fn done_at(&self, name: &'static str, at: Option<Location>) -> Result<()> {
        self.watcher.done(Step { name, at }).await;
        self.check()
    }

    /// Returns an error if the job should stop.
    pub(super) fn check(&self) -> Result<()> {
        match self.stop.is_asked() {
            true => Err(Error::Interrupted),
            false => Ok(()),
        }
    }

    /// Reports a step after which the job does not stop: the rest is quick and leaves less behind.
    pub(super) async fn passed(&self, name: &'static str, at: Option<Location>) {
        self.watcher.done(Step { name, at }).await;
    }

    pub(super) fn say(&self, line: &str) {
        self.watcher.say(line);
    }

    /// Runs long work, and gives it up if the job should stop.
    pub(super) async fn or_stop<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            () = self.stop.asked() => Err(Error::Interrupted),
            done = work => done,
        }
    }
}
