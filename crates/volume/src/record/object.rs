//! The records of objects, and the record of the device that holds them.

use std::ops::Range;

use bytes::Bytes;
use cellar_wire::osd::VERSIONS_MAX;

use super::{Fields, PutFields};
use crate::engine::space::with_checksum;
use crate::error::{Error, Result};

/// The record of a device. It has the key of a partition's record and another form, so that neither
/// is taken for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceRecord {
    /// The next object's number.
    pub(crate) next_number: u64,
    /// Number of present objects.
    pub(crate) objects: u64,
    /// Number of objects that were removed and can be restored.
    pub(crate) removed: u64,
}

impl DeviceRecord {
    /// Its first byte. The record of a partition of volumes has 1.
    pub(crate) const FORM: u8 = 2;
    /// Version of the whole format.
    const VERSION: u32 = 1;

    pub(crate) fn encode(&self) -> Bytes {
        let mut out = vec![Self::FORM];
        out.put_u32(Self::VERSION);
        out.put_u64(self.next_number);
        out.put_u64(self.objects);
        out.put_u64(self.removed);
        with_checksum(out)
    }

    pub(crate) fn decode(value: &Bytes) -> Result<Self> {
        let mut fields = Fields::of(value, "device")?;
        if fields.u8()? != Self::FORM {
            let what = "this is a partition of volumes, not an object storage device";
            return Err(Error::Format(what.into()));
        }
        fields.format_version(Self::VERSION)?;
        Ok(Self {
            next_number: fields.u64()?,
            objects: fields.u64()?,
            removed: fields.u64()?,
        })
    }
}

/// A version of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VersionRecord {
    pub(crate) version: u64,
    pub(crate) length: u64,
    /// Seconds since 1970.
    pub(crate) written: u64,
    /// It is being removed and no longer visible.
    pub(crate) ending: bool,
    /// A range (end excluded) that contains all pieces with a record newer than the version before
    /// this one and not newer than this one.
    pub(crate) changed: Range<u64>,
}

impl VersionRecord {
    /// Extends the range by pieces that have such a record.
    pub(crate) fn note_changed(&mut self, pieces: &Range<u64>) {
        if pieces.is_empty() {
            return;
        }
        if self.changed.is_empty() {
            self.changed = pieces.clone();
            return;
        }
        self.changed.start = self.changed.start.min(pieces.start);
        self.changed.end = self.changed.end.max(pieces.end);
    }
}

/// An object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectRecord {
    /// The number in the keys of its pieces. Never used twice on a device.
    pub(crate) number: u64,
    /// Seconds since 1970, as the other times.
    pub(crate) created: u64,
    /// Rounded to the hour.
    pub(crate) accessed: u64,
    /// 0 for an object that is not removed.
    pub(crate) removed: u64,
    /// Number of blocks that its pieces name.
    pub(crate) blocks: u64,
    /// In ascending order.
    pub(crate) versions: Vec<VersionRecord>,
}

impl ObjectRecord {
    const FORM: u8 = 1;

    /// Returns a version if it is visible.
    pub(crate) fn version(&self, version: u64) -> Option<&VersionRecord> {
        let found = self.versions.iter().find(|known| known.version == version);
        found.filter(|known| !known.ending)
    }

    pub(crate) fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(47 + 41 * self.versions.len());
        out.put_u8(Self::FORM);
        out.put_u64(self.number);
        out.put_u64(self.created);
        out.put_u64(self.accessed);
        out.put_u64(self.removed);
        out.put_u64(self.blocks);
        out.put_u16(self.versions.len() as u16);
        for version in &self.versions {
            out.put_u64(version.version);
            out.put_u64(version.length);
            out.put_u64(version.written);
            out.put_u8(u8::from(version.ending));
            out.put_u64(version.changed.start);
            out.put_u64(version.changed.end);
        }
        with_checksum(out)
    }

    pub(crate) fn decode(value: &Bytes) -> Result<Self> {
        let mut fields = Fields::of(value, "object")?;
        if fields.u8()? != Self::FORM {
            return Err(fields.malformed());
        }
        let mut record = Self {
            number: fields.u64()?,
            created: fields.u64()?,
            accessed: fields.u64()?,
            removed: fields.u64()?,
            blocks: fields.u64()?,
            versions: Vec::new(),
        };
        let count = usize::from(fields.u16()?);
        if count > VERSIONS_MAX {
            return Err(fields.malformed());
        }
        record.versions.reserve(count);
        for _ in 0..count {
            record.versions.push(VersionRecord {
                version: fields.u64()?,
                length: fields.u64()?,
                written: fields.u64()?,
                ending: fields.u8()? == 1,
                changed: fields.u64()?..fields.u64()?,
            });
        }
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::super::PartitionRecord;
    use super::*;

    #[test]
    fn records_come_back_and_are_not_taken_for_others() {
        let device = DeviceRecord {
            next_number: 1 << 40,
            objects: 5,
            removed: 3,
        };
        assert_eq!(DeviceRecord::decode(&device.encode()).unwrap(), device);
        assert!(PartitionRecord::decode(&device.encode()).is_err());
        let partition = PartitionRecord { next_group: 1 };
        assert!(DeviceRecord::decode(&partition.encode()).is_err());
        let version = |version, ending| VersionRecord {
            version,
            length: version * 1000,
            written: 7,
            ending,
            changed: version..version + 2,
        };
        let record = ObjectRecord {
            number: 9,
            created: 1,
            accessed: 2,
            removed: 3,
            blocks: 4,
            versions: vec![version(5, true), version(6, false)],
        };
        assert_eq!(ObjectRecord::decode(&record.encode()).unwrap(), record);
        assert!(record.version(5).is_none() && record.version(6).is_some());
        assert!(ObjectRecord::decode(&device.encode()).is_err());
    }

    #[test]
    fn another_format_is_refused_with_its_version() {
        let of = |form: u8, version: u32| {
            let mut out = vec![form];
            out.put_u32(version);
            // Fields that only that release knows.
            out.extend([7; 40]);
            with_checksum(out)
        };
        let partition = |version| PartitionRecord::decode(&of(1, version)).map(drop);
        let device = |version| DeviceRecord::decode(&of(2, version)).map(drop);
        for (refused, says) in [
            (
                partition(4),
                "a newer release wrote this partition (version 4;",
            ),
            (
                partition(2),
                "an old release wrote this partition (version 2;",
            ),
            (device(2), "a newer release wrote this device (version 2;"),
        ] {
            let message = refused.expect_err(says).to_string();
            assert!(message.contains(says), "{message}");
        }
    }
}
