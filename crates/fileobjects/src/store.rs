//! StoreData into a file that is in objects, or goes there with this store.
//!
//! 1. A store waits for the lock of the file, so there is one writer of a file at a time. Readers
//!    are not affected, because they read the versions in their layout.
//! 2. The layout of the store has a new version.
//!    - A file that is in objects gets only the new bytes; the devices share the rest.
//!    - A file on this server gets new objects. So does a file whose objects belong to another
//!      volume, and one of which no byte is kept. Kept bytes are copied to the new objects, before
//!      or after the new bytes.
//!    - If too few devices are up for new objects, a file of which no byte is kept continues with
//!      its present ones.
//! 3. When all devices have answered, one change of the vnode makes the store effective. It
//!    requires that the data version is still the one with which the store began. Otherwise an
//!    ordinary store on this server has *overtaken* it ([`WriteOutcome::Overtaken`]). Its written
//!    data is removed. It begins again with the same bytes, in the place that the file then has.
//!
//!    A volume that moves to another server takes no changes from then on. The versions of its next
//!    server are above all that were given before (`super::lending`). Consider a store that began
//!    before the move, and whose bytes or lock took long. It would write a version above those of
//!    the next server, and the device would then remove those. Therefore the store checks again
//!    that the volume takes changes, after its version was given and before a device learns of it.
//! 4. If a device fails during a store to new objects, the objects are made on other devices, once,
//!    if the source of the bytes can begin again ([`Source::rewind`]).
//! 5. The answer waits until the change is durable and all hosts were notified, as for any store.

use std::sync::Arc;

use bytes::Bytes;
use cellar_objects::{WriteOptions, Writer, Written};
use cellar_rpc::blocking;
use cellar_volume::{Changed, Error, LayoutChange, StoreSpec, VnodeStatus, Volume};
use cellar_wire::ids::{Fid, ViceId};
use cellar_wire::object::Layout;
use parking_lot::Mutex;

use super::Objects;
use super::apart::run_apart;
use super::failure::{Failure, WriteFailure};
use super::figures::Counters;
use super::layouts::{self, NewFile};
use super::limits::{OBJECT_MOVE_MAX, OBJECT_PATIENCE};
use super::liveness;
use super::pending_versions::VersionGuard;
use super::policies::{ObjectSpec, StorageDecision};
use super::retained::RetainedData;
use super::store_locks::StoreLock;

/// The source of the bytes of a store.
pub trait Source {
    /// The next bytes, never empty. `None` when all announced bytes have arrived.
    fn next(&mut self) -> impl Future<Output = Result<Option<Bytes>, Failure>>;

    /// Begins again with the first byte. Returns `false` if the bytes were not kept.
    fn rewind(&mut self) -> bool;
}

/// The end of writing the bytes of a store to objects.
pub enum WriteOutcome {
    /// The devices have the bytes. [`Stored::commit`] makes them the contents of the file.
    Written(Box<Stored>),
    /// No devices take files of that size, and the file must stay on this server. The source is at
    /// its first byte.
    NoDevices,
    /// Another store changed the file meanwhile. The written data is removed.
    Overtaken,
}

/// The end of the change that gives a file its new objects.
pub enum CommitOutcome {
    /// The file has the new contents.
    Done(Changed<VnodeStatus>),
    /// Another store changed the file meanwhile. Nothing has changed.
    Overtaken,
}

/// A permitted store into objects that waits for its bytes.
pub(super) struct Storing {
    objects: Arc<Objects>,
    volume: Arc<Volume>,
    fid: Fid,
    /// The file before the store.
    before: VnodeStatus,
    old: Option<Arc<Layout>>,
    next: Layout,
    /// The file keeps its objects; only the new bytes are written.
    goes_on: bool,
    store_lock: StoreLock,
    version_guard: VersionGuard,
}

/// The result of a store into objects, before the change of the vnode.
pub struct Stored {
    pub(super) objects: Arc<Objects>,
    pub(super) volume: Arc<Volume>,
    pub(super) fid: Fid,
    pub(super) before: VnodeStatus,
    pub(super) old: Option<Arc<Layout>>,
    /// The layout with which it began.
    pub(super) next: Layout,
    /// The layout with the written versions.
    pub(super) layout: Layout,
    pub(super) length: u64,
    /// Held until the change is made, or the written data is removed.
    pub(super) held: Mutex<Option<(StoreLock, VersionGuard)>>,
}

