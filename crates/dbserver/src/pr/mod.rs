//! PR: users, groups, and who is in what. Port 7002, service 73.
//!
//! A handler is in the file named after its procedure, or after what it shares with others. Reads
//! are answered from `model`, in memory; writes go through `tables` in a transaction and are
//! answered when they are durable and visible. `access` says who may do what; who did not say who
//! they are may change nothing, whatever the bits of an entry allow.

use std::sync::Arc;

use cellar_celldb::CellDb;
use cellar_wire::{AbortCode, AfsTime, ViceId};

use crate::answer::{Answer, Server};
use crate::replica::Replica;
use crate::{Clock, Error, Identity};

mod access;
mod bootstrap;
mod change_entry;
mod cps;
mod delete;
mod directory;
mod dump_entry;
mod limits;
mod list_entry;
mod membership;
mod model;
mod names;
mod new_entry;
mod record;
mod service;
mod set_fields_entry;
mod tables;
#[cfg(test)]
mod tests;

pub use directory::Directory;
pub use service::PrService;

/// The protection server of a cell.
pub struct Pr {
    replica: Replica<model::Protection>,
    clock: Clock,
    local_realms: Vec<String>,
}

impl Pr {
    /// Loads the protection database of `cell`; an empty one gets the entries of every cell.
    ///
    /// # Errors
    /// The database cannot be read or written, or holds rows that do not parse.
    pub fn open(db: Arc<dyn CellDb>, clock: Clock, cell: &str) -> Result<Self, Error> {
        let now = clock();
        let replica = Replica::open(db, |transaction| bootstrap::fill(transaction, now))?;
        Ok(Self {
            replica,
            clock,
            local_realms: vec![cell.to_owned()],
        })
    }

    /// Answers a procedure to a caller in this process. Those that change something block until it
    /// is durable.
    ///
    /// # Errors
    /// What a remote caller would be told.
    pub fn ask<P: Answer<Self>>(&self, who: Identity, arguments: P) -> Result<P::Reply, AbortCode> {
        Server::ask(self, who, arguments)
    }

    fn now(&self) -> AfsTime {
        (self.clock)()
    }

    fn check_may_write(who: Identity) -> Result<(), AbortCode> {
        if who == Identity::ANONYMOUS {
            Err(AbortCode::PRPERM)
        } else {
            Ok(())
        }
    }

    /// Entries that every cell has can be neither deleted nor renamed.
    fn check_not_fixed(id: ViceId) -> Result<(), AbortCode> {
        match id {
            ViceId::ADMINISTRATORS | ViceId::ANYUSER | ViceId::AUTHUSER | ViceId::ANONYMOUS => {
                Err(AbortCode::PRPERM)
            }
            _ => Ok(()),
        }
    }

    fn check_owner_or_administrator(
        people: &impl access::People,
        who: Identity,
        record: &record::Record,
    ) -> Result<(), Error> {
        let may =
            access::is_owner(people, who.id(), record)? || access::is_administrator(people, who)?;
        if may {
            Ok(())
        } else {
            Err(AbortCode::PRPERM.into())
        }
    }
}

impl Server for Pr {
    const DAMAGED: AbortCode = AbortCode::PRDBBAD;

    fn count(&self, _: u32, _: bool) {}
}
