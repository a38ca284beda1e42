//! JSON forms of wire types: ids and times as numbers, codes and flags by name, other types as the
//! commands print them.

use std::fmt::Display;

use cellar_wire::AbortCode;
use cellar_wire::ids::{AfsTime, ViceId, VolumeId};
use serde::Serializer;

pub(crate) fn display<T: Display, S: Serializer>(value: &T, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(value)
}

pub(crate) fn volume_id<S: Serializer>(id: &VolumeId, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_u32(id.0)
}

pub(crate) fn volume_id_if_any<S: Serializer>(
    id: &Option<VolumeId>,
    s: S,
) -> Result<S::Ok, S::Error> {
    match id {
        Some(id) => s.serialize_u32(id.0),
        None => s.serialize_none(),
    }
}

pub(crate) fn vice_id<S: Serializer>(id: &ViceId, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_i32(id.0)
}

pub(crate) fn time<S: Serializer>(time: &AfsTime, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_u32(time.0)
}

/// The meaning of a return code; null for 0.
pub(crate) fn code<S: Serializer>(code: &i32, s: S) -> Result<S::Ok, S::Error> {
    match *code {
        0 => s.serialize_none(),
        code => s.collect_str(&AbortCode(code)),
    }
}

/// The names of the bits that are set, in the order of `names`. Bits without a name are one
/// hexadecimal number.
pub(crate) fn bits<S: Serializer>(
    word: u32,
    names: &[(u32, &str)],
    s: S,
) -> Result<S::Ok, S::Error> {
    let set = names.iter().filter(|(bit, _)| word & bit != 0);
    let mut shown: Vec<String> = set.map(|(_, name)| (*name).to_owned()).collect();
    let known = names.iter().fold(0, |all, (bit, _)| all | bit);
    if word & !known != 0 {
        shown.push(format!("{:#x}", word & !known));
    }
    s.collect_seq(shown)
}
