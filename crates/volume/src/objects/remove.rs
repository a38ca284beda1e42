//! Removing objects, softly or permanently.
//!
//! A permanent removal deletes the object's record and leaves a key, by which its pieces are
//! removed in the background, also after a restart.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use cellar_wire::object::ObjectId;

use super::{ObjectStore, Shared, key_of, name_of};
use crate::background::reap::delete_some;
use crate::clock;
use crate::engine::batch::Batch;
use crate::engine::key::{Key, Kind};
use crate::engine::space::BLOCK_BYTES;
use crate::error::{Error, Result};
use crate::record::ObjectRecord;
use crate::state::ticket::Ticket;

/// The most objects that one [`ObjectStore::purge_oldest`] removes.
pub const OLDEST_MAX: usize = 1024;

impl ObjectStore {
    /// Removes objects. With `soft`, [`ObjectStore::undelete`] can restore them. Objects that do
    /// not exist are skipped. Without `soft`, softly removed objects are removed permanently.
    /// Returns the number of removed objects, and the ticket of the last removal.
    pub fn remove(&self, ids: &[ObjectId], soft: bool) -> Result<(u32, Ticket)> {
        let shared = self.shared();
        shared.each(ids, |id, record| match soft {
            true if record.removed != 0 => Ok(None),
            true => {
                let (objects, removed) = (-1, 1);
                let removed_at = ObjectRecord {
                    removed: clock::seconds().max(1),
                    ..record.clone()
                };
                shared.change(id, removed_at, objects, removed).map(Some)
            }
            false => shared.remove(id, record).map(Some),
        })
    }

    /// Restores objects that were removed softly. Returns the number of restored objects.
    pub fn undelete(&self, ids: &[ObjectId]) -> Result<(u32, Ticket)> {
        let shared = self.shared();
        shared.each(ids, |id, record| {
            if record.removed == 0 {
                return Ok(None);
            }
            let back = ObjectRecord {
                removed: 0,
                ..record.clone()
            };
            shared.change(id, back, 1, -1).map(Some)
        })
    }

    /// Permanently removes the objects that were removed softly before this time, in seconds since
    /// 1970. Returns their number.
    pub fn purge(&self, before: u64) -> Result<(u32, Ticket)> {
        let shared = self.shared();
        if shared.device.lock().removed == 0 {
            // There is nothing to find, so the walk over all objects is skipped.
            return Ok((0, Ticket::ready()));
        }
        let prefix = Key::of_kind(Kind::Object);
        let mut walk = shared.engine.walk(&prefix, &prefix);
        let is_due = |record: &ObjectRecord| record.removed != 0 && record.removed < before;
        let (mut purged, mut last) = (0, Ticket::ready());
        while let Some((key, value)) = walk.next()? {
            if !ObjectRecord::decode(&value).is_ok_and(|record| is_due(&record)) {
                continue;
            }
            let (removed, ticket) = shared.each(&[name_of(&key)], |id, record| {
                // It may have been restored meanwhile.
                if !is_due(record) {
                    return Ok(None);
                }
                shared.remove(id, record).map(Some)
            })?;
            if removed > 0 {
                purged += removed;
                last = ticket;
            }
        }
        Ok((purged, last))
    }

    /// Permanently removes the objects that were removed softly the longest time ago, until `bytes`
    /// bytes are freed, and at most [`OLDEST_MAX`] objects. Returns the number of these objects and
    /// of their bytes.
    pub fn purge_oldest(&self, bytes: u64) -> Result<(u32, u64, Ticket)> {
        let shared = self.shared();
        if shared.device.lock().removed == 0 {
            return Ok((0, 0, Ticket::ready()));
        }
        let prefix = Key::of_kind(Kind::Object);
        let mut walk = shared.engine.walk(&prefix, &prefix);
        let mut oldest = BTreeSet::new();
        while let Some((key, value)) = walk.next()? {
            let Ok(record) = ObjectRecord::decode(&value) else {
                continue;
            };
            if record.removed != 0 {
                oldest.insert((record.removed, name_of(&key)));
                if oldest.len() > OLDEST_MAX {
                    oldest.pop_last();
                }
            }
        }
        let (mut purged, mut freed, mut last) = (0, 0, Ticket::ready());
        for (removed_at, id) in oldest {
            if freed >= bytes {
                break;
            }
            let (removed, ticket) = shared.each(&[id], |id, record| {
                // It may have been restored meanwhile.
                if record.removed != removed_at {
                    return Ok(None);
                }
                freed += record.blocks * BLOCK_BYTES;
                shared.remove(id, record).map(Some)
            })?;
            if removed > 0 {
                purged += removed;
                last = ticket;
            }
        }
        Ok((purged, freed, last))
    }

