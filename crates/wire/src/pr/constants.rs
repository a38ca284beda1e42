//! Numbers in PR calls and entries.

/// Kind of an entry, low bits of its flags: unused.
pub const PRFREE: u32 = 1;
/// A group (and the flag of NewEntry for one).
pub const PRGRP: u32 = 2;
/// The continuation of another entry's list.
pub const PRCONT: u32 = 4;
/// A cell.
pub const PRCELL: u32 = 8;
/// A user of another cell.
pub const PRFOREIGN: u32 = 16;
/// An instance of a user.
pub const PRINST: u32 = 32;
/// All kinds.
pub const PRTYPE: u32 = 0x3f;
/// A user: none of the kinds.
pub const PRUSER: u32 = 0;

/// The access bits of an entry are valid.
pub const PRACCESS: u32 = 0x40;
/// The quotas of an entry are valid.
pub const PRQUOTA: u32 = 0x80;

/// The position of the access bits in an entry's flags.
pub const PRIVATE_SHIFT: u32 = 16;

/// `S`: every caller may examine the entry.
pub const PRP_STATUS_ANY: u32 = 0x80;
/// `s`: members may examine it.
pub const PRP_STATUS_MEM: u32 = 0x40;
/// `O`: every caller may list the groups that it owns.
pub const PRP_OWNED_ANY: u32 = 0x20;
/// `M`: every caller may list its members.
pub const PRP_MEMBER_ANY: u32 = 0x10;
/// `m`: members may list members.
pub const PRP_MEMBER_MEM: u32 = 0x08;
/// `A`: every caller may add members.
pub const PRP_ADD_ANY: u32 = 0x04;
/// `a`: members may add members.
pub const PRP_ADD_MEM: u32 = 0x02;
/// `r`: members may remove members.
pub const PRP_REMOVE_MEM: u32 = 0x01;
/// A new group's access bits.
pub const PRP_GROUP_DEFAULT: u32 = PRP_STATUS_ANY | PRP_MEMBER_ANY;
/// A new user's access bits.
pub const PRP_USER_DEFAULT: u32 = PRP_STATUS_ANY;

/// SetFieldsEntry's mask: the access bits.
pub const PR_SF_ALLBITS: u32 = 0xff;
/// The quota for creating groups.
pub const PR_SF_NGROUPS: u32 = 1 << 31;
/// The quota for users of another cell.
pub const PR_SF_NUSERS: u32 = 1 << 30;

/// UpdateEntry's mask: the name.
pub const PRUPDATE_NAME: u32 = 0x01;
/// The id.
pub const PRUPDATE_ID: u32 = 0x02;
/// The flags.
pub const PRUPDATE_FLAGS: u32 = 0x04;
/// Hash the name again.
pub const PRUPDATE_NAMEHASH: u32 = 0x08;
/// Hash the id again.
pub const PRUPDATE_IDHASH: u32 = 0x10;

/// ListEntries' flag: users.
pub const PRUSERS: i32 = 1;
/// ListEntries' flag: groups.
pub const PRGROUPS: i32 = 2;

/// The most members of a group, and groups of a CPS, that a server returns.
pub const PR_MAXGROUPS: usize = 5000;
/// The most elements of a list that a server returns.
pub const PR_MAXLIST: usize = 5000;
