//! Vnodes of a volume in memory: read from the table when they are needed, and locked for a change.

use std::sync::atomic::Ordering;

use cellar_wire::ids::Fid;
use parking_lot::{MappedRwLockReadGuard, RwLockReadGuard, RwLockWriteGuard};

use crate::error::{Error, Result};
use crate::record::VnodeRecord;
use crate::state::ticket::{PATIENCE, is_nonblocking};
use crate::state::vnode_slots::{Loaded, VnodeSlot};
use crate::types::FileType;
use crate::volume::Volume;

/// A vnode's slot, locked for a change, with the loaded vnode.
pub(crate) struct Locked<'c> {
    guard: RwLockWriteGuard<'c, Option<Loaded>>,
}

impl Volume {
    /// Loads the vnode into its slot if it is not there.
    fn load(&self, slot: &VnodeSlot, fid: Fid) -> Result<()> {
        let mut state = if is_nonblocking() {
            slot.state
                .try_write_for(PATIENCE)
                .ok_or(Error::WouldBlock)?
        } else {
            slot.state.write()
        };
        if state.is_none() {
            self.core.events.cell_misses.fetch_add(1, Ordering::Relaxed);
            *state = self.read_vnode(fid)?;
        }
        Ok(())
    }

    /// Runs `look` on a loaded vnode; loads it first if necessary.
    pub(crate) fn with<T>(&self, fid: Fid, look: impl FnOnce(&Loaded) -> Result<T>) -> Result<T> {
        self.check_fid(fid)?;
        let slot = self.slot(fid.vnode);
        let loaded = self.read_guard(&slot, fid)?;
        look(&loaded)
    }

    /// The loaded vnode, under its shared lock.
    pub(crate) fn read_guard<'c>(
        &self,
        slot: &'c VnodeSlot,
        fid: Fid,
    ) -> Result<MappedRwLockReadGuard<'c, Loaded>> {
        for _ in 0..2 {
            let state = if is_nonblocking() {
                slot.state.try_read_for(PATIENCE).ok_or(Error::WouldBlock)?
            } else {
                slot.state.read()
            };
            if state.is_some() {
                return match RwLockReadGuard::try_map(state, Option::as_ref) {
                    Ok(loaded) if loaded.record.uniquifier == fid.uniquifier => Ok(loaded),
                    _ => Err(Error::NoVnode(fid)),
                };
            }
            drop(state);
            self.load(slot, fid)?;
        }
        Err(Error::NoVnode(fid))
    }

    /// Locks a vnode for a change.
    pub(crate) fn lock<'c>(&self, slot: &'c VnodeSlot, fid: Fid) -> Result<Locked<'c>> {
        let mut guard = if is_nonblocking() {
            slot.state
                .try_write_for(PATIENCE)
                .ok_or(Error::WouldBlock)?
        } else {
            slot.state.write()
        };
        if guard.is_none() {
            *guard = self.read_vnode(fid)?;
        }
        match guard.as_ref() {
            Some(loaded) if loaded.record.uniquifier == fid.uniquifier => Ok(Locked { guard }),
            _ => Err(Error::NoVnode(fid)),
        }
    }
}

impl Locked<'_> {
    /// The loaded vnode; it exists as long as the lock is held.
    pub(crate) fn get(&self, fid: Fid) -> Result<&Loaded> {
        self.guard.as_ref().ok_or(Error::NoVnode(fid))
    }

    pub(crate) fn get_mut(&mut self, fid: Fid) -> Result<&mut Loaded> {
        self.guard.as_mut().ok_or(Error::NoVnode(fid))
    }

    /// Loads a directory's pages into memory if they are not there.
    pub(crate) fn load_dir(&mut self, volume: &Volume, fid: Fid) -> Result<()> {
        let loaded = self.get_mut(fid)?;
        if loaded.record.kind != FileType::Directory {
            return Err(Error::NotDirectory);
        }
        if loaded.dir.is_none() {
            loaded.dir = Some(volume.read_pages(fid, &loaded.record)?);
            loaded.recharge();
        }
        Ok(())
    }

    /// Records that the vnode is gone.
    pub(crate) fn clear(&mut self) {
        *self.guard = None;
    }

    /// Takes a new version into memory after its batch was accepted.
    pub(crate) fn set_record(&mut self, record: VnodeRecord, epoch: u64) {
        if let Some(loaded) = self.guard.as_mut() {
            loaded.record = record;
            loaded.epoch = epoch;
        }
    }
}
