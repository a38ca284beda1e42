//! The state that the open volumes of a partition share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use cellar_wire::ids::VolumeId;
use hashbrown::{HashMap, HashSet};
use parking_lot::{Mutex, RwLock};

use crate::background::reap::Reaper;
use crate::engine::Engine;
use crate::engine::key::Key;
use crate::error::{Error, Result};
use crate::pieces::Pieces;
use crate::record::{CountersRecord, EPOCH_MAX, GroupRecord, VolumeRecord};
use crate::state::hold::{HeldEpochs, Hold};
use crate::state::pending_changes::PendingChanges;
use crate::state::reserve::Reserved;
use crate::state::retired_count::RetiredCount;
use crate::state::ticket::Ticket;
use crate::state::vnode_slots::VnodeSlots;
use crate::types::VolumeInfo;
use crate::volume::Volume;

/// If more volumes are open than this, unused ones are dropped.
const ATTACHED_MAX: usize = 20_000;

/// The shared part of a partition.
pub(crate) struct Core {
    pub(crate) engine: Arc<Engine>,
    pub(crate) slots: VnodeSlots,
    pub(crate) pieces: Pieces,
    pub(crate) reaper: Reaper,
    pub(crate) events: Events,
    /// Whether removals keep the copies of files in archives.
    pub(crate) keeps_removed: AtomicBool,
    /// Held while volumes are made, replaced or removed.
    pub(crate) making: Mutex<()>,
    attached: RwLock<HashMap<VolumeId, Arc<Volume>>>,
    groups: Mutex<HashMap<GroupId, Arc<Group>>>,
    instances: AtomicU32,
}

/// Counters of events since the partition was opened.
#[derive(Default)]
pub(crate) struct Events {
    pub(crate) damaged: AtomicU64,
    /// The volumes whose damage the log has, at most [`DAMAGED_LOGGED_MAX`].
    damaged_logged: Mutex<HashSet<VolumeId>>,
    pub(crate) cell_misses: AtomicU64,
}

/// The most damaged volumes of a partition that get a line in the log, one each.
const DAMAGED_LOGGED_MAX: usize = 1_000;

/// The number of a volume group on a partition. It is never used twice, so the remains of a removed
/// group are never taken for part of a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GroupId(pub(crate) u32);

/// A volume group in memory.
pub(crate) struct Group {
    pub(crate) id: GroupId,
    /// Changes lock it shared; making and removing clones lock it exclusively.
    pub(crate) state: RwLock<GroupState>,
    /// Epochs that are held in memory.
    pub(crate) held: HeldEpochs,
    pub(crate) retired: RetiredCount,
    relied: AtomicU64,
}

impl Group {
    pub(crate) fn new(id: GroupId, record: GroupRecord, reaping: usize) -> Self {
        Self {
            id,
            state: RwLock::new(GroupState {
                record,
                reaping,
                restoring: false,
            }),
            held: HeldEpochs::default(),
            retired: RetiredCount::default(),
            relied: AtomicU64::default(),
        }
    }

    /// Notes that a caller relies on the present background jobs: a job that is running now is not
    /// done when it ends. The caller has the group's state locked exclusively.
    pub(crate) fn rely_on_jobs(&self) {
        self.relied.fetch_add(1, Ordering::AcqRel);
    }

    /// The number of such calls. The caller has the group's state locked exclusively.
    pub(crate) fn relied(&self) -> u64 {
        self.relied.load(Ordering::Acquire)
    }
}

/// The data behind a group's lock.
pub(crate) struct GroupState {
    pub(crate) record: GroupRecord,
    /// Number of background jobs that still look for versions which no volume sees.
    pub(crate) reaping: usize,
    /// A restore into the head is running: its versions must not be removed.
    pub(crate) restoring: bool,
}

impl GroupState {
    /// The epoch that the volume with this record sees now.
    pub(crate) fn view_of(&self, record: &VolumeRecord) -> u64 {
        match record.epoch {
            EPOCH_MAX => self.record.pin().unwrap_or(EPOCH_MAX),
            epoch => epoch,
        }
    }
}

