//! Searching for damage while the partition is in use: every record and every block is compared
//! with its checksum.
//!
//! A group is walked once, vnode by vnode, for all its volumes; the data that they share is read
//! once. Blocks are read from the device instead of memory if the system supports that. Nothing is
//! locked meanwhile. If a block does not match, it is verified again, with its present record and
//! with its blocks held, before it is reported. It may have been replaced meanwhile, and its block
//! may belong to another file.
//!
//! Damage is reported by volume, fid, path and place; [`Volume::refill`] puts bytes back. `table`
//! checks how records belong together.

mod bodies;
mod orphans;
mod refill;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cellar_wire::ids::{Fid, Uniquifier, VnodeId, VolumeId};

pub use refill::{RefillSource, Refilled};

use crate::engine::key::{Key, Kind};
use crate::error::{Error, Result};
use crate::partition::Partition;
use crate::record::{EPOCH_MAX, VnodeRecord, VolumeRecord};
use crate::state::core::{Core, Group, GroupId};
use crate::versions::{Version, Versions};
use crate::volume::Volume;

/// The most damaged files that are described; more are only counted.
const DESCRIBED_MAX: usize = 1000;
/// The most directories between a file and the root, for its path.
const DEPTH_MAX: usize = 256;
/// The longest single pause.
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// The most unreadable places of a group in the table before the scrub gives up.
const UNREADABLE_MAX: u32 = 1000;
/// Bytes between two reports of progress.
const REPORT_BYTES: u64 = 4 << 20;

/// The progress of a scrub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubProgress {
    /// Number of volumes that were scrubbed.
    pub volumes: u64,
    /// Number of volumes to scrub.
    pub volumes_total: u64,
    /// Number of versions of vnodes that were verified.
    pub vnodes: u64,
    /// Bytes that were read and verified.
    pub bytes: u64,
    /// Number of damaged files.
    pub damaged: u64,
}

/// The result of a scrub.
#[derive(Clone, Debug, Default)]
pub struct ScrubReport {
    /// The progress at its end.
    pub progress: ScrubProgress,
    /// The damaged files, up to 1000 of them.
    pub damaged: Vec<Damage>,
    /// Whether it ended before everything was verified.
    pub is_partial: bool,
}

/// Damage of a file, directory or link. Everything that is not named here is sound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file, in the first of the volumes; uniquifier 0 if its record cannot be read. Vnode 0
    /// means a record of the volume itself.
    pub fid: Fid,
    /// The volumes that see this version.
    pub volumes: Vec<VolumeId>,
    /// Its path in the volume without the leading slash, if it was found.
    pub path: Option<String>,
    /// The data version of the damaged bytes; 0 if the record cannot be read.
    pub data_version: u64,
    /// The length of the file; 0 if the record cannot be read.
    pub length: u64,
    /// The damaged ranges of bytes; empty if the record is damaged.
    pub places: Vec<Range<u64>>,
    /// The message of the system or of the checksum comparison, for the first damaged place.
    pub cause: String,
}

/// One scrub of some volumes, with its pace.
struct Scrub<'s> {
    core: Arc<Core>,
    /// Bytes per second; 0 for no limit.
    rate: u64,
    tell: &'s mut dyn FnMut(&ScrubProgress) -> ControlFlow<()>,
    report: ScrubReport,
    begun: Instant,
    reported: u64,
    /// Damaged vnodes by group, with the message to report. They have records in damaged blocks of
    /// the base table's file, or blocks that do not belong to them alone.
    lost: BTreeMap<u32, BTreeMap<u32, String>>,
}

/// The scrub was asked to stop.
struct ScrubStopped;

/// A version of a vnode and the viewers that see it.
struct VisibleVersion {
    record: VnodeRecord,
    /// A range of the viewers.
    seen_by: Range<usize>,
}

impl Volume {
    /// Verifies everything that the volume sees, at up to `rate` bytes per second (0: no limit),
    /// while it is in use. `tell` is called with the progress every few megabytes, and may end the
    /// scrub.
    pub fn scrub(
        self: &Arc<Self>,
        rate: u64,
        tell: &mut dyn FnMut(&ScrubProgress) -> ControlFlow<()>,
    ) -> Result<ScrubReport> {
        let mut scrub = Scrub::new(&self.core, rate, tell);
        scrub.report.progress.volumes_total = 1;
        let viewers = vec![(self.view(), self.id())];
        scrub.group(&self.group, viewers)
    }
}

impl Partition {
    /// Like [`Volume::scrub`], for all volumes. Data that volumes of a group share is verified
    /// once.
    pub fn scrub(
        &self,
        rate: u64,
        tell: &mut dyn FnMut(&ScrubProgress) -> ControlFlow<()>,
    ) -> Result<ScrubReport> {
        Scrub::new(&self.core, rate, tell).partition()
    }
}

