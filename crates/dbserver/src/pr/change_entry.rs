//! ChangeEntry, UpdateEntry: a new name, owner or id.
//!
//! A group is named after its owner. If the owner changes, the name follows, and a new name must
//! fit the owner. If an owner is renamed, its groups keep their names until they are changed.

use cellar_auth::audit::Details;
use cellar_auth::audit_details;
use cellar_wire::pr::{
    ChangeEntry, ChangeEntryReply, PRUPDATE_IDHASH, PRUPDATE_NAMEHASH, PrName, UpdateEntry,
    UpdateEntryReply,
};
use cellar_wire::{AbortCode, ViceId};

use super::Pr;
use super::access::is_administrator;
use super::new_entry::group_name;
use super::record::{Record, cell_part, check_user_name, fold, is_valid_id};
use super::tables::{MAX_USER, Tables};
use crate::answer::Server;
use crate::{Answer, Error, Identity, Kind};

impl Answer<Pr> for ChangeEntry {
    const BLOCKS: bool = true;
    const KIND: Kind = Kind::Change;

    fn details(&self) -> Details {
        audit_details!(self: id, name, owner, newid)
    }

    fn answer(self, pr: &Pr, who: Identity) -> Result<ChangeEntryReply, Error> {
        Pr::check_not_fixed(self.id)?;
        let now = pr.now();
        pr.replica.write(|transaction| {
            let mut tables = Tables(transaction);
            let mut record = tables.find(self.id)?;
            Pr::check_owner_or_administrator(&tables, who, &record)?;
            let is_admin = is_administrator(&tables, who)?;
            record.changed = now;
            if self.newid.0 != 0 && self.newid != self.id {
                if !is_admin {
                    return Err(AbortCode::PRPERM.into());
                }
                record = change_id(&mut tables, record, self.newid)?;
            }
            let mut new = record.clone();
            let name = match self.name.is_empty() {
                true => None,
                false => Some(fold(&self.name)?),
            };
            let change = Change {
                who,
                is_admin,
                name: name.as_ref(),
                owner: self.owner,
            };
            change.apply(&tables, &record, &mut new)?;
            tables.replace(&record, &new)
        })?;
        Ok(ChangeEntryReply {})
    }
}

/// The changes besides the id.
struct Change<'a> {
    who: Identity,
    is_admin: bool,
    name: Option<&'a PrName>,
    owner: ViceId,
}

impl Change<'_> {
    fn apply(&self, tables: &Tables<'_, '_>, old: &Record, new: &mut Record) -> Result<(), Error> {
        let is_new_owner = self.owner.0 != 0 && self.owner != old.owner;
        if is_new_owner {
            if !old.is_group() || old.is_foreign() {
                return Err(AbortCode::PRPERM.into());
            }
            tables.find(self.owner)?;
            new.owner = self.owner;
        }
        match self.name.filter(|name| **name != old.name) {
            Some(name) if old.is_group() => {
                self.check_may_rename(old)?;
                self.adopt(new);
                if group_name(tables, name, new.owner, self.is_admin)? != *name {
                    return Err(AbortCode::PRBADNAM.into());
                }
                new.name = name.clone();
            }
            Some(name) => {
                if cell_part(name) != cell_part(&old.name) {
                    return Err(AbortCode::PRPERM.into());
                }
                check_user_name(name)?;
                new.name = name.clone();
            }
            None if is_new_owner => {
                self.adopt(new);
                new.name = group_name(tables, &old.name, new.owner, self.is_admin)?;
            }
            None => {}
        }
        Ok(())
    }

    fn check_may_rename(&self, old: &Record) -> Result<(), Error> {
        if old.is_foreign() {
            Err(AbortCode::PRPERM.into())
        } else {
            Ok(())
        }
    }

    /// A group without an owner gets the caller as its owner.
    fn adopt(&self, new: &mut Record) {
        if matches!(new.owner, ViceId(0) | ViceId::ANONYMOUS) {
            new.owner = self.who.id();
        }
    }
}

/// Moves a record to another id of the same sign, with everything that refers to it.
fn change_id(tables: &mut Tables<'_, '_>, old: Record, id: ViceId) -> Result<Record, Error> {
    if tables.get(id)?.is_some() {
        return Err(AbortCode::PRIDEXIST.into());
    }
    if id.is_group() != old.id.is_group() {
        return Err(AbortCode::PRPERM.into());
    }
    if !is_valid_id(id) {
        return Err(AbortCode::PRBADARG.into());
    }
    let (groups, members) = (tables.groups(old.id)?, tables.members(old.id)?);
    let owned = tables.owned(old.id)?;
    for group in &groups {
        tables.remove_member(*group, old.id)?;
    }
    for member in &members {
        tables.remove_member(old.id, *member)?;
    }
    tables.remove(&old);
    let owner = if old.owner == old.id { id } else { old.owner };
    let new = Record {
        id,
        owner,
        ..old.clone()
    };
    tables.insert(&new)?;
    for group in groups {
        tables.add_member(group, id)?;
    }
    for member in members {
        tables.add_member(id, member)?;
        if let Some(mut record) = tables.get(member)?
            && record.cell_group == old.id
        {
            record.cell_group = id;
            tables.put(&record);
        }
    }
    for group in owned.into_iter().filter(|group| *group != old.id) {
        let record = tables.find(group)?;
        tables.replace(
            &record,
            &Record {
                owner: id,
                ..record.clone()
            },
        )?;
    }
    if id.0 > tables.max(MAX_USER)? {
        tables.choose_max(MAX_USER, id.0)?;
    }
    Ok(new)
}

/// In OpenAFS's server, this call only rebuilds the hash chains of one entry. Here it does the same
/// for the index of names, which is the only index.
impl Answer<Pr> for UpdateEntry {
    const BLOCKS: bool = true;
    const KIND: Kind = Kind::Change;

    fn details(&self) -> Details {
        let update = &self.update;
        let mut details = audit_details!(self: id, name);
        details.extend(audit_details!(update: mask, flags, owner, creator, ngroups, nusers));
        details
    }

    fn answer(self, pr: &Pr, who: Identity) -> Result<UpdateEntryReply, Error> {
        if self.id.0 != 0 {
            Pr::check_not_fixed(self.id)?;
        }
        pr.replica.write(|transaction| {
            let mut tables = Tables(transaction);
            if !is_administrator(&tables, who)? {
                return Err(AbortCode::PRPERM.into());
            }
            let id = match self.id {
                ViceId(0) => tables
                    .id_of(&fold(&self.name)?)?
                    .ok_or(AbortCode::PRNOENT)?,
                id => id,
            };
            let record = tables.find(id)?;
            if self.update.mask & (PRUPDATE_NAMEHASH | PRUPDATE_IDHASH) != 0 {
                tables.put_name(&record);
            }
            Ok(())
        })?;
        Ok(UpdateEntryReply {})
    }
}
