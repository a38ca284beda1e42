//! Renaming: within a directory, between directories, over an existing name.
//!
//! 1. A rename between directories holds the volume's rename lock, outermost. Parents of
//!    directories change only under it, so the walk that looks for loops sees a fixed tree.
//! 2. Names are looked up, all involved vnodes are locked in order, and the names are looked up
//!    again. If one has changed meanwhile, this step is repeated.
//! 3. One batch has both directories, the moved vnode and the replaced one.

use cellar_wire::dir::VnodeRef;
use cellar_wire::ids::Fid;

use crate::dir::{DirEdit, dir_error};
use crate::error::{Error, Result};
use crate::operations::create::{Pages, apply_dir, check_new_name, check_old_name};
use crate::operations::remove::{LOCK_TRIES, LockSet, Locks};
use crate::operations::txn::Txn;
use crate::record::VnodeRecord;
use crate::state::ticket::is_nonblocking;
use crate::types::{Changed, Context, Renamed};
use crate::volume::Volume;

/// The most bytes that a rename adds, for the check of free room.
const RENAME_GROWTH: u64 = 12 << 10;
/// The most directories between a directory and the root, for the walk that looks for loops.
const DEPTH_MAX: usize = 100_000;

/// A directory that a rename changes: its new record and pages.
type ChangedDir = (Fid, VnodeRecord, Pages);

/// The names and directories of a rename.
#[derive(Clone, Copy)]
struct Names<'n> {
    old_dir: Fid,
    old: &'n [u8],
    new_dir: Fid,
    new: &'n [u8],
}

impl Volume {
    /// Renames.
    ///
    /// `CrossDevice`: another volume, or a file with several links to another directory. `Loop`:
    /// the source is one of the directories, or a directory would come under itself. `Invalid`: bad
    /// names, or the target is the source or one of the directories. `IsDirectory`, `NotDirectory`,
    /// `NotEmpty`: the target cannot be replaced by the source. `NotFound`.
    pub fn rename(
        &self,
        old_dir: Fid,
        old: &[u8],
        new_dir: Fid,
        new: &[u8],
        context: Context,
    ) -> Result<Changed<Renamed>> {
        self.rename_names(old_dir, old, new_dir, new, true, context)
    }

    /// [`Volume::rename`] for a caller that may not replace anything: `Exists` if the new name is
    /// taken.
    pub fn rename_to_free_name(
        &self,
        old_dir: Fid,
        old: &[u8],
        new_dir: Fid,
        new: &[u8],
        context: Context,
    ) -> Result<Changed<Renamed>> {
        self.rename_names(old_dir, old, new_dir, new, false, context)
    }

    fn rename_names(
        &self,
        old_dir: Fid,
        old: &[u8],
        new_dir: Fid,
        new: &[u8],
        may_replace: bool,
        context: Context,
    ) -> Result<Changed<Renamed>> {
        let names = Names {
            old_dir,
            old,
            new_dir,
            new,
        };
        self.check_fid(old_dir)?;
        self.check_fid(new_dir)?;
        self.check_writable()?;
        check_old_name(old)?;
        check_new_name(new)?;
        let _room = self.core.engine.admit(RENAME_GROWTH)?;
        let _rename = match old_dir == new_dir {
            true => None,
            false => Some(self.lock_renames()?),
        };
        for _ in 0..LOCK_TRIES {
            let source = self.lookup(old_dir, old)?;
            if source == old_dir || source == new_dir {
                return Err(Error::Loop);
            }
            // The vnodes that are looked up here are looked up again under the locks.
            let target = match self.lookup(new_dir, new) {
                Ok(_) if !may_replace => return Err(Error::Exists),
                Ok(target) => Some(target),
                Err(Error::NotFound) => None,
                Err(error) => return Err(error),
            };
            self.check_target(names, source, target)?;
            if source.vnode.is_directory() && old_dir != new_dir {
                self.check_loop(source, new_dir)?;
            }
            let mut fids = vec![old_dir, new_dir, source];
            fids.extend(target);
            let set = LockSet::new(self, fids);
            let locks = match set.lock(self) {
                Err(Error::NoVnode(fid))
                    if fid != old_dir && fid != new_dir && !is_nonblocking() =>
                {
                    for (dir, name) in [(old_dir, old), (new_dir, new)] {
                        if self.lookup(dir, name) == Ok(fid) {
                            return Err(self.damaged(dir, "an entry names no vnode"));
                        }
                    }
                    continue;
                }
                other => other?,
            };
            if locks.lookup(old_dir, old)? != Some(source) || locks.lookup(new_dir, new)? != target
            {
                continue;
            }
            return self.rename_locked(locks, names, source, target, context);
        }
        Err(Error::WouldBlock)
    }

    /// Checks that the source may replace the target of a rename.
    fn check_target(&self, names: Names<'_>, source: Fid, target: Option<Fid>) -> Result<()> {
        let Some(target) = target else { return Ok(()) };
        if target == source || target == names.old_dir || target == names.new_dir {
            return Err(Error::Invalid(
                "the new name is the source or one of the directories",
            ));
        }
        match (source.vnode.is_directory(), target.vnode.is_directory()) {
            (false, true) => Err(Error::IsDirectory),
            (true, false) => Err(Error::NotDirectory),
            _ => Ok(()),
        }
    }

