//! Work on many files at a time, so that small ones do not wait for each other's round trips.

use cellar_client::Stop;
use tokio::task::JoinSet;

use crate::failure::{Failure, Outcome};

/// Files worked on at the same time.
pub(super) const TASKS_MAX: usize = 32;

/// Tasks under way, at most [`TASKS_MAX`]. To be used in a `LocalSet`. When one fails the others are asked to stop,
/// and waited for by [`Tasks::finish`]: a store that is only dropped stays open at its server. Those that are under
/// way when this is dropped are given up.
pub(super) struct Tasks {
    tasks: JoinSet<Outcome>,
    stop: Stop,
}

impl Tasks {
    /// Of work that heeds `stop`, if any does.
    pub(super) fn new(stop: Stop) -> Self {
        Self {
            tasks: JoinSet::new(),
            stop,
        }
    }

    /// Starts one, after waiting for room.
    ///
    /// # Errors
    /// That of one that ended meanwhile.
    pub(super) async fn start(&mut self, task: impl Future<Output = Outcome> + 'static) -> Outcome {
        while self.tasks.len() >= TASKS_MAX {
            self.one().await?;
        }
        self.tasks.spawn_local(task);
        Ok(())
    }

    /// Waits for all, after whatever started them.
    ///
    /// # Errors
    /// That of the starter, or of the first that failed.
    pub(super) async fn finish(mut self, mut outcome: Outcome) -> Outcome {
        if outcome.is_err() {
            self.stop.ask();
        }
        while !self.tasks.is_empty() {
            let one = self.one().await;
            outcome = outcome.and(one);
        }
        outcome
    }

    async fn one(&mut self) -> Outcome {
        let outcome = match self.tasks.join_next().await {
            Some(Ok(outcome)) => outcome,
            Some(Err(error)) => Err(Failure::new(format!("a task broke off: {error}"))),
            None => Ok(()),
        };
        if outcome.is_err() {
            self.stop.ask();
        }
        outcome
    }
}
