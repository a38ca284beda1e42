//! The disk as the store sees it: a flat folder of files, each read and written at offsets.
//!
//! Everything that reaches the machine's disk goes through [`Disk`] and [`DiskFile`], the base
//! table's file included, so that a test can put a [`SimDisk`] there and cut the power at any
//! point. [`FileDisk`] is the real one.
//!
//! What the store relies on, and no more: a write is visible to reads at once; what was written
//! before a successful `sync` survives a power cut; of what was written after it any part may
//! survive, in any order; a name made or removed survives after `sync_names`.

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

/// Room on the file system below, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// All of it.
    pub total: u64,
    /// What an ordinary process can still use.
    pub free: u64,
}

/// A folder of files. Names are plain: no separators.
pub trait Disk: Send + Sync + Debug {
    /// Opens a file for reading and writing, and makes it if it is missing.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// The names of all files, in no order.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Gives a file another name, in place of whatever had it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Makes names made, removed and changed so far durable.
    fn sync_names(&self) -> io::Result<()>;
    /// Room on the file system.
    fn space(&self) -> io::Result<Space>;
}

/// One open file.
pub trait DiskFile: Send + Sync + Debug {
    /// Its length in bytes.
    fn length(&self) -> io::Result<u64>;
    /// Bytes of the file system that it takes, holes not counted.
    fn used(&self) -> io::Result<u64>;
    /// Fills `buffer` from `offset`; `UnexpectedEof` if the file ends before.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// The same if it needs no wait for the device; `WouldBlock` otherwise.
    fn read_at_once(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Fills `buffer` from `offset` with what the device has, if the system can be told to ask it: for
    /// verifying. What was in memory is in memory afterwards, and nothing else.
    fn read_stored(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_at(buffer, offset)
    }
    /// Writes all of `bytes` at `offset`; the file grows as needed.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// [`DiskFile::write_at`] of bytes that lie in several places, one after the other.
    fn write_pieces_at(&self, pieces: &[Bytes], offset: u64) -> io::Result<()> {
        self.write_at(&pieces.concat(), offset)
    }
    /// [`DiskFile::write_at`] of much that is not read soon: past the system's memory where that is possible. Memory,
    /// length and offset should be multiples of 4096.
    fn write_past_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(bytes, offset)
    }
    /// [`DiskFile::read_at`] of much that is not read again soon, likewise.
    fn read_past_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_at(buffer, offset)
    }
    /// Makes all that was written, and the length, durable.
    fn sync(&self) -> io::Result<()>;
    /// Writes `bytes` over what is there and makes them, and all that was written before, durable:
    /// for a journal, which is written often and not read again.
    fn write_durably(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(bytes, offset)?;
        self.sync()
    }
    /// Cuts or extends (with zeros) to `length`.
    fn set_length(&self, length: u64) -> io::Result<()>;
    /// Reserves room for a range, extending the file: later writes there do not lack space.
    fn allocate(&self, offset: u64, length: u64) -> io::Result<()>;
    /// Gives the room of a range back; it reads as zeros.
    fn punch_hole(&self, offset: u64, length: u64) -> io::Result<()>;
}

/// Whether an error says that there is no room.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}
