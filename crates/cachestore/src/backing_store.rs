//! The place of cached bytes: memory, or the cache directory.
//!
//! In the directory each cached file is one sparse file, with the bytes at their own offsets. So a
//! complete file can be handed to the kernel as it is, and dropping a part makes a hole. Small
//! files share files (`pack_slots.rs`).

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use crate::pack_slots::{SLOT, Slots, punch};

mod file_io;

pub(crate) use file_io::{Descriptor, syncs, writes_reach_disk};
use file_io::{OPEN, fetch, most_open, put, sync, write_all_at};
#[cfg(test)]
pub(crate) use file_io::{ROOM, SYNCS, WRITES_LEFT};

/// The bytes of a block in memory. Unwritten bytes are zero, as in a sparse file.
const BLOCK: u64 = 64 << 10;

#[derive(Debug)]
pub(crate) enum Backing {
    /// Blocks by number. A block ends after its last written byte.
    Memory(BTreeMap<u64, Vec<u8>>),
    /// The slot of a number, until the bytes exceed a slot.
    Slot {
        slots: Arc<Slots>,
        number: u64,
        /// The path of the separate file for that case.
        path: PathBuf,
    },
    /// A separate file, which is created by the first write.
    Disk {
        path: PathBuf,
        /// Open as long as the cached file is open, unless too many are.
        file: Option<Arc<Descriptor>>,
        /// The former slot, as long as the name of the file may not be on the disk. One of both
        /// must be there.
        slot: Option<(Arc<Slots>, u64)>,
    },
}

impl Backing {
    pub(crate) fn memory() -> Self {
        Self::Memory(BTreeMap::new())
    }

    pub(crate) fn disk(path: PathBuf) -> Self {
        Self::Disk {
            path,
            file: None,
            slot: None,
        }
    }

    /// Reads `length` bytes from `position`. Unwritten bytes are zeros.
    pub(crate) fn read(&mut self, position: u64, length: usize) -> io::Result<Vec<u8>> {
        let bytes = self.get(position, length);
        self.spare();
        bytes
    }

    fn get(&mut self, position: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(length);
        match self {
            Self::Memory(blocks) => {
                for (number, within, start, end) in parts(position, length) {
                    let block = blocks.get(&number).map_or(&[][..], Vec::as_slice);
                    let has = block.get(within..).unwrap_or_default();
                    bytes.extend_from_slice(&has[..has.len().min(end - start)]);
                    bytes.resize(end, 0);
                }
            }
            Self::Slot { slots, number, .. } => {
                if slots.has(*number) {
                    let (file, base) = slots.hold(*number)?;
                    let has = (length as u64).min(SLOT.saturating_sub(position)) as usize;
                    fetch(&file, base + position, has, &mut bytes)?;
                }
                bytes.resize(length, 0);
            }
            Self::Disk { path, file, .. } => {
                fetch(opened(path, file)?, position, length, &mut bytes)?;
            }
        }
        Ok(bytes)
    }

