//! What can go wrong outside the protocol, by who is to blame. Refusals of a peer are abort codes.

use std::io;
use std::path::{Path, PathBuf};

/// Why keys, superusers or a token could not be read, made or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Our machine: a file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Bad bytes: a file is not in the form its name promises.
    #[error("{}: {what}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Bad bytes: a Kerberos ticket, or the credential around it.
    #[error("the Kerberos ticket {0}")]
    Ticket(&'static str),
    /// Unsupported: nothing here works with keys of that encryption type.
    #[error("encryption type {0} is not supported")]
    Enctype(i32),
    /// Our caller: a key of the wrong length for its encryption type.
    #[error("a key of {length} bytes does not fit encryption type {enctype}")]
    KeyLength {
        /// The encryption type.
        enctype: i32,
        /// Bytes given.
        length: usize,
    },
    /// Our caller: a key of that version and type is there already, with other bytes.
    #[error("there is another key of version {kvno}, encryption type {enctype}")]
    KeyExists {
        /// The key version.
        kvno: u32,
        /// The encryption type.
        enctype: i32,
    },
    /// Our caller: the server has no key to do that with.
    #[error("there is no key of this cell")]
    NoKey,
    /// Our caller: a name that the file cannot hold.
    #[error("{0:?} is no name of a user")]
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

/// What most of this crate answers.
pub type Result<T, E = Error> = std::result::Result<T, E>;
