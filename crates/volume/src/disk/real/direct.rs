//! Reading and writing past the page cache.
//!
//! A journal is written in whole blocks, once, and read only after a crash. A write through the
//! page cache has to find pages, mark them, and find them again for the sync. That is a third of a
//! group's processor time, and a third of its latency on a fast disk.
//!
//! For direct access, the kernel accepts memory and offsets in whole blocks only. So unaligned
//! bytes are copied to an aligned buffer first. Written data is not durable before the next sync:
//! the disk has a cache of its own.
//!
//! Large objects are written this way too. Through the cache, each of their bytes needs new memory.
//! That costs more than everything else that is done with the byte, and evicts the pages of others.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use parking_lot::Mutex;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::disk::aligned::{ALIGNMENT, Aligned};

/// Bytes written at once if they have to be copied.
const BUFFER: usize = 128 << 10;

/// A second opening of a file, for access past the page cache.
#[derive(Debug)]
pub(super) struct Direct {
    file: File,
    buffer: Mutex<Aligned>,
}

impl Direct {
    /// Opens the same file as `known`. `None` if that is not possible, as on some file systems.
    pub(super) fn open(path: &Path, known: &File) -> Option<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .custom_flags(OFlags::DIRECT.bits() as i32)
            .open(path)
            .ok()?;
        let (ours, theirs) = (file.metadata().ok()?, known.metadata().ok()?);
        let same = (ours.dev(), ours.ino()) == (theirs.dev(), theirs.ino());
        same.then(|| Self {
            file,
            buffer: Mutex::default(),
        })
    }

    /// Writes `bytes`. Returns false if they must be written in the usual way.
    pub(super) fn write(&self, bytes: &[u8], offset: u64) -> io::Result<bool> {
        let aligned = |value: u64| value.is_multiple_of(ALIGNMENT as u64);
        if !aligned(offset) || !aligned(bytes.len() as u64) {
            return Ok(false);
        }
        if aligned(bytes.as_ptr().addr() as u64) {
            return self.write_as_is(bytes, offset);
        }
        let mut buffer = self.buffer.lock();
        let mut at = offset;
        for part in bytes.chunks(BUFFER) {
            buffer.fill(part.len(), |out| out.extend_from_slice(part));
            if !self.write_as_is(buffer.bytes(), at)? {
                return Ok(false);
            }
            at += part.len() as u64;
        }
        Ok(true)
    }

    /// Fills `buffer`. Returns false if it must be read in the usual way.
    pub(super) fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<bool> {
        let place = [buffer.as_ptr().addr() as u64, buffer.len() as u64, offset];
        if place.iter().any(|at| !at.is_multiple_of(ALIGNMENT as u64)) {
            return Ok(false);
        }
        match self.file.read_exact_at(buffer, offset) {
            Ok(()) => Ok(true),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn write_as_is(&self, bytes: &[u8], offset: u64) -> io::Result<bool> {
        match self.file.write_all_at(bytes, offset) {
            Ok(()) => Ok(true),
            // The device has larger blocks than ours, or the file system accepts the flag without
            // supporting it.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk, FileDisk};

    #[test]
    fn direct_stores_are_read_and_overwritten_through_the_server() {
        let folder = tempfile::tempdir().unwrap();
        let disk = FileDisk::open(folder.path()).unwrap();
        let file = disk.open("journal.0").unwrap();
        let blocks: Vec<u8> = (0..(BUFFER + ALIGNMENT) as u32)
            .map(|at| (at / 512) as u8)
            .collect();
        file.write_at(&vec![0xff; BUFFER + 4 * ALIGNMENT], 0)
            .unwrap();
        file.write_durably(&blocks, ALIGNMENT as u64).unwrap();
        file.write_at(b"between", 5000).unwrap();
        file.write_durably(b"odd", 1).unwrap();
        let mut read = vec![0; blocks.len()];
        file.read_at(&mut read, ALIGNMENT as u64).unwrap();
        let mut expected = blocks;
        expected[5000 - ALIGNMENT..][..7].copy_from_slice(b"between");
        assert!(read == expected);
        let mut aligned = crate::disk::Aligned::default();
        aligned.fill(expected.len(), |out| out.extend_from_slice(&expected));
        file.write_past_at(aligned.bytes(), 2 * ALIGNMENT as u64)
            .unwrap();
        let mut memory = crate::engine::memory::Memory::take(expected.len());
        file.read_past_at(memory.bytes_mut(), 2 * ALIGNMENT as u64)
            .unwrap();
        assert!(memory.as_ref() == expected);
        file.read_at(&mut read, 2 * ALIGNMENT as u64).unwrap();
        assert!(read == expected);
        let end = file.length().unwrap();
        let behind = file.read_past_at(memory.bytes_mut(), end - ALIGNMENT as u64);
        assert_eq!(behind.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let mut start = [0; 5];
        file.read_at(&mut start, 0).unwrap();
        assert_eq!(&start, b"\xffodd\xff");
    }

    #[test]
    fn only_whole_blocks_are_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let known = File::create(&path).unwrap();
        let other = File::create(folder.path().join("other")).unwrap();
        assert!(Direct::open(&path, &other).is_none());
        // If the file system has no direct writes, there is nothing to test.
        let Some(direct) = Direct::open(&path, &known) else {
            return;
        };
        assert!(!direct.write(&[0; 100], 0).unwrap());
        assert!(!direct.write(&[0; ALIGNMENT], 512).unwrap());
    }
}
