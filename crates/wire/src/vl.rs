//! VL: the locations of volumes. Service 52, port 7003.
//!
//! Three generations of entries are in use: 8 sites (old), 13 sites (`N`), and 13 sites with server
//! UUIDs (`U`). Clients try the newest and use an older one after `RXGEN_OPCODE`.
//!
//! Addresses are numbers: 192.0.2.1 is 0xc0000201. `voltype` is 0 RW, 1 RO, 2 backup, -1 any. It
//! stays an integer because servers refuse other values with VL_BADVOLTYPE.
//!
//! Source: the vldbint interface file of OpenAFS 1.8; semantics in its vlserver.

use cellar_xdr::{AfsString, List};

use crate::host::Capabilities;
use crate::ids::{AfsTime, AfsUuid, VolumeId};
use crate::package::package;

mod constants;
mod entry;
mod query;

pub use constants::*;
pub use entry::{
    Chain, NvldbEntry, Site, SiteColumns, SiteUpdate, UuidSite, UvldbEntry, VldbEntry,
    VldbUpdateEntry, WideEntry,
};
pub use query::{ListAddrByAttributes, VitalVlHeader, VlCallBack, VldStats, VldbListByAttributes};

/// A volume's name inside an entry: at most 64 bytes.
pub type EntryName = cellar_xdr::WordString<65>;

/// A volume's name as an argument.
pub type VolumeNameArgument = AfsString<65>;

/// A text about a lock.
pub type LockText = AfsString<256>;

/// Addresses of servers.
pub type BulkAddrs = List<u32, 500>;

/// The most entries in one reply. The interface has no bound; OpenAFS's server stops at 10,000.
pub const ENTRIES_MAX: usize = 100_000;