/// The data behind a head's counter lock.
pub(crate) struct Counters {
    pub(crate) record: CountersRecord,
    /// Numbers from the counters that were given out for future vnodes.
    pub(crate) reserved: Reserved,
}

impl Counters {
    /// Copies usage and dates from the counters into `info`.
    pub(crate) fn show_in(&self, info: &mut VolumeInfo) {
        info.blocks_used = self.record.blocks_used;
        info.files = self.record.files;
        info.updated = self.record.updated;
        info.update_counter = self.record.update_counter;
    }
}

impl Core {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        let options = engine.options();
        let slots = VnodeSlots::new(options.cached_vnodes, options.cached_body_bytes);
        Self {
            engine,
            slots,
            pieces: Pieces::default(),
            reaper: Reaper::default(),
            events: Events::default(),
            keeps_removed: AtomicBool::new(false),
            making: Mutex::default(),
            attached: RwLock::default(),
            groups: Mutex::default(),
            instances: AtomicU32::new(0),
        }
    }

    /// Returns the volume with this id, and attaches it if it is not attached yet.
    pub(crate) fn volume(self: &Arc<Self>, id: VolumeId) -> Result<Option<Arc<Volume>>> {
        let found = self.find_volume(id);
        if let Err(error @ (Error::Partition(_) | Error::Format(_))) = &found {
            self.events.damaged.fetch_add(1, Ordering::Relaxed);
            let mut logged = self.events.damaged_logged.lock();
            if logged.len() < DAMAGED_LOGGED_MAX && logged.insert(id) {
                tracing::error!(volume = %id, %error, "a volume is off line: its records are damaged");
            }
        }
        found
    }

    fn find_volume(self: &Arc<Self>, id: VolumeId) -> Result<Option<Arc<Volume>>> {
        let key = Key::volume(id.0);
        loop {
            if let Some(volume) = self.attached_volume(id) {
                return Ok(Some(volume));
            }
            let Some(value) = self.engine.get(&key)? else {
                return Ok(None);
            };
            let group = VolumeRecord::decode(&value)?.group;
            let Some(group) = self.existing_group(group)? else {
                if self.engine.get(&key)?.as_ref() == Some(&value) {
                    let missing = format!("volume group {} has no record", group.0);
                    return Err(Error::Format(missing));
                }
                // Removed since it was looked up.
                continue;
            };
            // The group's lock prevents that a clone is replaced between reading and attaching it.
            let state = group.state.read();
            let Some(value) = self.engine.get(&key)? else {
                return Ok(None);
            };
            let record = VolumeRecord::decode(&value)?;
            if record.group != group.id {
                // A clone of another group has replaced it meanwhile.
                continue;
            }
            return self.attach(&group, &state, record).map(Some);
        }
    }

    /// Attaches a volume, unless another thread has attached it. The caller has the group's state
    /// locked.
    fn attach(
        self: &Arc<Self>,
        group: &Arc<Group>,
        state: &GroupState,
        record: VolumeRecord,
    ) -> Result<Arc<Volume>> {
        let id = record.info.id;
        let counters = match self.engine.get(&Key::counters(group.id.0))? {
            Some(value) => CountersRecord::decode(&value)?,
            None => return Err(Error::Format(format!("volume {id} has no counters"))),
        };
        let reserved = match self.engine.get(&Key::reserved(group.id.0))? {
            Some(value) if record.epoch == EPOCH_MAX => Reserved::decode(&value)?,
            _ => Reserved::default(),
        };
        let mut attached = self.attached.write();
        if let Some(volume) = attached.get(&id) {
            return Ok(Arc::clone(volume));
        }
        self.make_room(&mut attached);
        let view = state.view_of(&record);
        let volume = Volume::new(self, Arc::clone(group), record, counters, view);
        volume.lock_counters()?.reserved = reserved;
        let volume = Arc::new(volume);
        attached.insert(id, Arc::clone(&volume));
        Ok(volume)
    }

    /// Returns the group with this number, if it still exists.
    pub(crate) fn existing_group(&self, id: GroupId) -> Result<Option<Arc<Group>>> {
        let mut groups = self.groups.lock();
        if let Some(group) = groups.get(&id) {
            return Ok(Some(Arc::clone(group)));
        }
        let Some(value) = self.engine.get(&Key::group(id.0))? else {
            return Ok(None);
        };
        let record = GroupRecord::decode(&value)?;
        let reaping = self.reaper.jobs_of(&self.engine, id)?;
        let group = Arc::new(Group::new(id, record, reaping));
        if groups.len() >= ATTACHED_MAX {
            groups.retain(|_, group| Arc::strong_count(group) > 1);
        }
        groups.insert(id, Arc::clone(&group));
        Ok(Some(group))
    }

    /// Enters a group and volume that a change has just made. The volume sees the epochs up to
    /// `view`.
    pub(crate) fn attach_new(
        self: &Arc<Self>,
        group: Arc<Group>,
        record: VolumeRecord,
        counters: CountersRecord,
        view: u64,
        made: &Ticket,
    ) -> Arc<Volume> {
        {
            let mut groups = self.groups.lock();
            if groups.len() >= ATTACHED_MAX {
                groups.retain(|_, group| Arc::strong_count(group) > 1);
            }
            groups.insert(group.id, Arc::clone(&group));
        }
        let id = record.info.id;
        let mut volume = Volume::new(self, group, record, counters, view);
        volume.pending_changes = PendingChanges::since(made);
        let volume = Arc::new(volume);
        let mut attached = self.attached.write();
        self.make_room(&mut attached);
        attached.insert(id, Arc::clone(&volume));
        volume
    }

    /// Drops unused volumes if the limit of attached volumes is reached.
    fn make_room(&self, attached: &mut HashMap<VolumeId, Arc<Volume>>) {
        if attached.len() < ATTACHED_MAX {
            return;
        }
        attached.retain(|_, volume| {
            Arc::strong_count(volume) > 1
                || volume.usage.is_unsaved()
                || !volume.pending_changes.is_quiet()
        });
        // Volumes with unsaved access counts can be dropped once these are saved.
        self.reaper.wake();
    }

    /// Returns the head of a group, if there is one. Its slots hold the vnodes' locks.
    pub(crate) fn head_of(self: &Arc<Self>, group: &Group) -> Result<Option<Arc<Volume>>> {
        let head = {
            let state = group.state.read();
            if !state.record.has_head() {
                return Ok(None);
            }
            state.record.head
        };
        let found = self.volume(head)?;
        Ok(found.filter(|volume| volume.group.id == group.id))
    }

    /// Forgets an attached volume that another one replaces. Threads that still hold it can read
    /// its old contents. The caller has the group's state locked.
    pub(crate) fn supersede(self: &Arc<Self>, id: VolumeId) {
        if let Some(volume) = self.attached.write().remove(&id) {
            let hold = Hold::of(self, &volume.group, volume.view());
            volume.mark_replaced(hold);
        }
    }

    /// Forgets an attached volume. For threads that still hold it, the volume is gone.
    pub(crate) fn detach(&self, id: VolumeId) {
        if let Some(volume) = self.attached.write().remove(&id) {
            volume.mark_gone();
        }
    }

    /// Returns the attached volumes.
    pub(crate) fn attached_volumes(&self) -> Vec<Arc<Volume>> {
        self.attached.read().values().map(Arc::clone).collect()
    }

    /// Returns whether the limit of attached volumes is reached.
    pub(crate) fn is_crowded(&self) -> bool {
        self.attached.read().len() >= ATTACHED_MAX
    }

    /// Returns a volume if it is attached.
    pub(crate) fn attached_volume(&self, id: VolumeId) -> Option<Arc<Volume>> {
        self.attached.read().get(&id).map(Arc::clone)
    }

    /// Forgets all attached volumes. They hold references to this core, and it to them.
    pub(crate) fn detach_all(&self) {
        let volumes = std::mem::take(&mut *self.attached.write());
        self.groups.lock().clear();
        drop(volumes);
    }

    pub(crate) fn forget_group(&self, id: GroupId) {
        self.groups.lock().remove(&id);
    }

    pub(crate) fn next_instance(&self) -> u32 {
        self.instances.fetch_add(1, Ordering::Relaxed)
    }
}
