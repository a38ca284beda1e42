//! The objects that the files of a partition name, for a program that removes all others.
//!
//! A version counts if any reader may still read it: the head, the clones, or a dump that holds an
//! epoch. During a restore, both the replaced and the new contents count. Too many references are
//! harmless; a missing one loses bytes. So references are listed by the owner in the object's name.
//! The volume that names the object does not matter: it may have come to name another volume's
//! objects.
//!
//! Removed files whose copies are kept (`operations/retired.rs`) name these copies, too. They are
//! read after the files, so a file that is removed meanwhile is in one of the lists at least.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use cellar_wire::ids::{Fid, Uniquifier, ViceId, VnodeId, VolumeId};
use cellar_wire::object::{ArchiveCopy, Layout, ObjectId};

use crate::engine::key::{Key, Kind};
use crate::error::{Error, Result};
use crate::partition::Partition;
use crate::record::{CloneKind, EPOCH_MAX, RetiredRecord, VnodeRecord};
use crate::state::core::{Core, Group, GroupId};
use crate::versions::Versions;
use crate::volume::Volume;

/// A version of an object that a file here needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Referenced {
    /// The object.
    pub object: ObjectId,
    /// The version.
    pub version: u64,
    /// The device.
    pub osd: u32,
    /// The owner of the file.
    pub owner: ViceId,
}

/// A version of a file in objects, and the volume that sees it.
#[derive(Clone, Debug)]
pub struct Holder {
    /// The file, in the head if the head sees this version, otherwise in a clone.
    pub fid: Fid,
    /// Whether that volume is the RW volume, in which the file can be changed.
    pub is_head: bool,
    /// Its length.
    pub length: u64,
    /// Its objects.
    pub layout: Arc<Layout>,
}

/// The position of a walk over the files of one owner: it goes on behind this vnode.
type WalkPosition = VnodeId;

impl Partition {
    /// Lists the objects of the RW volume `owner` (0: of all volumes) that files here name. Begins
    /// with the vnodes behind `after`, by ascending vnode numbers. All objects of a vnode are
    /// returned together, so there may be more than `limit`. The second result is the last vnode if
    /// there are more; pass it as `after`.
    pub fn references(
        &self,
        owner: VolumeId,
        after: VnodeId,
        limit: usize,
    ) -> Result<(Vec<Referenced>, Option<VnodeId>)> {
        let mut found: BTreeSet<Referenced> = BTreeSet::new();
        // The lowest vnode up to which any group was read when its share was complete.
        let mut end: Option<WalkPosition> = None;
        for group in self.core.all_groups()? {
            let range = WalkRange { after, limit, end };
            let (named, share) =
                group.consistent_walk(&self.core, after.0.saturating_add(1), |seen| {
                    named(seen, owner, &range)
                })?;
            found.extend(named);
            let range = WalkRange {
                end: share,
                ..range
            };
            let (named, share) = self.core.named_by_retired(&group, owner, &range)?;
            found.extend(named);
            end = share;
        }
        let mut found: Vec<_> = found.into_iter().collect();
        if let Some(end) = end {
            found.retain(|reference| reference.object.vnode <= end);
        }
        found.sort_unstable_by_key(|reference| (reference.object.vnode, *reference));
        Ok((found, end))
    }

    /// Lists files in objects whose layout is `wanted`, each version that any viewer sees. `from`
    /// is a place that an earlier call returned (0: the first). Reads up to about `looks` records.
    /// The second result is where to go on, if there is more.
    pub fn holders(
        &self,
        from: u64,
        looks: usize,
        mut wanted: impl FnMut(&Layout) -> bool,
    ) -> Result<(Vec<Holder>, Option<u64>)> {
        let enter = |_: &Group| true;
        self.walk_files(from, looks, enter, |group, vnode, record, viewers| {
            let layout = record.layout.clone().filter(|layout| wanted(layout))?;
            group.holder(vnode, record, layout, viewers)
        })
    }

