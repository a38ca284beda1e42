//! AddToGroup, RemoveFromGroup, IsAMemberOf, ListElements, ListSuperGroups: memberships.

use cellar_auth::audit::Details;
use cellar_auth::audit_details;
use cellar_wire::pr::{
    AddToGroup, AddToGroupReply, IdList, IsAMemberOf, IsAMemberOfReply, ListElements,
    ListElementsReply, ListSuperGroups, ListSuperGroupsReply, PRP_ADD_ANY, PRP_ADD_MEM,
    PRP_MEMBER_ANY, PRP_MEMBER_MEM, PRP_REMOVE_MEM, RemoveFromGroup, RemoveFromGroupReply,
};
use cellar_wire::{AbortCode, ViceId};

use super::Pr;
use super::access::{allows, is_inside, is_member};
use super::model::Protection;
use super::record::Record;
use super::tables::Tables;
use crate::{Answer, Error, Identity, Kind};

impl Answer<Pr> for AddToGroup {
    const BLOCKS: bool = true;
    const KIND: Kind = Kind::Change;

    fn details(&self) -> Details {
        audit_details!(self: uid, gid)
    }

    fn answer(self, pr: &Pr, who: Identity) -> Result<AddToGroupReply, Error> {
        if matches!(self.gid, ViceId::ANYUSER | ViceId::AUTHUSER) || self.uid == ViceId::ANONYMOUS {
            return Err(AbortCode::PRPERM.into());
        }
        pr.replica.write(|transaction| {
            let mut tables = Tables(transaction);
            tables.find(self.uid)?;
            let group = tables.find(self.gid)?;
            if !group.is_group() {
                return Err(AbortCode::PRNOTGROUP.into());
            }
            if !allows(&tables, who, Some(&group), PRP_ADD_MEM, PRP_ADD_ANY)? {
                return Err(AbortCode::PRPERM.into());
            }
            // A cycle of groups would give the members of each the rights of all.
            if self.uid.is_group()
                && self.uid != self.gid
                && is_inside(&tables, self.gid, self.uid)?
            {
                return Err(AbortCode::PRINCONSISTENT.into());
            }
            tables.add_member(self.gid, self.uid)
        })?;
        Ok(AddToGroupReply {})
    }
}

impl Answer<Pr> for RemoveFromGroup {
    const BLOCKS: bool = true;
    const KIND: Kind = Kind::Change;

    fn details(&self) -> Details {
        audit_details!(self: id, gid)
    }

    fn answer(self, pr: &Pr, who: Identity) -> Result<RemoveFromGroupReply, Error> {
        pr.replica.write(|transaction| {
            let mut tables = Tables(transaction);
            tables.find(self.id)?;
            let group = tables.find(self.gid)?;
            if !group.is_group() {
                return Err(AbortCode::PRNOTGROUP.into());
            }
            if !allows(&tables, who, Some(&group), PRP_REMOVE_MEM, 0)? {
                return Err(AbortCode::PRPERM.into());
            }
            if self.id == self.gid {
                return Err(AbortCode::PRINCONSISTENT.into());
            }
            tables.remove_member(self.gid, self.id)
        })?;
        Ok(RemoveFromGroupReply {})
    }
}

impl Answer<Pr> for IsAMemberOf {
    const BLOCKS: bool = false;

    fn answer(self, pr: &Pr, who: Identity) -> Result<IsAMemberOfReply, Error> {
        let model = pr.replica.read();
        let (user, group) = (model.find(self.uid)?, model.find(self.gid)?);
        if !group.is_group() {
            return Err(AbortCode::PRBADARG.into());
        }
        if !allows(&*model, who, Some(user), 0, PRP_MEMBER_ANY)?
            && !allows(&*model, who, Some(group), PRP_MEMBER_MEM, PRP_MEMBER_ANY)?
        {
            return Err(AbortCode::PRPERM.into());
        }
        Ok(IsAMemberOfReply {
            flag: i32::from(is_member(&*model, self.uid, self.gid)?),
        })
    }
}

/// The record of `id`, if the caller may see its groups or its members.
///
/// # Errors
/// PRNOENT, PRPERM.
pub(super) fn visible(model: &Protection, who: Identity, id: ViceId) -> Result<&Record, Error> {
    let record = model.find(id)?;
    if allows(model, who, Some(record), PRP_MEMBER_MEM, PRP_MEMBER_ANY)? {
        Ok(record)
    } else {
        Err(AbortCode::PRPERM.into())
    }
}

impl Answer<Pr> for ListElements {
    const BLOCKS: bool = false;

    fn answer(self, pr: &Pr, who: Identity) -> Result<ListElementsReply, Error> {
        let model = pr.replica.read();
        let record = visible(&model, who, self.id)?;
        let list = IdList::from_iter_cut(model.elements(record).iter().copied());
        Ok(ListElementsReply { list, over: 0 })
    }
}

impl Answer<Pr> for ListSuperGroups {
    const BLOCKS: bool = false;
    const KIND: Kind = Kind::Listing;

    fn answer(self, pr: &Pr, who: Identity) -> Result<ListSuperGroupsReply, Error> {
        let model = pr.replica.read();
        let record = visible(&model, who, self.id)?;
        let none = std::collections::BTreeSet::new();
        let above = if record.is_group() {
            model.groups(self.id)
        } else {
            &none
        };
        Ok(ListSuperGroupsReply {
            list: IdList::from_iter_cut(above.iter().copied()),
            over: 0,
        })
    }
}
