//! One open volume: statuses, lookups, its own record. The operations are in modules of their own.

mod directories;
mod loaded_vnodes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use bytes::Bytes;
use cellar_wire::acl::AccessList;
use cellar_wire::ids::{AfsTime, Fid, ViceId, VnodeId, VolumeId};
use parking_lot::{Mutex, MutexGuard, RwLock};

pub(crate) use loaded_vnodes::Locked;

use crate::clock;
use crate::engine::key::{Key, Kind};
use crate::error::{Error, Result};
use crate::record::{CountersRecord, EPOCH_MAX, VnodeRecord, VolumeRecord};
use crate::state::core::{Core, Counters, Group, GroupState};
use crate::state::hold::Hold;
use crate::state::pending_changes::PendingChanges;
use crate::state::reserve::Reserved;
use crate::state::ticket::{Ticket, is_nonblocking};
use crate::state::usage::Usage;
use crate::state::vnode_slots::{Loaded, VnodeSlot};
use crate::types::{Changed, StateId, VnodeStatus, VolumeInfo, VolumeKind};

/// An open volume.
pub struct Volume {
    pub(crate) core: Arc<Core>,
    pub(crate) group: Arc<Group>,
    id: VolumeId,
    kind: AtomicU8,
    /// The last epoch it sees. For a head it changes when a restore begins, and when one is undone.
    view: AtomicU64,
    is_head: bool,
    refuses_changes: AtomicBool,
    /// Distinguishes this opening of the volume from earlier ones in the names of slots.
    instance: u32,
    record: RwLock<VolumeRecord>,
    counters: Mutex<Counters>,
    /// `HERE`, `REPLACED` or `DELETED`.
    presence: AtomicU8,
    /// For a volume that was replaced: keeps the versions that it saw.
    hold: Mutex<Option<Hold>>,
    /// Held during renames between directories.
    renames: Mutex<()>,
    pub(crate) pending_changes: PendingChanges,
    pub(crate) usage: Usage,
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Volume({})", self.id)
    }
}

const HERE: u8 = 0;
const REPLACED: u8 = 1;
const DELETED: u8 = 2;

impl Volume {
    pub(crate) fn new(
        core: &Arc<Core>,
        group: Arc<Group>,
        record: VolumeRecord,
        counters: CountersRecord,
        view: u64,
    ) -> Self {
        Self {
            core: Arc::clone(core),
            group,
            id: record.info.id,
            kind: AtomicU8::new(record.info.kind as u8),
            view: AtomicU64::new(view),
            is_head: record.epoch == EPOCH_MAX,
            refuses_changes: AtomicBool::new(false),
            instance: core.next_instance(),
            record: RwLock::new(record),
            counters: Mutex::new(Counters {
                record: counters,
                reserved: Reserved::default(),
            }),
            presence: AtomicU8::new(HERE),
            hold: Mutex::default(),
            renames: Mutex::new(()),
            pending_changes: PendingChanges::default(),
            usage: Usage::default(),
        }
    }

    /// The id.
    pub fn id(&self) -> VolumeId {
        self.id
    }

    /// RW, RO or backup.
    pub fn kind(&self) -> VolumeKind {
        match self.kind.load(Ordering::Acquire) {
            0 => VolumeKind::ReadWrite,
            1 => VolumeKind::ReadOnly,
            _ => VolumeKind::Backup,
        }
    }

    pub(crate) fn set_kind(&self, kind: VolumeKind) {
        self.kind.store(kind as u8, Ordering::Release);
    }

    /// The root directory.
    pub fn root(&self) -> Fid {
        Fid::root(self.id)
    }

    /// Returns whether it is an RW volume.
    pub fn is_writable(&self) -> bool {
        self.kind() == VolumeKind::ReadWrite
    }

    /// Returns whether it is the head of its group: it sees the newest contents, and can be
    /// restored. RW volumes are heads, and so is every volume that was not made as a clone.
    pub fn is_head(&self) -> bool {
        self.is_head
    }

    /// Returns whether a restore is running or being undone. Changes are refused meanwhile.
    pub fn is_restoring(&self) -> bool {
        self.is_head && self.view() != EPOCH_MAX
    }

