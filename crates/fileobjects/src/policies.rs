//! Decides whether the bytes of a file are on this server or in objects, and in which layout.
//!
//! 1. Policy 0 of a volume, the initial one, means: on this server. No policy is evaluated.
//! 2. Otherwise the policies of volume and directory are evaluated at each store of a file that is
//!    on this server, with its resulting length. A file in objects stays there, and no policy is
//!    evaluated any more.
//! 3. The name is known at the creation of the file. If any policy tests names, it is remembered
//!    until the file is renamed. Otherwise it is looked up in the file's directory.
//! 4. A decision by size sends a file to objects if it is larger than the file server's limit and
//!    some device takes such files.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use cellar_policy::{Archiving, Facts, Policies, RecallMode, StorageTarget, Verdict};
use cellar_volume::{FileType, Result, VnodeStatus, Volume};
use cellar_wire::ids::{Fid, ViceId, VnodeId};
use cellar_wire::object::{Shape, final_name};
use parking_lot::{Mutex, RwLock};

use super::Objects;

/// Names that are remembered.
const NAMES_MAX: usize = 16 << 10;
/// Most directories in a path.
const DEPTH_MAX: usize = 256;

/// The place for the bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorageDecision {
    /// On this server.
    Here,
    /// In objects.
    Objects(ObjectSpec),
}

/// The properties wanted for the objects of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectSpec {
    /// The distribution of the bytes.
    pub shape: Shape,
    /// If set, only devices of this class.
    pub class: Option<String>,
    /// Whether the size of the file decided. Devices that take no files of that size are then
    /// excluded.
    pub by_size: bool,
}

impl Objects {
    /// Notes the name of a new file, because a policy may need it.
    pub fn note_created(&self, volume: &Volume, dir: Fid, fid: Fid, name: &[u8]) {
        self.policies.made(volume, dir, fid, name);
    }

    /// Forgets the name of a renamed file.
    pub fn note_renamed(&self, fid: Fid) {
        self.policies.renamed(fid);
    }

    /// Whether the cell has a policy of that number.
    pub fn has_policy(&self, policy: u32) -> bool {
        self.policies.get().contains(policy)
    }
}

/// The policies of the cell, and the remembered names of files.
#[derive(Default)]
pub(crate) struct PolicyBook {
    policies: RwLock<Arc<Policies>>,
    names: Mutex<HashMap<Fid, Bytes>>,
}

impl PolicyBook {
    /// Replaces the policies.
    pub(super) fn set(&self, policies: Policies) {
        *self.policies.write() = Arc::new(policies);
    }

    pub(super) fn get(&self) -> Arc<Policies> {
        self.policies.read().clone()
    }

    /// Remembers the name of a new file, if a policy needs it.
    pub(super) fn made(&self, volume: &Volume, dir: Fid, fid: Fid, name: &[u8]) {
        let policy = volume.policy();
        if policy == 0 {
            return;
        }
        let Ok((own, _)) = volume.policies(dir) else {
            return;
        };
        if self.get().needs(&[policy, own]).name {
            let mut names = self.names.lock();
            if names.len() >= NAMES_MAX {
                names.clear();
            }
            names.insert(fid, Bytes::copy_from_slice(name));
        }
    }

    /// Forgets the name of a renamed file.
    pub(super) fn renamed(&self, fid: Fid) {
        self.names.lock().remove(&fid);
    }

    /// The place of a file that will have `length` bytes. `ids` are the caller's id and groups.
    /// `threshold` is the size up to which files stay on this server.
    pub(crate) fn place(
        &self,
        volume: &Volume,
        status: &VnodeStatus,
        length: u64,
        ids: &[ViceId],
        threshold: u64,
    ) -> Result<StorageDecision> {
        let name = |dir| self.name(volume, dir, status.fid);
        let Some(verdict) = self.verdict(volume, status, length, ids, name)? else {
            return Ok(StorageDecision::Here);
        };
        let wanted = |by_size| ObjectSpec {
            shape: verdict.shape.unwrap_or_default(),
            class: verdict.class.clone(),
            by_size,
        };
        Ok(match verdict.place {
            StorageTarget::Local => StorageDecision::Here,
            StorageTarget::Objects => StorageDecision::Objects(wanted(false)),
            StorageTarget::BySize if length > threshold => StorageDecision::Objects(wanted(true)),
            StorageTarget::BySize => StorageDecision::Here,
        })
    }

    /// The highest number of archives that the policies of a file name. 0: no copies are made.
    pub(crate) fn archives_max(
        &self,
        volume: &Volume,
        status: &VnodeStatus,
        names: &mut ScanNames,
    ) -> Result<u32> {
        let policy = volume.policy();
        if policy == 0 || status.kind != FileType::File {
            return Ok(0);
        }
        let dir = directory_of(status);
        if names.dir != Some(dir) {
            let (own, _) = volume.policies(dir)?;
            *names = ScanNames {
                dir: Some(dir),
                archives_max: self.get().archives_max(&[policy, own]),
                names: None,
            };
        }
        Ok(names.archives_max)
    }