impl Objects {
    /// The place of the file's bytes after a store that leaves it `length` bytes long and keeps
    /// `kept` of the present ones. `ids` are the caller's id and groups.
    ///
    /// # Errors
    /// `NotKnownYet`, for which [`Objects::when_loaded`] waits; the errors of the volume.
    pub fn place(
        &self,
        volume: &Volume,
        status: &VnodeStatus,
        ids: &[ViceId],
        length: u64,
        kept: u64,
    ) -> Result<StorageDecision, Failure> {
        let Some(storage) = self.storage() else {
            // Shortly after the start, if object storage will be used.
            if volume.policy() != 0 {
                self.loaded_lists.check()?;
            }
            return Ok(StorageDecision::Here);
        };
        let layout = volume.layout(status.fid)?;
        if layout.is_none()
            && (volume.policy() == 0 || length == 0 || status.length > OBJECT_MOVE_MAX)
        {
            return Ok(StorageDecision::Here);
        }
        if let Some(layout) = &layout
            && kept > 0
        {
            // A file in objects stays there.
            return Ok(StorageDecision::Objects(ObjectSpec {
                shape: layout.shape,
                class: None,
                by_size: false,
            }));
        }
        if volume.policy() != 0 {
            self.loaded_lists.check()?;
        }
        let threshold = storage.threshold();
        Ok(self
            .policies
            .place(volume, status, length, ids, threshold)?)
    }

    /// Writes the bytes of a permitted store into a file that is in objects or goes there as
    /// `wanted`. If a device of new objects fails that was healthy before, tries other devices
    /// once.
    ///
    /// # Errors
    /// `Busy`: other stores of the file take too long. The errors of the source, of the devices and
    /// of the volume.
    pub async fn write(
        self: &Arc<Self>,
        volume: &Arc<Volume>,
        fid: Fid,
        wanted: &ObjectSpec,
        (spec, announced): (&StoreSpec, u64),
        source: &mut impl Source,
    ) -> Result<WriteOutcome, Failure> {
        let mut is_first = true;
        loop {
            let storing = Storing::begin(self, volume, fid, wanted, spec, announced).await?;
            let Some(storing) = storing else {
                return Ok(WriteOutcome::NoDevices);
            };
            let is_new = !storing.goes_on;
            match storing.write(spec, announced, source).await {
                Err(Failure::Devices(_)) if is_new && is_first && source.rewind() => {
                    is_first = false;
                }
                outcome => return outcome,
            }
        }
    }
}

impl Storing {
    /// Waits for the lock, and chooses the objects. `None` if no devices take files of that size
    /// and the file must stay on this server.
    async fn begin(
        objects: &Arc<Objects>,
        volume: &Arc<Volume>,
        fid: Fid,
        wanted: &ObjectSpec,
        spec: &StoreSpec,
        announced: u64,
    ) -> Result<Option<Self>, Failure> {
        let store_lock = objects.store_locks.wait(fid).await;
        let store_lock = store_lock.ok_or(Failure::Busy)?;
        let looked = {
            let volume = volume.clone();
            run_apart(move || {
                let found = volume.status_and_layout(fid)?;
                Ok((found, volume.last_serial(fid)?, volume.info()))
            })
            .await?
        };
        let ((before, old), serial, info) = looked;
        let kept = before.length.min(spec.file_length);
        let length = kept.max(spec.position + announced);
        let file = NewFile {
            volume: info.id,
            wanted,
            size: length,
            serial,
            borrowed: info.borrowed,
        };
        let fresh = || liveness::new_layout(objects, &file);
        let replacement = match kept {
            0 => Some(fresh().await),
            _ => None,
        };
        // New objects may need more devices than are up. Then the file keeps its objects, and their
        // contents are replaced.
        let is_replaced = matches!(replacement, Some(Ok(_)));
        let own = match &old {
            Some(old) if !is_replaced && objects.writes_in_place(volume, fid, old).await => {
                Some(old)
            }
            _ => None,
        };
        let goes_on = own.is_some();
        let next = match (own, replacement) {
            (Some(old), _) => Some(layouts::next(objects, fid, old, length, info.borrowed)?),
            (None, Some(made)) => made?,
            (None, None) => fresh().await?,
        };
        check_takes_changes(volume).await?;
        Ok(next.map(|next| Self {
            version_guard: objects.pending_versions.store(fid, &next),
            objects: objects.clone(),
            volume: volume.clone(),
            fid,
            before,
            old,
            next,
            goes_on,
            store_lock,
        }))
    }

