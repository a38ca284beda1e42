//! The reaper: removes, in the background, data that no volume sees any more.
//!
//! A job is a key in the table. The change that makes the work necessary writes the key, and the
//! last step of the work deletes it, so a restart continues the job. Every step is idempotent: it
//! reads the present versions and viewers, and removes the versions that no viewer sees. Steps are
//! small and paced.
//!
//! * One vnode: the body of a large file that was removed or replaced.
//! * Epochs: a clone was removed. Vnodes that changed in these epochs may have unseen versions.
//! * A group: its last volume was removed, so everything goes.
//! * A history: more removals are recorded than is worthwhile (`history`).
//! * An undone restore: its versions are removed, then the head accepts changes again.
//!
//! A group in which a restore is running, or an epoch is held in memory, is left for later; its
//! jobs stay on the list.

mod unseen;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};

pub(crate) use unseen::{collect_unseen, pieces_of};

use crate::engine::Engine;
use crate::engine::batch::Batch;
use crate::engine::key::{Key, Kind};
use crate::error::{Error, Result};
use crate::partition::Partition;
use crate::record::{CloneKind, EPOCH_MAX, Piece};
use crate::state::core::{Core, Group, GroupId};

/// Versions examined in one step.
const STEP: usize = 256;
/// The longest sleep of the thread. After it, the thread retries jobs that failed.
const IDLE: Duration = Duration::from_secs(60);
/// The interval at which access counts are written to the table.
const USAGE_INTERVAL: Duration = Duration::from_secs(600);
/// The longest pause within a job.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// Wakes and stops the background thread.
#[derive(Default)]
pub(crate) struct Reaper {
    stopping: AtomicBool,
    pending: Mutex<bool>,
    condvar: Condvar,
    reaped: AtomicU64,
    /// Groups whose history has become long. Not in the table: the next removal would notice it
    /// again.
    long: Mutex<BTreeSet<u32>>,
    /// Held while jobs are worked on, by the thread or a caller of `reap_now`.
    working: Mutex<()>,
}

impl Reaper {
    pub(crate) fn wake(&self) {
        *self.pending.lock() = true;
        self.condvar.notify_all();
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.wake();
    }

    /// Sleeps until there is something to do, or for a minute.
    pub(crate) fn rest(&self) {
        let mut pending = self.pending.lock();
        if !*pending {
            self.condvar.wait_for(&mut pending, IDLE);
        }
        *pending = false;
    }

    /// Schedules forgetting the oldest recorded removals from a group.
    pub(crate) fn shorten_history(&self, group: GroupId) {
        self.long.lock().insert(group.0);
        self.wake();
    }

    /// Prevents background removals while the guard exists.
    pub(crate) fn hold(&self) -> parking_lot::MutexGuard<'_, ()> {
        self.working.lock()
    }

    pub(crate) fn reaped(&self) -> u64 {
        self.reaped.load(Ordering::Relaxed)
    }

    /// The number of jobs that still look for versions of a group.
    pub(crate) fn jobs_of(&self, engine: &Engine, group: GroupId) -> Result<usize> {
        let prefix = Key::of_group(Kind::ReapEpochs, group.0);
        let mut scan = engine.scan(&prefix, &prefix)?;
        let mut jobs = 0;
        while scan.next()?.is_some() {
            jobs += 1;
        }
        Ok(jobs)
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Waits as long as `versions` may take at the configured rate.
    pub(crate) fn pace(&self, engine: &Engine, versions: usize) {
        self.reaped.fetch_add(versions as u64, Ordering::Relaxed);
        let rate = f64::from(engine.options().reap_rate.max(1));
        let pause = Duration::from_secs_f64(versions as f64 / rate);
        if pause > Duration::from_millis(1) && !self.stopping() {
            std::thread::sleep(pause.min(PAUSE_MAX));
        }
    }
}

/// Stages a job for the vnodes that changed in these epochs. Returns the number of jobs that this
/// adds. The caller has the group's state locked exclusively.
pub(crate) fn stage_epochs(
    engine: &Engine,
    batch: &mut Batch,
    group: &Group,
    first: u64,
    last: u64,
) -> Result<usize> {
    group.rely_on_jobs();
    let job = Key::reap_epochs(group.id.0, first, last);
    if engine.get(&job)?.is_some() {
        return Ok(0);
    }
    batch.put(job, Bytes::new());
    Ok(1)
}

pub(crate) fn spawn(core: &Arc<Core>) -> Result<JoinHandle<()>> {
    let core = Arc::downgrade(core);
    std::thread::Builder::new()
        .name("volume-reap".into())
        .spawn(move || run(&core))
        .map_err(|error| Error::Partition(format!("starting the background work: {error}")))
}

