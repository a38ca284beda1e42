//! A job: its description, its state and its progress.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The number of a job. Numbers rise and are never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub u64);

impl std::fmt::Display for JobId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A time of day: milliseconds since 1970 in UTC.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Time(pub u64);

impl Time {
    /// This time and a duration.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(millis))
    }

    /// The duration from `earlier` to this time; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// The rank of a job before fairness: a job with a higher number starts first. 0 is usual.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Priority(pub i16);

/// A job that is to be submitted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewJob {
    /// The name of its [`crate::JobKind`].
    pub kind: String,
    /// The user on whose behalf it runs. Fairness and limits are by user.
    pub user: String,
    /// The thing that it uses and that has a limit of its own: an archive, a server. May be empty.
    pub resource: String,
    /// Jobs of one resource with the same group are cheaper together: a tape. May be empty.
    pub group: String,
    /// Jobs of a higher priority start first.
    pub priority: Priority,
    /// Arguments, in the kind's own form.
    pub arguments: Value,
    /// A submission with the name of an unfinished job of the same kind returns that job.
    pub unique: Option<String>,
    /// The job does not start before this time.
    pub not_before: Option<Time>,
    /// The job fails if it has not ended at this time.
    pub deadline: Option<Time>,
    /// Bytes and items that the job will process, as far as known.
    pub expected: Progress,
}

/// The state of a job.
///
/// | state | event | next state |
/// | --- | --- | --- |
/// | none | submission | `Queued`, or `Waiting` for its `not_before` |
/// | `Queued` | the engine has room | `Running` |
/// | `Queued`, `Waiting` | cancel, deadline | `Cancelled`, `Failed` (or `Queued`, to clean up) |
/// | `Waiting` | its time comes | `Queued` |
/// | `Running` | a step ends | `Running` with the next step |
/// | `Running` | the last step ends | `Done` |
/// | `Running` | a transient error | `Waiting` with a longer pause each time |
/// | `Running` | the resource is down | `Queued`; the resource waits |
/// | `Running` | permanent error, no attempts left, deadline | `Failed`, or `Queued` to clean up |
/// | `Running` | cancel | `Cancelled` (or `Queued`, to clean up), when the step has stopped |
/// | `Running` | the process restarts | `Queued` with the same step |
/// | `Failed`, `Cancelled` | retry by the user | `Queued` with the first step |
/// | `Done`, `Failed`, `Cancelled` | the history is full or old | removed |
///
/// "To clean up": a kind may name a step that undoes an unfinished job
/// ([`crate::JobKind::cleanup`]). It runs before the job ends, and is retried without limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The job is in the queue.
    Queued,
    /// A step runs.
    Running,
    /// The job pauses until a time.
    Waiting(Time),
    /// All steps are finished.
    Done,
    /// The job ended with an error.
    Failed,
    /// A user ended the job.
    Cancelled,
}

impl State {
    /// Returns whether the job has ended.
    #[must_use]
    pub fn is_ended(self) -> bool {
        self.ended().is_some()
    }

    /// The state in one word, for people.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Waiting(_) => "waiting",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// The end, for a job that has ended.
    #[must_use]
    pub fn ended(self) -> Option<Ended> {
        match self {
            Self::Queued | Self::Running | Self::Waiting(_) => None,
            Self::Done => Some(Ended::Done),
            Self::Failed => Some(Ended::Failed),
            Self::Cancelled => Some(Ended::Cancelled),
        }
    }
}

/// The way in which a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ended {
    /// All steps are finished.
    Done,
    /// With an error.
    Failed,
    /// By a user.
    Cancelled,
}

impl From<Ended> for State {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Done => Self::Done,
            Ended::Failed => Self::Failed,
            Ended::Cancelled => Self::Cancelled,
        }
    }
}

/// Amounts of work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Bytes.
    #[serde(default)]
    pub bytes: u64,
    /// Items (files), whether they succeeded or failed.
    #[serde(default)]
    pub items: u64,
    /// Items that failed.
    #[serde(default)]
    pub failed: u64,
}

/// The result of one item of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// The item: a path or a fid.
    pub name: String,
    /// The error, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The place of a queued job among the jobs of its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// Before all others of the same user.
    First,
    /// After all others of the same user.
    Last,
}

/// A job, as the engine shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Job {
    /// Its number.
    pub id: JobId,
    /// The name of its kind.
    pub kind: String,
    /// Its user.
    pub user: String,
    /// Its resource; may be empty.
    pub resource: String,
    /// Its group; may be empty.
    pub group: String,
    /// Its priority.
    pub priority: Priority,
    /// Its arguments.
    pub arguments: Value,
    /// Its state.
    pub state: State,
    /// The step that runs or will run next.
    pub step: String,
    /// Data of the finished steps, in the kind's own form; at the end the result.
    pub data: Value,
    /// Failed attempts of this step so far.
    pub attempts: u32,
    /// The last error.
    pub error: Option<String>,
    /// Work that is finished.
    pub progress: Progress,
    /// Work that was announced; zero if unknown.
    pub expected: Progress,
    /// The time of the submission.
    pub created: Time,
    /// The time of the first start.
    pub started: Option<Time>,
    /// The time of the end.
    pub ended: Option<Time>,
    /// The time at which the job fails.
    pub deadline: Option<Time>,
    /// A user has cancelled the job, and it has not stopped yet.
    pub cancelling: bool,
}
