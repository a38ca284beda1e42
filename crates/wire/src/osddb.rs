//! OSDDB: the cell's list of object storage devices, its policies and its pins. Service 13, port
//! 7003, in the process of the volume location database.
//!
//! This service is an extension of Cellar. Its fields follow the table of AFS/OSD where that is
//! sound (afs-osd documents).

use cellar_xdr::{AfsString, Decode, DecodeError, Decoder, Encode, Encoder, List, xdr_struct};

use crate::ids::{Fid, ViceId};
use crate::package::package;

/// A name.
pub type OsdName = AfsString<64>;
/// The most devices of a cell.
pub const OSDS_MAX: usize = 4096;
/// The most policies of a cell.
pub const POLICIES_MAX: usize = 4096;
/// The most bytes of a policy's text.
pub const POLICY_TEXT_MAX: usize = 64 << 10;

/// The most pins of a cell.
pub const PINS_MAX: usize = 16 << 10;
/// The most pins of one owner.
pub const PINS_OF_OWNER_MAX: usize = 1024;
/// A remark on a pin.
pub type PinReason = AfsString<128>;

/// `flags`: for archives only (HSM); no files are placed on the device.
pub const OSD_ARCHIVAL: u32 = 1;
/// Its files may be wiped once they are archived.
pub const OSD_WIPEABLE: u32 = 2;
/// No new objects are placed on the device, and its objects are moved away.
pub const OSD_DRAINING: u32 = 4;
/// Out of use for ever; its number is not reused.
pub const OSD_OBSOLETE: u32 = 8;
/// Objects are removed softly.
pub const OSD_SOFT_DELETE: u32 = 16;

/// The low mark is so much below the high mark if it is not set, in thousandths.
const LOW_MARK_BELOW: u16 = 50;

/// The fill levels at which wiping of a device begins and ends, in thousandths of its capacity. One
/// word on the wire: the low mark in the upper half, the high mark in the lower half.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaterMarks {
    /// Wiping begins above it; 0: never.
    pub high: u16,
    /// Files are wiped until the level is not above it; 0: 50 thousandths below the high mark.
    pub low: u16,
}

impl WaterMarks {
    /// The low mark, also if it is not set.
    pub fn end(&self) -> u16 {
        match self.low {
            0 => self.high.saturating_sub(LOW_MARK_BELOW),
            low => low,
        }
    }
}

impl Encode for WaterMarks {
    fn encode(&self, out: &mut Encoder<'_>) {
        (u32::from(self.low) << 16 | u32::from(self.high)).encode(out);
    }
}

impl Decode for WaterMarks {
    const MIN_SIZE: usize = 4;

    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let word = u32::decode(d)?;
        Ok(Self {
            high: word as u16,
            low: (word >> 16) as u16,
        })
    }
}

xdr_struct! {
    /// A device.
    #[derive(Default)]
    pub struct OsdEntry {
        /// Its number, for ever. 1 means the file servers' own disks (`local_disk`).
        pub id: u32,
        /// Its name; it may change.
        pub name: OsdName,
        /// The addresses of its server, IPv4 ones mapped, the preferred first.
        pub addresses: List<[u32; 4], 16>,
        /// The server's port.
        pub port: u32,
        /// The partition on that server; 0 is /vicepa.
        pub partition: u32,
        /// The smallest size of a file that is placed on it, in bytes.
        pub min_size: u64,
        /// The largest size of a file that is placed on it, in bytes; 0: no limit.
        pub max_size: u64,
        /// Weight in the choice of devices for new objects; 0: never chosen.
        pub allocation_priority: u32,
        /// Weight in the choice of a copy to read, or of an archive to recall from.
        pub read_priority: u32,
        /// `OSD_*`.
        pub flags: u32,
        /// When wiping begins and ends.
        pub marks: WaterMarks,
        /// Files smaller than this are not wiped, in bytes.
        pub min_wipe_size: u64,
        /// The owner that paid for the device. It is preferred for files on servers of the same
        /// owner.
        pub owner: OsdName,
        /// Its location: `site/room/rack/host`, or as much as is known.
        pub location: AfsString<256>,
        /// A class that policies may ask for, such as `fast`.
        pub class: OsdName,
    }

    /// The state of a device, which its server reports every few seconds.
    #[derive(Copy, Default)]
    pub struct OsdState {
        /// The device.
        pub id: u32,
        /// The capacity in bytes.
        pub total: u64,
        /// Bytes free.
        pub free: u64,
        /// Objects.
        pub objects: u64,
        /// Seconds since the last report; `u32::MAX`: never.
        pub silence: u32,
        /// Whether it takes writes (its store has not stopped).
        pub writable: bool,
    }

    /// A device and its state.
    #[derive(Default)]
    pub struct OsdListed {
        /// The administrator's settings.
        pub entry: OsdEntry,
        /// The last report.
        pub state: OsdState,
        /// The last report is too old, or there was none.
        pub dead: bool,
    }

    /// A policy.
    #[derive(Default)]
    pub struct PolicyEntry {
        /// Its number, 2 or more. 0 means that objects are never used, 1 by size only.
        pub id: u32,
        /// Its name.
        pub name: OsdName,
        /// Its text, as it was written.
        pub text: AfsString<POLICY_TEXT_MAX>,
        /// The revision of the table when it was changed last.
        pub revision: u64,
    }
}