    /// Checks that `dir` is not below `source`.
    fn check_loop(&self, source: Fid, dir: Fid) -> Result<()> {
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            if at == source {
                return Err(Error::Loop);
            }
            let status = self.status(at)?;
            let parent = Fid {
                volume: at.volume,
                vnode: status.parent,
                uniquifier: status.parent_uniquifier,
            };
            if parent == at {
                return Ok(());
            }
            at = parent;
        }
        Err(self.damaged(dir, "it has no way to the root"))
    }

    fn rename_locked(
        &self,
        mut locks: Locks<'_>,
        names: Names<'_>,
        source: Fid,
        target: Option<Fid>,
        context: Context,
    ) -> Result<Changed<Renamed>> {
        let across = names.old_dir != names.new_dir;
        let is_directory = source.vnode.is_directory();
        if let Some(target) = target.filter(|target| target.vnode.is_directory())
            && !locks.is_empty(target)?
        {
            return Err(Error::NotEmpty);
        }
        let (mut moved, moved_epoch) = {
            let loaded = locks.of(source)?.get(source)?;
            (loaded.record.clone(), loaded.epoch)
        };
        if across && !is_directory && moved.link_count > 1 {
            return Err(Error::CrossDevice);
        }
        let mut txn = Txn::begin(self)?;
        let (dirs, moved_pages) =
            self.stage_rename(&mut txn, &locks, names, source, target, context, &mut moved)?;
        if across {
            txn.put_vnode(source.vnode.0, &moved, Some(moved_epoch));
        }
        let unlinked = match target {
            Some(target) => {
                let name = (names.new_dir, names.new);
                Some(self.stage_unlink(&mut txn, &locks, target, name, context)?)
            }
            None => None,
        };
        let now = txn.now();
        let durable = txn.finish(context.now, 0)?;
        let status = |record: &VnodeRecord, fid: Fid| record.status(self.id(), fid.vnode);
        let first = dirs.first().ok_or(Error::NotDirectory)?;
        let last = dirs.last().ok_or(Error::NotDirectory)?;
        let outcome = Renamed {
            old_dir: status(&first.1, names.old_dir),
            new_dir: status(&last.1, names.new_dir),
            moved: status(&moved, source),
            replaced: unlinked.as_ref().map(|unlinked| unlinked.status),
            objects: unlinked
                .as_ref()
                .and_then(|unlinked| unlinked.objects.clone()),
        };
        for (fid, record, pages) in dirs {
            apply_dir(locks.of_mut(fid)?, record, pages, now);
        }
        if across {
            apply_dir(locks.of_mut(source)?, moved, moved_pages, now);
        }
        if let (Some(unlinked), Some(target)) = (unlinked, target) {
            unlinked.apply(&mut locks, target, now)?;
        }
        Ok(Changed { outcome, durable })
    }

    /// Stages the changes of both directories, and of `..` in a directory that gets a new parent.
    #[allow(clippy::too_many_arguments)]
    fn stage_rename(
        &self,
        txn: &mut Txn<'_>,
        locks: &Locks<'_>,
        names: Names<'_>,
        source: Fid,
        target: Option<Fid>,
        context: Context,
        moved: &mut VnodeRecord,
    ) -> Result<(Vec<ChangedDir>, Pages)> {
        let Names {
            old_dir,
            old,
            new_dir,
            new,
        } = names;
        let entry = VnodeRef {
            vnode: source.vnode,
            uniquifier: source.uniquifier,
        };
        let is_directory = source.vnode.is_directory();
        let replaced = -i32::from(target.is_some_and(|target| target.vnode.is_directory()));
        let take_in = |edit: &mut DirEdit<'_>| {
            let mut directory = edit.directory();
            if target.is_some() {
                directory.remove(new)?;
            }
            directory.insert(new, entry).map(drop)
        };
        let give_up = |edit: &mut DirEdit<'_>| edit.directory().remove(old).map(drop);
        if old_dir == new_dir {
            let locked = locks.of(old_dir)?;
            let (pages, record) =
                self.stage_dir(txn, locked, old_dir, context, replaced, |edit| {
                    take_in(edit)
                        .and_then(|()| give_up(edit))
                        .map_err(|e| dir_error(old_dir, &e))
                })?;
            return Ok((vec![(old_dir, record, pages)], Vec::new()));
        }
        let links = i32::from(is_directory);
        let (old_pages, old_record) =
            self.stage_dir(txn, locks.of(old_dir)?, old_dir, context, -links, |edit| {
                give_up(edit).map_err(|e| dir_error(old_dir, &e))
            })?;
        let (new_pages, new_record) = self.stage_dir(
            txn,
            locks.of(new_dir)?,
            new_dir,
            context,
            links + replaced,
            |edit| take_in(edit).map_err(|e| dir_error(new_dir, &e)),
        )?;
        moved.parent = new_dir.vnode;
        moved.parent_uniquifier = new_dir.uniquifier;
        moved.server_time = context.now;
        let mut moved_pages = Vec::new();
        if is_directory {
            let image = locks
                .of(source)?
                .get(source)?
                .dir
                .as_ref()
                .ok_or(Error::NotDirectory)?;
            let mut edit = image.edit();
            let parent = VnodeRef {
                vnode: new_dir.vnode,
                uniquifier: new_dir.uniquifier,
            };
            edit.directory()
                .set_parent(parent)
                .map_err(|e| dir_error(source, &e))?;
            txn.put_pages(source.vnode.0, moved.body_number, image, &edit)?;
            moved.data_version += 1;
            moved_pages = edit.into_changed();
        }
        let dirs = vec![
            (old_dir, old_record, old_pages),
            (new_dir, new_record, new_pages),
        ];
        Ok((dirs, moved_pages))
    }
}
