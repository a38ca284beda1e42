//! The map of the blocks in use, from which large bodies get their room.
//!
//! Blocks of 4 KiB are numbered consecutively. A region has 16,384 of them, and its bitmap is one
//! value of the table. A region in memory has two bitmaps:
//!
//! * The *image* has the bits that the table is to hold. Only batches change it, in the order in
//!   which they enter the journal. It is written with the changes of its journal file, so the map
//!   and the vnodes are always of the same moment.
//! * *Taken* are the blocks that may not be handed out. These are the blocks of the image, and the
//!   blocks handed out for changes that are not in a batch yet. Released blocks stay taken until
//!   their batch is durable and no reader uses them.
//!
//! It follows that:
//!
//! 1. A block is handed out only when no durable vnode names it and no reader uses it.
//! 2. Blocks that were handed out and not used are free again after a crash.
//! 3. Nothing is scanned at the start.

mod allocation;
mod files;
mod shortage;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::batch::Run;
use super::key::Key;
use super::room::Room;
use crate::disk::Disk;
use crate::error::{Error, Result};
pub(crate) use allocation::{Allocation, Pin};
use files::BlockFile;

/// Bytes of a block.
pub(crate) const BLOCK_BYTES: u64 = 4096;
/// Blocks of a region: 64 MiB, with a bitmap of 2 KiB.
pub(crate) const REGION_BLOCKS: u64 = 16_384;
pub(crate) const WORDS: usize = (REGION_BLOCKS / 64) as usize;
/// Regions of a block file: 4 TiB, a size that every file system supports.
const FILE_REGIONS: u64 = 65_536;
/// The number of regions whose free counts share a value.
pub(crate) const COUNTS_REGIONS: usize = 512;
/// A shorter run is taken only if there is nothing better.
const GOOD_RUN: u32 = 16;
/// The number of regions that are tried for good runs before the map grows.
const REGIONS_TRIED: usize = 16;
/// A region that was not used during this many flushes leaves memory.
const REGION_IDLE_FLUSHES: u64 = 8;

/// The blocks of a region, one bit each.
pub(crate) type Bitmap = [u64; WORDS];

/// Reads the stored value of a key (a region's bitmap or counts).
pub(crate) type Load<'a> = &'a dyn Fn(&Key) -> Result<Option<Bytes>>;

/// The map of all blocks, and the files that hold them.
pub(crate) struct Space {
    disk: Arc<dyn Disk>,
    room: Arc<Room>,
    inner: Mutex<Inner>,
    files: Mutex<HashMap<u64, BlockFile>>,
    /// Free regions without room on the file system.
    unbacked: Mutex<BTreeSet<u32>>,
}

#[derive(Default)]
struct Inner {
    regions: HashMap<u32, Region>,
    /// Free blocks of each region: by its image, and by what may be handed out.
    image_free: Vec<u16>,
    free: Vec<u16>,
    changed_counts: BTreeSet<u32>,
    cursor: usize,
    flushes: u64,
    /// A counter of releases. `readers` counts the readers by its value when they began; `waiting`
    /// has the released runs with its value at their release.
    moment: u64,
    readers: BTreeMap<u64, usize>,
    waiting: VecDeque<(u64, Vec<Run>)>,
}

struct Region {
    taken: Box<Bitmap>,
    image: Box<Bitmap>,
    dirty: bool,
    used_at: u64,
    /// No word before this one has a free block.
    hint: usize,
}

pub(crate) fn region_of(block: u64) -> (u32, usize) {
    (
        (block / REGION_BLOCKS) as u32,
        (block % REGION_BLOCKS) as usize,
    )
}

pub(crate) fn count_free(words: &Bitmap) -> u16 {
    words.iter().map(|word| word.count_zeros()).sum::<u32>() as u16
}

