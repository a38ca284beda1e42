//! A cache of decoded piece records of files that are read.
//!
//! A file's data version rises with every store. So a piece found under (volume instance, vnode,
//! data version, number) can never be out of date. Stale pieces are not looked up any more, and are
//! dropped when room is needed.
//!
//! With this cache, a read of a large file in the system's page cache needs no wait. So the thread
//! that received the request can serve it.

use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::record::Piece;

/// Parts of the cache with a lock each.
const SHARDS: usize = 16;
/// Pieces in each shard: about 1.6 KB each, so 6.5 MB in all. They cover 1 GiB of files.
const PIECES_MAX: usize = 256;

/// The key of a piece: file, version and piece number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PieceName {
    /// Identifies one opening of the volume.
    pub(crate) instance: u32,
    pub(crate) vnode: u32,
    pub(crate) data_version: u64,
    pub(crate) number: u64,
}

/// The cache.
#[derive(Default)]
pub(crate) struct Pieces {
    shards: [Mutex<HashMap<PieceName, Arc<Piece>>>; SHARDS],
}

impl Pieces {
    fn shard(&self, name: &PieceName) -> &Mutex<HashMap<PieceName, Arc<Piece>>> {
        let mixed = (u64::from(name.vnode) << 32 ^ name.number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(mixed >> 60) as usize % SHARDS]
    }

    pub(crate) fn get(&self, name: &PieceName) -> Option<Arc<Piece>> {
        self.shard(name).lock().get(name).cloned()
    }

    /// Drops the pieces of all files with this vnode number: their records changed without a new
    /// version.
    pub(crate) fn forget(&self, vnode: u32) {
        for shard in &self.shards {
            shard.lock().retain(|name, _| name.vnode != vnode);
        }
    }

    pub(crate) fn put(&self, name: PieceName, piece: Arc<Piece>) {
        let mut shard = self.shard(&name).lock();
        if shard.len() >= PIECES_MAX {
            // Any quarter will do: a piece that is still in use costs one lookup in the table.
            let mut count = 0;
            shard.retain(|_, _| {
                count += 1;
                count % 4 != 0
            });
        }
        shard.insert(name, piece);
    }
}
