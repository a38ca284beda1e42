//! Brings wiped files back to the online devices.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use cellar_jobs::{Ended, Engine, NewJob};
use cellar_objects::{WriteOptions, Writer};
use cellar_policy::RecallMode;
use cellar_rpc::blocking;
use cellar_volume::{ArchiveState, VnodeStatus, Volume};
use cellar_wire::AbortCode;
use cellar_wire::ids::{Fid, ViceId, VnodeId};
use cellar_wire::object::{ArchiveCopy, Contents, Layout};
use cellar_wire::osd::REMOVE_HARD;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::super::Objects;
use super::super::apart::run_apart;
use super::super::failure::Failure;
use super::super::figures::Counters;
use super::super::hsm;
use super::super::layouts::NewFile;
use super::super::limits::{
    OBJECT_PATIENCE, RECALL_FAILURE_TIME, RECALL_FAILURES_MAX, RECALLS_MAX,
};
use super::super::liveness;
use super::super::policies::ObjectSpec;
use super::super::prune::remove;
use super::super::storage::Storage;
use super::copy_reader::{self, NotRead};
use super::copying::upper_serial;

/// The recalls that are queued or in progress. All versions of a file with the same bytes share
/// one.
#[derive(Debug, Default)]
pub(crate) struct Recalls {
    running: Mutex<HashMap<RecallKey, Running>>,
    /// Failures of jobs, for the callers that wait for them.
    failures: Mutex<HashMap<RecallKey, Failure>>,
    /// Recalls that failed a short time ago, for the callers that do not wait.
    failed: Mutex<HashMap<RecallKey, (Failure, Instant)>>,
}

type RecallKey = (VnodeId, Contents);

/// The result of a recall; `None` while it runs.
type Outcome = Option<Result<(), Failure>>;

/// A recall that is queued or in progress.
#[derive(Debug)]
struct Running {
    outcome: watch::Receiver<Outcome>,
    /// Its task has the sender: the receivers notice if the task ends without a result.
    sender: Weak<watch::Sender<Outcome>>,
}

impl Recalls {
    /// The number of recalls that are queued or in progress.
    pub(crate) fn count(&self) -> usize {
        self.running.lock().len()
    }

    /// Answers the callers that wait for a recall as soon as the file is online. The end of its job
    /// is recorded later: after a crash before that, the job finds the file online.
    fn answer(&self, key: &RecallKey) {
        let running = self.running.lock();
        if let Some(sender) = running.get(key).and_then(|found| found.sender.upgrade()) {
            sender.send_replace(Some(Ok(())));
        }
    }

    /// Remembers the end of a recall for callers that do not wait.
    fn note_end(&self, key: RecallKey, result: &Result<(), Failure>) {
        let mut failed = self.failed.lock();
        match result {
            // The next caller begins again at once.
            Ok(()) | Err(Failure::Busy) => {
                failed.remove(&key);
            }
            Err(failure) => {
                failed.retain(|_, (_, at)| at.elapsed() < RECALL_FAILURE_TIME);
                if failed.len() < RECALL_FAILURES_MAX {
                    failed.insert(key, (failure.clone(), Instant::now()));
                }
            }
        }
    }

    /// The failure of a recall that ended a short time ago.
    fn recent_failure(&self, key: &RecallKey) -> Option<Failure> {
        let failed = self.failed.lock();
        let (failure, at) = failed.get(key)?;
        (at.elapsed() < RECALL_FAILURE_TIME).then(|| failure.clone())
    }
}

impl Objects {
    /// Queues the recall of a file on behalf of `user`, unless that is in progress, and waits for
    /// the end. A caller that stops waiting does not stop the recall. `admit` gets the bytes of a
    /// recall before it is queued, and may refuse it. Must be called on a shard's thread.
    ///
    /// # Errors
    /// `Busy`: too many recalls are queued, by all or by this user, or the file changed.
    /// `NoGoodCopy`. The failure of the archive or of the devices. Those of `admit`.
    pub async fn recall(
        self: &Arc<Self>,
        volume: &Arc<Volume>,
        fid: Fid,
        user: Option<ViceId>,
        admit: impl FnOnce(u64) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Some((status, archive)) = wiped_file(volume, fid).await? else {
            return Ok(());
        };
        let mut outcome = self.recall_in_progress(volume, status, archive, user, admit)?;
        let ended = outcome.wait_for(Option::is_some).await;
        match ended.as_deref() {
            Ok(Some(result)) => result.clone(),
            // The task ended without a result: the server stops.
            _ => Err(Failure::Busy),
        }
    }

