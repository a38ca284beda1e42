//! What our own procedures carry: states of volumes, and the head of a delta.

use cellar_xdr::{AfsString, xdr_struct};

use super::VolumeName;
use crate::abort::AbortCode;
use crate::ids::{AfsTime, ViceId, VolumeId};

/// The version of states and deltas that this program knows.
pub const DELTA_VERSION: u32 = 1;

/// GetCapabilities: takes deltas, and serves read-only volumes while they are replaced.
pub const CAN_DELTA: u32 = 1;

/// Restore, RestoreDelta: the volume is not what the dump or delta builds on, and stays as it is
/// (ESTALE).
pub const WRONG_BASE: AbortCode = AbortCode(116);

/// [`DeltaHead::base_kind`]: the volume is empty, or loses what it has.
pub const BASE_NOTHING: u32 = 0;
/// The volume has every change before a date, and the delta names each vnode.
pub const BASE_DATE: u32 = 1;
/// The volume is in a known state.
pub const BASE_STATE: u32 = 2;

xdr_struct! {
    /// A state of a volume's contents, for ever. All zero: none that is known.
    #[derive(Copy, Default)]
    pub struct VolumeState {
        /// The group of volumes that it is a state of.
        pub lineage: [u32; 4],
        /// When in its life.
        pub epoch: u64,
    }

    /// What a delta begins with, and makes of a volume.
    #[derive(Default)]
    pub struct DeltaHead {
        /// [`DELTA_VERSION`].
        pub version: u32,
        /// `BASE_*`: what the volume has to be before.
        pub base_kind: u32,
        /// That date.
        pub base_date: AfsTime,
        /// That state.
        pub base: VolumeState,
        /// The state afterwards.
        pub state: VolumeState,
        /// The volume that it was made from.
        pub source: VolumeId,
        /// Its name.
        pub name: VolumeName,
        /// The next vnode uniquifier.
        pub uniquifier: u32,
        /// Owner.
        pub owner: ViceId,
        /// KiB, 0 for none.
        pub max_quota: u32,
        /// Unused.
        pub min_quota: u32,
        /// Files and directories, 0 for none.
        pub max_files: u32,
        /// Free for administrators.
        pub account: u32,
        /// KiB in use.
        pub blocks_used: u64,
        /// Files and directories.
        pub files: u64,
        /// Counts changes.
        pub update_counter: u32,
        /// When it was made; of a clone when it was cloned.
        pub creation_date: AfsTime,
        /// When it was last used.
        pub access_date: AfsTime,
        /// When it last changed.
        pub update_date: AfsTime,
        /// Unused.
        pub expiration_date: AfsTime,
        /// When the backup volume was made.
        pub backup_date: AfsTime,
        /// Why it is off line.
        pub offline_message: AfsString<128>,
        /// For users.
        pub message_of_the_day: AfsString<128>,
    }
}

impl VolumeState {
    /// Whether it names anything.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.lineage != [0; 4]
    }
}
