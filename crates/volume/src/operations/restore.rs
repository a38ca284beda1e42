//! Restoring: the contents of a head are replaced, completely or in part, in one step.
//!
//! 1. A restore pins the epoch that the volume sees and begins the next one. It writes versions of
//!    the new epoch, in as many batches as necessary. No reader sees them: the volume shows the
//!    pinned epoch, and accepts no changes.
//! 2. The last batch has a few records. It makes the new epoch the head's, with the new info and
//!    counters, and drops the pin. So readers see all of the old contents or all of the new. So
//!    does a restart, wherever the power failed.
//! 3. The pin is durable, and so is a record that a restore was begun. A restore that does not
//!    commit is undone. Every vnode that it changed is in the index of changes of its epoch, before
//!    or together with the first piece of its body. The background removal deletes the versions
//!    that are newer than the pin and have no viewer. Only then changes are accepted again.
//!
//! The module `vnode` makes records of the incoming vnodes, `body` writes files and `directory`
//! writes directories. `stage` gathers batches. `sweep` does the work that is left when everything
//! has come.

mod body;
mod directory;
mod stage;
mod sweep;
mod vnode;
mod vnode_set;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use cellar_wire::ids::{Fid, Uniquifier, VnodeId, VolumeId};
use hashbrown::HashMap;

use crate::engine::batch::Batch;
use crate::engine::key::Key;
use crate::error::{Error, Result};
use crate::operations::snapshot::stage_reaping;
use crate::partition::Partition;
use crate::record::{
    CloneKind, CloneRef, CountersRecord, EPOCH_MAX, Received, RetiredRecord, VnodeRecord,
    VolumeRecord,
};
use crate::types::{Changed, RestoreMode, RestoredInfo, RetiredFile, VnodeImage, VolumeInfo};
use crate::volume::{Volume, check_info};
use body::FileBody;
use directory::DirectoryBody;
use stage::Stage;
use vnode_set::VnodeSet;

/// Bytes that the beginning and the end of a restore add to the table.
const RECORDS_GROWTH: u64 = 4 << 10;

/// A restore into a volume, from [`Partition::begin_restore`].
///
/// Vnodes come in any order, directories best before their contents. The bytes of each vnode follow
/// it in order. Dropping the restore, or an error of [`Restore::commit`], leaves the volume as it
/// was. After an error of any call, the only valid calls are [`Restore::abort`] and dropping.
#[must_use = "a restore that is dropped is undone"]
pub struct Restore {
    volume: Arc<Volume>,
    mode: RestoreMode,
    /// The epoch that was pinned.
    pin: u64,
    stage: Stage,
    current: Option<Current>,
    kept: VnodeSet,
    base: CountersRecord,
    tally: Tally,
    parents: HashMap<u32, Uniquifier>,
    /// Some vnode came when the uniquifier of its parent directory was not known yet.
    parents_open: bool,
    done: bool,
}

/// The error for bytes of a file that is in objects or in archives only.
const NO_BYTES: Error = Error::Invalid("the bytes of the file are elsewhere");

/// The restore's changes of the counters.
struct Tally {
    blocks: i64,
    files: i64,
    uniquifier_max: u32,
    /// The highest numbers that were put: of files, of directories.
    highest: [u32; 2],
}

/// The vnode whose bytes are coming.
struct Current {
    record: VnodeRecord,
    vnode: u32,
    content: Content,
}

enum Content {
    File(FileBody),
    Directory(DirectoryBody),
    VnodeRef(Vec<u8>),
    /// The bytes are in objects, or in archives only.
    Elsewhere,
}

impl std::fmt::Debug for Restore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Restore({}, {:?})", self.volume.id(), self.mode)
    }
}