    /// Removes the remains of removed objects now. Returns when that is done and their blocks are
    /// free.
    pub fn reap_now(&self) -> Result<()> {
        let shared = self.shared();
        shared.reap_all()?;
        // Blocks are free when the journal has the removals, including those of the background
        // thread. Groups become durable in order.
        let _room = shared.engine.admit(0)?;
        shared.commit_counted(Batch::new(), 0, 0)?.wait()
    }
}

/// The new record of an object after a change, and the change's ticket.
type ChangedObject = (Option<ObjectRecord>, Ticket);

impl Shared {
    /// Runs `change` on each of these objects that exists, in any state, with its record locked.
    /// Objects with damaged records are skipped.
    fn each(
        &self,
        ids: &[ObjectId],
        mut change: impl FnMut(ObjectId, &ObjectRecord) -> Result<Option<ChangedObject>>,
    ) -> Result<(u32, Ticket)> {
        let (mut changed, mut last) = (0, Ticket::ready());
        for &id in ids {
            let _room = self.engine.admit(0)?;
            let slot = self.slots.of(id);
            let Some(mut state) = slot.write_sound(self)? else {
                continue;
            };
            let Some(record) = state.any() else { continue };
            if let Some((changed_record, ticket)) = change(id, record)? {
                state.set(changed_record);
                changed += 1;
                last = ticket;
            }
        }
        self.reaper.wake();
        Ok((changed, last))
    }

    fn change(
        &self,
        id: ObjectId,
        record: ObjectRecord,
        objects: i64,
        removed: i64,
    ) -> Result<ChangedObject> {
        let mut batch = Batch::new();
        batch.put(key_of(id), record.encode());
        let ticket = self.commit_counted(batch, objects, removed)?;
        Ok((Some(record), ticket))
    }

    /// Removes an object permanently, with its record locked.
    pub(super) fn remove(&self, id: ObjectId, record: &ObjectRecord) -> Result<ChangedObject> {
        let mut batch = Batch::new();
        batch.delete(key_of(id));
        batch.put(Key::reap_object(record.number), bytes::Bytes::new());
        let soft = record.removed != 0;
        let (objects, removed) = if soft { (0, -1) } else { (-1, 0) };
        let ticket = self.commit_counted(batch, objects, removed)?;
        self.damaged.lock().remove(&id);
        Ok((None, ticket))
    }

    /// Works on all pending removals.
    pub(super) fn reap_all(&self) -> Result<()> {
        let _working = self.reaper.hold();
        let prefix = Key::of_kind(Kind::ReapObject);
        while let Some((job, _)) = self.engine.scan(&prefix, &prefix)?.next()? {
            let pieces = Key::object_pieces(job.u64_at(1));
            loop {
                if self.reaper.stopping() {
                    return Ok(());
                }
                let _room = self.engine.admit(0)?;
                let mut batch = Batch::new();
                let looked = delete_some(&self.engine, &pieces, true, &mut batch)?;
                let done = batch.is_empty();
                if done {
                    batch.delete(job);
                }
                self.engine.commit(batch)?;
                if done {
                    break;
                }
                self.reaper.pace(&self.engine, looked);
            }
        }
        Ok(())
    }
}

/// Starts the thread that removes the remains of removed objects.
pub(super) fn spawn(shared: &Arc<Shared>) -> Result<JoinHandle<()>> {
    let shared = Arc::downgrade(shared);
    std::thread::Builder::new()
        .name("object-reap".into())
        .spawn(move || run(&shared))
        .map_err(|error| Error::Partition(format!("starting the background work: {error}")))
}

fn run(shared: &Weak<Shared>) {
    while let Some(shared) = shared.upgrade() {
        if shared.reaper.stopping() || shared.engine.check_running().is_err() {
            return;
        }
        if let Err(error) = shared.reap_all() {
            tracing::warn!(%error, "background removal will be tried again");
        }
        shared.reaper.rest();
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::disk::SimDisk;
    use crate::options::Options;

    #[test]
    fn removed_blocks_are_free_after_reaping() {
        let disk = Arc::new(SimDisk::new(64 << 20));
        let store = ObjectStore::open(disk, Options::default()).unwrap();
        // Counts only the room of bodies on the disk; that of journal and tables varies.
        let free = || store.shared().engine.space.allocated_but_unused();
        let bytes = [Bytes::from(vec![1; 1 << 20])];
        for serial in 1..=100 {
            let id = ObjectId {
                serial,
                ..ObjectId::default()
            };
            store.write(id, 0, 1, 0, &bytes).unwrap().wait().unwrap();
            store.remove(&[id], true).unwrap().1.wait().unwrap();
            let before = free();
            let (purged, freed, durable) = store.purge_oldest(1).unwrap();
            durable.wait().unwrap();
            store.reap_now().unwrap();
            assert_eq!((purged, freed), (1, 1 << 20));
            assert_eq!(free() - before, freed, "{serial}");
        }
    }
}