    /// The copies in archives that the policies ask for. Conditions on the storing user see the
    /// owner of the file.
    pub(crate) fn archiving(
        &self,
        volume: &Volume,
        status: &VnodeStatus,
        names: &mut ScanNames,
    ) -> Result<Archiving> {
        let name = |dir| names.name(volume, dir, status.fid);
        let verdict = self.verdict(volume, status, status.length, &[status.owner], name)?;
        Ok(verdict.map(|verdict| verdict.archiving).unwrap_or_default())
    }

    /// The behaviour of a call that needs the bytes of a file while it is wiped. Conditions on the
    /// storing user see the owner of the file.
    pub(crate) fn recall_mode(&self, volume: &Volume, status: &VnodeStatus) -> Result<RecallMode> {
        let name = |dir| self.name(volume, dir, status.fid);
        let verdict = self.verdict(volume, status, status.length, &[status.owner], name)?;
        Ok(verdict.map_or(RecallMode::Wait, |verdict| verdict.archiving.recall))
    }

    /// The outcome of the policies of volume and directory; `None` if none applies. `name` finds
    /// the name of the file in its directory, if a policy needs it.
    fn verdict(
        &self,
        volume: &Volume,
        status: &VnodeStatus,
        length: u64,
        ids: &[ViceId],
        name: impl FnOnce(Fid) -> Result<Bytes>,
    ) -> Result<Option<Verdict>> {
        let policy = volume.policy();
        if policy == 0 || status.kind != FileType::File {
            return Ok(None);
        }
        let dir = directory_of(status);
        let (own, _) = volume.policies(dir)?;
        let policies = self.get();
        let asked = [policy, own];
        let needs = policies.needs(&asked);
        let name = if needs.name { name(dir)? } else { Bytes::new() };
        let directory = if needs.directory {
            path(volume, dir)?
        } else {
            Vec::new()
        };
        let volume_name = if needs.volume {
            volume.info().name
        } else {
            String::new()
        };
        let ids: Vec<i32> = if needs.ids {
            ids.iter().map(|id| id.0).collect()
        } else {
            Vec::new()
        };
        let facts = Facts {
            name: final_name(&name),
            directory: &directory,
            volume: volume_name.as_bytes(),
            size: length,
            ids: &ids,
            owner: status.owner.0,
            group: status.group.0,
        };
        Ok(Some(policies.evaluate(&asked, &facts)))
    }

    /// The name of a file; empty if it has none any more.
    fn name(&self, volume: &Volume, dir: Fid, fid: Fid) -> Result<Bytes> {
        if let Some(name) = self.names.lock().get(&fid) {
            return Ok(name.clone());
        }
        name_in(volume, dir, fid)
    }
}

/// The directory of the last file of a walk over files.
#[derive(Default)]
pub(crate) struct ScanNames {
    dir: Option<Fid>,
    /// The highest number of archives that the policies of the directory and its volume name.
    archives_max: u32,
    /// The names in the directory, if a policy needed one.
    names: Option<HashMap<VnodeId, Bytes>>,
}

impl ScanNames {
    fn name(&mut self, volume: &Volume, dir: Fid, fid: Fid) -> Result<Bytes> {
        if self.dir != Some(dir) || self.names.is_none() {
            let entries = volume.entries(dir)?.into_iter();
            let files = entries.filter(|entry| entry.name != "." && entry.name != "..");
            self.names = Some(files.map(|entry| (entry.vnode, entry.name)).collect());
        }
        let known = self.names.as_ref().and_then(|names| names.get(&fid.vnode));
        Ok(known.cloned().unwrap_or_default())
    }
}

/// The directory of a file.
fn directory_of(status: &VnodeStatus) -> Fid {
    Fid {
        volume: status.fid.volume,
        vnode: status.parent,
        uniquifier: status.parent_uniquifier,
    }
}

fn name_in(volume: &Volume, dir: Fid, fid: Fid) -> Result<Bytes> {
    let found = volume
        .entries(dir)?
        .into_iter()
        .find(|entry| entry.vnode == fid.vnode && entry.name != "." && entry.name != "..");
    Ok(found.map_or_else(Bytes::new, |entry| entry.name))
}

/// The path of a file in its volume, such as `/a/b`. One of its names, if it has several.
///
/// # Errors
/// The file does not exist, or the store cannot be read.
pub fn file_path(volume: &Volume, fid: Fid) -> Result<Vec<u8>> {
    let dir = directory_of(&volume.status(fid)?);
    let mut path = path(volume, dir)?;
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(final_name(&name_in(volume, dir, fid)?));
    Ok(path)
}

/// The path of a directory in its volume.
fn path(volume: &Volume, dir: Fid) -> Result<Vec<u8>> {
    let mut names = Vec::new();
    let mut at = dir;
    while at != volume.root() && names.len() < DEPTH_MAX {
        let status = volume.status(at)?;
        let parent = Fid {
            volume: at.volume,
            vnode: status.parent,
            uniquifier: status.parent_uniquifier,
        };
        names.push(name_in(volume, parent, at)?);
        at = parent;
    }
    let mut path = Vec::new();
    for name in names.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    if path.is_empty() {
        path.push(b'/');
    }
    Ok(path)
}
