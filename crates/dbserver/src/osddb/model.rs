//! Devices, policies and pins in memory.

use std::collections::BTreeMap;

use cellar_celldb::{Error as DatabaseError, Table};
use cellar_wire::osddb::{OsdEntry, Pin, PolicyEntry};

use super::tables::{Counters, DEVICE, DeviceRow, META, PIN, PIN_COUNTERS, POLICY, PinCounters};
use crate::{replica, row};

/// The contents of the database.
#[derive(Default)]
pub(super) struct Model {
    pub(super) devices: BTreeMap<u32, OsdEntry>,
    pub(super) policies: BTreeMap<u32, PolicyEntry>,
    pub(super) pins: BTreeMap<Vec<u8>, Pin>,
    pub(super) revisions: Counters,
    pub(super) pins_revision: u64,
}

impl replica::Model for Model {
    const TABLES: &'static [Table] = &[DEVICE, POLICY, PIN, META];
    const INDEXED: Table = DEVICE;

    fn set(&mut self, table: Table, key: &[u8], value: Option<&[u8]>) -> Result<(), DatabaseError> {
        if table == PIN {
            match value {
                Some(bytes) => self.pins.insert(key.to_vec(), row::decode(table, bytes)?),
                None => self.pins.remove(key),
            };
            return Ok(());
        }
        if table == META && key == PIN_COUNTERS {
            let counters = value.map(|bytes| row::decode(table, bytes)).transpose()?;
            self.pins_revision = counters.map_or(0, |counters: PinCounters| counters.revision);
            return Ok(());
        }
        if table == META {
            let counters = value.map(|bytes| row::decode(table, bytes)).transpose()?;
            self.revisions = counters.unwrap_or_default();
            return Ok(());
        }
        let number = row::number(table, key)?;
        match (table == DEVICE, value) {
            (true, Some(bytes)) => {
                let row: DeviceRow = row::decode(table, bytes)?;
                self.devices.insert(number, row.entry);
            }
            (false, Some(bytes)) => {
                self.policies.insert(number, row::decode(table, bytes)?);
            }
            (true, None) => self.remove(number),
            (false, None) => {
                self.policies.remove(&number);
            }
        }
        Ok(())
    }

    fn remove(&mut self, number: u32) {
        self.devices.remove(&number);
    }
}
