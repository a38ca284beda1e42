//! The end of a restore, when everything has come: removes the vnodes that did not come, and checks
//! the rest.

use std::sync::Arc;

use cellar_wire::ids::{Uniquifier, VnodeId};

use super::Restore;
use crate::engine::key::{Key, Kind};
use crate::error::{Error, Result};
use crate::record::VnodeRecord;
use crate::types::{FileType, RestoreMode};

/// Entries that are read from one view of the table. A view's pages are not freed while it is open.
const ENTRIES_OF_VIEW: usize = 10_000;

impl Restore {
    pub(super) fn sweep(&mut self) -> Result<()> {
        self.stage.flush()?;
        let removes = !matches!(self.mode, RestoreMode::Delta { .. });
        if removes && self.base.files > 0 {
            self.remove_the_rest()?;
            self.stage.flush()?;
        }
        match self.version(VnodeId::ROOT.0, self.stage.now())? {
            Some(root) if root.kind == FileType::Directory => {}
            _ => return Err(Error::Unsound("it has no root directory".into())),
        }
        if self.parents_open {
            self.fill_parent_uniquifiers()?;
        }
        Ok(())
    }

    /// Removes every vnode that was neither put nor kept.
    fn remove_the_rest(&mut self) -> Result<()> {
        let prefix = Key::of_group(Kind::Vnode, self.volume.group.id.0);
        let engine = Arc::clone(&self.volume.core.engine);
        let mut from = Some(prefix);
        while let Some(at) = from {
            let mut scan = engine.scan(&at, &prefix)?;
            let mut last = None;
            let mut looked = 0;
            from = None;
            while let Some((key, value)) = scan.next()? {
                let vnode = key.u32_at(5);
                looked += 1;
                if last.replace(vnode) == Some(vnode) {
                    continue;
                }
                if looked > ENTRIES_OF_VIEW {
                    from = Some(key);
                    break;
                }
                // The newest version comes first.
                if key.epoch() == self.stage.now() || self.kept.contains(vnode) {
                    continue;
                }
                if let Ok(old) = VnodeRecord::decode(&value)? {
                    self.stage_removal(vnode, &old)?;
                }
            }
        }
        Ok(())
    }

    /// Enters the uniquifiers of directories into vnodes that came before them.
    ///
    /// In dumps, a vnode has only the number of its directory.
    fn fill_parent_uniquifiers(&mut self) -> Result<()> {
        self.parents.clear();
        let (group, now) = (self.volume.group.id.0, self.stage.now());
        let prefix = Key::change_prefix(group, now);
        let engine = Arc::clone(&self.volume.core.engine);
        let mut from = Some(prefix);
        while let Some(at) = from {
            let mut scan = engine.scan(&at, &prefix)?;
            let mut looked = 0;
            from = None;
            while let Some((key, _)) = scan.next()? {
                looked += 1;
                if looked > ENTRIES_OF_VIEW {
                    from = Some(key);
                    break;
                }
                let vnode = key.u32_at(13);
                let Some(mut record) = self.version(vnode, now)? else {
                    continue;
                };
                let parent = self.parent_of(&record)?;
                if vnode == VnodeId::ROOT.0 || record.parent_uniquifier == parent {
                    continue;
                }
                record.parent_uniquifier = parent;
                self.stage.put_vnode(vnode, &record);
                self.stage.flush_if_full()?;
            }
        }
        self.stage.flush()
    }

    /// The uniquifier of a vnode's directory; 0 if that does not exist. Then no name leads to the
    /// vnode, and it cannot be reached.
    fn parent_of(&mut self, record: &VnodeRecord) -> Result<Uniquifier> {
        let parent = record.parent.0;
        if let Some(&known) = self.parents.get(&parent) {
            return Ok(known);
        }
        let found = self.version(parent, self.stage.now())?;
        let found = found.filter(|found| found.kind == FileType::Directory);
        let uniquifier = found.map_or(Uniquifier(0), |found| found.uniquifier);
        self.remember_parent(parent, uniquifier)?;
        Ok(uniquifier)
    }
}
