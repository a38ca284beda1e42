//! Errors of a database server: the caller's fault, as an abort code, or the database's.

use cellar_celldb::Error as DatabaseError;
use cellar_wire::AbortCode;

/// The reason why a procedure did nothing.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// A refusal by the protocol's rules.
    #[error("{0}")]
    Refused(AbortCode),
    /// The cell database failed.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

impl From<AbortCode> for Error {
    fn from(code: AbortCode) -> Self {
        Self::Refused(code)
    }
}

impl Error {
    /// The code for the caller; `damaged` is the code of the caller's package for a damaged
    /// database. If the database cannot be written, the code is that of a ubik server without a
    /// quorum or a disk. Clients then try another server.
    pub fn abort_code(&self, damaged: AbortCode) -> AbortCode {
        match self {
            Self::Refused(code) => *code,
            Self::Database(cause) => {
                tracing::error!(%cause, "the cell database refused");
                match cause {
                    DatabaseError::BadRow { .. } | DatabaseError::Format { .. } => damaged,
                    DatabaseError::TooLarge { .. } => AbortCode::UINTERNAL,
                    DatabaseError::Unavailable(_) => AbortCode::UNOQUORUM,
                    _ => AbortCode::UIOERROR,
                }
            }
        }
    }
}

/// The error for a generated name that does not fit.
pub(crate) fn too_long(_: cellar_wire::TooLong) -> Error {
    AbortCode::PRNAMETOOLONG.into()
}