impl Space {
    /// Opens the map that the table holds; `load` reads the table.
    pub(crate) fn open(disk: Arc<dyn Disk>, room: Arc<Room>, load: Load<'_>) -> Result<Self> {
        let mut inner = Inner::default();
        for index in 0.. {
            let Some(value) = load(&Key::region_counts(index))? else {
                break;
            };
            let value = checked(&value)?;
            inner.image_free.extend(
                value
                    .chunks_exact(2)
                    .map(|pair| u16::from_be_bytes([pair[0], pair[1]])),
            );
        }
        inner.free = inner.image_free.clone();
        let names = disk
            .list()
            .map_err(|error| Error::Partition(format!("listing the disk: {error}")))?;
        let space = Self {
            disk,
            room,
            inner: Mutex::new(inner),
            files: Mutex::default(),
            unbacked: Mutex::default(),
        };
        // A file is made before the first durable entry that counts a block of it.
        let in_use = |free: &u16| u64::from(*free) != REGION_BLOCKS;
        if let Some(last) = space.inner.lock().free.iter().rposition(in_use) {
            for number in 0..=last as u64 / FILE_REGIONS {
                let name = format!("blocks.{number}");
                if !names.contains(&name) {
                    return Err(Error::Damaged(format!(
                        "its file '{name}' is missing: restore that file, or the partition's \
                         volumes elsewhere"
                    )));
                }
            }
        }
        let numbers = names.iter().filter_map(|name| name.strip_prefix("blocks."));
        for number in numbers.filter_map(|number| number.parse().ok()) {
            space.open_file(number)?;
        }
        Ok(space)
    }

    /// Hands out `blocks` blocks in as few runs as possible, or returns `DiskFull`.
    pub(crate) fn allocate(self: &Arc<Self>, blocks: u32, load: Load<'_>) -> Result<Allocation> {
        let mut aside = Vec::new();
        let found = self.find_room(blocks, &mut aside, load);
        self.give_back(&aside);
        if matches!(found, Err(Error::DiskFull)) {
            return Err(self.refused());
        }
        found
    }

    /// Finds blocks for which the file system has room. Free blocks behind the end of a file that
    /// cannot grow are put into `aside`, a region at a time, and others are tried.
    fn find_room(
        self: &Arc<Self>,
        blocks: u32,
        aside: &mut Vec<Run>,
        load: Load<'_>,
    ) -> Result<Allocation> {
        loop {
            let mut runs = Vec::new();
            {
                let mut inner = self.inner.lock();
                let taken = self.take_blocks(&mut inner, blocks, aside.is_empty(), &mut runs, load);
                if !matches!(taken, Ok(0)) {
                    // Done under the lock that is held: the drop of an `Allocation` here would wait
                    // for that lock forever.
                    for run in runs {
                        inner.untake(run);
                    }
                    return Err(taken.err().unwrap_or(Error::DiskFull));
                }
            }
            let allocation = Allocation {
                space: Arc::clone(self),
                runs,
            };
            let roomless = |run: &Run| self.ensure_room(*run).err().map(|error| (*run, error));
            let Some((run, error)) = allocation.runs.iter().find_map(roomless) else {
                return Ok(allocation);
            };
            drop(allocation);
            if !matches!(error, Error::DiskFull) {
                return Err(error);
            }
            let end = self.end_of_file(run.start)?;
            let before = aside.len();
            let mut inner = self.inner.lock();
            let mut all = Vec::new();
            let (region, _) = region_of(run.start);
            inner.take(region as usize, REGION_BLOCKS as u32, 1, &mut all, load)?;
            for Run { start, count } in all {
                let within =
                    u32::try_from(end.saturating_sub(start)).map_or(count, |n| n.min(count));
                inner.untake(Run {
                    start,
                    count: within,
                });
                if within < count {
                    aside.push(Run {
                        start: start + u64::from(within),
                        count: count - within,
                    });
                }
            }
            if aside.len() == before {
                return Err(Error::DiskFull);
            }
        }
    }

