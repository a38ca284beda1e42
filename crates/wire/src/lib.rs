//! Everything two AFS parties must agree on byte for byte.
//!
//! * One module for each RPC package, with a declaration ([`package`]) and the types that it needs:
//!   [`rxafs`], [`rxafscb`], [`vl`], [`pr`], [`afsvol`], [`bozo`], [`vote`], [`disk`], [`rxstats`],
//!   [`rxperf`]. [`serve`]: how servers answer the calls of a package.
//! * [`ids`]: the numbers that name volumes, files, users and partitions. [`host`]: a host's
//!   description of itself.
//! * [`abort`], [`uae`]: the codes that end a failed call.
//! * [`dir`]: directory pages. [`acl`]: access lists. [`dump`]: volume dumps.
//!
//! Bytes from the network become typed values here or are refused; no code above checks lengths
//! again. There is no I/O, no clock and no cryptography in this crate.

// This crate parses bytes from strangers: nothing may panic on them.
#![cfg_attr(
    not(test),
    deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic)
)]

pub mod abort;
pub mod acl;
pub mod afsosd;
pub mod afsvol;
pub mod bozo;
pub mod delta;
pub mod dir;
pub mod disk;
pub mod dump;
pub mod host;
pub mod ids;
pub mod object;
pub mod osd;
pub mod osddb;
pub mod package;
pub mod pr;
pub mod rxafs;
pub mod rxafscb;
pub mod rxperf;
pub mod rxstats;
pub mod serve;
pub mod uae;
pub mod vl;
pub mod vote;

pub use abort::AbortCode;
pub use acl::{AccessList, AclEntry, Cps, Rights};
pub use cellar_xdr::{
    AfsString, Decode, DecodeError, Decoder, Encode, Encoder, List, Opaque, TooLong, WordBytes,
    WordString,
};
pub use ids::{AfsTime, AfsUuid, Fid, PartitionId, Uniquifier, ViceId, VnodeId, VolumeId};
pub use package::{AnyRequest, Package, Procedure, ProcedureInfo, RequestError, Stream};

/// A file name: at most 256 bytes (AFSNAMEMAX), without a NUL at its end. The file server refuses
/// names over 255 bytes and names with a slash.
pub type AfsName = AfsString<256>;
