//! AFSOSD: the calls of a client that knows objects to a file server. Service 2, port 7000.
//!
//! 1. *Reading.* `BeginFetch` returns the layout and capabilities, and the client reads the bytes
//!    from the OSDs. The client calls the file server again only when its callback promise ends or
//!    the capabilities expire.
//! 2. *Storing.* `BeginStore` creates the versions to write to, and the client writes the bytes to
//!    the OSDs. `EndStore` then makes these versions the contents of the file in one change;
//!    `AbortStore` discards them.
//! 3. If a client does not return within [`STORE_LEASE`] seconds, the file server discards its
//!    store.
//!
//! This service is an extension of Cellar. Other file servers answer RXGEN_OPCODE or nothing; the
//! client then uses plain FetchData and StoreData.

mod hsm;

use cellar_xdr::{AfsString, List, xdr_struct};

use crate::ids::{AfsTime, Fid, ViceId, VnodeId, VolumeId};
use crate::object::{ARCHIVE_COPIES_MAX, ArchiveCopy, Capability, Layout, OBJECTS_MAX, Shape};
use crate::osddb::{OsdListed, PinReason};
use crate::package::package;
use crate::rxafs::{AfsFetchStatus, Callback, VolSync};

pub use hsm::*;

/// Seconds after which a store must be renewed or ended.
pub const STORE_LEASE: u32 = 60;
/// The most pieces of a file that `GetPieces` lists.
pub const PIECES_MAX: usize = OBJECTS_MAX;

xdr_struct! {
    /// A file in objects, with all that a client needs to access it.
    pub struct Access {
        /// The layout of the bytes.
        pub layout: Layout,
        /// One for each object of the layout, in its order. Empty if the client must not use the
        /// object.
        pub capabilities: List<Capability, OBJECTS_MAX>,
        /// The devices named by the layout.
        pub devices: List<OsdListed, OBJECTS_MAX>,
        /// When the capabilities expire.
        pub expires: AfsTime,
    }

    /// An object that a client could not write.
    #[derive(Copy, Default)]
    pub struct Failed {
        /// The index in the layout's list of objects.
        pub place: u32,
        /// The abort code or errno.
        pub code: i32,
    }
}

