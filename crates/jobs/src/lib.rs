//! The job engine: persistent jobs with idempotent steps (design D16).
//!
//! A job is long work that survives a restart: a copy to an archive, a recall, a wipe, a repair, a
//! move. Its [`JobKind`] divides it into steps. The rules of this crate:
//!
//! 1. **An acknowledged job is never lost.** A submission returns when the job is durable.
//! 2. **A step is idempotent.** The engine records each finished step. After a crash, a job runs
//!    its last unfinished step again, also if that step was finished and only its record was lost.
//! 3. **A finished job does not run again.** Its end is durable before it is announced.
//! 4. **The queue is fair.** The n-th job of one user competes only with the n-th jobs of others
//!    (the fetch queue of AFS/OSD). The next job is found in logarithmic time.
//! 5. **Limits are respected**: for the engine, each kind, each resource (an archive, a server) and
//!    each user. A resource that is down delays its own jobs only.
//! 6. **Each item has its own result.** A job over many files can succeed in part.
//! 7. **Time is an argument.** The engine reads the time of day from a [`Clock`].
//!
//! States and transitions are in [`State`].

mod engine;
mod error;
mod job;
mod kind;
pub mod limits;
mod queue;
mod record;
mod store;

pub use engine::{Counts, Engine, Filter, Settings};
pub use error::Error;
pub use job::{Ended, Item, Job, JobId, NewJob, Position, Priority, Progress, State, Time};
pub use kind::{Clock, JobKind, Limits, Next, Retry, StepContext, StepError};
