//! Hierarchical storage: the decisions which files are copied to archives and which are wiped, and
//! the queue of recalls.
//!
//! | part | task |
//! | --- | --- |
//! | `census` | examines all files, counts them, and finds candidates for copies and for wiping |
//! | `days` | the statistics by day |
//! | `keeper` | takes a census at intervals, and submits jobs for the candidates |
//! | `kinds` | the kinds of jobs for the job engine (crate `jobs`), and their steps |
//! | `work` | runs the operations of steps on the thread of a shard |
//! | `pins` | files and directories that are not wiped |
//! | `last_uses` | the times at which files were last read |
//! | `replicas` | wipes files of read-only volumes whose RW volume is on another server |
//! | `older` | the older bytes that archives keep for a time: lists, and their end |
//!
//! 1. **Policies decide.** `archives=`, `archive_class=` and `archive_after=` say how many archives
//!    get a copy, which, and when. A file without `archives=` is neither copied nor wiped by
//!    itself.
//! 2. **A census is a view.** Nothing of it is kept over a restart. Steps check a file again before
//!    they change it, so an old candidate is harmless.
//! 3. **One round at a time.** An archive gets further copy jobs when its earlier ones have ended.
//!    A device gets further wipe jobs in the same way. So no file is in two jobs of one kind.
//! 4. **Pins hold.** A pinned file is not wiped, neither by itself nor by a command.
//! 5. **Old files first.** Copies begin with the file whose last change is oldest. Wiping begins
//!    with the largest product of age and size.
//! 6. **Copies are read back for ever.** Verification takes the copies that were not compared for
//!    the longest time. Their records say when that was, so a restart forgets nothing.
//! 7. **An archive that is down delays its own jobs only.** The engine pauses its queue, longer
//!    each time.

mod census;
mod days;
mod keeper;
mod kinds;
mod last_uses;
mod older;
mod pins;
mod replicas;
mod work;

use std::sync::Arc;
use std::time::Duration;

use cellar_celldb::CellDb;
use cellar_jobs::Engine;
use parking_lot::Mutex;

pub use census::{ArchiveCensus, Candidate, Census, DeviceCensus, Tally};
pub(crate) use days::Days;
pub use days::{Day, DeviceUse};
pub use kinds::{COPY, RECALL, VERIFY, WIPE, recalled_file};
pub(crate) use kinds::{recall_of, resource_of};
pub(crate) use last_uses::LastUses;
pub use older::OlderBytes;
pub(crate) use pins::Pins;
pub use pins::{PinAnswer, PinTable};

/// Settings of hierarchical storage on a file server.
#[derive(Clone)]
pub struct HsmConfig {
    /// The database of the jobs. No other server uses it.
    pub jobs: Arc<dyn CellDb>,
    /// The pins of the cell.
    pub pins: Arc<dyn PinTable>,
    /// Time between two censuses. Zero: only on request, and no jobs are submitted by themselves.
    pub interval: Duration,
    /// Bytes per second that copies read, all together; 0: no limit.
    pub copy_rate: u64,
    /// Time after which a copy is read back and compared again. Zero: never.
    pub verify_interval: Duration,
    /// Bytes per second that verification reads from archives, all together; 0: no limit.
    pub verify_rate: u64,
}

impl std::fmt::Debug for HsmConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HsmConfig(every {:?})", self.interval)
    }
}

/// The running parts of hierarchical storage.
pub(crate) struct Hsm {
    /// The statistics by day.
    pub(crate) days: Days,
    /// The pins of the cell.
    pub(crate) pin_table: Arc<dyn PinTable>,
    pub(crate) engine: Engine,
    /// The last census.
    pub(crate) census: Mutex<Arc<Census>>,
    /// Asks for a census now.
    pub(crate) look: tokio::sync::Notify,
}
