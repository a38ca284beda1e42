//! Small files of a cache directory: many in one file, each in its own slot.
//!
//! To create, open and remove a file costs a file system more than to write its first bytes. On an
//! ext4 from which many files were removed lately it costs half a millisecond, more than the server
//! needs to send the file. Therefore a file of at most [`SLOT`] bytes lies in a *pack*: a sparse
//! file with [`SLOTS`] places. Only written parts of it use space on the disk. Why that is as safe
//! as separate files (`cache_index.rs` has the rules):
//!
//! 1. *No slot is used twice.* A slot belongs to the number of its file, and each number is given
//!    once. Whatever an older index says of a number, the bytes of another file are never taken for
//!    its own.
//! 2. *Unwritten bytes are zero.* Shortening and removal make holes. The rest of an unanswered
//!    write is cut off when the file is recovered.
//! 3. *A file that grows leaves its slot for good.* Its bytes are written to a separate file, which
//!    gets its name in one atomic step. Then the slot is emptied. If a separate file exists, the
//!    slot is ignored.
//! 4. *Bytes that were ever synced are synced again*, with the name of the new file, before the
//!    slot is emptied. A shortening is in the index on the disk before it is done, if any of the
//!    bytes were synced, whatever was changed since. The reason: the index on the disk may end
//!    there. After a crash of the machine a hole is never taken for written bytes
//!    ([`Slots::are_written`] checks). If the name cannot be synced, slot and file both stay until
//!    it can be, or until neither is needed.
//! 5. *A pack without used slots is removed.*

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, SeekFrom};

use crate::backing_store::{Descriptor, writes_reach_disk};

/// The bytes of a slot.
pub(crate) const SLOT: u64 = if cfg!(test) { 4 << 10 } else { 64 << 10 };
/// The slots of a pack.
const SLOTS: u64 = if cfg!(test) { 4 } else { 4_096 };
/// The most packs that stay open.
const OPEN_MAX: usize = 64;
/// The directory of packs, and the name of the file that tests the file system at the start.
const PACKS: &str = "small";
const TRIAL: &str = "trial";

#[derive(Debug, Default)]
struct State {
    /// Slots that are in use, by pack.
    used: HashMap<u64, HashSet<u64>>,
    open: HashMap<u64, Arc<Descriptor>>,
}

/// The slots of one cache directory.
#[derive(Debug)]
pub(crate) struct Slots {
    directory: PathBuf,
    /// Whether the file system can make holes. Without holes, removed files would keep their space.
    works: bool,
    state: Mutex<State>,
}

impl Slots {
    /// Opens the packs of `directory`, and finds the used slots.
    ///
    /// # Errors
    /// The directory cannot be read or written.
    pub(crate) fn open(directory: &Path) -> io::Result<Self> {
        let directory = directory.join(PACKS);
        cellar_private::directory(&directory)?;
        let mut slots = Self {
            works: makes_holes(&directory.join(TRIAL))?,
            directory,
            state: Mutex::default(),
        };
        for file in std::fs::read_dir(&slots.directory)? {
            let file = file?;
            let pack = file.file_name().to_str().and_then(|name| name.parse().ok());
            let known = pack.filter(|pack| slots.path(*pack) == file.path());
            let Some(pack) = known else {
                std::fs::remove_file(file.path())?;
                continue;
            };
            let used = written(&open(&file.path())?)?;
            if used.is_empty() {
                std::fs::remove_file(file.path())?;
            } else {
                slots.state.get_mut().used.insert(pack, used);
            }
        }
        Ok(slots)
    }

    /// Whether new files may be put here.
    pub(crate) fn work(&self) -> bool {
        self.works
    }