impl<'s> Scrub<'s> {
    fn new(
        core: &Arc<Core>,
        rate: u64,
        tell: &'s mut dyn FnMut(&ScrubProgress) -> ControlFlow<()>,
    ) -> Self {
        Self {
            core: Arc::clone(core),
            rate,
            tell,
            report: ScrubReport::default(),
            begun: Instant::now(),
            reported: 0,
            lost: BTreeMap::new(),
        }
    }

    fn partition(mut self) -> Result<ScrubReport> {
        let engine = Arc::clone(&self.core.engine);
        if self.table()?.is_break() || self.block_map()?.is_break() {
            return Ok(self.end(true));
        }
        let prefix = Key::of_kind(Kind::Volume);
        let mut groups = BTreeSet::new();
        let mut walk = engine.walk(&prefix, &prefix);
        loop {
            let (key, value) = match walk.next() {
                Ok(Some(entry)) => entry,
                Ok(None) => break,
                Err(error) => {
                    // The volumes in the damaged page are not known.
                    self.damage_of_volume(VolumeId(0), &error);
                    match walk.skip_unreadable() {
                        true => continue,
                        false => break,
                    }
                }
            };
            self.report.progress.volumes_total += 1;
            match VolumeRecord::decode(&value) {
                Ok(record) => {
                    groups.insert(record.group.0);
                }
                Err(error) => self.damage_of_volume(VolumeId(key.u32_at(1)), &error),
            }
        }
        for group in groups {
            let group = match self.core.existing_group(GroupId(group)) {
                Ok(Some(group)) => group,
                // Removed meanwhile.
                Ok(None) => continue,
                Err(error) => {
                    self.damage_of_volume(VolumeId(0), &error);
                    continue;
                }
            };
            let viewers: Vec<_> = {
                let state = group.state.read();
                let head = state
                    .record
                    .has_head()
                    .then_some((EPOCH_MAX, state.record.head));
                let clones = state.record.clones.iter().map(|c| (c.epoch, c.id));
                let pin = state.record.pin();
                // During a restore the head sees the epoch of its pin.
                clones.chain(head.filter(|_| pin.is_none())).collect()
            };
            if self.walk_group(&group, viewers)?.is_break() {
                return Ok(self.end(true));
            }
        }
        Ok(self.end(false))
    }

    fn group(mut self, group: &Arc<Group>, viewers: Vec<(u64, VolumeId)>) -> Result<ScrubReport> {
        let ended = self.walk_group(group, viewers)?.is_break();
        Ok(self.end(ended))
    }

    fn end(mut self, is_partial: bool) -> ScrubReport {
        let _ = (self.tell)(&self.report.progress);
        self.report.is_partial = is_partial;
        self.report
    }

    fn damage_of_volume(&mut self, volume: VolumeId, error: &Error) {
        self.enter(Damage {
            fid: Fid {
                volume,
                vnode: VnodeId(0),
                uniquifier: Uniquifier(0),
            },
            volumes: vec![volume],
            path: None,
            data_version: 0,
            length: 0,
            places: Vec::new(),
            cause: error.to_string(),
        });
    }

    fn enter(&mut self, damage: Damage) {
        tracing::error!(fid = %damage.fid, cause = %damage.cause, "scrub: damaged");
        self.report.progress.damaged += 1;
        if self.report.damaged.len() < DESCRIBED_MAX {
            self.report.damaged.push(damage);
        }
    }

    /// Counts verified bytes, reports progress, and keeps to the rate.
    fn verified(&mut self, bytes: u64) -> ControlFlow<ScrubStopped> {
        let progress = &mut self.report.progress;
        progress.bytes += bytes;
        let progress = *progress;
        let mut waited = false;
        loop {
            let due = match self.rate {
                0 => Duration::ZERO,
                rate => Duration::from_secs_f64(progress.bytes as f64 / rate as f64),
            };
            let early = due.saturating_sub(self.begun.elapsed());
            if progress.bytes >= self.reported + REPORT_BYTES || waited {
                self.reported = progress.bytes;
                if (self.tell)(&progress).is_break() || self.core.reaper.stopping() {
                    return ControlFlow::Break(ScrubStopped);
                }
            }
            // Short delays are accumulated.
            if early < Duration::from_millis(20) {
                return ControlFlow::Continue(());
            }
            std::thread::sleep(early.min(PAUSE_MAX));
            waited = true;
        }
    }

