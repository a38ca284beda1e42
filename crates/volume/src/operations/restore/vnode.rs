//! The vnodes of a restore, one at a time: from the incoming image to the staged record.
//!
//! Dumps lack two parts of a record. The uniquifier of a vnode's directory is entered as soon as
//! the directory is known, at the latest when all vnodes have come (`sweep`). A new body gets a
//! number that no piece has, not even one that waits for its removal. Otherwise pieces of an older
//! body would be visible through its holes.

use bytes::Bytes;
use cellar_wire::ids::{Uniquifier, VnodeId};

use super::body::{Base, FileBody};
use super::directory::DirectoryBody;
use super::{Content, Current, Restore};
use crate::engine::key::Key;
use crate::error::{Error, Result};
use crate::record::{Body, VnodeRecord};
use crate::types::{FileType, VnodeImage};

/// The largest vnode number. The wire allows larger ones, but servers have treated them as signed.
const VNODE_MAX: u32 = i32::MAX as u32;
/// Largest length of a file.
const LENGTH_MAX: u64 = i64::MAX as u64;
/// Longest target of a symbolic link (AFSPATHMAX).
const TARGET_MAX: u64 = 1024;
/// The number of directories whose uniquifiers are remembered.
const PARENTS_MAX: usize = 1 << 16;

impl Restore {
    /// Begins a vnode; `patched` is the former version if it builds on that.
    pub(super) fn begin_vnode(
        &mut self,
        image: &VnodeImage,
        patched: Option<VnodeRecord>,
    ) -> Result<()> {
        self.end_vnode()?;
        check_image(image)?;
        let vnode = image.vnode.0;
        self.check_first(vnode)?;
        let before = match &patched {
            Some(before) => Some(before.clone()),
            None => self.base_record(vnode)?,
        };
        let mut record = self.record_of(image, before.as_ref())?;
        record.body_number = match &patched {
            Some(old) if old.body == Body::Pieces => old.body_number,
            _ => self.next_body(vnode)?,
        };
        let fid = self.fid(image.vnode, image.uniquifier);
        let content = match image.kind {
            FileType::Symlink => Content::VnodeRef(Vec::new()),
            FileType::Directory => {
                record.acl.clone_from(&image.acl);
                let base = match &patched {
                    Some(old) => self.volume.read(fid, 0, old.length as usize)?,
                    None => Bytes::new(),
                };
                Content::Directory(DirectoryBody::new(image.length as usize, base))
            }
            FileType::File if image.layout.is_some() || image.wiped.is_some() => {
                record.body = match image.wiped {
                    Some(wiped) => Body::Archived(wiped),
                    None => Body::Objects,
                };
                record.layout.clone_from(&image.layout);
                Content::Elsewhere
            }
            FileType::File => {
                let base = match patched {
                    None => Base::Nothing,
                    Some(old) if old.body == Body::Pieces => Base::Pieces {
                        body: old.body_number,
                        length: old.length,
                    },
                    Some(old) if !matches!(old.body, Body::Inline { .. }) => Base::Nothing,
                    Some(old) => Base::Bytes(self.volume.read(fid, 0, old.length as usize)?),
                };
                let inline_max = self.volume.core.engine.options().inline_bytes as u64;
                let length = image.length;
                Content::File(FileBody::new(
                    fid,
                    record.body_number,
                    length,
                    base,
                    inline_max,
                ))
            }
        };
        let tally = &mut self.tally;
        tally.uniquifier_max = tally.uniquifier_max.max(image.uniquifier.0);
        tally.blocks +=
            record.blocks() as i64 - before.as_ref().map_or(0, |old| old.blocks() as i64);
        tally.files += i64::from(before.is_none());
        self.current = Some(Current {
            record,
            vnode,
            content,
        });
        Ok(())
    }

