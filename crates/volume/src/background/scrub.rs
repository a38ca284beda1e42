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

mod orphans;
mod refill;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cellar_wire::dir::PAGE_SIZE;
use cellar_wire::ids::{Fid, Uniquifier, VnodeId, VolumeId};

pub use refill::{RefillSource, Refilled};

use crate::background::reap::pieces_of;
use crate::engine::blocks::{Owner, block_damage};
use crate::engine::key::{Key, Kind};
use crate::error::{Error, Result};
use crate::partition::Partition;
use crate::record::{
    BLOCK, BlockRef, Body, EPOCH_MAX, PIECE_BLOCKS, PIECE_BYTES, Piece, VnodeRecord, VolumeRecord,
    block_checksum,
};
use crate::state::core::{Core, Group, GroupId};
use crate::types::FileType;
use crate::versions::{Version, Versions};
use crate::volume::Volume;

/// The most damaged files that are described; more are only counted.
const DESCRIBED_MAX: usize = 1000;
/// The most damaged places of one file that are described. If there are more, the last one extends
/// to the end of the last damaged place.
const PLACES_MAX: usize = 64;
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

    /// Verifies all visible bodies of a vnode.
    fn bodies(
        &mut self,
        group: &Arc<Group>,
        viewers: &Viewers,
        vnode: u32,
        seen: &[VisibleVersion],
    ) -> Result<ControlFlow<ScrubStopped>> {
        if seen.iter().all(|visible| pieces_of(&visible.record) == 0) {
            return Ok(self.verified(0));
        }
        let engine = Arc::clone(&self.core.engine);
        let mut found = VnodeDamage::default();
        let mut pages = vec![0u64; seen.len()];
        let epochs = viewers.epochs.clone();
        let mut pieces = Versions::of_bodies(&engine, group.id, VnodeId(vnode), epochs);
        let mut is_readable = true;
        loop {
            let version = match pieces.next_visible() {
                Ok(Some(version)) => version,
                Ok(None) => break,
                Err(_) => {
                    self.pieces_alone(group, viewers, vnode, seen, &mut found)?;
                    is_readable = false;
                    break;
                }
            };
            let (body, number) = (version.key.body_number(), version.key.piece_number());
            let mut wanted = false;
            for (index, visible) in seen.iter().enumerate() {
                let record = &visible.record;
                let sees = visible.seen_by.start.max(version.seen_by.start)
                    < visible.seen_by.end.min(version.seen_by.end);
                if sees && record.body_number == body && number < pieces_of(record) {
                    wanted = true;
                    found.mark(index);
                    pages[index] += 1;
                }
            }
            if !wanted {
                found.forget_last();
                continue;
            }
            let bytes = match Piece::decode(&version.value) {
                Ok(Piece::Blocks(_)) => {
                    let read = self.blocks(group, vnode, &version, &mut found)?;
                    version.value.len() as u64 + read
                }
                Ok(_) => version.value.len() as u64,
                Err(error) => {
                    // Read again: a change may have interfered, or the memory was faulty.
                    let again = engine.get(&version.key)?;
                    if again.is_some_and(|value| Piece::decode(&value).is_err()) {
                        found.place(place_of(&seen[0].record, number), error.to_string());
                    }
                    version.value.len() as u64
                }
            };
            found.forget_last();
            if self.verified(bytes).is_break() {
                return Ok(ControlFlow::Break(ScrubStopped));
            }
        }
        for (index, visible) in seen.iter().enumerate() {
            let record = &visible.record;
            let has_all = match (record.kind, record.body) {
                (FileType::Directory, Body::Pieces) => pages[index] == pieces_of(record),
                (_, Body::Inline { .. }) => pages[index] == 1,
                _ => true,
            };
            if is_readable && !has_all && self.is_unchanged(group, viewers, vnode, visible)? {
                found.mark(index);
                found.place(0..record.length, "bytes are missing".into());
                found.forget_last();
            }
        }
        for (index, (places, cause)) in found.damaged {
            let visible = &seen[index];
            let volumes = viewers.volumes(&visible.seen_by);
            let Some(&volume) = volumes.first() else {
                continue;
            };
            let fid = Fid {
                volume,
                vnode: VnodeId(vnode),
                uniquifier: visible.record.uniquifier,
            };
            self.enter(Damage {
                fid,
                volumes,
                path: self.core.path_of(fid),
                data_version: visible.record.data_version,
                length: visible.record.length,
                places,
                cause,
            });
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Verifies the pieces of a vnode one by one, if a page of the table cannot be read.
    fn pieces_alone(
        &mut self,
        group: &Arc<Group>,
        viewers: &Viewers,
        vnode: u32,
        seen: &[VisibleVersion],
        found: &mut VnodeDamage,
    ) -> Result<()> {
        let engine = Arc::clone(&self.core.engine);
        for (index, visible) in seen.iter().enumerate() {
            let (record, epoch) = (&visible.record, viewers.epochs[visible.seen_by.start]);
            for number in 0..pieces_of(record) {
                let body = record.body_number;
                let prefix = Key::piece_prefix(group.id.0, vnode, body, number);
                let from = Key::piece(group.id.0, vnode, body, number, epoch);
                found.mark(index);
                match engine.first_version(&from, &prefix) {
                    Ok(Some((key, value))) => {
                        let version = Version {
                            key,
                            value,
                            seen_by: visible.seen_by.clone(),
                        };
                        self.blocks(group, vnode, &version, found)?;
                    }
                    Ok(None) => {}
                    Err(error) => found.place(place_of(record, number), error.to_string()),
                }
                found.forget_last();
            }
        }
        Ok(())
    }

    /// Returns whether the viewers still see this record.
    fn is_unchanged(
        &self,
        group: &Arc<Group>,
        viewers: &Viewers,
        vnode: u32,
        visible: &VisibleVersion,
    ) -> Result<bool> {
        let epoch = viewers.epochs[visible.seen_by.start];
        let from = Key::vnode(group.id.0, vnode, epoch);
        let prefix = Key::vnode_prefix(group.id.0, vnode);
        let found = self.core.engine.first_version(&from, &prefix)?;
        Ok(found.is_some_and(|(_, value)| {
            matches!(VnodeRecord::decode(&value), Ok(Ok(record)) if record == visible.record)
        }))
    }

    /// Verifies the blocks of a piece; returns the number of bytes.
    fn blocks(
        &self,
        group: &Arc<Group>,
        vnode: u32,
        version: &Version,
        found: &mut VnodeDamage,
    ) -> Result<u64> {
        let Ok(Piece::Blocks(blocks)) = Piece::decode(&version.value) else {
            return Ok(0);
        };
        let base = version.key.piece_number() * PIECE_BLOCKS as u64;
        let space = &self.core.engine.space;
        let mut read = 0;
        for (place, run) in blocks.runs() {
            let slots = &blocks.0[place..place + run.count as usize];
            // A block that a newer version of the piece shares was verified with that version.
            if slots.iter().flatten().all(|slot| found.sound(slot.block)) {
                continue;
            }
            let mut bytes = vec![0; run.count as usize * BLOCK];
            let whole = space.read_stored(run.start, &mut bytes);
            read += bytes.len() as u64;
            for (offset, slot) in slots.iter().flatten().enumerate() {
                let index = base + (place + offset) as u64;
                let sum = block_checksum(
                    group.id.0,
                    vnode,
                    index,
                    &bytes[offset * BLOCK..(offset + 1) * BLOCK],
                );
                if whole.is_ok() && sum == slot.checksum {
                    found.add_sound(slot.block);
                    continue;
                }
                if let Some(cause) = self.verify(group, vnode, version, place + offset, slot)? {
                    let at = index * BLOCK as u64;
                    found.place(at..at + BLOCK as u64, cause);
                } else {
                    found.add_sound(slot.block);
                }
            }
        }
        Ok(read)
    }

    /// Verifies one block again, held, with its present record. Returns what is wrong with it, if
    /// anything.
    fn verify(
        &self,
        group: &Arc<Group>,
        vnode: u32,
        version: &Version,
        place: usize,
        slot: &BlockRef,
    ) -> Result<Option<String>> {
        let engine = &self.core.engine;
        let _held = engine.space.pin();
        let Some(value) = engine.get(&version.key)? else {
            return Ok(None);
        };
        let Ok(Piece::Blocks(blocks)) = Piece::decode(&value) else {
            return Ok(None);
        };
        // The place may have another block now; the same block may also have been freed and written
        // again.
        if blocks.0[place] != Some(*slot) {
            return Ok(None);
        }
        let index = version.key.piece_number() * PIECE_BLOCKS as u64 + place as u64;
        let owner = Owner::vnode(group.id.0, vnode);
        Ok(block_damage(engine, owner, index, slot))
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

/// The range of bytes that a piece has in its body.
fn place_of(record: &VnodeRecord, number: u64) -> Range<u64> {
    let bytes = match (record.kind, record.body) {
        (FileType::Directory, _) => PAGE_SIZE as u64,
        (_, Body::Pieces) => PIECE_BYTES,
        _ => return 0..record.length,
    };
    number * bytes..(number + 1) * bytes
}

/// Damage of one vnode, by the versions that have it.
#[derive(Default)]
struct VnodeDamage {
    damaged: std::collections::BTreeMap<usize, (Vec<Range<u64>>, String)>,
    /// The versions that see the present piece.
    these: Vec<usize>,
    /// Sound blocks of the last few pieces: versions of a piece follow one another.
    sound: std::collections::VecDeque<u64>,
}

impl VnodeDamage {
    fn mark(&mut self, index: usize) {
        self.these.push(index);
    }

    fn forget_last(&mut self) {
        self.these.clear();
    }

    fn sound(&self, block: u64) -> bool {
        self.sound.contains(&block)
    }

    fn add_sound(&mut self, block: u64) {
        if self.sound.len() >= 2 * PIECE_BLOCKS {
            self.sound.pop_front();
        }
        self.sound.push_back(block);
    }

    fn place(&mut self, place: Range<u64>, cause: String) {
        for index in &self.these {
            let (places, _) = self
                .damaged
                .entry(*index)
                .or_insert_with(|| (Vec::new(), cause.clone()));
            let full = places.len() == PLACES_MAX;
            match places.last_mut() {
                Some(last) if full || last.end >= place.start => {
                    last.end = last.end.max(place.end);
                }
                _ => places.push(place.clone()),
            }
        }
    }
}
