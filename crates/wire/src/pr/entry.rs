//! Entries of the protection database.

use cellar_xdr::xdr_struct;

use super::PrName;
use crate::ids::ViceId;

xdr_struct! {
    /// A user or group (`prcheckentry` and `prlistentries`, 76 words).
    #[derive(Default)]
    pub struct PrEntry {
        /// Access bits (`PRP_*`) alone: servers shift them down before they send them.
        pub flags: u32,
        /// Its id.
        pub id: ViceId,
        /// Its owner.
        pub owner: ViceId,
        /// The user who created it.
        pub creator: ViceId,
        /// The number of groups that it may still create.
        pub ngroups: i32,
        /// The number of foreign users that may still register.
        pub nusers: i32,
        /// Members of the group, or groups of the user.
        pub count: i32,
        /// Spare.
        pub reserved: [i32; 5],
        /// Its name.
        pub name: PrName,
    }

    /// Changes to an entry (77 words).
    #[derive(Default)]
    pub struct PrUpdateEntry {
        /// `PRUPDATE_*`: the fields that count.
        pub mask: u32,
        /// The new flags.
        pub flags: u32,
        /// The new id.
        pub id: ViceId,
        /// The new owner.
        pub owner: ViceId,
        /// The new creator.
        pub creator: ViceId,
        /// The new quota of groups.
        pub ngroups: i32,
        /// The new quota of foreign users.
        pub nusers: i32,
        /// The new count.
        pub count: i32,
        /// Spare.
        pub reserved: [i32; 5],
        /// The new name.
        pub name: PrName,
    }

    /// An entry as it is in the database (`prdebugentry`, 96 words).
    #[derive(Default)]
    pub struct PrDebugEntry {
        /// Kind and access bits.
        pub flags: u32,
        /// Its id.
        pub id: ViceId,
        /// The cell's id.
        pub cellid: i32,
        /// The next continuation.
        pub next: i32,
        /// Spare.
        pub reserved: [i32; 5],
        /// The first members or groups.
        pub entries: [i32; 10],
        /// The next entry with the same hash of the id.
        pub next_id: i32,
        /// The next entry with the same hash of the name.
        pub next_name: i32,
        /// Its owner.
        pub owner: ViceId,
        /// The user who created it.
        pub creator: ViceId,
        /// The number of groups that it may still create.
        pub ngroups: i32,
        /// The number of foreign users that may still register.
        pub nusers: i32,
        /// Members or groups.
        pub count: i32,
        /// Instance.
        pub instance: i32,
        /// The first group that it owns.
        pub owned: i32,
        /// The next group of the same owner.
        pub next_owned: i32,
        /// Parent.
        pub parent: i32,
        /// Sibling.
        pub sibling: i32,
        /// Child.
        pub child: i32,
        /// Its name.
        pub name: PrName,
    }
}