    /// Stages the current vnode, whose bytes have all come.
    pub(super) fn end_vnode(&mut self) -> Result<()> {
        let Some(current) = self.current.take() else {
            return Ok(());
        };
        let Current {
            mut record,
            vnode,
            content,
        } = current;
        match content {
            Content::VnodeRef(target) => {
                if target.len() as u64 != record.length {
                    return Err(Error::Invalid("bytes of a link's target are missing"));
                }
                record.target = target.into();
            }
            Content::Directory(directory) => {
                let up = directory.stage(&mut self.stage, vnode, record.body_number)?;
                record.body = Body::Pieces;
                if vnode != VnodeId::ROOT.0 && up.vnode == record.parent {
                    record.parent_uniquifier = up.uniquifier;
                }
                self.remember_parent(vnode, record.uniquifier)?;
            }
            Content::Elsewhere => {}
            Content::File(file) => {
                record.body = file.end(&mut self.stage)?;
            }
        }
        self.stage.put_vnode(vnode, &record);
        self.stage.flush_if_full()
    }

    /// The record of a vnode, without its body.
    fn record_of(
        &mut self,
        image: &VnodeImage,
        before: Option<&VnodeRecord>,
    ) -> Result<VnodeRecord> {
        let (parent, parent_uniquifier) = if image.vnode == VnodeId::ROOT {
            (VnodeId::ROOT, image.uniquifier)
        } else {
            (image.parent, self.uniquifier_of(image.parent.0)?)
        };
        let birth = match before {
            Some(old) if old.uniquifier == image.uniquifier => old.birth,
            _ => self.stage.now(),
        };
        Ok(VnodeRecord {
            kind: image.kind,
            mode: image.mode & 0o7777,
            link_count: image.link_count,
            uniquifier: image.uniquifier,
            parent,
            parent_uniquifier,
            length: image.length,
            data_version: image.data_version,
            author: image.author,
            owner: image.owner,
            group: image.group,
            client_time: image.client_time,
            server_time: image.server_time,
            birth,
            body: Body::None,
            body_number: 0,
            cut: None,
            target: Bytes::new(),
            acl: None,
            layout: None,
            policy: if image.vnode.is_directory() {
                image.policy
            } else {
                0
            },
            serial: 0,
            copies: image.copies.clone(),
        })
    }

    /// Returns whether a vnode of that number was ever made before this restore.
    fn was_ever_made(&self, vnode: u32) -> bool {
        match vnode % 2 {
            0 => vnode < self.base.next_file,
            _ => vnode < self.base.next_directory,
        }
    }

    /// The vnode's record before the restore.
    pub(super) fn base_record(&self, vnode: u32) -> Result<Option<VnodeRecord>> {
        if !self.was_ever_made(vnode) {
            return Ok(None);
        }
        self.version(vnode, self.pin)
    }

    /// The version of a vnode that an epoch sees.
    pub(super) fn version(&self, vnode: u32, epoch: u64) -> Result<Option<VnodeRecord>> {
        let group = self.volume.group.id.0;
        let from = Key::vnode(group, vnode, epoch);
        let prefix = Key::vnode_prefix(group, vnode);
        match self.volume.core.engine.first_version(&from, &prefix)? {
            Some((_, value)) => Ok(VnodeRecord::decode(&value)?.ok()),
            None => Ok(None),
        }
    }

    /// Checks that a vnode has not come before.
    pub(super) fn check_first(&mut self, vnode: u32) -> Result<()> {
        let highest = &mut self.tally.highest[vnode as usize % 2];
        if vnode > *highest {
            *highest = vnode;
            return Ok(());
        }
        let key = Key::vnode(self.volume.group.id.0, vnode, self.stage.now());
        if self.stage.has(vnode) || self.volume.core.engine.get(&key)?.is_some() {
            return Err(Error::Unsound(format!("vnode {vnode} comes twice")));
        }
        Ok(())
    }

