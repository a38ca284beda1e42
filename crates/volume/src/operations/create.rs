//! Making things: files, directories, symbolic links and mount points, hard links.

use std::sync::Arc;

use bytes::Bytes;
use cellar_wire::acl::AccessList;
use cellar_wire::dir::{PAGE_SIZE, Page, VnodeRef};
use cellar_wire::ids::{Fid, Uniquifier, VnodeId};

use crate::dir::{DirEdit, dir_error, new_directory};
use crate::error::{Error, Result};
use crate::operations::txn::Txn;
use crate::record::{Body, VnodeRecord};
use crate::state::vnode_slots::Loaded;
use crate::types::{Changed, Context, Created, FileType, Linked, NewVnode, VnodeStatus};
use crate::volume::{Locked, Volume};

/// Longest target of a symbolic link (AFSPATHMAX).
pub(crate) const TARGET_MAX: usize = 1024;
/// The most links that a vnode can have: the dump format has 16 bits, which some readers take as
/// signed.
pub(crate) const LINKS_MAX: u32 = 32_767;
/// The most bytes that a creation adds, for the check of free room.
pub(crate) const CREATE_GROWTH: u64 = 12 << 10;

/// Checks that a new name is allowed.
pub(crate) fn check_new_name(name: &[u8]) -> Result<()> {
    check_old_name(name)?;
    if name.contains(&b'/') || name.contains(&0) {
        return Err(Error::Invalid("a name with a slash or NUL"));
    }
    if name.ends_with(b"@sys") {
        return Err(Error::Invalid("a name that ends in @sys"));
    }
    if name.len() > cellar_wire::dir::NAME_MAX {
        return Err(Error::NameTooLong);
    }
    Ok(())
}

/// Checks that a name may be removed or renamed.
pub(crate) fn check_old_name(name: &[u8]) -> Result<()> {
    match name {
        b"" | b"." | b".." => Err(Error::Invalid("an empty name, . or ..")),
        _ => Ok(()),
    }
}

/// The kind of vnode to make.
pub(crate) enum VnodeKind<'a> {
    File,
    Directory,
    Symlink(&'a [u8]),
}

impl Volume {
    /// Makes an empty file.
    ///
    /// `Exists`, `Invalid`, `NameTooLong`, `DirectoryFull`, `OverQuota`, `DiskFull`, `ReadOnly`.
    pub fn create_file(
        &self,
        dir: Fid,
        name: &[u8],
        new: &NewVnode,
        context: Context,
    ) -> Result<Changed<Created>> {
        self.create(dir, name, &VnodeKind::File, new, context)
    }

    /// Makes a directory. It copies the access list of `dir`.
    pub fn make_dir(
        &self,
        dir: Fid,
        name: &[u8],
        new: &NewVnode,
        context: Context,
    ) -> Result<Changed<Created>> {
        self.create(dir, name, &VnodeKind::Directory, new, context)
    }

    /// Makes a symbolic link, or a mount point if the mode has no execute bit.
    pub fn symlink(
        &self,
        dir: Fid,
        name: &[u8],
        target: &[u8],
        new: &NewVnode,
        context: Context,
    ) -> Result<Changed<Created>> {
        if target.is_empty() || target.len() > TARGET_MAX {
            return Err(Error::Invalid("a link's target has 1 to 1024 bytes"));
        }
        self.create(dir, name, &VnodeKind::Symlink(target), new, context)
    }

