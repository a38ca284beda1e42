//! Errors, sorted by blame.

use std::time::Duration;

use crate::key::{ArchiveId, CellId, ObjectKey};

/// The party that has to act after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blame {
    /// The archive is down, slow or full. Later attempts may succeed without any action.
    Archive,
    /// A copy in the archive is missing or has other bytes. Another archive must be asked.
    Copy,
    /// The location, the credentials or the identity do not belong together. An administrator acts.
    Configuration,
    /// The caller: its source, its sink, a wrong length, a cancelled request.
    Caller,
}

/// The reason why an operation on an archive failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The archive does not answer, or answers with an internal error.
    #[error("the archive is down: {0}")]
    Down(String),
    /// The request was not finished at its deadline, or no byte moved for the time of patience.
    #[error("the archive is slow: not finished after {} s", .0.as_secs_f32())]
    Slow(Duration),
    /// The archive has no space, or a quota is used up.
    #[error("the archive is full: {0}")]
    Full(String),
    /// The archive refuses the credentials, or the account may not use the directory.
    #[error("the archive refuses the credentials: {0}; check the access key and its rights")]
    Refused(String),
    /// The archive has no such copy.
    #[error("the archive has no copy {0}")]
    Missing(ObjectKey),
    /// The bytes of a copy are not those that were written.
    #[error("copy {key} has wrong bytes: {reason}")]
    WrongBytes {
        /// The copy.
        key: ObjectKey,
        /// The first difference: length, BLAKE3 or MD5.
        reason: String,
    },
    /// A put found a copy of this name with other bytes. Nothing was written.
    #[error("copy {0} exists with other bytes and is not overwritten")]
    Exists(ObjectKey),
    /// The archive belongs to another cell.
    #[error("the archive belongs to cell {found}, not to {wanted}")]
    Foreign {
        /// The cell of the identity object.
        found: CellId,
        /// The caller's cell.
        wanted: CellId,
    },
    /// The archive belongs to this cell, but is another one than the caller names.
    #[error("this is archive {found}, not {wanted}: the location is another archive's")]
    OtherArchive {
        /// The id in the identity object.
        found: ArchiveId,
        /// The id that the caller names.
        wanted: ArchiveId,
    },
    /// There is no identity object, and the caller never used the archive.
    #[error("this location is no archive yet: create it first")]
    NotAnArchive,
    /// The archive was used, and is empty now: perhaps its file system is not mounted.
    #[error("the archive has been used and is empty now: {0}")]
    EmptyThoughUsed(&'static str),
    /// The archive has been newer: an old state of it was restored.
    #[error(
        "the archive is at session {found}, and was at session {known}: an old state was restored"
    )]
    Older {
        /// The counter of the identity object.
        found: u64,
        /// The counter that the caller knows.
        known: u64,
    },
    /// Something is there that is no archive, or an archive is there already. Nothing was written.
    #[error("an archive cannot be created here: {0}")]
    InUse(String),
    /// The identity object does not parse, or a newer program wrote it.
    #[error("the identity of the archive cannot be used: {0}")]
    Identity(String),
    /// The location, or the file with the credentials, is not usable.
    #[error("the archive's configuration cannot be used: {0}")]
    Configuration(String),
    /// The caller's source failed, or had another length than announced.
    #[error("the bytes to archive cannot be read: {0}")]
    Source(String),
    /// The caller's sink failed.
    #[error("the recalled bytes cannot be written: {0}")]
    Sink(String),
    /// The caller cancelled the request.
    #[error("the request was cancelled")]
    Cancelled,
}

impl Error {
    /// The party that has to act.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Down(_) | Self::Slow(_) | Self::Full(_) => Blame::Archive,
            Self::Missing(_) | Self::WrongBytes { .. } | Self::Exists(_) => Blame::Copy,
            Self::Refused(_)
            | Self::Foreign { .. }
            | Self::OtherArchive { .. }
            | Self::NotAnArchive
            | Self::EmptyThoughUsed(_)
            | Self::Older { .. }
            | Self::InUse(_)
            | Self::Identity(_)
            | Self::Configuration(_) => Blame::Configuration,
            Self::Source(_) | Self::Sink(_) | Self::Cancelled => Blame::Caller,
        }
    }

    /// Returns whether the same request may succeed later without a change of its arguments.
    pub fn is_transient(&self) -> bool {
        self.blame() == Blame::Archive
    }
}
