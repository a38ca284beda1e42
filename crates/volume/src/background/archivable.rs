//! Walks over the files that can have copies in archives.
//!
//! | walk | files | purpose |
//! | --- | --- | --- |
//! | [`Partition::archivable_files`] | of RW volumes, as their heads see them | copies, wiping, verification |
//! | [`Partition::replica_files`] | of volumes whose RW volume is elsewhere | wiping after the RW volume |
//!
//! A clone beside its RW volume shares the records of files with it, and needs no walk.

use std::cell::RefCell;
use std::sync::Arc;

use cellar_wire::ids::{Fid, VnodeId, VolumeId};
use cellar_wire::object::{ArchiveCopies, ArchiveCopy, Contents, Layout};

use crate::error::Result;
use crate::partition::Partition;
use crate::record::{EPOCH_MAX, VnodeRecord};
use crate::state::core::{Core, Group, GroupId};
use crate::types::{VnodeStatus, VolumeKind};

/// A file of an RW volume that is in objects, in archives or in both.
#[derive(Clone, Debug)]
pub struct ArchivableFile {
    /// Its status.
    pub status: VnodeStatus,
    /// The name of its bytes.
    pub contents: Contents,
    /// Its objects; `None`: it is wiped.
    pub layout: Option<Arc<Layout>>,
    copies: Option<Arc<ArchiveCopies>>,
}

impl ArchivableFile {
    /// Its copies in archives, also of older bytes.
    pub fn copies(&self) -> &[ArchiveCopy] {
        self.copies.as_ref().map_or(&[], |copies| &copies[..])
    }
}

/// A file in objects that no RW volume of its partition sees.
#[derive(Clone, Debug)]
pub struct ReplicaFile {
    /// The file, in one of the volumes that see it.
    pub fid: Fid,
    /// The RW volume of the family.
    pub parent: VolumeId,
    /// Its objects.
    pub layout: Arc<Layout>,
}

/// The head of a group, as far as archives are concerned.
#[derive(Clone, Copy)]
enum Head {
    /// The RW volume is here.
    ReadWrite(VolumeId),
    /// The head is read-only, or the group has only clones.
    ReadOnly,
    /// The volume cannot be opened. Its files are left alone.
    Damaged,
}

/// Remembers the head of the last group: a walk visits one group after the other.
#[derive(Default)]
struct Heads(Option<(GroupId, Head)>);

impl Heads {
    fn of(&mut self, core: &Arc<Core>, group: &Group) -> Head {
        if let Some((_, head)) = self.0.filter(|(id, _)| *id == group.id) {
            return head;
        }
        let head = {
            let state = group.state.read();
            state.record.has_head().then_some(state.record.head)
        };
        let head = match head.map(|id| core.volume(id)) {
            None => Head::ReadOnly,
            Some(Ok(Some(volume))) if volume.kind() == VolumeKind::ReadWrite => {
                Head::ReadWrite(volume.id())
            }
            Some(Ok(Some(_))) => Head::ReadOnly,
            Some(Ok(None) | Err(_)) => Head::Damaged,
        };
        self.0 = Some((group.id, head));
        head
    }
}

impl Partition {
    /// Lists files of RW volumes whose bytes are in objects, in archives or in both, as their heads
    /// see them. `wanted` picks them. `from`, `looks` and the second result are those of
    /// [`Partition::holders`].
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn archivable_files(
        &self,
        from: u64,
        looks: usize,
        mut wanted: impl FnMut(&ArchivableFile) -> bool,
    ) -> Result<(Vec<ArchivableFile>, Option<u64>)> {
        let heads = RefCell::new(Heads::default());
        let head = |group: &Group| heads.borrow_mut().of(&self.core, group);
        let enter = |group: &Group| matches!(head(group), Head::ReadWrite(_));
        self.walk_files(from, looks, enter, |group, vnode, record, viewers| {
            if !viewers.contains(&EPOCH_MAX) {
                return None;
            }
            let Head::ReadWrite(volume) = head(group) else {
                return None;
            };
            let file = archivable(volume, vnode, record)?;
            wanted(&file).then_some(file)
        })
    }

    /// Lists files in objects that no RW volume of this partition sees: those of read-only volumes
    /// whose RW volume is elsewhere. The arguments and the second result are those of
    /// [`Partition::holders`].
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn replica_files(
        &self,
        from: u64,
        looks: usize,
    ) -> Result<(Vec<ReplicaFile>, Option<u64>)> {
        let mut heads = Heads::default();
        let enter = |group: &Group| matches!(heads.of(&self.core, group), Head::ReadOnly);
        self.walk_files(from, looks, enter, |group, vnode, record, viewers| {
            let layout = record.layout.clone()?;
            let holder = group.holder(vnode, record, layout, viewers)?;
            let volume = self.core.volume(holder.fid.volume).ok()??;
            Some(ReplicaFile {
                fid: holder.fid,
                parent: volume.info().parent,
                layout: holder.layout,
            })
        })
    }
}

fn archivable(volume: VolumeId, vnode: VnodeId, record: &VnodeRecord) -> Option<ArchivableFile> {
    Some(ArchivableFile {
        status: record.status(volume, vnode),
        contents: record.contents()?,
        layout: record.layout.clone(),
        copies: record.copies.clone(),
    })
}
