//! The tables of the OSD database, in a transaction.
//!
//! `osd.device` and `osd.policy` have the rows by number, `osd.pin` by file and owner. `osd.meta`
//! has the revisions and the highest numbers ever assigned. Rows are the structures of the wire,
//! with the revision of their last change.

use std::ops::Bound;

use cellar_celldb::{Error as DatabaseError, Table, Transaction, View};
use cellar_wire::AbortCode;
use cellar_wire::ids::{Fid, ViceId};
use cellar_wire::osddb::{OSDS_MAX, OsdEntry, PINS_MAX, POLICIES_MAX, Pin, PolicyEntry};
use cellar_xdr::xdr_struct;

use crate::{Error, row};

pub(super) const DEVICE: Table = Table::new("osd.device");
pub(super) const POLICY: Table = Table::new("osd.policy");
pub(super) const PIN: Table = Table::new("osd.pin");
pub(super) const META: Table = Table::new("osd.meta");

/// Key in `osd.meta` of [`Counters`].
const COUNTERS: &[u8] = b"counters";
/// Key in `osd.meta` of [`PinCounters`].
pub(super) const PIN_COUNTERS: &[u8] = b"pins";

/// The number of the file servers' own disks.
pub(super) const LOCAL_DISK: u32 = 1;
/// With policies that decide by size, larger files go to objects. The value is that of the
/// original; the entry can change it.
const LOCAL_DISK_MAX_SIZE: u64 = 1 << 20;
/// The most bytes of all policies' texts: one reply carries them, and a file server compiles them.
const TEXTS_BYTES_MAX: usize = 4 << 20;

xdr_struct! {
    /// A device as stored.
    #[derive(Default)]
    pub(super) struct DeviceRow {
        /// The revision of its last change.
        pub(super) changed: u64,
        /// Its settings.
        pub(super) entry: OsdEntry,
    }

    /// The revision of the pins.
    #[derive(Copy, Default)]
    pub(super) struct PinCounters {
        pub(super) revision: u64,
    }

    /// Revisions, and the highest numbers ever assigned.
    #[derive(Copy, Default)]
    pub(super) struct Counters {
        /// Revision of the devices' entries.
        pub(super) devices: u64,
        /// Revision of the policies.
        pub(super) policies: u64,
        /// Highest number of a device.
        pub(super) device: u32,
        /// Highest number of a policy.
        pub(super) policy: u32,
    }
}

