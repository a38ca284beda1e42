//! The records of volumes, their groups and the partition.

use bytes::Bytes;
use cellar_wire::ids::{AfsTime, ViceId, VolumeId};

use super::{Fields, PutFields};
use crate::engine::space::with_checksum;
use crate::error::{Error, Result};
use crate::record::DeviceRecord;
use crate::state::core::GroupId;
use crate::state::traffic;
use crate::types::{StateId, Traffic, VolumeInfo, VolumeKind};

pub(super) const FORM: u8 = 1;

/// The largest epoch: the one that a head sees.
pub(crate) const EPOCH_MAX: u64 = u64::MAX;

/// The partition's own record.
pub(crate) struct PartitionRecord {
    /// The next group's number.
    pub(crate) next_group: u32,
}

impl PartitionRecord {
    /// Version of the whole format.
    const VERSION: u32 = 3;

    pub(crate) fn encode(&self) -> Bytes {
        let mut out = vec![FORM];
        out.put_u32(Self::VERSION);
        out.put_u32(self.next_group);
        with_checksum(out)
    }

    pub(crate) fn decode(value: &Bytes) -> Result<Self> {
        let mut fields = Fields::of(value, "partition")?;
        if fields.u8()? == DeviceRecord::FORM {
            let what = "this is an object storage device, not a partition of volumes";
            return Err(Error::Format(what.into()));
        }
        fields.format_version(Self::VERSION)?;
        Ok(Self {
            next_group: fields.u32()?,
        })
    }
}

/// A volume's record. For a group's head, usage and dates of change are in the counters instead.
#[derive(Clone, Debug)]
pub(crate) struct VolumeRecord {
    pub(crate) info: VolumeInfo,
    /// The group that holds its vnodes.
    pub(crate) group: GroupId,
    /// The last epoch that the volume sees: for a clone its snapshot's epoch, for a head the
    /// largest number.
    pub(crate) epoch: u64,
    /// The state that a restore filled it with.
    pub(crate) received: Option<Received>,
}

/// The state with which the last restore filled a head, under its sender's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) state: StateId,
    /// The epoch whose contents are that state. A later change has a later epoch.
    pub(crate) epoch: u64,
}

impl VolumeRecord {
    pub(crate) fn encode(&self) -> Bytes {
        let info = &self.info;
        let mut out = Vec::with_capacity(256);
        out.put_u8(FORM);
        out.put_u8(info.kind as u8);
        let flags = [
            info.online,
            info.in_service,
            info.blessed,
            info.destroy_me,
            info.traffic.is_some(),
            info.policy != 0,
            info.shared != 0,
            info.borrowed != 0,
        ];
        out.put_u8(
            flags
                .iter()
                .rev()
                .fold(0, |bits, &flag| bits << 1 | u8::from(flag)),
        );
        out.put_u32(self.group.0);
        out.put_u64(self.epoch);
        out.put_u64(info.blocks_used);
        out.put_u64(info.files);
        for word in [
            info.id.0,
            info.parent.0,
            info.clone.0,
            info.backup.0,
            info.restored_from.0,
            info.owner.0 as u32,
            info.max_quota,
            info.min_quota,
            info.max_files,
            info.created.0,
            info.copied.0,
            info.updated.0,
            info.accessed.0,
            info.backed_up.0,
            info.expires.0,
            info.update_counter,
            info.day_use,
            info.day_use_date.0,
            info.account,
        ] {
            out.put_u32(word);
        }
        for use_of_day in info.week_use {
            out.put_u32(use_of_day);
        }
        for word in info.traffic.iter().flat_map(|traffic| traffic.words()) {
            out.put_u32(word);
        }
        if info.policy != 0 {
            out.put_u32(info.policy);
        }
        if info.shared != 0 {
            out.put_u64(info.shared);
        }
        if info.borrowed != 0 {
            out.put_u64(info.borrowed);
            out.put_u8(info.takes_over.into());
        }
        out.put_string(info.name.as_bytes());
        out.put_string(&info.offline_message);
        out.put_string(&info.message_of_the_day);
        if let Some(received) = &self.received {
            out.extend_from_slice(&received.state.lineage);
            out.put_u64(received.state.epoch);
            out.put_u64(received.epoch);
        }
        with_checksum(out)
    }

