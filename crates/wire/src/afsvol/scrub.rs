//! The records that a scrub streams. A scrub verifies all stored data while it is in use.
//!
//! Each record is preceded by a word that gives its type.

use cellar_xdr::{AfsString, List, xdr_struct};

use crate::ids::{Uniquifier, VnodeId, VolumeId};

/// Damaged places of one file.
pub const PLACES_MAX: usize = 4096;

/// The end of the records; the results of the call follow.
pub const SCRUB_END: u32 = 0;
/// A [`ScrubProgress`] follows.
pub const SCRUB_PROGRESS: u32 = 1;
/// A [`ScrubDamage`] follows.
pub const SCRUB_DAMAGE: u32 = 2;

xdr_struct! {
    /// The progress of a scrub.
    #[derive(Copy, Default)]
    pub struct ScrubProgress {
        /// Volumes verified.
        pub volumes: u64,
        /// Volumes to verify in all.
        pub volumes_total: u64,
        /// Versions of vnodes verified.
        pub vnodes: u64,
        /// Bytes read and verified.
        pub bytes: u64,
        /// Damaged files found.
        pub damaged: u64,
    }

    /// A range of bytes.
    #[derive(Copy, Default)]
    pub struct ScrubPlace {
        /// The first byte.
        pub at: u64,
        /// The number of bytes.
        pub length: u64,
    }

    /// A damaged file, directory or link.
    #[derive(Default)]
    pub struct ScrubDamage {
        /// The first volume that has it.
        pub volume: VolumeId,
        /// The file; 0: the damage is in a record of the volume itself.
        pub vnode: VnodeId,
        /// Its uniquifier; 0 if its record cannot be read.
        pub uniquifier: Uniquifier,
        /// All volumes that have the damaged file.
        pub volumes: List<VolumeId, 256>,
        /// Its path in the volume, without the first slash; empty if it was not found.
        pub path: AfsString<4096>,
        /// The data version of the damaged bytes.
        pub data_version: u64,
        /// The length of the file.
        pub length: u64,
        /// The damaged ranges; empty if the record itself is damaged.
        pub places: List<ScrubPlace, PLACES_MAX>,
        /// The error of the system or of the checksum for the first damaged range.
        pub cause: AfsString<256>,
    }
}
