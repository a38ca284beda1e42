//! Why bytes in objects could not be read or written.

use cellar_rpc::CallError;
use cellar_wire::abort::AbortCode;
use cellar_wire::object::Placed;

/// What of a file's objects failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device of which no other copy is left does not answer, or refuses.
    #[error("device {osd} has the only copy of a part of the file, and: {cause}")]
    Device {
        /// Which.
        osd: u32,
        /// The last that was heard of it.
        #[source]
        cause: CallError,
    },
    /// The bytes of an object are on no device that is alive.
    #[error("a part of the file is on no device that is alive (device {osd} had it)")]
    Unavailable {
        /// The device of the first copy.
        osd: u32,
    },
    /// Too few objects of an erasure code are left.
    #[error("only {left} of {needed} objects that are needed can be read: {cause}")]
    TooFew {
        /// Objects that can be read.
        left: usize,
        /// Objects that are needed.
        needed: usize,
        /// What was heard of the last that failed.
        cause: CallError,
    },
    /// A layout, range or use that is not possible: our caller's fault.
    #[error("{0}")]
    Misused(&'static str),
}

impl Error {
    /// What the caller of a file server is told.
    #[must_use]
    pub fn code(&self) -> AbortCode {
        match self {
            Self::Device { cause, .. } => match cause {
                CallError::Aborted(code)
                    if matches!(code.to_plain(), AbortCode::ENOSPC | AbortCode::VBUSY) =>
                {
                    *code
                }
                _ => AbortCode::EIO,
            },
            Self::Unavailable { .. } | Self::TooFew { .. } => AbortCode::EIO,
            Self::Misused(_) => AbortCode::EINVAL,
        }
    }
}

/// What operations of this crate return.
pub type Result<T> = std::result::Result<T, Error>;

/// An object that could not be used. The caller goes on without it; somebody should repair it.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Its place in the layout.
    pub place: usize,
    /// What the layout says of it.
    pub placed: Placed,
    /// What was heard.
    pub cause: CallError,
}

impl Problem {
    /// Whether the device answered and has not the bytes that it should have: a wrong checksum, or the
    /// object or version is not there. Waiting for the device does not help then.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        is_damage(&self.cause)
    }
}

pub(crate) fn is_damage(cause: &CallError) -> bool {
    matches!(
        cause,
        CallError::Aborted(code)
            if matches!(code.to_plain(), AbortCode::EIO | AbortCode::ENOENT | AbortCode::ESTALE)
    )
}
