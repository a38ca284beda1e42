//! What callers see of volumes and vnodes: statuses, attributes, volume records.
//!
//! Dates are arguments (`AfsTime`); nothing in this crate reads a clock for what it stores.

use std::sync::Arc;

use bytes::Bytes;
use cellar_wire::acl::AccessList;
use cellar_wire::ids::{AfsTime, Fid, Uniquifier, ViceId, VnodeId, VolumeId};
use cellar_wire::object::Layout;

use crate::ticket::Ticket;

/// The kind of object in a vnode, with the numbers of the wire.
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

/// The status of a vnode: all that `AFSFetchStatus` needs but the caller's rights and locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VnodeStatus {
    /// Volume (the one asked, also for a clone), vnode, uniquifier.
    pub fid: Fid,
    /// File, directory or symbolic link.
    pub kind: FileType,
    /// The low 12 bits of the Unix mode.
    pub mode: u16,
    /// Links; of a directory 2 plus its subdirectories.
    pub link_count: u32,
    /// Length in bytes; of a directory a multiple of 2048.
    pub length: u64,
    /// Rises by one with every change of the contents.
    pub data_version: u64,
    /// Who changed it last.
    pub author: ViceId,
    /// Owner.
    pub owner: ViceId,
    /// Group (a Unix group, kept for clients; no rights follow from it).
    pub group: ViceId,
    /// The directory that holds it; of the root directory itself.
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

/// Who changes something and when: the author of what is touched, and the server's time.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// The caller's id; becomes the author.
    pub author: ViceId,
    /// Now; becomes the server's modification time, and the client's where none is given.
    pub now: AfsTime,
}

/// Attributes to set; `None` leaves one alone. The caller has masked what it may not set.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetStatus {
    /// Mode, 12 bits.
    pub mode: Option<u16>,
    /// Owner. Of the root directory it also becomes the volume's owner.
    pub owner: Option<ViceId>,
    /// Group.
    pub group: Option<ViceId>,
    /// The client's modification time.
    pub client_time: Option<AfsTime>,
}

/// What a new vnode starts with.
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

