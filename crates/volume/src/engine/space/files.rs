//! The files that hold the blocks, and the room that they take on the file system.
//!
//! The room of a file is allocated in steps from its start, before blocks there are handed out. So
//! a write of blocks never lacks room. Released blocks keep their room, and the next body gets it.
//!
//! Only when tables find no room any more, a region in which no block is in use gives its room
//! back. The end of a file is cut off; elsewhere a hole is made. The region is then *unbacked*
//! until its room is allocated again. Which regions are unbacked is not stored. When a file with
//! holes is opened, every free region counts as unbacked; allocating room that is there already
//! changes nothing.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::{BLOCK_BYTES, FILE_REGIONS, Load, REGION_BLOCKS, Space, region_of};
use crate::disk::{DiskFile, is_full};
use crate::engine::batch::Run;
use crate::error::{Error, Result};
use crate::state::ticket::is_nonblocking;

/// Bytes of a region.
const REGION_BYTES: u64 = REGION_BLOCKS * BLOCK_BYTES;
/// The most bytes by which a file may fall short without having holes: parts of the file system's
/// own blocks.
const HOLE_BYTES_MIN: u64 = 1 << 20;

/// One file of blocks.
pub(super) struct BlockFile {
    file: Arc<dyn DiskFile>,
    allocated: u64,
    /// A write has completed since the last sync began.
    dirty: bool,
}

impl Space {
    /// Opens the file with this number.
    pub(super) fn open_file(&self, number: u32) -> Result<()> {
        let first = u64::from(number) * FILE_REGIONS;
        let holes = self.with_file(first * REGION_BLOCKS, |file, _| {
            let has_holes = file.file.used()? + HOLE_BYTES_MIN < file.allocated;
            Ok(if has_holes { file.allocated } else { 0 })
        });
        let regions = holes
            .map_err(|error| block_error(&error))?
            .div_ceil(REGION_BYTES);
        let inner = self.inner.lock();
        let is_free = |region: &u64| {
            let free = inner.free.get(*region as usize);
            free.is_some_and(|&free| u64::from(free) == REGION_BLOCKS)
        };
        let free = (first..first + regions).filter(is_free);
        self.unbacked
            .lock()
            .extend(free.map(|region| region as u32));
        Ok(())
    }

    /// The first block behind the allocated room of the file that holds `block`.
    pub(super) fn end_of_file(&self, block: u64) -> Result<u64> {
        let (region, _) = region_of(block);
        if self.unbacked.lock().contains(&region) {
            return Ok(u64::from(region) * REGION_BLOCKS);
        }
        let per_file = FILE_REGIONS * REGION_BLOCKS;
        let allocated = self
            .with_file(block, |file, _| Ok(file.allocated))
            .map_err(|error| block_error(&error))?;
        Ok(block / per_file * per_file + allocated / BLOCK_BYTES)
    }

