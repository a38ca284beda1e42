//! The record of a group: the volumes that share vnode versions, and its epochs.

use bytes::Bytes;
use cellar_wire::ids::VolumeId;

use super::{Fields, PutFields};
use crate::engine::space::with_checksum;
use crate::error::Result;

const FORM: u8 = 1;

/// The kind of holder of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum CloneKind {
    /// A volume: a clone.
    Clone = 0,
    /// A restore into the head, which sees this epoch until the restore is done.
    Pin = 1,
}

/// A clone or pin of a group, with the last epoch that it sees. Several may see the same epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CloneRef {
    /// For a pin, the head's id.
    pub(crate) id: VolumeId,
    pub(crate) epoch: u64,
    pub(crate) kind: CloneKind,
}

/// A group of volumes that share vnode versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupRecord {
    /// Identifies the group; never reused, and unique among all servers.
    pub(crate) lineage: [u8; 16],
    /// The epoch of changes made now; clones see earlier ones.
    pub(crate) epoch: u64,
    /// The id of the head, the volume that sees the newest epoch; 0 if there is none.
    pub(crate) head: VolumeId,
    /// All changes from this epoch on are recorded, including removals.
    pub(crate) history_from: u64,
    /// Ascending by epoch.
    pub(crate) clones: Vec<CloneRef>,
}

impl GroupRecord {
    /// A new group in its first epoch.
    pub(crate) fn new(lineage: [u8; 16], head: VolumeId) -> Self {
        Self {
            lineage,
            epoch: 1,
            head,
            history_from: 1,
            clones: Vec::new(),
        }
    }

    /// Returns whether the group has a head.
    pub(crate) fn has_head(&self) -> bool {
        self.head.0 != 0
    }

    /// The epoch that the head sees while it is being restored.
    pub(crate) fn pin(&self) -> Option<u64> {
        let pin = self
            .clones
            .iter()
            .find(|clone| clone.kind == CloneKind::Pin)?;
        Some(pin.epoch)
    }

    /// Adds a clone or pin.
    pub(crate) fn add(&mut self, clone: CloneRef) {
        let at = self
            .clones
            .partition_point(|known| known.epoch <= clone.epoch);
        self.clones.insert(at, clone);
    }

    pub(crate) fn encode(&self) -> Bytes {
        let mut out = vec![FORM];
        out.extend_from_slice(&self.lineage);
        out.put_u32(self.head.0);
        out.put_u64(self.epoch);
        out.put_u64(self.history_from);
        for clone in &self.clones {
            out.put_u8(clone.kind as u8);
            out.put_u32(clone.id.0);
            out.put_u64(clone.epoch);
        }
        with_checksum(out)
    }

    pub(crate) fn decode(value: &Bytes) -> Result<Self> {
        let mut fields = Fields::of(value, "group")?;
        if fields.u8()? != FORM {
            return Err(fields.malformed());
        }
        let mut record = Self {
            lineage: fields.lineage()?,
            head: VolumeId(fields.u32()?),
            epoch: fields.u64()?,
            history_from: fields.u64()?,
            clones: Vec::new(),
        };
        while !fields.rest.is_empty() {
            let kind = match fields.u8()? {
                0 => CloneKind::Clone,
                1 => CloneKind::Pin,
                _ => return Err(fields.malformed()),
            };
            record.clones.push(CloneRef {
                kind,
                id: VolumeId(fields.u32()?),
                epoch: fields.u64()?,
            });
        }
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_comes_back() {
        let mut record = GroupRecord::new([7; 16], VolumeId(5));
        record.epoch += 1;
        record.add(CloneRef {
            id: VolumeId(6),
            epoch: 2,
            kind: CloneKind::Pin,
        });
        record.add(CloneRef {
            id: VolumeId(7),
            epoch: 1,
            kind: CloneKind::Clone,
        });
        assert_eq!(record.pin(), Some(2));
        assert_eq!(record.clones[0].id, VolumeId(7));
        assert_eq!(GroupRecord::decode(&record.encode()).unwrap(), record);
    }
}
