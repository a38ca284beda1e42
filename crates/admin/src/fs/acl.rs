//! Access lists as text: the form that FetchACL returns, `fs` shows and StoreACL takes.
//!
//! The text has two counts, then a line for each positive and each negative entry. A line is a
//! name, a tab and the rights as a decimal number. Here entries keep their names; the file server
//! translates them into ids.

use std::fmt::Write as _;

use cellar_wire::acl::Rights;
use cellar_wire::ids::ViceId;
use serde::Serialize;

/// The most entries of a list, positive and negative together.
const ENTRIES_MAX: usize = 20;

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AclEntry {
    /// A user or group.
    pub name: String,
    /// The rights that the entry gives or denies.
    #[serde(serialize_with = "crate::json::display")]
    pub rights: Rights,
}

impl AclEntry {
    /// The id that the name consists of, if it is a number.
    fn number(&self) -> Option<ViceId> {
        // Only the servers' own form of a number counts: '+7' or '007' would be the name of a user.
        let id: i32 = self.name.parse().ok()?;
        (id.to_string() == self.name).then_some(ViceId(id))
    }
}

/// An access list with names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Acl {
    /// Positive entries.
    pub normal: Vec<AclEntry>,
    /// Negative entries: the rights that they take away from the positive ones.
    pub negative: Vec<AclEntry>,
}

/// The text is not an access list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server's access list is malformed")]
pub struct BadAcl;

impl Acl {
    /// Parses the text of FetchACL. A NUL at the end is accepted, and blanks instead of tabs.
    pub fn parse(text: &[u8]) -> Result<Self, BadAcl> {
        let end = text
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(text.len());
        let text = String::from_utf8_lossy(&text[..end]);
        let mut lines = text.lines();
        let mut count = || -> Result<usize, BadAcl> {
            // DFS translators add a word after the number.
            let word = lines
                .next()
                .and_then(|l| l.split_whitespace().next())
                .ok_or(BadAcl)?;
            word.parse()
                .ok()
                .filter(|n| *n <= ENTRIES_MAX)
                .ok_or(BadAcl)
        };
        let (normal, negative) = (count()?, count()?);
        let mut entries = |count: usize| -> Result<Vec<AclEntry>, BadAcl> {
            let entry = |line: &str| {
                let (name, rights) = line.trim().rsplit_once(char::is_whitespace)?;
                let rights = Rights(rights.parse::<i64>().ok()? as u32);
                Some(AclEntry {
                    name: name.trim().to_owned(),
                    rights,
                })
            };
            (0..count)
                .map(|_| lines.next().and_then(entry).ok_or(BadAcl))
                .collect()
        };
        Ok(Self {
            normal: entries(normal)?,
            negative: entries(negative)?,
        })
    }

    /// The text for StoreACL, with the NUL that servers require.
    pub fn text(&self) -> Vec<u8> {
        let mut text = format!("{}\n{}\n", self.normal.len(), self.negative.len());
        for entry in self.normal.iter().chain(&self.negative) {
            let _ = writeln!(text, "{}\t{}", entry.name, entry.rights.0);
        }
        text.push('\0');
        text.into_bytes()
    }

    /// Sets the rights of one name. Empty rights remove the entry.
    pub fn set(&mut self, name: &str, rights: Rights, negative: bool) {
        let list = if negative {
            &mut self.negative
        } else {
            &mut self.normal
        };
        let place = list
            .iter()
            .position(|entry| entry.name.eq_ignore_ascii_case(name));
        match (place, rights == Rights::NONE) {
            (Some(place), true) => {
                list.remove(place);
            }
            (Some(place), false) => list[place].rights = rights,
            (None, true) => {}
            (None, false) => list.push(AclEntry {
                name: name.to_owned(),
                rights,
            }),
        }
    }