    fn with_file<T>(
        &self,
        block: u64,
        work: impl FnOnce(&mut BlockFile, u64) -> std::io::Result<T>,
    ) -> std::io::Result<T> {
        let per_file = FILE_REGIONS * REGION_BLOCKS;
        let number = block / per_file;
        let mut files = self.files.lock();
        let file = match files.entry(number) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(slot) => {
                let file = self.disk.open(&format!("blocks.{number}"))?;
                let allocated = file.length()?;
                if allocated == 0 {
                    self.disk.sync_names()?;
                }
                slot.insert(BlockFile {
                    file,
                    allocated,
                    dirty: false,
                })
            }
        };
        work(file, block % per_file * BLOCK_BYTES)
    }

    /// Reserves room on the file system for a run, in steps that grow with the file.
    pub(super) fn ensure_room(&self, run: Run) -> Result<()> {
        let (region, _) = region_of(run.start);
        if self.unbacked.lock().contains(&region) {
            self.allocate_region(region)?;
        }
        let result = self.with_file(run.start, |file, offset| {
            let end = offset + u64::from(run.count) * BLOCK_BYTES;
            if end <= file.allocated {
                return Ok(());
            }
            if is_nonblocking() {
                return Err(std::io::ErrorKind::WouldBlock.into());
            }
            let step = (file.allocated / 8).clamp(1 << 20, 64 << 20) & !(BLOCK_BYTES - 1);
            let generous = end.max(file.allocated + step);
            for target in [generous, end] {
                let Some(_promise) = self.room.grow(target - file.allocated) else {
                    continue;
                };
                match file.file.allocate(file.allocated, target - file.allocated) {
                    Ok(()) => {
                        file.allocated = target;
                        return Ok(());
                    }
                    Err(error) if is_full(&error) => {}
                    Err(error) => return Err(error),
                }
            }
            Err(std::io::ErrorKind::StorageFull.into())
        });
        result.map_err(|error| block_error(&error))
    }

    /// Writes bytes, a whole number of blocks, into a run.
    pub(crate) fn write(&self, block: u64, bytes: &[u8]) -> Result<()> {
        self.write_by(block, |file, offset| file.write_at(bytes, offset))
    }

    /// [`Space::write`] of bytes that lie in several places.
    pub(crate) fn write_pieces(&self, block: u64, pieces: &[Bytes]) -> Result<()> {
        self.write_by(block, |file, offset| file.write_pieces_at(pieces, offset))
    }

    /// [`Space::write`] past the system's page cache.
    pub(crate) fn write_past(&self, block: u64, bytes: &[u8]) -> Result<()> {
        self.write_by(block, |file, offset| file.write_past_at(bytes, offset))
    }

    fn write_by(
        &self,
        block: u64,
        write: impl FnOnce(&dyn DiskFile, u64) -> std::io::Result<()>,
    ) -> Result<()> {
        let opened = self.with_file(block, |file, offset| Ok((Arc::clone(&file.file), offset)));
        let written = opened.and_then(|(file, offset)| write(file.as_ref(), offset));
        // Set only now: a sync that ran during this write does not cover it.
        let noted = written.and_then(|()| {
            self.with_file(block, |file, _| {
                file.dirty = true;
                Ok(())
            })
        });
        noted.map_err(|error| block_error(&error))
    }

    /// Reads whole blocks past the system's page cache.
    pub(crate) fn read_past(&self, block: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        let (file, offset) =
            self.with_file(block, |file, offset| Ok((Arc::clone(&file.file), offset)))?;
        file.read_past_at(buffer, offset)
    }

    /// Reads whole blocks. With `at_once`, fails instead of waiting for the device.
    pub(crate) fn read(&self, block: u64, buffer: &mut [u8], at_once: bool) -> std::io::Result<()> {
        let (file, offset) =
            self.with_file(block, |file, offset| Ok((Arc::clone(&file.file), offset)))?;
        if at_once {
            file.read_at_once(buffer, offset)
        } else {
            file.read_at(buffer, offset)
        }
    }

    /// Reads whole blocks from the device instead of the page cache, if the disk supports that.
    pub(crate) fn read_stored(&self, block: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        let (file, offset) =
            self.with_file(block, |file, offset| Ok((Arc::clone(&file.file), offset)))?;
        file.read_stored(buffer, offset)
    }

    /// Makes all blocks written so far durable.
    pub(crate) fn sync(&self) -> std::io::Result<()> {
        let dirty: Vec<_> = {
            let mut files = self.files.lock();
            files
                .values_mut()
                .filter_map(|file| std::mem::take(&mut file.dirty).then(|| Arc::clone(&file.file)))
                .collect()
        };
        dirty.iter().try_for_each(|file| file.sync())
    }

    /// Allocates the room of a region that has none.
    fn allocate_region(&self, region: u32) -> Result<()> {
        if is_nonblocking() {
            return Err(Error::WouldBlock);
        }
        let first = u64::from(region) * REGION_BLOCKS;
        let backed = self.with_file(first, |file, offset| {
            let bytes = file.allocated.saturating_sub(offset).min(REGION_BYTES);
            let Some(_promise) = self.room.grow(bytes) else {
                return Err(std::io::ErrorKind::StorageFull.into());
            };
            file.file.allocate(offset, bytes)
        });
        backed.map_err(|error| block_error(&error))?;
        self.unbacked.lock().remove(&region);
        Ok(())
    }

    /// Gives the room of one free region back to the file system. Returns false if there is none.
    pub(crate) fn hand_back(&self, load: Load<'_>) -> Result<bool> {
        let mut runs = Vec::new();
        {
            let unbacked = self.unbacked.lock().clone();
            let allocated = self.allocated_regions();
            let mut inner = self.inner.lock();
            let found = (0..inner.free.len()).rev().find(|&region| {
                u64::from(inner.free[region]) == REGION_BLOCKS
                    && !unbacked.contains(&(region as u32))
                    && allocated.iter().any(|file| file.contains(&(region as u64)))
            });
            let Some(region) = found else {
                return Ok(false);
            };
            // Prevents other threads from taking blocks of the region meanwhile.
            inner.take(region, REGION_BLOCKS as u32, 1, &mut runs, load)?;
        }
        let Some(&Run { start, .. }) = runs.first() else {
            return Ok(false);
        };
        let (region, _) = region_of(start);
        let given = self.with_file(start, |file, offset| {
            let cut = offset + REGION_BYTES >= file.allocated;
            if cut {
                file.file.set_length(offset)?;
                file.allocated = offset;
            } else {
                file.file.punch_hole(offset, REGION_BYTES)?;
            }
            Ok(cut)
        });
        if matches!(given, Ok(false)) {
            self.unbacked.lock().insert(region);
        }
        self.give_back(&runs);
        given.map_err(|error| block_error(&error))?;
        tracing::info!(
            region,
            "gave the room of a free region of blocks to the tables"
        );
        Ok(true)
    }

    /// The regions that lie in allocated parts of files.
    fn allocated_regions(&self) -> Vec<Range<u64>> {
        let files = self.files.lock();
        let regions = files.iter().map(|(number, file)| {
            let first = number * FILE_REGIONS;
            first..first + file.allocated.div_ceil(REGION_BYTES)
        });
        regions.collect()
    }

    /// Bytes on the file system that are allocated for blocks and not in use.
    pub(crate) fn allocated_but_unused(&self) -> u64 {
        let allocated: u64 = {
            let files = self.files.lock();
            files.values().map(|file| file.allocated).sum()
        };
        let unbacked = self.unbacked.lock().len() as u64 * REGION_BYTES;
        let inner = self.inner.lock();
        let used: u64 = inner
            .free
            .iter()
            .map(|&free| REGION_BLOCKS - u64::from(free))
            .sum::<u64>();
        allocated.saturating_sub(unbacked + used * BLOCK_BYTES)
    }
}