    /// Calls `pick` for each version of a file with objects or copies in archives that any viewer
    /// sees, and gathers its results. Groups that `enter` refuses are not read.
    pub(crate) fn walk_files<T>(
        &self,
        from: u64,
        looks: usize,
        mut enter: impl FnMut(&Group) -> bool,
        mut pick: impl FnMut(&Group, VnodeId, &VnodeRecord, &[u64]) -> Option<T>,
    ) -> Result<(Vec<T>, Option<u64>)> {
        let mut found = Vec::new();
        let mut left = looks;
        let mut groups = Groups::from((from >> 32) as u32);
        while let Some(group) = groups.next(&self.core)? {
            if !enter(&group) {
                continue;
            }
            let number = u64::from(group.id.0) << 32;
            let first = from.saturating_sub(number) as u32;
            let part = group.consistent_walk(&self.core, first, |seen| {
                let mut part = Vec::new();
                let (mut left, mut last) = (left, None);
                while let Some((vnode, record, viewers)) = seen.next()? {
                    // All versions of a vnode are read in one call, so every call makes progress.
                    if left == 0 && last != Some(vnode) {
                        return Ok((part, left, Some(vnode)));
                    }
                    left = left.saturating_sub(1);
                    last = Some(vnode);
                    part.extend(pick(&group, vnode, &record, seen.viewers(viewers)));
                }
                Ok((part, left, None))
            })?;
            found.extend(part.0);
            if let Some(vnode) = part.2 {
                return Ok((found, Some(number + u64::from(vnode.0))));
            }
            left = part.1;
        }
        Ok((found, None))
    }
}

impl Volume {
    /// The place of a vnode of this volume in [`Partition::holders`].
    pub fn place_of(&self, vnode: VnodeId) -> u64 {
        u64::from(self.group.id.0) << 32 | u64::from(vnode.0)
    }

    /// The layouts of a file that any viewer here sees: this volume, its clones, and readers that
    /// hold an epoch.
    pub fn visible_layouts(&self, file: VnodeId) -> Result<Vec<Arc<Layout>>> {
        self.group.consistent_walk(&self.core, file.0, |seen| {
            seen.end = file;
            let mut layouts = Vec::new();
            while let Some((_, record, _)) = seen.next()? {
                layouts.extend(record.layout);
            }
            Ok(layouts)
        })
    }

    /// The versions of a file in objects that this volume and its clones see.
    pub fn holders_of(&self, file: VnodeId) -> Result<Vec<Holder>> {
        self.group.consistent_walk(&self.core, file.0, |seen| {
            seen.end = file;
            let mut holders = Vec::new();
            while let Some((vnode, record, viewers)) = seen.next()? {
                if let Some(layout) = record.layout.clone() {
                    let viewers = seen.viewers(viewers);
                    holders.extend(self.group.holder(vnode, &record, layout, viewers));
                }
            }
            Ok(holders)
        })
    }
}

/// The requested range of vnodes.
struct WalkRange {
    after: VnodeId,
    limit: usize,
    /// Other groups were read up to this vnode.
    end: Option<WalkPosition>,
}

/// The objects that the files of one group name, and the vnode up to which the list is complete.
fn named(
    seen: &mut Files,
    owner: VolumeId,
    range: &WalkRange,
) -> Result<(BTreeSet<Referenced>, Option<WalkPosition>)> {
    let mut found = BTreeSet::new();
    let (mut own, mut last, mut end) = (0, range.after, range.end);
    while let Some((vnode, record, _)) = seen.next()? {
        if end.is_some_and(|end| vnode > end) {
            break;
        }
        if own >= range.limit && vnode != last {
            end = Some(last);
            break;
        }
        last = vnode;
        own += enter(&mut found, owner, vnode, &record);
    }
    Ok((found, end))
}