impl Partition {
    /// Begins to restore a volume. The volume shows its present contents, and accepts no changes,
    /// until the restore is committed or undone.
    ///
    /// # Errors
    /// `NoVolume`, `DiskFull`. `Busy`: it is being restored, or that is being undone. `Invalid`: it
    /// is a clone beside its head, or an older one than another clone. `WrongBase`: it is not in
    /// the state that a delta builds on.
    pub fn begin_restore(&self, id: VolumeId, mode: RestoreMode) -> Result<Restore> {
        let core = &self.core;
        let _room = core.engine.admit(RECORDS_GROWTH)?;
        let _making = core.making.lock();
        let mut volume = core.volume(id)?.ok_or(Error::NoVolume(id))?;
        if !volume.is_head() {
            volume = core.promote(&volume)?;
        }
        let group = Arc::clone(&volume.group);
        let mut state = group.state.write();
        if volume.is_restoring() {
            core.reaper.wake();
            return Err(Error::Busy(id));
        }
        if let RestoreMode::Delta { base } = mode
            && volume.received()? != Some(base)
        {
            return Err(Error::WrongBase(volume.root()));
        }
        let counters = volume.lock_counters()?;
        let base = counters.record;
        let mut record = state.record.clone();
        let pin = record.epoch;
        record.add(CloneRef {
            id,
            epoch: pin,
            kind: CloneKind::Pin,
        });
        record.epoch += 1;
        let now = record.epoch;
        let mut batch = Batch::new();
        batch.put(Key::group(group.id.0), record.encode());
        batch.put(Key::restoring(group.id.0), Bytes::new());
        core.engine.commit(batch)?;
        state.record = record;
        state.restoring = true;
        volume.set_view(pin);
        drop((counters, state));
        Ok(Restore {
            stage: Stage::new(Arc::clone(&volume), now),
            volume,
            mode,
            pin,
            current: None,
            kept: VnodeSet::default(),
            base,
            tally: Tally {
                blocks: 0,
                files: 0,
                uniquifier_max: 0,
                highest: [0; 2],
            },
            parents: HashMap::new(),
            parents_open: false,
            done: false,
        })
    }
}

impl Restore {
    /// The volume with its old contents, which remain until the commit.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// Begins a vnode that is new or replaces an older one completely. Its `length` bytes follow.
    ///
    /// `Unsound`: it comes twice, or is not a valid vnode; `DiskFull`.
    pub fn put(&mut self, image: &VnodeImage) -> Result<()> {
        self.begin_vnode(image, None)
    }

    /// Begins a vnode that exists and gets these attributes. Of its bytes, only those that are
    /// pushed change.
    ///
    /// `WrongBase`: it does not exist, or not with the same kind, or the restore builds on nothing.
    pub fn patch(&mut self, image: &VnodeImage) -> Result<()> {
        let (vnode, uniquifier) = (image.vnode, image.uniquifier);
        if self.mode == RestoreMode::Full {
            return Err(Error::WrongBase(self.fid(vnode, uniquifier)));
        }
        let before = self.base_record(vnode.0)?;
        let same = |old: &VnodeRecord| (old.uniquifier, old.kind) == (uniquifier, image.kind);
        let before = before.filter(same);
        let before = before.ok_or_else(|| Error::WrongBase(self.fid(vnode, uniquifier)))?;
        self.begin_vnode(image, Some(before))
    }

    /// The next bytes of the vnode: of the file, of the directory's pages, of the link's target.
    /// Blocks of zeros become holes.
    ///
    /// `Invalid` for more bytes than the vnode has.
    pub fn push(&mut self, bytes: Bytes) -> Result<()> {
        let current = self.current_mut()?;
        match &mut current.content {
            Content::VnodeRef(target) => {
                if target.len() as u64 + bytes.len() as u64 > current.record.length {
                    return Err(Error::Invalid("more bytes than the link's target has"));
                }
                target.extend_from_slice(&bytes);
            }
            Content::Directory(directory) => directory.push(&bytes)?,
            Content::Elsewhere => return Err(NO_BYTES),
            Content::File(_) => self.with_file(|file, stage| file.push(stage, &bytes))?,
        }
        Ok(())
    }

