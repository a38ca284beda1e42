//! OSDDB: the object storage devices of a cell, its policies and its pins. Port 7003, service 13.
//!
//! 1. Settings (entries, policies, pins) are in the database. Reports of devices (their free space,
//!    their presence) are only in memory, see `device_reports`. They are seconds old at most, and
//!    arrive again after a restart.
//! 2. Each table has a revision that rises with each change. File servers ask for the revisions
//!    every few seconds, and for a table only when its revision has changed.
//! 3. The number of a deleted device or policy is never used again, because objects and volumes
//!    name it.
//! 4. All stored policies compile together. A change after which they would not is refused.
//!
//! Each procedure is in the file named after it, or after the subject that it shares with others.

use std::sync::Arc;
use std::time::Instant;

use cellar_celldb::CellDb;
use cellar_wire::AbortCode;
use cellar_wire::osddb as wire;

use crate::answer::{Answer, Server, serves};
use crate::replica::Replica;
use crate::{Clock, Error, Identity};

mod check;
mod device;
mod device_reports;
mod heartbeat;
mod model;
mod pin;
mod policy;
mod tables;
#[cfg(test)]
mod tests;

pub use device_reports::DEAD_AFTER;

/// The monotonic clock of [`OsdDb`], for durations.
pub type Stopwatch = Arc<dyn Fn() -> Instant + Send + Sync>;

/// The OSD database of a cell.
pub struct OsdDb {
    replica: Replica<model::Model>,
    reports: device_reports::DeviceReports,
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
        let reports = device_reports::DeviceReports::new(stopwatch);
        Ok(Self {
            replica,
            reports,
            clock,
        })
    }

    /// Executes a procedure for a caller in this process. A procedure that changes data blocks
    /// until the change is durable.
    ///
    /// # Errors
    /// The code that a remote caller would get.
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

    serves!(wire);
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
