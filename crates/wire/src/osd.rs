//! OSD: the procedures of an object storage device's server. Service 900, port 7006.
//!
//! One process serves several devices (partitions). Each device has its own number in the cell's
//! OSD database ([`crate::osddb`]), and the capability of every call names one. [`crate::object`]
//! explains objects, versions and capabilities. A superuser may give only the device
//! ([`crate::object::device_only`]).
//!
//! This service is an extension of Cellar. Abort codes:
//!
//! | Code | Meaning |
//! |---|---|
//! | `EACCES` | The capability is refused. |
//! | `ENOENT` | There is no such object or version. |
//! | `ESTALE` | The object is no longer at the base version. |
//! | `EIO` | A checksum is wrong. |
//! | `EBADMSG` | An archive has other bytes than were written. |
//! | `EOPNOTSUPP` | An archive does not answer this call. |
//! | `ENOSPC` | The device is full. |
//! | `VBUSY` | The server is at its limit. |
//! | `EINVAL` | An argument is not valid. |

use cellar_xdr::{AfsString, List, xdr_struct};

use crate::object::{Capability, ObjectId};
use crate::package::package;

/// The most objects in one call.
pub const NAMED_MAX: usize = 1024;
/// The most versions of an object.
pub const VERSIONS_MAX: usize = 256;

/// `Remove`: `Undelete` can restore the object until the retention time of the device is over.
pub const REMOVE_SOFT: u32 = 1;
/// `Remove`: remove the object finally, also on a device that retains removed objects. For the
/// remains of a repair that never ended.
pub const REMOVE_HARD: u32 = 2;
/// `Checksum`: the CRC-32C.
pub const SUM_CRC32C: u32 = 1;
/// `Checksum`: the SHA-256.
pub const SUM_SHA256: u32 = 2;
/// `Checksum`: the MD5, for comparison with an MD5 from elsewhere; it does not prove integrity.
pub const SUM_MD5: u32 = 4;
/// `List`: the removed objects that can be restored, instead of the present ones.
pub const LIST_REMOVED: u32 = 1;

xdr_struct! {
    /// A version of an object.
    #[derive(Copy, Default)]
    pub struct VersionInfo {
        /// The version.
        pub version: u64,
        /// Length in bytes.
        pub length: u64,
        /// When it was last written, in seconds since 1970.
        pub written: u64,
    }

    /// The properties of an object.
    #[derive(Default)]
    pub struct ObjectInfo {
        /// The object.
        pub object: ObjectId,
        /// When it was created, in seconds since 1970.
        pub created: u64,
        /// When it was last read, approximately.
        pub accessed: u64,
        /// When it was softly removed; 0: it is present.
        pub removed: u64,
        /// The bytes that all its versions occupy.
        pub allocated: u64,
        /// Its versions, ascending.
        pub versions: List<VersionInfo, VERSIONS_MAX>,
    }

    /// The versions of an object that are still needed.
    #[derive(Default)]
    pub struct Needed {
        /// The object.
        pub object: ObjectId,
        /// The needed versions. Other versions older than `below` are removed.
        pub keep: List<u64, VERSIONS_MAX>,
        /// Versions from this one on stay, whether they are listed or not.
        pub below: u64,
    }

    /// Space of a device.
    #[derive(Copy, Default)]
    pub struct Space {
        /// The device.
        pub osd: u32,
        /// The capacity in bytes.
        pub total: u64,
        /// The bytes that can still be written.
        pub free: u64,
        /// The number of objects.
        pub objects: u64,
    }

    /// A counter of the server.
    #[derive(Default)]
    pub struct Figure {
        /// Its name.
        pub name: AfsString<64>,
        /// Its value.
        pub value: u64,
    }
}