    /// Prepares to move a file to objects of its own, with its present contents. The caller has its
    /// store lock.
    pub(super) async fn moving(
        objects: &Arc<Objects>,
        volume: &Arc<Volume>,
        before: VnodeStatus,
        old: Option<Arc<Layout>>,
        store_lock: StoreLock,
        wanted: &ObjectSpec,
        serial: u32,
    ) -> Result<Option<Self>, Failure> {
        let info = volume.info();
        let file = NewFile {
            volume: info.id,
            wanted,
            size: before.length,
            serial,
            borrowed: info.borrowed,
        };
        let next = liveness::new_layout(objects, &file).await?;
        check_takes_changes(volume).await?;
        Ok(next.map(|next| Self {
            version_guard: objects.pending_versions.store(before.fid, &next),
            objects: objects.clone(),
            volume: volume.clone(),
            fid: before.fid,
            before,
            old,
            next,
            goes_on: false,
            store_lock,
        }))
    }

    /// Copies the file, and returns its new layout. No promise is broken, because the contents are
    /// the same.
    pub(super) async fn move_out(self) -> Result<(Arc<Layout>, StoreLock), Failure> {
        let (volume, fid, old) = (self.volume.clone(), self.fid, self.old.clone());
        let version = self.before.data_version;
        let spec = StoreSpec::at(0);
        let WriteOutcome::Written(stored) = self.write(&spec, 0, &mut NoBytes).await? else {
            return Err(Failure::Busy);
        };
        let layout = stored.layout.clone();
        let changed = blocking(move || match &old {
            None => volume.adopt_layout(fid, version, layout),
            Some(old) => volume.exchange_layout(fid, old, layout),
        })
        .await;
        if let Err(cause) = &changed {
            stored.give_up(Some(cause));
        }
        match changed {
            Err(Error::Stale(_)) => return Err(Failure::Busy),
            changed => changed?.durable.await?,
        }
        let (store_lock, _making) = stored.held.into_inner().ok_or(Failure::Busy)?;
        Ok((Arc::new(stored.layout), store_lock))
    }

    /// Writes the arriving bytes, and those that the file keeps, to objects.
    async fn write(
        self,
        spec: &StoreSpec,
        announced: u64,
        source: &mut impl Source,
    ) -> Result<WriteOutcome, Failure> {
        let objects = self.objects.clone();
        let fid = self.fid;
        let failure = match self.written(spec, announced, source).await {
            Ok((written, length)) => {
                Counters::count(&objects.counters.stored);
                return Ok(WriteOutcome::Written(Box::new(Stored {
                    objects,
                    volume: self.volume,
                    fid,
                    before: self.before,
                    old: self.old,
                    next: self.next,
                    layout: written.layout,
                    length,
                    held: Mutex::new(Some((self.store_lock, self.version_guard))),
                })));
            }
            Err(failure) => failure,
        };
        // A store on this server removes the objects under a store that writes them.
        let is_overtaken = !matches!(failure, WriteFailure::Source(_)) && self.is_overtaken().await;
        let refusal = self.refusal_of(failure, is_overtaken);
        tracing::debug!(%fid, ?refusal, is_overtaken, "a store into objects failed");
        objects.remove_failed_store(
            &self.volume,
            fid,
            self.next,
            (self.store_lock, self.version_guard),
        );
        if is_overtaken {
            return Ok(WriteOutcome::Overtaken);
        }
        Counters::count(&objects.counters.stores_failed);
        Err(refusal)
    }

    /// Whether another store has changed the file since this one began.
    async fn is_overtaken(&self) -> bool {
        let (volume, fid) = (self.volume.clone(), self.fid);
        let status = run_apart(move || Ok(volume.status(fid)?)).await;
        status.is_ok_and(|status| status.data_version != self.before.data_version)
    }

    /// The refusal of a failed store. A device that failed for a new file gets no new files for a
    /// while, whatever it answered. So the next attempt uses other devices.
    fn refusal_of(&self, failure: WriteFailure, is_overtaken: bool) -> Failure {
        match failure {
            WriteFailure::Other(refusal) | WriteFailure::Source(refusal) => refusal,
            WriteFailure::Writing(error) => {
                let storage = self.objects.storage();
                if let (false, Some(storage)) = (self.goes_on || is_overtaken, storage)
                    && let cellar_objects::Error::Device { osd, .. } = error
                {
                    storage.devices.suspect(osd);
                }
                Failure::Devices(error.code())
            }
        }
    }

    /// The bytes that the file keeps and that must be copied.
    fn retained(&self, kept: u64) -> RetainedData {
        match &self.old {
            _ if kept == 0 => RetainedData::Nothing,
            None => RetainedData::Here(self.volume.clone(), self.fid),
            Some(old) => {
                let whole = self.before.length;
                RetainedData::Objects(self.objects.clone(), self.fid, old.clone(), whole)
            }
        }
    }