/// A change that readers already see and that is on its way to the disk.
#[derive(Debug)]
#[must_use = "a change is durable only when its ticket says so"]
pub struct Changed<T> {
    /// What the change led to.
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

/// A vnode was made.
#[derive(Clone, Copy, Debug)]
pub struct Created {
    /// The new vnode.
    pub status: VnodeStatus,
    /// The directory afterwards.
    pub dir: VnodeStatus,
}

/// A name was given to an existing file.
#[derive(Clone, Copy, Debug)]
pub struct Linked {
    /// The file, with one link more.
    pub status: VnodeStatus,
    /// The directory afterwards.
    pub dir: VnodeStatus,
}

/// A name was removed.
#[derive(Clone, Debug)]
pub struct Removed {
    /// The directory afterwards.
    pub dir: VnodeStatus,
    /// What the name meant, with the link count it has now: 0 when it is gone.
    pub status: VnodeStatus,
    /// The objects of a file that is gone.
    pub objects: Option<Arc<Layout>>,
}

/// A name was moved.
#[derive(Clone, Debug)]
pub struct Renamed {
    /// The directory that lost the name, afterwards.
    pub old_dir: VnodeStatus,
    /// The directory that has it now, afterwards (the same status in a rename within one).
    pub new_dir: VnodeStatus,
    /// What was moved. A directory that changed its parent has a new data version (its `..`).
    pub moved: VnodeStatus,
    /// What the new name meant before, with the link count it has now: 0 when it is gone.
    pub replaced: Option<VnodeStatus>,
    /// The objects of a file that is gone by it.
    pub objects: Option<Arc<Layout>>,
}

/// Where and how bytes are stored into a file (StoreData).
///
/// The file is first cut to `file_length` if it is longer, then the bytes go to `position`; the
/// final length is `max(min(old, file_length), position + bytes)`, also when there are no bytes.
#[derive(Clone, Copy, Debug)]
pub struct StoreSpec {
    /// Offset of the first byte.
    pub position: u64,
    /// The length that the client believes the file to have afterwards.
    pub file_length: u64,
    /// Attributes that come with the store.
    pub attributes: SetStatus,
    /// Take the set-user-id and set-group-id bits away, as for every caller but administrators.
    pub clear_set_id: bool,
    /// How far a store may go over the volume's quota, in blocks of 1 KiB (servers allow 1024).
    pub quota_slack: u64,
}

impl StoreSpec {
    /// A store at `position` that makes no statement about the rest of the file.
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

/// All that is known about a volume beside its vnodes.
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
    /// Whether clients may use it: no program has taken it off-line.
    pub online: bool,
    /// Header field `inService`: false makes it VNOVOL.
    pub in_service: bool,
    /// Header field `blessed`: false makes it VNOVOL.
    pub blessed: bool,
    /// Marked to be destroyed.
    pub destroy_me: bool,
    /// Owner: that of the root directory.
    pub owner: ViceId,
    /// Quota in blocks of 1 KiB; 0 is none.
    pub max_quota: u32,
    /// Reserved blocks; reported, never enforced.
    pub min_quota: u32,
    /// Quota of files and directories; 0 is none.
    pub max_files: u32,
    /// Blocks of 1 KiB in use, exact.
    pub blocks_used: u64,
    /// Files, directories and links, exact.
    pub files: u64,
    /// When the volume (for a clone: the clone) was made.
    pub created: AfsTime,
    /// When it was copied to this server.
    pub copied: AfsTime,
    /// Last change of anything in it.
    pub updated: AfsTime,
    /// Last access.
    pub accessed: AfsTime,
    /// When the last backup clone was made.
    pub backed_up: AfsTime,
    /// When it expires; 0 is never.
    pub expires: AfsTime,
    /// Counts changes of the volume.
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
    /// Free for administrators.
    pub account: u32,
    /// Which policy decides where the bytes of files lie. 0: here, 1: in objects by size, others: a
    /// policy of the cell.
    pub policy: u32,
    /// Versions of objects up to this one may be named by volumes on other servers: who gives up what
    /// nobody here needs leaves them alone. 0: none.
    pub shared: u64,
    /// Layouts whose version is not above this one came from elsewhere, or from an older state: others may
    /// name newer versions of their objects, which are read here and not written. 0: none.
    pub borrowed: u64,
    /// Those came from the RW volume of this id, to go on with it here: they may be written once it is sure
    /// that nobody else does, and that there is nothing newer.
    pub takes_over: bool,
}

/// Where a call comes from, as far as it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// From the server's own network.
    pub near: bool,
    /// From somebody who said who he is.
    pub authenticated: bool,
}

/// Reads and writes of a day, from near and far, and who changed what whose change was how old.
///
/// Columns of origin: same network, same network authenticated, other network, other network
/// authenticated. Columns of age: the time since the change before, up to a minute, ten, an hour, a
/// day, a week, longer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Reads of contents, by origin.
    pub reads: [u32; 4],
    /// Changes of contents and attributes, by origin. Making something is two: it, and its directory.
    pub writes: [u32; 4],
    /// Changes of files by the author of the change before, by age.
    pub file_same_author: [u32; 6],
    /// By somebody else.
    pub file_other_author: [u32; 6],
    /// Changes of directories, likewise.
    pub directory_same_author: [u32; 6],
    /// By somebody else.
    pub directory_other_author: [u32; 6],
}

