//! OSDDB: the object storage devices of a cell, and its policies. Port 7003, service 13.
//!
//! 1. What is set (entries, policies) is in the database; what is heard (how full a device is, whether it
//!    is there) is in memory only, see `heard`: it is of seconds, and after a restart it comes again.
//! 2. Both tables have a revision that rises with each change, so that file servers ask for two numbers
//!    every few seconds and for the tables when they have changed.
//! 3. Numbers of devices and policies are never given a second time, for objects and volumes name them.
//! 4. The policies that are stored always compile together: what would not is refused.
//!
//! A handler is in the file named after its procedure, or the one that shares its subject.

use std::sync::Arc;
use std::time::Instant;

use cellar_celldb::CellDb;
use cellar_wire::osddb as wire;
use cellar_wire::{AbortCode, AfsTime, Procedure};

use crate::answer::{Answer, Server};
use crate::replica::Replica;
use crate::{Clock, Error, Identity};

mod check;
mod device;
mod heard;
mod heartbeat;
mod model;
mod policy;
mod service;
mod tables;
#[cfg(test)]
mod tests;

pub use heard::DEAD_AFTER;
pub use service::OsdDbService;

/// Where [`OsdDb`] takes times from that are measured, not shown.
pub type Stopwatch = Arc<dyn Fn() -> Instant + Send + Sync>;

/// The OSD database of a cell.
pub struct OsdDb {
    replica: Replica<model::Model>,
    heard: heard::Heard,
    clock: Clock,
}

impl OsdDb {
    /// Loads the database; an empty one gets the entry of the file servers' own disks.
    ///
    /// # Errors
    /// The database cannot be read or written, or holds rows that do not parse.
    pub fn open(db: Arc<dyn CellDb>, clock: Clock) -> Result<Self, Error> {
        Self::open_with(db, clock, Arc::new(Instant::now))
    }

    /// As [`OsdDb::open`], with another stopwatch for tests.
    ///
    /// # Errors
    /// As [`OsdDb::open`].
    pub fn open_with(
        db: Arc<dyn CellDb>,
        clock: Clock,
        stopwatch: Stopwatch,
    ) -> Result<Self, Error> {
        let replica = Replica::open(db, |transaction| {
            tables::Tables(transaction).prepare().map_err(Error::from)
        })?;
        let heard = heard::Heard::new(stopwatch);
        Ok(Self {
            replica,
            heard,
            clock,
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

    fn check_superuser(who: Identity) -> Result<(), AbortCode> {
        match who.is_superuser() {
            true => Ok(()),
            false => Err(AbortCode::EACCES),
        }
    }
}

impl Server for OsdDb {
    const DAMAGED: AbortCode = AbortCode::EIO;

    fn is_administrative(opcode: u32) -> bool {
        matches!(
            opcode,
            wire::CreateOsd::OPCODE
                | wire::SetOsd::OPCODE
                | wire::SetPolicy::OPCODE
                | wire::DeletePolicy::OPCODE
        )
    }

    fn now(&self) -> AfsTime {
        (self.clock)()
    }
}

impl Answer<OsdDb> for wire::GetRevisions {
    const BLOCKS: bool = false;

    fn answer(self, osddb: &OsdDb, _: Identity) -> Result<wire::GetRevisionsReply, Error> {
        let model = osddb.replica.read();
        Ok(wire::GetRevisionsReply {
            devices: model.revisions.devices,
            policies: model.revisions.policies,
        })
    }
}
