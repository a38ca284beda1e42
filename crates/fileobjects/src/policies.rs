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
use cellar_policy::{Facts, Policies, StorageTarget};
use cellar_volume::{FileType, Result, VnodeStatus, Volume};
use cellar_wire::ids::{Fid, ViceId};
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
        let policy = volume.policy();
        if policy == 0 || status.kind != FileType::File {
            return Ok(StorageDecision::Here);
        }
        let dir = Fid {
            volume: status.fid.volume,
            vnode: status.parent,
            uniquifier: status.parent_uniquifier,
        };
        let (own, _) = volume.policies(dir)?;
        let policies = self.get();
        let asked = [policy, own];
        let needs = policies.needs(&asked);
        let name = if needs.name {
            self.name(volume, dir, status.fid)?
        } else {
            Bytes::new()
        };
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
        let verdict = policies.evaluate(&asked, &facts);
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

    /// The name of a file; empty if it has none any more.
    fn name(&self, volume: &Volume, dir: Fid, fid: Fid) -> Result<Bytes> {
        if let Some(name) = self.names.lock().get(&fid) {
            return Ok(name.clone());
        }
        name_in(volume, dir, fid)
    }
}

fn name_in(volume: &Volume, dir: Fid, fid: Fid) -> Result<Bytes> {
    let found = volume
        .entries(dir)?
        .into_iter()
        .find(|entry| entry.vnode == fid.vnode && entry.name != "." && entry.name != "..");
    Ok(found.map_or_else(Bytes::new, |entry| entry.name))
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