    /// Changes the rights of one name; a name without an entry starts with no rights.
    pub fn change(&mut self, name: &str, change: RightsChange, negative: bool) {
        let list = if negative {
            &self.negative
        } else {
            &self.normal
        };
        let entry = list
            .iter()
            .find(|entry| entry.name.eq_ignore_ascii_case(name));
        let had = entry.map_or(Rights::NONE, |entry| entry.rights);
        let rights = match change {
            RightsChange::Set(rights) => rights,
            RightsChange::Add(rights) => Rights(had.0 | rights.0),
            RightsChange::Remove(rights) => Rights(had.0 & !rights.0),
        };
        self.set(name, rights, negative);
    }

    /// The numbers that stand in the place of names, each once. A server sends numbers for deleted
    /// users and groups. While it cannot reach the protection database, it sends numbers for all.
    pub fn numbers(&self) -> Vec<ViceId> {
        let entries = self.normal.iter().chain(&self.negative);
        let mut ids: Vec<_> = entries.filter_map(AclEntry::number).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Replaces numbers by names, and removes the entries of numbers without a name. `name_of`
    /// returns the name of each of [`Acl::numbers`]. Returns whether any entry was removed.
    pub fn clean(&mut self, name_of: impl Fn(ViceId) -> Option<String>) -> bool {
        let before = self.normal.len() + self.negative.len();
        for list in [&mut self.normal, &mut self.negative] {
            list.retain_mut(|entry| match entry.number().map(&name_of) {
                None => true,
                Some(None) => false,
                Some(Some(name)) => {
                    entry.name = name;
                    true
                }
            });
        }
        before != self.normal.len() + self.negative.len()
    }

    /// The output of `fs listacl -cmd`: commands that set this list.
    pub fn commands(&self, path: &str) -> String {
        let mut text = String::new();
        for (switch, list) in [("", &self.normal), (" -negative", &self.negative)] {
            if list.is_empty() {
                continue;
            }
            let _ = write!(text, "fs setacl -dir {path} -acl");
            for entry in list {
                let _ = write!(text, " {} {}", entry.name, entry.rights);
            }
            let _ = writeln!(text, "{switch}");
        }
        text
    }

    /// The output of `fs listacl` below the path.
    pub fn listing(&self) -> String {
        let mut text = String::new();
        for (title, list) in [("Normal", &self.normal), ("Negative", &self.negative)] {
            if list.is_empty() {
                continue;
            }
            let _ = writeln!(text, "{title} rights:");
            for entry in list {
                let _ = writeln!(text, "  {} {}", entry.name, entry.rights);
            }
        }
        text
    }
}

/// A change of the rights of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RightsChange {
    /// Exactly these rights.
    Set(Rights),
    /// These rights in addition.
    Add(Rights),
    /// These rights are removed.
    Remove(Rights),
}

