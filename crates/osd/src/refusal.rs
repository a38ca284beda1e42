//! The one place that picks an abort code.

use cellar_volume::Error;
use cellar_wire::AbortCode;

/// Why a call is refused.
#[derive(Clone, Debug)]
pub(crate) enum Refusal {
    /// The store said so.
    Store(Error),
    /// The capability does not allow it.
    Capability,
    /// Only superusers may.
    NotSuperuser,
    /// The device that is named is not served here.
    NoDevice,
    /// As many streams as there may be.
    Busy,
    /// An argument can never be right.
    Invalid,
    /// The peer stopped sending before it had sent what it announced.
    StoppedSending,
    /// The call failed underneath, or one to another server: its code.
    Call(AbortCode),
}

impl Refusal {
    pub(crate) fn code(&self) -> AbortCode {
        match self {
            Self::Store(error) => store_code(error),
            Self::Capability => AbortCode::EACCES,
            Self::NotSuperuser => AbortCode::EPERM,
            Self::NoDevice => AbortCode::ENODEV,
            Self::Busy => AbortCode::VBUSY,
            Self::Invalid => AbortCode::EINVAL,
            Self::StoppedSending => AbortCode::RX_CALL_TIMEOUT,
            Self::Call(code) => *code,
        }
    }
}

fn store_code(error: &Error) -> AbortCode {
    match error {
        Error::NoObject(_) | Error::NoVersion(..) => AbortCode::ENOENT,
        Error::Superseded(_) => AbortCode::ESTALE,
        Error::FileTooBig => AbortCode::EFBIG,
        Error::DiskFull => AbortCode::ENOSPC,
        Error::Invalid(_) => AbortCode::EINVAL,
        // Everything that could block was tried on a thread that may.
        Error::WouldBlock => AbortCode::VBUSY,
        // The machine failed, or what it has is damaged. A device that takes no more writes answers EIO
        // too, and says in its heartbeats that it cannot be written.
        _ => AbortCode::EIO,
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl From<AbortCode> for Refusal {
    fn from(code: AbortCode) -> Self {
        Self::Call(code)
    }
}