    /// A body number that no piece has, not even one that waits for its removal.
    fn next_body(&self, vnode: u32) -> Result<u32> {
        if !self.was_ever_made(vnode) {
            return Ok(0);
        }
        let group = self.volume.group.id.0;
        let prefix = Key::bodies_prefix(group, vnode);
        let mut next = 0;
        loop {
            let from = Key::body_prefix(group, vnode, next);
            let found = self.volume.core.engine.scan(&from, &prefix)?.next()?;
            let Some((key, _)) = found else {
                return Ok(next);
            };
            next = key.body_number().checked_add(1).ok_or(Error::DiskFull)?;
        }
    }

    /// Remembers the directory to which a number belongs from now on.
    pub(super) fn remember_parent(&mut self, vnode: u32, uniquifier: Uniquifier) -> Result<()> {
        if self.parents.len() >= PARENTS_MAX {
            // They are found in the table again.
            self.stage.flush()?;
            self.parents.clear();
        }
        if let Some(other) = self.parents.insert(vnode, uniquifier) {
            self.parents_open |= other != uniquifier;
        }
        Ok(())
    }

    /// The uniquifier that a directory will have; 0 if it is not known yet, or there is no
    /// directory.
    fn uniquifier_of(&mut self, vnode: u32) -> Result<Uniquifier> {
        if let Some(&known) = self.parents.get(&vnode) {
            return Ok(known);
        }
        // The present version may still be replaced; `settle_parents` enters the final uniquifier.
        self.parents_open = true;
        let found = self.version(vnode, self.stage.now())?;
        Ok(found.map_or(Uniquifier(0), |record| record.uniquifier))
    }

    pub(super) fn stage_removal(&mut self, vnode: u32, old: &VnodeRecord) -> Result<()> {
        self.tally.blocks -= old.blocks() as i64;
        self.tally.files -= 1;
        self.parents_open |= self.parents.remove(&vnode).is_some();
        self.stage.put_removal(vnode);
        self.stage.flush_if_full()
    }
}

/// Checks that an image is a valid vnode.
fn check_image(image: &VnodeImage) -> Result<()> {
    let VnodeImage { vnode, length, .. } = *image;
    let unsound = |what: &str| Err(Error::Unsound(format!("vnode {vnode} {what}")));
    if vnode.0 == 0 || vnode.0 > VNODE_MAX {
        return unsound("has a number that no vnode has");
    }
    if image.uniquifier.0 == 0 || image.uniquifier.0 == u32::MAX {
        return unsound("has a uniquifier that no vnode has");
    }
    if vnode.is_directory() != (image.kind == FileType::Directory) {
        return unsound("has the number of another kind");
    }
    match image.kind {
        FileType::Directory if image.acl.is_none() => unsound("has no access list"),
        FileType::Directory if !DirectoryBody::is_valid_length(length) => {
            unsound("has a length that no directory has")
        }
        FileType::Symlink if length > TARGET_MAX => unsound("is a link to too long a name"),
        FileType::File if length > LENGTH_MAX => unsound("is too long"),
        FileType::Directory | FileType::Symlink if image.layout.is_some() => {
            unsound("is no file and has objects")
        }
        _ => check_archived(image),
    }
}

/// Checks the copies of an image in archives.
fn check_archived(image: &VnodeImage) -> Result<()> {
    let vnode = image.vnode;
    let unsound = |what: &str| Err(Error::Unsound(format!("vnode {vnode} {what}")));
    if image.kind != FileType::File && (image.copies.is_some() || image.wiped.is_some()) {
        return unsound("is no file and has copies in archives");
    }
    let Some(wiped) = image.wiped else {
        return Ok(());
    };
    if image.layout.is_some() {
        return unsound("is in objects and wiped");
    }
    let mut copies = image.copies.iter().flat_map(|copies| copies.iter());
    match copies.any(|copy| copy.has(wiped.contents())) {
        true => Ok(()),
        false => unsound("is wiped and has no copy of its bytes"),
    }
}
