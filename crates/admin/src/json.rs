//! JSON forms of wire types: numbers as numbers, other types as the commands print them.

use std::fmt::Display;

use cellar_wire::ids::{AfsTime, ViceId, VolumeId};
use serde::Serializer;

pub(crate) fn display<T: Display, S: Serializer>(value: &T, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(value)
}

pub(crate) fn volume_id<S: Serializer>(id: &VolumeId, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_u32(id.0)
}

pub(crate) fn vice_id<S: Serializer>(id: &ViceId, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_i32(id.0)
}

pub(crate) fn time<S: Serializer>(time: &AfsTime, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_u32(time.0)
}
