//! Arguments of our own procedures: states of volumes, and the head of a delta.

use cellar_xdr::{AfsString, xdr_struct};

use super::VolumeName;
use crate::abort::AbortCode;
use crate::ids::{AfsTime, ViceId, VolumeId};

/// The version of states and deltas that this program knows.
pub const DELTA_VERSION: u32 = 1;

/// GetCapabilities: the server takes deltas, and serves read-only volumes while they are replaced.
pub const CAN_DELTA: u32 = 1;
/// GetCapabilities: the server takes removed files whose copies in archives are kept.
pub const CAN_RETIRED: u32 = 2;

/// Restore, RestoreDelta: the volume is not in the state that the dump or delta starts from, and
/// stays as it is (ESTALE).
pub const WRONG_BASE: AbortCode = AbortCode(116);

/// [`DeltaHead::base_kind`]: the volume is empty, or loses its contents.
pub const BASE_NOTHING: u32 = 0;
/// The volume has every change before a date, and the delta names each vnode.
pub const BASE_DATE: u32 = 1;
/// The volume is in a known state.
pub const BASE_STATE: u32 = 2;

xdr_struct! {
    /// A state of a volume's contents, unique for ever. All zero: no known state.
    #[derive(Copy, Default)]
    pub struct VolumeState {
        /// The group of volumes to which the state belongs.
        pub lineage: [u32; 4],
        /// The number of the state within the group.
        pub epoch: u64,
    }

    /// The head of a delta: the state that it starts from, and the volume that it produces.
    #[derive(Default)]
    pub struct DeltaHead {
        /// [`DELTA_VERSION`].
        pub version: u32,
        /// `BASE_*`: the state that the volume must be in before.
        pub base_kind: u32,
        /// The date, for [`BASE_DATE`].
        pub base_date: AfsTime,
        /// The state, for [`BASE_STATE`].
        pub base: VolumeState,
        /// The state after the delta.
        pub state: VolumeState,
        /// The volume that the delta was made from.
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
        /// The count of changes.
        pub update_counter: u32,
        /// When the volume was made; for a clone, when it was cloned.
        pub creation_date: AfsTime,
        /// When the volume was last used.
        pub access_date: AfsTime,
        /// When the volume last changed.
        pub update_date: AfsTime,
        /// Unused.
        pub expiration_date: AfsTime,
        /// When the backup volume was made.
        pub backup_date: AfsTime,
        /// Why the volume is off line.
        pub offline_message: AfsString<128>,
        /// A message for users.
        pub message_of_the_day: AfsString<128>,
    }
}

impl VolumeState {
    /// Whether this is a known state.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.lineage != [0; 4]
    }
}