    /// Refuses changes with `Error::Busy` from now on, or accepts them again. When this returns,
    /// all changes that were accepted before are made, and no further change follows. Forgotten at
    /// a restart.
    pub fn refuse_changes(&self, refuse: bool) {
        let _no_change = self.group.state.write();
        self.refuses_changes.store(refuse, Ordering::Release);
    }

    /// Takes over the setting of [`Self::refuse_changes`] from another opening of the volume.
    pub(crate) fn go_on_for(&self, before: &Self) {
        let refuses = before.refuses_changes.load(Ordering::Acquire);
        self.refuses_changes.store(refuses, Ordering::Release);
    }

    /// Checks that changes are accepted at this moment. A caller that was given a number or a time
    /// checks this afterwards. If the check succeeds, the number was given before any later
    /// [`Self::refuse_changes`] returned.
    ///
    /// # Errors
    /// The error with which a change would be refused: `Busy`, `ReadOnly`, or `NoVolume` for a
    /// volume that was deleted or replaced. `NoVolume` also for a volume that is not in service.
    pub fn check_takes_changes(&self) -> Result<()> {
        let state = if is_nonblocking() {
            self.group.state.try_read().ok_or(Error::WouldBlock)?
        } else {
            self.group.state.read()
        };
        self.check_changeable(&state)?;
        match self.is_in_service() {
            true => Ok(()),
            false => Err(Error::NoVolume(self.id)),
        }
    }

    /// Checks that a change can begin. `state` is the group's locked state.
    pub(crate) fn check_changeable(&self, state: &GroupState) -> Result<()> {
        if !self.is_head() || !state.record.has_head() || self.is_gone() {
            return Err(Error::NoVolume(self.id));
        }
        self.check_open_to_changes()
    }

    /// Checks that changes are accepted at this moment. The caller has the group's state locked.
    pub(crate) fn check_open_to_changes(&self) -> Result<()> {
        if self.is_restoring() || self.refuses_changes.load(Ordering::Acquire) {
            return Err(Error::Busy(self.id));
        }
        self.check_writable()
    }

    /// The last epoch that the volume sees.
    pub(crate) fn view(&self) -> u64 {
        self.view.load(Ordering::Acquire)
    }

    /// Sets the view. The caller has the group's state locked, and no version is newer than both
    /// views.
    pub(crate) fn set_view(&self, view: u64) {
        self.view.store(view, Ordering::Release);
    }

    /// When the volume (for a clone: the clone) was made: the date of AFSVolSync.
    pub fn created(&self) -> AfsTime {
        self.record.read().info.created
    }

    /// The owner: the owner of the root directory.
    pub fn owner(&self) -> ViceId {
        self.record.read().info.owner
    }

    /// Returns whether clients may see the volume: it is in service, and declared sound.
    pub fn is_in_service(&self) -> bool {
        let record = self.record.read();
        record.info.in_service && record.info.blessed
    }

    /// Returns whether the volume is on-line: no program has taken it off-line.
    pub fn is_online(&self) -> bool {
        self.record.read().info.online
    }

    /// Returns whether it was deleted or replaced since it was opened. If so, look it up again. A
    /// volume that was replaced still reads as it was.
    pub fn is_gone(&self) -> bool {
        self.presence.load(Ordering::Acquire) != HERE
    }

    pub(crate) fn mark_gone(&self) {
        self.presence.store(DELETED, Ordering::Release);
    }

    /// Another volume has its place. This one can be read as long as a reference to it exists.
    pub(crate) fn mark_replaced(&self, hold: Hold) {
        *self.hold.lock() = Some(hold);
        self.presence.store(REPLACED, Ordering::Release);
    }

    /// Returns everything known about the volume.
    pub fn info(&self) -> VolumeInfo {
        let mut info = {
            let record = self.record.read();
            let mut info = record.info.clone();
            self.usage.show_in(&mut info, clock::time());
            info
        };
        if self.is_head {
            self.counters.lock().show_in(&mut info);
        }
        info
    }