    /// Skips the next bytes of the vnode. A patched vnode keeps its bytes there, or zeros if it had
    /// none; in a new vnode they are a hole.
    pub fn skip(&mut self, length: u64) -> Result<()> {
        match &mut self.current_mut()?.content {
            Content::VnodeRef(_) => Err(Error::Invalid("a link's target has no holes")),
            Content::Directory(directory) => directory.skip(length),
            Content::Elsewhere => Err(NO_BYTES),
            Content::File(_) => self.with_file(|file, stage| file.skip(stage, length)),
        }
    }

    /// The next bytes are zeros: a hole.
    pub fn zeros(&mut self, length: u64) -> Result<()> {
        match &mut self.current_mut()?.content {
            Content::VnodeRef(_) => Err(Error::Invalid("a link's target has no holes")),
            Content::Directory(directory) => directory.zeros(length),
            Content::Elsewhere => Err(NO_BYTES),
            Content::File(_) => self.with_file(|file, stage| file.zeros(stage, length)),
        }
    }

    /// Keeps an existing vnode as it is.
    ///
    /// `WrongBase`: it does not exist.
    pub fn keep(&mut self, vnode: VnodeId, uniquifier: Uniquifier) -> Result<()> {
        self.end_vnode()?;
        let wrong = Error::WrongBase(self.fid(vnode, uniquifier));
        if self.mode == RestoreMode::Full {
            return Err(wrong);
        }
        match self.base_record(vnode.0)? {
            Some(record) if record.uniquifier == uniquifier => {}
            _ => return Err(wrong),
        }
        self.kept.insert(vnode.0);
        if vnode.is_directory() {
            self.remember_parent(vnode.0, uniquifier)?;
        }
        Ok(())
    }

    /// Removes an existing vnode.
    ///
    /// `WrongBase`: it does not exist.
    pub fn remove(&mut self, vnode: VnodeId) -> Result<()> {
        self.end_vnode()?;
        self.check_first(vnode.0)?;
        let wrong = Error::WrongBase(self.fid(vnode, Uniquifier(0)));
        let old = self.base_record(vnode.0)?.ok_or(wrong)?;
        self.stage_removal(vnode.0, &old)
    }

    /// Enters a removed file whose copies in archives are kept. Does nothing if removals keep none
    /// here, or if the volume has [`RETIRED_MAX`](crate::RETIRED_MAX) such files.
    ///
    /// The file stays if the restore is undone: it names copies longer than needed, until its time
    /// has passed.
    pub fn retire(&mut self, file: &RetiredFile) -> Result<()> {
        self.end_vnode()?;
        let (core, group) = (&self.volume.core, &self.volume.group);
        if !core.keeps_removed.load(Ordering::Acquire) {
            return Ok(());
        }
        if !group.retired.take_place(|| core.count_retired(group))? {
            tracing::warn!(volume = %self.volume.id(), vnode = file.fid.vnode.0,
                "the copies of a removed file are not kept: the volume has too many removed files");
            return Ok(());
        }
        let value = RetiredRecord::received(file).encode();
        self.stage
            .put_retired(file.fid.vnode, file.fid.uniquifier, value);
        self.stage.flush_if_full()
    }

    /// Makes the restored vnodes the contents of the volume, in one step.
    ///
    /// # Errors
    /// `NoVolume`: the volume was deleted meanwhile. `DiskFull`. `Unsound`: there is no root
    /// directory. `Invalid`: bytes of the last vnode are missing, or the info is not valid. After
    /// an error the volume is as it was.
    pub fn commit(mut self, restored: RestoredInfo) -> Result<Changed<Arc<Volume>>> {
        self.end_vnode()?;
        self.sweep()?;
        self.stage.flush()?;
        let changed = self.finish(restored)?;
        self.done = true;
        Ok(changed)
    }

    /// Undoes the restore. When this returns without an error, the volume accepts changes again.
    pub fn abort(mut self) -> Result<()> {
        self.done = true;
        self.stage.discard();
        self.volume.group.state.write().restoring = false;
        let core = &self.volume.core;
        let undone = core.undo_restore(self.volume.group.id);
        if !matches!(undone, Ok(true)) {
            core.reaper.wake();
        }
        undone.map(drop)
    }

