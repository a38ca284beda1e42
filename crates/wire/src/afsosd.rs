//! AFSOSD: what a client that knows objects asks a file server. Service 2, port 7000.
//!
//! A client reads in three steps: `BeginFetch` answers layout and capabilities, the bytes come from the
//! OSDs, and as long as its callback promise holds and the capabilities have not expired nothing more is
//! asked. It stores in three: `BeginStore` makes the versions to write to, the bytes go to the OSDs,
//! `EndStore` makes them the file's in one change, or `AbortStore` forgets them. A client that does not
//! come back is forgotten after [`STORE_LEASE`] seconds.
//!
//! Ours; other file servers answer RXGEN_OPCODE or nothing, and then plain FetchData and StoreData serve.

use cellar_xdr::{List, xdr_struct};

use crate::ids::{AfsTime, Fid, ViceId};
use crate::object::{Capability, Layout, OBJECTS_MAX, Shape};
use crate::osddb::OsdListed;
use crate::package::package;
use crate::rxafs::{AfsFetchStatus, Callback, VolSync};

/// Seconds a store may take before it is renewed or ended.
pub const STORE_LEASE: u32 = 60;
/// Pieces of a file listed by `GetPieces`, at most.
pub const PIECES_MAX: usize = OBJECTS_MAX;

xdr_struct! {
    /// A file in objects, as a client may use it.
    pub struct Access {
        /// Where the bytes are.
        pub layout: Layout,
        /// One for each object of the layout, in its order; empty where the object is not to be used.
        pub capabilities: List<Capability, OBJECTS_MAX>,
        /// The devices named by the layout.
        pub devices: List<OsdListed, OBJECTS_MAX>,
        /// Until when the capabilities hold.
        pub expires: AfsTime,
    }

    /// What a client could not write.
    #[derive(Copy, Default)]
    pub struct Failed {
        /// The place in the layout's list of objects.
        pub place: u32,
        /// The abort code or errno.
        pub code: i32,
    }
}

package! {
    /// Direct access to files in objects.
    pub AFSOSD { service: 2, port: 7000, statistics: 2 }

    /// The layout of a file and capabilities to read it. ENODATA: its bytes are on the file server.
    1 BeginFetch { fid: Fid, position: u64, length: u64 }
        -> BeginFetchReply { status: AfsFetchStatus, callback: Callback, sync: VolSync, access: Access };
    /// Begins a store of up to `length` bytes at `position` of a file that will have at least that length
    /// then. A file whose bytes are on the file server is moved to objects if policy or `shape` (for who may
    /// administer the directory; stripes 0: none) say so; else ENODATA. EBUSY: somebody else stores.
    2 BeginStore { fid: Fid, position: u64, length: u64, file_length: u64, shape: List<Shape, 1> }
        -> BeginStoreReply { store: u64, status: AfsFetchStatus, access: Access };
    /// Goes on for another lease, with new capabilities.
    3 ExtendStore { fid: Fid, store: u64, position: u64, length: u64 }
        -> ExtendStoreReply { access: Access };
    /// Makes what was written the file's: the length is at least `length`, `modified` its date. Objects that
    /// failed and of which there are other copies become stale; else EIO and nothing has changed.
    4 EndStore {
        fid: Fid, store: u64, length: u64, modified: AfsTime, failed: List<Failed, OBJECTS_MAX>
    } -> EndStoreReply { status: AfsFetchStatus, sync: VolSync };
    5 AbortStore { fid: Fid, store: u64 } -> AbortStoreReply {};
    /// Where the pieces of a file are (`fs osd`). Needs the right to read.
    6 GetPieces { fid: Fid } -> GetPiecesReply { length: u64, layout: List<Layout, 1>, devices: List<OsdListed, OBJECTS_MAX> };
    /// The policy of a directory (`fs policy`), that of its volume, and that which counts.
    7 GetPolicy { fid: Fid } -> GetPolicyReply { directory: u32, volume: u32 };
    /// Sets the policy of a directory: superusers, and who may administer it. 0: that of the volume.
    8 SetPolicy { fid: Fid, policy: u32 } -> SetPolicyReply {};
    /// Sets the policy of a volume (`vos setfields -osdpolicy`): superusers. 0: never objects, 1: by size.
    9 SetVolumePolicy { fid: Fid, policy: u32 } -> SetVolumePolicyReply {};
    /// The objects that any volume of this server with that RW volume as parent names, behind `after`, for
    /// garbage collection: servers of the cell. `more`: ask again behind the last.
    10 ListReferences { volume: u32, after: Fid, limit: u32 }
        -> ListReferencesReply { references: List<Reference, 4096>, more: bool };
    /// What the repair queue is doing; for everybody.
    11 RepairStatus {} -> RepairStatusReply { status: Repairing };
    /// Puts one object of a file elsewhere: `osd` 0 lets placement choose. Superusers.
    12 MoveObject { fid: Fid, place: u32, osd: u32 } -> MoveObjectReply { osd: u32 };
    /// Files of this server with objects on a device, behind `after`. Servers and superusers.
    13 ListOnDevice { osd: u32, after: Fid, limit: u32 } -> ListOnDeviceReply { files: List<Fid, 4096>, more: bool };
    /// Which of these volumes the server has, in whatever state: servers of the cell. Before garbage is
    /// collected, so that a partition that is missing is not taken for volumes that name nothing.
    14 HaveVolumes { volumes: List<u32, 64> } -> HaveVolumesReply { here: List<u32, 64> };
    /// Collects what nobody needs of the objects of an RW volume, of some vnodes behind `after`, or only lists
    /// it (`COLLECT_*`): superusers. The server must be the one that has the RW volume; if there is none, the
    /// first of the VLDB's. Nothing younger than `grace` seconds is collected, and nothing at all unless all
    /// file servers of the cell have said what they need.
    15 CollectGarbage { volume: u32, after: u32, grace: u32, flags: u32 } -> CollectGarbageReply { collected: Collected };
}

