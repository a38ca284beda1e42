//! The contents of a new protection database.

use cellar_celldb::Transaction;
use cellar_wire::ViceId;
use cellar_wire::pr::{PRGRP, PRQUOTA, PrName};

use super::limits::GROUP_QUOTA;
use super::record::Record;
use super::tables::{MAX_GROUP, MAX_USER, Tables};
use crate::{Error, error};
use cellar_wire::AfsTime;

/// The entries of a new cell, all owned and created by system:administrators. The first new user
/// gets the id 1, the first new group -206.
const FIRST: [(ViceId, &str); 6] = [
    (ViceId::ADMINISTRATORS, "system:administrators"),
    (ViceId::BACKUP, "system:backup"),
    (ViceId::ANYUSER, "system:anyuser"),
    (ViceId::AUTHUSER, "system:authuser"),
    (ViceId::PTSVIEWERS, "system:ptsviewers"),
    (ViceId::ANONYMOUS, "anonymous"),
];

/// Fills an empty database, and leaves any other unchanged.
pub(crate) fn fill(transaction: &mut Transaction<'_>, now: AfsTime) -> Result<(), Error> {
    let mut tables = Tables(transaction);
    if tables.get(ViceId::ANONYMOUS)?.is_some() {
        return Ok(());
    }
    for (id, name) in FIRST {
        let quota = if id.is_group() { 0 } else { GROUP_QUOTA };
        tables.insert(&Record {
            flags: if id.is_group() { PRGRP } else { PRQUOTA },
            id,
            cell_group: ViceId(0),
            owner: ViceId::ADMINISTRATORS,
            creator: ViceId::ADMINISTRATORS,
            ngroups: quota,
            nusers: quota,
            created: now,
            changed: now,
            name: PrName::new(name.as_bytes()).map_err(error::too_long)?,
        })?;
    }
    tables.set_max(MAX_USER, 0);
    tables.set_max(MAX_GROUP, ViceId::BACKUP.0);
    Ok(())
}
