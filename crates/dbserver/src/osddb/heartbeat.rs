//! Heartbeat: a server of devices says that it is alive, where it is, and how full they are.
//!
//! Where a device is, its server knows best: an entry that says otherwise is changed, and then the file
//! servers learn it by the revision. That is the only write; all other heartbeats are answered from memory.

use cellar_wire::osddb::{Heartbeat, HeartbeatReply, OsdEntry};
use cellar_wire::{AbortCode, List};

use super::OsdDb;
use super::tables::{LOCAL_DISK, Tables};
use crate::{Answer, Error, Identity};

impl Answer<OsdDb> for Heartbeat {
    const BLOCKS: bool = true;

    fn answer(self, osddb: &OsdDb, who: Identity) -> Result<HeartbeatReply, Error> {
        OsdDb::check_superuser(who)?;
        if self.port > u32::from(u16::MAX) {
            return Err(AbortCode::EINVAL.into());
        }
        let mut missing = false;
        let moved;
        {
            let model = osddb.replica.read();
            for state in &self.states {
                match model.devices.contains_key(&state.id) && state.id != LOCAL_DISK {
                    true => osddb.heard.hear(*state),
                    false => missing = true,
                }
            }
            moved = devices(&self).any(|id| {
                let entry = model.devices.get(&id);
                entry.is_some_and(|entry| is_elsewhere(&self, entry))
            });
        }
        if moved {
            osddb
                .replica
                .write(|transaction| note(&self, &mut Tables(transaction)))?;
        }
        if missing {
            return Err(AbortCode::ENOENT.into());
        }
        Ok(HeartbeatReply {
            devices: osddb.replica.read().revisions.devices,
        })
    }
}

/// The devices that a heartbeat speaks of.
fn devices(heartbeat: &Heartbeat) -> impl Iterator<Item = u32> {
    let ids = heartbeat.states.iter().map(|state| state.id);
    ids.filter(|id| *id != LOCAL_DISK)
}

/// Whether a heartbeat comes from another place than the entry says. Of addresses only the set counts:
/// which is preferred, the administrator may have said. One without addresses says nothing about that.
fn is_elsewhere(heartbeat: &Heartbeat, entry: &OsdEntry) -> bool {
    let said = &heartbeat.addresses;
    if said.is_empty() || heartbeat.port == 0 {
        return false;
    }
    entry.port != heartbeat.port
        || said
            .iter()
            .any(|address| !entry.addresses.contains(address))
        || entry
            .addresses
            .iter()
            .any(|address| !said.contains(address))
}

/// Writes down where the devices are.
fn note(heartbeat: &Heartbeat, tables: &mut Tables<'_, '_>) -> Result<(), Error> {
    for id in devices(heartbeat) {
        let Some(row) = tables.device(id)? else {
            continue;
        };
        if is_elsewhere(heartbeat, &row.entry) {
            tables.put_device(OsdEntry {
                addresses: List::from_iter_cut(heartbeat.addresses.iter().copied()),
                port: heartbeat.port,
                ..row.entry
            })?;
        }
    }
    Ok(())
}
