//! Errors of the client, sorted by the party at fault, with the operation that failed.

use std::net::SocketAddr;

use cellar_rpc::CallError;
use cellar_wire::abort::AbortCode;

use crate::cell::CellName;

/// A failed operation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No `CellServDB` that was read names the cell.
    #[error(
        "cell {0} is not known here: give --server ADDRESS (one of its database servers), or add \
         it to a CellServDB"
    )]
    UnknownCell(CellName),
    /// No database server of the cell answered, or none of them has a quorum.
    #[error("{}", database_sentence(cell, role, servers, cause))]
    DatabaseUnreachable {
        /// The cell.
        cell: CellName,
        /// `volume location` or `protection`.
        role: &'static str,
        /// The servers that were called.
        servers: String,
        /// The refusal of a server without a quorum, otherwise the failure of the last call.
        #[source]
        cause: CallError,
    },
    /// A database server refused the call.
    #[error("{what}: {}", token_sentence(cause).map_or_else(|| cause.to_string(), str::to_owned))]
    Database {
        /// The operation.
        what: String,
        /// The failure of the call.
        #[source]
        cause: CallError,
    },
    /// The VLDB has no volume of this name or number.
    #[error("there is no volume {volume} in cell {cell}")]
    NoSuchVolume {
        /// The cell whose VLDB was searched.
        cell: CellName,
        /// The name or number.
        volume: String,
    },
    /// The VLDB lists the volume, but not the wanted kind of it.
    #[error("volume {volume} of cell {cell} has no {wanted} site")]
    NoSuchSite {
        /// The cell.
        cell: CellName,
        /// The family's name.
        volume: String,
        /// `read-write`, `read-only` or `backup`.
        wanted: &'static str,
    },
    /// A file server refused the call, or no server of the volume answered.
    #[error("{what}: {}", file_sentence(cause))]
    Fileserver {
        /// The path or fid, and the operation.
        what: String,
        /// The failure of the call.
        #[source]
        cause: CallError,
    },
    /// A path cannot be followed.
    #[error("{path}: {problem}")]
    Path {
        /// The path, or the part of it that matters.
        path: String,
        /// The cause.
        problem: PathProblem,
    },
    /// A server sent an answer that the protocol does not allow.
    #[error("{what}: the server's answer makes no sense ({detail})")]
    BadAnswer {
        /// The operation.
        what: String,
        /// The fault in the answer.
        detail: String,
    },
    /// The file was changed while it was read.
    #[error("{what}: the file was changed while it was read; read it again")]
    Changed {
        /// The path or fid.
        what: String,
    },
    /// The operation was stopped through [`crate::Stop`], and has cleaned up.
    #[error("{what}: interrupted")]
    Interrupted {
        /// The path or fid.
        what: String,
    },
    /// The caller wants a layout, but the file server keeps no objects.
    #[error(
        "{what}: the file server does not keep files in objects, or there are too few devices for the layout"
    )]
    NoObjects {
        /// The path or fid.
        what: String,
    },
    /// The file server's partition has room, but the devices have no place for the file.
    #[error("{what}: {}", no_devices(*objects))]
    NoDevices {
        /// The path or fid.
        what: String,
        /// The number of objects of the layout that the caller wants, if the caller wants one.
        objects: Option<usize>,
    },
    /// Objects of a file could not be read or written at their devices.
    #[error("{what}: {cause}")]
    Objects {
        /// The path or fid.
        what: String,
        /// The device and the cause.
        #[source]
        cause: cellar_objects::Error,
    },
    /// A callback connection or another server could not be reached.
    #[error("server {server}: {cause}")]
    Server {
        /// The address of the server.
        server: SocketAddr,
        /// The cause.
        #[source]
        cause: CallError,
    },
    /// An operation of this machine failed.
    #[error("{what}: {cause}")]
    Local {
        /// The operation.
        what: String,
        /// The cause.
        #[source]
        cause: std::io::Error,
    },
}

/// Why a path cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathProblem {
    /// The path is not below `/afs`.
    #[error("not an AFS path; AFS paths begin with /afs/CELL")]
    NotAfs,
    /// The name does not exist.
    #[error("no such file or directory")]
    NotFound,
    /// The name below `/afs` is that of no known cell, and no name in the root of `/afs`.
    #[error(
        "no cell {0} is known here, and the root of /afs has no such name ('cellar fs listcells' lists the cells; \
         --cell {0} --server ADDRESS names one of its database servers)"
    )]
    NoSuchCell(CellName),
    /// A component before the last is not a directory.
    #[error("not a directory")]
    NotADirectory,
    /// The path leads to a directory, but a file is wanted.
    #[error("is a directory")]
    IsADirectory,
    /// Too many symbolic links, or mount points that lead back.
    #[error("too many symbolic links or mount points in a row")]
    Loop,
    /// A mount point in a backup volume that leads to a backup volume.
    #[error("a mount point in a backup volume does not lead to a backup volume")]
    BackupInBackup,
    /// A symbolic link out of AFS.
    #[error("a symbolic link leads to {0}, outside of /afs")]
    LeavesAfs(String),
    /// The text of a mount point is not valid.
    #[error("a damaged mount point: '{0}'")]
    BadMountPoint(String),
    /// A component longer than 255 bytes, with a NUL, or empty where one is needed.
    #[error("not a name that AFS can store")]
    BadName,
    /// The name exists already.
    #[error("exists already")]
    Exists,
    /// `/afs` itself and the names of cells in it are in no volume that can be changed.
    #[error("files cannot be created or removed here")]
    NotChangeable,
}

