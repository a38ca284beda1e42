//! The consistency check of a whole partition. It examines everything that a salvager would
//! examine, and should find nothing to repair.
//!
//! For each volume:
//!
//! * Every entry names a vnode that exists and knows its directory.
//! * Link counts, usage and the numbers given out are right.
//! * No vnode is without a name.
//! * Every byte matches its checksum.
//!
//! For the partition: every block is free, or exactly one place of one file names it, in any number
//! of versions. Nothing may change meanwhile, so this is for tests and for partitions taken out of
//! service.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cellar_wire::dir::{Directory, PAGE_SIZE, Page};
use cellar_wire::ids::{Fid, Uniquifier, VnodeId};

use crate::engine::Engine;
use crate::engine::key::{Key, Kind};
use crate::error::{Error, Result};
use crate::partition::Partition;
use crate::record::{
    BLOCK, Body, CloneKind, CountersRecord, EPOCH_MAX, GroupRecord, PIECE_BLOCKS, Piece,
    RetiredRecord, VnodeRecord, VolumeRecord,
};
use crate::state::core::GroupId;
use crate::state::reserve::Reserved;
use crate::types::FileType;
use crate::versions::Versions;
use crate::volume::Volume;

/// The most faults that are described; more are only counted.
const DESCRIBED_MAX: usize = 100;

/// The result of [`Partition::check`].
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// Number of volumes that were checked.
    pub volumes: u64,
    /// Number of vnodes, counted for each volume that sees them.
    pub vnodes: u64,
    /// Number of blocks of 4 KiB that are named.
    pub blocks: u64,
    /// The faults, one sentence each.
    pub faults: Vec<String>,
    /// Number of versions that no volume sees. They are left for the background removal.
    pub unseen: u64,
    /// Some of their keys.
    pub unseen_keys: Vec<String>,
}

impl CheckReport {
    pub(crate) fn fault(&mut self, text: String) {
        if self.faults.len() < DESCRIBED_MAX {
            self.faults.push(text);
        }
    }

    pub(crate) fn unseen(&mut self, key: &Key) {
        self.unseen += 1;
        if self.unseen_keys.len() < DESCRIBED_MAX {
            self.unseen_keys.push(format!("{key:?}"));
        }
    }
}

impl CheckReport {
    /// Compares the map of blocks with the blocks that are named.
    pub(crate) fn compare_map<P: std::fmt::Debug>(
        &mut self,
        engine: &Engine,
        mut named: HashMap<u64, P>,
    ) -> Result<()> {
        for run in engine.space.image_blocks(&|key| engine.get(key))? {
            for block in run.start..run.end() {
                if named.remove(&block).is_none() {
                    self.fault(format!("block {block} is in use and nothing names it"));
                }
            }
        }
        for (block, place) in named {
            self.fault(format!("block {block} of {place:?} is free in the map"));
        }
        Ok(())
    }
}

/// The records that one viewer of a group sees, by vnode number.
type VisibleRecords = HashMap<u32, VnodeRecord>;

/// The place to which a block belongs: group, vnode, body, block number in the file.
type BlockOwner = (u32, u32, u32, u64);

impl Partition {
    /// Checks everything on the partition. Nothing may change it meanwhile.
    pub fn check(&self) -> Result<CheckReport> {
        let _quiet = self.core.reaper.hold();
        let engine = &self.core.engine;
        let mut report = CheckReport::default();
        let mut by_group: BTreeMap<u32, Vec<VolumeRecord>> = BTreeMap::new();
        let prefix = Key::of_kind(Kind::Volume);
        let mut scan = engine.scan(&prefix, &prefix)?;
        while let Some((_, value)) = scan.next()? {
            let record = VolumeRecord::decode(&value)?;
            by_group.entry(record.group.0).or_default().push(record);
        }
        let mut named: HashMap<u64, BlockOwner> = HashMap::new();
        let prefix = Key::of_kind(Kind::Group);
        let mut scan = engine.scan(&prefix, &prefix)?;
        while let Some((key, value)) = scan.next()? {
            let group = GroupId(key.u32_at(1));
            let record = GroupRecord::decode(&value)?;
            let volumes = by_group.remove(&group.0).unwrap_or_default();
            self.check_group(group, &record, &volumes, &mut named, &mut report)?;
        }
        for volume in by_group.values().flatten() {
            report.fault(format!("volume {} has no group", volume.info.id));
        }
        report.blocks = named.len() as u64;
        report.compare_map(engine, named)?;
        Ok(report)
    }

