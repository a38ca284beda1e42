//! NewEntry, INewEntry: creation of users and groups.
//!
//! A group is named after its owner, `owner:group`; only administrators create others. A user of
//! another cell, `name@cell`, needs the group `system:authuser@cell`. The user's id is made from
//! the group's id, and the user is a member of the group. Such a user may register itself; aklog
//! does that.

use cellar_auth::audit::Details;
use cellar_auth::audit_details;
use cellar_wire::pr::{
    INewEntry, INewEntryReply, NewEntry, NewEntryReply, PRFOREIGN, PRGRP, PRQUOTA, PrName,
};
use cellar_wire::{AbortCode, AfsTime, ViceId};

use super::Pr;
use super::access::is_administrator;
use super::limits::{FOREIGN_QUOTA, FOREIGN_USERS_MAX, GROUP_QUOTA};
use super::record::{AUTHUSER_GROUP, Record, cell_part, check_group_name, check_user_name, fold};
use super::reserved_ids::IdSource;
use super::tables::{MAX_GROUP, MAX_USER, Tables};
use crate::answer::Server;
use crate::error::too_long;
use crate::{Answer, Error, Identity, Kind, Origin};

impl Answer<Pr> for NewEntry {
    const BLOCKS: bool = true;
    const KIND: Kind = Kind::Change;

    fn details(&self) -> Details {
        audit_details!(self: name, flag, owner)
    }

    fn answer(self, pr: &Pr, who: Identity) -> Result<NewEntryReply, Error> {
        let id = pr.create(&New::from_call(&self, who, pr.now()))?;
        Ok(NewEntryReply { id })
    }

    /// A user of another cell who registers itself is permitted if the group of that cell exists.
    fn answer_call(self, pr: &Pr, who: Identity, origin: &Origin) -> Result<NewEntryReply, Error> {
        if !registers_its_caller(&self, origin) {
            return self.answer(pr, who);
        }
        if self.owner.0 != 0 || self.flag != 0 {
            return Err(AbortCode::PRPERM.into());
        }
        let id = pr.create(&New {
            registers_itself: true,
            ..New::from_call(&self, who, pr.now())
        })?;
        Ok(NewEntryReply { id })
    }

    /// The caller has no entry yet, so it is not admitted by its own name.
    fn acts_as(&self, who: Identity, origin: &Origin) -> Identity {
        match registers_its_caller(self, origin) {
            true => Identity::User(who.id()),
            false => who,
        }
    }
}

/// Whether the caller asks for an entry with its own proved name, of another cell.
fn registers_its_caller(asked: &NewEntry, origin: &Origin) -> bool {
    let name = origin.foreign_name();
    name.is_some_and(|name| asked.name.eq_ignore_ascii_case(name.as_bytes()))
}

impl Pr {
    fn create(&self, new: &New<'_>) -> Result<ViceId, Error> {
        let mut source = self.reserved_ids.source(new.flag & PRGRP != 0);
        let created = self.replica.write(|transaction| {
            source.begin_run();
            new.create(&mut Tables(transaction), NewId::Next(&mut source))
        });
        source.end(created.is_ok());
        created
    }
}

impl Answer<Pr> for INewEntry {
    const BLOCKS: bool = true;
    const KIND: Kind = Kind::Change;

    fn details(&self) -> Details {
        audit_details!(self: name, id, owner)
    }

    fn answer(self, pr: &Pr, who: Identity) -> Result<INewEntryReply, Error> {
        let now = pr.now();
        if self.id.0 == 0 {
            return Err(AbortCode::PRPERM.into());
        }
        let flag = if self.id.is_group() { PRGRP } else { 0 };
        pr.replica.write(|transaction| {
            let mut tables = Tables(transaction);
            let is_next = self.id.0 == tables.max(MAX_GROUP)?.wrapping_sub(1);
            if self.id.is_group() && !is_next && !is_administrator(&tables, who)? {
                return Err(AbortCode::PRPERM.into());
            }
            if tables.get(self.id)?.is_some() {
                return Err(AbortCode::PRIDEXIST.into());
            }
            let new = New {
                who,
                name: &self.name,
                flag,
                owner: self.owner,
                now,
                registers_itself: false,
            };
            new.create(&mut tables, NewId::Given(self.id))
        })?;
        Ok(INewEntryReply {})
    }
}

