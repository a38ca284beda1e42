//! ListOsds, GetOsd, CreateOsd, SetOsd.

use cellar_auth::audit::Details;
use cellar_auth::audit_details;
use cellar_wire::osddb::{
    CreateOsd, CreateOsdReply, GetOsd, GetOsdReply, ListOsds, ListOsdsReply, OSD_OBSOLETE,
    OSDS_MAX, OsdEntry, SetOsd, SetOsdReply,
};
use cellar_wire::{AbortCode, List};

use super::OsdDb;
use super::check::checked;
use super::tables::{DeviceRow, LOCAL_DISK, Tables};
use crate::{Answer, Error, Identity, Kind};

impl Answer<OsdDb> for ListOsds {
    const BLOCKS: bool = false;

    fn answer(self, osddb: &OsdDb, _: Identity) -> Result<ListOsdsReply, Error> {
        let model = osddb.replica.read();
        let listed = model
            .devices
            .values()
            .map(|entry| osddb.reports.listed(entry));
        Ok(ListOsdsReply {
            revision: model.revisions.devices,
            osds: List::from_iter_cut(listed),
        })
    }
}

impl Answer<OsdDb> for GetOsd {
    const BLOCKS: bool = false;

    fn answer(self, osddb: &OsdDb, _: Identity) -> Result<GetOsdReply, Error> {
        let model = osddb.replica.read();
        let found = match self.id {
            0 => with_name(model.devices.values(), &self.name),
            id => model.devices.get(&id),
        };
        let entry = found.ok_or(AbortCode::ENOENT)?;
        Ok(GetOsdReply {
            osd: osddb.reports.listed(entry),
        })
    }
}

/// The device with that name. One in use comes before one that is obsolete.
fn with_name<'a>(
    entries: impl Iterator<Item = &'a OsdEntry>,
    name: &cellar_wire::osddb::OsdName,
) -> Option<&'a OsdEntry> {
    entries
        .filter(|entry| entry.name == *name)
        .min_by_key(|entry| is_obsolete(entry))
}

fn is_obsolete(entry: &OsdEntry) -> bool {
    entry.flags & OSD_OBSOLETE != 0
}

/// Checks that no other device in use has the name.
fn check_name(devices: &[DeviceRow], entry: &OsdEntry) -> Result<(), AbortCode> {
    let taken = devices.iter().any(|DeviceRow { entry: other, .. }| {
        other.id != entry.id && other.name == entry.name && !is_obsolete(other)
    });
    match taken && !is_obsolete(entry) {
        true => Err(AbortCode::EEXIST),
        false => Ok(()),
    }
}

impl Answer<OsdDb> for CreateOsd {
    const BLOCKS: bool = true;
    const KIND: Kind = Kind::Change;

    fn details(&self) -> Details {
        let entry = &self.entry;
        audit_details!(entry: id, name, port, partition, min_size, max_size, allocation_priority, read_priority, flags, owner, location, class)
    }

    fn answer(self, osddb: &OsdDb, who: Identity) -> Result<CreateOsdReply, Error> {
        OsdDb::check_superuser(who)?;
        // Users write numbers as signed ones.
        if self.entry.id > i32::MAX as u32 {
            return Err(AbortCode::EINVAL.into());
        }
        let entry = checked(self.entry)?;
        let id = osddb.replica.write(|transaction| {
            let mut tables = Tables(transaction);
            let devices = tables.devices()?;
            if devices.len() >= OSDS_MAX {
                return Err(AbortCode::ENOSPC.into());
            }
            let is_there = devices.iter().any(|row| row.entry.id == entry.id);
            if entry.id == LOCAL_DISK || is_there {
                return Err(AbortCode::EEXIST.into());
            }
            check_name(&devices, &entry)?;
            Ok(tables.put_device(entry.clone())?)
        })?;
        Ok(CreateOsdReply { id })
    }
}

impl Answer<OsdDb> for SetOsd {
    const BLOCKS: bool = true;
    const KIND: Kind = Kind::Change;

    fn details(&self) -> Details {
        let entry = &self.entry;
        audit_details!(entry: id, name, port, partition, min_size, max_size, allocation_priority, read_priority, flags, owner, location, class)
    }

    fn answer(self, osddb: &OsdDb, who: Identity) -> Result<SetOsdReply, Error> {
        OsdDb::check_superuser(who)?;
        let entry = checked(self.entry)?;
        osddb.replica.write(|transaction| {
            let mut tables = Tables(transaction);
            let row = tables.device(entry.id)?.ok_or(AbortCode::ENOENT)?;
            if self.revision != 0 && row.changed > self.revision {
                return Err(AbortCode::ESTALE.into());
            }
            if row.entry == entry {
                return Ok(());
            }
            check_name(&tables.devices()?, &entry)?;
            tables.put_device(entry.clone())?;
            Ok(())
        })?;
        Ok(SetOsdReply {})
    }
}