    fn create(
        &self,
        dir: Fid,
        name: &[u8],
        making: &VnodeKind<'_>,
        new: &NewVnode,
        context: Context,
    ) -> Result<Changed<Created>> {
        self.check_fid(dir)?;
        self.check_writable()?;
        check_new_name(name)?;
        let _room = self.core.engine.admit(CREATE_GROWTH)?;
        let dir_cell = self.slot(dir.vnode);
        let mut parent = self.lock(&dir_cell, dir)?;
        parent.load_dir(self, dir)?;
        let is_directory = matches!(making, VnodeKind::Directory);
        let mut txn = Txn::begin(self)?;
        let (edit, old_epoch, record, vnode, parent_record) = {
            let loaded = parent.get(dir)?;
            let image = loaded.dir.as_ref().ok_or(Error::NotDirectory)?;
            // The name is looked up before a number is used up in vain.
            let known = image
                .directory()
                .lookup(name)
                .map_err(|e| dir_error(dir, &e))?;
            if known.is_some() {
                return Err(Error::Exists);
            }
            if is_directory && loaded.record.link_count >= LINKS_MAX {
                return Err(Error::TooManyLinks);
            }
            let (vnode, uniquifier) = self.new_vnode(is_directory)?;
            let target = VnodeRef {
                vnode,
                uniquifier: Uniquifier(uniquifier),
            };
            let mut edit = image.edit();
            edit.directory()
                .insert_missing(name, target)
                .map_err(|e| dir_error(dir, &e))?;
            let record = new_record(&loaded.record, dir, target, making, new, context, txn.now());
            let mut parent_record = loaded.record.clone();
            touch_dir(&mut parent_record, edit.length(), context);
            if is_directory {
                parent_record.link_count += 1;
            }
            txn.put_pages(dir.vnode.0, loaded.record.body_number, image, &edit)?;
            txn.charge(grown(&loaded.record, &parent_record), 0);
            (
                edit.into_changed(),
                loaded.epoch,
                record,
                vnode,
                parent_record,
            )
        };
        let mut pages = Vec::new();
        if is_directory {
            let this = VnodeRef {
                vnode,
                uniquifier: record.uniquifier,
            };
            let parent = VnodeRef {
                vnode: dir.vnode,
                uniquifier: dir.uniquifier,
            };
            pages = new_directory(this, parent)?;
            for (index, page) in pages.iter().enumerate() {
                txn.put_page(vnode.0, 0, index, page, None)?;
            }
        }
        txn.put_vnode(dir.vnode.0, &parent_record, Some(old_epoch));
        txn.put_vnode(vnode.0, &record, None);
        txn.charge(record.blocks() as i64, 1);
        let now = txn.now();
        let durable = txn.finish(context.now, 0)?;
        let outcome = Created {
            status: record.status(self.id(), vnode),
            dir: parent_record.status(self.id(), dir.vnode),
        };
        apply_dir(&mut parent, parent_record, edit, now);
        self.enter_new(vnode, record, &pages, now);
        Ok(Changed { outcome, durable })
    }

    /// Puts a vnode that was just made into memory.
    fn enter_new(&self, vnode: VnodeId, record: VnodeRecord, pages: &[Page], now: u64) {
        let slot = self.slot(vnode);
        // No thread can hold the lock of a vnode whose fid is not known yet. If a client guesses
        // the fid and a thread holds it, the slot is loaded at its next use.
        let Some(mut state) = slot.state.try_write() else {
            return;
        };
        *state = Some(self.loaded_new(record, pages, now));
    }

    /// The loaded form of a vnode that was just made, with the pages of a directory.
    pub(crate) fn loaded_new(&self, record: VnodeRecord, pages: &[Page], now: u64) -> Loaded {
        let mut loaded = self.core.slots.loaded(record, now);
        if !pages.is_empty() {
            let mut image = crate::dir::DirImage::default();
            for page in pages {
                let _ = image.push(page, now);
            }
            loaded.dir = Some(image);
            loaded.recharge();
        }
        loaded
    }

    /// Gives a file one more name in its directory.
    ///
    /// `CrossDevice` for another volume or directory, `IsDirectory` for anything but a plain file.
    pub fn link(
        &self,
        dir: Fid,
        name: &[u8],
        target: Fid,
        context: Context,
    ) -> Result<Changed<Linked>> {
        self.check_fid(dir)?;
        self.check_fid(target)?;
        self.check_writable()?;
        check_new_name(name)?;
        if target.vnode.is_directory() {
            return Err(Error::IsDirectory);
        }
        let _room = self.core.engine.admit(CREATE_GROWTH)?;
        let (dir_cell, file_cell) = (self.slot(dir.vnode), self.slot(target.vnode));
        let mut parent = self.lock(&dir_cell, dir)?;
        parent.load_dir(self, dir)?;
        let mut file = self.lock(&file_cell, target)?;
        let mut txn = Txn::begin(self)?;
        let mut record = file.get(target)?.record.clone();
        if record.kind != FileType::File {
            return Err(Error::IsDirectory);
        }
        if (record.parent, record.parent_uniquifier) != (dir.vnode, dir.uniquifier) {
            return Err(Error::CrossDevice);
        }
        if record.link_count >= LINKS_MAX {
            return Err(Error::TooManyLinks);
        }
        record.link_count += 1;
        record.author = context.author;
        record.server_time = context.now;
        let entry = VnodeRef {
            vnode: target.vnode,
            uniquifier: target.uniquifier,
        };
        let (edit, parent_record) = self.stage_dir(&mut txn, &parent, dir, context, 0, |edit| {
            edit.directory()
                .insert(name, entry)
                .map(drop)
                .map_err(|e| dir_error(dir, &e))
        })?;
        txn.put_vnode(target.vnode.0, &record, Some(file.get(target)?.epoch));
        let now = txn.now();
        let durable = txn.finish(context.now, 0)?;
        let outcome = Linked {
            status: record.status(self.id(), target.vnode),
            dir: parent_record.status(self.id(), dir.vnode),
        };
        file.set_record(record, now);
        apply_dir(&mut parent, parent_record, edit, now);
        Ok(Changed { outcome, durable })
    }

