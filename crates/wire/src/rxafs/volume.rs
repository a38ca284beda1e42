//! Volumes as the file server describes them.

use cellar_xdr::{Decode, DecodeError, Decoder, Encode, Encoder, xdr_struct};

use crate::ids::VolumeId;

xdr_struct! {
    /// The state of a volume (`AFSFetchVolumeStatus`, 12 words).
    #[derive(Copy, Default)]
    pub struct FetchVolumeStatus {
        /// The volume.
        pub volume: VolumeId,
        /// The read-write volume of its group.
        pub parent: VolumeId,
        /// Attached.
        pub online: bool,
        /// Offered to clients.
        pub in_service: bool,
        /// Declared sound by an administrator.
        pub blessed: bool,
        /// Damaged; needs salvage.
        pub needs_salvage: bool,
        /// 0 read-only, 1 read-write.
        pub volume_type: i32,
        /// Unused, in KiB.
        pub min_quota: i32,
        /// KiB, 0 for none.
        pub max_quota: i32,
        /// KiB.
        pub blocks_in_use: i32,
        /// KiB free on the partition.
        pub partition_blocks_available: i32,
        /// KiB of the partition.
        pub partition_max_blocks: i32,
    }

    /// The location of a volume, in the form for the oldest clients (`VolumeInfo`, 16 words).
    #[derive(Copy, Default)]
    pub struct VolumeInfo {
        /// The volume asked for.
        pub volume: VolumeId,
        /// Its type: 0 RW, 1 RO, 2 backup.
        pub volume_type: i32,
        /// Ids of the group by type.
        pub type_ids: [u32; 5],
        /// The number of servers that follow.
        pub server_count: u32,
        /// Their addresses.
        pub servers: [u32; 8],
    }

    /// Like [`VolumeInfo`], with ports (`AFSVolumeInfo`, 24 words).
    #[derive(Copy, Default)]
    pub struct AfsVolumeInfo {
        /// The volume asked for.
        pub volume: VolumeId,
        /// Its type: 0 RW, 1 RO, 2 backup.
        pub volume_type: i32,
        /// Ids of the group by type.
        pub type_ids: [u32; 5],
        /// The number of servers that follow.
        pub server_count: u32,
        /// Their addresses.
        pub servers: [u32; 8],
        /// Their ports.
        pub ports: [u16; 8],
    }
}

/// Quotas to change (`AFSStoreVolumeStatus`, 3 words: a mask and two values).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreVolumeStatus {
    /// Unused by servers, KiB.
    pub min_quota: Option<i32>,
    /// KiB, 0 for none.
    pub max_quota: Option<i32>,
}

const SET_MIN_QUOTA: u32 = 1;
const SET_MAX_QUOTA: u32 = 2;

impl Encode for StoreVolumeStatus {
    fn encode(&self, out: &mut Encoder<'_>) {
        let min = self.min_quota.map_or(0, |_| SET_MIN_QUOTA);
        let max = self.max_quota.map_or(0, |_| SET_MAX_QUOTA);
        out.u32(min | max);
        out.i32(self.min_quota.unwrap_or(0));
        out.i32(self.max_quota.unwrap_or(0));
    }
}

impl Decode for StoreVolumeStatus {
    const MIN_SIZE: usize = 12;

    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let [mask, min, max] = d.words()?;
        Ok(Self {
            min_quota: (mask & SET_MIN_QUOTA != 0).then_some(min as i32),
            max_quota: (mask & SET_MAX_QUOTA != 0).then_some(max as i32),
        })
    }
}
