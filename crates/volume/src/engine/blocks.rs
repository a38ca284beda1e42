//! Bytes in blocks, independent of their owner: writing them, and reading them back with a
//! comparison of their checksums.
//!
//! As bytes come in, those that fill whole blocks are written to blocks that nothing names yet. The
//! caller merges the bytes at the edges with the present contents when the change is made.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

use crate::engine::Engine;
use crate::engine::batch::Run;
use crate::engine::memory::with_sheet;
use crate::engine::space::Allocation;
use crate::error::Result;
use crate::record::{BLOCK, BlockRef, PIECE_BLOCKS, PieceBlocks, block_checksum};
use crate::state::ticket::is_nonblocking;

/// Bytes gathered before blocks are written.
const GATHER_BYTES: usize = 512 << 10;
/// The epoch of a block that was written before its change has begun.
const EPOCH_UNKNOWN: u64 = 0;

/// The owner of blocks. Checksums cover it, beside the bytes and their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    group: u32,
    vnode: u32,
}

impl Owner {
    /// A vnode of a volume group.
    pub(crate) fn vnode(group: u32, vnode: u32) -> Self {
        Self { group, vnode }
    }

    /// An object of a device.
    pub(crate) fn object(number: u64) -> Self {
        Self {
            group: (number >> 32) as u32,
            vnode: number as u32,
        }
    }

    /// The checksum that the bytes of its block `index` must have.
    pub(crate) fn checksum(self, index: u64, bytes: &[u8]) -> u32 {
        block_checksum(self.group, self.vnode, index, bytes)
    }
}

/// The reason why bytes could not be read.
pub(crate) enum ReadFailure {
    /// The read would have to wait, and must not.
    WouldBlock,
    /// The message of the system or of the checksum comparison.
    Damaged(String),
}

/// Whether bytes go through the system's page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheMode {
    /// They are kept in the page cache for the next reader.
    Cached,
    /// Pages that are in the page cache already are used, but none are added. For large amounts
    /// that are read or written once.
    DontCache,
}

/// Reads the blocks of a piece that fall into a buffer. The buffer begins at block `first` of the
/// body, the piece at block `base`.
pub(crate) fn read_blocks(
    engine: &Engine,
    owner: Owner,
    blocks: &PieceBlocks,
    base: u64,
    first: u64,
    buffer: &mut [u8],
    cache_mode: CacheMode,
) -> Result<(), ReadFailure> {
    let last = first + (buffer.len() / BLOCK) as u64;
    for (place, run) in blocks.runs() {
        let start = (base + place as u64).max(first);
        let end = (base + place as u64 + u64::from(run.count)).min(last);
        if start >= end {
            continue;
        }
        let inside = run.start + (start - base - place as u64);
        let at = (start - first) as usize * BLOCK;
        let target = &mut buffer[at..at + (end - start) as usize * BLOCK];
        let read = match cache_mode {
            CacheMode::DontCache if !is_nonblocking() => engine.space.read_past(inside, target),
            _ => engine.space.read(inside, target, is_nonblocking()),
        };
        read.map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock => ReadFailure::WouldBlock,
            _ => ReadFailure::Damaged(error.to_string()),
        })?;
        for (offset, bytes) in target.chunks_exact(BLOCK).enumerate() {
            let index = start + offset as u64;
            let expected = blocks.0[(index - base) as usize].map(|slot| slot.checksum);
            if expected != Some(owner.checksum(index, bytes)) {
                return Err(ReadFailure::Damaged(mismatch(index)));
            }
        }
    }
    Ok(())
}

/// Returns whether pieces name all of `count` blocks of the body from `first` on. Otherwise there
/// are holes.
pub(crate) fn are_whole<'p>(
    pieces: impl Iterator<Item = (u64, &'p PieceBlocks)>,
    first: u64,
    count: usize,
) -> bool {
    let named = pieces.map(|(number, piece)| {
        let base = number * PIECE_BLOCKS as u64;
        let inside = |index: u64| index.saturating_sub(base).min(PIECE_BLOCKS as u64) as usize;
        let there = &piece.0[inside(first)..inside(first + count as u64)];
        there.iter().filter(|slot| slot.is_some()).count()
    });
    named.sum::<usize>() == count
}

/// Reads a block from the device. Returns what is wrong with it, if anything.
pub(crate) fn block_damage(
    engine: &Engine,
    owner: Owner,
    index: u64,
    slot: &BlockRef,
) -> Option<String> {
    let mut bytes = vec![0; BLOCK];
    match engine.space.read_stored(slot.block, &mut bytes) {
        Err(error) => Some(error.to_string()),
        Ok(()) if owner.checksum(index, &bytes) == slot.checksum => None,
        Ok(()) => Some(mismatch(index)),
    }
}

fn mismatch(index: u64) -> String {
    format!("block {index} does not match its checksum")
}

