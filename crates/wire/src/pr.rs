//! PR: users, groups and memberships. Service 73, port 7002.
//!
//! Names inside lists and entries take one word for each of their 64 characters. Ids above 0 are
//! users, ids below 0 are groups.
//!
//! Source: the ptint interface file of OpenAFS 1.8; semantics in its ptserver.

use cellar_xdr::{AfsString, List, WordString};

use crate::ids::ViceId;
use crate::package::package;

mod constants;
mod entry;

pub use constants::*;
pub use entry::{PrDebugEntry, PrEntry, PrUpdateEntry};

/// A user's or group's name in a list or an entry: at most 63 bytes.
pub type PrName = WordString<64>;

/// A name as an argument. Servers refuse more than 63 bytes.
pub type PrNameArgument = AfsString<64>;

/// The most elements of any list in this interface.
pub const LIST_MAX: usize = 500_000;

/// Names.
pub type NameList = List<PrName, LIST_MAX>;
/// Ids.
pub type IdList = List<ViceId, LIST_MAX>;

package! {
    /// The protection database.
    pub PR { service: 73, port: 7002, statistics: 8 }

    500 INewEntry { name: PrNameArgument, id: ViceId, owner: ViceId } -> INewEntryReply {};
    501 WhereIsIt { id: ViceId } -> WhereIsItReply { position: i32 };
    502 DumpEntry { position: i32 } -> DumpEntryReply { entry: PrDebugEntry };
    503 AddToGroup { uid: ViceId, gid: ViceId } -> AddToGroupReply {};
    /// Unknown names become 32766.
    504 NameToID { names: NameList } -> NameToIDReply { ids: IdList };
    /// Unknown ids become decimal text.
    505 IDToName { ids: IdList } -> IDToNameReply { names: NameList };
    506 Delete { id: ViceId } -> DeleteReply {};
    507 RemoveFromGroup { id: ViceId, gid: ViceId } -> RemoveFromGroupReply {};
    /// `over` counts the ids that did not fit.
    508 GetCPS { id: ViceId } -> GetCPSReply { list: IdList, over: i32 };
    /// `flag`: 0 a user, 2 a group, 4 a foreign user.
    509 NewEntry { name: PrNameArgument, flag: i32, owner: ViceId } -> NewEntryReply { id: ViceId };
    510 ListMax {} -> ListMaxReply { uid: ViceId, gid: ViceId };
    511 SetMax { id: ViceId, gflag: i32 } -> SetMaxReply {};
    512 ListEntry { id: ViceId } -> ListEntryReply { entry: PrEntry };
    /// An empty name, owner 0 and new id 0 leave the field unchanged.
    513 ChangeEntry { id: ViceId, name: PrNameArgument, owner: ViceId, newid: ViceId }
        -> ChangeEntryReply {};
    514 ListElements { id: ViceId } -> ListElementsReply { list: IdList, over: i32 };
    515 IsAMemberOf { uid: ViceId, gid: ViceId } -> IsAMemberOfReply { flag: i32 };
    516 SetFieldsEntry {
        id: ViceId, mask: u32, flags: u32, ngroups: i32, nusers: i32, spare1: i32, spare2: i32
    } -> SetFieldsEntryReply {};
    /// `lastp` is 0 at the start and at the end, else the place at which to continue.
    517 ListOwned { id: ViceId, lastp: i32 } -> ListOwnedReply { list: IdList, lastp: i32 };
    518 GetCPS2 { id: ViceId, host: u32 } -> GetCPS2Reply { list: IdList, over: i32 };
    519 GetHostCPS { host: u32 } -> GetHostCPSReply { list: IdList, over: i32 };
    520 UpdateEntry { id: ViceId, name: PrNameArgument, update: PrUpdateEntry }
        -> UpdateEntryReply {};
    /// `flag`: 1 users, 2 groups, 3 both. A `next_index` of -1 is the end.
    521 ListEntries { flag: i32, start_index: i32 }
        -> ListEntriesReply { entries: List<PrEntry, LIST_MAX>, next_index: i32 };
    530 ListSuperGroups { id: ViceId } -> ListSuperGroupsReply { list: IdList, over: i32 };
}