    /// Writes the data. Returns what was written, and the new length of the file.
    async fn written(
        &self,
        spec: &StoreSpec,
        announced: u64,
        source: &mut impl Source,
    ) -> Result<(Written, u64), WriteFailure> {
        let storage = self.objects.needed()?;
        let kept = self.before.length.min(spec.file_length);
        let end = spec.position + announced;
        let before = if self.goes_on { self.before.length } else { 0 };
        let options = WriteOptions {
            patience: OBJECT_PATIENCE * 4,
            ..WriteOptions::default()
        };
        let set = storage.set(self.fid, self.next.clone());
        let mut writer = Writer::new(storage.devices.clone(), set, before, options)?;
        if self.goes_on {
            if kept < before {
                writer.truncate(kept).await?;
            }
            writer.begin(spec.position, announced).await?;
            pass_on(&mut writer, source, announced).await?;
        } else {
            let mut kept_bytes = self.retained(kept);
            let (head, tail) = (kept.min(spec.position), kept.max(end));
            if spec.position <= kept {
                // The kept and the new bytes are adjacent: one run.
                writer.begin(0, tail).await?;
                kept_bytes.copy(&mut writer, 0..head).await?;
                pass_on(&mut writer, source, announced).await?;
                kept_bytes.copy(&mut writer, end.min(kept)..kept).await?;
            } else {
                writer.begin(0, kept).await?;
                kept_bytes.copy(&mut writer, 0..kept).await?;
                writer.begin(spec.position, announced).await?;
                pass_on(&mut writer, source, announced).await?;
            }
            if self.old.is_none() {
                Counters::count(&self.objects.counters.moved_out);
            }
        }
        let written = writer.finish().await?;
        for problem in &written.problems {
            Counters::count(&self.objects.counters.problems);
            let name = self.objects.device_name(problem.placed.osd);
            tracing::info!(fid = %self.fid, osd = problem.placed.osd, name, cause = %problem.cause,
                "a store goes on without a device");
        }
        Ok((written, kept.max(end)))
    }
}

impl Stored {
    /// Makes the change that gives the file the new contents. `spec` has the attributes.
    pub fn commit(
        &self,
        spec: &StoreSpec,
        context: cellar_volume::Context,
    ) -> cellar_volume::Result<CommitOutcome> {
        let change = LayoutChange {
            layout: self.layout.clone(),
            length: self.length,
            attributes: spec.attributes,
            clear_set_id: spec.clear_set_id,
            quota_slack: spec.quota_slack,
        };
        let expected = self.before.data_version;
        match self.volume.set_layout(self.fid, expected, &change, context) {
            Ok(changed) => Ok(CommitOutcome::Done(changed)),
            Err(Error::Stale(_)) => Ok(CommitOutcome::Overtaken),
            Err(error) => Err(error),
        }
    }

    /// The volume of the file.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// The file before the store.
    pub fn before(&self) -> &VnodeStatus {
        &self.before
    }

    /// The change was refused, or would come too late: removes the written data. If the volume went
    /// away during the store, another server may write the objects, and the data stays.
    pub fn give_up(&self, cause: Option<&Error>) {
        if cause.is_none_or(is_refused_here)
            && let Some(held) = self.held.lock().take()
        {
            let next = self.next.clone();
            self.objects
                .remove_failed_store(&self.volume, self.fid, next, held);
        }
    }

    /// After the change: queues the removal of old versions, and the repair of objects that lack
    /// the store.
    pub fn finish(&self) {
        if let Some(old) = &self.old {
            self.objects.forget(&self.volume, self.fid, old.clone());
        }
        self.objects
            .repair_after_store(self.fid, &self.layout, self.length);
    }
}

/// Checks that the volume takes changes. Called after a version was given.
pub(super) async fn check_takes_changes(volume: &Arc<Volume>) -> Result<(), Failure> {
    let volume = volume.clone();
    run_apart(move || Ok(volume.check_takes_changes()?)).await
}

/// Whether the change that ends a store was refused while the file still is on this server. Then no
/// other writer uses its objects before the data of this store was removed. For a volume that went
/// away during the store, another server may write them.
fn is_refused_here(error: &Error) -> bool {
    matches!(error, Error::Stale(_) | Error::OverQuota | Error::DiskFull)
}

/// No bytes.
struct NoBytes;

impl Source for NoBytes {
    async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        Ok(None)
    }

    fn rewind(&mut self) -> bool {
        true
    }
}

/// Passes the announced bytes of a store to the writer.
async fn pass_on(
    writer: &mut Writer,
    source: &mut impl Source,
    announced: u64,
) -> Result<(), WriteFailure> {
    let mut left = announced;
    while left > 0 {
        let next = source.next().await;
        let next = next.and_then(|bytes| bytes.ok_or(Failure::SourceEnded));
        let bytes = next.map_err(WriteFailure::Source)?;
        left = left.saturating_sub(bytes.len() as u64);
        writer.push(bytes).await?;
    }
    Ok(())
}
