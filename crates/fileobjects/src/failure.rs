//! Why an operation on a file in objects failed. The file server maps it to its refusals in one
//! place.

use cellar_wire::AbortCode;

/// Why an operation on a file in objects failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    /// The store of the volumes.
    #[error(transparent)]
    Volume(#[from] cellar_volume::Error),
    /// The volume is not on this server.
    #[error("the volume is not on this server")]
    NoVolume,
    /// The bytes of a file could not be read from devices or written to them: EIO, ENOSPC or VBUSY.
    #[error("the devices: {0}")]
    Devices(AbortCode),
    /// The caller's report or request makes no sense.
    #[error("an invalid request")]
    Invalid,
    /// Another operation on the file or volume takes too long; the client retries.
    #[error("the file or the volume is busy")]
    Busy,
    /// A policy may send the file to devices, and the devices or the policies are not known since
    /// the start.
    #[error("the devices or the policies are not known yet")]
    NotKnownYet,
    /// A file is not wiped, because fewer archives than wanted confirm their copies.
    #[error("too few archives confirm that they have a copy")]
    TooFewCopies,
    /// A file is not wiped, because it or a directory above it is pinned.
    #[error("the file is pinned")]
    Pinned,
    /// A wiped file cannot be recalled: every known copy is bad.
    #[error("no archive has a good copy")]
    NoGoodCopy,
    /// A recall is over a limit.
    #[error("the recall is over a limit")]
    OverLimit,
    /// The source of a store ended before it had the announced bytes.
    #[error("bytes of the store are missing")]
    SourceEnded,
    /// A call to another server failed, or the source of a store.
    #[error("a call failed: {0}")]
    Call(AbortCode),
    /// The operation is refused with this code.
    #[error("refused: {0}")]
    Code(AbortCode),
}

/// The reason why a store failed: an error of the writer, of the source of the bytes, or another
/// one.
pub(crate) enum WriteFailure {
    Writing(cellar_objects::Error),
    Source(Failure),
    Other(Failure),
}

impl From<cellar_objects::Error> for WriteFailure {
    fn from(error: cellar_objects::Error) -> Self {
        Self::Writing(error)
    }
}

impl From<Failure> for WriteFailure {
    fn from(failure: Failure) -> Self {
        Self::Other(failure)
    }
}

impl From<cellar_volume::Error> for WriteFailure {
    fn from(error: cellar_volume::Error) -> Self {
        Self::Other(error.into())
    }
}