xdr_struct! {
    /// A pin: the file, or all files below the directory in its volume, are not wiped.
    #[derive(Default)]
    pub struct Pin {
        /// The file or directory, in its RW volume.
        pub fid: Fid,
        /// The user who set the pin. Each user has one pin of a file at most.
        pub owner: ViceId,
        /// When it was set, in seconds since 1970.
        pub made: u64,
        /// When it ends, in seconds since 1970; 0: never.
        pub until: u64,
        /// A remark of the user.
        pub reason: PinReason,
    }
}

package! {
    /// Object storage devices and policies of a cell.
    pub OSDDB { service: 13, port: 7003, statistics: 13 }

    /// For every caller. Returns two revisions: of the devices' entries (states do not count), and
    /// of the policies.
    1 GetRevisions {} -> GetRevisionsReply { devices: u64, policies: u64 };
    2 ListOsds {} -> ListOsdsReply { revision: u64, osds: List<OsdListed, OSDS_MAX> };
    /// By number, or by name if the number is 0.
    3 GetOsd { id: u32, name: OsdName } -> GetOsdReply { osd: OsdListed };
    /// For superusers. A number of 0 means the next free one.
    4 CreateOsd { entry: OsdEntry } -> CreateOsdReply { id: u32 };
    /// Replaces all fields but the number. For superusers. `revision` is that of the entry that the
    /// caller read, else the call fails with ESTALE; 0: any revision.
    5 SetOsd { entry: OsdEntry, revision: u64 } -> SetOsdReply {};
    /// Reports that a server is alive, and the states of its devices. For servers of the cell. The
    /// abort code ENOENT means that the table lacks one of the devices.
    6 Heartbeat { states: List<OsdState, 64>, addresses: List<[u32; 4], 16>, port: u32 }
        -> HeartbeatReply { devices: u64 };
    7 ListPolicies {} -> ListPoliciesReply { revision: u64, policies: List<PolicyEntry, POLICIES_MAX> };
    /// For superusers. A number of 0 means the next free one, 2 at least. The text must be
    /// well-formed. It may not use a policy that is missing or that uses this one.
    8 SetPolicy { policy: PolicyEntry } -> SetPolicyReply { id: u32 };
    /// For superusers. Refused while another policy uses it.
    9 DeletePolicy { id: u32 } -> DeletePolicyReply {};
    /// For every caller. If `known` is the present revision, the list is empty. Pins that have
    /// ended are not listed.
    10 ListPins { known: u64 } -> ListPinsReply { revision: u64, pins: List<Pin, PINS_MAX> };
    /// Sets a pin, or replaces that of the same owner. For superusers: file servers check the
    /// rights of users. ENOSPC: the cell has too many pins. EAGAIN: the owner has.
    11 SetPin { pin: Pin } -> SetPinReply {};
    /// Removes the pin of an owner. For superusers. ENOENT: there is none.
    12 DeletePin { fid: Fid, owner: ViceId } -> DeletePinReply {};
}
