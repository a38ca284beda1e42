//! Turns errors of the library into errors with a culprit.
//!
//! The library wraps the cause: an error of the operating system, or of our HTTP client. So the
//! chain of sources is searched for one of these. The kind of the library's own error comes second.

use std::error::Error as StdError;
use std::io;

use object_store::Error as LibraryError;

use crate::Error;
use crate::limits::MESSAGE_BYTES_MAX;

/// A failure of the library, before it is known which copy it concerns.
#[derive(Debug)]
pub(crate) enum Fault {
    /// There is no such object.
    Missing,
    /// There is such an object already.
    Exists,
    /// Any other failure.
    Other(Error),
}

impl From<LibraryError> for Fault {
    fn from(error: LibraryError) -> Self {
        if let Some(known) = known_cause(&error) {
            return Self::Other(known);
        }
        match &error {
            LibraryError::NotFound { .. } => Self::Missing,
            LibraryError::AlreadyExists { .. } | LibraryError::Precondition { .. } => Self::Exists,
            LibraryError::PermissionDenied { .. } | LibraryError::Unauthenticated { .. } => {
                Self::Other(Error::Refused(message(&error)))
            }
            _ => Self::Other(Error::Down(message(&error))),
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

impl Fault {
    /// The error of an operation for which it is no result that an object exists or is missing.
    pub(crate) fn unexpected(self, doing: &str) -> Error {
        match self {
            Self::Missing => Error::Down(format!("{doing}: not found")),
            Self::Exists => Error::Down(format!("{doing}: exists already")),
            Self::Other(error) => error,
        }
    }
}

/// The error of a chain of sources that has a known cause.
fn known_cause(error: &LibraryError) -> Option<Error> {
    let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(at) = cause {
        if let Some(own) = at.downcast_ref::<Error>() {
            return Some(own.clone());
        }
        if let Some(io) = at.downcast_ref::<io::Error>()
            && let Some(known) = of_io(io.kind(), error)
        {
            return Some(known);
        }
        cause = at.source();
    }
    None
}

fn of_io(kind: io::ErrorKind, error: &LibraryError) -> Option<Error> {
    match kind {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            Some(Error::Full(message(error)))
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            Some(Error::Refused(message(error)))
        }
        _ => None,
    }
}

/// The kind of the error of the operating system that is the cause, if it is one.
pub(crate) fn io_kind(error: &LibraryError) -> Option<io::ErrorKind> {
    let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(at) = cause {
        if let Some(io) = at.downcast_ref::<io::Error>() {
            return Some(io.kind());
        }
        cause = at.source();
    }
    None
}

/// The text of an error in one line, and not longer than [`MESSAGE_BYTES_MAX`].
pub(crate) fn message(error: &dyn std::fmt::Display) -> String {
    let mut text = error.to_string();
    let cut = text.floor_char_boundary(MESSAGE_BYTES_MAX);
    text.truncate(cut);
    text.replace(|c: char| c.is_control(), " ")
}
