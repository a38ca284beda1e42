//! The table of vnodes, and the index of their files in the cache directory.
//!
//! 1. The table has one [`Vnode`] for each fid that was used. A vnode that was created under
//!    another number has two keys.
//! 2. When there are more than `Options::vnodes_max`, the least recently used quarter is dropped.
//!    Vnodes that other parts of the program refer to stay. A vnode that the kernel was shown is
//!    one of them, so the kernel is asked to release some.
//! 3. Vnodes with dirty bytes or attributes are also in the table of unstored vnodes, which keeps
//!    them in memory until a server has their changes.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use cellar_cachestore::{Body, Index};
use cellar_wire::abort::AbortCode;
use cellar_wire::ids::Fid;

use super::environment::Environment;
use super::lock_order::{Ordered, TABLE, VNODES};
use super::request::refused;
use super::user::{ANONYMOUS, User};
use super::vnode::{Key, Vnode};
use cellar_client::error::{Error, Result};
use cellar_client::volume::Volume;

pub(crate) mod last_use;

/// See the head of the file.
pub(crate) struct VnodeTable {
    env: Arc<Environment>,
    vnodes: Ordered<VNODES, HashMap<Key, Arc<Vnode>>>,
    /// The number of vnodes at which the table drops some.
    drop_at: AtomicUsize,
    /// Vnodes with dirty bytes or attributes.
    unstored: Ordered<TABLE, HashMap<Key, Arc<Vnode>>>,
    /// Counts uses. The order of uses decides which vnodes are dropped.
    ticks: AtomicU64,
    /// The index of the files in the cache directory.
    index: Option<Arc<Index>>,
    /// The lock of the cache directory.
    _lock: Option<File>,
}

impl VnodeTable {
    pub(super) fn new(
        env: Arc<Environment>,
        index: Option<Arc<Index>>,
        lock: Option<File>,
    ) -> Self {
        Self {
            vnodes: Ordered::default(),
            drop_at: AtomicUsize::new(env.options.vnodes_max),
            unstored: Ordered::default(),
            ticks: AtomicU64::new(0),
            index,
            _lock: lock,
            env,
        }
    }

    /// Returns the vnode of a fid. Creates it if the cache does not have it.
    pub(crate) fn vnode(&self, volume: &Arc<Volume>, fid: Fid) -> Result<Arc<Vnode>> {
        let cell = self.env.cells.number(&volume.cell);
        let (cell, name) = cell.ok_or_else(|| Error::UnknownCell(volume.cell.clone()))?;
        let key = (cell, fid);
        let tick = self.ticks.fetch_add(1, Ordering::Relaxed);
        let mut vnodes = self.vnodes.lock();
        if let Some(vnode) = vnodes.get(&key) {
            let vnode = vnode.clone();
            vnode.last_use.set(tick);
            // The kernel may have released vnodes since the last attempt, and no new one comes.
            let (most, few) = self.limits();
            if vnodes.len() > most + few && tick.is_multiple_of(few as u64) {
                self.forget_vnodes(&mut vnodes);
            }
            return Ok(vnode);
        }
        if vnodes.len() >= self.drop_at.load(Ordering::Relaxed) {
            self.forget_vnodes(&mut vnodes);
        }
        let space = self.env.space.clone();
        let body = match &self.index {
            Some(index) => Body::on_disk(index, (name, fid), space),
            None => Body::in_memory(space),
        };
        let left_over = body.recovered().is_some();
        let vnode = Vnode::new(key, volume.clone(), body);
        vnode.last_use.set(tick);
        let vnode = Arc::new(vnode);
        vnodes.insert(key, vnode.clone());
        if left_over {
            self.unstored.lock().insert(key, vnode.clone());
        }
        Ok(vnode)
    }

    /// Returns the vnode of a fid, if the cache has it.
    pub(crate) fn known(&self, cell: u32, fid: Fid) -> Option<Arc<Vnode>> {
        self.vnodes.lock().get(&(cell, fid)).cloned()
    }

    /// Adds another key of a vnode.
    pub(crate) fn insert(&self, key: Key, vnode: &Arc<Vnode>) {
        self.vnodes.lock().insert(key, vnode.clone());
    }

    /// Drops a vnode that no program knows.
    pub(crate) fn remove(&self, key: Key) {
        self.vnodes.lock().remove(&key);
    }

    /// The number of vnodes.
    pub(crate) fn count(&self) -> usize {
        self.vnodes.lock().len()
    }

    /// Calls `visit` for each vnode, under the lock of the table.
    pub(crate) fn for_each(&self, visit: impl FnMut(&Arc<Vnode>)) {
        self.vnodes.lock().values().for_each(visit);
    }