    /// Writes bytes at `position`.
    pub(crate) fn write(&mut self, position: u64, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Memory(blocks) => {
                for (number, within, start, end) in parts(position, bytes.len()) {
                    let block = blocks.entry(number).or_default();
                    if block.len() < within {
                        block.resize(within, 0);
                    }
                    let part = &bytes[start..end];
                    let over = part.len().min(block.len() - within);
                    block[within..within + over].copy_from_slice(&part[..over]);
                    block.extend_from_slice(&part[over..]);
                }
                Ok(())
            }
            Self::Slot { .. } | Self::Disk { .. } => {
                let put = |file: &File, at| write_all_at(file, bytes, at);
                self.write_to_file(position, bytes.len(), put)
            }
        }
    }

    /// Writes consecutive pieces from `position` on.
    pub(crate) fn write_all(&mut self, position: u64, pieces: &[Bytes]) -> io::Result<()> {
        let mut at = position;
        match self {
            Self::Memory(blocks) => {
                let length = pieces.iter().map(Bytes::len).sum();
                for (number, within, start, end) in parts(position, length) {
                    let block = blocks.entry(number).or_default();
                    block.reserve_exact((within + end - start).saturating_sub(block.len()));
                }
                for piece in pieces {
                    self.write(at, piece)?;
                    at += piece.len() as u64;
                }
                Ok(())
            }
            Self::Slot { .. } | Self::Disk { .. } => {
                let length = pieces.iter().map(Bytes::len).sum();
                let put = |file: &File, at| put(file, at, pieces);
                self.write_to_file(position, length, put)
            }
        }
    }

    /// Writes `length` bytes into the slot or the file with `put`.
    fn write_to_file(
        &mut self,
        position: u64,
        length: usize,
        put: impl FnOnce(&File, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::Slot { slots, number, .. } => {
                let (file, base) = in_slot(slots, *number, position, length)?;
                match writes_reach_disk() {
                    true => put(&file, base + position),
                    false => Ok(()),
                }
            }
            Self::Disk { path, file, .. } => {
                let file = opened(path, file)?;
                if writes_reach_disk() {
                    put(file, position)?;
                }
                self.spare();
                Ok(())
            }
        }
    }

    /// Drops all bytes from `position` on; they read as zeros.
    pub(crate) fn cut(&mut self, position: u64) -> io::Result<()> {
        match self {
            Self::Memory(blocks) => {
                let first = position / BLOCK;
                drop(blocks.split_off(&(first + 1)));
                if let Some(block) = blocks.get_mut(&first) {
                    block.truncate((position % BLOCK) as usize);
                }
                Ok(())
            }
            Self::Slot { slots, number, .. } => slots.clear(*number, position, SLOT),
            Self::Disk { path, file, .. } => {
                let file = opened(path, file)?;
                if writes_reach_disk() {
                    file.set_len(position)?;
                }
                self.spare();
                Ok(())
            }
        }
    }

    /// Does the same for a slot. A separate file was cut at the start of the process.
    pub(crate) fn cut_slot(&mut self, position: u64) -> io::Result<()> {
        match self {
            Self::Slot { .. } => self.cut(position),
            _ => Ok(()),
        }
    }

    /// Overwrites `start..end` with zeros.
    pub(crate) fn zero(&mut self, start: u64, end: u64) -> io::Result<()> {
        if start >= end {
            return Ok(());
        }
        match self {
            Self::Memory(blocks) => {
                for (number, block) in blocks.range_mut(start / BLOCK..end.div_ceil(BLOCK)) {
                    let at = |position: u64| {
                        let within = position.saturating_sub(number * BLOCK);
                        (within as usize).min(block.len())
                    };
                    let part = at(start)..at(end);
                    block[part].fill(0);
                }
                Ok(())
            }
            Self::Slot { slots, number, .. } => slots.clear(*number, start, end),
            Self::Disk { path, file, .. } => {
                let file = opened(path, file)?;
                if writes_reach_disk() && punch(file, start, end).is_err() {
                    let zeros = vec![0; BLOCK as usize];
                    let mut at = start;
                    while at < end {
                        let count = (end - at).min(BLOCK);
                        file.write_all_at(&zeros[..count as usize], at)?;
                        at += count;
                    }
                }
                self.spare();
                Ok(())
            }
        }
    }

    /// Frees the space of `start..end`. Later reads of the range return undefined bytes.
    pub(crate) fn discard(&mut self, start: u64, end: u64) -> io::Result<()> {
        match self {
            Self::Memory(blocks) => {
                // Only blocks that lie completely in the range.
                let (first, last) = (start.div_ceil(BLOCK), end / BLOCK);
                blocks.retain(|number, _| *number < first || *number >= last);
                Ok(())
            }
            Self::Slot { slots, number, .. } => slots.clear(*number, start, end),
            Self::Disk { path, file, .. } => {
                let file = opened(path, file)?;
                if !writes_reach_disk() {
                    return Ok(());
                }
                match punch(file, start, end) {
                    // The space stays in use until the file is removed.
                    Err(rustix::io::Errno::OPNOTSUPP) => {}
                    other => other?,
                }
                self.spare();
                Ok(())
            }
        }
    }

    /// Closes the file if too many are open.
    fn spare(&mut self) {
        if OPEN.load(Ordering::Relaxed) > most_open() {
            self.close();
        }
    }

    /// Closes the descriptor.
    pub(crate) fn close(&mut self) {
        if let Self::Disk { file, .. } = self {
            *file = None;
        }
    }

    /// A descriptor of the separate file; `None` if there is none.
    pub(crate) fn file(&mut self) -> io::Result<Option<File>> {
        match self {
            Self::Memory(_) | Self::Slot { .. } => Ok(None),
            Self::Disk { path, file, .. } => opened(path, file)?.try_clone().map(Some),
        }
    }

    /// The file to sync; `None` in memory.
    pub(crate) fn synced_file(&mut self) -> io::Result<Option<File>> {
        match self {
            Self::Slot { slots, number, .. } => slots.hold(*number)?.0.try_clone().map(Some),
            _ => {
                self.leave_slot()?;
                self.file()
            }
        }
    }

    /// Syncs the name of a separate file and frees the former slot. Without that, a crash could
    /// bring the old bytes of the slot back in place of the synced file.
    ///
    /// # Errors
    /// The name may not be on the disk.
    pub(crate) fn leave_slot(&mut self) -> io::Result<()> {
        if let Self::Disk { path, slot, .. } = self
            && let Some((slots, number)) = slot
        {
            sync(&File::open(parent(path)?)?)?;
            slots.free(*number);
            *slot = None;
        }
        Ok(())
    }

    /// Whether the bytes are, or will be, in a separate file.
    pub(crate) fn has_own_file(&self) -> bool {
        matches!(self, Self::Disk { .. })
    }

    /// Prepares for bytes up to `end`. If a slot is too short for them, its first `length` bytes
    /// move to a separate file. With `synced`, that file is synced.
    ///
    /// Returns whether the bytes moved without a sync. Then a sync under way covers only the old
    /// place.
    ///
    /// # Errors
    /// The bytes stay in the slot.
    pub(crate) fn make_fit(&mut self, end: u64, length: u64, synced: bool) -> io::Result<bool> {
        let Self::Slot {
            slots,
            number,
            path,
        } = self
        else {
            return Ok(false);
        };
        if end <= SLOT {
            return Ok(false);
        }
        let mut own = None;
        let mut slot = None;
        let moves = slots.has(*number);
        if moves {
            let part = path.with_added_extension("part");
            let copied = copy(slots, *number, length.min(SLOT) as usize, &part, synced);
            // The directory is opened before the rename. After the rename the slot is ignored, and
            // must not be written.
            let directory = copied.and_then(|file| {
                own = file;
                let directory = File::open(parent(path)?)?;
                if writes_reach_disk() {
                    std::fs::rename(&part, &*path)?;
                }
                Ok(directory)
            });
            let directory = directory.inspect_err(|_| {
                let _also = std::fs::remove_file(&part);
            })?;
            match synced.then(|| sync(&directory)) {
                Some(Err(cause)) => {
                    tracing::warn!(number, %cause, "the cache cannot be synced");
                    slot = Some((slots.clone(), *number));
                }
                _ => slots.free(*number),
            }
        }
        *self = Self::Disk {
            path: std::mem::take(path),
            file: own,
            slot,
        };
        self.spare();
        Ok(moves && !synced)
    }

    /// Removes the bytes.
    pub(crate) fn remove(&mut self) {
        match self {
            Self::Memory(blocks) => blocks.clear(),
            Self::Slot { slots, number, .. } => slots.free(*number),
            Self::Disk { path, file, slot } => {
                *file = None;
                if let Some((slots, number)) = slot.take() {
                    slots.free(number);
                }
                if !writes_reach_disk() {
                    return;
                }
                match std::fs::remove_file(&*path) {
                    Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
                        tracing::warn!(path = %path.display(), %cause, "a file of the cache stays");
                    }
                    _ => {}
                }
            }
        }
    }
}

