//! ReplaceEntry, ReplaceEntryN: replaces a whole entry, and can release its lock.
//!
//! `vos` commits moves, releases and renames in this way. Fields that the new entry does not carry
//! stay: the lock too, unless `releasetype` releases it.

use cellar_auth::audit::Details;
use cellar_auth::audit_details;
use cellar_wire::vl::{
    NvldbEntry, RWVOL, ReplaceEntry, ReplaceEntryN, ReplaceEntryNReply, ReplaceEntryReply,
};
use cellar_wire::{AbortCode, VolumeId};

use super::Vl;
use super::create_entry::places;
use super::entry::{Entry, check_new_name, check_release_type, check_sites, check_type};
use super::tables::Tables;
use crate::{Answer, Error, Identity, Kind};

impl Answer<Vl> for ReplaceEntryN {
    const BLOCKS: bool = true;
    const KIND: Kind = Kind::Change;

    fn details(&self) -> Details {
        audit_details!(self: volid, voltype, newentry, releasetype)
    }

    fn answer(self, vl: &Vl, who: Identity) -> Result<ReplaceEntryNReply, Error> {
        vl.replace(
            who,
            self.volid,
            self.voltype,
            &self.newentry,
            self.releasetype,
        )?;
        Ok(ReplaceEntryNReply {})
    }
}

impl Answer<Vl> for ReplaceEntry {
    const BLOCKS: bool = true;
    const KIND: Kind = Kind::Change;

    fn details(&self) -> Details {
        audit_details!(self: volid, voltype, newentry, releasetype)
    }

    fn answer(self, vl: &Vl, who: Identity) -> Result<ReplaceEntryReply, Error> {
        let new = self.newentry.into();
        vl.replace(who, self.volid, self.voltype, &new, self.releasetype)?;
        Ok(ReplaceEntryReply {})
    }
}

impl Vl {
    fn replace(
        &self,
        who: Identity,
        id: VolumeId,
        voltype: i32,
        new: &NvldbEntry,
        releasetype: i32,
    ) -> Result<(), Error> {
        Self::check_administrator(who)?;
        check_new_name(&new.name)?;
        check_sites(&new.sites)?;
        check_type(voltype)?;
        check_release_type(releasetype)?;
        self.replica.write(|transaction| {
            let mut tables = Tables(transaction);
            let old = tables.find(id, voltype)?;
            if new.volume_ids[RWVOL as usize] != old.ids[RWVOL as usize] {
                return Err(AbortCode::VL_BADENTRY.into());
            }
            let mut entry = Entry {
                name: new.name.clone(),
                ids: new.volume_ids,
                clone_id: new.clone_id,
                flags: new.flags,
                places: places(&mut tables, &new.sites)?,
                ..old.clone()
            };
            entry.release(releasetype);
            tables.replace(&old, entry)
        })
    }
}