package! {
    /// Direct access to files in objects.
    pub AFSOSD { service: 2, port: 7000, statistics: 2 }

    /// Returns the layout of a file and capabilities to read it. ENODATA: the file's bytes are on
    /// the file server.
    1 BeginFetch { fid: Fid, position: u64, length: u64 }
        -> BeginFetchReply { status: AfsFetchStatus, callback: Callback, sync: VolSync, access: Access };
    /// Begins a store of up to `length` bytes at `position`. The file is at least `file_length`
    /// bytes long afterwards.
    ///
    /// If the bytes of the file are on the file server and policy or `shape` asks for objects, the
    /// file is moved to objects first. If neither does, the call fails with ENODATA. Only callers
    /// who may administer the directory may give `shape` (stripes 0: none). EBUSY: another client
    /// stores into the file.
    2 BeginStore { fid: Fid, position: u64, length: u64, file_length: u64, shape: List<Shape, 1> }
        -> BeginStoreReply { store: u64, status: AfsFetchStatus, access: Access };
    /// Renews the store for another lease time and returns new capabilities.
    3 ExtendStore { fid: Fid, store: u64, position: u64, length: u64 }
        -> ExtendStoreReply { access: Access };
    /// Makes the written versions the contents of the file. The file is then at least `length`
    /// bytes long, and `modified` is its date. An object that failed becomes stale if another copy
    /// has its bytes. Otherwise the call fails with EIO and changes nothing.
    4 EndStore {
        fid: Fid, store: u64, length: u64, modified: AfsTime, failed: List<Failed, OBJECTS_MAX>
    } -> EndStoreReply { status: AfsFetchStatus, sync: VolSync };
    5 AbortStore { fid: Fid, store: u64 } -> AbortStoreReply {};
    /// Returns the location of the pieces of a file (`fs osd`). Needs the right to read.
    6 GetPieces { fid: Fid } -> GetPiecesReply { length: u64, layout: List<Layout, 1>, devices: List<OsdListed, OBJECTS_MAX> };
    /// Returns the policy of a directory (`fs policy`) and that of its volume.
    7 GetPolicy { fid: Fid } -> GetPolicyReply { directory: u32, volume: u32 };
    /// Sets the policy of a directory; 0: that of the volume. For superusers, and for callers who
    /// may administer the directory.
    8 SetPolicy { fid: Fid, policy: u32 } -> SetPolicyReply {};
    /// Sets the policy of a volume (`vos setfields -osdpolicy`). 0: never objects, 1: by size. For
    /// superusers.
    9 SetVolumePolicy { fid: Fid, policy: u32 } -> SetVolumePolicyReply {};
    /// Lists, for garbage collection, the objects that volumes of this server name and whose owner
    /// is the RW volume `volume`. The list starts after `after`. `more`: the caller continues after
    /// the last entry. For servers of the cell.
    10 ListReferences { volume: u32, after: Fid, limit: u32 }
        -> ListReferencesReply { references: List<Reference, 4096>, more: bool };
    /// Returns the state of the repair queue. For every caller.
    11 RepairStatus {} -> RepairStatusReply { status: Repairing };
    /// Moves one object of a file to another device; `osd` 0 lets placement choose. For superusers.
    12 MoveObject { fid: Fid, place: u32, osd: u32 } -> MoveObjectReply { osd: u32 };
    /// Lists files of this server that have objects on a device, after `after`. For servers and
    /// superusers.
    13 ListOnDevice { osd: u32, after: Fid, limit: u32 } -> ListOnDeviceReply { files: List<Fid, 4096>, more: bool };
    /// Returns which of these volumes the server has, in whatever state. For servers of the cell.
    ///
    /// Garbage collection asks this first, so that it does not take a missing partition for volumes
    /// that name no objects.
    14 HaveVolumes { volumes: List<u32, 64> } -> HaveVolumesReply { here: List<u32, 64> };
    /// Collects the unneeded objects and versions of an RW volume, of some vnodes after `after`, or
    /// only lists them (`COLLECT_*`). For superusers.
    ///
    /// The server must be the one that has the RW volume; if none has it, the first of the VLDB's
    /// servers. Nothing younger than `grace` seconds is collected. Nothing at all is collected
    /// unless all file servers of the cell have reported the objects that they need.
    15 CollectGarbage { volume: u32, after: u32, grace: u32, flags: u32 } -> CollectGarbageReply { collected: Collected };
    /// Copies the present bytes of a file to the archival device `osd`, and returns the copy.
    /// EINVAL: the device is no archive, or the file is not in objects. For superusers.
    16 Archive { fid: Fid, osd: u32 } -> ArchiveReply { copy: ArchiveCopy };
    /// Takes a file off its online devices, if at least `copies` archives confirm that they have
    /// its present bytes. Returns its length; 0: it is not in objects, or changed meanwhile.
    /// EAGAIN: fewer archives confirm. EBUSY: the file is pinned. For superusers.
    17 Wipe { fid: Fid, copies: u32 } -> WipeReply { length: u64 };
    /// Recalls a file that was wiped, and waits for up to a minute. VBUSY: the recall takes longer
    /// and goes on. EDQUOT: it is over a limit of the server. Needs the right to read.
    18 Recall { fid: Fid } -> RecallReply {};
    /// Returns the copies of a file in archives, also of its older bytes, and whether its present
    /// bytes are on online devices. Needs the right to read.
    19 ListCopies { fid: Fid } -> ListCopiesReply { length: u64, version: u64, online: bool, copies: List<ArchiveCopy, ARCHIVE_COPIES_MAX> };
    /// Lists jobs of this server with numbers above `after`, the lowest first. Empty `kind` and
    /// `user`: of all kinds and users. For superusers.
    20 ListJobs { after: u64, limit: u32, unfinished: bool, kind: JobText, user: JobText }
        -> ListJobsReply { jobs: List<JobView, JOBS_AT_ONCE_MAX>, more: bool };
    /// Returns a job, its arguments as JSON, and the results of its files from the index `from` on.
    /// ENOENT: there is no such job. For superusers.
    21 ShowJob { job: u64, from: u64 }
        -> ShowJobReply { view: JobView, arguments: AfsString<65536>, items: List<JobItem, 1024>, more: bool };
    /// Changes a job (`JOB_*`). ENOENT: there is no such job. EINVAL: its state does not permit the
    /// change. For superusers.
    22 ChangeJob { job: u64, change: u32 } -> ChangeJobReply {};
    /// Returns the last census of the files in objects and in archives; `taken` 0: there was none
    /// yet. `look`: another census begins now; this call does not wait for it. For superusers.
    23 GetCensus { look: bool } -> GetCensusReply { census: ArchiveCensus };
    /// Lists the files that the last census found to be copied to the archive `osd`, or to be wiped
    /// from the device `osd`. The files that come first are the next. For superusers.
    24 ListCandidates { osd: u32, limit: u32 } -> ListCandidatesReply { files: List<ArchiveCandidate, 4096> };
    /// Reads the copies of a file in the archive `osd` back, also those of older bytes, and
    /// compares them. Copies that have other bytes are marked bad; known bad copies are not read.
    /// For superusers.
    25 VerifyCopies { fid: Fid, osd: u32 } -> VerifyCopiesReply { good: u32, bad: u32, bytes: u64 };
    /// Pins a file, or a directory with all files below it in its volume: they are not wiped until
    /// `until`, in seconds since 1970. The caller is the owner of the pin. Needs the right to read,
    /// and a known user. `until` 0, never, and ends after a year are for superusers.
    26 PinFile { fid: Fid, until: u64, reason: PinReason } -> PinFileReply {};
    /// Lists recalls of wiped files that wait or run, with numbers of jobs above `after`, the
    /// lowest first. For superusers.
    27 ListRecalls { after: u64, limit: u32 }
        -> ListRecallsReply { recalls: List<RecallView, RECALLS_AT_ONCE_MAX>, more: bool };
    /// Lists older bytes that archives keep. For a file: the file itself, with its superseded
    /// bytes; needs the right to read. For a directory: the files that were removed from it, after
    /// `after`; needs the rights to look up and to read. `more`: the caller continues after `next`;
    /// the list may be empty all the same. `all`: the removed files of the whole volume; for
    /// superusers.
    29 ListOlder { fid: Fid, all: bool, after: Fid }
        -> ListOlderReply { files: List<OlderFile, OLDER_FILES_MAX>, more: bool, next: Fid };
    /// Streams the number of bytes (8 bytes), then these bytes of a file or of a removed file, from
    /// an archive. `volume` and `version` are those of [`OlderVersion`]. The last bytes are sent
    /// after all were compared with the BLAKE3 of the copy. ENOENT: no archive keeps these bytes.
    /// Needs the rights of `ListOlder`, and of FetchData. If the directory of a removed file is
    /// removed, too: for superusers.
    30 ReadOlder { fid: Fid, volume: u32, version: u64 } -> ReadOlderReply {} streams reply;
    /// Removes the pin of an owner; 0: of the caller. ENOENT: there is no such pin. The pins of
    /// other owners are removed by superusers only.
    32 UnpinFile { fid: Fid, owner: ViceId } -> UnpinFileReply {};
    /// Returns the statistics of hierarchical storage of the last days, the oldest first. For
    /// superusers.
    33 ListDays {} -> ListDaysReply { days: List<DayView, DAYS_MAX> };
    /// Lists the wiped files of an RW volume, with their good copies, behind the vnode `after` and
    /// ascending. `more`: the caller continues after `next`; the list may be empty all the same.
    /// VNOVOL: the RW volume is not here. For servers of the cell, whose read-only volumes follow.
    34 ListWiped { volume: VolumeId, after: VnodeId }
        -> ListWipedReply { files: List<WipedFile, WIPED_FILES_MAX>, more: bool, next: VnodeId };
}

