//! Everything two AFS parties must agree on byte for byte.
//!
//! * one module an RPC package, each a declaration ([`package`]) and the types it needs:
//!   [`rxafs`], [`rxafscb`], [`vl`], [`pr`], [`afsvol`], [`bozo`], [`vote`], [`disk`], [`rxstats`],
//!   [`rxperf`];
//! * [`ids`]: the numbers that name volumes, files, users, partitions; [`host`]: what a host says
//!   of itself;
//! * [`abort`], [`uae`]: the codes that end a failed call;
//! * [`dir`]: directory pages; [`acl`]: access lists; [`dump`]: volume dumps.
//!
//! Bytes from the network become typed values here or are refused; nothing above checks lengths
//! again. There is no I/O, no clock and no cryptography in this crate.

// Bytes of strangers are parsed here: nothing may panic on them.
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

/// A file name: at most 256 bytes (AFSNAMEMAX), without NUL at its end. The file server refuses
/// what is over 255 or holds a slash.
pub type AfsName = AfsString<256>;