/// Bytes that arrive in several parts: those already in blocks, and those in memory.
pub(crate) struct Gathered {
    owner: Owner,
    cache_mode: CacheMode,
    /// Position of the first byte.
    position: u64,
    /// Bytes before the first whole block, once whole blocks were written.
    head: Bytes,
    pub(crate) blocks: Vec<(u64, BlockRef)>,
    pub(crate) allocations: Vec<Allocation>,
    /// Bytes that are not in blocks; the position of the first is `pending_at`.
    pub(crate) pending: Vec<Bytes>,
    pending_bytes: usize,
    pending_at: u64,
}

impl Gathered {
    /// No bytes yet; the first will have this `position`.
    pub(crate) fn new(owner: Owner, cache_mode: CacheMode, position: u64) -> Self {
        Self {
            owner,
            cache_mode,
            position,
            head: Bytes::new(),
            blocks: Vec::new(),
            allocations: Vec::new(),
            pending: Vec::new(),
            pending_bytes: 0,
            pending_at: position,
        }
    }

    /// Takes the next bytes. May write to the disk.
    pub(crate) fn push(&mut self, engine: &Engine, bytes: Bytes) -> Result<()> {
        if !bytes.is_empty() {
            self.pending_bytes += bytes.len();
            self.pending.push(bytes);
        }
        if self.pending_bytes >= GATHER_BYTES {
            self.write_whole_blocks(engine)?;
        }
        Ok(())
    }

    /// Splits off the bytes behind the last whole block, as the beginning of another `Gathered`.
    pub(crate) fn split_rest(&mut self) -> Self {
        Self {
            pending: std::mem::take(&mut self.pending),
            pending_bytes: std::mem::take(&mut self.pending_bytes),
            ..Self::new(self.owner, self.cache_mode, self.pending_at)
        }
    }

    /// The owner of the bytes.
    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// Position of the first byte.
    pub(crate) fn begin(&self) -> u64 {
        self.position
    }