    /// Takes up to `blocks` blocks into `runs`; also from new regions if `grow` is set. Returns how
    /// many are missing.
    fn take_blocks(
        &self,
        inner: &mut Inner,
        blocks: u32,
        grow: bool,
        runs: &mut Vec<Run>,
        load: Load<'_>,
    ) -> Result<u32> {
        let mut missing = blocks;
        let regions = inner.free.len();
        let mut tried = 0;
        for step in 0..regions {
            if missing == 0 || tried == REGIONS_TRIED {
                break;
            }
            let index = (inner.cursor + step) % regions;
            if u32::from(inner.free[index]) >= missing.min(GOOD_RUN) {
                tried += 1;
                missing -= inner.take(index, missing, GOOD_RUN, runs, load)?;
                if missing == 0 {
                    inner.cursor = index;
                }
            }
        }
        while grow && missing > 0 && self.room.grow(u64::from(missing) * BLOCK_BYTES).is_some() {
            inner.image_free.push(REGION_BLOCKS as u16);
            inner.free.push(REGION_BLOCKS as u16);
            let index = inner.free.len() - 1;
            inner.changed_counts.insert((index / COUNTS_REGIONS) as u32);
            inner.cursor = index;
            missing -= inner.take(index, missing, 1, runs, load)?;
        }
        for index in 0..inner.free.len() {
            if missing == 0 {
                break;
            }
            if inner.free[index] > 0 {
                missing -= inner.take(index, missing, 1, runs, load)?;
            }
        }
        Ok(missing)
    }

    fn give_back(&self, runs: &[Run]) {
        let mut inner = self.inner.lock();
        for run in runs {
            inner.untake(*run);
        }
    }

    /// Enters a batch's changes into the image. Batches come in the order of the journal.
    pub(crate) fn apply(&self, taken: &[Run], released: &[Run], load: Load<'_>) -> Result<()> {
        if taken.is_empty() && released.is_empty() {
            return Ok(());
        }
        let mut inner = self.inner.lock();
        for run in taken {
            inner.set_image(*run, true, load)?;
        }
        for run in released {
            inner.set_image(*run, false, load)?;
        }
        Ok(())
    }

    /// Loads the regions that a release will change, so that `apply` needs no disk access.
    pub(crate) fn prepare(&self, runs: &[Run], load: Load<'_>) -> Result<()> {
        if runs.is_empty() {
            return Ok(());
        }
        let mut inner = self.inner.lock();
        for run in runs {
            for region in region_of(run.start).0..=region_of(run.end() - 1).0 {
                inner.region(region, load)?;
            }
        }
        Ok(())
    }

    /// Frees blocks that a now durable batch has released, once all present readers have ended.
    pub(crate) fn released(&self, runs: Vec<Run>) {
        if runs.is_empty() {
            return;
        }
        let mut inner = self.inner.lock();
        let moment = inner.moment;
        inner.waiting.push_back((moment, runs));
        inner.moment += 1;
        inner.free_released();
    }

    /// Keeps every block that is in use now until the pin is dropped.
    pub(crate) fn pin(self: &Arc<Self>) -> Pin {
        let mut inner = self.inner.lock();
        let moment = inner.moment;
        *inner.readers.entry(moment).or_default() += 1;
        Pin {
            space: Arc::clone(self),
            moment,
        }
    }

