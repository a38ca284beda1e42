//! Refusals that the cache answers itself, names for calls, and the interval of retries.

use std::time::Duration;

use cellar_rpc::CallError;
use cellar_wire::AfsName;
use cellar_wire::abort::AbortCode;

use cellar_client::error::{Error, PathProblem, Result};
use cellar_client::path::NAME_BYTES_MAX;

/// The interval at which failed stores and creates are retried.
pub(crate) const RETRY: Duration = Duration::from_secs(10);

/// Makes an error of our own look like a server's refusal.
pub(crate) fn refused(what: impl Into<String>, code: AbortCode) -> Error {
    Error::Fileserver {
        what: what.into(),
        cause: CallError::Aborted(code),
    }
}

/// The error of a name.
pub(crate) fn path_error(name: &[u8], problem: PathProblem) -> Error {
    Error::Path {
        path: String::from_utf8_lossy(name).into_owned(),
        problem,
    }
}

/// Checks a name for a call to a server.
pub(crate) fn afs_name(name: &[u8]) -> Result<AfsName> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(path_error(name, PathProblem::BadName));
    }
    AfsName::new(name.to_vec()).map_err(|_| path_error(name, PathProblem::BadName))
}
