//! The record of a group: the volumes that share vnode versions, and its epochs.

use bytes::Bytes;
use cellar_wire::ids::{AfsTime, VolumeId};

use super::{Fields, Put};
use crate::engine::space::with_checksum;
use crate::error::Result;

const FORM: u8 = 1;
/// Epochs whose start is remembered, at most.
const STARTS_MAX: usize = 64;

/// Who holds an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum CloneKind {
    /// A volume: a clone.
    Clone = 0,
    /// A restore into the head, which sees this epoch until the restore is done.
    Pin = 1,
}

/// A clone of a group, or a pin, and the last epoch that it sees. Several may see the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CloneRef {
    /// Of a pin: the head's.
    pub(crate) id: VolumeId,
    pub(crate) epoch: u64,
    pub(crate) kind: CloneKind,
}

/// Where an epoch began: no version of an earlier one has a later server date than `newest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EpochStart {
    pub(crate) epoch: u64,
    pub(crate) newest: AfsTime,
}

/// A group of volumes that share vnode versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupRecord {
    /// Names the group for ever, and everywhere.
    pub(crate) lineage: [u8; 16],
    /// The epoch of changes made now; clones see earlier ones.
    pub(crate) epoch: u64,
    /// The head's id: the volume that sees the newest epoch. 0: there is none.
    pub(crate) head: VolumeId,
    /// All changes from this epoch on are known, removals too.
    pub(crate) history_from: u64,
    /// Ascending by epoch.
    pub(crate) clones: Vec<CloneRef>,
    /// Starts of some epochs, ascending; of the present one always.
    pub(crate) starts: Vec<EpochStart>,
}

impl GroupRecord {
    /// A group whose first epoch starts.
    pub(crate) fn new(lineage: [u8; 16], head: VolumeId) -> Self {
        Self {
            lineage,
            epoch: 1,
            head,
            history_from: 1,
            clones: Vec::new(),
            starts: vec![EpochStart {
                epoch: 1,
                newest: AfsTime(0),
            }],
        }
    }

    /// Whether the head is there.
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

    /// Begins the next epoch. `newest` is the latest server date of the group so far.
    pub(crate) fn begin_epoch(&mut self, newest: AfsTime) {
        self.epoch += 1;
        let start = EpochStart {
            epoch: self.epoch,
            newest,
        };
        self.starts.push(start);
        if self.starts.len() > STARTS_MAX {
            // The one goes whose neighbours are nearest to one another: what stays is even in time.
            let gap = |index: &usize| {
                let (before, after) = (&self.starts[index - 1], &self.starts[index + 1]);
                after.newest.0.saturating_sub(before.newest.0)
            };
            if let Some(index) = (1..self.starts.len() - 1).min_by_key(gap) {
                self.starts.remove(index);
            }
        }
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
        out.put_u8(self.starts.len() as u8);
        for start in &self.starts {
            out.put_u64(start.epoch);
            out.put_u32(start.newest.0);
        }
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
            starts: Vec::new(),
        };
        for _ in 0..fields.u8()? {
            record.starts.push(EpochStart {
                epoch: fields.u64()?,
                newest: AfsTime(fields.u32()?),
            });
        }
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
        record.begin_epoch(AfsTime(110));
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

    #[test]
    fn starts_of_epochs_are_bounded_and_spread_over_time() {
        let mut record = GroupRecord::new([0; 16], VolumeId(5));
        for day in 1..1000 {
            record.begin_epoch(AfsTime(day * 86_400));
        }
        assert_eq!(record.starts.len(), STARTS_MAX);
        assert_eq!(record.starts.first().unwrap().epoch, 1);
        assert_eq!(record.starts.last().unwrap().epoch, record.epoch);
        let gaps = record
            .starts
            .windows(2)
            .map(|two| two[1].epoch - two[0].epoch);
        assert!(gaps.max().unwrap() < 40);
    }
}