    /// Queues the recall of a file on behalf of `user`, unless that is in progress, and does not
    /// wait for the end. Returns whether a recall is in progress; `false`: the file is online.
    /// `admit` is that of [`Self::recall`]. Must be called on a shard's thread.
    ///
    /// # Errors
    /// `Busy`: too many recalls are queued, by all or by this user, or the file changed. The
    /// failure of a recall that ended less than a minute ago; callers that never wait would repeat
    /// their calls for ever otherwise. Those of `admit`.
    pub async fn begin_recall(
        self: &Arc<Self>,
        volume: &Arc<Volume>,
        fid: Fid,
        user: Option<ViceId>,
        admit: impl FnOnce(u64) -> Result<(), Failure>,
    ) -> Result<bool, Failure> {
        let Some((status, archive)) = wiped_file(volume, fid).await? else {
            return Ok(false);
        };
        let key = recall_key(&status, &archive)?;
        if let Some(failure) = self.recalls.recent_failure(&key) {
            return Err(failure);
        }
        self.recall_in_progress(volume, status, archive, user, admit)?;
        Ok(true)
    }

    /// The behaviour that the policies of a file demand of calls that need its bytes while it is
    /// wiped.
    ///
    /// # Errors
    /// The file does not exist, or the store cannot be read.
    pub async fn recall_mode(
        self: &Arc<Self>,
        volume: &Arc<Volume>,
        fid: Fid,
    ) -> Result<RecallMode, Failure> {
        let (objects, volume) = (self.clone(), volume.clone());
        run_apart(move || {
            let status = volume.status(fid)?;
            Ok(objects.policies.recall_mode(&volume, &status)?)
        })
        .await
    }

    /// The number of recalls that are queued or in progress.
    pub fn recalls_in_progress(&self) -> usize {
        self.recalls.count()
    }

    /// The recall of a file. Begins one unless one is in progress.
    fn recall_in_progress(
        self: &Arc<Self>,
        volume: &Arc<Volume>,
        status: VnodeStatus,
        archive: ArchiveState,
        user: Option<ViceId>,
        admit: impl FnOnce(u64) -> Result<(), Failure>,
    ) -> Result<watch::Receiver<Outcome>, Failure> {
        let key = recall_key(&status, &archive)?;
        let mut all = self.recalls.running.lock();
        if let Some(running) = all.get(&key) {
            return Ok(running.outcome.clone());
        }
        if all.len() >= RECALLS_MAX {
            return Err(Failure::Busy);
        }
        admit(status.length)?;
        let (sender, outcome) = watch::channel(None);
        let sender = Arc::new(sender);
        let running = Running {
            outcome: outcome.clone(),
            sender: Arc::downgrade(&sender),
        };
        all.insert(key, running);
        drop(all);
        let (objects, volume) = (self.clone(), volume.clone());
        tokio::task::spawn_local(async move {
            let result = match objects.jobs() {
                Some(engine) => {
                    let job = objects.recall_job(&status, &archive, user);
                    let result = objects.wait_for_recall(engine, job, key).await;
                    objects.recalls.failures.lock().remove(&key);
                    result
                }
                None => objects.recall_logged(&volume, &status, &archive).await,
            };
            objects.recalls.note_end(key, &result);
            // Later callers look at the file again.
            objects.recalls.running.lock().remove(&key);
            sender.send_replace(Some(result));
        });
        Ok(outcome)
    }

    /// Queues a job, and waits until it ends.
    async fn wait_for_recall(
        &self,
        engine: &Engine,
        job: NewJob,
        key: RecallKey,
    ) -> Result<(), Failure> {
        let ended = match engine.submit(job).await {
            Ok(id) => engine.wait(id).await,
            Err(refused) => Err(refused),
        };
        match ended {
            Ok(Ended::Done) => Ok(()),
            Ok(Ended::Failed | Ended::Cancelled) => {
                let failure = self.recalls.failures.lock().remove(&key);
                Err(failure.unwrap_or(Failure::Devices(AbortCode::EIO)))
            }
            Err(error) => {
                debug!(%error, "a recall cannot be queued");
                Err(Failure::Busy)
            }
        }
    }

    /// The job that recalls a file.
    fn recall_job(
        &self,
        status: &VnodeStatus,
        archive: &ArchiveState,
        user: Option<ViceId>,
    ) -> NewJob {
        let copies = self
            .in_order(archive.current().copied())
            .unwrap_or_default();
        let listed = copies.first().and_then(|copy| {
            let storage = self.storage()?;
            storage.devices.get(copy.osd)
        });
        let archive = listed.map_or_else(String::new, |listed| hsm::resource_of(&listed.entry));
        hsm::recall_of(status.fid, status.length, archive, user)
    }

