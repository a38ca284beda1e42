//! The types in which callers see volumes and vnodes: statuses, attributes, volume records.
//!
//! Dates are arguments (`AfsTime`): nothing in this crate reads a clock for a date that it stores.

use std::sync::Arc;

use bytes::Bytes;
use cellar_wire::acl::AccessList;
use cellar_wire::ids::{AfsTime, Fid, Uniquifier, ViceId, VnodeId, VolumeId};
use cellar_wire::object::{ArchiveCopies, Layout, Wiped};

use crate::state::ticket::Ticket;

/// The type of a vnode, with the numbers of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileType {
    /// A plain file.
    File = 1,
    /// A directory.
    Directory = 2,
    /// A symbolic link; a mount point is one whose mode has no execute bit.
    Symlink = 3,
}

/// The status of a vnode: the fields of `AFSFetchStatus`, without the caller's rights and the
/// locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VnodeStatus {
    /// Volume (the one that was asked for, also if it is a clone), vnode, uniquifier.
    pub fid: Fid,
    /// File, directory or symbolic link.
    pub kind: FileType,
    /// The low 12 bits of the Unix mode.
    pub mode: u16,
    /// Number of links; for a directory, 2 plus the number of its subdirectories.
    pub link_count: u32,
    /// Length in bytes; for a directory, a multiple of 2048.
    pub length: u64,
    /// Rises by one with every change of the contents.
    pub data_version: u64,
    /// The user who changed it last.
    pub author: ViceId,
    /// Owner.
    pub owner: ViceId,
    /// Group (a Unix group, kept for clients; no rights follow from it).
    pub group: ViceId,
    /// The directory that holds it; for the root directory, itself.
    pub parent: VnodeId,
    /// The uniquifier of that directory.
    pub parent_uniquifier: Uniquifier,
    /// Modification time as clients set it.
    pub client_time: AfsTime,
    /// When the server last changed it.
    pub server_time: AfsTime,
}

impl VnodeStatus {
    /// Blocks of 1 KiB that the vnode counts for in quota and usage: rounded up, at least 1.
    pub const fn blocks(&self) -> u64 {
        blocks_of(self.length)
    }

    /// The directory whose access list governs this vnode: itself if it is a directory.
    pub fn access_list_fid(&self) -> Fid {
        match self.kind {
            FileType::Directory => self.fid,
            _ => Fid {
                volume: self.fid.volume,
                vnode: self.parent,
                uniquifier: self.parent_uniquifier,
            },
        }
    }
}

/// Blocks of 1 KiB charged for a body of that many bytes.
pub const fn blocks_of(length: u64) -> u64 {
    let blocks = length.div_ceil(1024);
    if blocks == 0 { 1 } else { blocks }
}

/// The author and the time of a change.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// The caller's id; becomes the author.
    pub author: ViceId,
    /// The present time. It becomes the server's modification time, and the client's if none is
    /// given.
    pub now: AfsTime,
}

/// Attributes to set; `None` leaves an attribute unchanged. The caller has removed those that it
/// may not set.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetStatus {
    /// Mode, 12 bits.
    pub mode: Option<u16>,
    /// Owner. The owner of the root directory also becomes the volume's owner.
    pub owner: Option<ViceId>,
    /// Group.
    pub group: Option<ViceId>,
    /// The client's modification time.
    pub client_time: Option<AfsTime>,
}

/// Attributes of a new vnode.
#[derive(Clone, Copy, Debug)]
pub struct NewVnode {
    /// Owner, normally the caller.
    pub owner: ViceId,
    /// Group; `None` takes the directory's.
    pub group: Option<ViceId>,
    /// Mode, 12 bits; `None` is 0777.
    pub mode: Option<u16>,
    /// The client's modification time; `None` is now.
    pub client_time: Option<AfsTime>,
}

/// A change that is already visible to readers and not necessarily durable yet.
#[derive(Debug)]
#[must_use = "a change is durable only when its ticket says so"]
pub struct Changed<T> {
    /// The result of the change.
    pub outcome: T,
    /// Resolves when a power cut can no longer undo the change (or, in the relaxed mode, at once).
    pub durable: Ticket,
}

impl<T> Changed<T> {
    /// Waits on this thread until the change is durable.
    pub fn wait(self) -> crate::Result<T> {
        self.durable.wait()?;
        Ok(self.outcome)
    }
}

/// Result of making a vnode.
#[derive(Clone, Copy, Debug)]
pub struct Created {
    /// The new vnode.
    pub status: VnodeStatus,
    /// The directory's status after the change.
    pub dir: VnodeStatus,
}

