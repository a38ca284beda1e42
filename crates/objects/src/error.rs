//! Errors of reading and writing bytes in objects.

use cellar_rpc::CallError;
use cellar_wire::abort::AbortCode;
use cellar_wire::object::Placed;

/// Failure of an operation on a file's objects.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device that has the only remaining copy does not answer, or refuses.
    #[error("device {osd}, which has the only copy of a part of the file, failed: {cause}")]
    Device {
        /// Number of the device.
        osd: u32,
        /// Last error of it.
        #[source]
        cause: CallError,
    },
    /// No living device has the bytes of an object.
    #[error("no living device has a part of the file (device {osd} had it)")]
    Unavailable {
        /// The device of the first copy.
        osd: u32,
    },
    /// Too few objects of an erasure code are left.
    #[error(
        "only {left} of the {needed} needed objects can be read{}: {cause}",
        device_numbers(failed)
    )]
    TooFew {
        /// Objects that can be read.
        left: usize,
        /// Objects that are needed.
        needed: usize,
        /// Devices of the objects that failed, as far as they were tried.
        failed: Vec<u32>,
        /// Error of the object that failed last.
        cause: CallError,
    },
    /// An invalid layout, range or use: an error of the caller.
    #[error("{0}")]
    Misused(&'static str),
}

impl Error {
    /// Returns the abort code for the caller of a file server.
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

fn device_numbers(failed: &[u32]) -> String {
    let numbers: Vec<_> = failed.iter().map(u32::to_string).collect();
    match numbers.len() {
        0 => String::new(),
        1 => format!(" (device {} failed)", numbers.concat()),
        _ => format!(" (devices {} failed)", numbers.join(", ")),
    }
}

/// Result of operations of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An object that could not be used. The caller continues without it; it should be repaired.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Place in the layout.
    pub place: usize,
    /// Entry in the layout.
    pub placed: Placed,
    /// Error of the object.
    pub cause: CallError,
}

impl Problem {
    /// Whether the device answered but lacks the correct bytes: a wrong checksum, or a missing
    /// object or version. Waiting for the device does not help then.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        is_damage(&self.cause)
    }
}

/// The devices of the problems.
pub(crate) fn failed_devices(problems: &[Problem]) -> Vec<u32> {
    let mut devices: Vec<u32> = problems.iter().map(|problem| problem.placed.osd).collect();
    devices.sort_unstable();
    devices.dedup();
    devices
}

pub(crate) fn is_damage(cause: &CallError) -> bool {
    matches!(
        cause,
        CallError::Aborted(code)
            if matches!(code.to_plain(), AbortCode::EIO | AbortCode::ENOENT | AbortCode::ESTALE)
    )
}
