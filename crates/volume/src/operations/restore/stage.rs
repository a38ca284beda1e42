//! Gathers the records that a restore writes into batches of limited size.

use std::sync::Arc;

use bytes::Bytes;
use cellar_wire::ids::{Uniquifier, VnodeId};
use hashbrown::HashSet;

use crate::engine::batch::Batch;
use crate::engine::key::Key;
use crate::engine::space::Allocation;
use crate::error::{Error, Result};
use crate::record::{BLOCK, BlockRef, VnodeRecord, block_checksum};
use crate::volume::Volume;

/// The bytes of records in a batch; with a small journal, at most a quarter of a journal file.
const RECORDS_MAX: usize = 1 << 20;
/// The entries in a batch.
const ENTRIES_MAX: usize = 4096;
/// The bytes in blocks of a batch. Each batch with blocks makes the next journal write wait for a
/// sync of them.
const BLOCK_BYTES_MAX: u64 = 32 << 20;

/// A batch under construction. All its entries are of the restore's epoch.
pub(super) struct Stage {
    volume: Arc<Volume>,
    now: u64,
    batch: Batch,
    bytes: usize,
    allocations: Vec<Allocation>,
    block_bytes: u64,
    /// Vnodes that have a record in the batch.
    vnodes: HashSet<u32>,
    /// The vnode last entered in the index of changes.
    noted: u32,
}

impl Stage {
    pub(super) fn new(volume: Arc<Volume>, now: u64) -> Self {
        Self {
            volume,
            now,
            batch: Batch::new(),
            bytes: 0,
            allocations: Vec::new(),
            block_bytes: 0,
            vnodes: HashSet::new(),
            noted: 0,
        }
    }

    /// The restore's epoch.
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    pub(super) fn volume(&self) -> &Volume {
        &self.volume
    }

    fn group(&self) -> u32 {
        self.volume.group.id.0
    }

    fn put(&mut self, vnode: u32, key: Key, value: Bytes) {
        if self.noted != vnode {
            self.noted = vnode;
            let change = Key::change(self.group(), self.now, vnode);
            self.batch.put(change, Bytes::new());
        }
        self.bytes += value.len();
        self.batch.put(key, value);
    }

    pub(super) fn put_vnode(&mut self, vnode: u32, record: &VnodeRecord) {
        let key = Key::vnode(self.group(), vnode, self.now);
        self.vnodes.insert(vnode);
        self.put(vnode, key, record.encode());
    }

    /// From this epoch on the vnode does not exist. Its body is removed with its last viewer.
    pub(super) fn put_removal(&mut self, vnode: u32) {
        let key = Key::vnode(self.group(), vnode, self.now);
        self.vnodes.insert(vnode);
        self.put(vnode, key, VnodeRecord::encode_removed());
    }

    /// Returns whether the batch has a record of a vnode.
    pub(super) fn has(&self, vnode: u32) -> bool {
        self.vnodes.contains(&vnode)
    }

    pub(super) fn put_piece(&mut self, vnode: u32, body: u32, number: u64, value: Bytes) {
        let key = Key::piece(self.group(), vnode, body, number, self.now);
        self.put(vnode, key, value);
    }

    /// A retired file is in no epoch: it stays if the restore is undone.
    pub(super) fn put_retired(&mut self, vnode: VnodeId, uniquifier: Uniquifier, value: Bytes) {
        let key = Key::retired(self.group(), vnode.0, uniquifier.0);
        self.bytes += value.len();
        self.batch.put(key, value);
    }

    /// Writes those blocks of `bytes` that are not all zeros to new places; the first is block
    /// `first` of the file. Returns the place of each block.
    pub(super) fn write_blocks(
        &mut self,
        vnode: u32,
        first: u64,
        bytes: &[u8],
    ) -> Result<Vec<Option<BlockRef>>> {
        let mut slots: Vec<Option<BlockRef>> = Vec::with_capacity(bytes.len() / BLOCK);
        for (index, block) in (first..).zip(bytes.chunks_exact(BLOCK)) {
            slots.push((!is_zero(block)).then(|| BlockRef {
                block: 0,
                checksum: block_checksum(self.group(), vnode, index, block),
                epoch: self.now,
            }));
        }
        let count = slots.iter().flatten().count();
        if count == 0 {
            return Ok(slots);
        }
        let engine = &self.volume.core.engine;
        let allocation = engine
            .space
            .allocate(count as u32, &|key| engine.get(key))?;
        let mut places = allocation
            .runs()
            .iter()
            .flat_map(|run| run.start..run.end());
        // Blocks that are adjacent both in the file and on the disk are written together.
        let (mut begin, mut start) = (0, 0);
        let mut end = 0;
        for (index, slot) in slots.iter_mut().enumerate() {
            let (Some(slot), at) = (slot, index * BLOCK) else {
                continue;
            };
            let Some(place) = places.next() else { break };
            slot.block = place;
            let follows = end == at && place == start + ((end - begin) / BLOCK) as u64;
            if !follows {
                if end > begin {
                    engine.space.write(start, &bytes[begin..end])?;
                }
                (begin, start) = (at, place);
            }
            end = at + BLOCK;
        }
        engine.space.write(start, &bytes[begin..end])?;
        drop(places);
        self.allocations.push(allocation);
        self.block_bytes += (count * BLOCK) as u64;
        Ok(slots)
    }

    /// Commits the gathered batch if it is large enough.
    pub(super) fn flush_if_full(&mut self) -> Result<()> {
        let journal = self.volume.core.engine.options().journal_bytes as usize;
        let full = self.bytes >= RECORDS_MAX.min(journal / 4)
            || self.batch.entries.len() >= ENTRIES_MAX
            || self.block_bytes >= BLOCK_BYTES_MAX;
        if full { self.flush() } else { Ok(()) }
    }

    /// Commits the gathered batch.
    pub(super) fn flush(&mut self) -> Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let volume = &self.volume;
        let engine = &volume.core.engine;
        let _room = engine.admit(self.batch.encoded_length() as u64)?;
        // The lock prevents that the volume is deleted between the check and the commit. Otherwise
        // entries would remain in its group that are in no index.
        let _state = volume.group.state.read();
        if volume.is_gone() {
            return Err(Error::NoVolume(volume.id()));
        }
        let mut batch = std::mem::take(&mut self.batch);
        batch.wrote_blocks = !self.allocations.is_empty();
        for allocation in &self.allocations {
            batch.taken.extend_from_slice(allocation.runs());
        }
        // It is durable with the last batch: batches become durable in their order.
        let _ticket = engine.commit(batch)?;
        for allocation in self.allocations.drain(..) {
            allocation.hand_over();
        }
        (self.bytes, self.block_bytes) = (0, 0);
        self.vnodes.clear();
        Ok(())
    }

    /// Drops the gathered batch.
    pub(super) fn discard(&mut self) {
        self.batch = Batch::new();
        self.allocations.clear();
    }
}

fn is_zero(block: &[u8]) -> bool {
    let (words, rest) = block.as_chunks::<16>();
    words.iter().all(|word| u128::from_ne_bytes(*word) == 0) && rest.iter().all(|&byte| byte == 0)
}