/// What a new volume starts with. [`VolumeSpec::new`] is an ordinary RW volume.
#[derive(Clone, Debug)]
pub struct VolumeSpec {
    /// Id; not 0.
    pub id: VolumeId,
    /// Name; 1 to 31 bytes.
    pub name: String,
    /// RW, RO or backup. Whatever it is, it can be restored; only RW volumes take changes.
    pub kind: VolumeKind,
    /// The id of the RW volume that it belongs to; 0 is its own.
    pub parent: VolumeId,
    /// Make the root directory. Without it the volume is empty until it is restored.
    pub root: bool,
    /// Clients may use it.
    pub in_service: bool,
    /// Marked to be destroyed if whoever makes it does not finish.
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

/// What a clone is to be.
#[derive(Clone, Debug)]
pub struct SnapshotSpec {
    /// What is cloned: an RW volume, but a clone or RO volume can be cloned as well.
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
    /// Marked to be destroyed if whoever makes it does not finish.
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

/// What SetIdsTypes sets of a volume.
#[derive(Clone, Debug)]
pub struct IdsSpec {
    /// Name; 1 to 31 bytes.
    pub name: String,
    /// RW, RO or backup.
    pub kind: VolumeKind,
    /// The RW volume's id; 0 is the volume's own.
    pub parent: VolumeId,
    /// The RO clone's id, or 0.
    pub clone: VolumeId,
    /// The backup clone's id, or 0.
    pub backup: VolumeId,
}

/// Names the contents of a volume at one moment, for ever and everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateId {
    /// The group of volumes, on one partition of one server.
    pub lineage: [u8; 16],
    /// The last epoch of that group that belongs to the contents.
    pub epoch: u64,
}

/// All of a vnode but its bytes, as it is dumped and restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VnodeImage {
    /// Number: odd for directories.
    pub vnode: VnodeId,
    /// Which use of the number.
    pub uniquifier: Uniquifier,
    /// File, directory or symbolic link.
    pub kind: FileType,
    /// The low 12 bits of the Unix mode.
    pub mode: u16,
    /// Links.
    pub link_count: u32,
    /// Data version.
    pub data_version: u64,
    /// Modification time as clients set it.
    pub client_time: AfsTime,
    /// When the server last changed it.
    pub server_time: AfsTime,
    /// Who changed it last.
    pub author: ViceId,
    /// Owner.
    pub owner: ViceId,
    /// Group.
    pub group: ViceId,
    /// The directory that holds it; of the root directory 0 in dumps of OpenAFS.
    pub parent: VnodeId,
    /// Length in bytes: of the file, of the pages, of the target.
    pub length: u64,
    /// A directory's access list; another vnode has none.
    pub acl: Option<Arc<AccessList>>,
    /// The objects that a file's bytes are in; no bytes follow then.
    pub layout: Option<Arc<Layout>>,
    /// A directory's policy; 0: that of the volume.
    pub policy: u32,
}

/// What a restore builds on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreMode {
    /// Nothing: what is not put is removed, and nothing can be kept.
    Full,
    /// What the volume holds: what is neither put nor kept is removed. As the dump format means it.
    Incremental,
    /// Exactly this state, received before and not changed since: what is not put, patched or
    /// removed stays.
    Delta {
        /// The state.
        base: StateId,
    },
}

/// What a volume is to be after a restore.
#[derive(Clone, Debug)]
pub struct RestoredInfo {
    /// All of its record. The id stays whatever this says, and usage is what was counted.
    pub info: VolumeInfo,
    /// The next uniquifier is at least this, and above all that came.
    pub next_uniquifier: u32,
    /// What the sender calls the state that it sent.
    pub received: Option<StateId>,
}

/// A vnode of a volume as enumerations and dumps see it.
#[derive(Clone, Debug)]
pub struct DirEntry {
    /// Name.
    pub name: Bytes,
    /// What it means.
    pub vnode: VnodeId,
    /// Which use of it.
    pub uniquifier: Uniquifier,
}

/// Room on a partition, in blocks of 1 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionUsage {
    /// What the file system holds.
    pub total_blocks: u64,
    /// What can still be stored.
    pub free_blocks: u64,
}