    /// Changes name, quotas, dates, messages, flags, owner, and ids of clones. The volume's own id,
    /// kind and usage stay. Later changes of an RW volume update the date that is set here.
    pub fn update_info(
        &self,
        _now: AfsTime,
        edit: impl FnOnce(&mut VolumeInfo),
    ) -> Result<Changed<VolumeInfo>> {
        let _room = self.core.engine.admit(0)?;
        let _state = if is_nonblocking() {
            self.group.state.try_read().ok_or(Error::WouldBlock)?
        } else {
            self.group.state.read()
        };
        if self.is_gone() {
            return Err(Error::NoVolume(self.id));
        }
        let mut counters = self.lock_counters()?;
        let mut slot = self.record.write();
        self.usage.fold(&mut slot.info, clock::time());
        let mut record = slot.clone();
        if self.is_head {
            counters.show_in(&mut record.info);
        }
        let before = record.info.clone();
        edit(&mut record.info);
        let info = &mut record.info;
        (info.id, info.kind, info.parent) = (before.id, before.kind, before.parent);
        (info.blocks_used, info.files) = (before.blocks_used, before.files);
        check_info(info)?;
        let outcome = info.clone();
        let mut batch = crate::engine::batch::Batch::new();
        batch.put(Key::volume(self.id.0), record.encode());
        let mut counted = counters.record;
        let dated = |info: &VolumeInfo| (info.updated, info.update_counter);
        if self.is_head && dated(&outcome) != dated(&before) {
            (counted.updated, counted.update_counter) = dated(&outcome);
            batch.put(Key::counters(self.group.id.0), counted.encode());
        }
        let durable = self.core.engine.commit(batch)?;
        counters.record = counted;
        *slot = record;
        Ok(Changed { outcome, durable })
    }

    /// The state that the last restore received, under its sender's name, if nothing was changed
    /// since.
    pub fn received(&self) -> Result<Option<StateId>> {
        let Some(received) = self.record.read().received else {
            return Ok(None);
        };
        let group = self.group.id.0;
        let from = Key::change_prefix(group, received.epoch + 1);
        let prefix = Key::of_group(Kind::Change, group);
        let changed = match self.core.engine.scan(&from, &prefix)?.next()? {
            // During a restore the volume still shows its contents from before.
            Some((key, _)) => key.u64_at(5) <= self.view(),
            None => false,
        };
        Ok((!changed).then_some(received.state))
    }

    /// Distinguishes this opening of the volume from others.
    pub(crate) fn instance(&self) -> u32 {
        self.instance
    }

    /// The record, for the making of clones.
    pub(crate) fn record(&self) -> &RwLock<VolumeRecord> {
        &self.record
    }

    pub(crate) fn quotas(&self) -> (u32, u32) {
        let record = self.record.read();
        (record.info.max_quota, record.info.max_files)
    }