fn run(core: &Weak<Core>) {
    let mut saved = Instant::now();
    while let Some(core) = core.upgrade() {
        if core.reaper.stopping() || core.engine.check_running().is_err() {
            return;
        }
        if let Err(error) = core.reap_all() {
            tracing::warn!(%error, "background removal will be tried again");
        }
        if saved.elapsed() >= USAGE_INTERVAL || core.is_crowded() {
            saved = Instant::now();
            if let Err(error) = core.save_usage() {
                tracing::warn!(%error, "the access counts will be saved later");
            }
        }
        core.reaper.rest();
    }
}

impl Partition {
    /// Does all background removals now, at the configured pace.
    pub fn reap_now(&self) -> Result<()> {
        self.core.reap_all()
    }
}

impl Core {
    /// Works on all jobs.
    fn reap_all(self: &Arc<Self>) -> Result<()> {
        let _working = self.reaper.working.lock();
        let long = std::mem::take(&mut *self.reaper.long.lock());
        for group in long {
            if let Err(error) = self.shorten_history(GroupId(group)) {
                tracing::error!(group, %error, "cannot shorten the list of removals");
            }
        }
        for kind in [
            Kind::Restoring,
            Kind::ReapVnode,
            Kind::ReapEpochs,
            Kind::ReapGroup,
        ] {
            let prefix = Key::of_kind(kind);
            let mut from = prefix;
            while let Some((key, _)) = self.engine.scan(&from, &prefix)?.next()? {
                if self.reaper.stopping() {
                    return Ok(());
                }
                let done = match kind {
                    Kind::Restoring => self.undo_restore(GroupId(key.u32_at(1))).map(drop),
                    Kind::ReapVnode => self.reap_vnode(&key),
                    Kind::ReapEpochs => self.reap_epochs(&key),
                    _ => self.reap_group(&key),
                };
                if let Err(error) = done {
                    if matches!(error, Error::Stopped(_)) {
                        return Err(error);
                    }
                    tracing::error!(?key, %error, "a job of the background removal failed");
                }
                from = key.successor();
            }
        }
        Ok(())
    }

    fn reap_vnode(self: &Arc<Self>, job: &Key) -> Result<()> {
        let asked = self.engine.get(job)?;
        let Some(group) = self.existing_group(GroupId(job.u32_at(1)))? else {
            let _room = self.engine.admit(0)?;
            return self.finish_job(job);
        };
        if !self.collect_vnode(&group, job.u32_at(5), None, false)? {
            return Ok(());
        }
        let _room = self.engine.admit(0)?;
        let _no_change = group.state.write();
        // Meanwhile another body of the vnode may have been left for removal, which this run has
        // passed.
        if self.engine.get(job)? != asked {
            return Ok(());
        }
        self.finish_job(job)
    }

    /// Takes a job off the list. The caller was admitted before it locked anything.
    fn finish_job(&self, job: &Key) -> Result<()> {
        let mut batch = Batch::new();
        batch.delete(*job);
        self.engine.commit(batch).map(drop)
    }

    fn reap_epochs(self: &Arc<Self>, job: &Key) -> Result<()> {
        let id = GroupId(job.u32_at(1));
        let (first, last) = (job.u64_at(5), job.u64_at(13));
        let Some(group) = self.existing_group(id)? else {
            let _room = self.engine.admit(0)?;
            return self.finish_job(job);
        };
        // The jobs that exist when a hold ends find the versions that were kept for it. So no job
        // is completed while there is a hold, even if nothing has changed in its epochs yet. Nor is
        // one completed before the changes that saw the hold have ended.
        let relied = {
            let _no_change = group.state.write();
            if group.held.any() {
                return Ok(());
            }
            group.relied()
        };
        if !self.collect_epochs(&group, first, last, false)? {
            return Ok(());
        }
        let _room = self.engine.admit(0)?;
        let mut state = group.state.write();
        if group.relied() != relied {
            return Ok(());
        }
        self.finish_job(job)?;
        state.reaping = state.reaping.saturating_sub(1);
        Ok(())
    }

    /// Removes the unseen versions of the vnodes that changed in these epochs. Returns false if
    /// that has to wait.
    fn collect_epochs(
        self: &Arc<Self>,
        group: &Arc<Group>,
        first: u64,
        last: u64,
        undoing: bool,
    ) -> Result<bool> {
        let prefix = Key::of_group(Kind::Change, group.id.0);
        let mut from = Key::change_prefix(group.id.0, first);
        while let Some((key, _)) = self.engine.scan(&from, &prefix)?.next()? {
            if key.u64_at(5) > last {
                break;
            }
            let (epoch, vnode) = (key.u64_at(5), key.u32_at(13));
            if self.reaper.stopping() || !self.collect_vnode(group, vnode, Some(epoch), undoing)? {
                return Ok(false);
            }
            from = key.successor();
        }
        Ok(true)
    }