package! {
    /// The volume location database.
    pub VL { service: 52, port: 7003, statistics: 15 }

    501 CreateEntry { newentry: VldbEntry } -> CreateEntryReply {};
    502 DeleteEntry { volid: VolumeId, voltype: i32 } -> DeleteEntryReply {};
    503 GetEntryByID { volid: VolumeId, voltype: i32 } -> GetEntryByIDReply { entry: VldbEntry };
    504 GetEntryByNameO { volumename: VolumeNameArgument }
        -> GetEntryByNameOReply { entry: VldbEntry };
    /// Reserves `bump` ids and returns the first. 0 only reads the counter.
    505 GetNewVolumeId { bump: u32 } -> GetNewVolumeIdReply { newvolumid: VolumeId };
    506 ReplaceEntry { volid: VolumeId, voltype: i32, newentry: VldbEntry, releasetype: i32 }
        -> ReplaceEntryReply {};
    507 UpdateEntry {
        volid: VolumeId, voltype: i32, updateentry: VldbUpdateEntry, releasetype: i32
    } -> UpdateEntryReply {};
    508 SetLock { volid: VolumeId, voltype: i32, voloper: i32 } -> SetLockReply {};
    509 ReleaseLock { volid: VolumeId, voltype: i32, releasetype: i32 } -> ReleaseLockReply {};
    510 ListEntry { previous_index: i32 }
        -> ListEntryReply { count: i32, next_index: i32, entry: VldbEntry };
    511 ListAttributes { attributes: VldbListByAttributes }
        -> ListAttributesReply { nentries: i32, blkentries: List<VldbEntry, ENTRIES_MAX> }
        streams results;
    512 LinkedList { attributes: VldbListByAttributes }
        -> LinkedListReply { nentries: i32, linkedentries: Chain<VldbEntry> } streams results;
    513 GetStats {} -> GetStatsReply { stats: VldStats, vital_header: VitalVlHeader };
    514 ProbeServer {} -> ProbeServerReply {};
    515 GetAddrs { handle: i32, spare2: i32 }
        -> GetAddrsReply { spare3: VlCallBack, nentries: i32, blkaddr: BulkAddrs };
    516 ChangeAddr { ip1: u32, ip2: u32 } -> ChangeAddrReply {};
    517 CreateEntryN { newentry: NvldbEntry } -> CreateEntryNReply {};
    518 GetEntryByIDN { volid: VolumeId, voltype: i32 }
        -> GetEntryByIDNReply { entry: NvldbEntry };
    519 GetEntryByNameN { volumename: VolumeNameArgument }
        -> GetEntryByNameNReply { entry: NvldbEntry };
    520 ReplaceEntryN { volid: VolumeId, voltype: i32, newentry: NvldbEntry, releasetype: i32 }
        -> ReplaceEntryNReply {};
    521 ListEntryN { previous_index: i32 }
        -> ListEntryNReply { count: i32, next_index: i32, entry: NvldbEntry };
    522 ListAttributesN { attributes: VldbListByAttributes }
        -> ListAttributesNReply { nentries: i32, blkentries: List<NvldbEntry, ENTRIES_MAX> }
        streams results;
    523 LinkedListN { attributes: VldbListByAttributes }
        -> LinkedListNReply { nentries: i32, linkedentries: Chain<NvldbEntry> } streams results;
    524 UpdateEntryByName {
        volumename: VolumeNameArgument, updateentry: VldbUpdateEntry, releasetype: i32
    } -> UpdateEntryByNameReply {};
    /// Reserved: no server implements it.
    525 CreateEntryU { newentry: UvldbEntry } -> CreateEntryUReply {} refuses RXGEN_OPCODE;
    /// Reserved: no server implements it.
    526 GetEntryByIDU { volid: VolumeId, voltype: i32 }
        -> GetEntryByIDUReply { entry: UvldbEntry } refuses RXGEN_OPCODE;
    527 GetEntryByNameU { volumename: VolumeNameArgument }
        -> GetEntryByNameUReply { entry: UvldbEntry };
    /// Reserved: no server implements it.
    528 ReplaceEntryU { volid: VolumeId, voltype: i32, newentry: UvldbEntry, releasetype: i32 }
        -> ReplaceEntryUReply {} refuses RXGEN_OPCODE;
    /// Reserved: no server implements it.
    529 ListEntryU { previous_index: i32 }
        -> ListEntryUReply { count: i32, next_index: i32, entry: UvldbEntry } refuses RXGEN_OPCODE;
    /// Reserved: no server implements it.
    530 ListAttributesU { attributes: VldbListByAttributes }
        -> ListAttributesUReply { nentries: i32, blkentries: List<UvldbEntry, ENTRIES_MAX> }
        refuses RXGEN_OPCODE;
    /// Reserved: no server implements it.
    531 LinkedListU { attributes: VldbListByAttributes }
        -> LinkedListUReply { nentries: i32, linkedentries: Chain<UvldbEntry> }
        refuses RXGEN_OPCODE;
    532 RegisterAddrs { uuid: AfsUuid, spare1: i32, addrs: BulkAddrs } -> RegisterAddrsReply {};
    533 GetAddrsU { attributes: ListAddrByAttributes }
        -> GetAddrsUReply { uuid: AfsUuid, uniquifier: i32, nentries: i32, blkaddrs: BulkAddrs };
    /// `volumename` is a regular expression. A `startindex` of 0 starts; a `nextindex` of -1 is the
    /// end.
    534 ListAttributesN2 {
        attributes: VldbListByAttributes, volumename: VolumeNameArgument, startindex: i32
    } -> ListAttributesN2Reply {
        nentries: i32, blkentries: List<NvldbEntry, ENTRIES_MAX>, nextindex: i32
    };
    /// Only YFS servers answer it.
    65537 GetCapabilities {} -> GetCapabilitiesReply { capabilities: Capabilities };
    /// Cellar extension: SetLock with a short note about the caller and the purpose. The server
    /// stores the note together with the identity of the caller.
    1128614913 LockNoted { volid: VolumeId, voltype: i32, voloper: i32, note: LockText }
        -> LockNotedReply {};
    /// Cellar extension: returns who locked an entry, from which address, when, and why. `since` 0
    /// means not locked.
    1128614914 GetLock { volid: VolumeId, voltype: i32 } -> GetLockReply {
        operation: u32, since: AfsTime, who: LockText, from: u32, note: LockText
    };
}
