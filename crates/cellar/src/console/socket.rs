//! The place of the socket at which `cellar console login` asks.

use std::path::PathBuf;

use crate::failure::{Failure, Outcome};

#[derive(Debug, clap::Args)]
pub(crate) struct SocketOption {
    /// The socket of 'cellar console login'. Default: /run/cellar-console/socket for root, else
    /// cellar-console/socket in XDG_RUNTIME_DIR.
    #[arg(long, value_name = "PATH", env = "CELLAR_CONSOLE_SOCKET")]
    socket: Option<PathBuf>,
}

impl SocketOption {
    /// The path of the socket.
    ///
    /// # Errors
    /// No option names it, and the account has no directory for sockets.
    pub(super) fn path(&self) -> Outcome<PathBuf> {
        if let Some(path) = &self.socket {
            return Ok(path.clone());
        }
        if rustix::process::geteuid().is_root() {
            return Ok(PathBuf::from("/run/cellar-console/socket"));
        }
        match std::env::var_os("XDG_RUNTIME_DIR") {
            Some(directory) => Ok(PathBuf::from(directory).join("cellar-console/socket")),
            None => Err(Failure::usage(
                "there is no XDG_RUNTIME_DIR; name a place for the socket with --socket PATH",
            )),
        }
    }
}
