//! MakeMany: sends many files, directories and links to the server that a client created locally
//! before.
//!
//! The client uses numbers from ReserveVnodes, in directories that it has leased with
//! LeaseDirectory.

use cellar_xdr::{List, xdr_struct};

use super::{AfsFetchStatus, AfsPath, AfsStoreStatus, Callback, FileType};
use crate::AfsName;
use crate::abort::AbortCode;
use crate::ids::{Uniquifier, VnodeId};

/// The most things that one call creates.
pub const MAKE_MANY_MAX: usize = 64;
/// The most bytes of contents in one call.
pub const MAKE_MANY_BYTES_MAX: u64 = 1 << 20;
/// The most numbers of a kind that one call reserves.
pub const RESERVE_MAX: u32 = 1024;

/// The things that one call creates, in this order.
pub type CreateRequests = List<CreateRequest, MAKE_MANY_MAX>;
/// The results, one for each thing.
pub type CreateResults = List<CreateResult, MAKE_MANY_MAX>;
/// The directories in which something was created.
pub type ChangedDirectories = List<ChangedDirectory, MAKE_MANY_MAX>;

xdr_struct! {
    /// A thing to be created in a directory of the call's volume.
    pub struct CreateRequest {
        /// The directory. It may be one that the same call creates.
        pub dir_vnode: VnodeId,
        /// The directory's uniquifier.
        pub dir_uniquifier: Uniquifier,
        /// The name in the directory.
        pub name: AfsName,
        /// The vnode number of the new thing, a reserved one.
        pub vnode: VnodeId,
        /// The uniquifier of the new thing.
        pub uniquifier: Uniquifier,
        /// File, directory or symbolic link.
        pub kind: FileType,
        /// The initial attributes, as for CreateFile, MakeDir and Symlink. The time of change is
        /// the final one.
        pub in_status: AfsStoreStatus,
        /// The target of a symbolic link; else empty.
        pub text: AfsPath,
        /// Bytes of contents, which follow the arguments in this order. 0 except for files.
        pub length: u32,
    }
}

xdr_struct! {
    /// The result for one of the things.
    #[derive(Copy)]
    pub struct CreateResult {
        /// 0, or the code of the failure; the other fields then have no meaning.
        pub code: AbortCode,
        /// The current status.
        pub status: AfsFetchStatus,
        /// The promise for it.
        pub callback: Callback,
        /// For a directory: the seconds for which the caller has a lease of it.
        pub lease_secs: u32,
    }
}

xdr_struct! {
    /// A directory in which something was created, in its current state.
    #[derive(Copy)]
    pub struct ChangedDirectory {
        /// The directory.
        pub vnode: VnodeId,
        /// Its uniquifier.
        pub uniquifier: Uniquifier,
        /// The current status.
        pub status: AfsFetchStatus,
        /// The seconds from now for which the caller has a lease of it, if it had one; else 0.
        pub lease_secs: u32,
    }
}