/// Result of giving an existing file another name.
#[derive(Clone, Copy, Debug)]
pub struct Linked {
    /// The file's status, with one link more.
    pub status: VnodeStatus,
    /// The directory's status after the change.
    pub dir: VnodeStatus,
}

/// Result of removing a name.
#[derive(Clone, Debug)]
pub struct Removed {
    /// The directory's status after the change.
    pub dir: VnodeStatus,
    /// The vnode that had the name, with its present link count: 0 if it is gone.
    pub status: VnodeStatus,
    /// The objects of the file, if it is gone.
    pub objects: Option<Arc<Layout>>,
}

/// Result of moving a name.
#[derive(Clone, Debug)]
pub struct Renamed {
    /// The status of the directory that lost the name, after the change.
    pub old_dir: VnodeStatus,
    /// The status of the directory that has the name now, after the change. Equal to `old_dir` for
    /// a rename within one directory.
    pub new_dir: VnodeStatus,
    /// The vnode that was moved. A directory that changed its parent has a new data version (its
    /// `..`).
    pub moved: VnodeStatus,
    /// The vnode that had the new name before, with its present link count: 0 if it is gone.
    pub replaced: Option<VnodeStatus>,
    /// The objects of the replaced file, if it is gone.
    pub objects: Option<Arc<Layout>>,
}

/// Position and options of a store of bytes into a file (StoreData).
///
/// If the file is longer than `file_length`, it is first cut to that length. Then the bytes are
/// written at `position`. The final length is `max(min(old, file_length), position + bytes)`, also
/// if there are no bytes.
#[derive(Clone, Copy, Debug)]
pub struct StoreSpec {
    /// Offset of the first byte.
    pub position: u64,
    /// The length that the file has after the store, as the client believes.
    pub file_length: u64,
    /// Attributes that the store sets.
    pub attributes: SetStatus,
    /// Clear the set-user-id and set-group-id bits, as for every caller but administrators.
    pub clear_set_id: bool,
    /// By how much the store may exceed the volume's quota, in blocks of 1 KiB (servers allow
    /// 1024).
    pub quota_slack: u64,
}

impl StoreSpec {
    /// A store at `position` that does not cut the file.
    pub fn at(position: u64) -> Self {
        Self {
            position,
            file_length: i64::MAX as u64,
            attributes: SetStatus::default(),
            clear_set_id: false,
            quota_slack: 1024,
        }
    }
}

/// The kind of a volume, with the numbers of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum VolumeKind {
    /// Read-write.
    ReadWrite = 0,
    /// Read-only clone.
    ReadOnly = 1,
    /// Backup clone.
    Backup = 2,
}

/// Everything that is known about a volume beside its vnodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Id.
    pub id: VolumeId,
    /// Name, with `.readonly` or `.backup` for clones; at most 31 bytes.
    pub name: String,
    /// RW, RO or backup.
    pub kind: VolumeKind,
    /// The id of the volume group, which is that of its RW volume.
    pub parent: VolumeId,
    /// The RO clone's id, or 0.
    pub clone: VolumeId,
    /// The backup clone's id, or 0.
    pub backup: VolumeId,
    /// The id that a restored volume had in its dump, or 0.
    pub restored_from: VolumeId,
    /// Whether clients may use it: false while a program has taken it off-line.
    pub online: bool,
    /// Header field `inService`. If it is false, clients get VNOVOL.
    pub in_service: bool,
    /// Header field `blessed`. If it is false, clients get VNOVOL.
    pub blessed: bool,
    /// Marked to be destroyed.
    pub destroy_me: bool,
    /// Owner: the owner of the root directory.
    pub owner: ViceId,
    /// Quota in blocks of 1 KiB; 0 is none.
    pub max_quota: u32,
    /// Reserved blocks. Reported, never enforced.
    pub min_quota: u32,
    /// Quota of files and directories; 0 is none.
    pub max_files: u32,
    /// Blocks of 1 KiB in use, exact.
    pub blocks_used: u64,
    /// Files, directories and links, exact.
    pub files: u64,
    /// Date when the volume was made; for a clone, the date of the clone.
    pub created: AfsTime,
    /// Date when it was copied to this server.
    pub copied: AfsTime,
    /// Date of the last change of anything in it.
    pub updated: AfsTime,
    /// Date of the last access.
    pub accessed: AfsTime,
    /// Date when the last backup clone was made.
    pub backed_up: AfsTime,
    /// Date when it expires; 0 is never.
    pub expires: AfsTime,
    /// Number of changes of the volume.
    pub update_counter: u32,
    /// Accesses since `day_use_date`; see [`Volume::count_access`](crate::Volume::count_access).
    pub day_use: u32,
    /// Start of the day that `day_use` counts: a local midnight.
    pub day_use_date: AfsTime,
    /// Accesses of the seven days before that one, yesterday's first.
    pub week_use: [u32; 7],
    /// Reads and writes since `day_use_date`, if there were any.
    pub traffic: Option<Box<Traffic>>,
    /// Shown to users while the volume is off-line; at most 127 bytes.
    pub offline_message: Bytes,
    /// Message of the day; at most 127 bytes.
    pub message_of_the_day: Bytes,
    /// A number for administrators' own use.
    pub account: u32,
    /// The policy that decides where the bytes of files lie. 0 means in this store, 1 in objects by
    /// size. Other numbers are policies of the cell.
    pub policy: u32,
    /// Volumes on other servers may name versions of objects up to this one. So a program that
    /// removes unneeded versions must leave these alone. 0: none.
    pub shared: u64,
    /// Layouts whose version is not above this one came from another server, or from an older
    /// state. Others may name newer versions of their objects, so these objects are read here and
    /// not written. 0: none.
    pub borrowed: u64,
    /// The `borrowed` layouts came from the RW volume of this id, which continues here. They may be
    /// written once it is certain that no other server writes them and that no newer version
    /// exists.
    pub takes_over: bool,
}

