//! Volume dumps: the stream in which volumes are sent and archived.
//!
//! A dump is a sequence of items without padding: the dump's head, the volume's head, a record for
//! each vnode, an end. Each item begins with a tag of one byte. Tags up to 20 begin items, and tags
//! above are attributes of the item before them. The type of each known attribute is fixed.
//!
//! 1. [`Reader`] is fed bytes as they arrive and returns [`Item`]s; the contents of a file come in
//!    pieces. The reader holds at most the attributes of one item, which are bounded.
//! 2. Unknown attributes are skipped by the range of their tag, as OpenAFS 1.6 and later do, unless
//!    the tag before declares them critical.
//! 3. [`mod@write`] appends items in the order of OpenAFS's writer. A dump of OpenAFS that is read
//!    and written again is unchanged.
//! 4. A vnode record without attributes means "it exists and did not change". A restore removes
//!    each vnode of the target that has no record.
//! 5. In a dump of metadata, a file in objects has its layout instead of its contents. The tag of
//!    the layout is critical, so a reader that does not know it refuses the dump. Tags are those of
//!    AFS/OSD (`O` objects, `d` and `y` policies). The content of `O` is Cellar's own, which its
//!    first word shows.
//!
//! Source: behaviour of OpenAFS 1.8 (its volume server), seen in testdata/dumps.

use bytes::Bytes;
use cellar_xdr::{AfsString, WordString, xdr_struct};

use crate::acl::ACL_SIZE;
use crate::afsvol::VolumeName;
use crate::ids::{AfsTime, Uniquifier, ViceId, VnodeId, VolumeId};
use crate::object::Layout;

mod read;
pub mod write;

pub(crate) use read::append;
pub use read::{DumpError, Reader};

/// Pairs of dates in a dump's head.
pub const DATES_MAX: usize = 50;

/// The dump's head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DumpHeader {
    /// The volume that was dumped.
    pub volume: VolumeId,
    /// Its name.
    pub name: VolumeName,
    /// The period of the dump: from (0 for a full dump) and to. Writers write one pair.
    pub dates: Vec<(AfsTime, AfsTime)>,
}

/// The volume's head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeHeader {
    /// The volume.
    pub volume: VolumeId,
    /// Version of the volume's information: 1.
    pub version: u32,
    /// Its name.
    pub name: VolumeName,
    /// Offered to clients.
    pub in_service: bool,
    /// Declared sound.
    pub blessed: bool,
    /// The next vnode uniquifier.
    pub uniquifier: u32,
    /// 0 RW, 1 RO, 2 backup.
    pub volume_type: u8,
    /// The read-write volume of its group.
    pub parent: VolumeId,
    /// The read-only volume of its group.
    pub clone: VolumeId,
    /// KiB, 0 for none.
    pub max_quota: u32,
    /// Unused.
    pub min_quota: u32,
    /// KiB.
    pub disk_used: u32,
    /// Files and directories.
    pub file_count: u32,
    /// Unused.
    pub account: u32,
    /// Owner.
    pub owner: u32,
    /// When the volume was made; for a clone, when it was cloned.
    pub creation_date: AfsTime,
    /// When it was last used.
    pub access_date: AfsTime,
    /// When it last changed.
    pub update_date: AfsTime,
    /// Unused.
    pub expiration_date: AfsTime,
    /// When the backup volume was made.
    pub backup_date: AfsTime,
    /// Why it is off line.
    pub offline_message: WordString<128>,
    /// Unused: written empty.
    pub message_of_the_day: WordString<128>,
    /// Uses on each day of the week.
    pub week_use: [u32; 7],
    /// The day that `day_use` counts.
    pub day_use_date: AfsTime,
    /// Uses on that day.
    pub day_use: u32,
    /// The policy that decides where the bytes of files are stored; written if it is not 0.
    pub policy: u32,
}

/// A vnode's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VnodeRecord {
    /// Its number.
    pub vnode: VnodeId,
    /// Its uniquifier.
    pub uniquifier: Uniquifier,
    /// `None`: it exists and did not change.
    pub attributes: Option<VnodeAttributes>,
}

/// The attributes in a record. An attribute without a value in the record is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VnodeAttributes {
    /// 1 file, 2 directory, 3 symbolic link.
    pub file_type: u8,
    /// Links.
    pub link_count: u16,
    /// The low 32 bits of the data version.
    pub data_version: u32,
    /// When the contents changed, by the client's clock or as set.
    pub mod_time: AfsTime,
    /// The user who last changed the contents.
    pub author: ViceId,
    /// Owner.
    pub owner: ViceId,
    /// Group; written if it is not 0.
    pub group: ViceId,
    /// The low 12 bits of the mode.
    pub mode: u16,
    /// The directory that holds it; 0 for the root.
    pub parent: VnodeId,
    /// When anything changed, by the server's clock.
    pub server_mod_time: AfsTime,
    /// A directory's access list, in the binary form and network order.
    pub access_list: Option<Box<[u8; ACL_SIZE]>>,
    /// A directory's policy; written if it is not 0.
    pub policy: u32,
    /// Bytes of contents that follow, which are the whole file. `None` if the record has no
    /// contents.
    pub data_length: Option<u64>,
    /// The objects that have the contents instead.
    pub objects: Option<Box<InObjects>>,
}

xdr_struct! {
    /// The objects of a file whose contents do not follow.
    pub struct InObjects {
        /// The cell whose devices these are.
        pub cell: AfsString<256>,
        /// Bytes of the file.
        pub length: u64,
        /// Its objects.
        pub layout: Layout,
    }
}

/// A piece of a dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// The dump's head: the first item.
    Dump(DumpHeader),
    /// The volume's head: the second item. Merged dumps have more of them between vnodes.
    Volume(Box<VolumeHeader>),
    /// A vnode. If it has data, the data comes next.
    Vnode(VnodeRecord),
    /// Some of the contents of the last vnode, never empty.
    Data(Bytes),
    /// The end.
    End,
}

/// The first word of Cellar's objects in a dump; those of AFS/OSD begin with 1, 2 or 3.
const OBJECTS_FORM: u32 = u32::from_be_bytes(*b"CEL1");
const BEGIN_MAGIC: u32 = 0xb3a1_1322;
const END_MAGIC: u32 = 0x3a21_4b6e;
const VERSION: u32 = 1;
const TAG_DUMP: u8 = 1;
const TAG_VOLUME: u8 = 2;
const TAG_VNODE: u8 = 3;
const TAG_END: u8 = 4;
/// Declares the next tag critical: a reader that does not know it must refuse the dump.
const TAG_CRITICAL: u8 = 0x7e;
/// Tags up to this begin items.
const TAG_ITEM_MAX: u8 = 20;
