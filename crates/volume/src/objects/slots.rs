//! The records of objects that are in use, each behind a lock.

use std::sync::Arc;

use cellar_wire::object::ObjectId;
use hashbrown::HashMap;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::{Shared, key_of};
use crate::error::{Error, Result};
use crate::record::ObjectRecord;
use crate::state::ticket::{PATIENCE, is_nonblocking};

/// Shards of the cache, each with its own lock.
const SHARDS: usize = 16;
/// If a shard has more objects than this, those that are not in use are forgotten.
const SLOTS_MAX: usize = 2048;

/// An object in memory.
pub(super) struct ObjectSlot {
    pub(super) id: ObjectId,
    state: RwLock<CachedRecord>,
}

enum CachedRecord {
    /// Not read yet.
    Unread,
    /// As it is in the table.
    Is(Option<ObjectRecord>),
}

impl CachedRecord {
    fn any(&self) -> Option<&ObjectRecord> {
        match self {
            Self::Is(record) => record.as_ref(),
            Self::Unread => None,
        }
    }

    fn present(&self, id: ObjectId) -> Result<&ObjectRecord> {
        self.any()
            .filter(|record| record.removed == 0)
            .ok_or(Error::NoObject(id))
    }
}

/// The objects in use, and some that were used before.
#[derive(Default)]
pub(super) struct ObjectSlots {
    shards: [Mutex<HashMap<ObjectId, Arc<ObjectSlot>>>; SHARDS],
}

impl ObjectSlots {
    pub(super) fn of(&self, id: ObjectId) -> Arc<ObjectSlot> {
        let mixed = (u64::from(id.vnode.0) << 32 | u64::from(id.serial))
            .wrapping_add(u64::from(id.volume.0))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut shard = self.shards[(mixed >> 60) as usize % SHARDS].lock();
        if let Some(slot) = shard.get(&id) {
            return Arc::clone(slot);
        }
        if shard.len() >= SLOTS_MAX {
            // No other thread has a reference, or gets one while the shard is locked.
            shard.retain(|_, slot| Arc::strong_count(slot) > 1);
        }
        let slot = Arc::new(ObjectSlot {
            id,
            state: RwLock::new(CachedRecord::Unread),
        });
        shard.insert(id, Arc::clone(&slot));
        slot
    }
}

/// The object's record, locked for reading.
pub(super) struct Read<'c>(RwLockReadGuard<'c, CachedRecord>);

/// The object's record, locked for a change.
pub(super) struct Write<'c>(RwLockWriteGuard<'c, CachedRecord>);

impl ObjectSlot {
    fn load(&self, shared: &Shared, known: &mut CachedRecord) -> Result<()> {
        if matches!(known, CachedRecord::Unread) {
            let value = shared.engine.get(&key_of(self.id))?;
            let record = match value.map(|value| ObjectRecord::decode(&value)).transpose() {
                Ok(record) => record,
                Err(error) => return Err(shared.damaged(self.id, &error.to_string())),
            };
            *known = CachedRecord::Is(record);
        }
        Ok(())
    }

    pub(super) fn read(&self, shared: &Shared) -> Result<Read<'_>> {
        {
            let state = match is_nonblocking() {
                true => self.state.try_read_for(PATIENCE),
                false => Some(self.state.read()),
            };
            let state = state.ok_or(Error::WouldBlock)?;
            if matches!(*state, CachedRecord::Is(_)) {
                return Ok(Read(state));
            }
        }
        let mut state = self.lock()?;
        self.load(shared, &mut state)?;
        Ok(Read(RwLockWriteGuard::downgrade(state)))
    }

    fn lock(&self) -> Result<RwLockWriteGuard<'_, CachedRecord>> {
        match is_nonblocking() {
            true => self.state.try_write_for(PATIENCE).ok_or(Error::WouldBlock),
            false => Ok(self.state.write()),
        }
    }

    pub(super) fn write(&self, shared: &Shared) -> Result<Write<'_>> {
        let mut state = self.lock()?;
        self.load(shared, &mut state)?;
        Ok(Write(state))
    }

    /// Like [`Self::write`], for a caller that changes other objects as well: `None` if the record
    /// is damaged, which is recorded.
    pub(super) fn write_sound(&self, shared: &Shared) -> Result<Option<Write<'_>>> {
        match self.write(shared) {
            Err(Error::ObjectIo { .. }) => Ok(None),
            written => written.map(Some),
        }
    }
}

impl Read<'_> {
    /// The record, also of an object that was removed softly.
    pub(super) fn any(&self) -> Option<&ObjectRecord> {
        self.0.any()
    }

    /// The record of an object that is present.
    pub(super) fn present(&self, id: ObjectId) -> Result<&ObjectRecord> {
        self.0.present(id)
    }
}

impl Write<'_> {
    /// The record, also of an object that was removed softly.
    pub(super) fn any(&self) -> Option<&ObjectRecord> {
        self.0.any()
    }

    /// The record of an object that is present.
    pub(super) fn present(&self, id: ObjectId) -> Result<&ObjectRecord> {
        self.0.present(id)
    }

    /// Enters the result of a change.
    pub(super) fn set(&mut self, record: Option<ObjectRecord>) {
        *self.0 = CachedRecord::Is(record);
    }
}
