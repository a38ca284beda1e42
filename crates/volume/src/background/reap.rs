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

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cellar_wire::dir::PAGE_SIZE;
use parking_lot::{Condvar, Mutex};

use crate::engine::Engine;
use crate::engine::batch::{Batch, Run};
use crate::engine::key::{Key, Kind};
use crate::error::{Error, Result};
use crate::partition::Partition;
use crate::record::{Body, CloneKind, EPOCH_MAX, PIECE_BYTES, Piece, PieceBlocks, VnodeRecord};
use crate::state::core::{Core, Group, GroupId};
use crate::types::FileType;

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

    /// Removes the unseen versions of a vnode. If the vnode has no version of epoch `noted`, also
    /// removes its entry for that epoch in the index of changes. Returns false if this has to wait
    /// for a restore, or for a hold; an undo of a restore does not wait for holds.
    fn collect_vnode(
        self: &Arc<Self>,
        group: &Arc<Group>,
        vnode: u32,
        noted: Option<u64>,
        undoing: bool,
    ) -> Result<bool> {
        let mut from = Some(Key::bodies_prefix(group.id.0, vnode));
        while let Some(at) = from {
            if self.reaper.stopping() {
                return Err(Error::Stopped("closing".into()));
            }
            let _room = self.engine.admit(0)?;
            let head = self.head_of(group)?;
            let slot = head
                .as_ref()
                .map(|volume| volume.slot(cellar_wire::ids::VnodeId(vnode)));
            // The vnode's lock: no change reads versions that are removed here.
            let locked = slot.as_ref().map(|slot| slot.state.write());
            let state = group.state.read();
            if state.restoring || (!undoing && group.held.any()) {
                return Ok(false);
            }
            let record = &state.record;
            let mut viewers: Vec<u64> = record.clones.iter().map(|clone| clone.epoch).collect();
            // If there is a pin and no restore is running, newer versions are to be removed; the
            // head does not see them.
            viewers.extend((record.has_head() && record.pin().is_none()).then_some(EPOCH_MAX));
            viewers.extend(group.held.epochs());
            let mut batch = Batch::new();
            if let Some(noted) = noted {
                let key = Key::vnode(group.id.0, vnode, noted);
                if self.engine.get(&key)?.is_none() {
                    batch.delete(Key::change(group.id.0, noted, vnode));
                }
            }
            let seen = self.collect_records(group.id, vnode, &viewers, &mut batch)?;
            let (next, looked) = self.collect_pieces(group.id, vnode, &at, &seen, &mut batch)?;
            self.engine.commit(batch)?;
            drop(state);
            drop(locked);
            from = next;
            self.reaper.pace(&self.engine, looked);
        }
        Ok(true)
    }

    /// Removes vnode records that no viewer sees. Returns the record that each viewer sees.
    fn collect_records(
        &self,
        group: GroupId,
        vnode: u32,
        viewers: &[u64],
        batch: &mut Batch,
    ) -> Result<Vec<(u64, VnodeRecord)>> {
        let prefix = Key::vnode_prefix(group.0, vnode);
        let mut scan = self.engine.scan(&prefix, &prefix)?;
        let mut versions = Vec::new();
        while let Some((key, value)) = scan.next()? {
            versions.push((key.epoch(), VnodeRecord::decode(&value)?.ok()));
        }
        let mut seen = Vec::new();
        let mut needed = BTreeSet::new();
        // Versions whose meaning is "gone" for some viewer. No viewer sees the "gone" records of a
        // restore that is being undone.
        let mut gone = BTreeSet::new();
        for &viewer in viewers {
            match versions.iter().find(|(epoch, _)| *epoch <= viewer) {
                Some((epoch, Some(record))) => {
                    needed.insert(*epoch);
                    seen.push((viewer, record.clone()));
                }
                Some((epoch, None)) => {
                    gone.insert(*epoch);
                }
                None => {}
            }
        }
        // Such a version is needed as long as an older one would be seen without it.
        let oldest = needed.first().copied();
        gone.retain(|epoch| oldest.is_some_and(|oldest| oldest < *epoch));
        for (epoch, _) in &versions {
            if !needed.contains(epoch) && !gone.contains(epoch) {
                batch.delete(Key::vnode(group.0, vnode, *epoch));
                if *epoch > 1 {
                    batch.delete(Key::change(group.0, *epoch, vnode));
                }
            }
        }
        Ok(seen)
    }

    /// Removes unseen pieces from `from` on. Returns where to go on, and how many versions were
    /// examined.
    fn collect_pieces(
        &self,
        group: GroupId,
        vnode: u32,
        from: &Key,
        seen: &[(u64, VnodeRecord)],
        batch: &mut Batch,
    ) -> Result<(Option<Key>, usize)> {
        let prefix = Key::bodies_prefix(group.0, vnode);
        let mut scan = self.engine.scan(from, &prefix)?;
        let mut looked = 0;
        let mut same: Vec<(Key, Piece)> = Vec::new();
        loop {
            let next = scan.next()?;
            let of_same = |(key, _): &(Key, Piece), other: &Key| {
                (key.body_number(), key.piece_number())
                    == (other.body_number(), other.piece_number())
            };
            let ends = match (&next, same.first()) {
                (Some((key, _)), Some(first)) => !of_same(first, key),
                (None, Some(_)) => true,
                _ => false,
            };
            if ends {
                collect_versions(&same, seen, batch);
                same.clear();
                if looked >= STEP {
                    return Ok((next.map(|(key, _)| key), looked));
                }
            }
            let Some((key, value)) = next else {
                return Ok((None, looked));
            };
            same.push((key, Piece::decode(&value)?));
            looked += 1;
        }
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

/// The number of pieces that the body of this record has.
pub(crate) fn pieces_of(record: &VnodeRecord) -> u64 {
    match (record.kind, record.body) {
        (_, Body::None | Body::Objects) => 0,
        (_, Body::Inline { .. }) => 1,
        (FileType::Directory, Body::Pieces) => record.length / PAGE_SIZE as u64,
        (_, Body::Pieces) => record.length.div_ceil(PIECE_BYTES),
    }
}

/// Removes the versions of one piece, given newest first, that no viewer sees.
fn collect_versions(versions: &[(Key, Piece)], seen: &[(u64, VnodeRecord)], batch: &mut Batch) {
    let Some((first, _)) = versions.first() else {
        return;
    };
    let (body, number) = (first.body_number(), first.piece_number());
    let of_body = seen
        .iter()
        .filter(|(_, record)| record.body_number == body && number < pieces_of(record));
    let viewers: Vec<u64> = of_body.map(|(viewer, _)| *viewer).collect();
    let newest = seen.iter().map(|(viewer, _)| *viewer).max().unwrap_or(0);
    collect_unseen(versions, &viewers, newest, batch);
}

/// Removes the versions of one piece, given newest first, that none of `viewers` sees. Each viewer
/// sees the newest version that is not newer than itself. A "gone" record up to `newest` stays
/// while an older version is needed.
pub(crate) fn collect_unseen(
    versions: &[(Key, Piece)],
    viewers: &[u64],
    newest: u64,
    batch: &mut Batch,
) {
    let mut needed = BTreeSet::new();
    for viewer in viewers {
        let visible = versions.iter().position(|(key, _)| key.epoch() <= *viewer);
        if let Some(index) = visible.filter(|&index| versions[index].1 != Piece::Gone) {
            needed.insert(index);
        }
    }
    let oldest = needed.last().copied();
    let kept = |index: usize| {
        let (key, piece) = &versions[index];
        let hides = *piece == Piece::Gone
            && key.epoch() <= newest
            && oldest.is_some_and(|last| last > index);
        needed.contains(&index) || hides
    };
    let mut used = BTreeSet::new();
    let mut unused = BTreeSet::new();
    for (index, (key, piece)) in versions.iter().enumerate() {
        let blocks = match piece {
            Piece::Blocks(blocks) => blocks.clone(),
            _ => PieceBlocks::empty(),
        };
        let numbers = blocks.0.iter().flatten().map(|slot| slot.block);
        if kept(index) {
            used.extend(numbers);
        } else {
            unused.extend(numbers);
            batch.delete(*key);
        }
    }
    for block in unused.difference(&used) {
        match batch.released.last_mut() {
            Some(run) if run.end() == *block => run.count += 1,
            _ => batch.released.push(Run {
                start: *block,
                count: 1,
            }),
        }
    }
}
