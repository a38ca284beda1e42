//! Work on many files at a time, so that small ones do not wait for each other's round trips.

use tokio::task::JoinSet;

use crate::failure::{Failure, Outcome};

/// Files worked on at the same time.
pub(super) const TASKS_MAX: usize = 32;

/// Tasks under way, at most [`TASKS_MAX`]. To be used in a `LocalSet`. Those that are under way when
/// it is dropped are given up.
pub(super) struct Tasks(JoinSet<Outcome>);

impl Tasks {
    pub(super) fn new() -> Self {
        Self(JoinSet::new())
    }

    /// Starts one, after waiting for room.
    ///
    /// # Errors
    /// That of one that ended meanwhile.
    pub(super) async fn start(&mut self, task: impl Future<Output = Outcome> + 'static) -> Outcome {
        while self.0.len() >= TASKS_MAX {
            self.one().await?;
        }
        self.0.spawn_local(task);
        Ok(())
    }

    /// Waits for all.
    ///
    /// # Errors
    /// That of the first that failed.
    pub(super) async fn finish(mut self) -> Outcome {
        while !self.0.is_empty() {
            self.one().await?;
        }
        Ok(())
    }

    async fn one(&mut self) -> Outcome {
        match self.0.join_next().await {
            Some(Ok(outcome)) => outcome,
            Some(Err(error)) => Err(Failure::new(format!("a task broke off: {error}"))),
            None => Ok(()),
        }
    }
}