    pub(crate) fn lock_counters(&self) -> Result<MutexGuard<'_, Counters>> {
        Ok(self.counters.lock())
    }

    /// Excludes other renames between directories.
    pub(crate) fn lock_renames(&self) -> Result<MutexGuard<'_, ()>> {
        if is_nonblocking() {
            return self.renames.try_lock().ok_or(Error::WouldBlock);
        }
        Ok(self.renames.lock())
    }

    /// Gives out a vnode number and uniquifier that were never used.
    pub(crate) fn new_vnode(&self, directory: bool) -> Result<(VnodeId, u32)> {
        let mut counters = self.lock_counters()?;
        let record = &mut counters.record;
        let next = if directory {
            &mut record.next_directory
        } else {
            &mut record.next_file
        };
        let number = *next;
        *next = number.checked_add(2).ok_or(Error::OverQuota)?;
        let uniquifier = record.next_uniquifier;
        record.next_uniquifier = uniquifier.wrapping_add(1).max(2);
        Ok((VnodeId(number), uniquifier))
    }

    pub(crate) fn slot(&self, vnode: VnodeId) -> Arc<VnodeSlot> {
        self.core.slots.slot(self.instance, vnode.0)
    }

    /// Checks that a fid is of this volume and of a possible vnode.
    pub(crate) fn check_fid(&self, fid: Fid) -> Result<()> {
        if fid.volume != self.id {
            return Err(Error::CrossDevice);
        }
        if fid.vnode.0 == 0 {
            return Err(Error::Invalid("vnode 0"));
        }
        Ok(())
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.is_writable() {
            Ok(())
        } else {
            Err(Error::ReadOnly)
        }
    }

    /// Reads a vnode's version from the table.
    pub(crate) fn read_vnode(&self, fid: Fid) -> Result<Option<Loaded>> {
        let group = self.group.id.0;
        let prefix = Key::vnode_prefix(group, fid.vnode.0);
        let found = self.newest(&prefix, |view| Key::vnode(group, fid.vnode.0, view));
        let Some((key, value)) = found.map_err(|error| self.unreadable(fid, error))? else {
            return Ok(None);
        };
        match VnodeRecord::decode(&value) {
            Ok(Ok(record)) => Ok(Some(self.core.slots.loaded(record, key.epoch()))),
            Ok(Err(_)) => Ok(None),
            Err(error) => Err(self.damaged(fid, &error.to_string())),
        }
    }

    /// The newest version that the volume sees of the key with this `prefix`. `at` makes the key of
    /// an epoch.
    pub(crate) fn newest(
        &self,
        prefix: &Key,
        at: impl Fn(u64) -> Key,
    ) -> Result<Option<(Key, Bytes)>> {
        loop {
            let view = self.view();
            let found = self.core.engine.first_version(&at(view), prefix)?;
            self.check_not_deleted()?;
            // A restore that began just now may have written the version that was found.
            if view == self.view() {
                return Ok(found);
            }
        }
    }

    /// Checks that an entry just read from the table still belongs to this volume. After a clone
    /// was marked as gone, the versions that only it saw are removed in the background. An entry
    /// found in their place is another clone's.
    pub(crate) fn check_not_deleted(&self) -> Result<()> {
        if self.is_deleted() {
            return Err(Error::NoVolume(self.id));
        }
        Ok(())
    }

    fn is_deleted(&self) -> bool {
        self.presence.load(Ordering::Acquire) == DELETED
    }

    /// Makes the error for a file whose entry in the table could not be read.
    pub(crate) fn unreadable(&self, fid: Fid, error: Error) -> Error {
        match error {
            Error::Partition(cause) | Error::Format(cause) => self.damaged(fid, &cause),
            other => other,
        }
    }

    /// Records that a part of a file cannot be read, and makes the error for it.
    ///
    /// For a removed clone this is no damage: its versions are removed in the background.
    pub(crate) fn damaged(&self, fid: Fid, cause: &str) -> Error {
        if self.is_deleted() {
            return Error::NoVolume(self.id);
        }
        self.core.events.damaged.fetch_add(1, Ordering::Relaxed);
        tracing::error!(%fid, cause, "damaged");
        Error::Io {
            fid,
            cause: cause.to_string(),
        }
    }

    /// A ticket that resolves when all changes of a vnode that readers have seen up to now are
    /// durable. A caller that passes read data on to others gets this ticket after the read, and
    /// waits for it first. It is ready at once unless a thread has just changed the vnode. It fails
    /// if the partition stopped before the change was durable.
    pub fn last_change(&self, vnode: VnodeId) -> Ticket {
        self.pending_changes.of(vnode.0)
    }

    /// The status of a vnode.
    pub fn status(&self, fid: Fid) -> Result<VnodeStatus> {
        self.with(fid, |loaded| Ok(loaded.record.status(self.id, fid.vnode)))
    }

    /// The status, and the access list that governs the vnode: its own, or its directory's.
    pub fn status_and_acl(&self, fid: Fid) -> Result<(VnodeStatus, Arc<AccessList>)> {
        let (status, own) = self.with(fid, |loaded| {
            Ok((
                loaded.record.status(self.id, fid.vnode),
                loaded.record.acl.clone(),
            ))
        })?;
        match own {
            Some(acl) => Ok((status, acl)),
            None => Ok((status, self.acl(status.access_list_fid())?)),
        }
    }

    /// The access list of a directory.
    pub fn acl(&self, dir: Fid) -> Result<Arc<AccessList>> {
        self.with(dir, |loaded| {
            loaded.record.acl.clone().ok_or(Error::NotDirectory)
        })
    }
}

/// Checks that a volume's record can be stored and sent.
pub(crate) fn check_info(info: &VolumeInfo) -> Result<()> {
    if info.name.is_empty() || info.name.len() > 31 || info.name.contains(['\0', '/']) {
        return Err(Error::Invalid(
            "a volume's name has 1 to 31 bytes, no slash and no NUL",
        ));
    }
    if info.offline_message.len() > 127 || info.message_of_the_day.len() > 127 {
        return Err(Error::Invalid("a volume's messages have at most 127 bytes"));
    }
    Ok(())
}
