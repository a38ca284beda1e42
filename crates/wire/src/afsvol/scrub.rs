//! What a scrub streams: verification of everything that is stored, while it is in use.
//!
//! Each record is a word that says which, and the record.

use cellar_xdr::{AfsString, List, xdr_struct};

use crate::ids::{Uniquifier, VnodeId, VolumeId};

/// Damaged places of one file.
pub const PLACES_MAX: usize = 4096;

/// No record follows but the results.
pub const SCRUB_END: u32 = 0;
/// A [`ScrubProgress`] follows.
pub const SCRUB_PROGRESS: u32 = 1;
/// A [`ScrubDamage`] follows.
pub const SCRUB_DAMAGE: u32 = 2;

xdr_struct! {
    /// How far a scrub is.
    #[derive(Copy, Default)]
    pub struct ScrubProgress {
        /// Volumes looked at.
        pub volumes: u64,
        /// How many there are to look at.
        pub volumes_total: u64,
        /// Versions of vnodes looked at.
        pub vnodes: u64,
        /// Bytes read and verified.
        pub bytes: u64,
        /// Damaged files found.
        pub damaged: u64,
    }

    /// A range of bytes.
    #[derive(Copy, Default)]
    pub struct ScrubPlace {
        /// The first.
        pub at: u64,
        /// How many.
        pub length: u64,
    }

    /// A damaged file, directory or link.
    #[derive(Default)]
    pub struct ScrubDamage {
        /// The first volume that has it.
        pub volume: VolumeId,
        /// The file; 0: a record of the volume itself.
        pub vnode: VnodeId,
        /// Its uniquifier; 0 if its record cannot be read.
        pub uniquifier: Uniquifier,
        /// All volumes that have it so.
        pub volumes: List<VolumeId, 256>,
        /// Its path in the volume, without the first slash; empty if it was not found.
        pub path: AfsString<4096>,
        /// The data version of the damaged bytes.
        pub data_version: u64,
        /// The length of the file.
        pub length: u64,
        /// Where bytes are damaged; empty if it is the record.
        pub places: List<ScrubPlace, PLACES_MAX>,
        /// What the system or the checksum said, of the first.
        pub cause: AfsString<256>,
    }
}
