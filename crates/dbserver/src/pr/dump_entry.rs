//! WhereIsIt, DumpEntry: an entry by its position, to inspect the database.
//!
//! This database has no blocks. The position of an entry is its place in listings. A chain is shown
//! by its first element.

use cellar_wire::pr::{
    DumpEntry, DumpEntryReply, PRP_STATUS_MEM, PrDebugEntry, WhereIsIt, WhereIsItReply,
};
use cellar_wire::{AbortCode, ViceId};

use super::Pr;
use super::access::allows;
use super::record::{id_at, place};
use crate::{Answer, Error, Identity, Kind};

impl Answer<Pr> for WhereIsIt {
    const BLOCKS: bool = false;
    const KIND: Kind = Kind::Listing;

    fn answer(self, pr: &Pr, _: Identity) -> Result<WhereIsItReply, Error> {
        pr.replica.read().find(self.id)?;
        Ok(WhereIsItReply {
            position: place(self.id) as i32,
        })
    }
}

impl Answer<Pr> for DumpEntry {
    const BLOCKS: bool = false;

    fn answer(self, pr: &Pr, who: Identity) -> Result<DumpEntryReply, Error> {
        let model = pr.replica.read();
        let record = model
            .get(id_at(self.position as u32))
            .ok_or(AbortCode::PRDBADDR)?;
        if !allows(&*model, who, None, PRP_STATUS_MEM, 0)? {
            return Err(AbortCode::PRPERM.into());
        }
        let elements = model.elements(record);
        let mut entries = [0; 10];
        for (slot, id) in entries.iter_mut().zip(elements) {
            *slot = id.0;
        }
        let position = |id: Option<&ViceId>| id.map_or(0, |id| place(*id) as i32);
        let siblings = model.owned(record.owner);
        let next = siblings
            .range(ViceId(record.id.0.saturating_add(1))..)
            .next();
        let entry = PrDebugEntry {
            flags: record.flags,
            id: record.id,
            cellid: record.cell_group.0,
            entries,
            owner: record.owner,
            creator: record.creator,
            ngroups: record.ngroups,
            nusers: record.nusers,
            count: elements.len() as i32,
            owned: position(model.owned(record.id).first()),
            next_owned: position(next.filter(|_| record.is_group())),
            name: record.name.clone(),
            ..PrDebugEntry::default()
        };
        Ok(DumpEntryReply { entry })
    }
}