package! {
    /// Object storage.
    pub OSD { service: 900, port: 7006, statistics: 900 }

    /// Streams the length of the data (8 bytes), then the data. The length is less than requested
    /// at the end of the object.
    1 Read { capability: Capability, object: ObjectId, version: u64, position: u64, length: u64 }
        -> ReadReply {} streams reply;
    /// Writes the `length` bytes that the client streams to `position` of version `version`. If
    /// that version does not exist, it is made from `base`; 0: the object is created too if it does
    /// not exist.
    ///
    /// Versions newer than `base`, other than `version`, were never finished and are removed.
    /// Several clients may write to one version at the same time. The call returns when all is
    /// durable.
    2 Write {
        capability: Capability, object: ObjectId, base: u64, version: u64, position: u64, length: u64
    } -> WriteReply { length: u64 } streams request;
    /// Sets the length of version `version`: cuts it off, or appends zeros. Otherwise like Write.
    3 Truncate { capability: Capability, object: ObjectId, base: u64, version: u64, length: u64 }
        -> TruncateReply {};
    /// Copies a version of an object of another device into an object here, which then has one
    /// version. `source_capability` allows the reading. The server of the other device is at `host`
    /// (IPv4 mapped) and `port`. For servers of the cell.
    4 Copy {
        capability: Capability, object: ObjectId, version: u64, source_capability: Capability,
        source: ObjectId, source_version: u64, host: [u32; 4], port: u32
    } -> CopyReply { length: u64 };
    5 Examine { capability: Capability, object: ObjectId } -> ExamineReply { info: ObjectInfo };
    /// Reads a version and returns the sums of its bytes that `sums` (`SUM_*`) selects; the others
    /// are 0.
    6 Checksum { capability: Capability, object: ObjectId, version: u64, sums: u32 }
        -> ChecksumReply { length: u64, crc32c: u32, sha256: [u32; 8], md5: [u32; 4] };
    /// Lists the objects of a volume (0: of all volumes) after `after`, ascending; `LIST_*`.
    7 ListObjects { capability: Capability, volume: u32, after: ObjectId, limit: u32, flags: u32 }
        -> ListObjectsReply { objects: List<ObjectInfo, NAMED_MAX>, more: bool };
    /// Removes versions, and finally removes an object that has no version left. Objects that do
    /// not exist are skipped. Returns the bytes that were freed.
    8 Prune { capability: Capability, needed: List<Needed, NAMED_MAX> } -> PruneReply { freed: u64 };
    /// Removes objects; `REMOVE_*`. Objects that do not exist are skipped. Returns the number of
    /// removed objects.
    9 Remove { capability: Capability, objects: List<ObjectId, NAMED_MAX>, flags: u32 }
        -> RemoveReply { removed: u32 };
    10 Undelete { capability: Capability, objects: List<ObjectId, NAMED_MAX> }
        -> UndeleteReply { restored: u32 };
    /// Finally removes all objects that were softly removed before that time.
    11 Purge { capability: Capability, before: u64 } -> PurgeReply { purged: u32 };
    /// For every caller.
    12 GetSpace {} -> GetSpaceReply { devices: List<Space, 64> };
    /// Returns counters since the start, and the numbers of refused capabilities by reason.
    13 GetStatistics {} -> GetStatisticsReply { figures: List<Figure, 256> };
    /// Verifies all blocks of a device in the background, at up to `rate_kib` KiB per second (0: no
    /// limit).
    14 Scrub { capability: Capability, rate_kib: u32 } -> ScrubReply {};
    /// Returns the progress of the last scrub, and the damaged objects.
    15 ScrubStatus { capability: Capability }
        -> ScrubStatusReply { running: bool, bytes: u64, total: u64, damaged: List<ObjectId, NAMED_MAX> };
    /// Returns the length, the BLAKE3 and the MD5 of a version. An archive answers from what it
    /// computed when the bytes were written; a device on a disk reads them.
    16 Digest { capability: Capability, object: ObjectId, version: u64 }
        -> DigestReply { length: u64, blake3: [u32; 8], md5: [u32; 4] };
}

/// The bytes of a sum as words of the wire, the first byte in the highest place.
pub fn digest_words<const N: usize>(digest: &[u8]) -> [u32; N] {
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(digest.as_chunks::<4>().0) {
        *word = u32::from_be_bytes(*bytes);
    }
    words
}
