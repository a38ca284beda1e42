//! A user or group, and the rules for its name.

use cellar_wire::pr::{
    PRACCESS, PRFREE, PRGRP, PRIVATE_SHIFT, PRP_GROUP_DEFAULT, PRP_USER_DEFAULT, PrEntry, PrName,
};
use cellar_wire::{AbortCode, AfsTime, ViceId};
use cellar_xdr::xdr_struct;

/// The name of the group for users of another cell begins so; `@` and the cell follow.
pub(crate) const AUTHUSER_GROUP: &[u8] = b"system:authuser";

xdr_struct! {
    /// A user or group, stored under its id. Membership and ownership lists are separate tables.
    pub(crate) struct Record {
        /// Access bits in the upper half, kind and option bits in the lower.
        pub(crate) flags: u32,
        pub(crate) id: ViceId,
        /// The group of the cell of a foreign user; 0 for other users.
        pub(crate) cell_group: ViceId,
        pub(crate) owner: ViceId,
        pub(crate) creator: ViceId,
        /// The number of groups that may still be created; in the group of a cell, the number of
        /// users that may still register.
        pub(crate) ngroups: i32,
        /// The quota of foreign users; in the group of a cell, the last number assigned to a user.
        pub(crate) nusers: i32,
        pub(crate) created: AfsTime,
        pub(crate) changed: AfsTime,
        pub(crate) name: PrName,
    }
}

impl Record {
    pub(crate) fn is_group(&self) -> bool {
        self.flags & PRGRP != 0
    }

    /// Whether the name is that of another cell's user, or of the group of these.
    pub(crate) fn is_foreign(&self) -> bool {
        self.name.contains(&b'@')
    }

    /// The access bits in force: those that were set, or the defaults.
    pub(crate) fn access(&self) -> u32 {
        let default = if self.is_group() {
            PRP_GROUP_DEFAULT
        } else {
            PRP_USER_DEFAULT
        };
        let set = self.flags >> PRIVATE_SHIFT;
        if self.flags & PRACCESS != 0 {
            set
        } else {
            set | default
        }
    }

    /// The entry in the form for listings. The access bits are in the lower half there. If no bit
    /// is set, the defaults are shown.
    pub(crate) fn to_entry(&self, count: usize) -> PrEntry {
        let default = if self.is_group() {
            PRP_GROUP_DEFAULT
        } else {
            PRP_USER_DEFAULT
        };
        let set = self.flags >> PRIVATE_SHIFT;
        PrEntry {
            flags: if set == 0 { default } else { set },
            id: self.id,
            owner: self.owner,
            creator: self.creator,
            ngroups: self.ngroups,
            nusers: self.nusers,
            count: count as i32,
            reserved: [0; 5],
            name: self.name.clone(),
        }
    }
}

/// The place of an id in listings and keys: users from 1 upwards, then groups from -1 downwards. As
/// a signed number it is never 0 or -1 for a valid id. Therefore it also serves as a cursor.
pub(crate) fn place(id: ViceId) -> u32 {
    if id.0 < 0 {
        0x8000_0000 + !id.0 as u32
    } else {
        id.0 as u32
    }
}

/// The id at a place.
pub(crate) fn id_at(place: u32) -> ViceId {
    if place < 0x8000_0000 {
        ViceId(place as i32)
    } else {
        ViceId(!((place - 0x8000_0000) as i32))
    }
}

/// Whether an id is valid for an entry.
pub(crate) fn is_valid_id(id: ViceId) -> bool {
    id.0 != 0 && id.0 != i32::MIN
}

/// A name in the form of stored entries: in lower case.
///
/// # Errors
/// PRBADNAM for an empty name or one of more than 63 bytes.
pub(crate) fn fold(name: &[u8]) -> Result<PrName, AbortCode> {
    let folded = name.to_ascii_lowercase();
    if folded.is_empty() || folded.contains(&0) {
        return Err(AbortCode::PRBADNAM);
    }
    PrName::new(&folded).map_err(|_| AbortCode::PRBADNAM)
}

/// Whether a name has control characters, which control terminals and can forge lines of listings.
/// OpenAFS refuses only the line feed.
fn has_control_characters(name: &[u8]) -> bool {
    String::from_utf8_lossy(name).contains(char::is_control)
}

/// # Errors
/// PRBADNAM: a user's name has no colon and no control characters.
pub(crate) fn check_user_name(name: &[u8]) -> Result<(), AbortCode> {
    if name.contains(&b':') || has_control_characters(name) {
        return Err(AbortCode::PRBADNAM);
    }
    Ok(())
}

/// # Errors
/// PRBADNAM: a group's name has at most one colon and no control characters.
pub(crate) fn check_group_name(name: &[u8]) -> Result<(), AbortCode> {
    let colons = name.iter().filter(|&&byte| byte == b':').count();
    if colons > 1 || has_control_characters(name) {
        Err(AbortCode::PRBADNAM)
    } else {
        Ok(())
    }
}

/// The part of a name from its `@`, if there is one.
pub(crate) fn cell_part(name: &[u8]) -> Option<&[u8]> {
    name.iter()
        .position(|&byte| byte == b'@')
        .map(|at| &name[at..])
}

/// All kinds that a call may give to a record; a free entry is no kind.
const _: () = assert!(PRGRP & PRFREE == 0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_order_users_before_groups_and_are_cursors() {
        let ids = [1, 2, i32::MAX, -1, -101, -206, i32::MIN + 1].map(ViceId);
        for pair in ids.windows(2) {
            assert!(place(pair[0]) < place(pair[1]));
        }
        for id in ids {
            assert_eq!(id_at(place(id)), id);
            assert!(!matches!(place(id) as i32, 0 | -1));
        }
        assert_eq!(place(ViceId(i32::MIN)) as i32, -1);
    }

    #[test]
    fn names_are_folded_and_checked() {
        assert_eq!(fold(b"Jane").unwrap(), *"jane");
        for wrong in [&b""[..], b"a\0", &[b'a'; 64]] {
            assert_eq!(fold(wrong), Err(AbortCode::PRBADNAM));
        }
        assert!(fold(&[b'a'; 63]).is_ok());
        assert!(check_user_name(b"a@b").is_ok());
        assert!(check_user_name(b"a:b").is_err() && check_user_name(b"a\n").is_err());
        assert!(check_group_name(b"a:b").is_ok() && check_group_name(b"a").is_ok());
        assert!(check_group_name(b"a:b:c").is_err());
        for control in [
            "\u{1}",
            "\t",
            "\n",
            "\r",
            "\u{1b}[2J",
            "\u{7f}",
            "\u{80}",
            "\u{9b}",
        ] {
            let user = format!("a{control}b");
            assert!(check_user_name(user.as_bytes()).is_err(), "{user:?}");
            let group = format!("a:{control}b");
            assert!(check_group_name(group.as_bytes()).is_err(), "{group:?}");
        }
        // Names in other alphabets are valid, also in encodings other than UTF-8.
        for good in ["jürgen".as_bytes(), b"j\xfcrgen", "ユーザ".as_bytes()] {
            assert!(check_user_name(good).is_ok() && check_group_name(good).is_ok());
        }
        assert_eq!(cell_part(b"a@b.c"), Some(&b"@b.c"[..]));
    }
}