/// The id of an entry to create.
enum NewId<'s, 'a> {
    /// The call names it.
    Given(ViceId),
    /// The next one.
    Next(&'s mut IdSource<'a>),
}

/// An entry to create.
struct New<'a> {
    who: Identity,
    name: &'a [u8],
    flag: u32,
    owner: ViceId,
    now: AfsTime,
    /// The caller has proved the name of the new entry, and comes from another cell.
    registers_itself: bool,
}

impl<'a> New<'a> {
    fn from_call(asked: &'a NewEntry, who: Identity, now: AfsTime) -> Self {
        New {
            who,
            name: &asked.name,
            flag: asked.flag as u32,
            owner: asked.owner,
            now,
            registers_itself: false,
        }
    }

    /// Creates the entry.
    fn create(&self, tables: &mut Tables<'_, '_>, id: NewId<'_, '_>) -> Result<ViceId, Error> {
        let is_admin = is_administrator(tables, self.who)?;
        let is_group = self.flag & PRGRP != 0;
        let may = if self.flag & PRFOREIGN != 0 {
            false
        } else if is_group {
            self.who != Identity::ANONYMOUS
        } else {
            self.registers_itself || (is_admin && self.owner != ViceId::ANONYMOUS)
        };
        if !may {
            return Err(AbortCode::PRPERM.into());
        }
        let name = fold(self.name)?;
        let owner = match self.owner {
            ViceId(0) | ViceId::ANONYMOUS => self.who.id(),
            owner => owner,
        };
        if is_group {
            if group_name(tables, &name, owner, is_admin)? != name {
                return Err(AbortCode::PRBADNAM.into());
            }
        } else {
            check_user_name(&name)?;
        }
        if tables.id_of(&name)?.is_some() {
            return Err(AbortCode::PREXIST.into());
        }
        if self.flag & !PRGRP != 0 {
            return Err(AbortCode::PRBADARG.into());
        }
        if is_group {
            self.create_group(tables, name, id, owner, is_admin)
        } else {
            self.create_user(tables, name, id)
        }
    }

    fn record(&self, name: PrName, id: ViceId, owner: ViceId) -> Record {
        let creator = self.who.id();
        Record {
            flags: self.flag,
            id,
            cell_group: ViceId(0),
            owner,
            creator,
            ngroups: 0,
            nusers: 0,
            created: self.now,
            changed: self.now,
            name,
        }
    }

    fn create_group(
        &self,
        tables: &mut Tables<'_, '_>,
        name: PrName,
        id: NewId<'_, '_>,
        owner: ViceId,
        is_admin: bool,
    ) -> Result<ViceId, Error> {
        if let Some(cell) = cell_part(&name)
            && name[..name.len() - cell.len()] != *AUTHUSER_GROUP
        {
            return Err(AbortCode::PRBADNAM.into());
        }
        charge(tables, self.who.id(), is_admin)?;
        let id = match id {
            NewId::Given(id) => {
                if id.0 < tables.max(MAX_GROUP)? {
                    tables.choose_max(MAX_GROUP, id.0)?;
                }
                id
            }
            NewId::Next(source) => source.next(tables)?,
        };
        tables.insert(&self.record(name, id, owner))?;
        // An administrator may name the new group itself as owner, but no other id that does not
        // exist.
        tables.find(owner)?;
        Ok(id)
    }

    fn create_user(
        &self,
        tables: &mut Tables<'_, '_>,
        name: PrName,
        id: NewId<'_, '_>,
    ) -> Result<ViceId, Error> {
        let quotas = |record| Record {
            flags: PRQUOTA,
            ngroups: GROUP_QUOTA,
            nusers: GROUP_QUOTA,
            ..record
        };
        if let Some(cell) = cell_part(&name) {
            let group = PrName::new(&[AUTHUSER_GROUP, cell].concat()).map_err(too_long)?;
            let group = tables.id_of(&group)?.ok_or(AbortCode::PRBADNAM)?;
            let asked = match id {
                NewId::Given(id) => Some(id),
                NewId::Next(_) => None,
            };
            let id = foreign_id(tables, group, asked)?;
            let record = self.record(name, id, ViceId::ADMINISTRATORS);
            tables.insert(&Record {
                cell_group: group,
                ..record
            })?;
            tables.add_member(group, id)?;
            return Ok(id);
        }
        let id = match id {
            NewId::Given(id) => {
                if id.0 > tables.max(MAX_USER)? {
                    tables.choose_max(MAX_USER, id.0)?;
                }
                id
            }
            NewId::Next(source) => source.next(tables)?,
        };
        tables.insert(&quotas(self.record(name, id, ViceId::ADMINISTRATORS)))?;
        Ok(id)
    }
}

