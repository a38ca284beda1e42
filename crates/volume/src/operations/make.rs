//! Making vnodes under numbers that were reserved: several in one directory, files with their
//! bytes, in one change.
//!
//! 1. The numbers are claimed first ([`crate::state::reserve`]). So of two calls that use the same
//!    number, one is refused.
//! 2. The fids are known before the vnodes exist. So the locks of the new vnodes are held during
//!    the commit. A thread that looks one up meanwhile waits, and then finds the state of the
//!    table. In the order of locks these vnodes may come before the directory. So the wait for
//!    their locks is limited, and this change never waits for a thread that waits for it.
//! 3. One batch has all of it: pages of the directory, records, bytes. A file exists with its bytes
//!    or not at all.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cellar_wire::dir::{Page, VnodeRef};
use cellar_wire::ids::{Fid, Uniquifier, VnodeId};
use parking_lot::RwLockWriteGuard;

use crate::dir::{dir_error, new_directory};
use crate::error::{Error, Result};
use crate::operations::create::{
    CREATE_GROWTH, LINKS_MAX, TARGET_MAX, VnodeKind, apply_dir, check_new_name, grown, new_record,
    touch_dir,
};
use crate::operations::store::Incoming;
use crate::operations::txn::Txn;
use crate::record::VnodeRecord;
use crate::state::reserve::Claims;
use crate::state::ticket::{PATIENCE, is_nonblocking};
use crate::state::vnode_slots::{Loaded, VnodeSlot};
use crate::types::{Changed, Context, NewVnode, StoreSpec, VnodeStatus, blocks_of};
use crate::volume::Volume;

/// How long a thread that may wait does so for the lock of a vnode that does not exist yet. Another
/// thread holds it only to look up the fid.
const FREE_PATIENCE: Duration = Duration::from_secs(1);

/// The kind and contents of a vnode to make.
#[derive(Clone, Copy, Debug)]
pub enum VnodeContents<'a> {
    /// A file with these bytes, in the parts in which they came.
    File(&'a [Bytes]),
    /// A directory with the access list of its parent directory.
    Directory,
    /// A symbolic link with this target, or a mount point if the mode has no execute bit.
    Symlink(&'a [u8]),
}

/// A vnode to make under a reserved number.
#[derive(Clone, Copy, Debug)]
pub struct Make<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Its vnode number.
    pub vnode: VnodeId,
    /// Its uniquifier.
    pub uniquifier: Uniquifier,
    /// Its kind and contents.
    pub what: VnodeContents<'a>,
    /// Its attributes.
    pub new: NewVnode,
}

/// The result of [`Volume::make`].
#[derive(Clone, Debug)]
pub struct MadeVnodes {
    /// The new vnodes, in order.
    pub made: Vec<VnodeStatus>,
    /// The directory's status after the change.
    pub dir: VnodeStatus,
}

/// A vnode that this change will make.
struct PendingVnode {
    record: VnodeRecord,
    pages: Vec<Page>,
    body: Option<Bytes>,
}