    fn check_group(
        &self,
        group: GroupId,
        record: &GroupRecord,
        volumes: &[VolumeRecord],
        named: &mut HashMap<u64, BlockOwner>,
        report: &mut CheckReport,
    ) -> Result<()> {
        let clones = record.clones.iter();
        let mut viewers: Vec<u64> = clones
            .filter(|clone| clone.kind == CloneKind::Clone)
            .map(|clone| clone.epoch)
            .collect();
        // During a restore the head sees the pinned epoch.
        let head = record.pin().unwrap_or(EPOCH_MAX);
        viewers.extend(record.has_head().then_some(head));
        let view_of = |volume: &VolumeRecord| match volume.epoch {
            EPOCH_MAX => head,
            epoch => epoch,
        };
        let mut expected: Vec<u64> = volumes.iter().map(view_of).collect();
        viewers.sort_unstable();
        expected.sort_unstable();
        if viewers != expected {
            report.fault(format!(
                "group {group:?} has viewers {viewers:?}, volumes {expected:?}"
            ));
        }
        for volume in volumes {
            if (volume.epoch == EPOCH_MAX) != (volume.info.id == record.head) {
                report.fault(format!(
                    "volume {} is not the head {}",
                    volume.info.id, record.head
                ));
            }
        }
        let seen = self.check_records(group, &viewers, report)?;
        self.check_pieces(group, &seen, named, report)?;
        for volume in volumes {
            report.volumes += 1;
            let empty = VisibleRecords::new();
            let seen = seen.get(&view_of(volume)).unwrap_or(&empty);
            match self.core.volume(volume.info.id)? {
                Some(open) => check_volume(&open, volume, seen, report)?,
                None => report.fault(format!("volume {} does not open", volume.info.id)),
            }
        }
        let Some(value) = self.core.engine.get(&Key::counters(group.0))? else {
            report.fault(format!("group {group:?} has no counters"));
            return Ok(());
        };
        let counters = CountersRecord::decode(&value)?;
        let prefix = Key::of_group(Kind::Removed, group.0);
        let mut scan = self.core.engine.scan(&prefix, &prefix)?;
        let mut removed = 0;
        while scan.next()?.is_some() {
            removed += 1;
        }
        if removed > u64::from(counters.removed) {
            let counted = counters.removed;
            report.fault(format!(
                "{group:?} has {removed} removals, {counted} counted"
            ));
        }
        let prefix = Key::of_group(Kind::Retired, group.0);
        let mut scan = self.core.engine.scan(&prefix, &prefix)?;
        while let Some((key, value)) = scan.next()? {
            if let Err(error) = RetiredRecord::decode(&value) {
                report.fault(format!("{group:?} retired file {key:?}: {error}"));
            }
        }
        if let Some(value) = self.core.engine.get(&Key::reserved(group.0))? {
            Reserved::decode(&value)?.check(&counters, |text| {
                report.fault(format!("{group:?} {text}"));
            });
        }
        for records in seen.values() {
            for (vnode, record) in records {
                let next = if vnode % 2 == 1 {
                    counters.next_directory
                } else {
                    counters.next_file
                };
                if *vnode >= next || record.uniquifier.0 >= counters.next_uniquifier {
                    report.fault(format!(
                        "{group:?} vnode {vnode} has a number not given out"
                    ));
                }
            }
        }
        if record.has_head()
            && let Some(records) = seen.get(&head)
        {
            let blocks: u64 = records.values().map(VnodeRecord::blocks).sum();
            if (blocks, records.len() as u64) != (counters.blocks_used, counters.files) {
                report.fault(format!(
                    "{group:?} uses {blocks} blocks, {} files; its counters say {} and {}",
                    records.len(),
                    counters.blocks_used,
                    counters.files
                ));
            }
        }
        Ok(())
    }

