//! Deltas, which replace dumps between two servers that both know them.
//!
//! A delta turns one state of a volume into another. Its head, an argument of RestoreDelta, names
//! both states. The stream holds the differences: vnodes with their attributes, the changed ranges
//! of their contents, and the vnodes that are gone.
//!
//! 1. The stream is a magic number and frames: length, checksum, items. No item is in two frames.
//!    The checksum of a frame (CRC-32C) continues that of the frame before it. So the reader
//!    notices a damaged, missing, repeated or misplaced frame before it uses an item of that frame.
//! 2. The last item holds the counts of the other items and of the bytes of contents. A stream
//!    without that item is not a delta.
//! 3. [`Writer`] gathers small items into frames and passes contents on without copying them.
//!    [`Reader`] is fed bytes as they arrive, and holds at most one frame.
//! 4. If the receiver reads the same objects as the sender, the layout of a file in objects is sent
//!    instead of its contents. So are the copies of a file in archives.
//! 5. Nothing is compressed: contents are arbitrary user data, and the rest is about a hundred
//!    bytes for each changed vnode.
//!
//! Deltas are an extension of Cellar; no other server knows them.

use bytes::Bytes;
use cellar_xdr::{Opaque, xdr_struct};

use crate::AfsName;
use crate::acl::ACL_SIZE;
use crate::ids::{AfsTime, Uniquifier, ViceId, VnodeId};
use crate::object::{ArchiveCopies, Layout, Wiped};

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
        /// The user who last changed the contents.
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
        /// Ranges below this offset for which no contents follow keep the contents of the base.
        /// Such ranges above it are zeros. 0: the vnode is new, or none of its contents stay.
        pub kept: u64,
    }

    /// Properties of a volume whose layouts are sent.
    #[derive(Copy, Default)]
    pub struct Origin {
        /// The volume's policy.
        pub policy: u32,
        /// All versions of objects that the volume's server has given out are below this one.
        pub version: u64,
    }

    /// A removed file whose copies in archives are kept for a time.
    #[derive(Default)]
    pub struct DeltaRetired {
        /// Its number.
        pub vnode: VnodeId,
        /// Its uniquifier.
        pub uniquifier: Uniquifier,
        /// When its last name was removed.
        pub removed: AfsTime,
        /// The directory that had this name.
        pub parent: VnodeId,
        /// The uniquifier of that directory.
        pub parent_uniquifier: Uniquifier,
        /// That name.
        pub name: AfsName,
        /// The low 12 bits of the mode.
        pub mode: u32,
        /// Owner.
        pub owner: ViceId,
        /// Group.
        pub group: ViceId,
        /// When the contents changed, by the client's clock or as set.
        pub mod_time: AfsTime,
        /// Length when it was removed.
        pub length: u64,
        /// Data version when it was removed.
        pub data_version: u64,
        /// The copies, the oldest first.
        pub copies: ArchiveCopies,
    }

    /// The counts of the items before the end.
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
    /// So many zeros from an offset on, in the place of other contents of the base. The count is
    /// never 0.
    Zeros(u64, u64),
    /// A vnode that did not change. Used if the base is known by a date only: the vnode has to
    /// exist there.
    Keep(VnodeId, Uniquifier),
    /// A vnode of the base that is gone.
    Remove(VnodeId),
    /// The volume's policy and version, before any vnode.
    Origin(Origin),
    /// The sender borrows the objects of its layouts and may not write them: the volume that owns
    /// them may be elsewhere. The receiver may not write them either. Comes before any vnode.
    Borrowed,
    /// The next vnode is a file in these objects; its contents are not in the delta.
    Layout(Box<Layout>),
    /// The next vnode is a file with these copies in archives.
    Copies(Box<ArchiveCopies>),
    /// The next vnode is a file whose bytes are only in its copies in archives, which come before
    /// this item. Its contents are not in the delta.
    Wiped(Wiped),
    /// The next vnode is a directory with this policy.
    Policy(u32),
    /// A removed file with copies in archives. Only for receivers with
    /// [`CAN_RETIRED`](crate::afsvol::CAN_RETIRED).
    Retired(Box<DeltaRetired>),
    /// The end.
    End(Totals),
}

/// Why bytes are not a delta. A restore fails with VOLSERREAD_DUMPERROR in all these cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeltaError {
    /// It does not begin like a delta.
    #[error("the delta has no magic number where it should begin")]
    Magic,
    /// A frame is empty or too long.
    #[error("a frame of the delta has an impossible length")]
    Length,
    /// A checksum does not match the bytes.
    #[error("a frame of the delta is damaged, or not the next one")]
    Checksum,
    /// Items do not parse.
    #[error("a frame of the delta does not parse")]
    Form,
    /// Contents have no vnode, are beyond its length, or are out of order.
    #[error("contents in the delta are out of place")]
    Place,
    /// The counts at the end differ from those of the received items.
    #[error("the delta is not complete")]
    Totals,
    /// There are bytes after the end.
    #[error("the delta goes on after its end")]
    Surplus,
    /// The bytes end before the delta does.
    #[error("the delta ends too early")]
    Truncated,
}

const MAGIC: [u8; 8] = *b"CELLARD1";
/// Bytes before a frame's items: length, checksum.
const FRAME_HEAD: usize = 8;
/// The most bytes of items in a frame.
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
const TAG_COPIES: u32 = 11;
const TAG_WIPED: u32 = 12;
const TAG_RETIRED: u32 = 13;