/// Takes one from the creator's quota of groups; administrators have no quota.
fn charge(tables: &mut Tables<'_, '_>, creator: ViceId, is_admin: bool) -> Result<(), Error> {
    let Some(mut record) = tables.get(creator)? else {
        return Ok(());
    };
    if record.flags & PRQUOTA == 0 {
        record.flags |= PRQUOTA;
        record.ngroups = GROUP_QUOTA;
        record.nusers = GROUP_QUOTA;
    }
    if !is_admin {
        if record.ngroups <= 0 {
            return Err(AbortCode::PRNOMORE.into());
        }
        record.ngroups -= 1;
    }
    tables.put(&record);
    Ok(())
}

/// The id for a user of the cell that `group` represents. The upper half is the user's number, the
/// lower half that of the group's id. Takes one from the group's quota.
fn foreign_id(
    tables: &mut Tables<'_, '_>,
    group: ViceId,
    asked: Option<ViceId>,
) -> Result<ViceId, Error> {
    let mut record = tables.find(group)?;
    let low = group.0 & 0xffff;
    let id = match asked {
        Some(id) if id.0 & 0xffff != low => return Err(AbortCode::PRBADARG.into()),
        Some(id) => {
            record.nusers = record.nusers.max(id.0 >> 16);
            id
        }
        None => {
            let mut number = record.nusers.max(0) + 1;
            while number <= FOREIGN_USERS_MAX && tables.get(ViceId(number << 16 | low))?.is_some() {
                number += 1;
            }
            if number > FOREIGN_USERS_MAX {
                return Err(AbortCode::PRNOIDS.into());
            }
            record.nusers = number;
            ViceId(number << 16 | low)
        }
    };
    if record.flags & PRQUOTA == 0 {
        record.flags |= PRQUOTA;
        record.ngroups = FOREIGN_QUOTA;
    }
    if record.ngroups <= 0 {
        return Err(AbortCode::PRNOMORE.into());
    }
    record.ngroups -= 1;
    tables.put(&record);
    Ok(id)
}

/// The name that a new group `name` must have if `owner` owns it. The owner's name comes before the
/// colon (`system` for administrators), the part of `name` after it.
///
/// # Errors
/// PRNOENT, PRPERM, PRBADNAM; PRGROUPEMPTY if the owner is a group without members.
pub(super) fn group_name(
    tables: &Tables<'_, '_>,
    name: &PrName,
    owner: ViceId,
    is_admin: bool,
) -> Result<PrName, Error> {
    let prefix = if owner == ViceId::ADMINISTRATORS {
        b"system".to_vec()
    } else {
        match tables.get(owner)? {
            Some(owner) => {
                if owner.is_group() && !is_admin && !tables.has_members(owner.id)? {
                    return Err(AbortCode::PRGROUPEMPTY.into());
                }
                let end = owner
                    .name
                    .iter()
                    .position(|&b| b == b':' && owner.is_group());
                owner.name[..end.unwrap_or(owner.name.len())].to_vec()
            }
            // An administrator may name an owner that does not exist yet, such as the group itself.
            None if is_admin => {
                check_group_name(name)?;
                return Ok(name.clone());
            }
            None => return Err(AbortCode::PRNOENT.into()),
        }
    };
    if prefix == b"system" && !is_admin {
        return Err(AbortCode::PRPERM.into());
    }
    let correct = match name.iter().position(|&byte| byte == b':') {
        Some(colon) => {
            let whole = [&prefix[..], &name[colon..]].concat();
            PrName::new(&whole).map_err(|_| AbortCode::PRBADNAM)?
        }
        None if is_admin => name.clone(),
        None => return Err(AbortCode::PRBADNAM.into()),
    };
    check_group_name(&correct)?;
    Ok(correct)
}