/// `CollectGarbage`: list it only.
pub const COLLECT_DRY: u32 = 1;

xdr_struct! {
    /// What a repair queue is doing.
    #[derive(Copy, Default)]
    pub struct Repairing {
        /// Objects that wait to be made anew.
        pub waiting: u64,
        /// Bytes of them, about.
        pub waiting_bytes: u64,
        /// Objects that are being made.
        pub running: u64,
        /// Objects that were made since the server started.
        pub repaired: u64,
        /// Those of them that were damaged: a wrong checksum, or not where they should be.
        pub healed: u64,
        /// Objects that wait and could not be made when it was tried last.
        pub failed: u64,
        /// Bytes that were copied or computed.
        pub bytes: u64,
        /// Bytes a second, of late.
        pub rate: u64,
        /// Files are being looked through for what else is to be repaired.
        pub looking: bool,
    }

    /// Something that nobody needs.
    #[derive(Copy, Default)]
    pub struct Garbage {
        /// On which device.
        pub osd: u32,
        /// Of which object.
        pub object: crate::object::ObjectId,
        /// Which version; 0: all of the object.
        pub version: u64,
        /// Bytes: what an object takes, how long a version is.
        pub bytes: u64,
        /// When it was written last, in seconds since 1970.
        pub written: u64,
    }

    /// What came of collecting garbage.
    #[derive(Default)]
    pub struct Collected {
        /// What nobody needs, of the vnodes that were looked at.
        pub garbage: List<Garbage, 4096>,
        /// Ask again behind this vnode; 0: that was all.
        pub next: u32,
        /// Objects that were looked at.
        pub looked: u64,
        /// What nobody names, but is too young.
        pub young: u64,
        /// Files that somebody stores into: left for the next time.
        pub busy: u64,
        /// Bytes that devices gave back.
        pub freed: u64,
        /// File servers that did not answer, or lack a volume that they should have: nothing was collected.
        pub silent: List<[u32; 4], 64>,
        /// The volume's entry in the VLDB is locked or changed meanwhile: nothing was collected.
        pub changing: bool,
        /// Devices that could not be asked.
        pub away: List<u32, 4096>,
    }

    /// A version of an object that somebody needs.
    #[derive(Copy, Default)]
    pub struct Reference {
        /// The object.
        pub object: crate::object::ObjectId,
        /// The version.
        pub version: u64,
        /// The device.
        pub osd: u32,
        /// Who named it last: the owner of the file.
        pub owner: ViceId,
    }
}
