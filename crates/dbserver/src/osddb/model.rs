//! Devices and policies in memory.

use std::collections::BTreeMap;

use cellar_celldb::{Error as DatabaseError, Table};
use cellar_wire::osddb::{OsdEntry, PolicyEntry};

use super::tables::{Counters, DEVICE, DeviceRow, META, POLICY};
use crate::{replica, row};

/// The contents of the database.
#[derive(Default)]
pub(super) struct Model {
    pub(super) devices: BTreeMap<u32, OsdEntry>,
    pub(super) policies: BTreeMap<u32, PolicyEntry>,
    pub(super) revisions: Counters,
}

impl replica::Model for Model {
    const TABLES: &'static [Table] = &[DEVICE, POLICY, META];
    const INDEXED: Table = DEVICE;

    fn set(&mut self, table: Table, key: &[u8], value: Option<&[u8]>) -> Result<(), DatabaseError> {
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
