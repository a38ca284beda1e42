//! A parsed policy.
//!
//! A policy is a list of rules. From the first to the last, each rule whose condition holds
//! overwrites the fields of the outcome that its verdict names. A rule with `stop` ends the policy
//! and all policies that use it.

use cellar_wire::object::{
    COPIES_MAX, ERASURE_ROW_MAX, PARITY_MAX, STRIPES_MAX, Scheme, Shape, UNIT_MAX, UNIT_MIN,
};

use crate::archiving::RecallMode;
use crate::pattern::Pattern;

/// A policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Its rules, in order.
    pub rules: Vec<Rule>,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// `use(N);`: the rules of policy N in this place.
    Use(u32),
    /// `condition => verdict stop;`
    When {
        /// The condition; `None`: the rule always matches.
        condition: Option<Condition>,
        /// The verdict.
        verdict: Verdict,
        /// Whether the rule ends the policy.
        stop: bool,
    },
}

/// The verdict of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// These fields.
    Plain(Outcome),
    /// `steps { 1m: …; 1g: …; }`: those of the last step whose size, in bytes, is not above the
    /// file's; nothing for smaller files. Sizes ascend.
    Steps(Vec<(u64, Outcome)>),
}

/// The condition of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// `!c`
    Not(Box<Condition>),
    /// `c & c`: two or more.
    All(Vec<Condition>),
    /// `c | c`: two or more.
    Any(Vec<Condition>),
    /// `>n`: that many bytes or more.
    AtLeast(u64),
    /// `<n`: that many bytes or fewer.
    AtMost(u64),
    /// `~'glob'` or `~/expression/`: the name of the file, without directories.
    Name(Pattern),
    /// `dir~…`: the path of its directory in the volume; `/` is the volume's root.
    Directory(Pattern),
    /// `volume~…`: the name of its volume.
    Volume(Pattern),
    /// `uid=n`: the user who stores is that one.
    User(i32),
    /// `gid=n`: the user who stores belongs to that group. The original asks both in the same way,
    /// and so do we.
    Group(i32),
    /// `owner=n`: the file belongs to that user.
    Owner(i32),
    /// `group=n`: the file's group, as `chgrp` sets it.
    OwnerGroup(i32),
}

/// The location of a file's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StorageTarget {
    /// `local`: to the file server's own disk.
    Local,
    /// `osd`: to objects.
    Objects,
    /// `dynamic`: to objects if the file is large enough for them.
    #[default]
    BySize,
}

/// The distribution of a file's bytes, as far as a rule names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spread {
    /// No rule names it.
    #[default]
    Unsaid,
    /// `stripes=`, `copies=`.
    Striped {
        /// 1 to 32.
        stripes: Option<u32>,
        /// 1 to 4.
        copies: Option<u32>,
    },
    /// `ec=4+2`.
    Erasure {
        /// Objects of data, 1 to 32.
        data: u32,
        /// Objects of parity, 1 to 8.
        parity: u32,
    },
}

/// The fields that a verdict names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// `location=`
    pub place: Option<StorageTarget>,
    /// `stripes=`, `copies=`, `ec=`
    pub spread: Spread,
    /// `stripe_size=`, in bytes: a power of two from 4 KiB to 16 MiB.
    pub unit: Option<u32>,
    /// `class=`: devices of that class; empty: of any class, whatever was said before.
    pub class: Option<String>,
    /// `archives=`: the number of archives that have a copy, 0 to 4.
    pub archives: Option<u32>,
    /// `archive_class=`: archives of that class; empty: of any class, whatever was said before.
    pub archive_class: Option<String>,
    /// `archive_after=`: seconds from the last change to the first copy.
    pub archive_after: Option<u32>,
    /// `recall=`: the behaviour of a call that needs the bytes of a wiped file.
    pub recall: Option<RecallMode>,
}

impl Outcome {
    /// Whether it names no field.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Overwrites the fields that `later` names. A number of stripes or copies removes an erasure
    /// code, and an erasure code removes them.
    pub fn overwrite(&mut self, later: &Self) {
        if later.place.is_some() {
            self.place = later.place;
        }
        if later.unit.is_some() {
            self.unit = later.unit;
        }
        if later.class.is_some() {
            self.class.clone_from(&later.class);
        }
        self.archives = later.archives.or(self.archives);
        self.archive_after = later.archive_after.or(self.archive_after);
        self.recall = later.recall.or(self.recall);
        if later.archive_class.is_some() {
            self.archive_class.clone_from(&later.archive_class);
        }
        self.spread = match (self.spread, later.spread) {
            (before, Spread::Unsaid) => before,
            (
                Spread::Striped { stripes, copies },
                Spread::Striped {
                    stripes: later_stripes,
                    copies: later_copies,
                },
            ) => Spread::Striped {
                stripes: later_stripes.or(stripes),
                copies: later_copies.or(copies),
            },
            (_, later) => later,
        };
    }

    /// The shape that these fields describe; `None` if none of them is about shape. Missing fields
    /// have the values of a plain object: one stripe, one copy, units of 1 MiB. If different rules
    /// name an erasure code and a unit, and the row would be too large, the largest allowed unit is
    /// used.
    pub fn shape(&self) -> Option<Shape> {
        let plain = Shape::default();
        let (scheme, stripes, copies) = match self.spread {
            Spread::Unsaid if self.unit.is_none() => return None,
            Spread::Unsaid => (Scheme::Striped, plain.stripes, plain.copies),
            Spread::Striped { stripes, copies } => (
                Scheme::Striped,
                stripes.unwrap_or(plain.stripes),
                copies.unwrap_or(plain.copies),
            ),
            Spread::Erasure { data, parity } => (Scheme::Erasure, data, parity),
        };
        let unit = self.unit.unwrap_or(plain.unit);
        Some(Shape {
            scheme,
            stripes,
            copies,
            unit: match scheme {
                Scheme::Striped => unit,
                Scheme::Erasure => unit.min(unit_max(stripes)),
            },
        })
    }
}

/// The largest unit of an erasure code with so many objects of data.
pub(crate) fn unit_max(data: u32) -> u32 {
    let share = ERASURE_ROW_MAX / u64::from(data.max(1));
    u32::try_from(share).map_or(UNIT_MAX, |share| {
        // The power of two below.
        (1 << share.checked_ilog2().unwrap_or(0)).min(UNIT_MAX)
    })
}

/// Whether the size is a stripe unit.
pub(crate) fn is_unit(bytes: u64) -> bool {
    bytes.is_power_of_two() && (u64::from(UNIT_MIN)..=u64::from(UNIT_MAX)).contains(&bytes)
}

/// Archives that can have a copy of a file, at most.
pub(crate) const ARCHIVES_MAX: u64 = 4;

/// Limits of the counts, as `(what is expected, largest)`.
pub(crate) const STRIPES: (&str, u32) = ("1 to 32 stripes", STRIPES_MAX);
pub(crate) const COPIES: (&str, u32) = ("1 to 4 copies", COPIES_MAX);
pub(crate) const DATA: (&str, u32) = ("1 to 32 objects of data", STRIPES_MAX);
pub(crate) const PARITY: (&str, u32) = ("1 to 8 objects of parity", PARITY_MAX);
