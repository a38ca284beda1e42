//! The volumes and users of the measured databases, as functions of their numbers.

/// File servers that have the volumes.
pub(crate) const SERVERS: u32 = 40;
/// Address of the first file server; the others have the addresses that follow.
pub(crate) const FIRST_SERVER: u32 = 0x0a62_0001;
/// Partitions of each file server.
const PARTITIONS: u32 = 26;
const FIRST_VOLUME_ID: u32 = 0x2000_0000;
const FIRST_USER_ID: i32 = 40_000;
const FIRST_GROUP_ID: i32 = -1000;
/// Users for each group.
const USERS_EACH: u32 = 100;
/// Groups that a user is in.
const MEMBERSHIPS: u32 = 3;

/// Name of a volume.
pub(crate) fn volume_name(number: u32) -> String {
    format!("user.v{number:07}")
}

/// The read-write, read-only and backup id of a volume: three in a row, as `vos create` takes them.
pub(crate) fn volume_ids(number: u32) -> [u32; 3] {
    let first = FIRST_VOLUME_ID + 3 * number;
    [first, first + 1, first + 2]
}

/// Server, counted from 0, and partition of a volume.
pub(crate) fn volume_site(number: u32) -> (u8, u8) {
    let partition = number / SERVERS % PARTITIONS;
    ((number % SERVERS) as u8, partition as u8)
}

/// Name of a user.
pub(crate) fn user_name(number: u32) -> String {
    format!("user{number:07}")
}

/// Id of a user.
pub(crate) fn user_id(number: u32) -> i32 {
    FIRST_USER_ID + number as i32
}

/// The number of groups beside so many users.
pub(crate) fn groups(users: u32) -> u32 {
    users.div_ceil(USERS_EACH).max(MEMBERSHIPS)
}

/// Name of a group.
pub(crate) fn group_name(number: u32) -> String {
    format!("group{number:05}")
}

/// Id of a group.
pub(crate) fn group_id(number: u32) -> i32 {
    FIRST_GROUP_ID - number as i32
}

/// The numbers of a user's groups: three that differ.
pub(crate) fn groups_of(user: u32, groups: u32) -> [u32; MEMBERSHIPS as usize] {
    [0, 1, 2].map(|offset| (user + offset) % groups)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn numbers_do_not_collide() {
        let ids: HashSet<u32> = (0..1000).flat_map(volume_ids).collect();
        assert_eq!(ids.len(), 3000);
        let names: HashSet<String> = (0..1000).map(volume_name).collect();
        assert_eq!(names.len(), 1000);
        for user in 0..200 {
            let of = groups_of(user, groups(200));
            assert_eq!(HashSet::from(of).len(), 3);
        }
        // The anonymous user has 32766.
        assert!(user_id(0) > 32766);
    }
}
