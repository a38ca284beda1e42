//! Operations that take long and go on where they stopped: release and move.
//!
//! A job is a list of steps. After each the state is one that the VLDB and the volume servers tell by
//! themselves: there is no journal. So a job whose client, or any server, died between two steps is
//! taken up by the next run, which reads that state first and then goes on or cleans up. Whoever runs a
//! job sees every step ([`Watcher::done`]) and may ask it to stop ([`Stop`]); it then undoes what it can
//! and says what is left. Tests end a job after every step, by never answering.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::Location;
use crate::error::{Error, Result};

pub use cellar_client::Stop;

/// What a watcher answers when a step is done.
pub type Watched<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// A step of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What was done, in the words of the job's own list of steps.
    pub name: &'static str,
    /// Where, if it was done at one of several places.
    pub at: Option<Location>,
}

/// Somebody who wants to know how a job gets on.
pub trait Watcher: Send + Sync {
    /// A step is done, and the next is not begun before this is answered.
    fn done(&self, step: Step) -> Watched<'_> {
        let _ = step;
        Box::pin(std::future::ready(()))
    }

    /// Something that the administrator should know, which ends nothing.
    fn say(&self, line: &str) {
        let _ = line;
    }
}

/// Nobody watches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unwatched;

impl Watcher for Unwatched {}

/// A job under way: who watches it, and who may stop it.
#[derive(Clone, Copy)]
pub struct Course<'a> {
    watcher: &'a dyn Watcher,
    stop: &'a Stop,
    /// How long a transaction of somebody else may be still before it counts as abandoned.
    pub(super) stillness: Duration,
}

/// Longer than a living job is ever silent: it asks for a busy volume again for 6 s.
const STILLNESS: Duration = Duration::from_secs(10);

impl<'a> Course<'a> {
    /// A job watched by `watcher`, which `stop` may end.
    pub fn new(watcher: &'a dyn Watcher, stop: &'a Stop) -> Self {
        Self {
            watcher,
            stop,
            stillness: STILLNESS,
        }
    }

    /// The same, taking over from a dead job sooner or later than after the usual 10 s.
    #[must_use]
    pub fn taking_over_after(self, stillness: Duration) -> Self {
        Self { stillness, ..self }
    }

    /// A step is done. An error when the job is to stop here.
    pub(super) async fn done(&self, name: &'static str) -> Result<()> {
        self.done_at(name, None).await
    }

    pub(super) async fn done_at(&self, name: &'static str, at: Option<Location>) -> Result<()> {
        self.watcher.done(Step { name, at }).await;
        self.check()
    }

    /// An error when the job is to stop.
    pub(super) fn check(&self) -> Result<()> {
        match self.stop.is_asked() {
            true => Err(Error::Interrupted),
            false => Ok(()),
        }
    }

    /// A step after which it makes no sense to stop: what follows is quick and leaves less behind.
    pub(super) async fn passed(&self, name: &'static str, at: Option<Location>) {
        self.watcher.done(Step { name, at }).await;
    }

    pub(super) fn say(&self, line: &str) {
        self.watcher.say(line);
    }

    /// Work that takes long, given up when the job is to stop.
    pub(super) async fn or_stop<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            () = self.stop.asked() => Err(Error::Interrupted),
            done = work => done,
        }
    }
}