    /// Returns the vnodes for which `is_wanted` holds. It runs under the lock of the table.
    pub(crate) fn matching(&self, is_wanted: impl Fn(&Arc<Vnode>) -> bool) -> Vec<Arc<Vnode>> {
        let vnodes = self.vnodes.lock();
        let wanted = vnodes.values().filter(|vnode| is_wanted(vnode));
        wanted.cloned().collect()
    }

    /// Returns the vnodes for which `is_wanted` holds, the least recently used first.
    pub(crate) fn by_age(&self, is_wanted: impl Fn(&Arc<Vnode>) -> bool) -> Vec<Arc<Vnode>> {
        let mut all = self.matching(is_wanted);
        all.sort_by_key(|vnode| vnode.last_use.tick());
        all
    }

    pub(crate) fn touch(&self, vnode: &Vnode) {
        let tick = self.ticks.fetch_add(1, Ordering::Relaxed);
        vnode.last_use.set(tick);
    }

    /// Returns a number that was not returned before.
    pub(crate) fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::Relaxed)
    }

    /// The index of the files in the cache directory. `None`: the cache is in memory.
    pub(crate) fn index(&self) -> Option<&Arc<Index>> {
        self.index.as_ref()
    }

    /// Notes that a vnode has dirty bytes or attributes.
    pub(crate) fn note_unstored(&self, vnode: &Arc<Vnode>) {
        self.unstored.lock().insert(vnode.key(), vnode.clone());
    }

    /// Notes that no dirty bytes or attributes of the vnode will be stored.
    pub(crate) fn forget_unstored(&self, vnode: &Vnode) {
        self.unstored.lock().remove(&vnode.key());
    }

    /// Removes a vnode without dirty bytes or attributes from the unstored ones. Returns whether it
    /// is clean.
    pub(crate) fn forget_unstored_if_clean(&self, vnode: &Vnode) -> bool {
        let mut unstored = self.unstored.lock();
        let is_changed = vnode.body.lock().is_changed();
        if !is_changed {
            unstored.remove(&vnode.key());
        }
        !is_changed
    }

    /// Returns the vnodes with dirty bytes or attributes.
    pub(crate) fn unstored(&self) -> Vec<Arc<Vnode>> {
        self.unstored.lock().values().cloned().collect()
    }

    /// Returns the user as whom dirty bytes are stored: the last writer.
    pub(crate) async fn writer(&self, vnode: &Arc<Vnode>) -> Result<Arc<User>> {
        if let Some(user) = vnode.state.lock().stores.writer().cloned() {
            return Ok(user);
        }
        let writer = vnode.body.lock().writer();
        if writer == ANONYMOUS {
            return self.env.anonymous();
        }
        let user = self.env.user(writer).await?;
        if user.uid() == ANONYMOUS {
            let what = format!("storing {}: user {writer} has no token", vnode.fid());
            return Err(refused(what, AbortCode::EACCES));
        }
        vnode.state.lock().stores.set_writer(&user);
        Ok(user)
    }

    /// The number of vnodes to remember, and an eighth of it.
    fn limits(&self) -> (usize, usize) {
        let most = self.env.options.vnodes_max;
        (most, (most / 8).max(1))
    }

    /// Drops the least recently used quarter of the vnodes, except those that other parts of the
    /// program still refer to. If these exceptions leave too many vnodes, the watcher is asked to
    /// release some of them. The next attempt follows when the number has grown by an eighth of the
    /// limit, or after as many uses.
    fn forget_vnodes(&self, vnodes: &mut HashMap<Key, Arc<Vnode>>) {
        let mut ages: Vec<u64> = vnodes.values().map(|vnode| vnode.last_use.tick()).collect();
        let quarter = ages.len() / 4;
        if ages.is_empty() {
            return;
        }
        let (_, limit, _) = ages.select_nth_unstable(quarter);
        let limit = *limit;
        let mut held = Vec::new();
        vnodes.retain(|_, vnode| {
            if vnode.last_use.tick() > limit {
                return true;
            }
            let is_held = Arc::strong_count(vnode) > 1;
            if is_held {
                held.push(vnode.clone());
            }
            is_held
        });
        let (most, few) = self.limits();
        let drop_at = most.max(vnodes.len() + few);
        self.drop_at.store(drop_at, Ordering::Relaxed);
        if vnodes.len() + few > most {
            self.env.audience.crowded(held);
        }
        if let Some(index) = &self.index {
            // The files of the dropped vnodes are at rest now. There may be too many of them.
            index.evict(u64::MAX);
        }
    }
}
