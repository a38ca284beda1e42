//! VL: which servers have which volumes. Port 7003, service 52.
//!
//! A handler is in the file named after its procedure. Reads are answered from `model`, in
//! memory; writes go through `tables` in a transaction and are answered when they are durable and
//! visible. Writes need the superuser.

use std::sync::Arc;

use cellar_celldb::CellDb;
use cellar_wire::{AbortCode, AfsTime, Procedure, vl as wire};
use parking_lot::Mutex;

use crate::answer::{Answer, Server};
use crate::replica::Replica;
use crate::{Clock, Error, Identity};

mod create_entry;
mod delete_entry;
mod entry;
mod get_addrs;
mod get_entry;
mod get_new_volume_id;
mod get_stats;
mod limits;
mod list_attributes;
mod list_entry;
mod lock;
mod model;
mod pattern;
mod register_addrs;
mod replace_entry;
mod server;
mod service;
mod tables;
#[cfg(test)]
mod tests;
mod update_entry;

pub use pattern::{BadPattern, Pattern};
pub use service::VlService;

/// What a cell allows less than OpenAFS's server does by default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// Only superusers list entries and see statistics (`-restricted_query admin`); lookups of
    /// single volumes and servers, which clients need, stay open.
    pub restricted_query: bool,
}

/// Procedures that `restricted_query` is about.
const LISTINGS: [u32; 9] = [
    wire::GetLock::OPCODE,
    wire::ListEntry::OPCODE,
    wire::ListEntryN::OPCODE,
    wire::ListAttributes::OPCODE,
    wire::ListAttributesN::OPCODE,
    wire::ListAttributesN2::OPCODE,
    wire::LinkedList::OPCODE,
    wire::LinkedListN::OPCODE,
    wire::GetStats::OPCODE,
];

/// The volume location server of a cell.
pub struct Vl {
    rules: Rules,
    replica: Replica<model::Locations>,
    clock: Clock,
    counters: get_stats::Counters,
    reserved_ids: Mutex<get_new_volume_id::Reserved>,
}

impl Vl {
    /// Loads the location database; an empty one needs nothing.
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
        })
    }

    /// The same server with other rules.
    #[must_use]
    pub fn with_rules(self, rules: Rules) -> Self {
        Self { rules, ..self }
    }

    /// Answers a procedure to a caller in this process. Those that change something block until it
    /// is durable.
    ///
    /// # Errors
    /// What a remote caller would be told.
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

    fn is_administrative(opcode: u32) -> bool {
        matches!(
            opcode,
            wire::CreateEntry::OPCODE
                | wire::CreateEntryN::OPCODE
                | wire::DeleteEntry::OPCODE
                | wire::ReplaceEntry::OPCODE
                | wire::ReplaceEntryN::OPCODE
                | wire::UpdateEntry::OPCODE
                | wire::UpdateEntryByName::OPCODE
                | wire::SetLock::OPCODE
                | wire::LockNoted::OPCODE
                | wire::ReleaseLock::OPCODE
                | wire::GetNewVolumeId::OPCODE
                | wire::RegisterAddrs::OPCODE
                | wire::ChangeAddr::OPCODE
        )
    }

    fn now(&self) -> AfsTime {
        (self.clock)()
    }

    fn admit(&self, who: Identity, opcode: u32) -> Result<(), AbortCode> {
        if self.rules.restricted_query && LISTINGS.contains(&opcode) {
            Self::check_administrator(who)?;
        }
        Ok(())
    }

    fn count(&self, opcode: u32, refused: bool) {
        self.counters.count(opcode, refused);
    }
}