    /// Removes the versions of a restore that will not be finished, and lets the head accept
    /// changes again. Returns false while the restore is running.
    pub(crate) fn undo_restore(self: &Arc<Self>, id: GroupId) -> Result<bool> {
        let job = Key::restoring(id.0);
        let Some(group) = self.existing_group(id)? else {
            let _room = self.engine.admit(0)?;
            return self.finish_job(&job).map(|()| true);
        };
        let head = self.head_of(&group)?;
        let (pin, last) = {
            let state = group.state.read();
            (state.record.pin(), state.record.epoch)
        };
        if let Some(pin) = pin
            && !self.collect_epochs(&group, pin + 1, last, true)?
        {
            return Ok(false);
        }
        let _room = self.engine.admit(0)?;
        let mut state = group.state.write();
        if state.restoring {
            return Ok(false);
        }
        if (state.record.pin(), state.record.epoch) != (pin, last) {
            // Another thread has undone it meanwhile. A restore that began since then may need the
            // same.
            self.reaper.wake();
            return Ok(false);
        }
        let mut record = state.record.clone();
        record.clones.retain(|clone| clone.kind != CloneKind::Pin);
        if head.is_some() {
            // The name of a state that was undone must never be given to another state.
            record.epoch += 1;
        }
        let mut batch = Batch::new();
        let mut reaping = 0;
        if let Some(pin) = pin.filter(|_| group.held.any()) {
            // The head's own changes follow.
            reaping = stage_epochs(&self.engine, &mut batch, &group, pin + 1, u64::MAX)?;
        }
        batch.put(Key::group(id.0), record.encode());
        batch.delete(job);
        self.engine.commit(batch)?;
        state.record = record;
        state.reaping += reaping;
        if let Some(head) = head {
            head.set_view(EPOCH_MAX);
        }
        Ok(true)
    }

    fn reap_group(self: &Arc<Self>, job: &Key) -> Result<()> {
        let id = GroupId(job.u32_at(1));
        if let Some(group) = self.existing_group(id)? {
            // The thread that removed the last volume has marked it as gone once it releases this
            // lock.
            drop(group.state.write());
            if group.held.any() {
                return Ok(());
            }
        }
        for kind in [
            Kind::Body,
            Kind::Vnode,
            Kind::Change,
            Kind::Removed,
            Kind::Retired,
            Kind::ReapVnode,
            Kind::ReapEpochs,
            Kind::Restoring,
        ] {
            let prefix = Key::of_group(kind, id.0);
            loop {
                if self.reaper.stopping() {
                    return Ok(());
                }
                let _room = self.engine.admit(0)?;
                let mut batch = Batch::new();
                let looked = delete_some(&self.engine, &prefix, kind == Kind::Body, &mut batch)?;
                if batch.is_empty() {
                    break;
                }
                self.engine.commit(batch)?;
                self.reaper.pace(&self.engine, looked);
            }
        }
        let mut batch = Batch::new();
        batch.delete(Key::group(id.0));
        batch.delete(Key::counters(id.0));
        batch.delete(Key::reserved(id.0));
        batch.delete(*job);
        self.forget_group(id);
        self.engine.commit(batch).map(drop)
    }
}

/// Deletes up to one step of the entries that start with `prefix`; with their blocks if they are
/// `pieces`. Returns how many.
pub(crate) fn delete_some(
    engine: &Engine,
    prefix: &Key,
    pieces: bool,
    batch: &mut Batch,
) -> Result<usize> {
    let mut scan = engine.scan(prefix, prefix)?;
    let mut ahead = scan.next()?;
    let mut looked = 0;
    while let Some((key, value)) = ahead.take() {
        ahead = scan.next()?;
        if pieces {
            // Newest first: a block goes with the oldest version that names it. The blocks of a
            // damaged record are not known and stay out of use. So do the blocks of a newer version
            // that it may share with others.
            let older = match &ahead {
                Some((next, value)) if same_piece(&key, next) => Piece::decode(value),
                _ => Ok(Piece::Gone),
            };
            if let (Ok(older), Ok(piece)) = (older, Piece::decode(&value)) {
                let older = older.into_blocks();
                batch.released.extend(piece.into_blocks().minus(&[&older]));
            }
        }
        batch.delete(key);
        looked += 1;
        if looked >= STEP {
            break;
        }
    }
    Ok(looked)
}

fn same_piece(one: &Key, other: &Key) -> bool {
    one.of_all_versions() == other.of_all_versions()
}
