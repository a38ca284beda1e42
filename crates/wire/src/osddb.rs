//! OSDDB: the cell's list of object storage devices, and its policies. Service 13, port 7003, in the
//! same process as the volume location database.
//!
//! Ours; the fields are those of the original's table where they are good (afs-osd documents).

use cellar_xdr::{AfsString, List, xdr_struct};

use crate::package::package;

/// A name.
pub type OsdName = AfsString<64>;
/// Devices of a cell, at most.
pub const OSDS_MAX: usize = 4096;
/// Policies of a cell, at most.
pub const POLICIES_MAX: usize = 4096;
/// Bytes of a policy's text, at most.
pub const POLICY_TEXT_MAX: usize = 64 << 10;

/// `flags`: for archives only (HSM); files are not placed there.
pub const OSD_ARCHIVAL: u32 = 1;
/// Its files may be wiped once they are archived.
pub const OSD_WIPEABLE: u32 = 2;
/// Nothing new is placed there, and what is there is moved away.
pub const OSD_DRAINING: u32 = 4;
/// Out of use for ever; its number is not given again.
pub const OSD_OBSOLETE: u32 = 8;
/// Objects are removed softly.
pub const OSD_SOFT_DELETE: u32 = 16;

xdr_struct! {
    /// A device.
    #[derive(Default)]
    pub struct OsdEntry {
        /// Its number, for ever: 1 is the file servers' own disks (`local_disk`).
        pub id: u32,
        /// Its name; may change.
        pub name: OsdName,
        /// Where its server is: IPv4 addresses mapped, the preferred first.
        pub addresses: List<[u32; 4], 16>,
        /// The server's port.
        pub port: u32,
        /// The partition on that server, 0 is /vicepa.
        pub partition: u32,
        /// Smallest size of a file that is placed there, in bytes.
        pub min_size: u64,
        /// Largest size of a file that is placed there, in bytes; 0: any.
        pub max_size: u64,
        /// Weight in the choice of devices for new objects; 0: never chosen.
        pub allocation_priority: u32,
        /// Weight in the choice of a copy to read, or of an archive to recall from.
        pub read_priority: u32,
        /// `OSD_*`.
        pub flags: u32,
        /// Wiping begins when more of it is used, in thousandths.
        pub high_water_mark: u32,
        /// Smaller files are not wiped, in bytes.
        pub min_wipe_size: u64,
        /// Who paid for it: files of that owner's servers are placed there first.
        pub owner: OsdName,
        /// Where it is: `site/room/rack/host`, as much of it as is known.
        pub location: AfsString<256>,
        /// A class that policies may ask for, such as `fast`.
        pub class: OsdName,
    }

    /// What its server says of a device, every few seconds.
    #[derive(Copy, Default)]
    pub struct OsdState {
        /// Which.
        pub id: u32,
        /// Bytes in all.
        pub total: u64,
        /// Bytes free.
        pub free: u64,
        /// Objects.
        pub objects: u64,
        /// Seconds since it was last heard of; `u32::MAX`: never.
        pub silence: u32,
        /// It takes writes (the store has not stopped).
        pub writable: bool,
    }

    /// A device and its state.
    #[derive(Default)]
    pub struct OsdListed {
        /// What is set.
        pub entry: OsdEntry,
        /// What was heard.
        pub state: OsdState,
        /// Silent for too long, or never heard of.
        pub dead: bool,
    }

    /// A policy.
    #[derive(Default)]
    pub struct PolicyEntry {
        /// Its number: 2 and more. 0: objects are never used, 1: by size only.
        pub id: u32,
        /// Its name.
        pub name: OsdName,
        /// Its text, as it was written.
        pub text: AfsString<POLICY_TEXT_MAX>,
        /// The revision of the table when it was changed last.
        pub revision: u64,
    }
}

package! {
    /// Object storage devices and policies of a cell.
    pub OSDDB { service: 13, port: 7003, statistics: 13 }

    /// For everybody. Two revisions: of the devices' entries (states do not count), and of the policies.
    1 GetRevisions {} -> GetRevisionsReply { devices: u64, policies: u64 };
    2 ListOsds {} -> ListOsdsReply { revision: u64, osds: List<OsdListed, OSDS_MAX> };
    /// By number, or if that is 0 by name.
    3 GetOsd { id: u32, name: OsdName } -> GetOsdReply { osd: OsdListed };
    /// Superusers. A number of 0: the next free one.
    4 CreateOsd { entry: OsdEntry } -> CreateOsdReply { id: u32 };
    /// Superusers: replaces all but the number. `revision` is that of the entry read before, else ESTALE; 0:
    /// whatever it is.
    5 SetOsd { entry: OsdEntry, revision: u64 } -> SetOsdReply {};
    /// Servers of the cell: they are alive, and this is what their devices look like. An answer of ENOENT
    /// names a device that the table does not have.
    6 Heartbeat { states: List<OsdState, 64>, addresses: List<[u32; 4], 16>, port: u32 }
        -> HeartbeatReply { devices: u64 };
    7 ListPolicies {} -> ListPoliciesReply { revision: u64, policies: List<PolicyEntry, POLICIES_MAX> };
    /// Superusers. A number of 0: the next free one, 2 at least. The text must be well-formed, and use no
    /// policy that is missing or that uses this one.
    8 SetPolicy { policy: PolicyEntry } -> SetPolicyReply { id: u32 };
    /// Superusers. Refused while another policy uses it.
    9 DeletePolicy { id: u32 } -> DeletePolicyReply {};
}