    /// Edits a locked, loaded directory within a change: its pages, its record, its usage.
    pub(crate) fn stage_dir(
        &self,
        txn: &mut Txn<'_>,
        locked: &Locked<'_>,
        dir: Fid,
        context: Context,
        links: i32,
        edit: impl FnOnce(&mut DirEdit<'_>) -> Result<()>,
    ) -> Result<(Pages, VnodeRecord)> {
        let loaded = locked.get(dir)?;
        let image = loaded.dir.as_ref().ok_or(Error::NotDirectory)?;
        let mut changes = image.edit();
        edit(&mut changes)?;
        let mut record = loaded.record.clone();
        touch_dir(&mut record, changes.length(), context);
        record.link_count = record.link_count.saturating_add_signed(links);
        txn.put_pages(dir.vnode.0, record.body_number, image, &changes)?;
        txn.put_vnode(dir.vnode.0, &record, Some(loaded.epoch));
        txn.charge(grown(&loaded.record, &record), 0);
        Ok((changes.into_changed(), record))
    }
}

/// Pages of a directory that a change wrote.
pub(crate) type Pages = Vec<(usize, Box<Page>)>;

/// Takes a changed directory into memory.
pub(crate) fn apply_dir(locked: &mut Locked<'_>, record: VnodeRecord, pages: Pages, now: u64) {
    let fid = Fid::default();
    if let Ok(loaded) = locked.get_mut(fid) {
        if let Some(image) = &mut loaded.dir {
            image.merge(pages, now);
        }
        loaded.recharge();
    }
    locked.set_record(record, now);
}

/// Updates a directory's record for a change of its entries.
pub(crate) fn touch_dir(record: &mut VnodeRecord, length: u64, context: Context) {
    record.length = length;
    record.data_version += 1;
    record.author = context.author;
    record.client_time = context.now;
    record.server_time = context.now;
}

/// The number of blocks by which a vnode grew.
pub(crate) fn grown(old: &VnodeRecord, new: &VnodeRecord) -> i64 {
    new.blocks() as i64 - old.blocks() as i64
}

/// The record of a new vnode in a directory.
pub(crate) fn new_record(
    parent: &VnodeRecord,
    dir: Fid,
    this: VnodeRef,
    making: &VnodeKind<'_>,
    new: &NewVnode,
    context: Context,
    now: u64,
) -> VnodeRecord {
    let (kind, length, body, target) = match making {
        VnodeKind::File => (FileType::File, 0, Body::None, Bytes::new()),
        VnodeKind::Directory => (
            FileType::Directory,
            PAGE_SIZE as u64,
            Body::Pieces,
            Bytes::new(),
        ),
        VnodeKind::Symlink(target) => {
            let target = Bytes::copy_from_slice(target);
            (FileType::Symlink, target.len() as u64, Body::None, target)
        }
    };
    let is_directory = kind == FileType::Directory;
    VnodeRecord {
        kind,
        mode: new.mode.unwrap_or(0o777) & 0o7777,
        link_count: if is_directory { 2 } else { 1 },
        uniquifier: this.uniquifier,
        parent: dir.vnode,
        parent_uniquifier: dir.uniquifier,
        length,
        data_version: 0,
        author: context.author,
        owner: new.owner,
        group: new.group.unwrap_or(parent.group),
        client_time: new.client_time.unwrap_or(context.now),
        server_time: context.now,
        birth: now,
        body,
        body_number: 0,
        cut: None,
        target,
        acl: is_directory.then(|| {
            parent
                .acl
                .clone()
                .unwrap_or_else(|| Arc::new(AccessList::default()))
        }),
        layout: None,
        policy: if is_directory { parent.policy } else { 0 },
        serial: 0,
        copies: None,
    }
}

/// Marks a status as that of a vnode that is gone: link count 0.
pub(crate) fn gone_status(mut status: VnodeStatus) -> VnodeStatus {
    status.link_count = 0;
    status
}
