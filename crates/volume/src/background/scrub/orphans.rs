//! The part of a scrub that searches for vnodes to which no name leads.
//!
//! While a group is walked, two sets of bits are collected. One has the numbers of the vnodes that
//! its newest volume sees, the other the numbers that its directories name. A number that is only
//! in the first set is checked again in its own directory, because the vnode may have been renamed
//! meanwhile.

use std::collections::BTreeMap;

use cellar_wire::ids::{Fid, VnodeId};

use super::{DESCRIBED_MAX, Damage, Scrub, Viewers};
use crate::engine::key::Key;
use crate::error::Error;
use crate::record::VnodeRecord;
use crate::state::core::Group;
use crate::volume::Volume;

/// A set of vnode numbers, 64 in each entry.
#[derive(Default)]
struct Numbers(BTreeMap<u32, u64>);

impl Numbers {
    fn add(&mut self, vnode: VnodeId) {
        *self.0.entry(vnode.0 / 64).or_default() |= 1 << (vnode.0 % 64);
    }
}

/// The vnodes and names that the first viewer of a group sees.
#[derive(Default)]
pub(super) struct Orphans {
    present: Numbers,
    named: Numbers,
    /// A directory, or a part of the table, could not be read: then nothing is reported.
    is_partial: bool,
}

impl Orphans {
    /// Records that a vnode exists.
    pub(super) fn note_present(&mut self, vnode: u32) {
        self.present.add(VnodeId(vnode));
    }

    /// Records that a name leads to a vnode.
    pub(super) fn note_named(&mut self, vnode: VnodeId) {
        self.named.add(vnode);
    }

    /// Records that something could not be read.
    pub(super) fn unreadable(&mut self) {
        self.is_partial = true;
    }

    /// Records that something could not be read, if `is_so` is true.
    pub(super) fn unreadable_if(&mut self, is_so: bool) {
        self.is_partial |= is_so;
    }

    fn numbers(&self) -> impl Iterator<Item = VnodeId> {
        self.present.0.iter().flat_map(|(&block, &bits)| {
            let left = bits & !self.named.0.get(&block).copied().unwrap_or(0);
            let vnodes = (0..64).filter(move |bit| left >> bit & 1 == 1);
            vnodes.map(move |bit| VnodeId(block * 64 + bit))
        })
    }
}

impl Scrub<'_> {
    /// Reports the vnodes of a group's first viewer to which no name leads.
    pub(super) fn orphans(&mut self, group: &Group, viewers: &Viewers, orphans: &Orphans) {
        let volumes = viewers.volumes(&(0..1));
        let (Some(&id), false) = (volumes.first(), orphans.is_partial) else {
            return;
        };
        let Ok(Some(volume)) = self.core.volume(id) else {
            return;
        };
        let unnamed = orphans
            .numbers()
            .filter(|vnode| *vnode != VnodeId::ROOT)
            .take(DESCRIBED_MAX);
        for vnode in unnamed {
            let prefix = Key::vnode_prefix(group.id.0, vnode.0);
            let from = Key::vnode(group.id.0, vnode.0, viewers.epochs[0]);
            let newest = self.core.engine.first_version(&from, &prefix);
            let value = newest.ok().flatten().map(|(_, value)| value);
            // It may have been removed meanwhile.
            let Some(Ok(Ok(record))) = value.map(|value| VnodeRecord::decode(&value)) else {
                continue;
            };
            let fid = Fid {
                volume: id,
                vnode,
                uniquifier: record.uniquifier,
            };
            let parent = Fid {
                volume: id,
                vnode: record.parent,
                uniquifier: record.parent_uniquifier,
            };
            if may_have_a_name(&volume, parent, fid) {
                continue;
            }
            self.enter(Damage {
                fid,
                volumes: volumes.clone(),
                path: None,
                data_version: record.data_version,
                length: record.length,
                places: Vec::new(),
                cause: "no name leads to it".to_owned(),
            });
        }
    }
}

/// Returns whether the parent directory names a vnode, or cannot be read.
fn may_have_a_name(volume: &Volume, parent: Fid, fid: Fid) -> bool {
    match volume.entries(parent) {
        Ok(entries) => entries.iter().any(|entry| {
            (entry.vnode, entry.uniquifier) == (fid.vnode, fid.uniquifier)
                && entry.name != "."
                && entry.name != ".."
        }),
        Err(error) => matches!(
            error,
            Error::Io { .. } | Error::Partition(_) | Error::Format(_)
        ),
    }
}
