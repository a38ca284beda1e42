//! VL, the volume location server: which servers have which volumes. Port 7003, service 52.
//!
//! Each procedure is in the file named after it. Reads are answered from `model`, in memory. Writes
//! go through `tables` in a transaction, and are answered when they are durable and visible. Writes
//! need the superuser.

use std::sync::Arc;

use cellar_celldb::CellDb;
use cellar_wire::{AbortCode, vl as wire};
use parking_lot::Mutex;

use crate::answer::{Answer, Kind, Server, serves};
use crate::replica::Replica;
use crate::{Clock, Error, Identity};

mod create_entry;
mod delete_entry;
mod entry;
mod entry_numbers;
mod get_addrs;
mod get_entry;
mod get_new_volume_id;
mod get_stats;
mod limits;
mod list_attributes;
mod list_entry;
mod listings;
mod lock;
mod model;
mod pattern;
mod register_addrs;
mod replace_entry;
mod server;
mod tables;
#[cfg(test)]
mod tests;
mod update_entry;

pub use pattern::{BadPattern, Pattern};

/// The permissions that a cell restricts beyond OpenAFS's defaults.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// Only superusers list entries and see statistics (`-restricted_query admin`). Lookups of
    /// single volumes and servers, which clients need, stay permitted.
    pub restricted_query: bool,
}

/// The volume location server of a cell.
pub struct Vl {
    rules: Rules,
    replica: Replica<model::Locations>,
    clock: Clock,
    counters: get_stats::Counters,
    reserved_ids: Mutex<get_new_volume_id::Reserved>,
    reserved_numbers: Mutex<entry_numbers::ReservedNumbers>,
}

impl Vl {
    /// Loads the location database, which may be empty.
    ///
    /// # Errors
    /// The database cannot be read, or holds rows that do not parse.
    pub fn open(db: Arc<dyn CellDb>, clock: Clock) -> Result<Self, Error> {
        let replica = Replica::open(db, |_| Ok(()))?;
        let counters = get_stats::Counters::new(clock());
        Ok(Self {
            rules: Rules::default(),
            replica,
            clock,
            counters,
            reserved_ids: Mutex::default(),
            reserved_numbers: Mutex::default(),
        })
    }

    /// The same server with other rules.
    #[must_use]
    pub fn with_rules(self, rules: Rules) -> Self {
        Self { rules, ..self }
    }

    /// Executes a procedure for a caller in this process. A procedure that changes data blocks
    /// until the change is durable.
    ///
    /// # Errors
    /// The code that a remote caller would get.
    pub fn ask<P: Answer<Self>>(&self, who: Identity, arguments: P) -> Result<P::Reply, AbortCode> {
        Server::ask(self, who, arguments)
    }

    /// The revision of the last change to the location database.
    pub fn version(&self) -> u64 {
        self.replica.version()
    }

    fn check_administrator(who: Identity) -> Result<(), AbortCode> {
        if who.is_superuser() {
            Ok(())
        } else {
            Err(AbortCode::VL_PERM)
        }
    }
}

impl Server for Vl {
    const DAMAGED: AbortCode = AbortCode::VL_DBBAD;

    serves!(wire);

    fn admit(&self, who: Identity, kind: Kind) -> Result<(), AbortCode> {
        if self.rules.restricted_query && kind == Kind::Listing {
            Self::check_administrator(who)?;
        }
        Ok(())
    }

    fn count(&self, opcode: u32, refused: bool) {
        self.counters.count(opcode, refused);
    }
}
