//! Removing names of files, links and directories.

use std::sync::Arc;

use cellar_wire::ids::Fid;
use cellar_wire::object::Layout;

use crate::dir::dir_error;
use crate::error::{Error, Result};
use crate::operations::create::{apply_dir, check_old_name, gone_status};
use crate::operations::txn::Txn;
use crate::state::ticket::is_nonblocking;
use crate::state::vnode_slots::VnodeSlot;
use crate::types::{Changed, Context, FileType, Removed, VnodeStatus};
use crate::volume::{Locked, Volume};

/// How often an operation retries when names changed while it took its locks.
pub(crate) const LOCK_TRIES: usize = 100;

/// Vnodes to be locked together, in the order that all operations use: directories before files,
/// ascending numbers.
pub(crate) struct LockSet {
    slots: Vec<(Fid, Arc<VnodeSlot>)>,
}

/// The locks of a set.
pub(crate) struct Locks<'c>(Vec<(Fid, Locked<'c>)>);

impl LockSet {
    pub(crate) fn new(volume: &Volume, mut fids: Vec<Fid>) -> Self {
        fids.sort_by_key(|fid| (!fid.vnode.is_directory(), fid.vnode));
        fids.dedup();
        let slots = fids
            .into_iter()
            .map(|fid| (fid, volume.slot(fid.vnode)))
            .collect();
        Self { slots }
    }

    /// Locks them all, and loads the pages of directories.
    pub(crate) fn lock(&self, volume: &Volume) -> Result<Locks<'_>> {
        let mut locks = Vec::with_capacity(self.slots.len());
        for (fid, slot) in &self.slots {
            let mut locked = volume.lock(slot, *fid)?;
            if locked.get(*fid)?.record.kind == FileType::Directory {
                locked.load_dir(volume, *fid)?;
            }
            locks.push((*fid, locked));
        }
        Ok(Locks(locks))
    }
}

impl<'c> Locks<'c> {
    pub(crate) fn of(&self, fid: Fid) -> Result<&Locked<'c>> {
        let found = self.0.iter().find(|(known, _)| *known == fid);
        found.map(|(_, locked)| locked).ok_or(Error::NoVnode(fid))
    }

    pub(crate) fn of_mut(&mut self, fid: Fid) -> Result<&mut Locked<'c>> {
        let found = self.0.iter_mut().find(|(known, _)| *known == fid);
        found.map(|(_, locked)| locked).ok_or(Error::NoVnode(fid))
    }

    /// The vnode that a name in a locked directory has now.
    pub(crate) fn lookup(&self, dir: Fid, name: &[u8]) -> Result<Option<Fid>> {
        let loaded = self.of(dir)?.get(dir)?;
        let image = loaded.dir.as_ref().ok_or(Error::NotDirectory)?;
        let found = image
            .directory()
            .lookup(name)
            .map_err(|e| dir_error(dir, &e))?;
        Ok(found.map(|target| Fid {
            volume: dir.volume,
            vnode: target.vnode,
            uniquifier: target.uniquifier,
        }))
    }

    /// Returns whether a locked directory has no entries of its own.
    pub(crate) fn is_empty(&self, dir: Fid) -> Result<bool> {
        let loaded = self.of(dir)?.get(dir)?;
        let image = loaded.dir.as_ref().ok_or(Error::NotDirectory)?;
        image.directory().is_empty().map_err(|e| dir_error(dir, &e))
    }
}

impl Volume {
    /// Removes a name of a file or link. Removing the last name removes the file.
    ///
    /// `NotFound`, `IsDirectory`, `Invalid`, `ReadOnly`.
    pub fn remove_file(&self, dir: Fid, name: &[u8], context: Context) -> Result<Changed<Removed>> {
        self.remove(dir, name, context, false)
    }

    /// Removes an empty directory.
    ///
    /// `NotFound`, `NotDirectory`, `NotEmpty`, `Invalid`, `ReadOnly`.
    pub fn remove_dir(&self, dir: Fid, name: &[u8], context: Context) -> Result<Changed<Removed>> {
        self.remove(dir, name, context, true)
    }