fn enter(
    found: &mut BTreeSet<Referenced>,
    owner: VolumeId,
    vnode: VnodeId,
    record: &VnodeRecord,
) -> usize {
    let uniquifier: Uniquifier = record.uniquifier;
    let before = found.len();
    let is_owned = |volume: VolumeId| owner.0 == 0 || volume == owner;
    let layout = record.layout.iter();
    for layout in layout.filter(|layout| is_owned(layout.volume)) {
        let written = layout.objects.iter().filter(|placed| placed.version > 0);
        found.extend(written.map(|placed| Referenced {
            object: layout.object(vnode, uniquifier, placed),
            version: placed.version,
            osd: placed.osd,
            owner: record.owner,
        }));
    }
    let copies = record.copies.iter().flat_map(|copies| copies.iter());
    enter_copies(found, owner, (vnode, uniquifier), record.owner, copies);
    found.len() - before
}

/// Adds the copies in the name of the RW volume `owner` (0: of all). Returns the number of added
/// references.
fn enter_copies<'c>(
    found: &mut BTreeSet<Referenced>,
    owner: VolumeId,
    (vnode, uniquifier): (VnodeId, Uniquifier),
    user: ViceId,
    copies: impl Iterator<Item = &'c ArchiveCopy>,
) -> usize {
    let before = found.len();
    let copies = copies.filter(|copy| owner.0 == 0 || copy.volume == owner);
    found.extend(copies.map(|copy| Referenced {
        object: copy.object(vnode, uniquifier),
        version: copy.version,
        osd: copy.osd,
        owner: user,
    }));
    found.len() - before
}

/// The files of a group that are in objects: all versions that any viewer sees.
struct Files {
    versions: Versions,
    /// The last wanted vnode.
    end: VnodeId,
}

impl Files {
    /// The next version, with the range of its [`Files::viewers`]. A damaged record is an error,
    /// because the objects that it names are not known.
    fn next(&mut self) -> Result<Option<(VnodeId, VnodeRecord, Range<usize>)>> {
        while let Some(version) = self.versions.next_visible()? {
            let vnode = VnodeId(version.key.u32_at(5));
            if vnode > self.end {
                return Ok(None);
            }
            if vnode.is_directory() {
                continue;
            }
            if let Ok(record) = VnodeRecord::decode(&version.value)?
                && (record.layout.is_some() || record.copies.is_some())
            {
                return Ok(Some((vnode, record, version.seen_by)));
            }
        }
        Ok(None)
    }

    /// The epochs that see a version.
    fn viewers(&self, range: Range<usize>) -> &[u64] {
        self.versions.viewers().get(range).unwrap_or_default()
    }
}

/// Groups whose records are read at a time.
const GROUPS_AT_A_TIME: usize = 1024;

/// A walk over the groups with volumes, in ascending order.
struct Groups {
    /// The lowest number that was not read; `None`: all were.
    next: Option<u32>,
    read: VecDeque<GroupId>,
}

impl Groups {
    /// From this number on.
    fn from(first: u32) -> Self {
        Self {
            next: Some(first),
            read: VecDeque::new(),
        }
    }

    fn next(&mut self, core: &Core) -> Result<Option<Arc<Group>>> {
        loop {
            while let Some(id) = self.read.pop_front() {
                // The group may have ended meanwhile.
                if let Some(group) = core.existing_group(id)?.filter(|group| group.has_volumes()) {
                    return Ok(Some(group));
                }
            }
            let Some(first) = self.next.take() else {
                return Ok(None);
            };
            let prefix = Key::of_kind(Kind::Group);
            let mut scan = core.engine.scan(&Key::group(first), &prefix)?;
            while self.read.len() < GROUPS_AT_A_TIME
                && let Some((key, _)) = scan.next()?
            {
                self.read.push_back(GroupId(key.u32_at(1)));
            }
            if self.read.len() == GROUPS_AT_A_TIME {
                let last = self.read.back();
                self.next = last.and_then(|last| last.0.checked_add(1));
            }
        }
    }
}

/// How often the walk over a group is repeated if viewers were added meanwhile.
const TRIES: usize = 100;

