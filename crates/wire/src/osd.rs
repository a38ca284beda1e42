//! OSD: the procedures of an object storage device's server. Service 900, port 7006.
//!
//! A process serves several devices (partitions), each with a number of its own in the cell's OSD
//! database ([`crate::osddb`]); every call names one in its capability. Objects, versions and
//! capabilities are explained in [`crate::object`]. A superuser may name the device only
//! ([`crate::object::device_only`]).
//!
//! Ours. Aborts: `EACCES` the capability is refused, `ENOENT` no such object or version, `ESTALE` the
//! object is not at the base version any more, `EIO` a checksum is wrong, `ENOSPC`, `VBUSY` (the server
//! is at its limit), `EINVAL`.

use cellar_xdr::{AfsString, List, xdr_struct};

use crate::object::{Capability, ObjectId};
use crate::package::package;

/// Objects named in one call, at most.
pub const NAMED_MAX: usize = 1024;
/// Versions of an object, at most.
pub const VERSIONS_MAX: usize = 256;

/// `Remove`: can be brought back with `Undelete` until the retention time of the device is over.
pub const REMOVE_SOFT: u32 = 1;
/// `Remove`: goes for good, also on a device that keeps what is removed: what a repair has left that
/// never ended.
pub const REMOVE_HARD: u32 = 2;
/// `Checksum`: the CRC-32C.
pub const SUM_CRC32C: u32 = 1;
/// `Checksum`: the SHA-256.
pub const SUM_SHA256: u32 = 2;
/// `Checksum`: the MD5, for who has one from elsewhere to compare with; it proves nothing.
pub const SUM_MD5: u32 = 4;
/// `List`: those that were removed and can be brought back, instead of those that are there.
pub const LIST_REMOVED: u32 = 1;

xdr_struct! {
    /// A version of an object.
    #[derive(Copy, Default)]
    pub struct VersionInfo {
        /// Which.
        pub version: u64,
        /// Length in bytes.
        pub length: u64,
        /// When it was written last, in seconds since 1970.
        pub written: u64,
    }

    /// What is known of an object.
    #[derive(Default)]
    pub struct ObjectInfo {
        /// Which.
        pub object: ObjectId,
        /// When it was made, in seconds since 1970.
        pub created: u64,
        /// When it was read last, about.
        pub accessed: u64,
        /// When it was removed softly; 0: it is there.
        pub removed: u64,
        /// Bytes that it takes, all versions.
        pub allocated: u64,
        /// Its versions, ascending.
        pub versions: List<VersionInfo, VERSIONS_MAX>,
    }

    /// What of an object is still needed.
    #[derive(Default)]
    pub struct Needed {
        /// Which.
        pub object: ObjectId,
        /// These versions; those not named that are older than `below` go.
        pub keep: List<u64, VERSIONS_MAX>,
        /// Versions from here on stay whether they are named or not.
        pub below: u64,
    }

    /// Room of a device.
    #[derive(Copy, Default)]
    pub struct Space {
        /// The device.
        pub osd: u32,
        /// Bytes in all.
        pub total: u64,
        /// Bytes that can still be written.
        pub free: u64,
        /// Objects.
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

    /// Streams the length that follows (8 bytes: less than asked for at the object's end), then the bytes.
    1 Read { capability: Capability, object: ObjectId, version: u64, position: u64, length: u64 }
        -> ReadReply {} streams reply;
    /// Streams `length` bytes to `position` of version `version`, which is made from `base` (0: the object
    /// is made too, if it is not there) unless it is there already. Newer versions than `base`, other than
    /// `version`, were never finished and go. Several may write to one version at the same time.
    /// Answers when all is durable.
    2 Write {
        capability: Capability, object: ObjectId, base: u64, version: u64, position: u64, length: u64
    } -> WriteReply { length: u64 } streams request;
    /// Makes version `version` have that length: cut off, or with zeros behind. As Write otherwise.
    3 Truncate { capability: Capability, object: ObjectId, base: u64, version: u64, length: u64 }
        -> TruncateReply {};
    /// Servers of the cell: copies a version of an object of another device into an object here, with one
    /// version, as `source_capability` allows. The other device's server is at `host` (IPv4 mapped) and `port`.
    4 Copy {
        capability: Capability, object: ObjectId, version: u64, source_capability: Capability,
        source: ObjectId, source_version: u64, host: [u32; 4], port: u32
    } -> CopyReply { length: u64 };
    5 Examine { capability: Capability, object: ObjectId } -> ExamineReply { info: ObjectInfo };
    /// Reads a version and answers those sums of its bytes that `sums` (`SUM_*`) asks for; the others are 0.
    6 Checksum { capability: Capability, object: ObjectId, version: u64, sums: u32 }
        -> ChecksumReply { length: u64, crc32c: u32, sha256: [u32; 8], md5: [u32; 4] };
    /// The objects of a volume (0: of all) behind `after`, ascending; `LIST_*`.
    7 ListObjects { capability: Capability, volume: u32, after: ObjectId, limit: u32, flags: u32 }
        -> ListObjectsReply { objects: List<ObjectInfo, NAMED_MAX>, more: bool };
    /// Lets versions go, and for good an object that has none then. Objects that are not there are passed over.
    /// Answers the bytes that were given back.
    8 Prune { capability: Capability, needed: List<Needed, NAMED_MAX> } -> PruneReply { freed: u64 };
    /// `REMOVE_*`. Objects that are not there are passed over. Answers how many were.
    9 Remove { capability: Capability, objects: List<ObjectId, NAMED_MAX>, flags: u32 }
        -> RemoveReply { removed: u32 };
    10 Undelete { capability: Capability, objects: List<ObjectId, NAMED_MAX> }
        -> UndeleteReply { restored: u32 };
    /// Ends soft deletes for good: all that were removed before that time.
    11 Purge { capability: Capability, before: u64 } -> PurgeReply { purged: u32 };
    /// For everybody.
    12 GetSpace {} -> GetSpaceReply { devices: List<Space, 64> };
    /// Counters since the start, and how many capabilities were refused for which reason.
    13 GetStatistics {} -> GetStatisticsReply { figures: List<Figure, 256> };
    /// Verifies all blocks of a device at up to so many KiB a second (0: no limit) in the background.
    14 Scrub { capability: Capability, rate_kib: u32 } -> ScrubReply {};
    /// How far the last scrub is, and which objects are damaged.
    15 ScrubStatus { capability: Capability }
        -> ScrubStatusReply { running: bool, bytes: u64, total: u64, damaged: List<ObjectId, NAMED_MAX> };
}
