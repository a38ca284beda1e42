//! Deltas: what travels instead of a dump between servers that both know it.
//!
//! A delta turns one state of a volume into another. Its head, an argument of RestoreDelta, names
//! both; the stream holds what is different: vnodes with their attributes, the ranges of their
//! contents that changed, and which vnodes are gone.
//!
//! 1. The stream is a magic number and frames: length, checksum, items. No item is in two frames.
//!    A frame's checksum (CRC-32C) goes on from that of the frame before, so that frames which are
//!    damaged, missing, repeated or in another order are noticed before an item of them is used.
//! 2. The last item counts the others and the bytes of contents. What ends without it is not a
//!    delta.
//! 3. [`Writer`] gathers small items in frames and passes contents on without copying them;
//!    [`Reader`] is fed bytes as they come, and holds one frame at most.
//! 4. To a server that reads the same objects the layout of a file in objects travels, and no contents.
//! 5. Nothing is compressed: contents are whatever users keep, and the rest is a hundred bytes for
//!    each vnode that changed.
//!
//! Ours; no other server knows it.

use bytes::Bytes;
use cellar_xdr::{Opaque, xdr_struct};

use crate::acl::ACL_SIZE;
use crate::ids::{AfsTime, Uniquifier, ViceId, VnodeId};
use crate::object::Layout;

mod read;
mod write;

pub use read::Reader;
pub use write::Writer;

xdr_struct! {
    /// A vnode that is new or has changed. Its contents follow as [`Item::Data`].
    #[derive(Default)]
    pub struct DeltaVnode {
        /// Its number.
        pub vnode: VnodeId,
        /// Its uniquifier.
        pub uniquifier: Uniquifier,
        /// 1 file, 2 directory, 3 symbolic link.
        pub file_type: u32,
        /// The low 12 bits of the mode.
        pub mode: u32,
        /// Links.
        pub link_count: u32,
        /// Data version.
        pub data_version: u64,
        /// When the contents changed, by the client's clock or as set.
        pub mod_time: AfsTime,
        /// When anything changed, by the server's clock.
        pub server_mod_time: AfsTime,
        /// Who changed the contents last.
        pub author: ViceId,
        /// Owner.
        pub owner: ViceId,
        /// Group.
        pub group: ViceId,
        /// The directory that holds it; 0 for the root.
        pub parent: VnodeId,
        /// A directory's access list, in the binary form and network order; else empty.
        pub access_list: Opaque<ACL_SIZE>,
        /// Length of the contents.
        pub length: u64,
        /// Where contents do not follow, those of the base stay up to here, and zeros are beyond.
        /// 0: the vnode is new, or nothing of it stays.
        pub kept: u64,
    }

    /// What goes with a volume whose layouts travel.
    #[derive(Copy, Default)]
    pub struct Origin {
        /// The volume's policy.
        pub policy: u32,
        /// All versions of objects that its server has given are below this one.
        pub version: u64,
    }

    /// The end: what went before.
    #[derive(Copy, Default)]
    pub struct Totals {
        /// Items.
        pub items: u64,
        /// Bytes of contents.
        pub bytes: u64,
    }
}

/// A piece of a delta.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A vnode that is new or has changed.
    Vnode(Box<DeltaVnode>),
    /// Contents of the last vnode from an offset on; never empty. Offsets rise.
    Data(u64, Bytes),
    /// So many zeros from an offset on, which the base had something else for; never 0.
    Zeros(u64, u64),
    /// A vnode that did not change, where the base is known by a date only: it has to be there.
    Keep(VnodeId, Uniquifier),
    /// A vnode of the base that is gone.
    Remove(VnodeId),
    /// The volume's policy and version, before any vnode.
    Origin(Origin),
    /// The sender borrows the objects of its layouts and may not write them, nor may whoever takes them from it: the
    /// volume that they are of may be elsewhere. Before any vnode.
    Borrowed,
    /// The next vnode is a file in these objects, and has no contents here.
    Layout(Box<Layout>),
    /// The next vnode is a directory with this policy.
    Policy(u32),
    /// The end.
    End(Totals),
}

/// Why bytes are not a delta. A restore answers VOLSERREAD_DUMPERROR for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeltaError {
    /// It does not begin as a delta does.
    #[error("the delta has no magic number where it should begin")]
    Magic,
    /// A frame that is empty or too long.
    #[error("a frame of the delta has an impossible length")]
    Length,
    /// A checksum that is not that of the bytes.
    #[error("a frame of the delta is damaged, or not the next one")]
    Checksum,
    /// Items that do not parse.
    #[error("a frame of the delta does not parse")]
    Form,
    /// Contents without a vnode, beyond its length, or not in order.
    #[error("contents in the delta are out of place")]
    Place,
    /// The counts at the end are not those of what came.
    #[error("the delta is not complete")]
    Totals,
    /// Bytes after the end.
    #[error("the delta goes on after its end")]
    Surplus,
    /// The bytes ended before the delta did.
    #[error("the delta ends too early")]
    Truncated,
}

const MAGIC: [u8; 8] = *b"CELLARD1";
/// Bytes before a frame's items: length, checksum.
const FRAME_HEAD: usize = 8;
/// Bytes of items in a frame, at most.
const FRAME_MAX: usize = 2 << 20;
const TAG_VNODE: u32 = 1;
const TAG_DATA: u32 = 2;
const TAG_KEEP: u32 = 3;
const TAG_REMOVE: u32 = 4;
const TAG_ZEROS: u32 = 5;
const TAG_END: u32 = 6;
const TAG_LAYOUT: u32 = 7;
const TAG_POLICY: u32 = 8;
const TAG_ORIGIN: u32 = 9;
const TAG_BORROWED: u32 = 10;