    fn check_records(
        &self,
        group: GroupId,
        viewers: &[u64],
        report: &mut CheckReport,
    ) -> Result<HashMap<u64, VisibleRecords>> {
        let mut seen: HashMap<u64, VisibleRecords> = viewers
            .iter()
            .map(|&viewer| (viewer, VisibleRecords::new()))
            .collect();
        let engine = &self.core.engine;
        let mut versions = Versions::of_vnodes(engine, group, 0, viewers.to_vec());
        while let Some(version) = versions.next()? {
            let key = version.key;
            let vnode = key.u32_at(5);
            let record = match VnodeRecord::decode(&version.value) {
                Ok(record) => record.ok(),
                Err(error) => {
                    report.fault(format!("{group:?} vnode {vnode}: {error}"));
                    continue;
                }
            };
            let indexed = key.epoch() == 1
                || engine
                    .get(&Key::change(group.0, key.epoch(), vnode))?
                    .is_some();
            if !indexed {
                report.fault(format!("the index of changes lacks {key:?}"));
            }
            if version.seen_by.is_empty() {
                report.unseen(&key);
            }
            for viewer in &versions.viewers()[version.seen_by] {
                if let (Some(records), Some(record)) = (seen.get_mut(viewer), &record) {
                    records.insert(vnode, record.clone());
                }
            }
        }
        Ok(seen)
    }