impl Volume {
    /// Makes vnodes in a directory under numbers that were reserved for `holder`: all of them or
    /// none. A file with bytes is as if it had been made and then stored into once, but its client
    /// time is the one in `new`. `quota_slack` is the number of blocks of 1 KiB by which the bytes
    /// may exceed the quota.
    ///
    /// # Errors
    /// Those of `create_file` and `store`; `NotReserved`; `Busy` if other threads keep looking up
    /// one of the fids.
    pub fn make(
        &self,
        dir: Fid,
        holder: u64,
        makes: &[Make<'_>],
        quota_slack: u64,
        context: Context,
    ) -> Result<Changed<MadeVnodes>> {
        self.check_fid(dir)?;
        self.check_writable()?;
        for make in makes {
            check(dir, make)?;
        }
        let _room = self.core.engine.admit(CREATE_GROWTH * makes.len() as u64)?;
        let numbers = makes.iter().map(|make| (make.vnode, make.uniquifier));
        let claims = Claims::of(self, holder, numbers)?;
        let mut bodies = Vec::with_capacity(makes.len());
        for make in makes {
            bodies.push(self.body_of(make)?);
        }
        let dir_cell = self.slot(dir.vnode);
        let mut parent = self.lock(&dir_cell, dir)?;
        parent.load_dir(self, dir)?;
        let slots: Vec<Arc<VnodeSlot>> = makes.iter().map(|make| self.slot(make.vnode)).collect();
        let mut free = Vec::with_capacity(slots.len());
        for ((slot, make), known) in slots.iter().zip(makes).zip(&claims.known_free) {
            free.push(self.lock_free(slot, self.fid_of(make), *known)?);
        }
        let mut txn = Txn::begin(self)?;
        let loaded = parent.get(dir)?;
        let image = loaded.dir.as_ref().ok_or(Error::NotDirectory)?;
        let mut edit = image.edit();
        let mut parent_record = loaded.record.clone();
        let mut coming = Vec::with_capacity(makes.len());
        for (make, body) in makes.iter().zip(&mut bodies) {
            let target = VnodeRef {
                vnode: make.vnode,
                uniquifier: make.uniquifier,
            };
            let mut names = edit.directory();
            if names
                .lookup(make.name)
                .map_err(|e| dir_error(dir, &e))?
                .is_some()
            {
                return Err(Error::Exists);
            }
            names
                .insert_missing(make.name, target)
                .map_err(|e| dir_error(dir, &e))?;
            touch_dir(&mut parent_record, edit.length(), context);
            let more = grown(&loaded.record, &parent_record);
            self.check_quota(&coming, more)?;
            coming.push(self.stage_new(&mut txn, &mut parent_record, dir, make, body, context)?);
        }
        txn.put_pages(dir.vnode.0, loaded.record.body_number, image, &edit)?;
        txn.charge(grown(&loaded.record, &parent_record), 0);
        txn.put_vnode(dir.vnode.0, &parent_record, Some(loaded.epoch));
        let pages = edit.into_changed();
        let now = txn.now();
        let stores = bodies.iter().any(Option::is_some);
        let slack = if stores { quota_slack } else { 0 };
        let durable = txn.finish(context.now, slack)?;
        claims.mark_used();
        for body in bodies.iter_mut().flatten() {
            for allocation in body.gathered.allocations.drain(..) {
                allocation.hand_over();
            }
        }
        let numbered = coming.iter().zip(makes);
        let statuses = numbered.map(|(new, make)| new.record.status(self.id(), make.vnode));
        let outcome = MadeVnodes {
            made: statuses.collect(),
            dir: parent_record.status(self.id(), dir.vnode),
        };
        for (mut free, new) in free.into_iter().zip(coming) {
            let mut loaded = self.loaded_new(new.record, &new.pages, now);
            if new.body.is_some() {
                loaded.body = new.body;
                loaded.recharge();
            }
            *free = Some(loaded);
        }
        apply_dir(&mut parent, parent_record, pages, now);
        Ok(Changed { outcome, durable })
    }

    /// Checks that the quota allows one more empty vnode, after those in `coming` and with the
    /// growth of the directory. This is the check that making each vnode by itself would do, before
    /// its bytes.
    fn check_quota(&self, coming: &[PendingVnode], directory: i64) -> Result<()> {
        let (max_blocks, _) = self.quotas();
        if max_blocks == 0 {
            return Ok(());
        }
        let used = self.lock_counters()?.record.blocks_used;
        let before: u64 = coming.iter().map(|new| new.record.blocks()).sum();
        let all = used.saturating_add_signed(directory) + before + blocks_of(0);
        match all > u64::from(max_blocks) {
            true => Err(Error::OverQuota),
            false => Ok(()),
        }
    }

    /// Gathers the bytes of a file that has any. Those that fill large pieces are written to blocks
    /// at once.
    fn body_of(&self, make: &Make<'_>) -> Result<Option<Incoming>> {
        let VnodeContents::File(pieces) = make.what else {
            return Ok(None);
        };
        let length = pieces.iter().map(|piece| piece.len() as u64).sum();
        if length == 0 {
            return Ok(None);
        }
        let mut incoming = self.incoming(self.fid_of(make), &StoreSpec::at(0), length)?;
        for piece in pieces {
            incoming.push(self, piece.clone())?;
        }
        Ok(Some(incoming))
    }

    /// Stages a new vnode with its pages or bytes.
    fn stage_new(
        &self,
        txn: &mut Txn<'_>,
        parent: &mut VnodeRecord,
        dir: Fid,
        make: &Make<'_>,
        body: &mut Option<Incoming>,
        context: Context,
    ) -> Result<PendingVnode> {
        let this = VnodeRef {
            vnode: make.vnode,
            uniquifier: make.uniquifier,
        };
        let making = match make.what {
            VnodeContents::File(_) => VnodeKind::File,
            VnodeContents::Directory => VnodeKind::Directory,
            VnodeContents::Symlink(target) => VnodeKind::Symlink(target),
        };
        let now = txn.now();
        let mut record = new_record(parent, dir, this, &making, &make.new, context, now);
        let mut pages = Vec::new();
        if let VnodeContents::Directory = make.what {
            if parent.link_count >= LINKS_MAX {
                return Err(Error::TooManyLinks);
            }
            parent.link_count += 1;
            let above = VnodeRef {
                vnode: dir.vnode,
                uniquifier: dir.uniquifier,
            };
            pages = new_directory(this, above)?;
            for (index, page) in pages.iter().enumerate() {
                txn.put_page(make.vnode.0, 0, index, page, None)?;
            }
        }
        let mut bytes = None;
        if let Some(incoming) = body {
            let mut empty = self.core.slots.loaded(record.clone(), now);
            record.length = incoming.announced;
            record.data_version += 1;
            if self.fits_inline(&empty.record, &record, incoming, 0) {
                bytes = self.stage_inline(txn, &mut empty, &mut record, incoming, 0)?;
            } else {
                // The blocks of an earlier file of this change are in the batch already.
                let wrote = txn.batch.wrote_blocks;
                self.stage_pieces(txn, &mut empty, &mut record, incoming, 0)?;
                txn.batch.wrote_blocks |= wrote;
            }
        }
        txn.put_vnode(make.vnode.0, &record, None);
        txn.charge(record.blocks() as i64, 1);
        Ok(PendingVnode {
            record,
            pages,
            body: bytes,
        })
    }

    /// Locks a vnode that does not exist. Unless the number is known to be free, this is checked in
    /// the table.
    fn lock_free<'c>(
        &self,
        slot: &'c VnodeSlot,
        fid: Fid,
        known_free: bool,
    ) -> Result<RwLockWriteGuard<'c, Option<Loaded>>> {
        let mut guard = if is_nonblocking() {
            slot.state
                .try_write_for(PATIENCE)
                .ok_or(Error::WouldBlock)?
        } else {
            slot.state
                .try_write_for(FREE_PATIENCE)
                .ok_or(Error::Busy(self.id()))?
        };
        if guard.is_none() && !known_free {
            *guard = self.read_vnode(fid)?;
        }
        match guard.is_none() {
            true => Ok(guard),
            false => Err(Error::NotReserved(fid)),
        }
    }

    fn fid_of(&self, make: &Make<'_>) -> Fid {
        Fid {
            volume: self.id(),
            vnode: make.vnode,
            uniquifier: make.uniquifier,
        }
    }
}

/// Checks that a vnode can be made in this way at all.
fn check(dir: Fid, make: &Make<'_>) -> Result<()> {
    check_new_name(make.name)?;
    let directory = matches!(make.what, VnodeContents::Directory);
    if make.vnode == dir.vnode || make.vnode.is_directory() != directory {
        let fid = Fid {
            vnode: make.vnode,
            uniquifier: make.uniquifier,
            ..dir
        };
        return Err(Error::NotReserved(fid));
    }
    match make.what {
        VnodeContents::Symlink(target) if target.is_empty() || target.len() > TARGET_MAX => {
            Err(Error::Invalid("a link's target has 1 to 1024 bytes"))
        }
        _ => Ok(()),
    }
}