/// The key of a pin.
fn pin_key(fid: Fid, owner: ViceId) -> Vec<u8> {
    let words = [
        fid.volume.0,
        fid.vnode.0,
        fid.uniquifier.0,
        owner.0.cast_unsigned(),
    ];
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// The tables, read and changed through a transaction.
pub(super) struct Tables<'a, 'b>(pub(super) &'a mut Transaction<'b>);

impl Tables<'_, '_> {
    /// Fills an empty database.
    pub(super) fn prepare(&mut self) -> Result<(), DatabaseError> {
        if self.0.get(META, COUNTERS)?.is_some() {
            return Ok(());
        }
        let name = "local_disk".try_into().unwrap_or_default();
        let local_disk = OsdEntry {
            id: LOCAL_DISK,
            name,
            max_size: LOCAL_DISK_MAX_SIZE,
            allocation_priority: 64,
            read_priority: 100,
            ..OsdEntry::default()
        };
        self.put_device(local_disk).map(|_| ())
    }

    pub(super) fn counters(&self) -> Result<Counters, DatabaseError> {
        let bytes = self.0.get(META, COUNTERS)?;
        let counters = bytes.map(|bytes| row::decode(META, &bytes)).transpose()?;
        Ok(counters.unwrap_or_else(|| Counters {
            device: LOCAL_DISK,
            policy: cellar_policy::BY_SIZE,
            ..Counters::default()
        }))
    }

    fn put_counters(&mut self, counters: &Counters) {
        self.0.put(META, COUNTERS.to_vec(), row::encode(counters));
    }

    pub(super) fn device(&self, id: u32) -> Result<Option<DeviceRow>, DatabaseError> {
        let bytes = self.0.get(DEVICE, &id.to_be_bytes())?;
        bytes.map(|bytes| row::decode(DEVICE, &bytes)).transpose()
    }

    pub(super) fn devices(&self) -> Result<Vec<DeviceRow>, DatabaseError> {
        let all = (Bound::Unbounded, Bound::Unbounded);
        let rows = self.0.view().scan(DEVICE, all, OSDS_MAX)?;
        rows.iter()
            .map(|(_, bytes)| row::decode(DEVICE, bytes))
            .collect()
    }

    /// Stores an entry under its number, or with number 0 under the next one. Returns the number.
    pub(super) fn put_device(&mut self, mut entry: OsdEntry) -> Result<u32, DatabaseError> {
        let mut counters = self.counters()?;
        counters.devices += 1;
        if entry.id == 0 {
            entry.id = counters.device + 1;
        }
        counters.device = counters.device.max(entry.id);
        let id = entry.id;
        let row = DeviceRow {
            changed: counters.devices,
            entry,
        };
        self.0
            .put(DEVICE, id.to_be_bytes().to_vec(), row::encode(&row));
        self.put_counters(&counters);
        Ok(id)
    }

    pub(super) fn policies(&self) -> Result<Vec<PolicyEntry>, DatabaseError> {
        let all = (Bound::Unbounded, Bound::Unbounded);
        let rows = self.0.view().scan(POLICY, all, POLICIES_MAX)?;
        rows.iter()
            .map(|(_, bytes)| row::decode(POLICY, bytes))
            .collect()
    }

    /// The number for a new policy.
    pub(super) fn next_policy(&self) -> Result<u32, DatabaseError> {
        Ok(self.counters()?.policy + 1)
    }

    /// Stores a policy. `all` are the policies after the change, including this one.
    ///
    /// # Errors
    /// ENOSPC if they are too many, or too long together.
    pub(super) fn put_policy(
        &mut self,
        all: &[PolicyEntry],
        mut policy: PolicyEntry,
    ) -> Result<(), Error> {
        let bytes: usize = all.iter().map(|policy| policy.text.as_bytes().len()).sum();
        if all.len() > POLICIES_MAX || bytes > TEXTS_BYTES_MAX {
            return Err(AbortCode::ENOSPC.into());
        }
        let mut counters = self.counters()?;
        counters.policies += 1;
        counters.policy = counters.policy.max(policy.id);
        policy.revision = counters.policies;
        let key = policy.id.to_be_bytes().to_vec();
        self.0.put(POLICY, key, row::encode(&policy));
        self.put_counters(&counters);
        Ok(())
    }

    pub(super) fn pins(&self) -> Result<Vec<Pin>, DatabaseError> {
        let all = (Bound::Unbounded, Bound::Unbounded);
        let rows = self.0.view().scan(PIN, all, PINS_MAX)?;
        rows.iter()
            .map(|(_, bytes)| row::decode(PIN, bytes))
            .collect()
    }

    pub(super) fn put_pin(&mut self, pin: &Pin) -> Result<(), DatabaseError> {
        self.count_pin_change()?;
        self.0
            .put(PIN, pin_key(pin.fid, pin.owner), row::encode(pin));
        Ok(())
    }

    pub(super) fn delete_pin(&mut self, fid: Fid, owner: ViceId) -> Result<(), DatabaseError> {
        self.count_pin_change()?;
        self.0.delete(PIN, pin_key(fid, owner));
        Ok(())
    }

    fn count_pin_change(&mut self) -> Result<(), DatabaseError> {
        let bytes = self.0.get(META, PIN_COUNTERS)?;
        let counters = bytes.map(|bytes| row::decode(META, &bytes)).transpose()?;
        let mut counters: PinCounters = counters.unwrap_or_default();
        counters.revision += 1;
        self.0
            .put(META, PIN_COUNTERS.to_vec(), row::encode(&counters));
        Ok(())
    }

    pub(super) fn delete_policy(&mut self, id: u32) -> Result<(), DatabaseError> {
        let mut counters = self.counters()?;
        counters.policies += 1;
        self.0.delete(POLICY, id.to_be_bytes().to_vec());
        self.put_counters(&counters);
        Ok(())
    }
}
