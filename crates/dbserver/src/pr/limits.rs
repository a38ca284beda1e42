//! Bounds of the protection database, most of them the protocol's.

/// Members of a group, groups of a user, ids in a list.
pub(crate) const LIST_MAX: usize = cellar_wire::pr::PR_MAXGROUPS;
/// Entries in one answer of ListEntries.
pub(crate) const PAGE_ENTRIES: usize = 500;
/// Groups in groups in groups: how many steps count.
pub(crate) const NESTING_MAX: usize = 5;
/// Groups that are looked at for one that would be in itself.
pub(crate) const AROUND_MAX: usize = LIST_MAX;
/// Ids that are tried before a new entry is refused.
pub(crate) const TRIES_MAX: usize = 50;
/// Groups that a new user may create.
pub(crate) const GROUP_QUOTA: i32 = 20;
/// Users of another cell that a new group for them takes.
pub(crate) const FOREIGN_QUOTA: i32 = 30;
/// Users of one other cell: the upper half of a positive id.
pub(crate) const FOREIGN_USERS_MAX: i32 = 0x7fff;
/// Names or ids that one call may ask for: an id of four bytes asks for a name of 256.
pub(crate) const LOOKUPS_MAX: usize = 16_384;
