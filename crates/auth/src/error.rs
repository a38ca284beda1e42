//! Errors outside the protocol, by who is to blame. Refusals of a peer are abort codes.

use std::io;
use std::path::{Path, PathBuf};

/// Why keys, superusers or a token could not be read, made or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This machine: a file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Bad bytes: a file does not have the form that its name promises.
    #[error("{}: {what}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The fault.
        what: &'static str,
    },
    /// Bad bytes: a Kerberos ticket, or the credential around it.
    #[error("the Kerberos ticket {0}")]
    Ticket(&'static str),
    /// Unsupported: this crate does not work with keys of that encryption type.
    #[error("encryption type {0} is not supported")]
    Enctype(i32),
    /// The caller of this crate: a key has the wrong length for its encryption type.
    #[error("a key of {length} bytes does not fit encryption type {enctype}")]
    KeyLength {
        /// The encryption type.
        enctype: i32,
        /// The length of the given key.
        length: usize,
    },
    /// The caller of this crate: a key of that version and type exists, with other bytes.
    #[error("there is another key of version {kvno}, encryption type {enctype}")]
    KeyExists {
        /// The key version.
        kvno: u32,
        /// The encryption type.
        enctype: i32,
    },
    /// The caller of this crate: the server has no key for this operation.
    #[error("there is no key of this cell")]
    NoKey,
    /// The caller of this crate: a name that the file cannot hold.
    #[error("{0:?} is not the name of a user")]
    Name(String),
}

impl Error {
    pub(crate) fn file(path: &Path, source: io::Error) -> Self {
        Self::File {
            path: path.to_owned(),
            source,
        }
    }

    pub(crate) fn malformed(path: &Path, what: &'static str) -> Self {
        Self::Malformed {
            path: path.to_owned(),
            what,
        }
    }
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
