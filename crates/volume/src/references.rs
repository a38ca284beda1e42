//! Which objects the files of a partition name: for who removes the others.
//!
//! What counts is whatever anybody may still read: the head, the clones, what a dump holds on to, and
//! of a restore both what it replaces and what has come. Too much is harmless here; too little loses
//! bytes. So what is asked for is the owner in the object's name, not the volume that names it: a
//! volume may have come to name another's objects.

use std::collections::BTreeSet;
use std::sync::Arc;

use cellar_wire::ids::{Fid, Uniquifier, ViceId, VnodeId, VolumeId};
use cellar_wire::object::{Layout, ObjectId};

use crate::core::{Core, Group, GroupId};
use crate::engine::key::{Key, Kind};
use crate::error::{Error, Result};
use crate::partition::{EPOCH_MAX, Partition};
use crate::record::{CloneKind, VnodeRecord, VolumeRecord};
use crate::versions::Versions;
use crate::volume::Volume;

/// A version of an object that some file here needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Referenced {
    /// The object.
    pub object: ObjectId,
    /// The version.
    pub version: u64,
    /// The device.
    pub osd: u32,
    /// Who owns the file.
    pub owner: ViceId,
}

/// A version of a file in objects, with who sees it.
#[derive(Clone, Debug)]
pub struct Holder {
    /// The file, in the volume that sees this version: the head's if it does, else a clone's.
    pub fid: Fid,
    /// Whether that is the RW volume: the file can be changed there.
    pub is_head: bool,
    /// Its length.
    pub length: u64,
    /// Its objects.
    pub layout: Arc<Layout>,
}

/// How far a walk over the files of one owner has come: behind this vnode.
type Place = VnodeId;

