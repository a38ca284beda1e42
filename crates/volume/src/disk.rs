//! The disk as the store sees it: a flat directory of files, each read and written at offsets.
//!
//! Everything that reaches the machine's disk goes through [`Disk`] and [`DiskFile`], including the
//! base table's file. So a test can use a [`SimDisk`] and cut the power at any point. [`FileDisk`]
//! is the real disk.
//!
//! The store relies on these properties and no others:
//!
//! * Reads see a write at once.
//! * Data written before a successful `sync` survives a power cut.
//! * Of data written after it, any part may survive, in any order.
//! * A name that was made or removed is durable after `sync_names`.

mod aligned;
mod real;
mod sim;

use std::fmt::Debug;
use std::io;
use std::sync::Arc;

use bytes::Bytes;

pub(crate) use aligned::{ALIGNMENT, Aligned};
pub use real::FileDisk;
pub use sim::{Fault, SimDisk};

/// Room on the underlying file system, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Its size.
    pub total: u64,
    /// Bytes that an ordinary process can still use.
    pub free: u64,
}

/// A directory of files. Names are plain: they have no separators.
pub trait Disk: Send + Sync + Debug {
    /// Opens a file for reading and writing, and makes it if it is missing.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// The names of all files, in no order.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Renames a file; a file that had the new name is replaced.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Makes all new, changed and removed names durable.
    fn sync_names(&self) -> io::Result<()>;
    /// Room on the file system.
    fn space(&self) -> io::Result<Space>;
}

/// One open file.
pub trait DiskFile: Send + Sync + Debug {
    /// Length in bytes.
    fn length(&self) -> io::Result<u64>;
    /// Bytes of the file system that it takes, without holes.
    fn used(&self) -> io::Result<u64>;
    /// Fills `buffer` from `offset`; `UnexpectedEof` if the file ends before.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Like [`Self::read_at`] if that needs no wait for the device; `WouldBlock` otherwise.
    fn read_at_once(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Fills `buffer` from `offset` with the bytes on the device, if the system supports that. For
    /// verifying. Leaves the page cache as it was.
    fn read_stored(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_at(buffer, offset)
    }
    /// Writes all of `bytes` at `offset`; the file grows as needed.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// [`DiskFile::write_at`] of bytes that lie in several places, one after the other.
    fn write_pieces_at(&self, pieces: &[Bytes], offset: u64) -> io::Result<()> {
        self.write_at(&pieces.concat(), offset)
    }
    /// [`DiskFile::write_at`] for large amounts that are not read soon: past the page cache if that
    /// is possible. Memory, length and offset should be multiples of 4096.
    fn write_past_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(bytes, offset)
    }
    /// [`DiskFile::read_at`] for large amounts that are not read again soon: past the page cache if
    /// that is possible.
    fn read_past_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_at(buffer, offset)
    }
    /// Makes everything that was written, and the length, durable.
    fn sync(&self) -> io::Result<()>;
    /// Overwrites existing bytes, and makes them and all earlier writes durable. For a journal,
    /// which is written often and not read again.
    fn write_durably(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(bytes, offset)?;
        self.sync()
    }
    /// Cuts or extends (with zeros) to `length`.
    fn set_length(&self, length: u64) -> io::Result<()>;
    /// Reserves room for a range and extends the file; later writes there do not lack room.
    fn allocate(&self, offset: u64, length: u64) -> io::Result<()>;
    /// Gives the room of a range back; the range then reads as zeros.
    fn punch_hole(&self, offset: u64, length: u64) -> io::Result<()>;
}

/// Returns whether an error means that there is no room.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}