fn opened<'a>(path: &Path, file: &'a mut Option<Arc<Descriptor>>) -> io::Result<&'a File> {
    if let Some(file) = file {
        return Ok(file);
    }
    let new = Arc::new(Descriptor::new(create_file(path)?));
    Ok(file.insert(new))
}

/// Copies a slot to a new file with a temporary name. `None` in a test that has killed the process.
fn copy(
    slots: &Slots,
    number: u64,
    length: usize,
    part: &Path,
    synced: bool,
) -> io::Result<Option<Arc<Descriptor>>> {
    let (pack, base) = slots.hold(number)?;
    let mut bytes = Vec::with_capacity(length);
    fetch(&pack, base, length, &mut bytes)?;
    if !writes_reach_disk() {
        return Ok(None);
    }
    let file = Descriptor::new(create_file(part)?);
    file.set_len(0)?;
    file.write_all_at(&bytes, 0)?;
    if synced {
        sync(&file)?;
    }
    Ok(Some(Arc::new(file)))
}

fn parent(path: &Path) -> io::Result<&Path> {
    let parent = path.parent();
    parent.ok_or_else(|| io::Error::other("a file of the cache lies in no directory"))
}

fn create_file(path: &Path) -> io::Result<File> {
    #[cfg(test)]
    if WRITES_LEFT.get().1 && !path.exists() {
        // A killed process creates no file.
        return tempfile::tempfile();
    }
    let mut options = cellar_private::options();
    options.read(true).write(true).create(true).truncate(false);
    options.open(path)
}