    /// Returns the values with which the table gets the changes applied so far.
    pub(crate) fn freeze(&self) -> Vec<(Key, Option<Bytes>)> {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let mut values = Vec::new();
        for (number, region) in &mut inner.regions {
            if std::mem::take(&mut region.dirty) {
                let bytes: Vec<u8> = region.image.iter().flat_map(|w| w.to_be_bytes()).collect();
                values.push((Key::region(*number), Some(with_checksum(bytes))));
            }
        }
        for index in std::mem::take(&mut inner.changed_counts) {
            let start = index as usize * COUNTS_REGIONS;
            let end = (start + COUNTS_REGIONS).min(inner.image_free.len());
            let bytes = inner.image_free[start..end]
                .iter()
                .flat_map(|n| n.to_be_bytes());
            values.push((
                Key::region_counts(index),
                Some(with_checksum(bytes.collect())),
            ));
        }
        inner.flushes += 1;
        let now = inner.flushes;
        inner.regions.retain(|_, region| {
            region.dirty
                || now - region.used_at < REGION_IDLE_FLUSHES
                || region.taken != region.image
        });
        values
    }

    /// Blocks that can be handed out without growing a file.
    pub(crate) fn free_blocks(&self) -> u64 {
        self.inner
            .lock()
            .free
            .iter()
            .map(|&count| u64::from(count))
            .sum()
    }

    /// Returns the runs of blocks that the image has in use, for the consistency check.
    pub(crate) fn image_blocks(&self, load: Load<'_>) -> Result<Vec<Run>> {
        let mut inner = self.inner.lock();
        let mut runs: Vec<Run> = Vec::new();
        for number in 0..inner.image_free.len() as u32 {
            let region = inner.region(number, load)?;
            for bit in 0..REGION_BLOCKS as usize {
                if region.image[bit / 64] >> (bit % 64) & 1 == 1 {
                    let block = u64::from(number) * REGION_BLOCKS + bit as u64;
                    match runs.last_mut() {
                        Some(last) if last.end() == block => last.count += 1,
                        _ => runs.push(Run {
                            start: block,
                            count: 1,
                        }),
                    }
                }
            }
        }
        Ok(runs)
    }
}

/// Appends a checksum.
pub(crate) fn with_checksum(mut bytes: Vec<u8>) -> Bytes {
    let checksum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&checksum.to_be_bytes());
    bytes.into()
}

/// Returns the bytes before the checksum, if the checksum is right.
pub(crate) fn checked(bytes: &Bytes) -> Result<Bytes> {
    if bytes.len() >= 4 {
        let body = bytes.slice(..bytes.len() - 4);
        if crc32c::crc32c(&body).to_be_bytes() == bytes[body.len()..] {
            return Ok(body);
        }
    }
    Err(Error::Format("a record does not match its checksum".into()))
}

/// Decodes the bitmap of a region. Without a value, no block of the region was ever in use.
pub(crate) fn bitmap(value: Option<&Bytes>) -> Result<Box<Bitmap>> {
    let mut words = Box::new([0; WORDS]);
    if let Some(value) = value {
        let value = checked(value)?;
        for (word, bytes) in words.iter_mut().zip(value.as_chunks::<8>().0) {
            *word = u64::from_be_bytes(*bytes);
        }
    }
    Ok(words)
}

