//! Files, directories and links that a client has made by itself and tells of later, many at a time: MakeMany, under numbers that
//! ReserveVnodes gave it, in directories that LeaseDirectory keeps others out of.

use cellar_xdr::{List, xdr_struct};

use super::{AfsFetchStatus, AfsPath, AfsStoreStatus, Callback, FileType};
use crate::AfsName;
use crate::abort::AbortCode;
use crate::ids::{Uniquifier, VnodeId};

/// Things that one call makes.
pub const MAKE_MAX: usize = 64;
/// Bytes of contents that one call brings.
pub const MAKE_BYTES_MAX: u64 = 1 << 20;
/// Numbers of a kind that are reserved by one call.
pub const RESERVE_MAX: u32 = 1024;

/// What one call makes, in this order.
pub type Makings = List<Making, MAKE_MAX>;
/// What became of each.
pub type Mades = List<Made, MAKE_MAX>;
/// The directories that something was made in.
pub type MadeIns = List<MadeIn, MAKE_MAX>;

xdr_struct! {
    /// Something to be made in a directory of the call's volume.
    pub struct Making {
        /// The directory; one that the same call makes, too.
        pub dir_vnode: VnodeId,
        /// And its uniquifier.
        pub dir_uniquifier: Uniquifier,
        /// The name in it.
        pub name: AfsName,
        /// The number that it is to have, a reserved one.
        pub vnode: VnodeId,
        /// And its uniquifier.
        pub uniquifier: Uniquifier,
        /// File, directory or symbolic link.
        pub kind: FileType,
        /// What it starts with, as for CreateFile, MakeDir and Symlink; the time of change is the one that it has afterwards.
        pub in_status: AfsStoreStatus,
        /// Where a symbolic link leads; else empty.
        pub text: AfsPath,
        /// Bytes of contents, which follow the arguments in this order. None but for files.
        pub length: u32,
    }
}

xdr_struct! {
    /// What became of one of them.
    #[derive(Copy)]
    pub struct Made {
        /// 0, or why it was not made: the rest means nothing then.
        pub code: AbortCode,
        /// What it is now.
        pub status: AfsFetchStatus,
        /// What is promised about it.
        pub callback: Callback,
        /// Directories: for how many seconds the caller has the lease of it.
        pub lease_secs: u32,
    }
}

xdr_struct! {
    /// A directory that something was made in, as it is now.
    #[derive(Copy)]
    pub struct MadeIn {
        /// The directory.
        pub vnode: VnodeId,
        /// And its uniquifier.
        pub uniquifier: Uniquifier,
        /// What it is now.
        pub status: AfsFetchStatus,
        /// For how many seconds from now the caller has the lease of it: if he had it; else 0.
        pub lease_secs: u32,
    }
}