/// The pack, and the offset of the slot, for a write of `length` bytes.
fn in_slot(
    slots: &Slots,
    number: u64,
    position: u64,
    length: usize,
) -> io::Result<(Arc<Descriptor>, u64)> {
    if position + length as u64 > SLOT {
        return Err(io::Error::other("more than a slot of the cache has"));
    }
    slots.hold(number)
}

/// The blocks of `length` bytes from `position`: number, first byte in the block, and range of the
/// bytes.
fn parts(position: u64, length: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done >= length {
            return None;
        }
        let at = position + done as u64;
        let within = (at % BLOCK) as usize;
        let count = (length - done).min(BLOCK as usize - within);
        let part = (at / BLOCK, within, done, done + count);
        done += count;
        Some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_disk_hold_the_same() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut memory = Backing::memory();
        let mut disk = Backing::disk(directory.path().join("1"));
        let bytes: Vec<u8> = (0..200_000u32).map(|i| i as u8).collect();
        let mut same = |what: &mut dyn FnMut(&mut Backing) -> io::Result<()>| {
            let mut contents = Vec::new();
            for backing in [&mut memory, &mut disk] {
                what(backing).expect("works");
                contents.push(backing.read(3, 400_000).expect("read"));
            }
            assert!(contents[0] == contents[1]);
            contents.swap_remove(0)
        };
        same(&mut |b| b.write(100, &bytes));
        same(&mut |b| b.write(300_000, &bytes[..10]));
        let all = same(&mut |b| b.cut(150_000));
        assert_eq!(all[150_000 - 4], bytes[149_899]);
        assert!(all[150_000 - 3..].iter().all(|byte| *byte == 0));
        same(&mut |b| b.write(149_990, &bytes[..100]));
        let all = same(&mut |b| b.zero(149_000, 149_995));
        assert_eq!((all[149_994 - 3], all[149_995 - 3]), (0, 5));
        same(&mut |b| {
            b.close();
            Ok(())
        });
    }
}
