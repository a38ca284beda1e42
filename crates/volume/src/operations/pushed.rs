//! The bytes of a store that could not be applied, because its file went to objects meanwhile. They
//! are read back and stored there.

use std::sync::Arc;

use bytes::Bytes;

use crate::engine::blocks::ReadFailure;
use crate::error::{Error, Result};
use crate::operations::store::Incoming;
use crate::volume::Volume;

/// The bytes that a [`Store`](crate::Store) received. Dropping them frees their blocks.
#[derive(Debug)]
pub struct PushedBytes {
    volume: Arc<Volume>,
    incoming: Incoming,
    /// The position in the file of the next byte.
    at: u64,
}

impl PushedBytes {
    pub(crate) fn of(volume: Arc<Volume>, incoming: Incoming) -> Self {
        let at = incoming.gathered.begin();
        Self {
            volume,
            incoming,
            at,
        }
    }

    /// Reads the next bytes, never empty and about `most` of them; `None` after the last. May wait
    /// for the disk.
    ///
    /// `Io` if they cannot be read.
    pub fn read(&mut self, most: usize) -> Result<Option<Bytes>> {
        let gathered = &self.incoming.gathered;
        if self.at >= gathered.end() {
            return Ok(None);
        }
        let read = gathered.read_back(&self.volume.core.engine, self.at, most);
        let bytes = read.map_err(|failure| match failure {
            ReadFailure::WouldBlock => Error::WouldBlock,
            ReadFailure::Damaged(cause) => self.volume.damaged(self.incoming.fid, &cause),
        })?;
        self.at += bytes.len() as u64;
        Ok(Some(bytes))
    }

    /// Begins again with the first byte.
    pub fn rewind(&mut self) {
        self.at = self.incoming.gathered.begin();
    }
}
