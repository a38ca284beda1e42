//! The committer: one thread for each partition, which writes groups to the journal and syncs them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::MutexGuard;

use super::journal::{self, Header, JournalFile};
use super::{Engine, OpenGroup, Queue};
use crate::disk::Aligned;
use crate::error::{Error, Result};
use crate::options::Durability;

/// The most journal files that a partition may have. More would only lengthen a replay.
const FILES_MAX: u32 = 4;
/// The longest that the committer sleeps before it checks whether the partition still exists.
const IDLE: Duration = Duration::from_millis(500);
/// How long a group waits, at a time, until it has as many changes as the last group. The callers
/// of the last group that go on at once bring their next change within this time. If the committer
/// synced the first of these changes alone, the others would wait for two syncs.
const GATHER: Duration = Duration::from_micros(100);
/// The most such waits, as long as each of them brought further changes.
const GATHERS: u32 = 3;

/// The place where the next group is written.
#[derive(Default)]
struct Position {
    file: Option<JournalFile>,
    offset: u64,
    /// The buffer in which groups are made.
    sheet: Aligned,
}

pub(super) fn spawn(engine: &Arc<Engine>) -> Result<JoinHandle<()>> {
    let engine = Arc::downgrade(engine);
    std::thread::Builder::new()
        .name("volume-commit".into())
        .spawn(move || run(&engine))
        .map_err(|error| Error::Partition(format!("starting the committer: {error}")))
}

fn run(engine: &Weak<Engine>) {
    let mut position = Position::default();
    while let Some(engine) = engine.upgrade() {
        match engine.next_group() {
            Next::Group(group) => engine.write_group(group, &mut position),
            Next::Idle => {}
            Next::Closed => return,
        }
    }
}

enum Next {
    Group(OpenGroup),
    Idle,
    Closed,
}

impl Engine {
    /// Takes the oldest group that holds anything.
    fn next_group(&self) -> Next {
        let mut queue = self.queue.lock();
        if queue.closed.is_empty() {
            let relaxed = match self.options.durability {
                Durability::Strict => None,
                Durability::Relaxed(interval) => Some(interval),
            };
            let nothing = queue.open.is_empty() && queue.open.freezes.is_none();
            if (nothing || relaxed.is_some()) && !queue.hurry {
                if queue.closing {
                    return Next::Closed;
                }
                queue.committer_waits = true;
                let wanted = std::mem::replace(&mut queue.wanted, 1);
                self.work.wait_for(&mut queue, relaxed.unwrap_or(IDLE));
                queue.wanted = wanted;
            }
            if relaxed.is_none() {
                self.gather(&mut queue);
            }
            queue.committer_waits = false;
        }
        if let Some(group) = queue.closed.pop_front() {
            return Next::Group(group);
        }
        // Reset only now: a thread in a hurry may wait for the changes in the open group.
        queue.hurry = false;
        if queue.open.is_empty() && queue.open.freezes.is_none() {
            return if queue.closing {
                Next::Closed
            } else {
                Next::Idle
            };
        }
        queue.wanted = queue.open.batches.count().max(1);
        let number = queue.open.number + u64::from(!queue.open.is_empty());
        let group = std::mem::replace(&mut queue.open, OpenGroup::new(number));
        if !group.is_empty() {
            queue.file_used += journal::group_length(group.batches.encoded_length());
        }
        Next::Group(group)
    }

    /// Waits briefly if the open group is smaller than the last one was.
    fn gather(&self, queue: &mut MutexGuard<'_, Queue>) {
        for _ in 0..GATHERS {
            let changes = queue.open.batches.count();
            let few = changes > 0 && changes < queue.wanted;
            if !few || queue.hurry || queue.open.freezes.is_some() {
                return;
            }
            queue.committer_waits = true;
            self.work.wait_for(queue, GATHER);
            if queue.open.batches.count() == changes {
                return;
            }
        }
    }

    fn write_group(&self, mut group: OpenGroup, position: &mut Position) {
        let result = self
            .check_running()
            .and_then(|()| self.try_write(&mut group, position));
        if let Err(error) = &result {
            let reason = match error {
                Error::Stopped(reason) => reason.clone(),
                other => other.to_string(),
            };
            self.stop(reason.clone());
            group.flight.resolve(Err(Error::Stopped(reason)));
            return;
        }
        self.space.released(std::mem::take(&mut group.released));
        group.flight.resolve(Ok(()));
    }

    fn try_write(&self, group: &mut OpenGroup, position: &mut Position) -> Result<()> {
        if let Some(table) = group.freezes.take() {
            // Everything in the frozen table is durable now, so the flusher may take it.
            let mut queue = self.queue.lock();
            let files = position.file.take().into_iter().collect();
            queue.to_flush.push_back((table, files));
            position.offset = 0;
            drop(queue);
            self.room.notify_all();
        }
        if group.is_empty() {
            return Ok(());
        }
        let failed =
            |what: &str, error: std::io::Error| Error::Partition(format!("{what} failed: {error}"));
        if group.wrote_blocks {
            self.space
                .sync()
                .map_err(|error| failed("syncing blocks", error))?;
            self.statistics.block_syncs.fetch_add(1, Ordering::Relaxed);
        }
        let header = Header {
            journal: self.mark().map_or(0, |mark| mark.journal),
            number: group.number,
            payload: 0,
            ends: group.ends && group.batches.count() == 0,
        };
        journal::seal(&group.batches, header, &mut position.sheet);
        let bytes = position.sheet.bytes();
        if position.file.is_none() {
            position.file = Some(self.free_file()?);
        }
        let Some(file) = &position.file else {
            return Err(Error::Partition("no journal file".into()));
        };
        file.file
            .write_durably(bytes, position.offset)
            .map_err(|error| failed("writing the journal", error))?;
        position.offset += bytes.len() as u64;
        self.statistics.groups.fetch_add(1, Ordering::Relaxed);
        self.statistics
            .journal_bytes
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Returns a journal file whose content is no longer needed.
    fn free_file(&self) -> Result<JournalFile> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(file) = queue.free_files.pop() {
                return Ok(file);
            }
            if queue.files < FILES_MAX
                && let Some(_promise) = self.ledger.grow(self.options.journal_bytes)
            {
                let number = queue.files;
                queue.files += 1;
                drop(queue);
                match self.make_journal_file(number) {
                    Ok(file) => return Ok(file),
                    Err(Error::DiskFull) => {
                        tracing::warn!("no room for a journal file: waiting for a flush");
                    }
                    Err(error) => return Err(error),
                }
                queue = self.queue.lock();
                continue;
            }
            self.room.wait_for(&mut queue, IDLE);
            drop(queue);
            self.check_running()?;
            queue = self.queue.lock();
        }
    }
}
