//! Files whose bytes are not on this server: in objects, or in archives only.

use std::sync::Arc;

use bytes::Bytes;
use cellar_wire::AbortCode;
use cellar_wire::ids::Fid;

use super::Objects;
use super::archive::{ArchivedBytes, InArchives};
use super::whole_file::{InObjects, ObjectBytes};

/// A file whose bytes are not on this server.
pub enum Elsewhere {
    /// In objects.
    Objects(InObjects),
    /// In archives only.
    Archives(InArchives),
}

impl Elsewhere {
    /// The file.
    pub fn fid(&self) -> Fid {
        match self {
            Self::Objects(file) => file.fid,
            Self::Archives(file) => file.fid,
        }
    }

    /// The number of its bytes.
    pub fn length(&self) -> u64 {
        match self {
            Self::Objects(file) => file.length,
            Self::Archives(file) => file.length,
        }
    }
}

/// The bytes of such a file, as they arrive.
pub enum ElsewhereBytes {
    /// From the devices.
    Objects(Box<ObjectBytes>),
    /// From an archive.
    Archives(Box<ArchivedBytes>),
}

impl ElsewhereBytes {
    /// Begins to read the whole file.
    ///
    /// # Errors
    /// EIO: no copy in an archive is good, or this server uses no object storage.
    pub fn begin(objects: &Arc<Objects>, file: Elsewhere) -> Result<Self, AbortCode> {
        Ok(match file {
            Elsewhere::Objects(file) => Self::Objects(Box::new(ObjectBytes::begin(objects, file)?)),
            Elsewhere::Archives(file) => {
                Self::Archives(Box::new(ArchivedBytes::begin(objects, file)?))
            }
        })
    }

    /// The next bytes; at least one.
    ///
    /// # Errors
    /// The code of the device or archive that failed.
    pub async fn next(&mut self) -> Result<Bytes, AbortCode> {
        match self {
            Self::Objects(bytes) => bytes.next().await,
            Self::Archives(bytes) => bytes.next().await,
        }
    }
}
