//! The only place that selects abort codes.

use cellar_volume::Error;
use cellar_wire::AbortCode;

/// Reason why a call is refused.
#[derive(Clone, Debug)]
pub(crate) enum Refusal {
    /// An error of the store.
    Store(Error),
    /// The capability does not permit it.
    Capability,
    /// Only superusers may do it.
    NotSuperuser,
    /// The named device is not served here.
    NoDevice,
    /// The number of streams is at its bound.
    Busy,
    /// An argument is invalid.
    Invalid,
    /// An archive does not answer this call.
    OnArchive,
    /// The catalogue of the archive has no such copy.
    NoCopy,
    /// An error of an archive.
    Archive(cellar_archive::Error),
    /// An error of the catalogue of an archive, which the log has.
    Catalogue,
    /// The peer stopped sending before it had sent the announced data.
    StoppedSending,
    /// This call, or one to another server, failed with this code.
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
            Self::NoCopy => AbortCode::ENOENT,
            Self::OnArchive => AbortCode::EOPNOTSUPP,
            Self::Archive(error) => archive_code(error),
            Self::Catalogue => AbortCode::EIO,
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
        // Everything that could block was run on a thread that may block.
        Error::WouldBlock => AbortCode::VBUSY,
        // The machine failed, or its data is damaged. A device that accepts no more writes also
        // answers EIO, and reports in its heartbeats that it is not writable.
        _ => AbortCode::EIO,
    }
}

fn archive_code(error: &cellar_archive::Error) -> AbortCode {
    use cellar_archive::Error;
    match error {
        Error::Missing(_) => AbortCode::ENOENT,
        Error::WrongBytes { .. } => AbortCode::EBADMSG,
        Error::Exists(_) => AbortCode::EEXIST,
        Error::Full(_) => AbortCode::ENOSPC,
        Error::Slow(_) | Error::Cancelled => AbortCode::VBUSY,
        _ => AbortCode::EIO,
    }
}

impl From<cellar_archive::Error> for Refusal {
    fn from(error: cellar_archive::Error) -> Self {
        Self::Archive(error)
    }
}

impl From<cellar_celldb::Error> for Refusal {
    fn from(error: cellar_celldb::Error) -> Self {
        tracing::error!(%error, "the catalogue of an archive failed");
        Self::Catalogue
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
