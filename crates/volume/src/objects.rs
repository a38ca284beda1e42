//! The objects of one storage device.
//!
//! An [`ObjectStore`] is a directory of objects, accessed through a [`Disk`]. Objects are kept as
//! volumes are, with the same journal, table, block map and checksums. The same argument holds that
//! a crash leaves every change either done or not done (`docs/format/volume.md`). Every operation
//! is synchronous and returns a [`Ticket`](crate::Ticket), which resolves when the operation is
//! durable.
//!
//! 1. An object is found by its name. Its record has a number that is given out here, its versions
//!    with their lengths, and dates. Its bytes are pieces by (number, piece, version). A version
//!    sees of each piece the newest one that is not newer than itself. So a version that is made
//!    from another shares with it the pieces that it does not write.
//! 2. The versions of an object are a chain. Only the newest is written. Making a version removes
//!    those between it and its base, which were never finished.
//! 3. Removed versions leave only blocks that another version names. First the record marks them as
//!    ending; from then on they are not visible. Then their pieces are removed in steps. Then the
//!    record forgets them. If there is little to remove, all of this is one change. The pieces of a
//!    removed object are removed in the background, for which the removal leaves a key.
//!
//! Lock order: an object's state, the device's record, then the engine's locks.

mod check;
mod list;
mod prune;
mod read;
mod remove;
mod scrub;
mod slots;
mod write;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use cellar_wire::object::ObjectId;
use parking_lot::Mutex;

pub use read::ObjectReader;
pub use remove::OLDEST_MAX;
pub use scrub::ObjectScrub;
pub use write::ObjectWriter;

use crate::background::reap::Reaper;
use crate::disk::Disk;
use crate::engine::Engine;
use crate::engine::batch::Batch;
use crate::engine::key::Key;
use crate::error::{Error, Result};
use crate::options::Options;
use crate::record::DeviceRecord;
use slots::ObjectSlots;

/// The most damaged objects that are remembered.
const DAMAGED_MAX: usize = 1024;
/// Reads and writes of at least this many bytes are parts of a stream.
const STREAM_BYTES: u64 = 1 << 20;
/// Bytes behind this offset of an object are not kept in the system's page cache, nor are those of
/// a longer object that is read. Reading one from start to end would evict the pages of everything
/// else.
const CACHED_MAX: u64 = 4 << 30;

/// An open device. Clones share it; dropping the last closes it.
#[derive(Clone)]
pub struct ObjectStore(Arc<Opened>);

struct Opened {
    shared: Arc<Shared>,
    reaper: Mutex<Option<JoinHandle<()>>>,
}

/// The part that the store, its readers and its writers share.
struct Shared {
    engine: Arc<Engine>,
    slots: ObjectSlots,
    /// As it is in the table.
    device: Mutex<DeviceRecord>,
    /// The next number. The table has it only once an object uses it.
    next_number: AtomicU64,
    reaper: Reaper,
    damaged: Mutex<BTreeSet<ObjectId>>,
}

/// Room and contents of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceUsage {
    /// Bytes of the file system.
    pub total: u64,
    /// Bytes that can still be written.
    pub free: u64,
    /// Number of present objects.
    pub objects: u64,
    /// Number of objects that were removed softly.
    pub removed: u64,
}

impl std::fmt::Debug for ObjectStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ObjectStore")
    }
}

impl ObjectStore {
    /// Opens the device on `disk`, and makes it if the disk is empty. Costs the replay of the
    /// journal.
    ///
    /// `Format` for a partition of volumes.
    pub fn open(disk: Arc<dyn Disk>, options: Options) -> Result<Self> {
        let engine = Engine::open(disk, options)?;
        let device = match engine.get(&Key::partition())? {
            Some(value) => DeviceRecord::decode(&value)?,
            None if engine.was_used() => {
                return Err(Error::Format("the record of the device is missing".into()));
            }
            None => {
                let made = DeviceRecord {
                    next_number: 1,
                    objects: 0,
                    removed: 0,
                };
                let mut batch = Batch::new();
                batch.put(Key::partition(), made.encode());
                engine.commit(batch)?.wait()?;
                made
            }
        };
        engine.note_used()?;
        let shared = Arc::new(Shared {
            engine,
            slots: ObjectSlots::default(),
            next_number: AtomicU64::new(device.next_number),
            device: Mutex::new(device),
            reaper: Reaper::default(),
            damaged: Mutex::default(),
        });
        let reaper = remove::spawn(&shared)?;
        Ok(Self(Arc::new(Opened {
            shared,
            reaper: Mutex::new(Some(reaper)),
        })))
    }

    /// The state in which it was found when it was opened.
    pub fn opening(&self) -> &crate::Opening {
        &self.shared().engine.opening
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    /// Room, and the number of objects.
    pub fn usage(&self) -> Result<DeviceUsage> {
        let engine = &self.shared().engine;
        let (total, free) = engine.room()?;
        let device = *self.shared().device.lock();
        Ok(DeviceUsage {
            total,
            free,
            objects: device.objects,
            removed: device.removed,
        })
    }

    /// Objects of which damaged bytes were found since the device was opened, up to 1024.
    pub fn damaged(&self) -> Vec<ObjectId> {
        self.shared().damaged.lock().iter().copied().collect()
    }

    /// The reason why the device accepts no more writes; `None` if it accepts them.
    pub fn stopped(&self) -> Option<Error> {
        self.shared().engine.check_running().err()
    }

    /// Carries all changes into the base table, so that the next opening replays nothing.
    pub fn flush(&self) -> Result<()> {
        self.shared().engine.flush()
    }

    /// Writes everything and accepts no more changes. Idempotent.
    pub fn close(&self) -> Result<()> {
        self.0.close()
    }
}

impl Opened {
    fn close(&self) -> Result<()> {
        self.shared.reaper.stop();
        if let Some(thread) = self.reaper.lock().take() {
            let _ = thread.join();
        }
        self.shared.engine.close()
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let _ = self.close();
    }
}

impl Shared {
    /// The number of an object to be made.
    fn new_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Commits a change of the number of objects, together with the device's record.
    fn commit_counted(
        &self,
        mut batch: Batch,
        objects: i64,
        removed: i64,
    ) -> Result<crate::Ticket> {
        let mut device = self.device.lock();
        let after = DeviceRecord {
            next_number: self.next_number.load(Ordering::Relaxed),
            objects: device.objects.saturating_add_signed(objects),
            removed: device.removed.saturating_add_signed(removed),
        };
        batch.put(Key::partition(), after.encode());
        let ticket = self.engine.commit(batch)?;
        *device = after;
        Ok(ticket)
    }

    /// Records that bytes of an object are damaged.
    fn damaged(&self, object: ObjectId, cause: &str) -> Error {
        tracing::error!(%object, cause, "an object is damaged");
        let mut damaged = self.damaged.lock();
        if damaged.len() < DAMAGED_MAX {
            damaged.insert(object);
        }
        Error::ObjectIo {
            object,
            cause: cause.to_owned(),
        }
    }
}

/// The key of an object.
fn key_of(id: ObjectId) -> Key {
    Key::object(id.volume.0, id.vnode.0, id.uniquifier.0, id.serial)
}

/// The name of the object to which a key belongs.
fn name_of(key: &Key) -> ObjectId {
    ObjectId {
        volume: cellar_wire::ids::VolumeId(key.u32_at(1)),
        vnode: cellar_wire::ids::VnodeId(key.u32_at(5)),
        uniquifier: cellar_wire::ids::Uniquifier(key.u32_at(9)),
        serial: key.u32_at(13),
    }
}
