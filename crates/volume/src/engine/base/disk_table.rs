//! The base table as it is on the disk, without the pages in memory, for a scrub.
//!
//! This is a second redb on the same file, for reads only. It reads from the device and compares
//! with the sums. While it is in use, the file must not change.

use std::io;
use std::sync::Arc;

use redb::{Builder, ReadOnlyDatabase, ReadableDatabase, StorageBackend};

use super::super::page_sums::PageSums;
use super::{Base, DAMAGED, TABLE, failed, guarded};
use crate::disk::DiskFile;
use crate::engine::key::Key;
use crate::error::Result;

const BLOCK: u64 = 4096;
/// Memory for its pages. Entries are read in order, so little is enough.
const CACHE_BYTES: usize = 1 << 20;
/// The flags in redb's header, and the flag of a table in use. With this flag redb would not open
/// the file for reading. Between two transactions the flag has no other meaning.
const FLAGS_AT: u64 = 9;
const IN_USE: u8 = 2;

#[derive(Debug)]
struct Stored {
    file: Arc<dyn DiskFile>,
    sums: Arc<PageSums>,
}

impl StorageBackend for Stored {
    fn len(&self) -> Result<u64, io::Error> {
        self.file.length()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        self.file.read_stored(out, offset)?;
        if let Some(at) = self.sums.damaged(offset, out) {
            out.fill(0);
            DAMAGED.set(Some(at));
        }
        if let Some(flags) = FLAGS_AT.checked_sub(offset)
            && let Some(flags) = out.get_mut(flags as usize)
        {
            *flags &= !IN_USE;
        }
        Ok(())
    }

    fn set_len(&self, _: u64) -> Result<(), io::Error> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), io::Error> {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

/// The open base table of the disk.
pub(crate) struct DiskTable(Option<ReadOnlyDatabase>);

impl Base {
    /// Opens the table on the disk. The file must not change before that is dropped.
    pub(crate) fn disk_table(&self) -> Result<DiskTable> {
        let database = guarded(|| {
            let stored = Stored {
                file: Arc::clone(&self.file),
                sums: Arc::clone(&self.sums),
            };
            let mut builder = Builder::new();
            builder.set_cache_size(CACHE_BYTES);
            Ok(builder.open_read_only_with_backend(stored)?)
        });
        Ok(DiskTable(Some(database.map_err(|error| failed(&error))?)))
    }

    /// Compares up to `length` bytes at an offset of the file on the disk with the sums. Returns
    /// the offsets of the blocks that do not match or cannot be read. Returns `None` if the offset
    /// is behind the end of the file. No transaction may be using the table.
    pub(crate) fn unsound_blocks(&self, offset: u64, length: u64) -> Result<Option<Vec<u64>>> {
        let io = |error| failed(&redb::Error::Io(error));
        let end = self.file.length().map_err(io)?.min(offset + length);
        if offset >= end {
            return Ok(None);
        }
        let mut bytes = vec![0; (end - offset) as usize];
        let all = self.file.read_stored(&mut bytes, offset);
        if all.is_ok() && self.sums.damaged(offset, &bytes).is_none() {
            return Ok(Some(Vec::new()));
        }
        let mut unsound = Vec::new();
        for at in (offset..end).step_by(BLOCK as usize) {
            let bytes = &mut bytes[..BLOCK.min(end - at) as usize];
            let read = self.file.read_stored(bytes, at);
            if read.is_err() || self.sums.damaged(at, bytes).is_some() {
                unsound.push(at);
            }
        }
        Ok(Some(unsound))
    }
}

impl DiskTable {
    /// Checks whether the entry of a key can be read.
    pub(crate) fn check(&self, key: &Key) -> Result<()> {
        guarded(|| {
            let Some(database) = &self.0 else {
                return Ok(());
            };
            let transaction = database.begin_read()?;
            transaction.open_table(TABLE)?.get(key.as_slice())?;
            Ok(())
        })
        .map_err(|error| failed(&error))
    }
}

impl Drop for DiskTable {
    fn drop(&mut self) {
        // The drop of the database may read damaged pages, too.
        let _ = guarded(|| {
            drop(self.0.take());
            Ok(())
        });
    }
}