    fn finish(&mut self, restored: RestoredInfo) -> Result<Changed<Arc<Volume>>> {
        let volume = Arc::clone(&self.volume);
        let (core, group) = (&volume.core, &volume.group);
        let mut info = restored.info;
        let counters = self.counters(&info, restored.next_uniquifier)?;
        info.id = volume.id();
        if info.parent.0 == 0 {
            info.parent = info.id;
        }
        check_info(&info)?;
        let _room = core.engine.admit(RECORDS_GROWTH)?;
        let _making = core.making.lock();
        let mut state = group.state.write();
        if volume.is_gone() {
            return Err(Error::NoVolume(volume.id()));
        }
        let mut record = state.record.clone();
        record.clones.retain(|clone| clone.kind != CloneKind::Pin);
        let now = record.epoch;
        // Changes are known from these contents on.
        record.history_from = now;
        record.epoch += 1;
        let mut batch = Batch::new();
        // If the volume was empty, no old versions are left.
        let reaping = match self.base.files {
            0 => 0,
            _ => stage_reaping(&core.engine, &mut batch, group, &record, self.pin)?,
        };
        let volume_record = VolumeRecord {
            info,
            group: group.id,
            epoch: EPOCH_MAX,
            received: restored
                .received
                .map(|state| Received { state, epoch: now }),
        };
        batch.put(Key::volume(volume.id().0), volume_record.encode());
        batch.put(Key::group(group.id.0), record.encode());
        batch.put(Key::counters(group.id.0), counters.encode());
        batch.delete(Key::restoring(group.id.0));
        // Reserved numbers were for vnodes of the old contents.
        batch.delete(Key::reserved(group.id.0));
        let durable = core.engine.commit(batch)?;
        state.record = record;
        state.reaping += reaping;
        state.restoring = false;
        // A file that came twice was counted twice.
        group.retired.count_again();
        core.supersede(volume.id());
        let outcome = core.attach_new(
            Arc::clone(group),
            volume_record,
            counters,
            EPOCH_MAX,
            &durable,
        );
        outcome.go_on_for(&volume);
        drop(state);
        core.reaper.wake();
        Ok(Changed { outcome, durable })
    }

    /// The counters of the restored volume.
    fn counters(&self, info: &VolumeInfo, next_uniquifier: u32) -> Result<CountersRecord> {
        let (base, tally) = (&self.base, &self.tally);
        let [file, directory] = tally.highest;
        Ok(CountersRecord {
            blocks_used: base.blocks_used.saturating_add_signed(tally.blocks),
            files: base.files.saturating_add_signed(tally.files),
            updated: info.updated,
            update_counter: info.update_counter,
            next_directory: base.next_directory.max(directory.saturating_add(2)),
            next_file: base.next_file.max(file.saturating_add(2)),
            next_uniquifier: base
                .next_uniquifier
                .max(next_uniquifier)
                .max(tally.uniquifier_max.saturating_add(1)),
            removed: base.removed,
        })
    }

    fn current_mut(&mut self) -> Result<&mut Current> {
        let current = self.current.as_mut();
        current.ok_or(Error::Invalid("bytes before any vnode"))
    }

    fn with_file(
        &mut self,
        work: impl FnOnce(&mut FileBody, &mut Stage) -> Result<()>,
    ) -> Result<()> {
        if let Some(current) = &mut self.current
            && let Content::File(file) = &mut current.content
        {
            work(file, &mut self.stage)?;
        }
        self.stage.flush_if_full()
    }

    fn fid(&self, vnode: VnodeId, uniquifier: Uniquifier) -> Fid {
        Fid {
            volume: self.volume.id(),
            vnode,
            uniquifier,
        }
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        if !self.done {
            self.volume.group.state.write().restoring = false;
            self.volume.core.reaper.wake();
        }
    }
}
