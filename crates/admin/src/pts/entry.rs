//! An entry of the protection database, and its form in the output of `pts`.

use cellar_wire::ids::ViceId;
use serde::Serialize;

/// Access bits of an entry, in the order of `pts setfields -access`. Source: afs-rpcs §9.1.
const STATUS_ANY: u32 = 0x80;
const STATUS_MEMBER: u32 = 0x40;
const OWNED_ANY: u32 = 0x20;
const MEMBERS_ANY: u32 = 0x10;
const MEMBERS_MEMBER: u32 = 0x08;
const ADD_ANY: u32 = 0x04;
const ADD_MEMBER: u32 = 0x02;
const REMOVE_MEMBER: u32 = 0x01;

/// The type bit of groups. Source: the type bits of an entry's flags.
const GROUP: u32 = 2;

/// A user or a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its id: negative for groups.
    #[serde(serialize_with = "crate::json::vice_id")]
    pub id: ViceId,
    /// The id of its owner.
    #[serde(serialize_with = "crate::json::vice_id")]
    pub owner: ViceId,
    /// The id of its creator.
    #[serde(serialize_with = "crate::json::vice_id")]
    pub creator: ViceId,
    /// The number of members of a group, or of groups of a user.
    pub membership: u32,
    /// The flags word: access bits in the high half, type in the low. In JSON the five letters of
    /// the access bits.
    #[serde(serialize_with = "access_letters")]
    pub flags: u32,
    /// The number of groups that this user may still create.
    pub group_quota: u32,
    /// The number of users that the group of a foreign cell may still register.
    pub user_quota: u32,
}

fn access_letters<S: serde::Serializer>(flags: &u32, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(&letters(*flags))
}

/// The five letters of the access bits: Status, Owned, Membership, Add, Remove.
fn letters(flags: u32) -> String {
    let access = flags >> 16;
    let position = |any: (u32, char), member: (u32, char)| {
        if access & any.0 != 0 {
            any.1
        } else if access & member.0 != 0 {
            member.1
        } else {
            '-'
        }
    };
    [
        position((STATUS_ANY, 'S'), (STATUS_MEMBER, 's')),
        position((OWNED_ANY, 'O'), (0, '-')),
        position((MEMBERS_ANY, 'M'), (MEMBERS_MEMBER, 'm')),
        position((ADD_ANY, 'A'), (ADD_MEMBER, 'a')),
        position((0, '-'), (REMOVE_MEMBER, 'r')),
    ]
    .into_iter()
    .collect()
}

impl Entry {
    /// The five letters of the access bits: Status, Owned, Membership, Add, Remove.
    pub fn letters(&self) -> String {
        letters(self.flags)
    }

    /// Whether it is a group.
    pub fn is_group(&self) -> bool {
        self.flags & GROUP != 0 || self.id.is_group()
    }

    /// The two lines of `pts examine`, given the names of owner and creator.
    pub fn examined(&self, owner: &str, creator: &str, unlimited: bool) -> String {
        let quota = if unlimited {
            "unlimited".to_owned()
        } else {
            self.group_quota.to_string()
        };
        format!(
            "Name: {}, id: {}, owner: {owner}, creator: {creator},\n  membership: {}, flags: {}, \
             group quota: {quota}.\n",
            self.name,
            self.id.0,
            self.membership,
            self.letters(),
        )
    }

    /// One line of `pts listentries`.
    pub fn line(&self) -> String {
        format!(
            "{:<25} {:>6} {:>6} {:>7} \n",
            self.name, self.id.0, self.owner.0, self.creator.0
        )
    }
}

/// The head of `pts listentries`.
pub const LIST_HEAD: &str = "Name                          ID  Owner Creator\n";

/// An argument of `-access` that is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAccess {
    /// It is not five letters, or has other letters than those.
    #[error(
        "Access bits must be of the form 'somar', not {0}. Five letters are wanted, S or s, O or -, \
         M, m or -, A, a or -, r or -, for example S-M--"
    )]
    Form(String),
    /// The letters are valid, but in the wrong places.
    #[error(
        "Access bits out of order or illegal: must be a combination of letters from 'SOMA ' or \
         's mar' or hyphen, not {0}"
    )]
    Order(String),
}

/// The access bits of five letters (`SOMar`), or of an octal number, as `pts setfields` takes them.
pub fn parse_access(text: &str) -> Result<u32, BadAccess> {
    let bad = || BadAccess::Form(text.to_owned());
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return u32::from_str_radix(text, 8)
            .ok()
            .filter(|bits| *bits <= 0xff)
            .ok_or_else(bad);
    }
    let letters: [char; 5] = text
        .chars()
        .collect::<Vec<_>>()
        .try_into()
        .map_err(|_| bad())?;
    if !text.contains(['s', 'o', 'm', 'a', 'r', '-']) {
        return Err(bad());
    }
    let bad = || BadAccess::Order(text.to_owned());
    let choices: [&[(char, u32)]; 5] = [
        &[('S', STATUS_ANY), ('s', STATUS_MEMBER), ('-', 0)],
        &[('O', OWNED_ANY), ('o', 0), ('-', 0)],
        // Rights for everyone include rights for members.
        &[('M', MEMBERS_ANY), ('m', MEMBERS_MEMBER), ('-', 0)],
        &[('A', ADD_ANY), ('a', ADD_MEMBER), ('-', 0)],
        &[('r', REMOVE_MEMBER), ('-', 0)],
    ];
    let mut bits = 0;
    for (letter, choice) in letters.into_iter().zip(choices) {
        bits |= choice.iter().find(|(c, _)| *c == letter).ok_or_else(bad)?.1;
    }
    Ok(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, id: i32, access: u32) -> Entry {
        Entry {
            name: name.to_owned(),
            id: ViceId(id),
            owner: ViceId(1000),
            creator: ViceId(-204),
            membership: 54,
            flags: access << 16,
            group_quota: 20,
            user_quota: 0,
        }
    }

    /// Expected texts: OpenAFS 1.8.9.
    #[test]
    fn prints_as_pts_does() {
        let access = parse_access("SOmar").expect("letters");
        let group = entry("user:g2", -206, access);
        assert_eq!(
            group.examined("user", "system:administrators", true),
            "Name: user:g2, id: -206, owner: user, creator: system:administrators,\n  \
             membership: 54, flags: SOmar, group quota: unlimited.\n"
        );
        assert_eq!(
            group.line(),
            "user:g2                     -206   1000    -204 \n"
        );
        assert!(group.is_group());
        assert!(
            entry("u", 1, 0)
                .examined("a", "b", false)
                .ends_with("group quota: 20.\n")
        );
    }

    #[test]
    fn access_letters_both_ways() {
        for text in ["S-M--", "-----", "s-m-r", "SOMAr", "SOmar"] {
            assert_eq!(
                entry("x", 1, parse_access(text).expect(text)).letters(),
                text
            );
        }
        assert_eq!(parse_access("200"), Ok(0x80));
        for bad in ["", "S-M-", "S-M--r", "XXXXX", "777", "9"] {
            assert!(
                matches!(parse_access(bad), Err(BadAccess::Form(_))),
                "{bad}"
            );
        }
        for bad in ["X----", "----R", "smoar"] {
            assert!(
                matches!(parse_access(bad), Err(BadAccess::Order(_))),
                "{bad}"
            );
        }
    }
}
