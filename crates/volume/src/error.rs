//! The errors of this crate, one variant for each cause, so that a server chooses its abort codes
//! in one place.
//!
//! The variants are grouped by blame:
//!
//! * The request cannot be done. This is the long list; most of these have a code of their own on
//!   the wire.
//! * The store lacks something (`OverQuota`, `DiskFull`, limits).
//! * The machine failed (`Io`, `Partition`, `Damaged`, `Stopped`).
//!
//! When an operation returns an error, it has changed nothing.

use cellar_wire::ids::{Fid, VolumeId};
use cellar_wire::object::ObjectId;

/// The reason why an operation on a partition or volume was refused or failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The volume does not exist on this partition.
    #[error("volume {0} is not on this partition")]
    NoVolume(VolumeId),
    /// A volume with that id exists already.
    #[error("volume {0} exists already")]
    VolumeExists(VolumeId),
    /// The vnode is free, or the uniquifier belongs to an earlier use of it (VNOVNODE).
    #[error("{0} does not exist")]
    NoVnode(Fid),
    /// The number is not in a block of reserved numbers, or it has been used (VNOVNODE).
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
    /// A name or argument that is never valid (EINVAL).
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
    /// While a file was being read or repaired, another version replaced it.
    #[error("{0} changed while it was being read")]
    Changed(Fid),
    /// The bytes of the file are in objects on other servers. The server must read and write them
    /// there.
    #[error("the bytes of {0} are in objects")]
    InObjects(Fid),
    /// The bytes of the file are in archives only. They must be recalled before they can be read or
    /// kept by a store.
    #[error("the bytes of {0} are in archives only")]
    Archived(Fid),
    /// The file has changed since the caller read its status.
    #[error("{0} has changed meanwhile")]
    Stale(Fid),
    /// The volume is being restored, or the remains of a restore are being removed. It can be read
    /// now, and changed again soon (VBUSY).
    #[error("volume {0} is being restored")]
    Busy(VolumeId),
    /// An incremental dump or a delta does not fit the contents of the volume: this vnode is not
    /// there.
    #[error("the dump builds on another state of the volume: {0} is not there")]
    WrongBase(Fid),
    /// The restored contents are no sound volume.
    #[error("the dump holds no sound volume: {0}")]
    Unsound(String),
    /// Inside [`nonblocking`](crate::nonblocking): the operation needs the disk, or a lock that
    /// another thread holds. Nothing was changed; call again from a thread that may wait.
    #[error("would have to wait for the disk")]
    WouldBlock,
    /// Bytes of this file could not be read, or did not match their checksum (EIO).
    #[error("input/output error on {fid}: {cause}")]
    Io {
        /// The damaged file or directory; others are not affected.
        fid: Fid,
        /// The message of the system or of the checksum comparison.
        cause: String,
    },
    /// No such object on the device, or it was removed (ENOENT).
    #[error("object {0} is not on this device")]
    NoObject(ObjectId),
    /// The object does not have that version (ENOENT).
    #[error("object {0} has no version {1}")]
    NoVersion(ObjectId, u64),
    /// A version of an object cannot be made from the named version, or cannot be written any more.
    /// The named version is not there, or there is a newer one (ESTALE).
    #[error("object {0} is not at that version")]
    Superseded(ObjectId),
    /// Bytes of this object could not be read, or did not match their checksum (EIO).
    #[error("input/output error on object {object}: {cause}")]
    ObjectIo {
        /// The damaged object; others are not affected.
        object: ObjectId,
        /// The message of the system or of the checksum comparison.
        cause: String,
    },
    /// An I/O error that does not belong to one file. The operation did not happen.
    #[error("input/output error: {0}")]
    Partition(String),
    /// The journal is damaged in the middle. The groups behind the damage were acknowledged. So the
    /// partition is not opened without them, unless
    /// [`Options::drop_damaged_journal`](crate::Options::drop_damaged_journal) is set.
    #[error(
        "{file} is damaged at offset {offset}: {groups} whole groups of acknowledged changes \
         ({bytes} bytes) lie behind the damage"
    )]
    DamagedJournal {
        /// The journal file.
        file: String,
        /// The offset in it at which the damaged group begins.
        offset: u64,
        /// Number of whole groups behind it, in this file and others.
        groups: u64,
        /// Bytes of these groups.
        bytes: u64,
    },
    /// A file of the journal is missing or cut off. The partition can be opened without it, as
    /// above.
    #[error("the journal is damaged: {0}")]
    LostJournal(String),
    /// The base table or a file of blocks is missing, or files belong to another partition. The
    /// message says which.
    #[error("the partition is damaged: {0}")]
    Damaged(String),
    /// Stored data has a form that this version cannot read.
    #[error("the partition's format: {0}")]
    Format(String),
    /// The partition accepts no more writes, because a sync or a journal write failed or because it
    /// was closed. Changes that were acknowledged before are safe. The message gives the reason.
    #[error("the partition takes no writes: {0}")]
    Stopped(String),
}

/// `Result` with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;