impl Group {
    /// Whether any volume belongs to it. The records of a group outlive its last volume until they
    /// are removed in the background.
    fn has_volumes(&self) -> bool {
        let state = self.state.read();
        state.record.has_head() || !state.record.clones.is_empty()
    }

    /// Walks over the files from vnode `first` on. A clone that is made meanwhile may be the only
    /// viewer of a version that was overwritten before the walk came to it. Then the walk is
    /// repeated.
    fn consistent_walk<T>(
        &self,
        core: &Core,
        first: u32,
        mut walk: impl FnMut(&mut Files) -> Result<T>,
    ) -> Result<T> {
        for _ in 0..TRIES {
            let viewers = self.viewers();
            let outcome = walk(&mut self.files(core, first))?;
            if self.viewers().iter().all(|viewer| viewers.contains(viewer)) {
                return Ok(outcome);
            }
        }
        Err(Error::Busy(self.state.read().record.head))
    }

    /// All epochs that see anything of the group.
    fn viewers(&self) -> Vec<u64> {
        let state = self.state.read();
        let clones = state.record.clones.iter();
        let mut viewers: Vec<u64> = clones.map(|clone| clone.epoch).collect();
        viewers.push(EPOCH_MAX);
        viewers.extend(self.held.epochs());
        viewers
    }

    fn files(&self, core: &Core, first: u32) -> Files {
        Files {
            end: VnodeId(u32::MAX),
            versions: Versions::of_vnodes(&core.engine, self.id, first, self.viewers()),
        }
    }

    /// A version that `viewers` see; `None` if no volume sees it.
    pub(super) fn holder(
        &self,
        vnode: VnodeId,
        record: &VnodeRecord,
        layout: Arc<Layout>,
        viewers: &[u64],
    ) -> Option<Holder> {
        let state = self.state.read();
        let is_head = viewers.contains(&EPOCH_MAX) && state.record.has_head();
        let volume = if is_head {
            state.record.head
        } else {
            let seeing = || {
                let clones = state.record.clones.iter();
                clones.filter(|clone| viewers.contains(&clone.epoch))
            };
            // While the head is restored, it shows the epoch of the pin.
            let clone = seeing().find(|clone| clone.kind == CloneKind::Clone);
            clone.or_else(|| seeing().next())?.id
        };
        Some(Holder {
            fid: Fid {
                volume,
                vnode,
                uniquifier: record.uniquifier,
            },
            is_head,
            length: record.length,
            layout,
        })
    }
}

impl Core {
    /// The copies that retired files of a group name, and the vnode up to which the list is
    /// complete.
    fn named_by_retired(
        &self,
        group: &Group,
        owner: VolumeId,
        range: &WalkRange,
    ) -> Result<(BTreeSet<Referenced>, Option<WalkPosition>)> {
        let mut found = BTreeSet::new();
        let from = Key::retired(group.id.0, range.after.0, u32::MAX).successor();
        let prefix = Key::of_group(Kind::Retired, group.id.0);
        let mut scan = self.engine.scan(&from, &prefix)?;
        let (mut own, mut last, mut end) = (0, range.after, range.end);
        while let Some((key, value)) = scan.next()? {
            let (vnode, uniquifier) = key.retired_parts();
            if end.is_some_and(|end| vnode > end) {
                break;
            }
            if own >= range.limit && vnode != last {
                end = Some(last);
                break;
            }
            last = vnode;
            let file = RetiredRecord::decode(&value)?;
            let copies = file.copies.iter();
            own += enter_copies(&mut found, owner, (vnode, uniquifier), file.owner, copies);
        }
        Ok((found, end))
    }

    /// The groups of all volumes on this partition, in ascending order.
    pub(crate) fn all_groups(&self) -> Result<Vec<Arc<Group>>> {
        let mut groups = Groups::from(0);
        let mut all = Vec::new();
        while let Some(group) = groups.next(self)? {
            all.push(group);
        }
        Ok(all)
    }
}
