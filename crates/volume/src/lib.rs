//! The volume store: versioned vnodes, directories, file contents and clones.
//!
//! A [`Partition`] is a directory of volumes, accessed through a [`disk::Disk`]. A [`Volume`] is
//! one of its volumes, found by its id. Every operation is synchronous: it changes memory, passes
//! the change to the partition's journal and returns a [`Ticket`], which resolves when the change
//! is durable.
//!
//! Reads of status, names and data that are in memory need no disk access. Inside [`nonblocking`],
//! an operation that would need the disk returns [`Error::WouldBlock`] instead. So a thread that
//! serves many clients passes only cache misses to threads that may wait.
//!
//! There is no salvager and no scan. Opening a partition costs the replay of its journal; opening a
//! volume costs one lookup. `docs/format/volume.md` describes the format, and argues why a crash at
//! any write leaves every operation either done or not done.
//!
//! Lock order, outermost first: vnodes (ascending number, directories before files), the volume's
//! counters, the space map, the journal queue, the memory table.

mod background;
mod body;
mod clock;
mod dir;
pub mod disk;
mod engine;
mod error;
pub mod objects;
mod operations;
mod options;
mod partition;
mod pieces;
mod record;
mod state;
mod types;
mod versions;
mod volume;

pub use background::archivable::{ArchivableFile, ReplicaFile};
pub use background::check::CheckReport;
pub use background::references::{Holder, Referenced};
pub use background::scrub::{Damage, RefillSource, Refilled, ScrubProgress, ScrubReport};
pub use body::Reader;
pub use cellar_wire::acl::AccessList;
pub use engine::{Opening, StoreId};
pub use error::{Error, Result};
pub use operations::archive::{ArchiveState, WipedFile};
pub use operations::frozen::{Body, Content, Frozen, Listed, Part, Since, Vnodes};
pub use operations::layout::LayoutChange;
pub use operations::make::{MadeVnodes, Make, VnodeContents};
pub use operations::pushed::PushedBytes;
pub use operations::replace::Replaced;
pub use operations::restore::Restore;
pub use operations::retired::{Expired, RetiredPlace};
pub use operations::store::{Store, StoreOutcome};
pub use options::{Durability, Options};
pub use partition::{Counters, Partition};
pub use state::reserve::Reservation;
pub use state::retired_count::RETIRED_MAX;
pub use state::ticket::{Ticket, nonblocking};
pub use types::*;
pub use volume::Volume;