    pub(crate) fn decode(value: &Bytes) -> Result<Self> {
        let mut fields = Fields::of(value, "volume")?;
        if fields.u8()? != FORM {
            return Err(fields.malformed());
        }
        let kind = match fields.u8()? {
            0 => VolumeKind::ReadWrite,
            1 => VolumeKind::ReadOnly,
            2 => VolumeKind::Backup,
            _ => return Err(fields.malformed()),
        };
        let flags = fields.u8()?;
        let group = GroupId(fields.u32()?);
        let epoch = fields.u64()?;
        let blocks_used = fields.u64()?;
        let files = fields.u64()?;
        let mut word = || fields.u32();
        let mut info = VolumeInfo {
            kind,
            online: flags & 1 != 0,
            in_service: flags & 2 != 0,
            blessed: flags & 4 != 0,
            destroy_me: flags & 8 != 0,
            blocks_used,
            files,
            id: VolumeId(word()?),
            parent: VolumeId(word()?),
            clone: VolumeId(word()?),
            backup: VolumeId(word()?),
            restored_from: VolumeId(word()?),
            owner: ViceId(word()? as i32),
            max_quota: word()?,
            min_quota: word()?,
            max_files: word()?,
            created: AfsTime(word()?),
            copied: AfsTime(word()?),
            updated: AfsTime(word()?),
            accessed: AfsTime(word()?),
            backed_up: AfsTime(word()?),
            expires: AfsTime(word()?),
            update_counter: word()?,
            day_use: word()?,
            day_use_date: AfsTime(word()?),
            account: word()?,
            week_use: [0; 7],
            traffic: None,
            policy: 0,
            shared: 0,
            borrowed: 0,
            takes_over: false,
            name: String::new(),
            offline_message: Bytes::new(),
            message_of_the_day: Bytes::new(),
        };
        for day in &mut info.week_use {
            *day = fields.u32()?;
        }
        if flags & 16 != 0 {
            let mut words = [0; traffic::WORDS];
            for word in &mut words {
                *word = fields.u32()?;
            }
            info.traffic = Some(Box::new(Traffic::from_words(&words)));
        }
        if flags & 32 != 0 {
            info.policy = fields.u32()?;
        }
        if flags & 64 != 0 {
            info.shared = fields.u64()?;
        }
        if flags & 128 != 0 {
            info.borrowed = fields.u64()?;
            info.takes_over = match fields.u8()? {
                0 => false,
                1 => true,
                _ => return Err(fields.malformed()),
            };
        }
        info.name = String::from_utf8(fields.string()?.to_vec()).map_err(|_| fields.malformed())?;
        info.offline_message = fields.string()?;
        info.message_of_the_day = fields.string()?;
        let mut received = None;
        if !fields.rest.is_empty() {
            received = Some(Received {
                state: StateId {
                    lineage: fields.lineage()?,
                    epoch: fields.u64()?,
                },
                epoch: fields.u64()?,
            });
        }
        Ok(Self {
            info,
            group,
            epoch,
            received,
        })
    }
}

/// The numbers that change with every operation on a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CountersRecord {
    pub(crate) blocks_used: u64,
    pub(crate) files: u64,
    pub(crate) updated: AfsTime,
    pub(crate) update_counter: u32,
    /// The next odd and even vnode numbers, and the next uniquifier. No number is given out twice.
    pub(crate) next_directory: u32,
    pub(crate) next_file: u32,
    pub(crate) next_uniquifier: u32,
    /// The number of removals that the index of changes still has.
    pub(crate) removed: u32,
}

impl CountersRecord {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(48);
        out.put_u8(FORM);
        out.put_u64(self.blocks_used);
        out.put_u64(self.files);
        for word in [
            self.updated.0,
            self.update_counter,
            self.next_directory,
            self.next_file,
            self.next_uniquifier,
            self.removed,
        ] {
            out.put_u32(word);
        }
        with_checksum(out)
    }

    pub(crate) fn decode(value: &Bytes) -> Result<Self> {
        let mut fields = Fields::of(value, "counters")?;
        if fields.u8()? != FORM {
            return Err(fields.malformed());
        }
        Ok(Self {
            blocks_used: fields.u64()?,
            files: fields.u64()?,
            updated: AfsTime(fields.u32()?),
            update_counter: fields.u32()?,
            next_directory: fields.u32()?,
            next_file: fields.u32()?,
            next_uniquifier: fields.u32()?,
            removed: fields.u32()?,
        })
    }
}