/// `CollectGarbage`: only list the garbage.
pub const COLLECT_DRY: u32 = 1;

xdr_struct! {
    /// The state of a repair queue.
    #[derive(Copy, Default)]
    pub struct Repairing {
        /// Objects that wait for their repair.
        pub waiting: u64,
        /// The approximate bytes of these objects.
        pub waiting_bytes: u64,
        /// Objects under repair.
        pub running: u64,
        /// Objects repaired since the server started.
        pub repaired: u64,
        /// Repaired objects that were damaged: a wrong checksum, or missing from their device.
        pub healed: u64,
        /// Waiting objects whose repair failed more than twice.
        pub failed: u64,
        /// Bytes copied or computed.
        pub bytes: u64,
        /// Bytes per second, recently.
        pub rate: u64,
        /// Whether files are being searched for further repairs.
        pub looking: bool,
    }

    /// An object, or a version of one, that no volume needs.
    #[derive(Copy, Default)]
    pub struct Garbage {
        /// The device.
        pub osd: u32,
        /// The object.
        pub object: crate::object::ObjectId,
        /// The version; 0: the whole object.
        pub version: u64,
        /// Bytes: the space of an object, or the length of a version.
        pub bytes: u64,
        /// The time of the last write, in seconds since 1970.
        pub written: u64,
    }

    /// The result of a garbage collection.
    #[derive(Default)]
    pub struct Collected {
        /// The garbage among the vnodes that were examined.
        pub garbage: List<Garbage, 4096>,
        /// The vnode after which the caller continues; 0: the collection is complete.
        pub next: u32,
        /// Objects examined.
        pub looked: u64,
        /// Objects that no volume names, but that are younger than the grace time.
        pub young: u64,
        /// Files into which a store is running. They are left for the next collection.
        pub busy: u64,
        /// Bytes that devices freed.
        pub freed: u64,
        /// File servers that did not answer, or lack a volume that the VLDB lists for them. If
        /// there is one, nothing was collected.
        pub silent: List<[u32; 4], 64>,
        /// The volume's entry in the VLDB is locked, or changed meanwhile. Nothing was collected.
        pub changing: bool,
        /// Devices that could not be reached.
        pub away: List<u32, 4096>,
    }

    /// A version of an object that a volume needs.
    #[derive(Copy, Default)]
    pub struct Reference {
        /// The object.
        pub object: crate::object::ObjectId,
        /// The version.
        pub version: u64,
        /// The device.
        pub osd: u32,
        /// The owner of the file that named it last.
        pub owner: ViceId,
    }
}