fn database_sentence(cell: &CellName, role: &str, servers: &str, cause: &CallError) -> String {
    match cause {
        CallError::Aborted(_) => format!(
            "no {role} server of cell {cell} takes changes now ({servers}): {cause}. \
             'cellar db status' on such a server shows the reason"
        ),
        _ => format!(
            "no {role} server of cell {cell} answers ({servers}): is it running, and does the \
             firewall let UDP pass?"
        ),
    }
}

impl Error {
    /// The abort code of the error, if a server sent one. Universal errno codes are made plain.
    pub fn code(&self) -> Option<AbortCode> {
        match self {
            Self::Database { cause, .. }
            | Self::Fileserver { cause, .. }
            | Self::DatabaseUnreachable { cause, .. }
            | Self::Server { cause, .. } => Some(cause.code().to_plain()),
            _ => None,
        }
    }

    /// Whether no server answered. The operation may have been executed or not.
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::Database { cause, .. }
            | Self::Fileserver { cause, .. }
            | Self::DatabaseUnreachable { cause, .. }
            | Self::Server { cause, .. } => cause.is_unreachable(),
            _ => false,
        }
    }

    /// Whether the server process that was called has ended ([`CallError::Gone`]).
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Fileserver { cause, .. } => matches!(cause, CallError::Gone),
            _ => false,
        }
    }

    /// Whether the error says that the file or name does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(
            self,
            Self::Path {
                problem: PathProblem::NotFound | PathProblem::NoSuchCell(_),
                ..
            }
        ) || matches!(self.code(), Some(AbortCode::ENOENT | AbortCode::VNOVNODE))
    }
}

/// The sentence for a server that rejects the caller's token, with the user's remedy.
pub fn token_sentence(cause: &CallError) -> Option<&'static str> {
    let CallError::Aborted(code) = cause else {
        return None;
    };
    match code.to_plain() {
        AbortCode::RXKADEXPIRED | AbortCode::VICETOKENDEAD => {
            Some("your token has expired: 'cellar login' gets a new one")
        }
        AbortCode::RXKADUNKNOWNKEY => Some(
            "the server does not have the key that your ticket is sealed with: 'cellar tokens' \
             shows its version, 'cellar key list' on the server lists its keys. If the cell's key was \
             changed, 'cellar logout' and 'cellar login' get a ticket with the new one",
        ),
        AbortCode::RXKADBADTICKET | AbortCode::RXKADTICKETLEN => Some(
            "the server cannot read your ticket: do the clocks agree, and does the cell have the key of \
             its realm ('cellar key import-keytab')?",
        ),
        AbortCode::RXKADNOAUTH => Some(
            "the server does not take your ticket yet: the clocks of this machine, the KDC and the \
             server do not agree",
        ),
        AbortCode::RXKADLEVELFAIL => {
            Some("the server demands more protection of the packets: use --encrypt")
        }
        _ => None,
    }
}

fn no_devices(objects: Option<usize>) -> String {
    let shown = "'cellar osd list' shows the devices and their room";
    match objects {
        Some(count) => format!(
            "the layout needs {count} object storage devices with room, and the cell has fewer ({shown})"
        ),
        None => format!(
            "a policy puts the file into objects, and too few object storage devices have room for it \
             ({shown}, 'cellar fs policy' the policies of a directory)"
        ),
    }
}

/// The sentence for a refusal of a file server, with the user's remedy if there is one.
fn file_sentence(cause: &CallError) -> String {
    let CallError::Aborted(code) = cause else {
        return format!("{cause}");
    };
    if let Some(sentence) = token_sentence(cause) {
        return sentence.to_owned();
    }
    match code.to_plain() {
        AbortCode::EACCES => "permission denied: the access list gives you no right to this \
                              ('cellar fs listacl' shows it, 'cellar tokens' shows your tokens; \
                              --admin acts as administrator on the server's own machine)"
            .to_owned(),
        AbortCode::ENOENT => "no such file or directory".to_owned(),
        AbortCode::EEXIST => "exists already".to_owned(),
        AbortCode::ENOTDIR => "not a directory".to_owned(),
        AbortCode::EISDIR => "is a directory".to_owned(),
        AbortCode::ENOTEMPTY => "the directory is not empty".to_owned(),
        AbortCode::EROFS => "the volume is read-only".to_owned(),
        AbortCode::EXDEV => "not possible between volumes (links: between directories)".to_owned(),
        AbortCode::EPERM => "only an administrator may do this".to_owned(),
        AbortCode::VOVERQUOTA => "the volume's quota is used up ('cellar fs setquota' raises it, \
                                  'cellar fs listquota' shows it)"
            .to_owned(),
        AbortCode::VDISKFULL => "the server's partition is full".to_owned(),
        AbortCode::ENOMEDIUM => {
            "the file is in archives only, and its policy or a limit forbids that \
                                 opening it recalls it ('cellar hsm prefetch' recalls it)"
                .to_owned()
        }
        AbortCode::VNOVOL => "no server has this volume on line".to_owned(),
        other => other.to_string(),
    }
}

/// The result of the operations of this crate.
pub type Result<T> = std::result::Result<T, Error>;
