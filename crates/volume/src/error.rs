//! What can go wrong, one variant a cause, so that a server picks its abort code in one place.
//!
//! Grouped by blame: what the caller asked for cannot be (the long list, most of them with a code
//! of their own on the wire), what the store lacks (`OverQuota`, `DiskFull`, limits), and what the
//! machine did (`Io`, `Corrupt`, `Stopped`). Nothing has been changed when an operation returns an
//! error, whichever it is.

use cellar_wire::ids::{Fid, VolumeId};
use cellar_wire::object::ObjectId;

/// Why an operation on a partition or volume was refused or failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The volume does not exist on this partition.
    #[error("volume {0} is not on this partition")]
    NoVolume(VolumeId),
    /// A volume of that id is there already.
    #[error("volume {0} exists already")]
    VolumeExists(VolumeId),
    /// The vnode is free, or the uniquifier belongs to an earlier use of it (VNOVNODE).
    #[error("{0} does not exist")]
    NoVnode(Fid),
    /// The number is not in a block that was reserved for whoever makes something of it, or it has been used (VNOVNODE).
    #[error("{0} is not reserved")]
    NotReserved(Fid),
    /// No entry of that name in the directory (ENOENT).
    #[error("no such name in the directory")]
    NotFound,
    /// The name is taken (EEXIST).
    #[error("the name exists already")]
    Exists,
    /// The operation needs a directory (ENOTDIR).
    #[error("not a directory")]
    NotDirectory,
    /// The operation does not work on a directory (EISDIR).
    #[error("is a directory")]
    IsDirectory,
    /// The directory has entries beside `.` and `..` (EEXIST on the wire).
    #[error("the directory is not empty")]
    NotEmpty,
    /// Source and target lie in different volumes, or a link would leave its directory (EXDEV).
    #[error("would cross volumes or give a file two directories")]
    CrossDevice,
    /// A directory would become its own ancestor (ELOOP).
    #[error("would move a directory under itself")]
    Loop,
    /// A name or argument that can never be right (EINVAL).
    #[error("invalid: {0}")]
    Invalid(&'static str),
    /// The name is longer than 255 bytes (ENAMETOOLONG).
    #[error("the name is too long")]
    NameTooLong,
    /// The link count is at its limit (EMLINK).
    #[error("too many links")]
    TooManyLinks,
    /// The directory's pages are used up (EFBIG).
    #[error("the directory is full")]
    DirectoryFull,
    /// An offset or length beyond 2^63 - 1 (EFBIG).
    #[error("beyond the largest file")]
    FileTooBig,
    /// The volume's quota of blocks or files does not allow it (VOVERQUOTA).
    #[error("over quota")]
    OverQuota,
    /// The partition has no room (VDISKFULL).
    #[error("the partition is full")]
    DiskFull,
    /// The volume is an RO or backup volume (EROFS).
    #[error("the volume is read-only")]
    ReadOnly,
    /// A file changed in place of the version that a reader was reading.
    #[error("{0} was removed while it was being read")]
    Changed(Fid),
    /// The bytes of the file are in objects on other servers; the server reads and writes them there.
    #[error("the bytes of {0} are in objects")]
    InObjects(Fid),
    /// The file has changed since the caller looked at it.
    #[error("{0} has changed meanwhile")]
    Stale(Fid),
    /// The volume is being restored, or what a restore left is still being removed: it can be read,
    /// and changed again soon (VBUSY).
    #[error("volume {0} is being restored")]
    Busy(VolumeId),
    /// An incremental dump or a delta does not fit what the volume holds: that vnode is not there.
    #[error("the dump builds on another state of the volume: {0} is not there")]
    WrongBase(Fid),
    /// What a restore brought is no sound volume.
    #[error("the dump holds no sound volume: {0}")]
    Unsound(String),
    /// Inside [`nonblocking`](crate::nonblocking): the answer needs the disk or a lock held by
    /// somebody else. Nothing was changed; call again from a thread that may wait.
    #[error("would have to wait for the disk")]
    WouldBlock,
    /// Bytes of this file could not be read, or did not match their checksum (EIO).
    #[error("input/output error on {fid}: {cause}")]
    Io {
        /// The file or directory that is damaged; every other is unaffected.
        fid: Fid,
        /// What the system or the checksum said.
        cause: String,
    },
    /// No such object on the device, or it was removed (ENOENT).
    #[error("object {0} is not on this device")]
    NoObject(ObjectId),
    /// The object does not have that version (ENOENT).
    #[error("object {0} has no version {1}")]
    NoVersion(ObjectId, u64),
    /// An object's version cannot be made from the one named, or be written any more: that one is
    /// not there, or something newer is (ESTALE).
    #[error("object {0} is not at that version")]
    Superseded(ObjectId),
    /// Bytes of this object could not be read, or did not match their checksum (EIO).
    #[error("input/output error on object {object}: {cause}")]
    ObjectIo {
        /// The object that is damaged; every other is unaffected.
        object: ObjectId,
        /// What the system or the checksum said.
        cause: String,
    },
    /// An I/O error not owned by one file. The operation did not happen.
    #[error("input/output error: {0}")]
    Partition(String),
    /// The journal is damaged in the middle. What is behind the damage was acknowledged, so the
    /// partition is not opened without it, unless
    /// [`Options::drop_damaged_journal`](crate::Options::drop_damaged_journal) says so.
    #[error(
        "{file} is damaged at offset {offset}: {groups} whole groups of acknowledged changes \
         ({bytes} bytes) lie behind the damage"
    )]
    DamagedJournal {
        /// The journal file.
        file: String,
        /// Where in it the damaged group begins.
        offset: u64,
        /// Whole groups behind it, in this file and others.
        groups: u64,
        /// Bytes that these have.
        bytes: u64,
    },
    /// A file of the journal is missing or cut off; can be opened without it as above.
    #[error("the journal is damaged: {0}")]
    LostJournal(String),
    /// The base table or a file of blocks is missing, or files are of another partition. The
    /// sentence says which.
    #[error("the partition is damaged: {0}")]
    Damaged(String),
    /// What is stored does not have a form this version can read.
    #[error("the partition's format: {0}")]
    Format(String),
    /// The partition takes no more writes, because a sync or a journal write failed or because it
    /// was closed; what was acknowledged before is safe. The sentence says why.
    #[error("the partition takes no writes: {0}")]
    Stopped(String),
}

/// `Result` with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;
