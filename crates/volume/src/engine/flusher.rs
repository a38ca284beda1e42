//! The flusher: one thread a partition that carries frozen tables into the base.
//!
//! When the file system has no room for that, the reserve file is given up and the flush tried
//! again; until it succeeds, changes that add anything are refused with `DiskFull`.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use super::base::{ApplyError, Base};
use super::journal::JournalFile;
use super::table::Table;
use super::{Engine, Levels};
use crate::error::{Error, Result};

/// How long the flusher sleeps at most before it looks whether the partition still exists, and
/// between attempts on a full disk.
const IDLE: Duration = Duration::from_millis(500);

/// Journal files that are made before they are needed.
const FILES_SPARE: u32 = 3;

pub(super) fn spawn(engine: &Arc<Engine>) -> Result<JoinHandle<()>> {
    let engine = Arc::downgrade(engine);
    std::thread::Builder::new()
        .name("volume-flush".into())
        .spawn(move || run(&engine))
        .map_err(|error| Error::Partition(format!("starting the flusher: {error}")))
}

fn run(engine: &Weak<Engine>) {
    while let Some(engine) = engine.upgrade() {
        let next = {
            let mut queue = engine.queue.lock();
            if queue.to_flush.is_empty() {
                if queue.closing {
                    return;
                }
                engine.room.wait_for(&mut queue, IDLE);
            }
            queue.to_flush.pop_front()
        };
        let Some((table, file)) = next else { continue };
        engine.make_spare_file();
        match engine.flush_table(&table) {
            Ok(()) => {
                let mut queue = engine.queue.lock();
                queue.frozen -= 1;
                queue.free_files.extend(file);
                drop(queue);
                engine.room.notify_all();
            }
            Err(FlushError::Full) => {
                engine.queue.lock().to_flush.push_front((table, file));
                if engine.check_running().is_err() {
                    return;
                }
                std::thread::sleep(IDLE / 5);
            }
            Err(FlushError::Other(error)) => {
                engine.stop(error.to_string());
                return;
            }
        }
    }
}

enum FlushError {
    Full,
    Other(Error),
}

impl Engine {
    /// Makes a third journal file when the first is full, so that the committer need not.
    fn make_spare_file(&self) {
        let number = {
            let mut queue = self.queue.lock();
            if queue.files >= FILES_SPARE || !queue.free_files.is_empty() {
                return;
            }
            queue.files += 1;
            queue.files - 1
        };
        let bytes = self.options.journal_bytes;
        let made = JournalFile::open(self.disk.as_ref(), number, bytes)
            .and_then(|file| self.disk.sync_names().map(|()| file));
        match made {
            Ok(file) => self.queue.lock().free_files.push(file),
            // There are two others; the committer waits for one of them.
            Err(error) => tracing::warn!(%error, "no room for another journal file"),
        }
    }

    fn flush_table(&self, table: &Arc<Table>) -> Result<(), FlushError> {
        let mut slot = self.base.lock();
        let Some(base) = slot.as_ref() else {
            *slot = Some(self.reopen_base().map_err(FlushError::Other)?);
            return Err(FlushError::Full);
        };
        let applied = table.last_group();
        match table.with_all(|entries| base.apply(entries.iter(), applied)) {
            Ok(()) => {
                let view = base.view().map_err(FlushError::Other)?;
                let mut levels = self.levels.write();
                let mut frozen = levels.frozen.clone();
                frozen.retain(|other| !Arc::ptr_eq(other, table));
                let active = Arc::clone(&levels.active);
                *levels = Arc::new(Levels {
                    active,
                    frozen,
                    base: Arc::new(view),
                });
                drop(levels);
                self.statistics.flushes.fetch_add(1, Ordering::Relaxed);
                if self.full.swap(false, Ordering::Relaxed) {
                    tracing::info!("the partition has room again");
                    self.restore_reserve();
                }
                Ok(())
            }
            Err(ApplyError::Full) => {
                if !self.full.swap(true, Ordering::Relaxed) {
                    tracing::warn!("the partition is full: only removals are taken");
                }
                super::spend_reserve(self.disk.as_ref());
                // A failed transaction leaves the base unusable until it is opened again.
                *slot = None;
                *slot = Some(self.reopen_base().map_err(FlushError::Other)?);
                Err(FlushError::Full)
            }
            Err(ApplyError::Other(error)) => Err(FlushError::Other(error)),
        }
    }

    fn reopen_base(&self) -> Result<Base> {
        let file = self
            .disk
            .open("base")
            .map_err(|error| Error::Partition(format!("opening the base table: {error}")))?;
        let base = Base::open(file, self.options.base_cache_bytes)?;
        let view = base.view()?;
        let mut levels = self.levels.write();
        let (active, frozen) = (Arc::clone(&levels.active), levels.frozen.clone());
        *levels = Arc::new(Levels {
            active,
            frozen,
            base: Arc::new(view),
        });
        drop(levels);
        Ok(base)
    }
}
