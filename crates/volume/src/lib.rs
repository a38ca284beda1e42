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

mod attributes;
mod block_map;
mod blocks;
mod body;
mod check;
mod clock;
mod core;
mod create;
mod dir;
pub mod disk;
mod engine;
mod error;
mod frozen;
mod history;
mod hold;
mod layout;
mod make;
mod memory;
pub mod objects;
mod options;
mod partition;
mod pending_changes;
mod pieces;
mod promote;
mod reap;
mod record;
mod references;
mod remove;
mod rename;
mod replace;
mod reserve;
mod restore;
mod scrub;
mod snapshot;
mod store;
mod ticket;
mod traffic;
mod txn;
mod types;
mod usage;
mod versions;
mod vnode_slots;
mod volume;

pub use body::Reader;
pub use cellar_wire::acl::AccessList;
pub use check::CheckReport;
pub use engine::{Opening, StoreId};
pub use error::{Error, Result};
pub use frozen::{Body, Content, Frozen, Listed, Part, Since, Vnodes};
pub use layout::LayoutChange;
pub use make::{MadeVnodes, Make, VnodeContents};
pub use options::{Durability, Options};
pub use partition::{Counters, Partition};
pub use references::{Holder, Referenced};
pub use replace::Replaced;
pub use reserve::Reservation;
pub use restore::Restore;
pub use scrub::{Damage, RefillSource, Refilled, ScrubProgress, ScrubReport};
pub use store::Store;
pub use ticket::{Ticket, nonblocking};
pub use types::*;
pub use volume::Volume;