    fn check_pieces(
        &self,
        group: GroupId,
        seen: &HashMap<u64, VisibleRecords>,
        named: &mut HashMap<u64, BlockOwner>,
        report: &mut CheckReport,
    ) -> Result<()> {
        let prefix = Key::of_group(Kind::Body, group.0);
        let mut scan = self.core.engine.scan(&prefix, &prefix)?;
        while let Some((key, value)) = scan.next()? {
            let (vnode, body) = (key.u32_at(5), key.body_number());
            let known = seen.values().any(|records| {
                records.get(&vnode).is_some_and(|record| {
                    record.body_number == body
                        && matches!(record.body, Body::Inline { .. } | Body::Pieces)
                })
            });
            if !known {
                report.unseen(&key);
            }
            let blocks = match Piece::decode(&value) {
                Ok(Piece::Blocks(blocks)) => blocks,
                Ok(_) => continue,
                Err(error) => {
                    report.fault(format!("{group:?} vnode {vnode} piece: {error}"));
                    continue;
                }
            };
            for (place, slot) in blocks.0.iter().enumerate() {
                let Some(slot) = slot else { continue };
                let index = key.piece_number() * PIECE_BLOCKS as u64 + place as u64;
                let here = (group.0, vnode, body, index);
                match named.insert(slot.block, here) {
                    Some(there) if there != here => report.fault(format!(
                        "block {} is named by {there:?} and {here:?}",
                        slot.block
                    )),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// The names of a vnode: their number, and their directory.
#[derive(Default)]
struct Links {
    names: u32,
    subdirectories: u32,
    parent: Option<(VnodeId, Uniquifier)>,
}

fn check_volume(
    volume: &Arc<Volume>,
    record: &VolumeRecord,
    seen: &VisibleRecords,
    report: &mut CheckReport,
) -> Result<()> {
    let id = record.info.id;
    report.vnodes += seen.len() as u64;
    let mut links: HashMap<u32, Links> = HashMap::new();
    let mut vnodes: Vec<_> = seen.iter().collect();
    vnodes.sort_by_key(|(vnode, _)| **vnode);
    for &(&vnode, known) in &vnodes {
        let fid = Fid {
            volume: id,
            vnode: VnodeId(vnode),
            uniquifier: known.uniquifier,
        };
        if VnodeId(vnode).is_directory() != (known.kind == FileType::Directory) {
            report.fault(format!("{fid} is a {:?}", known.kind));
        }
        if let Err(error) = read_all(volume, fid, known) {
            report.fault(format!("{fid}: {error}"));
            continue;
        }
        if known.kind == FileType::Directory {
            check_directory(volume, fid, known, seen, &mut links, report)?;
        }
    }
    for &(&vnode, known) in &vnodes {
        let fid = Fid {
            volume: id,
            vnode: VnodeId(vnode),
            uniquifier: known.uniquifier,
        };
        let found = links.remove(&vnode).unwrap_or_default();
        let is_root = vnode == VnodeId::ROOT.0;
        let names = if known.kind == FileType::Directory {
            if found.names != u32::from(!is_root) {
                report.fault(format!("{fid} has {} names", found.names));
            }
            2 + found.subdirectories
        } else {
            found.names
        };
        if names != known.link_count {
            report.fault(format!(
                "{fid} has link count {}, found {names}",
                known.link_count
            ));
        }
        if !is_root && found.parent != Some((known.parent, known.parent_uniquifier)) {
            report.fault(format!("{fid} names {} as its parent", known.parent));
        }
    }
    for vnode in links.keys() {
        report.fault(format!(
            "volume {id}: an entry names vnode {vnode}, which is not there"
        ));
    }
    Ok(())
}

fn check_directory(
    volume: &Volume,
    fid: Fid,
    known: &VnodeRecord,
    seen: &VisibleRecords,
    links: &mut HashMap<u32, Links>,
    report: &mut CheckReport,
) -> Result<()> {
    let bytes = volume.read(fid, 0, known.length as usize)?;
    let pages: &[Page] = bytes.as_chunks::<PAGE_SIZE>().0;
    let directory = Directory::new(pages.to_vec());
    if let Err(error) = directory.check() {
        report.fault(format!("{fid}: {error}"));
        return Ok(());
    }
    let entries = directory
        .entries()
        .map_err(|error| Error::Format(error.to_string()))?;
    for (name, target) in entries {
        match &name[..] {
            b"." => continue,
            b".." => {
                if (target.vnode, target.uniquifier) != (known.parent, known.parent_uniquifier) {
                    report.fault(format!("{fid}: .. leads to {}", target.vnode));
                }
                continue;
            }
            _ => {}
        }
        let found = links.entry(target.vnode.0).or_default();
        found.names += 1;
        found.parent = Some((fid.vnode, fid.uniquifier));
        if target.vnode.is_directory() {
            links.entry(fid.vnode.0).or_default().subdirectories += 1;
        }
        if seen
            .get(&target.vnode.0)
            .is_none_or(|there| there.uniquifier != target.uniquifier)
        {
            report.fault(format!(
                "{fid}: {} is not there",
                String::from_utf8_lossy(&name)
            ));
        }
    }
    Ok(())
}

/// Reads all bytes of a vnode; skips holes of large files a piece at a time.
fn read_all(volume: &Volume, fid: Fid, record: &VnodeRecord) -> Result<()> {
    if matches!(record.body, Body::Objects | Body::Archived(_)) {
        return Ok(());
    }
    if record.body != Body::Pieces || record.kind == FileType::Directory {
        volume.read(fid, 0, record.length.min(4 << 20) as usize)?;
        return Ok(());
    }
    for number in volume.piece_numbers(fid, record.body_number)? {
        let piece = volume.piece(fid, record.body_number, number)?;
        let Some(Piece::Blocks(blocks)) = piece.map(|old| old.piece) else {
            continue;
        };
        let base = number * PIECE_BLOCKS as u64;
        for (place, _) in blocks
            .0
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.is_some())
        {
            let index = base + place as u64;
            let bytes = volume.read_block(fid, &blocks, index)?;
            let end = record
                .length
                .saturating_sub(index * BLOCK as u64)
                .min(BLOCK as u64);
            if bytes[end as usize..].iter().any(|&byte| byte != 0) {
                return Err(Error::Format("bytes after its end are not zero".into()));
            }
        }
    }
    Ok(())
}
