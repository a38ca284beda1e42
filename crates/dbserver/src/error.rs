//! Why a database server refuses: the caller's fault, as an abort code, or the database's.

use cellar_celldb::Error as DatabaseError;
use cellar_wire::AbortCode;

/// Why a procedure did nothing.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The protocol's own refusal.
    #[error("{0}")]
    Refused(AbortCode),
    /// The cell database did not do what was asked.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

impl From<AbortCode> for Error {
    fn from(code: AbortCode) -> Self {
        Self::Refused(code)
    }
}

impl Error {
    /// What the caller is told, where `damaged` says "the database is damaged" in the caller's
    /// package. A database that cannot be written answers as a ubik server without a quorum or
    /// disk does, so that clients try another server.
    pub fn abort_code(&self, damaged: AbortCode) -> AbortCode {
        match self {
            Self::Refused(code) => *code,
            Self::Database(cause) => {
                tracing::error!(%cause, "the cell database refused");
                match cause {
                    DatabaseError::BadRow { .. } | DatabaseError::Format { .. } => damaged,
                    DatabaseError::TooLarge { .. } => AbortCode::UINTERNAL,
                    _ => AbortCode::UIOERROR,
                }
            }
        }
    }
}

/// A name that was made here and does not fit.
pub(crate) fn too_long(_: cellar_wire::TooLong) -> Error {
    AbortCode::PRNAMETOOLONG.into()
}
