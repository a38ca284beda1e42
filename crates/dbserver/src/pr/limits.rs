//! Limits of the protection database, most of them the protocol's.

/// The most members of a group, groups of a user, and ids in a list.
pub(crate) const LIST_MAX: usize = cellar_wire::pr::PR_MAXGROUPS;
/// The most entries in one reply of ListEntries.
pub(crate) const PAGE_ENTRIES: usize = 500;
/// The most levels of nested groups that count.
pub(crate) const NESTING_MAX: usize = 5;
/// The most groups that are checked before a group is nested in another, which must not make a
/// cycle.
pub(crate) const AROUND_MAX: usize = LIST_MAX;
/// The number of ids that are tried before a new entry is refused.
pub(crate) const TRIES_MAX: usize = 50;
/// The number of ids that a server reserves after conflicts with other servers.
pub(crate) const RESERVED_IDS: i32 = 16;
/// The run of a creation that reserves ids. One server's writers may make each other run twice.
pub(crate) const RUNS_MIN: u32 = 3;
/// The number of groups that a new user may create.
pub(crate) const GROUP_QUOTA: i32 = 20;
/// The number of users of another cell that a new group for that cell may register.
pub(crate) const FOREIGN_QUOTA: i32 = 30;
/// The most users of one other cell: the upper half of a positive id.
pub(crate) const FOREIGN_USERS_MAX: i32 = 0x7fff;
/// The most names or ids in one call: an id of four bytes is answered with a name of 256.
pub(crate) const LOOKUPS_MAX: usize = 16_384;
