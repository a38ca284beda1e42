//! Heartbeat: a server of devices reports that it is alive, its addresses, and the free space of
//! its devices.
//!
//! The server itself knows best where its devices are. If an entry differs, it is changed, and the
//! file servers learn that through the revision. This is the only write. All other heartbeats are
//! answered from memory.

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
                    true => osddb.reports.record(*state),
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

/// The devices of a heartbeat.
fn devices(heartbeat: &Heartbeat) -> impl Iterator<Item = u32> {
    let ids = heartbeat.states.iter().map(|state| state.id);
    ids.filter(|id| *id != LOCAL_DISK)
}

/// Whether the addresses or the port of a heartbeat differ from those of the entry. The order of
/// addresses does not count: the administrator may have chosen the preferred one. A heartbeat
/// without addresses never differs.
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

/// Stores the addresses and the port of the devices.
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