impl Partition {
    /// What files here name of the objects of the RW volume `owner` (0: of all volumes), of the vnodes
    /// behind `after` by ascending vnode numbers. All of a vnode come together, so there may be more
    /// than `limit`. The second: there are more, ask again behind the last vnode.
    pub fn references(
        &self,
        owner: VolumeId,
        after: VnodeId,
        limit: usize,
    ) -> Result<(Vec<Referenced>, Option<VnodeId>)> {
        let mut found: BTreeSet<Referenced> = BTreeSet::new();
        // The lowest vnode that any group was read up to when it had its share.
        let mut end: Option<Place> = None;
        for group in self.core.all_groups()? {
            let range = Behind { after, limit, end };
            let (named, share) = group.settled(&self.core, after.0.saturating_add(1), |seen| {
                named(seen, owner, &range)
            })?;
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

    /// Files in objects, each version that anybody sees, those that `wanted` says, from a place on that
    /// an earlier call told (0: the first): up to about `looks` records are looked at. The second: where
    /// to go on, if there is more.
    pub fn holders(
        &self,
        from: u64,
        looks: usize,
        mut wanted: impl FnMut(&Layout) -> bool,
    ) -> Result<(Vec<Holder>, Option<u64>)> {
        let mut found = Vec::new();
        let mut left = looks;
        for group in self.core.all_groups()? {
            let number = u64::from(group.id.0) << 32;
            if number + u64::from(u32::MAX) < from {
                continue;
            }
            let first = from.saturating_sub(number) as u32;
            let part = group.settled(&self.core, first, |seen| {
                let mut part = Vec::new();
                let mut left = left;
                while let Some((vnode, record, viewers)) = seen.next()? {
                    if left == 0 {
                        return Ok((part, left, Some(vnode)));
                    }
                    left -= 1;
                    let Some(layout) = record.layout.clone().filter(|layout| wanted(layout)) else {
                        continue;
                    };
                    part.extend(group.holder(vnode, &record, layout, &viewers));
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
    /// Where [`Partition::holders`] finds a vnode of this volume.
    pub fn place_of(&self, vnode: VnodeId) -> u64 {
        u64::from(self.group.id.0) << 32 | u64::from(vnode.0)
    }

    /// The layouts of a file that anybody here sees: this volume, its clones, those who read on.
    pub fn layouts_seen(&self, file: VnodeId) -> Result<Vec<Arc<Layout>>> {
        self.group.settled(&self.core, file.0, |seen| {
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
        self.group.settled(&self.core, file.0, |seen| {
            seen.end = file;
            let mut holders = Vec::new();
            while let Some((vnode, record, viewers)) = seen.next()? {
                if let Some(layout) = record.layout.clone() {
                    holders.extend(self.group.holder(vnode, &record, layout, &viewers));
                }
            }
            Ok(holders)
        })
    }
}

/// Which vnodes are asked for.
struct Behind {
    after: VnodeId,
    limit: usize,
    /// Others were read up to here.
    end: Option<Place>,
}

/// What the files of one group name, and up to which vnode that is all.
fn named(
    seen: &mut Files,
    owner: VolumeId,
    behind: &Behind,
) -> Result<(BTreeSet<Referenced>, Option<Place>)> {
    let mut found = BTreeSet::new();
    let (mut own, mut last, mut end) = (0, behind.after, behind.end);
    while let Some((vnode, record, _)) = seen.next()? {
        if end.is_some_and(|end| vnode > end) {
            break;
        }
        if own >= behind.limit && vnode != last {
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
    let Some(layout) = &record.layout else {
        return 0;
    };
    if owner.0 != 0 && layout.volume != owner {
        return 0;
    }
    let uniquifier: Uniquifier = record.uniquifier;
    let before = found.len();
    let written = layout.objects.iter().filter(|placed| placed.version > 0);
    found.extend(written.map(|placed| Referenced {
        object: layout.object(vnode, uniquifier, placed),
        version: placed.version,
        osd: placed.osd,
        owner: record.owner,
    }));
    found.len() - before
}

/// The files of a group that lie in objects, all versions that anybody sees.
struct Files {
    versions: Versions,
    /// The last one that is wanted.
    end: VnodeId,
}

impl Files {
    /// The next, with the epochs that see it. A damaged record is an error: what it names is not known.
    fn next(&mut self) -> Result<Option<(VnodeId, VnodeRecord, Vec<u64>)>> {
        while let Some(version) = self.versions.next_seen()? {
            let vnode = VnodeId(version.key.u32_at(5));
            if vnode > self.end {
                return Ok(None);
            }
            if vnode.is_directory() {
                continue;
            }
            if let Ok(record) = VnodeRecord::decode(&version.value)?
                && record.layout.is_some()
            {
                let viewers = self.versions.viewers()[version.seen_by].to_vec();
                return Ok(Some((vnode, record, viewers)));
            }
        }
        Ok(None)
    }
}

/// How often a group is read again whose viewers became more meanwhile.
const TRIES: usize = 100;

impl Group {
    /// Walks over the files from vnode `first` on. A clone that is made meanwhile may be the only one to see
    /// what was written over behind the walk's back; then it is done again.
    fn settled<T>(
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

    /// Whatever sees anything of the group.
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

    /// A version that is seen by `viewers`; `None`: by no volume.
    fn holder(
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
            // While the head is restored it shows the epoch of the pin.
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
    /// The groups of all volumes that are here, ascending.
    fn all_groups(self: &Arc<Self>) -> Result<Vec<Arc<Group>>> {
        let prefix = Key::of_kind(Kind::Volume);
        let mut scan = self.engine.scan(&prefix, &prefix)?;
        let mut numbers = BTreeSet::new();
        while let Some((_, value)) = scan.next()? {
            numbers.insert(VolumeRecord::decode(&value)?.group.0);
        }
        drop(scan);
        let mut groups = Vec::with_capacity(numbers.len());
        for number in numbers {
            groups.extend(self.existing_group(GroupId(number))?);
        }
        Ok(groups)
    }
}