/// The origin of a call, as far as it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// From the server's own network.
    pub near: bool,
    /// From an authenticated caller.
    pub authenticated: bool,
}

/// Reads and writes of one day: by the origin of the call, and by the author and age of the change
/// before.
///
/// Columns of origin: same network, same network authenticated, other network, other network
/// authenticated. Columns of age: the time since the change before, up to a minute, ten minutes, an
/// hour, a day, a week, longer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Reads of contents, by origin.
    pub reads: [u32; 4],
    /// Changes of contents and attributes, by origin. Making a vnode counts twice: for it and for
    /// its directory.
    pub writes: [u32; 4],
    /// Changes of files by the author of the change before, by age of that change.
    pub file_same_author: [u32; 6],
    /// Changes of files by another author, by age of the change before.
    pub file_other_author: [u32; 6],
    /// Changes of directories by the author of the change before, by age of that change.
    pub directory_same_author: [u32; 6],
    /// Changes of directories by another author, by age of the change before.
    pub directory_other_author: [u32; 6],
}

/// Properties of a new volume. [`VolumeSpec::new`] makes an ordinary RW volume.
#[derive(Clone, Debug)]
pub struct VolumeSpec {
    /// Id; not 0.
    pub id: VolumeId,
    /// Name; 1 to 31 bytes.
    pub name: String,
    /// RW, RO or backup. A volume of any kind can be restored; only RW volumes accept changes.
    pub kind: VolumeKind,
    /// The id of the RW volume that it belongs to; 0 means its own id.
    pub parent: VolumeId,
    /// Whether to make the root directory. Without it, the volume is empty until it is restored.
    pub root: bool,
    /// Clients may use it.
    pub in_service: bool,
    /// Marked to be destroyed if its maker does not finish.
    pub destroy_me: bool,
    /// Quota in blocks of 1 KiB; 0 is none.
    pub max_quota: u32,
    /// Owner of the volume and its root directory.
    pub owner: ViceId,
    /// The creation date, and the dates of the root directory.
    pub now: AfsTime,
}

impl VolumeSpec {
    /// An RW volume with its root directory, in service, without quota.
    pub fn new(id: VolumeId, name: impl Into<String>, owner: ViceId, now: AfsTime) -> Self {
        Self {
            id,
            name: name.into(),
            kind: VolumeKind::ReadWrite,
            parent: id,
            root: true,
            in_service: true,
            destroy_me: false,
            max_quota: 0,
            owner,
            now,
        }
    }
}

/// Properties of a new clone.
#[derive(Clone, Debug)]
pub struct SnapshotSpec {
    /// The volume to clone: usually an RW volume, but a clone or RO volume can be cloned as well.
    pub source: VolumeId,
    /// The clone's id. An RO or backup volume of that id and with the same parent is replaced in
    /// one step.
    pub id: VolumeId,
    /// The clone's name.
    pub name: String,
    /// RO or backup.
    pub kind: VolumeKind,
    /// Clients may use it.
    pub in_service: bool,
    /// Marked to be destroyed if its maker does not finish.
    pub destroy_me: bool,
    /// The clone's creation date.
    pub now: AfsTime,
}

