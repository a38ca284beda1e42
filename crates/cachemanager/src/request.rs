//! A request to a server about a vnode, and the refusals that the cache answers itself.

use std::net::SocketAddr;
use std::time::Duration;

use cellar_rpc::CallError;
use cellar_wire::AfsName;
use cellar_wire::abort::AbortCode;
use tokio::time::Instant;

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

/// The time at which a call began, and the counts of breaks at that time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatusRequest {
    pub(crate) at: Instant,
    pub(crate) breaks: u64,
    /// The number of our own changes that were answered.
    pub(crate) own: u64,
    /// The number of breaks of unknown vnodes, for a call about a vnode that is not known yet.
    pub(super) unknown_breaks: Option<u64>,
    /// The address that answered; `None` before the answer.
    pub(crate) by: Option<SocketAddr>,
}

impl StatusRequest {
    /// For a call that creates the vnode.
    pub(crate) fn about_new(unknown_breaks: u64) -> Self {
        Self {
            at: Instant::now(),
            breaks: 0,
            own: 0,
            unknown_breaks: Some(unknown_breaks),
            by: None,
        }
    }

    /// Adds the address that answered.
    pub(crate) fn answered_by(mut self, server: SocketAddr) -> Self {
        self.by = Some(server);
        self
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