    fn remove(
        &self,
        dir: Fid,
        name: &[u8],
        context: Context,
        directory: bool,
    ) -> Result<Changed<Removed>> {
        self.check_fid(dir)?;
        self.check_writable()?;
        check_old_name(name)?;
        let _room = self.core.engine.admit(0)?;
        for _ in 0..LOCK_TRIES {
            let child = self.lookup(dir, name)?;
            match (directory, child.vnode.is_directory()) {
                (true, false) => return Err(Error::NotDirectory),
                (false, true) => return Err(Error::IsDirectory),
                _ => {}
            }
            let set = LockSet::new(self, vec![dir, child]);
            let locks = match set.lock(self) {
                // The child was removed between the lookup and the lock.
                Err(Error::NoVnode(fid)) if fid == child && !is_nonblocking() => {
                    if self.lookup(dir, name)? == child {
                        return Err(self.damaged(dir, "an entry names no vnode"));
                    }
                    continue;
                }
                other => other?,
            };
            if locks.lookup(dir, name)? != Some(child) {
                continue;
            }
            return self.remove_locked(locks, dir, name, child, context);
        }
        Err(Error::WouldBlock)
    }

    fn remove_locked(
        &self,
        mut locks: Locks<'_>,
        dir: Fid,
        name: &[u8],
        child: Fid,
        context: Context,
    ) -> Result<Changed<Removed>> {
        let is_directory = child.vnode.is_directory();
        if is_directory && !locks.is_empty(child)? {
            return Err(Error::NotEmpty);
        }
        let mut txn = Txn::begin(self)?;
        let links = if is_directory { -1 } else { 0 };
        let (pages, record) =
            self.stage_dir(&mut txn, locks.of(dir)?, dir, context, links, |edit| {
                edit.directory()
                    .remove(name)
                    .map(drop)
                    .map_err(|e| dir_error(dir, &e))
            })?;
        let unlinked = self.stage_unlink(&mut txn, &locks, child, (dir, name), context)?;
        let now = txn.now();
        let durable = txn.finish(context.now, 0)?;
        let outcome = Removed {
            dir: record.status(self.id(), dir.vnode),
            status: unlinked.status,
            objects: unlinked.objects.clone(),
        };
        apply_dir(locks.of_mut(dir)?, record, pages, now);
        unlinked.apply(&mut locks, child, now)?;
        Ok(Changed { outcome, durable })
    }

    /// Removes one link of a locked vnode, `name` in a directory, within a change. The copies of a
    /// file that is gone are kept (`retired`).
    pub(crate) fn stage_unlink(
        &self,
        txn: &mut Txn<'_>,
        locks: &Locks<'_>,
        child: Fid,
        name: (Fid, &[u8]),
        context: Context,
    ) -> Result<Unlinked> {
        let loaded = locks.of(child)?.get(child)?;
        let status = loaded.record.status(self.id(), child.vnode);
        if child.vnode.is_directory() || loaded.record.link_count <= 1 {
            txn.remove_vnode(child.vnode.0, &loaded.record, loaded.epoch)?;
            txn.charge(-(loaded.record.blocks() as i64), -1);
            self.stage_retired(txn, &loaded.record, child.vnode, name, context.now)?;
            return Ok(Unlinked {
                status: gone_status(status),
                objects: loaded.record.layout.clone(),
                left: None,
            });
        }
        let mut left = loaded.record.clone();
        left.link_count -= 1;
        left.author = context.author;
        left.server_time = context.now;
        txn.put_vnode(child.vnode.0, &left, Some(loaded.epoch));
        Ok(Unlinked {
            status: left.status(self.id(), child.vnode),
            objects: None,
            left: Some(left),
        })
    }
}

/// The result of removing a link within a change.
pub(crate) struct Unlinked {
    pub(crate) status: VnodeStatus,
    /// The objects of a file that is gone.
    pub(crate) objects: Option<Arc<Layout>>,
    left: Option<crate::record::VnodeRecord>,
}

impl Unlinked {
    /// Takes the result into memory.
    pub(crate) fn apply(self, locks: &mut Locks<'_>, child: Fid, now: u64) -> Result<()> {
        let locked = locks.of_mut(child)?;
        match self.left {
            Some(record) => locked.set_record(record, now),
            None => locked.clear(),
        }
        Ok(())
    }
}
