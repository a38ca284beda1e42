//! Errors of the engine.

use crate::job::JobId;

/// The reason why a request to the engine failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The caller: no kind has this name.
    #[error("there is no kind of job named {0}")]
    UnknownKind(String),
    /// The caller: a name or the arguments are too long.
    #[error("{what} of a job has {size} bytes, {most} are permitted")]
    TooLong {
        /// The part that is too long.
        what: &'static str,
        /// Its size.
        size: usize,
        /// The limit.
        most: usize,
    },
    /// The user has too many unfinished jobs.
    #[error("{user} has {unfinished} unfinished jobs of kind {kind}, the limit")]
    TooMany {
        /// The user.
        user: String,
        /// The kind.
        kind: String,
        /// The number of unfinished jobs.
        unfinished: usize,
    },
    /// The caller: there is no such job. It may have been removed from the history.
    #[error("there is no job {0}")]
    NoSuchJob(JobId),
    /// The caller: the job is in a state that does not permit the request.
    #[error("job {id} is {state}: {reason}")]
    WrongState {
        /// The job.
        id: JobId,
        /// The state in a word.
        state: &'static str,
        /// The rule.
        reason: &'static str,
    },
    /// The engine has stopped.
    #[error("the job engine has stopped")]
    Stopped,
    /// The machine: the database cannot be read or written. No job starts until the next open.
    #[error(transparent)]
    Database(#[from] cellar_celldb::Error),
    /// The machine: a row of the database does not parse.
    #[error("job {id}: a row of the database does not parse: {reason}")]
    BadRow {
        /// The job.
        id: JobId,
        /// The fault.
        reason: String,
    },
}
