//! A partition: the volumes on one disk.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use bytes::Bytes;
use cellar_wire::dir::VnodeRef;
use cellar_wire::ids::{AfsTime, Uniquifier, VnodeId, VolumeId};
use parking_lot::Mutex;

use crate::clock;
use crate::dir::{new_directory, trimmed};
use crate::disk::Disk;
use crate::engine::batch::Batch;
use crate::engine::key::{Key, Kind};
use crate::engine::space::BLOCK_BYTES;
use crate::engine::{Engine, StoreId};
use crate::error::{Error, Result};
use crate::options::Options;
use crate::record::{
    CountersRecord, EPOCH_MAX, GroupRecord, PartitionRecord, Piece, VnodeRecord, VolumeRecord,
};
use crate::state::core::{Core, Group, GroupId};
use crate::state::usage;
use crate::types::{Changed, Context, PartitionUsage, VolumeInfo, VolumeSpec};
use crate::volume::{Volume, check_info};

/// An open partition.
///
/// Dropping it closes it. Acknowledged changes are durable already; the other changes are written.
pub struct Partition {
    pub(crate) core: Arc<Core>,
    id: Option<StoreId>,
    reaper: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for Partition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Partition")
    }
}

/// Counters since the partition was opened, and present sizes, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Changes accepted.
    pub commits: u64,
    /// Journal writes, each synced once. `commits / groups` is the number of changes that share a
    /// sync.
    pub groups: u64,
    /// Bytes written to the journal.
    pub journal_bytes: u64,
    /// Syncs of blocks before a journal write.
    pub block_syncs: u64,
    /// How often the tables in memory were carried into the base.
    pub flushes: u64,
    /// How often a file or directory was found damaged.
    pub damaged: u64,
    /// Decoded vnodes in memory.
    pub cached_vnodes: u64,
    /// Bytes of bodies and directory pages in memory.
    pub cached_body_bytes: u64,
    /// Vnodes that had to be read from the table.
    pub cache_misses: u64,
    /// Entries of the table that were read, in memory or in the base.
    pub reads: u64,
    /// Versions removed in the background.
    pub reaped: u64,
}

impl Partition {
    /// Opens the partition on `disk`, and makes it if the disk is empty. `Damaged` if the disk has
    /// been used and a file of the partition is missing.
    ///
    /// Costs the replay of the journal: at most a few hundred megabytes, however much is stored.
    pub fn open(disk: Arc<dyn Disk>, options: Options) -> Result<Arc<Self>> {
        let mut options = options;
        options.inline_bytes = options.inline_bytes.min(16 << 10);
        let engine = Engine::open(disk, options)?;
        match engine.get(&Key::partition())? {
            None if engine.was_used() => {
                return Err(Error::Format(
                    "the record of the partition is missing".into(),
                ));
            }
            None => {
                let mut batch = Batch::new();
                let record = PartitionRecord { next_group: 1 };
                batch.put(Key::partition(), record.encode());
                engine.commit(batch)?.wait()?;
            }
            // Fails for a format that this program does not know.
            Some(value) => {
                PartitionRecord::decode(&value)?;
            }
        }
        let id = engine.note_used()?;
        let core = Arc::new(Core::new(engine));
        let reaper = crate::background::reap::spawn(&core)?;
        Ok(Arc::new(Self {
            core,
            id,
            reaper: Mutex::new(Some(reaper)),
        }))
    }

    /// Identifies the partition. `None` if an older release made it and there was no room yet for
    /// an id.
    pub fn id(&self) -> Option<StoreId> {
        self.id
    }

    /// Makes a volume of any kind. It is the head of a new group, that is, it sees the newest
    /// contents. The root directory has mode 0777 and an access list that gives
    /// system:administrators all rights.
    ///
    /// `VolumeExists`, `Invalid`, `DiskFull`.
    pub fn create_volume(&self, spec: &VolumeSpec) -> Result<Changed<Arc<Volume>>> {
        if spec.id.0 == 0 {
            return Err(Error::Invalid("volume id 0"));
        }
        let info = new_info(spec);
        check_info(&info)?;
        let engine = &self.core.engine;
        let _room = engine.admit(16 << 10)?;
        let _making = self.core.making.lock();
        if engine.get(&Key::volume(spec.id.0))?.is_some() {
            return Err(Error::VolumeExists(spec.id));
        }
        let Some(value) = engine.get(&Key::partition())? else {
            return Err(Error::Format("the partition has no record".into()));
        };
        let mut partition_record = PartitionRecord::decode(&value)?;
        let group_id = GroupId(partition_record.next_group);
        let id = group_id.0;
        partition_record.next_group += 1;
        let context = Context {
            author: spec.owner,
            now: spec.now,
        };
        let lineage = uuid::Uuid::new_v4().into_bytes();
        let group_record = GroupRecord::new(lineage, spec.id);
        let volume_record = VolumeRecord {
            info,
            group: group_id,
            epoch: EPOCH_MAX,
            received: None,
        };
        let counters = CountersRecord {
            blocks_used: if spec.root { 2 } else { 0 },
            files: u64::from(spec.root),
            updated: spec.now,
            update_counter: 0,
            next_directory: 3,
            next_file: 2,
            next_uniquifier: 2,
            removed: 0,
        };
        let mut batch = Batch::new();
        batch.put(Key::partition(), partition_record.encode());
        batch.put(Key::group(id), group_record.encode());
        batch.put(Key::volume(spec.id.0), volume_record.encode());
        batch.put(Key::counters(id), counters.encode());
        if spec.root {
            batch.put(
                Key::vnode(id, 1, 1),
                VnodeRecord::root(spec.owner, context).encode(),
            );
            let root = VnodeRef {
                vnode: VnodeId::ROOT,
                uniquifier: Uniquifier::ROOT,
            };
            for (index, page) in new_directory(root, root)?.iter().enumerate() {
                let value = Piece::encode_inline(trimmed(page));
                batch.put(Key::piece(id, 1, 0, index as u64, 1), value);
            }
        }
        let durable = engine.commit(batch)?;
        let group = Arc::new(Group::new(group_id, group_record, 0));
        let outcome = self
            .core
            .attach_new(group, volume_record, counters, EPOCH_MAX, &durable);
        Ok(Changed { outcome, durable })
    }