fn block_error(error: &std::io::Error) -> Error {
    if error.kind() == std::io::ErrorKind::WouldBlock {
        Error::WouldBlock
    } else if is_full(error) {
        Error::DiskFull
    } else {
        Error::Partition(format!("blocks: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{OnceLock, Weak};

    use super::super::Room;
    use super::*;
    use crate::disk::{self, Disk, SimDisk};

    /// A disk on which another thread syncs all blocks in the middle of each write.
    #[derive(Clone, Debug)]
    struct SyncDuringWrite<D> {
        below: D,
        space: Arc<OnceLock<Weak<Space>>>,
    }

    impl Disk for SyncDuringWrite<SimDisk> {
        fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
            Ok(Arc::new(SyncDuringWrite {
                below: self.below.open(name)?,
                space: self.space.clone(),
            }))
        }
        fn list(&self) -> io::Result<Vec<String>> {
            self.below.list()
        }
        fn remove(&self, name: &str) -> io::Result<()> {
            self.below.remove(name)
        }
        fn rename(&self, from: &str, to: &str) -> io::Result<()> {
            self.below.rename(from, to)
        }
        fn sync_names(&self) -> io::Result<()> {
            self.below.sync_names()
        }
        fn space(&self) -> io::Result<disk::Space> {
            self.below.space()
        }
    }

    impl DiskFile for SyncDuringWrite<Arc<dyn DiskFile>> {
        fn length(&self) -> io::Result<u64> {
            self.below.length()
        }
        fn used(&self) -> io::Result<u64> {
            self.below.used()
        }
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
            self.below.read_at(buffer, offset)
        }
        fn read_at_once(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
            self.below.read_at_once(buffer, offset)
        }
        fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
            if let Some(space) = self.space.get().and_then(Weak::upgrade) {
                space.sync()?;
            }
            self.below.write_at(bytes, offset)
        }
        fn sync(&self) -> io::Result<()> {
            self.below.sync()
        }
        fn set_length(&self, length: u64) -> io::Result<()> {
            self.below.set_length(length)
        }
        fn allocate(&self, offset: u64, length: u64) -> io::Result<()> {
            self.below.allocate(offset, length)
        }
        fn punch_hole(&self, offset: u64, length: u64) -> io::Result<()> {
            self.below.punch_hole(offset, length)
        }
    }

    #[test]
    fn a_sync_in_the_middle_of_a_write_is_none_of_it() {
        type Write = fn(&Space, u64, Bytes) -> Result<()>;
        let ways: [Write; 3] = [
            |space, block, bytes| space.write(block, &bytes),
            |space, block, bytes| space.write_pieces(block, &[bytes]),
            |space, block, bytes| space.write_past(block, &bytes),
        ];
        for write in ways {
            let disk = SyncDuringWrite {
                below: SimDisk::new(1 << 30),
                space: Arc::default(),
            };
            let shared: Arc<dyn Disk> = Arc::new(disk.clone());
            let room = Arc::new(Room::new(Arc::clone(&shared), 0, 0).unwrap());
            let space = Arc::new(Space::open(shared, room, &|_| Ok(None)).unwrap());
            disk.space.set(Arc::downgrade(&space)).unwrap();
            let block = space.allocate(1, &|_| Ok(None)).unwrap().runs()[0].start;
            let bytes = Bytes::from(vec![7; BLOCK_BYTES as usize]);
            write(&space, block, bytes.clone()).unwrap();
            // Like the change that names the block.
            space.sync().unwrap();
            let file = disk.below.power_cut(None).open("blocks.0").unwrap();
            let mut read = vec![0; bytes.len()];
            file.read_at(&mut read, block * BLOCK_BYTES).unwrap();
            assert!(read == bytes, "written, synced, and lost in a power cut");
        }
    }
}