impl Inner {
    fn region(&mut self, number: u32, load: Load<'_>) -> Result<&mut Region> {
        let now = self.flushes;
        let region = match self.regions.entry(number) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(slot) => {
                let image = bitmap(load(&Key::region(number))?.as_ref())?;
                slot.insert(Region {
                    taken: image.clone(),
                    image,
                    dirty: false,
                    used_at: now,
                    hint: 0,
                })
            }
        };
        region.used_at = now;
        Ok(region)
    }

    /// Takes up to `wanted` blocks of a region, in runs of at least `good` blocks or of all that
    /// are wanted.
    fn take(
        &mut self,
        index: usize,
        wanted: u32,
        good: u32,
        runs: &mut Vec<Run>,
        load: Load<'_>,
    ) -> Result<u32> {
        let region = self.region(index as u32, load)?;
        let base = index as u64 * REGION_BLOCKS;
        let mut missing = wanted;
        let mut word = region.hint;
        let mut start = None;
        let mut first_free = None;
        let mut bit = word * 64;
        while bit < REGION_BLOCKS as usize && missing > 0 {
            word = bit / 64;
            if bit.is_multiple_of(64) && start.is_none() && region.taken[word] == u64::MAX {
                bit += 64;
                continue;
            }
            let free = region.taken[word] >> (bit % 64) & 1 == 0;
            if free {
                first_free = first_free.or(Some(bit));
                let from = *start.get_or_insert(bit);
                let length = (bit + 1 - from) as u32;
                if length == missing {
                    region.mark(from, length);
                    runs.push(Run {
                        start: base + from as u64,
                        count: length,
                    });
                    missing = 0;
                }
            } else if let Some(from) = start.take() {
                let length = (bit - from) as u32;
                if length >= good.min(missing) {
                    region.mark(from, length);
                    runs.push(Run {
                        start: base + from as u64,
                        count: length,
                    });
                    missing -= length;
                }
            }
            bit += 1;
        }
        if let Some(from) = start.filter(|_| missing > 0) {
            let length = (REGION_BLOCKS as usize - from) as u32;
            if length >= good.min(missing) {
                let length = length.min(missing);
                region.mark(from, length);
                runs.push(Run {
                    start: base + from as u64,
                    count: length,
                });
                missing -= length;
            }
        }
        region.hint = first_free.map_or(WORDS, |bit| bit / 64).min(word);
        self.free[index] -= (wanted - missing) as u16;
        Ok(wanted - missing)
    }

    fn untake(&mut self, run: Run) {
        for block in run.start..run.end() {
            let (number, bit) = region_of(block);
            if let Some(region) = self.regions.get_mut(&number) {
                region.taken[bit / 64] &= !(1 << (bit % 64));
                region.hint = region.hint.min(bit / 64);
                self.free[number as usize] += 1;
            }
        }
    }

    fn set_image(&mut self, run: Run, used: bool, load: Load<'_>) -> Result<()> {
        for block in run.start..run.end() {
            let (number, bit) = region_of(block);
            while self.image_free.len() <= number as usize {
                self.image_free.push(REGION_BLOCKS as u16);
                self.free.push(REGION_BLOCKS as u16);
            }
            let region = self.region(number, load)?;
            let mask = 1 << (bit % 64);
            let was = region.image[bit / 64] & mask != 0;
            if was == used {
                continue;
            }
            region.image[bit / 64] ^= mask;
            region.dirty = true;
            if used && region.taken[bit / 64] & mask == 0 {
                // Only a replay takes blocks that were not handed out before.
                region.taken[bit / 64] |= mask;
                self.free[number as usize] -= 1;
            }
            let free = &mut self.image_free[number as usize];
            *free = if used { *free - 1 } else { *free + 1 };
            self.changed_counts.insert(number / COUNTS_REGIONS as u32);
        }
        Ok(())
    }

    /// Frees the blocks that were released before the oldest reader began.
    fn free_released(&mut self) {
        let oldest = self.readers.keys().next().copied().unwrap_or(u64::MAX);
        while self
            .waiting
            .front()
            .is_some_and(|(moment, _)| *moment < oldest)
        {
            if let Some((_, runs)) = self.waiting.pop_front() {
                for run in runs {
                    self.untake(run);
                }
            }
        }
    }

    /// After a replay there are no readers and everything is durable, so `taken` becomes equal to
    /// the image.
    fn reset(&mut self) {
        for (number, region) in &mut self.regions {
            region.taken = region.image.clone();
            region.hint = 0;
            self.free[*number as usize] = count_free(&region.taken);
        }
    }
}

impl Space {
    /// Ends a replay.
    pub(crate) fn end_replay(&self) {
        self.inner.lock().reset();
    }
}

impl Region {
    fn mark(&mut self, from: usize, length: u32) {
        for bit in from..from + length as usize {
            self.taken[bit / 64] |= 1 << (bit % 64);
        }
    }
}

#[cfg(test)]
mod tests;