    /// Returns the volume with this id, if it is on this partition. The first call costs one lookup
    /// in the table.
    pub fn volume(&self, id: VolumeId) -> Result<Option<Arc<Volume>>> {
        self.core.volume(id)
    }

    /// Up to `limit` volumes in ascending order of ids, beginning behind `after`. Pass the last id
    /// to get the next ones.
    pub fn volumes(&self, after: Option<VolumeId>, limit: usize) -> Result<Vec<VolumeInfo>> {
        let prefix = Key::of_kind(Kind::Volume);
        let from = after.map_or(prefix, |id| Key::volume(id.0).successor());
        let mut scan = self.core.engine.scan(&from, &prefix)?;
        let mut infos = Vec::new();
        while infos.len() < limit {
            let Some((_, value)) = scan.next()? else {
                break;
            };
            let mut record = VolumeRecord::decode(&value)?;
            if let Some(volume) = self.core.attached_volume(record.info.id) {
                infos.push(volume.info());
                continue;
            }
            if record.epoch == EPOCH_MAX
                && let Some(value) = self.core.engine.get(&Key::counters(record.group.0))?
            {
                let counters = CountersRecord::decode(&value)?;
                record.info.blocks_used = counters.blocks_used;
                record.info.files = counters.files;
                record.info.updated = counters.updated;
                record.info.update_counter = counters.update_counter;
            }
            usage::begin_day(&mut record.info, clock::time());
            infos.push(record.info);
        }
        Ok(infos)
    }

    /// The volumes in memory, with their figures; one is examined at a time. All others had no
    /// access since the start, or none for long. Reads no disk.
    pub fn volumes_in_memory(&self) -> impl Iterator<Item = VolumeInfo> + use<> {
        let volumes = self.core.attached_volumes().into_iter();
        volumes.map(|volume| volume.info())
    }

    /// Room, in blocks of 1 KiB.
    pub fn usage(&self) -> Result<PartitionUsage> {
        let (total, free) = self.core.engine.room()?;
        Ok(PartitionUsage {
            total_blocks: total / 1024,
            free_blocks: free / 1024,
        })
    }

    /// The state in which it was found when it was opened.
    pub fn opening(&self) -> &crate::Opening {
        &self.core.engine.opening
    }

    /// Counters and sizes.
    pub fn counters(&self) -> Counters {
        let statistics = &self.core.engine.statistics;
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let (slots, bytes) = self.core.slots.size();
        Counters {
            commits: read(&statistics.commits),
            groups: read(&statistics.groups),
            journal_bytes: read(&statistics.journal_bytes),
            block_syncs: read(&statistics.block_syncs),
            flushes: read(&statistics.flushes),
            damaged: read(&self.core.events.damaged),
            cached_vnodes: slots as u64,
            cached_body_bytes: bytes as u64,
            cache_misses: read(&self.core.events.cell_misses),
            reads: read(&statistics.reads),
            reaped: self.core.reaper.reaped(),
        }
    }

    /// Carries all changes into the base table, so that the next opening replays nothing.
    pub fn flush(&self) -> Result<()> {
        self.core.save_usage()?;
        self.core.engine.flush()
    }

    /// Writes everything and accepts no more changes. Idempotent.
    pub fn close(&self) -> Result<()> {
        self.core.reaper.stop();
        if let Some(thread) = self.reaper.lock().take() {
            let _ = thread.join();
        }
        // Only statistics: a partition that has stopped ends without them.
        let _ = self.core.save_usage();
        self.core.engine.close()
    }

    /// The reason why the partition accepts no more writes; `None` if it accepts them.
    pub fn stopped(&self) -> Option<Error> {
        self.core.engine.check_running().err()
    }

    /// Bytes of free blocks within the partition's files, for metrics.
    pub fn block_bytes_free(&self) -> u64 {
        self.core.engine.space.free_blocks() * BLOCK_BYTES
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        let _ = self.close();
        self.core.detach_all();
    }
}

pub(crate) fn new_info(spec: &VolumeSpec) -> VolumeInfo {
    VolumeInfo {
        id: spec.id,
        name: spec.name.clone(),
        kind: spec.kind,
        parent: if spec.parent.0 == 0 {
            spec.id
        } else {
            spec.parent
        },
        clone: VolumeId(0),
        backup: VolumeId(0),
        restored_from: VolumeId(0),
        online: true,
        in_service: spec.in_service,
        blessed: true,
        destroy_me: spec.destroy_me,
        owner: spec.owner,
        max_quota: spec.max_quota,
        min_quota: 0,
        max_files: 0,
        blocks_used: 0,
        files: 0,
        created: spec.now,
        copied: spec.now,
        updated: spec.now,
        accessed: spec.now,
        backed_up: AfsTime(0),
        expires: AfsTime(0),
        update_counter: 0,
        day_use: 0,
        day_use_date: AfsTime(0),
        week_use: [0; 7],
        traffic: None,
        offline_message: Bytes::new(),
        message_of_the_day: Bytes::new(),
        account: 0,
        policy: 0,
        shared: 0,
        borrowed: 0,
        takes_over: false,
    }
}