    /// The numbers that have a slot in use.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        let state = self.state.lock();
        let all = state.used.iter();
        all.flat_map(|(pack, used)| used.iter().map(move |slot| pack * SLOTS + slot))
            .collect()
    }

    /// Whether the slot of a number is in use.
    pub(crate) fn has(&self, number: u64) -> bool {
        let (pack, slot) = (number / SLOTS, number % SLOTS);
        let state = self.state.lock();
        state
            .used
            .get(&pack)
            .is_some_and(|used| used.contains(&slot))
    }

    /// The pack of a number, and the offset of its slot. The slot counts as used from now on.
    ///
    /// # Errors
    /// The pack cannot be opened.
    pub(crate) fn hold(&self, number: u64) -> io::Result<(Arc<Descriptor>, u64)> {
        let (pack, slot) = (number / SLOTS, number % SLOTS);
        let mut state = self.state.lock();
        let file = self.opened(&mut state, pack)?;
        state.used.entry(pack).or_default().insert(slot);
        Ok((file, slot * SLOT))
    }

    /// Whether all of `start..end` was written.
    ///
    /// # Errors
    /// The pack cannot be read.
    pub(crate) fn are_written(&self, number: u64, start: u64, end: u64) -> io::Result<bool> {
        if start >= end {
            return Ok(true);
        }
        if end > SLOT || !self.has(number) {
            return Ok(false);
        }
        let (file, base) = self.hold(number)?;
        match rustix::fs::seek(&*file, SeekFrom::Hole(base + start)) {
            Ok(hole) => Ok(hole >= base + end),
            // Beyond the end of the pack.
            Err(rustix::io::Errno::NXIO) => Ok(false),
            Err(cause) => Err(cause.into()),
        }
    }

    /// Overwrites `start..end` of a slot with zeros, as a hole.
    ///
    /// # Errors
    /// The disk cannot be written.
    pub(crate) fn clear(&self, number: u64, start: u64, end: u64) -> io::Result<()> {
        let end = end.min(SLOT);
        if start >= end || !self.has(number) {
            return Ok(());
        }
        let (file, base) = self.hold(number)?;
        if !writes_reach_disk() {
            return Ok(());
        }
        make_hole(&file, base + start, base + end)
    }

    /// Frees the slot of a number.
    pub(crate) fn free(&self, number: u64) {
        if let Err(cause) = self.try_free(number) {
            tracing::warn!(number, %cause, "a small file of the cache keeps its room");
        }
    }

    fn try_free(&self, number: u64) -> io::Result<()> {
        let (pack, slot) = (number / SLOTS, number % SLOTS);
        let mut state = self.state.lock();
        let Some(used) = state.used.get_mut(&pack) else {
            return Ok(());
        };
        if !used.remove(&slot) {
            return Ok(());
        }
        if !used.is_empty() {
            let file = self.opened(&mut state, pack)?;
            drop(state);
            return match writes_reach_disk() {
                true => make_hole(&file, slot * SLOT, (slot + 1) * SLOT),
                false => Ok(()),
            };
        }
        state.used.remove(&pack);
        state.open.remove(&pack);
        match writes_reach_disk() {
            true => std::fs::remove_file(self.path(pack)),
            false => Ok(()),
        }
    }

    fn opened(&self, state: &mut State, pack: u64) -> io::Result<Arc<Descriptor>> {
        if let Some(file) = state.open.get(&pack) {
            return Ok(file.clone());
        }
        if state.open.len() >= OPEN_MAX {
            state.open.clear();
        }
        let file = Arc::new(open(&self.path(pack))?);
        state.open.insert(pack, file.clone());
        Ok(file)
    }

    fn path(&self, pack: u64) -> PathBuf {
        self.directory.join(pack.to_string())
    }
}

fn open(path: &Path) -> io::Result<Descriptor> {
    let mut options = cellar_private::options();
    options.read(true).write(true).create(true).truncate(false);
    Ok(Descriptor::new(options.open(path)?))
}

/// The slots of a pack that contain written bytes.
fn written(file: &Descriptor) -> io::Result<HashSet<u64>> {
    let mut used = HashSet::new();
    let mut at = 0;
    loop {
        let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => return Ok(used),
            Err(cause) => return Err(cause.into()),
        };
        let hole = rustix::fs::seek(file, SeekFrom::Hole(data))?;
        used.extend(data / SLOT..hole.div_ceil(SLOT));
        at = hole;
    }
}

/// Makes a hole of `start..end` of a file, which reads as zeros.
pub(super) fn punch(file: impl AsFd, start: u64, end: u64) -> rustix::io::Result<()> {
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, hole, start, end - start)
}

/// Makes a hole, or writes zeros if the file system has no holes.
fn make_hole(file: &Descriptor, start: u64, end: u64) -> io::Result<()> {
    match punch(file, start, end) {
        Err(rustix::io::Errno::OPNOTSUPP) => {
            file.write_all_at(&vec![0; (end - start) as usize], start)
        }
        other => Ok(other?),
    }
}

/// Whether the file system of `trial` makes holes and reports them.
fn makes_holes(trial: &Path) -> io::Result<bool> {
    let file = open(trial)?;
    file.write_all_at(&[1; 8 << 10], 0)?;
    let punched = punch(&file, 0, 4 << 10).is_ok();
    let has_data = rustix::fs::seek(&file, SeekFrom::Data(0)).is_ok_and(|data| data > 0);
    std::fs::remove_file(trial)?;
    Ok(punched && has_data)
}

#[cfg(test)]
mod tests;