    /// Position behind the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.pending_at + self.pending_bytes as u64
    }

    /// Takes `count` bytes off the front of the pending bytes, in the parts in which they came.
    fn take_pending(&mut self, count: usize) -> Vec<Bytes> {
        self.pending_bytes -= count;
        self.pending_at += count as u64;
        let (mut left, mut whole) = (count, 0);
        while let Some(piece) = self.pending.get(whole)
            && piece.len() <= left
        {
            left -= piece.len();
            whole += 1;
        }
        let mut taken: Vec<Bytes> = self.pending.drain(..whole).collect();
        if left > 0 {
            taken.extend(self.pending.first_mut().map(|piece| piece.split_to(left)));
        }
        taken
    }

    /// Writes the whole blocks among the pending bytes to new blocks.
    pub(crate) fn write_whole_blocks(&mut self, engine: &Engine) -> Result<()> {
        let lead = (self.pending_at.next_multiple_of(BLOCK as u64) - self.pending_at) as usize;
        if self.pending_bytes < lead + BLOCK {
            return Ok(());
        }
        if lead > 0 {
            self.head = self.take_pending(lead).concat().into();
        }
        let count = self.pending_bytes / BLOCK;
        for run in self.allocate(engine, count as u32)? {
            let first = self.pending_at / BLOCK as u64;
            let pieces = self.take_pending(run.count as usize * BLOCK);
            match self.cache_mode {
                CacheMode::Cached => {
                    engine.space.write_pieces(run.start, &pieces)?;
                    self.name(first, run, pieces.iter().map(|piece| &piece[..]));
                }
                CacheMode::DontCache => with_sheet(|sheet| -> Result<()> {
                    sheet.fill(run.count as usize * BLOCK, |out| {
                        pieces.iter().for_each(|piece| out.extend_from_slice(piece));
                    });
                    engine.space.write_past(run.start, sheet.bytes())?;
                    self.name(first, run, std::iter::once(sheet.bytes()));
                    Ok(())
                })?,
            }
        }
        Ok(())
    }

    /// Records a run of blocks that hold these bytes, as the blocks of the body from `first` on.
    fn name<'p>(&mut self, first: u64, run: Run, mut pieces: impl Iterator<Item = &'p [u8]>) {
        let mut rest: &[u8] = &[];
        for (index, block) in (first..).zip(run.start..run.end()) {
            let mut checksum = self.owner.checksum(index, &[]);
            let mut missing = BLOCK;
            while missing > 0 {
                if rest.is_empty() {
                    match pieces.next() {
                        Some(piece) => rest = piece,
                        None => break,
                    }
                }
                let (part, behind) = rest.split_at(missing.min(rest.len()));
                checksum = crc32c::crc32c_append(checksum, part);
                missing -= part.len();
                rest = behind;
            }
            let epoch = EPOCH_UNKNOWN;
            let place = BlockRef {
                block,
                checksum,
                epoch,
            };
            self.blocks.push((index, place));
        }
    }

    fn place(&self, index: u64, block: u64, bytes: &[u8]) -> BlockRef {
        BlockRef {
            block,
            checksum: self.owner.checksum(index, bytes),
            epoch: EPOCH_UNKNOWN,
        }
    }

    fn allocate(&mut self, engine: &Engine, count: u32) -> Result<Vec<Run>> {
        let allocation = engine.space.allocate(count, &|key| engine.get(key))?;
        let runs = allocation.runs().to_vec();
        self.allocations.push(allocation);
        Ok(runs)
    }

    /// Numbers of the blocks that are written completely.
    pub(crate) fn whole_range(&self) -> Range<u64> {
        let first = self.blocks.first().map_or(0, |(index, _)| *index);
        first..first + self.blocks.len() as u64
    }

    /// Reads the bytes from position `at` on, which must be before the end: up to the end of the
    /// head, of a run of blocks, or of a pending part, and about `most` bytes.
    pub(crate) fn read_back(
        &self,
        engine: &Engine,
        at: u64,
        most: usize,
    ) -> Result<Bytes, ReadFailure> {
        let head = self.position + self.head.len() as u64;
        if at < head {
            return Ok(self.head.slice((at - self.position) as usize..));
        }
        if at < self.pending_at {
            return self.read_blocks_back(engine, at, most);
        }
        let mut begin = self.pending_at;
        for part in &self.pending {
            let end = begin + part.len() as u64;
            if at < end {
                return Ok(part.slice((at - begin) as usize..));
            }
            begin = end;
        }
        Ok(Bytes::new())
    }

    /// Reads from a position in the whole blocks, up to the end of a run.
    fn read_blocks_back(
        &self,
        engine: &Engine,
        at: u64,
        most: usize,
    ) -> Result<Bytes, ReadFailure> {
        let index = at / BLOCK as u64;
        let inside = (at % BLOCK as u64) as usize;
        let from = (index - self.whole_range().start) as usize;
        let named = self.blocks.get(from..).unwrap_or_default();
        let Some((_, first)) = named.first() else {
            return Err(ReadFailure::Damaged("a block is missing".into()));
        };
        let follows = |(next, (_, place)): &(u64, &(u64, BlockRef))| place.block == *next;
        let run = (first.block..).zip(named).take_while(follows).count();
        let count = run.min((most / BLOCK).max(1));
        let mut bytes = vec![0; count * BLOCK];
        let read = engine.space.read(first.block, &mut bytes, is_nonblocking());
        read.map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock => ReadFailure::WouldBlock,
            _ => ReadFailure::Damaged(error.to_string()),
        })?;
        for ((index, place), block) in named.iter().zip(bytes.chunks_exact(BLOCK)) {
            if self.owner.checksum(*index, block) != place.checksum {
                return Err(ReadFailure::Damaged(mismatch(*index)));
            }
        }
        Ok(Bytes::from(bytes).slice(inside..))
    }

    /// The bytes that fill no whole block, with their offsets.
    fn edges(&self) -> Vec<(u64, Bytes)> {
        let mut edges = Vec::new();
        if !self.head.is_empty() {
            edges.push((self.position, self.head.clone()));
        }
        let mut at = self.pending_at;
        for chunk in &self.pending {
            edges.push((at, chunk.clone()));
            at += chunk.len() as u64;
        }
        edges
    }

    /// Enters the bytes that fill no whole block into the new contents of their blocks. If `fresh`
    /// does not have a block yet, `old` returns its present contents.
    pub(crate) fn merge_edges(
        &self,
        fresh: &mut BTreeMap<u64, Vec<u8>>,
        mut old: impl FnMut(u64) -> Result<Vec<u8>>,
    ) -> Result<()> {
        let block = BLOCK as u64;
        for (mut offset, bytes) in self.edges() {
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let index = offset / block;
                let inside = (offset % block) as usize;
                let count = (BLOCK - inside).min(rest.len());
                let target = match fresh.entry(index) {
                    std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
                    std::collections::btree_map::Entry::Vacant(slot) => slot.insert(old(index)?),
                };
                target[inside..inside + count].copy_from_slice(&rest[..count]);
                offset += count as u64;
                rest = &rest[count..];
            }
        }
        Ok(())
    }

    /// Writes the blocks that were composed for the change.
    pub(crate) fn write_edges(
        &mut self,
        engine: &Engine,
        fresh: BTreeMap<u64, Vec<u8>>,
    ) -> Result<Vec<(u64, BlockRef)>> {
        let mut written = Vec::with_capacity(fresh.len());
        for (index, bytes) in fresh {
            // Seldom more than two blocks, seldom adjacent.
            for run in self.allocate(engine, 1)? {
                engine.space.write(run.start, &bytes)?;
                written.push((index, self.place(index, run.start, &bytes)));
            }
        }
        Ok(written)
    }
}
