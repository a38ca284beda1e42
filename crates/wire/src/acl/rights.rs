//! Rights: letters, bits, and sets of them.

use std::fmt;

use cellar_xdr::{Decode, DecodeError, Decoder, Encode, Encoder};

/// A set of rights on a directory and the files in it.
///
/// Written in the order `rlidwkaABCDEFGH`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Rights(pub u32);

impl Rights {
    /// No right.
    pub const NONE: Self = Self(0);
    /// `r`: read files.
    pub const READ: Self = Self(1);
    /// `w`: change files.
    pub const WRITE: Self = Self(2);
    /// `i`: create files and directories.
    pub const INSERT: Self = Self(4);
    /// `l`: see names and the access list.
    pub const LOOKUP: Self = Self(8);
    /// `d`: remove files and directories.
    pub const DELETE: Self = Self(16);
    /// `k`: lock files.
    pub const LOCK: Self = Self(32);
    /// `a`: change the access list. In a file's status: the caller owns the file.
    pub const ADMINISTER: Self = Self(64);
    /// `rlidwka`.
    pub const ALL: Self = Self(127);
    /// Every bit, `A` to `H` included: the rights of administrators.
    pub const EVERYTHING: Self = Self(0xff00_007f);

    /// Whether all of `rights` are in `self`.
    pub const fn contains(self, rights: Self) -> bool {
        self.0 & rights.0 == rights.0
    }

    /// Whether any of `rights` is in `self`.
    pub const fn intersects(self, rights: Self) -> bool {
        self.0 & rights.0 != 0
    }

    /// The union of both.
    #[must_use]
    pub const fn union(self, rights: Self) -> Self {
        Self(self.0 | rights.0)
    }

    /// `self` without `rights`.
    #[must_use]
    pub const fn difference(self, rights: Self) -> Self {
        Self(self.0 & !rights.0)
    }

    /// Reads letters, or one of the words `read`, `write`, `mail`, `all`, `none` of the `fs`
    /// command.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "none" => return Some(Self::NONE),
            "read" => return Some(Self(9)),
            "write" => return Some(Self(63)),
            // `lik`: for depositing something in a directory that one may not read.
            "mail" => return Some(Self(44)),
            "all" => return Some(Self::ALL),
            _ => {}
        }
        text.chars().try_fold(Self::NONE, |rights, letter| {
            let (_, right) = LETTERS.iter().find(|(known, _)| *known == letter)?;
            Some(rights.union(*right))
        })
    }
}

/// Letters in the order in which `fs` shows them.
const LETTERS: [(char, Rights); 15] = [
    ('r', Rights::READ),
    ('l', Rights::LOOKUP),
    ('i', Rights::INSERT),
    ('d', Rights::DELETE),
    ('w', Rights::WRITE),
    ('k', Rights::LOCK),
    ('a', Rights::ADMINISTER),
    ('A', Rights(0x0100_0000)),
    ('B', Rights(0x0200_0000)),
    ('C', Rights(0x0400_0000)),
    ('D', Rights(0x0800_0000)),
    ('E', Rights(0x1000_0000)),
    ('F', Rights(0x2000_0000)),
    ('G', Rights(0x4000_0000)),
    ('H', Rights(0x8000_0000)),
];

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (letter, right) in LETTERS {
            if self.contains(right) {
                write!(f, "{letter}")?;
            }
        }
        Ok(())
    }
}

impl std::ops::BitOr for Rights {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

impl std::ops::BitOrAssign for Rights {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl std::ops::BitAnd for Rights {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl Encode for Rights {
    fn encode(&self, out: &mut Encoder<'_>) {
        out.u32(self.0);
    }
}

impl Decode for Rights {
    const MIN_SIZE: usize = 4;

    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        d.u32().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_go_both_ways() {
        assert_eq!(Rights::ALL.to_string(), "rlidwka");
        assert_eq!(Rights::EVERYTHING.to_string(), "rlidwkaABCDEFGH");
        assert_eq!(Rights::parse("rlidwka"), Some(Rights::ALL));
        assert_eq!(Rights::parse("write"), Rights::parse("rlidwk"));
        assert_eq!(Rights::parse("mail"), Rights::parse("lik"));
        assert_eq!(Rights::parse("read"), Rights::parse("rl"));
        assert_eq!(Rights::parse(""), Some(Rights::NONE));
        assert_eq!(Rights::parse("rx"), None);
        for bits in 0..=127 {
            assert_eq!(Rights::parse(&Rights(bits).to_string()), Some(Rights(bits)));
        }
    }
}
