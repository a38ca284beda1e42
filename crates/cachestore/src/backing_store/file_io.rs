//! Reads, writes and syncs of the cache's files, with the failures that tests inject.

use std::fs::File;
use std::io::{self, IoSlice};
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

/// The most pieces of one write call. Source: Linux, `UIO_MAXIOV`.
const SLICES_MAX: usize = 1_024;

/// Whether writes still reach the disk. Always true, except in tests that kill the process.
#[cfg(not(test))]
pub(crate) const fn writes_reach_disk() -> bool {
    true
}

#[cfg(test)]
thread_local! {
    /// How many more writes of this thread reach the disk, and whether one did not.
    pub(crate) static WRITES_LEFT: std::cell::Cell<(u64, bool)> =
        const { std::cell::Cell::new((u64::MAX, false)) };
}

/// Counts a write.
#[cfg(test)]
pub(crate) fn writes_reach_disk() -> bool {
    let (left, killed) = WRITES_LEFT.get();
    WRITES_LEFT.set((left.saturating_sub(1), killed || left == 0));
    left > 0
}

#[cfg(test)]
thread_local! {
    /// The number of syncs of this thread, and the number of the sync that fails, from 0.
    pub(crate) static SYNCS: std::cell::Cell<(u64, u64)> = const { std::cell::Cell::new((0, u64::MAX)) };
}

/// Called before each sync, which a test may let fail.
pub(crate) fn syncs() -> io::Result<()> {
    #[cfg(test)]
    {
        let (done, fails) = SYNCS.get();
        SYNCS.set((done + 1, fails));
        if done == fails {
            return Err(io::Error::other("a sync that a test lets fail"));
        }
    }
    Ok(())
}

/// Syncs a file or a directory.
pub(super) fn sync(file: &File) -> io::Result<()> {
    syncs()?;
    file.sync_all()
}

#[cfg(test)]
thread_local! {
    /// How many bytes of a write of this thread fit on the disk.
    pub(crate) static ROOM: std::cell::Cell<usize> = const { std::cell::Cell::new(usize::MAX) };
}

pub(super) fn write_all_at(file: &File, bytes: &[u8], position: u64) -> io::Result<()> {
    #[cfg(test)]
    if let Some((fits, _)) = bytes.split_at_checked(ROOM.get()) {
        file.write_all_at(fits, position)?;
        return Err(io::ErrorKind::StorageFull.into());
    }
    file.write_all_at(bytes, position)
}

/// The number of open files of caches in this process.
pub(super) static OPEN: AtomicUsize = AtomicUsize::new(0);

/// The most files that stay open: half of the descriptors, the rest is for other uses.
pub(super) fn most_open() -> usize {
    static MOST: OnceLock<usize> = OnceLock::new();
    *MOST.get_or_init(|| {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let limit = limit.current.unwrap_or(u64::MAX) / 2;
        usize::try_from(limit).unwrap_or(usize::MAX)
    })
}

/// An open file that is counted in `OPEN`.
#[derive(Debug)]
pub(crate) struct Descriptor(File);

impl Descriptor {
    pub(crate) fn new(file: File) -> Self {
        OPEN.fetch_add(1, Ordering::Relaxed);
        Self(file)
    }
}

impl Deref for Descriptor {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl std::os::fd::AsFd for Descriptor {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Appends `length` bytes from `position`, zeros beyond the end.
pub(super) fn fetch(
    file: &File,
    position: u64,
    length: usize,
    bytes: &mut Vec<u8>,
) -> io::Result<()> {
    let mut at = position;
    let end = bytes.len() + length;
    while bytes.len() < end {
        let room = rustix::buffer::spare_capacity(bytes);
        match rustix::io::pread(file, room, at) {
            Ok(0) => bytes.resize(end, 0),
            Ok(count) => at += count as u64,
            Err(rustix::io::Errno::INTR) => {}
            Err(cause) => return Err(cause.into()),
        }
    }
    // The spare capacity may exceed `length`.
    bytes.truncate(end);
    Ok(())
}

/// Writes pieces one after the other.
pub(super) fn put(file: &File, position: u64, pieces: &[Bytes]) -> io::Result<()> {
    let mut at = position;
    for some in pieces.chunks(SLICES_MAX) {
        let mut slices: Vec<_> = some.iter().map(|piece| IoSlice::new(piece)).collect();
        let mut left = &mut slices[..];
        IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            let count = rustix::io::retry_on_intr(|| rustix::io::pwritev(file, left, at))?;
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            IoSlice::advance_slices(&mut left, count);
            at += count as u64;
        }
    }
    Ok(())
}
