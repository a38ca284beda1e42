//! UpdateEntry, UpdateEntryByName: single fields of an entry, chosen by a mask.

use cellar_auth::audit::Details;
use cellar_auth::audit_details;
use cellar_wire::AbortCode;
use cellar_wire::vl::{
    BACKVOL, OLD_SITES_MAX, ROVOL, RWVOL, SiteUpdate, UpdateEntry, UpdateEntryByName,
    UpdateEntryByNameReply, UpdateEntryReply, VLUPDATE_BACKUPID, VLUPDATE_CLONEID, VLUPDATE_FLAGS,
    VLUPDATE_READONLYID, VLUPDATE_REPS_ADD, VLUPDATE_REPS_DELETE, VLUPDATE_REPS_MODFLAG,
    VLUPDATE_REPS_MODPART, VLUPDATE_REPS_MODSERV, VLUPDATE_REPSITES, VLUPDATE_RWID,
    VLUPDATE_VOLUMENAME, VldbUpdateEntry,
};

use super::Vl;
use super::entry::{
    Entry, EntrySite, check_name, check_new_name, check_partition, check_release_type,
    check_site_flags, check_type,
};
use super::tables::Tables;
use crate::{Answer, Error, Identity, Kind};

impl Answer<Vl> for UpdateEntry {
    const BLOCKS: bool = true;
    const KIND: Kind = Kind::Change;

    fn details(&self) -> Details {
        audit_details!(self: volid, voltype, updateentry, releasetype)
    }

    fn answer(self, vl: &Vl, who: Identity) -> Result<UpdateEntryReply, Error> {
        Vl::check_administrator(who)?;
        check_type(self.voltype)?;
        check_release_type(self.releasetype)?;
        vl.replica.write(|transaction| {
            let mut tables = Tables(transaction);
            let old = tables.find(self.volid, self.voltype)?;
            update(&mut tables, &old, &self.updateentry, self.releasetype)
        })?;
        Ok(UpdateEntryReply {})
    }
}

impl Answer<Vl> for UpdateEntryByName {
    const BLOCKS: bool = true;
    const KIND: Kind = Kind::Change;

    fn details(&self) -> Details {
        audit_details!(self: volumename, updateentry, releasetype)
    }

    fn answer(self, vl: &Vl, who: Identity) -> Result<UpdateEntryByNameReply, Error> {
        Vl::check_administrator(who)?;
        check_name(&self.volumename)?;
        check_release_type(self.releasetype)?;
        vl.replica.write(|transaction| {
            let mut tables = Tables(transaction);
            let old = tables.find_by_name(&self.volumename)?;
            update(&mut tables, &old, &self.updateentry, self.releasetype)
        })?;
        Ok(UpdateEntryByNameReply {})
    }
}

fn update(
    tables: &mut Tables<'_, '_>,
    old: &Entry,
    change: &VldbUpdateEntry,
    releasetype: i32,
) -> Result<(), Error> {
    let mut new = old.clone();
    let asked = |bit| change.mask & bit != 0;
    if asked(VLUPDATE_VOLUMENAME) {
        check_new_name(&change.name)?;
        new.name = change.name.clone();
    }
    if asked(VLUPDATE_FLAGS) {
        new.flags = change.flags;
    }
    if asked(VLUPDATE_CLONEID) {
        new.clone_id = change.clone_id;
    }
    let ids = [
        (VLUPDATE_RWID, RWVOL, change.read_write_id),
        (VLUPDATE_READONLYID, ROVOL, change.read_only_id),
        (VLUPDATE_BACKUPID, BACKVOL, change.backup_id),
    ];
    for (_, voltype, id) in ids.into_iter().filter(|(bit, ..)| asked(*bit)) {
        new.ids[voltype as usize] = id;
    }
    if asked(VLUPDATE_REPSITES) {
        if change.sites.is_empty() {
            return Err(AbortCode::VL_BADSERVER.into());
        }
        let mut places = new.places.into_vec();
        for site in &change.sites {
            update_site(tables, &mut places, site)?;
        }
        new.places = places.into();
    }
    new.release(releasetype);
    tables.replace(old, new)
}

fn update_site(
    tables: &mut Tables<'_, '_>,
    places: &mut Vec<EntrySite>,
    change: &SiteUpdate,
) -> Result<(), Error> {
    let target_partition = check_partition(change.target_partition)?;
    let asked = |bit| change.mask & bit != 0;
    let find = |tables: &mut Tables<'_, '_>, places: &[EntrySite], address, partition| {
        let server = tables.server_for(address)?;
        let found = places
            .iter()
            .position(|p| p.server == server && p.partition == partition);
        Ok::<_, Error>(found)
    };
    let target = |tables: &mut Tables<'_, '_>, places: &[EntrySite]| {
        let found = find(tables, places, change.target_server, target_partition)?;
        found.ok_or(Error::Refused(AbortCode::VL_NOREPSERVER))
    };
    if asked(VLUPDATE_REPS_DELETE) {
        places.remove(target(tables, places)?);
    }
    if asked(VLUPDATE_REPS_ADD) {
        let partition = check_partition(change.new_partition)?;
        if find(tables, places, change.new_server, partition)?.is_some() {
            return Err(AbortCode::VL_DUPREPSERVER.into());
        }
        if places.len() >= OLD_SITES_MAX {
            return Err(AbortCode::VL_REPSFULL.into());
        }
        let flags = check_site_flags(change.new_flags)?;
        let server = tables.server_for(change.new_server)?;
        places.push(EntrySite {
            server,
            partition,
            flags,
        });
    }
    if asked(VLUPDATE_REPS_MODSERV) {
        let at = target(tables, places)?;
        places[at].server = tables.server_for(change.new_server)?;
    }
    if asked(VLUPDATE_REPS_MODPART) {
        let at = target(tables, places)?;
        places[at].partition = check_partition(change.new_partition)?;
    }
    if asked(VLUPDATE_REPS_MODFLAG) {
        let at = target(tables, places)?;
        places[at].flags = check_site_flags(change.new_flags)?;
    }
    Ok(())
}