/// Parses rights as `fs setacl` takes them: letters, or `read`, `write`, `mail`, `all`, `none`. A
/// sign at the end chooses the change: `+` adds, `-` removes, `=` or no sign sets. Source:
/// fs_setacl(1).
pub fn parse_rights(text: &str) -> Result<RightsChange, String> {
    let (letters, change): (_, fn(Rights) -> RightsChange) = match text.as_bytes().last() {
        Some(b'+') => (&text[..text.len() - 1], RightsChange::Add),
        Some(b'-') => (&text[..text.len() - 1], RightsChange::Remove),
        Some(b'=') => (&text[..text.len() - 1], RightsChange::Set),
        _ => (text, RightsChange::Set),
    };
    // `none+` and `none-` remove the entry too, as in OpenAFS's fs.
    if letters == "none" {
        return Ok(RightsChange::Set(Rights::NONE));
    }
    Rights::parse(letters).map(change).ok_or_else(|| {
        let is_right = |letter: &char| Rights::parse(&letter.to_string()).is_some();
        let wrong = letters.chars().find(|letter| !is_right(letter));
        let wrong = wrong.map_or_else(|| text.to_owned(), |letter| letter.to_string());
        format!(
            "illegal rights character '{wrong}'. Rights are letters of rlidwka (A to H for your own), or read, \
             write, mail, all, none; + or - behind them adds or removes"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"2\n1\nsystem:administrators\t127\nsystem:anyuser\t9\nbob\t7\n\0";

    #[test]
    fn rights_are_set_added_and_removed() {
        let mut acl = Acl::default();
        // Each row gives the rights of ann after it; `None` means no entry.
        for (rights, wanted) in [
            ("rl", Some("rl")),
            ("w+", Some("rlw")),
            ("read-", Some("w")),
            ("r-", Some("w")),
            ("rl=", Some("rl")),
            ("write+", Some("rlidwk")),
            ("all-", None),
            ("lk+", Some("lk")),
            ("none-", None),
            ("i-", None),
        ] {
            acl.change("ann", parse_rights(rights).expect(rights), false);
            let entry = acl.normal.first().map(|entry| entry.rights.to_string());
            assert_eq!(entry.as_deref(), wanted, "{rights}");
        }
        acl.change("ann", parse_rights("w+").expect("rights"), true);
        assert_eq!((acl.normal.len(), acl.negative.len()), (0, 1));
        for wrong in ["x+", "r+l", "+r", "rl+-", "readwrite"] {
            assert!(parse_rights(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn both_ways() {
        let acl = Acl::parse(TEXT).expect("acl");
        assert_eq!(acl.normal.len(), 2);
        assert_eq!(acl.text(), TEXT);
        assert_eq!(
            acl.listing(),
            "Normal rights:\n  system:administrators rlidwka\n  system:anyuser rl\n\
             Negative rights:\n  bob rwi\n"
                .replace("rwi", "riw")
        );
        // The form that `fs` sends: a blank, and no NUL.
        assert_eq!(
            Acl::parse(b"1\n0\nann 127\n").expect("blank").normal[0].name,
            "ann"
        );
        assert_eq!(
            Acl::parse(b"0 dfs:1 cell\n0\n").expect("dfs"),
            Acl::default()
        );
    }

    #[test]
    fn a_removed_user_is_dropped() {
        let mut acl = Acl::parse(TEXT).expect("acl");
        assert!(!acl.clean(|_| None));
        acl.set("1234", Rights::READ, false);
        acl.set("-206", Rights::READ, true);
        assert_eq!(acl.numbers(), [ViceId(-206), ViceId(1234)]);
        assert!(acl.clean(|_| None));
        assert_eq!(acl.text(), TEXT);
        let dead = Acl::parse(b"1\n0\n77 9\n").expect("acl");
        assert_eq!(dead.commands("x"), "fs setacl -dir x -acl 77 rl\n");
    }

    #[test]
    fn numbers_that_have_names_get_them() {
        let mut acl = Acl::parse(b"2\n1\n7\t9\n007\t9\n-206\t7\n").expect("acl");
        let name_of = |id: ViceId| (id == ViceId(-206)).then(|| "friends".to_owned());
        assert!(acl.clean(name_of));
        assert_eq!(acl.text(), b"1\n1\n007\t9\nfriends\t7\n\0");
    }

    #[test]
    fn senseless_values() {
        for bad in [
            &b""[..],
            b"1\n0\n",
            b"x\n0\n",
            b"1\n0\nann\n",
            b"21\n0\n",
            b"1\n0\nann x\n",
        ] {
            assert_eq!(Acl::parse(bad), Err(BadAcl), "{bad:?}");
        }
    }

    #[test]
    fn entries_are_set_and_removed() {
        let mut acl = Acl::parse(TEXT).expect("acl");
        acl.set("System:AnyUser", Rights::NONE, false);
        acl.change("ann", parse_rights("write").expect("word"), false);
        acl.set("ann", Rights::NONE, true);
        let names: Vec<_> = acl.normal.iter().map(|e| e.name.as_str()).collect();
        assert_eq!(names, ["system:administrators", "ann"]);
        assert_eq!(acl.normal[1].rights, Rights(63));
        assert!(parse_rights("rz").is_err());
    }
}
