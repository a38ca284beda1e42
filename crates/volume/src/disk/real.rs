//! The machine's disk: a directory, locked against a second process.

mod direct;

use std::fs::File;
use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use rustix::fs::{Advice, FallocateFlags, FlockOperation};
use rustix::io::ReadWriteFlags;

use super::{Disk, DiskFile, Space};
use direct::Direct;

/// The most parts that the system accepts in one call (IOV_MAX).
const SLICES_MAX: usize = 1024;

/// A directory of the machine's file system.
#[derive(Debug)]
pub struct FileDisk {
    folder: PathBuf,
    handle: File,
    _lock: File,
}

impl FileDisk {
    /// Opens the directory, and makes it if it is missing. The directory and its files are for the
    /// account of this process alone: rights of other accounts are removed.
    ///
    /// Fails with `ResourceBusy` if another process has it open. Fails with `PermissionDenied` if
    /// it, or a file in it, belongs to another account.
    pub fn open(folder: impl AsRef<Path>) -> io::Result<Arc<Self>> {
        let folder = folder.as_ref().to_path_buf();
        cellar_private::directory(&folder)?;
        if let Some(found) = cellar_private::narrow(&folder)? {
            tracing::warn!(
                folder = %folder.display(), %found,
                "other accounts could use this; their rights are removed"
            );
        }
        let handle = File::open(&folder)?;
        let lock = cellar_private::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(folder.join("lock"))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(io::Error::new(
                    io::ErrorKind::ResourceBusy,
                    format!("{} is in use by another process", folder.display()),
                ));
            }
            Err(error) => return Err(error.into()),
        }
        Ok(Arc::new(Self {
            folder,
            handle,
            _lock: lock,
        }))
    }
}

impl Disk for FileDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.folder.join(name);
        let file = cellar_private::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)?;
        let direct = OnceLock::new();
        Ok(Arc::new(RealFile { file, path, direct }))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.folder.join(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.folder.join(from), self.folder.join(to))
    }

    fn sync_names(&self) -> io::Result<()> {
        self.handle.sync_all()
    }

    fn space(&self) -> io::Result<Space> {
        let status = rustix::fs::fstatvfs(&self.handle)?;
        Ok(Space {
            total: status.f_blocks * status.f_frsize,
            free: status.f_bavail * status.f_frsize,
        })
    }
}

#[derive(Debug)]
struct RealFile {
    file: File,
    path: PathBuf,
    /// Access past the page cache, if the file system supports it; determined at the first use.
    direct: OnceLock<Option<Direct>>,
}

impl RealFile {
    fn direct(&self) -> Option<&Direct> {
        let open = || Direct::open(&self.path, &self.file);
        self.direct.get_or_init(open).as_ref()
    }
}

impl DiskFile for RealFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn used(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.blocks() * 512)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn read_at_once(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let mut slices = [io::IoSliceMut::new(buffer)];
        let length = slices[0].len();
        match rustix::io::preadv2(&self.file, &mut slices, offset, ReadWriteFlags::NOWAIT) {
            Ok(read) if read == length => Ok(()),
            // A file system without support returns EOPNOTSUPP: then every read counts as a wait.
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::OPNOTSUPP) => {
                Err(io::ErrorKind::WouldBlock.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn read_stored(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let is_cached = self.read_at_once(&mut [0], offset).is_ok();
        let length = NonZeroU64::new(buffer.len() as u64);
        // Pages that are not written yet stay in the cache. Without support the cache is read;
        // there is no other way.
        let forget = || rustix::fs::fadvise(&self.file, offset, length, Advice::DontNeed);
        let _ = forget();
        self.read_at(buffer, offset)?;
        if !is_cached {
            let _ = forget();
        }
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn write_pieces_at(&self, pieces: &[Bytes], mut offset: u64) -> io::Result<()> {
        let mut slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let mut left = &mut slices[..];
        // Skips empty parts.
        IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            let some = &left[..left.len().min(SLICES_MAX)];
            match rustix::io::pwritev(&self.file, some, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    offset += written as u64;
                    IoSlice::advance_slices(&mut left, written);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn write_past_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        match self.direct() {
            Some(direct) if direct.write(bytes, offset)? => Ok(()),
            _ => self.write_at(bytes, offset),
        }
    }

    fn read_past_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        match self.direct() {
            Some(direct) if direct.read(buffer, offset)? => Ok(()),
            _ => self.read_at(buffer, offset),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn write_durably(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_past_at(bytes, offset)?;
        self.sync()
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        self.file.set_len(length)
    }

    fn allocate(&self, offset: u64, length: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), offset, length) {
            Err(rustix::io::Errno::OPNOTSUPP) => {
                let end = offset + length;
                if self.length()? < end {
                    self.set_length(end)
                } else {
                    Ok(())
                }
            }
            other => Ok(other?),
        }
    }

    fn punch_hole(&self, offset: u64, length: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.file, flags, offset, length) {
            // Without support the room stays allocated, which costs only room.
            Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
            other => Ok(other?),
        }
    }
}