    fn walk_group(
        &mut self,
        group: &Arc<Group>,
        viewers: Vec<(u64, VolumeId)>,
    ) -> Result<ControlFlow<ScrubStopped>> {
        let engine = Arc::clone(&self.core.engine);
        let epochs = viewers.iter().map(|(epoch, _)| *epoch).collect();
        let mut versions = Versions::of_vnodes(&engine, group.id, 0, epochs);
        let epochs = versions.viewers().to_vec();
        let viewers = Viewers {
            epochs: epochs.clone(),
            volumes: viewers,
        };
        let mut count = self.begin_count(group, &viewers);
        let mut orphans = orphans::Orphans::default();
        let reported_before = self.report.damaged.len();
        let mut ahead = None;
        let (mut last, mut unreadable) = (0, 0);
        loop {
            // All versions of one vnode that any viewer sees.
            let mut seen: Vec<VisibleVersion> = Vec::new();
            let mut vnode = None;
            loop {
                let next = match ahead.take() {
                    Some(version) => Some(version),
                    None => match versions.next_visible() {
                        Ok(next) => next,
                        Err(error) if unreadable < UNREADABLE_MAX => {
                            // A damaged page of the table; entries behind it may be readable again.
                            unreadable += 1;
                            count = None;
                            orphans.unreadable();
                            let bad = vnode.unwrap_or(last) + 1;
                            self.damage_of_record(&viewers, bad, 0..1, &error);
                            versions.skip_to(Key::vnode_prefix(group.id.0, bad + 1));
                            last = bad;
                            continue;
                        }
                        Err(error) => return Err(error),
                    },
                };
                let Some(version) = next else { break };
                let of = version.key.u32_at(5);
                if vnode.is_some_and(|known| known != of) {
                    ahead = Some(version);
                    break;
                }
                vnode = Some(of);
                match self.visible_version(&viewers, version) {
                    Some(visible) => seen.push(visible),
                    // One of the unreadable vnodes may be a directory.
                    None => orphans.unreadable_if(self.report.damaged.len() > reported_before),
                }
            }
            let Some(vnode) = vnode else { break };
            last = vnode;
            for visible in &seen {
                if let Some(count) = &mut count {
                    count.add(visible);
                }
                if visible.seen_by.contains(&0) {
                    orphans.note_present(vnode);
                }
                self.names(group, &viewers, vnode, visible, &mut orphans);
            }
            if self.bodies(group, &viewers, vnode, &seen)?.is_break() {
                return Ok(ControlFlow::Break(ScrubStopped));
            }
        }
        self.lost_vnodes(group, &viewers, reported_before);
        self.orphans(group, &viewers, &orphans);
        if let Some(count) = count {
            self.end_count(group, &viewers, &count);
        }
        self.report.progress.volumes += viewers.volumes.len() as u64;
        Ok(ControlFlow::Continue(()))
    }

    /// Verifies the record of a vnode.
    fn visible_version(&mut self, viewers: &Viewers, version: Version) -> Option<VisibleVersion> {
        self.report.progress.vnodes += 1;
        self.report.progress.bytes += version.value.len() as u64;
        match VnodeRecord::decode(&version.value) {
            Ok(Ok(record)) => Some(VisibleVersion {
                record,
                seen_by: version.seen_by,
            }),
            Ok(Err(_)) => None,
            Err(error) => {
                let vnode = version.key.u32_at(5);
                self.damage_of_record(viewers, vnode, version.seen_by, &error);
                None
            }
        }
    }

    fn damage_of_record(
        &mut self,
        viewers: &Viewers,
        vnode: u32,
        seen_by: Range<usize>,
        error: &Error,
    ) {
        let volumes = viewers.volumes(&seen_by);
        let Some(&volume) = volumes.first() else {
            return;
        };
        let fid = Fid {
            volume,
            vnode: VnodeId(vnode),
            uniquifier: Uniquifier(0),
        };
        self.enter(Damage {
            fid,
            volumes,
            path: None,
            data_version: 0,
            length: 0,
            places: Vec::new(),
            cause: error.to_string(),
        });
    }
}

impl Core {
    /// A path that leads to a vnode of a volume, found through its parent directories.
    fn path_of(self: &Arc<Self>, fid: Fid) -> Option<String> {
        let volume = self.volume(fid.volume).ok()??;
        let mut names: Vec<Bytes> = Vec::new();
        let mut at = fid;
        while at.vnode != VnodeId::ROOT {
            if names.len() == DEPTH_MAX {
                return None;
            }
            let status = volume.status(at).ok()?;
            let parent = Fid {
                volume: fid.volume,
                vnode: status.parent,
                uniquifier: status.parent_uniquifier,
            };
            let entries = volume.entries(parent).ok()?;
            let entry = entries
                .into_iter()
                .find(|entry| entry.vnode == at.vnode && entry.name != "." && entry.name != "..")?;
            names.push(entry.name);
            at = parent;
        }
        let names: Vec<_> = names
            .iter()
            .rev()
            .map(|n| String::from_utf8_lossy(n))
            .collect();
        Some(names.join("/"))
    }
}

/// The viewers of a group.
struct Viewers {
    /// As in [`Versions::viewers`].
    epochs: Vec<u64>,
    volumes: Vec<(u64, VolumeId)>,
}

impl Viewers {
    fn volumes(&self, seen_by: &Range<usize>) -> Vec<VolumeId> {
        let epochs = &self.epochs[seen_by.clone()];
        let sees = |(epoch, _): &&(u64, VolumeId)| epochs.contains(epoch);
        let mut volumes: Vec<_> = self
            .volumes
            .iter()
            .filter(sees)
            .map(|(_, id)| *id)
            .collect();
        volumes.sort_unstable();
        volumes.dedup();
        volumes
    }
}