    /// Recalls a file for a job. A failure is kept for the callers that wait for the job. Returns
    /// the bytes; 0: the file is online.
    ///
    /// # Errors
    /// As [`Objects::recall`].
    pub(crate) async fn recall_for_job(
        self: &Arc<Self>,
        volume: &Arc<Volume>,
        fid: Fid,
    ) -> Result<u64, Failure> {
        let Some((status, archive)) = wiped_file(volume, fid).await? else {
            return Ok(0);
        };
        let result = self.recall_logged(volume, &status, &archive).await;
        let key = archive.contents.map(|contents| (fid.vnode, contents));
        if let (Ok(()), Some(key)) = (&result, &key) {
            self.recalls.answer(key);
        }
        if let (Err(failure), Some(key)) = (&result, key) {
            // Without a caller that waits, no caller removes it.
            if self.recalls.running.lock().contains_key(&key) {
                self.recalls.failures.lock().insert(key, failure.clone());
            }
        }
        result.map(|()| status.length)
    }

    async fn recall_logged(
        self: &Arc<Self>,
        volume: &Arc<Volume>,
        status: &VnodeStatus,
        archive: &ArchiveState,
    ) -> Result<(), Failure> {
        let result = self.recall_now(volume, status, archive).await;
        if let Err(failure) = &result {
            Counters::count(&self.counters.recalls_failed);
            warn!(fid = %status.fid, %failure, "a file could not be recalled");
        }
        result
    }

    async fn recall_now(
        self: &Arc<Self>,
        volume: &Arc<Volume>,
        status: &VnodeStatus,
        archive: &ArchiveState,
    ) -> Result<(), Failure> {
        let fid = status.fid;
        let wiped = archive.wiped.as_ref().ok_or(Failure::Busy)?;
        let mut last = Failure::NoGoodCopy;
        for copy in self.in_order(archive.current().copied())? {
            match self.recall_copy(volume, status, wiped, &copy).await {
                Ok(()) => {
                    Counters::count(&self.counters.recalled);
                    Counters::add(&self.counters.recalled_bytes, status.length);
                    info!(%fid, osd = copy.osd, length = status.length, "a file was recalled");
                    return Ok(());
                }
                Err(NotRead::WrongBytes(reason)) => {
                    let name = self.device_name(copy.osd);
                    warn!(%fid, osd = copy.osd, name, reason,
                        "a copy in an archive is bad and is not used any more");
                    self.mark_bad(volume, fid, copy).await?;
                }
                Err(NotRead::Failed(failure)) => {
                    let name = self.device_name(copy.osd);
                    warn!(%fid, osd = copy.osd, name, %failure, "an archive did not deliver a copy");
                    last = failure;
                }
            }
        }
        Err(last)
    }

    /// The copies that may be recalled. Archives with a higher read priority come first.
    pub(super) fn in_order(
        &self,
        copies: impl Iterator<Item = ArchiveCopy>,
    ) -> Result<Vec<ArchiveCopy>, Failure> {
        let devices = &self.needed()?.devices;
        let mut copies: Vec<ArchiveCopy> = copies.collect();
        copies.sort_by_key(|copy| std::cmp::Reverse(devices.read_priority(copy.osd)));
        Ok(copies)
    }

    async fn recall_copy(
        self: &Arc<Self>,
        volume: &Arc<Volume>,
        status: &VnodeStatus,
        wiped: &Layout,
        copy: &ArchiveCopy,
    ) -> Result<(), NotRead> {
        let fid = status.fid;
        let storage = self.needed()?;
        let next = place(self, status, wiped).await?;
        let pending = self.pending_versions.store(fid, &next);
        let online = match fill(storage, status, next.clone(), copy).await {
            Ok(layout) => self
                .name_online(volume, fid, layout)
                .await
                .map_err(Into::into),
            Err(failure) => Err(failure),
        };
        if online.is_err() {
            for placed in next.objects.iter() {
                let object = next.object(fid.vnode, fid.uniquifier, placed);
                remove(storage, placed.osd, &[(object, 0)], REMOVE_HARD).await;
            }
        }
        drop(pending);
        online
    }

