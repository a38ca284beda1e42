//! Delete: removes a user or group, and all references to it.
//!
//! Its memberships end, groups that it owned lose their owner, and the creator of a group may
//! create another one. All this is one transaction.

use cellar_auth::audit::Details;
use cellar_auth::audit_details;
use cellar_wire::pr::{Delete, DeleteReply, PRQUOTA};
use cellar_wire::{AbortCode, ViceId};

use super::Pr;
use super::access::is_administrator;
use super::limits::GROUP_QUOTA;
use super::record::Record;
use super::tables::Tables;
use crate::{Answer, Error, Identity, Kind};

impl Answer<Pr> for Delete {
    const BLOCKS: bool = true;
    const KIND: Kind = Kind::Change;

    fn details(&self) -> Details {
        audit_details!(self: id)
    }

    fn answer(self, pr: &Pr, who: Identity) -> Result<DeleteReply, Error> {
        Pr::check_not_fixed(self.id)?;
        pr.replica.write(|transaction| {
            let mut tables = Tables(transaction);
            let record = tables.find(self.id)?;
            Pr::check_owner_or_administrator(&tables, who, &record)?;
            delete(&mut tables, &record)
        })?;
        Ok(DeleteReply {})
    }
}

fn delete(tables: &mut Tables<'_, '_>, record: &Record) -> Result<(), Error> {
    if record.is_foreign() {
        if record.is_group() {
            if tables.has_members(record.id)? {
                return Err(AbortCode::PRBADARG.into());
            }
        } else {
            give_back(tables, record.cell_group, i32::MAX)?;
        }
    }
    for group in tables.groups(record.id)? {
        tables.remove_member(group, record.id)?;
    }
    for member in tables.members(record.id)? {
        tables.remove_member(record.id, member)?;
    }
    for owned in tables
        .owned(record.id)?
        .into_iter()
        .filter(|owned| *owned != record.id)
    {
        let old = tables.find(owned)?;
        tables.replace(
            &old,
            &Record {
                owner: ViceId(0),
                ..old.clone()
            },
        )?;
    }
    if record.is_group() && record.creator != record.id {
        let is_admin = is_administrator(tables, Identity::User(record.creator))?;
        // The quota of administrators was not reduced.
        give_back(
            tables,
            record.creator,
            if is_admin { GROUP_QUOTA } else { i32::MAX },
        )?;
    }
    tables.remove(record);
    Ok(())
}

/// Adds one to a quota that is below `limit`.
fn give_back(tables: &mut Tables<'_, '_>, id: ViceId, limit: i32) -> Result<(), Error> {
    if let Some(mut record) = tables.get(id)?
        && record.flags & PRQUOTA != 0
        && record.ngroups < limit
    {
        record.ngroups = record.ngroups.saturating_add(1);
        tables.put(&record);
    }
    Ok(())
}
