//! ListEntry, ListEntries, ListOwned, ListMax: display of entries.

use cellar_wire::pr::{
    IdList, ListEntries, ListEntriesReply, ListEntry, ListEntryReply, ListMax, ListMaxReply,
    ListOwned, ListOwnedReply, PRGROUPS, PRP_OWNED_ANY, PRP_STATUS_ANY, PRP_STATUS_MEM, PRUSERS,
};
use cellar_wire::{AbortCode, List, ViceId};

use super::Pr;
use super::access::{ANY_MEMBER, allows, is_administrator};
use super::limits::{LIST_MAX, PAGE_ENTRIES};
use super::record::place;
use crate::{Answer, Error, Identity, Kind};

impl Answer<Pr> for ListEntry {
    const BLOCKS: bool = false;
    const KIND: Kind = Kind::Listing;

    fn answer(self, pr: &Pr, who: Identity) -> Result<ListEntryReply, Error> {
        let model = pr.replica.read();
        let record = model.find(self.id)?;
        if !allows(&*model, who, Some(record), PRP_STATUS_MEM, PRP_STATUS_ANY)? {
            return Err(AbortCode::PRPERM.into());
        }
        Ok(ListEntryReply {
            entry: model.to_entry(record),
        })
    }
}

/// Users in the order of their ids, then groups. The cursor is a place. Therefore a creation or
/// deletion between two calls neither repeats nor hides other entries.
impl Answer<Pr> for ListEntries {
    const BLOCKS: bool = false;

    fn answer(self, pr: &Pr, who: Identity) -> Result<ListEntriesReply, Error> {
        let model = pr.replica.read();
        if !is_administrator(&*model, who)? {
            return Err(AbortCode::PRPERM.into());
        }
        let start = match (self.flag & PRUSERS != 0, self.start_index as u32) {
            (false, start) => start.max(place(ViceId(-1))),
            (true, start) => start,
        };
        let mut entries = Vec::new();
        for (place, record) in model.from(start) {
            if entries.len() >= PAGE_ENTRIES {
                let entries = List::from_iter_cut(entries);
                return Ok(ListEntriesReply {
                    entries,
                    next_index: place as i32,
                });
            }
            if record.is_group() && self.flag & PRGROUPS == 0 {
                break;
            }
            entries.push(model.to_entry(record));
        }
        Ok(ListEntriesReply {
            entries: List::from_iter_cut(entries),
            next_index: -1,
        })
    }
}

/// The cursor is the place of the last returned group.
impl Answer<Pr> for ListOwned {
    const BLOCKS: bool = false;

    fn answer(self, pr: &Pr, who: Identity) -> Result<ListOwnedReply, Error> {
        let model = pr.replica.read();
        let may = match self.id {
            ViceId(0) => allows(&*model, who, None, 0, 0)?,
            // Every member of a group may see the groups that it owns.
            id => allows(
                &*model,
                who,
                Some(model.find(id)?),
                ANY_MEMBER,
                PRP_OWNED_ANY,
            )?,
        };
        if !may {
            return Err(AbortCode::PRPERM.into());
        }
        let owned = model.owned(self.id).iter().copied();
        let mut rest: Vec<ViceId> = match self.lastp {
            0 => owned.collect(),
            last => owned.filter(|id| place(*id) > last as u32).collect(),
        };
        rest.sort_by_key(|id| place(*id));
        let is_cut = rest.len() > LIST_MAX;
        rest.truncate(LIST_MAX);
        let lastp = if is_cut {
            rest.last().map_or(0, |id| place(*id) as i32)
        } else {
            0
        };
        rest.sort();
        Ok(ListOwnedReply {
            list: IdList::from_iter_cut(rest),
            lastp,
        })
    }
}

impl Answer<Pr> for ListMax {
    const BLOCKS: bool = false;
    const KIND: Kind = Kind::Listing;

    fn answer(self, pr: &Pr, _: Identity) -> Result<ListMaxReply, Error> {
        let (uid, gid) = pr.replica.read().max();
        Ok(ListMaxReply { uid, gid })
    }
}