impl SnapshotSpec {
    /// A clone in service.
    pub fn new(
        source: VolumeId,
        id: VolumeId,
        name: impl Into<String>,
        kind: VolumeKind,
        now: AfsTime,
    ) -> Self {
        Self {
            source,
            id,
            name: name.into(),
            kind,
            in_service: true,
            destroy_me: false,
            now,
        }
    }
}

/// The fields of a volume that SetIdsTypes sets.
#[derive(Clone, Debug)]
pub struct IdsSpec {
    /// Name; 1 to 31 bytes.
    pub name: String,
    /// RW, RO or backup.
    pub kind: VolumeKind,
    /// The RW volume's id; 0 means the volume's own id.
    pub parent: VolumeId,
    /// The RO clone's id, or 0.
    pub clone: VolumeId,
    /// The backup clone's id, or 0.
    pub backup: VolumeId,
}

/// Identifies the contents of a volume at one moment. Never reused, and unique among all servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateId {
    /// The group of volumes, on one partition of one server.
    pub lineage: [u8; 16],
    /// The last epoch of that group that belongs to the contents.
    pub epoch: u64,
}

/// A vnode without its bytes, as it is dumped and restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VnodeImage {
    /// Number: odd for directories.
    pub vnode: VnodeId,
    /// Distinguishes several uses of the number.
    pub uniquifier: Uniquifier,
    /// File, directory or symbolic link.
    pub kind: FileType,
    /// The low 12 bits of the Unix mode.
    pub mode: u16,
    /// Number of links.
    pub link_count: u32,
    /// Data version.
    pub data_version: u64,
    /// Modification time as clients set it.
    pub client_time: AfsTime,
    /// Time of the last change by the server.
    pub server_time: AfsTime,
    /// The user who changed it last.
    pub author: ViceId,
    /// Owner.
    pub owner: ViceId,
    /// Group.
    pub group: ViceId,
    /// The directory that holds it; for the root directory, 0 in dumps of OpenAFS.
    pub parent: VnodeId,
    /// Length in bytes: of the file, of the directory's pages, or of the link's target.
    pub length: u64,
    /// A directory's access list; `None` for other vnodes.
    pub acl: Option<Arc<AccessList>>,
    /// The objects that hold a file's bytes; then no bytes follow.
    pub layout: Option<Arc<Layout>>,
    /// A file's copies in archives, also of older bytes.
    pub copies: Option<Arc<ArchiveCopies>>,
    /// Set if only these copies have the file's bytes; then no bytes follow, and there is no
    /// layout.
    pub wiped: Option<Wiped>,
    /// A directory's policy; 0: that of the volume.
    pub policy: u32,
}

/// The base that a restore builds on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreMode {
    /// Nothing. A vnode that is not put is removed, and none can be kept.
    Full,
    /// The present contents of the volume. A vnode that is neither put nor kept is removed. This is
    /// the meaning of incremental dumps in the dump format.
    Incremental,
    /// Exactly this state, which was received before and not changed since. A vnode that is not
    /// put, patched or removed stays.
    Delta {
        /// The state.
        base: StateId,
    },
}

/// The volume's record after a restore.
#[derive(Clone, Debug)]
pub struct RestoredInfo {
    /// The whole record. The volume's id stays, and usage is as counted.
    pub info: VolumeInfo,
    /// A lower bound for the next uniquifier. It is also above all uniquifiers that were restored.
    pub next_uniquifier: u32,
    /// The sender's id of the state that it sent.
    pub received: Option<StateId>,
}

/// A removed file whose copies in archives are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetiredFile {
    /// The file that it was.
    pub fid: Fid,
    /// When its last name was removed.
    pub removed: AfsTime,
    /// The directory that had this name. It may be removed, too.
    pub parent: Fid,
    /// That name.
    pub name: Bytes,
    /// The low 12 bits of the Unix mode.
    pub mode: u16,
    /// Owner.
    pub owner: ViceId,
    /// Group.
    pub group: ViceId,
    /// Modification time as clients set it.
    pub client_time: AfsTime,
    /// Length in bytes when it was removed.
    pub length: u64,
    /// Data version when it was removed. Copies of earlier data versions have older bytes.
    pub data_version: u64,
    /// The copies that were good, the oldest first.
    pub copies: Arc<ArchiveCopies>,
}

/// An entry of a directory.
#[derive(Clone, Debug)]
pub struct DirEntry {
    /// Name.
    pub name: Bytes,
    /// The vnode that it names.
    pub vnode: VnodeId,
    /// The uniquifier of that vnode.
    pub uniquifier: Uniquifier,
}

/// Room on a partition, in blocks of 1 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionUsage {
    /// Size of the file system.
    pub total_blocks: u64,
    /// Blocks that can still be stored.
    pub free_blocks: u64,
}