    /// Names the new objects. No store is in progress meanwhile: it would not know them, and they
    /// would not be removed after it.
    async fn name_online(
        self: &Arc<Self>,
        volume: &Arc<Volume>,
        fid: Fid,
        layout: Layout,
    ) -> Result<(), Failure> {
        let store_lock = self.store_locks.wait(fid).await.ok_or(Failure::Busy)?;
        let volume = volume.clone();
        let changed = blocking(move || volume.restore_online(fid.vnode, fid.uniquifier, &layout));
        let changed = match changed.await {
            Err(cellar_volume::Error::Busy(_)) => return Err(Failure::Busy),
            changed => changed?,
        };
        changed.durable.await?;
        drop(store_lock);
        match changed.outcome {
            0 => Err(Failure::Busy),
            _ => Ok(()),
        }
    }

    /// Records that a copy is bad. It stays in the record, so that an administrator sees it.
    /// Returns `false` if no record has it any more.
    pub(super) async fn mark_bad(
        &self,
        volume: &Arc<Volume>,
        fid: Fid,
        bad: ArchiveCopy,
    ) -> Result<bool, Failure> {
        let marked = self
            .edit_copy(volume, fid, bad, |copy| copy.bad = true)
            .await?;
        if marked {
            Counters::count(&self.counters.copies_bad);
        }
        Ok(marked)
    }

    /// Changes the record of a copy. Returns `false` if no record has it any more, or if nothing
    /// changed.
    pub(super) async fn edit_copy(
        &self,
        volume: &Arc<Volume>,
        fid: Fid,
        which: ArchiveCopy,
        mut edit: impl FnMut(&mut ArchiveCopy) + Send + 'static,
    ) -> Result<bool, Failure> {
        let volume = volume.clone();
        let changed = blocking(move || {
            volume.edit_archive_copies(fid.vnode, fid.uniquifier, |copy| {
                if (copy.osd, copy.serial) == (which.osd, which.serial) {
                    edit(copy);
                }
                true
            })
        });
        match changed.await {
            Err(cellar_volume::Error::Busy(_)) => Ok(false),
            changed => {
                let changed = changed?;
                changed.durable.await?;
                Ok(changed.outcome > 0)
            }
        }
    }
}

/// The key of a file's recall.
fn recall_key(status: &VnodeStatus, archive: &ArchiveState) -> Result<RecallKey, Failure> {
    let contents = archive.contents.ok_or(Failure::Busy)?;
    Ok((status.fid.vnode, contents))
}

/// The status and the copies of a file that is wiped; `None` for any other file.
async fn wiped_file(
    volume: &Arc<Volume>,
    fid: Fid,
) -> Result<Option<(VnodeStatus, ArchiveState)>, Failure> {
    let volume = volume.clone();
    run_apart(move || {
        let archive = volume.archive_state(fid)?;
        let wiped = archive.wiped.is_some();
        let found = wiped.then(|| Ok((volume.status(fid)?, archive)));
        found.transpose()
    })
    .await
}

/// New objects for a wiped file, in the shape and with the version that it had.
async fn place(objects: &Objects, status: &VnodeStatus, wiped: &Layout) -> Result<Layout, Failure> {
    let wanted = ObjectSpec {
        shape: wiped.shape,
        class: None,
        by_size: false,
    };
    let file = NewFile {
        volume: wiped.volume,
        wanted: &wanted,
        size: status.length,
        serial: wiped.serial,
        borrowed: 0,
    };
    let made = liveness::new_layout(objects, &file).await?;
    let mut made = made.ok_or(Failure::Volume(cellar_volume::Error::DiskFull))?;
    (made.version, made.serial) = (wiped.version, wiped.serial);
    let mut taken = Vec::new();
    for placed in made.objects.as_mut_slice() {
        while taken.contains(&placed.serial) || placed.serial >> 31 == 0 {
            placed.serial = upper_serial();
        }
        taken.push(placed.serial);
    }
    Ok(made)
}

/// Copies the bytes of a copy to new objects, and compares them with the record.
async fn fill(
    storage: &Storage,
    status: &VnodeStatus,
    next: Layout,
    copy: &ArchiveCopy,
) -> Result<Layout, NotRead> {
    let fid = status.fid;
    let options = WriteOptions {
        patience: OBJECT_PATIENCE * 4,
        ..WriteOptions::default()
    };
    let mut writer = Writer::new(storage.devices.clone(), storage.set(fid, next), 0, options)?;
    let call = copy_reader::open(storage, fid, copy, status.length, 0).await?;
    writer.begin(0, status.length).await?;
    let to_objects = async |piece| Ok(writer.push(piece).await?);
    copy_reader::read_compared(call, copy, to_objects).await?;
    Ok(writer.finish().await?.layout)
}
