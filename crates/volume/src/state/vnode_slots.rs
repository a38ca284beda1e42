//! A bounded cache of decoded vnodes, each with the lock that orders changes to it.
//!
//! At any time there is one slot for a vnode of an open volume, so its lock is the vnode's lock. A
//! slot stays while any thread holds a reference to it. The cache drops other slots when there are
//! too many, or when the bodies and pages kept with them are too large. Dropping a slot loses
//! nothing: its contents are in the table.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use hashbrown::HashMap;
use parking_lot::{Mutex, RwLock};

use crate::dir::DirImage;
use crate::record::VnodeRecord;

/// Shards of the cache, each with its own lock.
const SHARDS: usize = 64;
/// The most slots that are examined when one is added and there are too many.
const SWEEP: usize = 16;

/// A vnode's place in memory.
pub(crate) struct VnodeSlot {
    pub(crate) state: RwLock<Option<Loaded>>,
    used: AtomicBool,
}

/// A loaded vnode.
pub(crate) struct Loaded {
    pub(crate) record: VnodeRecord,
    /// The epoch of this version.
    pub(crate) epoch: u64,
    /// The bytes of an inline body, once they were read.
    pub(crate) body: Option<Bytes>,
    /// The pages of a directory, once they were read.
    pub(crate) dir: Option<DirImage>,
    charge: Charge,
}

/// The memory of a slot's body or pages, as counted in the cache's total.
struct Charge {
    total: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A volume instance and a vnode number.
type Name = (u32, u32);

/// All slots of a partition.
pub(crate) struct VnodeSlots {
    shards: Vec<Mutex<Shard>>,
    cells_max: usize,
    bytes_max: usize,
    bytes: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Shard {
    slots: HashMap<Name, Arc<VnodeSlot>>,
    order: Vec<Name>,
    hand: usize,
}

impl VnodeSlots {
    pub(crate) fn new(cells_max: usize, bytes_max: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            cells_max: (cells_max / SHARDS).max(4),
            bytes_max,
            bytes: Arc::default(),
        }
    }

    /// Returns the slot of a vnode, and makes it if there is none.
    pub(crate) fn slot(&self, instance: u32, vnode: u32) -> Arc<VnodeSlot> {
        let name = (instance, vnode);
        let mixed =
            (u64::from(instance) << 32 | u64::from(vnode)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut shard = self.shards[(mixed >> 58) as usize % SHARDS].lock();
        if let Some(slot) = shard.slots.get(&name) {
            if !slot.used.load(Ordering::Relaxed) {
                slot.used.store(true, Ordering::Relaxed);
            }
            return Arc::clone(slot);
        }
        if shard.slots.len() >= self.cells_max
            || self.bytes.load(Ordering::Relaxed) > self.bytes_max
        {
            shard.sweep();
        }
        let slot = Arc::new(VnodeSlot {
            state: RwLock::new(None),
            used: AtomicBool::new(true),
        });
        shard.slots.insert(name, Arc::clone(&slot));
        shard.order.push(name);
        slot
    }

    /// A loaded state without body or pages.
    pub(crate) fn loaded(&self, record: VnodeRecord, epoch: u64) -> Loaded {
        let charge = Charge {
            total: Arc::clone(&self.bytes),
            bytes: 0,
        };
        Loaded {
            record,
            epoch,
            body: None,
            dir: None,
            charge,
        }
    }

    /// Number of slots and bytes of bodies in memory.
    pub(crate) fn size(&self) -> (usize, usize) {
        let slots = self
            .shards
            .iter()
            .map(|shard| shard.lock().slots.len())
            .sum();
        (slots, self.bytes.load(Ordering::Relaxed))
    }
}

impl Loaded {
    /// Updates the charge for body and pages. Called after either changed.
    pub(crate) fn recharge(&mut self) {
        let bytes = self.body.as_ref().map_or(0, Bytes::len)
            + self.dir.as_ref().map_or(0, DirImage::memory);
        let charge = &mut self.charge;
        charge.total.fetch_add(bytes, Ordering::Relaxed);
        charge.total.fetch_sub(charge.bytes, Ordering::Relaxed);
        charge.bytes = bytes;
    }
}

impl Shard {
    /// Drops slots to which no thread has a reference and that were not used since the hand last
    /// passed.
    fn sweep(&mut self) {
        let mut dropped = 0;
        for _ in 0..SWEEP.min(self.order.len()) {
            if self.hand >= self.order.len() {
                self.hand = 0;
            }
            let name = self.order[self.hand];
            let idle = self.slots.get(&name).is_none_or(|slot| {
                Arc::strong_count(slot) == 1 && !slot.used.swap(false, Ordering::Relaxed)
            });
            if idle {
                self.slots.remove(&name);
                self.order.swap_remove(self.hand);
                dropped += 1;
                if dropped == 2 {
                    return;
                }
            } else {
                self.hand += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_stays_bounded_and_keeps_what_is_held() {
        let slots = VnodeSlots::new(SHARDS * 4, 1 << 20);
        let held = slots.slot(1, 1);
        for vnode in 2..10_000 {
            slots.slot(1, vnode);
        }
        assert!(slots.size().0 <= SHARDS * 6, "{}", slots.size().0);
        assert!(Arc::ptr_eq(&held, &slots.slot(1, 1)));
    }
}
