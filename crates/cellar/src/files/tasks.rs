//! Work on many files at the same time, so that small files do not wait for each other's round
//! trips.

use cellar_client::Stop;
use tokio::task::JoinSet;

use crate::failure::{Failure, Outcome};

/// Number of files in work at the same time.
pub(super) const TASKS_MAX: usize = 32;

/// Tasks under way, at most [`TASKS_MAX`]. Must be used in a `LocalSet`.
///
/// When one task fails, the others are asked to stop, and [`Tasks::finish`] waits for them, because
/// a dropped store would stay open at its server. Dropping this value aborts the tasks under way.
pub(super) struct Tasks {
    tasks: JoinSet<Outcome>,
    stop: Stop,
}

impl Tasks {
    /// Tasks of a work that may obey `stop`.
    pub(super) fn new(stop: Stop) -> Self {
        Self {
            tasks: JoinSet::new(),
            stop,
        }
    }

    /// Starts a task. Waits first until fewer than [`TASKS_MAX`] are under way.
    ///
    /// # Errors
    /// The error of a task that ended meanwhile.
    pub(super) async fn start(&mut self, task: impl Future<Output = Outcome> + 'static) -> Outcome {
        while self.tasks.len() >= TASKS_MAX {
            self.one().await?;
        }
        self.tasks.spawn_local(task);
        Ok(())
    }

    /// Waits for all tasks, after the code that started them has ended with `outcome`.
    ///
    /// # Errors
    /// The error in `outcome`, otherwise that of the first task that failed.
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
