//! CreateEntry, CreateEntryN: a new volume group.

use cellar_auth::audit::Details;
use cellar_auth::audit_details;
use cellar_wire::AfsTime;
use cellar_wire::vl::{
    CreateEntry, CreateEntryN, CreateEntryNReply, CreateEntryReply, NvldbEntry, Site,
};

use super::Vl;
use super::entry::{
    Entry, EntrySite, check_new_name, check_partition, check_site_flags, check_sites,
};
use super::tables::Tables;
use crate::{Answer, Error, Identity, Kind};

impl Answer<Vl> for CreateEntryN {
    const BLOCKS: bool = true;
    const KIND: Kind = Kind::Change;

    fn details(&self) -> Details {
        audit_details!(self: newentry)
    }

    fn answer(self, vl: &Vl, who: Identity) -> Result<CreateEntryNReply, Error> {
        vl.create(who, &self.newentry)?;
        Ok(CreateEntryNReply {})
    }
}

impl Answer<Vl> for CreateEntry {
    const BLOCKS: bool = true;
    const KIND: Kind = Kind::Change;

    fn details(&self) -> Details {
        audit_details!(self: newentry)
    }

    fn answer(self, vl: &Vl, who: Identity) -> Result<CreateEntryReply, Error> {
        vl.create(who, &self.newentry.into())?;
        Ok(CreateEntryReply {})
    }
}

impl Vl {
    fn create(&self, who: Identity, new: &NvldbEntry) -> Result<(), Error> {
        Self::check_administrator(who)?;
        check_new_name(&new.name)?;
        check_sites(&new.sites)?;
        let number = self.take_entry_number()?;
        self.replica.write(|transaction| {
            let mut tables = Tables(transaction);
            let entry = Entry {
                number,
                name: new.name.clone(),
                ids: new.volume_ids,
                clone_id: new.clone_id,
                flags: new.flags,
                lock_time: AfsTime(0),
                lock_id: 0,
                places: places(&mut tables, &new.sites)?,
            };
            tables.insert(&entry)
        })
    }
}

/// Converts sites to the form with server numbers; a new server gets a number.
pub(super) fn places(
    tables: &mut Tables<'_, '_>,
    sites: &[Site],
) -> Result<Box<[EntrySite]>, Error> {
    let mut place = |site: &Site| {
        Ok(EntrySite {
            server: tables.server_for(site.server)?,
            partition: check_partition(site.partition)?,
            flags: check_site_flags(site.flags)?,
        })
    };
    sites.iter().map(&mut place).collect()
}
