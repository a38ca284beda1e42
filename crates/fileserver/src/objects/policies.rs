//! Where the bytes of a file are to lie: here, or in objects, and in which shape.
//!
//! 1. The volume's policy 0, which is what volumes begin with, means here: nothing is asked at all.
//! 2. Else the policies of volume and directory are asked at each store of a file that lies here, with the
//!    length that it will have. A file that is in objects stays there: nothing is asked any more.
//! 3. The name is known best when the file is made: it is remembered until it is another, if any policy asks
//!    for names. Otherwise it is looked for in the file's directory.
//! 4. By size means: more than the file server keeps itself, and some device takes such files.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use cellar_policy::{Facts, Place as Said, Policies};
use cellar_volume::{FileType, Result, VnodeStatus, Volume};
use cellar_wire::ids::{Fid, ViceId};
use cellar_wire::object::Shape;
use parking_lot::{Mutex, RwLock};

/// Names remembered.
const NAMES_MAX: usize = 16 << 10;
/// Directories of a path, at most.
const DEPTH_MAX: usize = 256;

/// Where the bytes of a file shall be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On this server.
    Here,
    /// In objects.
    Objects(Wanted),
}

/// What the objects of a file shall be like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// How the bytes are spread.
    pub(crate) shape: Shape,
    /// Devices of this class only.
    pub(crate) class: Option<String>,
    /// The size of the file decided: devices that take no files of that size are not asked.
    pub(crate) by_size: bool,
}

/// The policies of the cell, and what is remembered of files.
#[derive(Default)]
pub(crate) struct PolicyBook {
    policies: RwLock<Arc<Policies>>,
    names: Mutex<HashMap<Fid, Bytes>>,
}

impl PolicyBook {
    /// These are the policies now.
    pub(crate) fn set(&self, policies: Policies) {
        *self.policies.write() = Arc::new(policies);
    }

    pub(crate) fn get(&self) -> Arc<Policies> {
        self.policies.read().clone()
    }

    /// A file was made under that name.
    pub(crate) fn made(&self, volume: &Volume, dir: Fid, fid: Fid, name: &[u8]) {
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

    /// A file has another name now.
    pub(crate) fn renamed(&self, fid: Fid) {
        self.names.lock().remove(&fid);
    }

    /// Where a file that will have `length` bytes shall be. `ids`: the caller's id and groups. `threshold`:
    /// the size up to which files are kept here.
    pub(crate) fn place(
        &self,
        volume: &Volume,
        status: &VnodeStatus,
        length: u64,
        ids: &[ViceId],
        threshold: u64,
    ) -> Result<Place> {
        let policy = volume.policy();
        if policy == 0 || status.kind != FileType::File {
            return Ok(Place::Here);
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
            name: &name,
            directory: &directory,
            volume: volume_name.as_bytes(),
            size: length,
            ids: &ids,
            owner: status.owner.0,
            group: status.group.0,
        };
        let verdict = policies.evaluate(&asked, &facts);
        let wanted = |by_size| Wanted {
            shape: verdict.shape.unwrap_or_default(),
            class: verdict.class.clone(),
            by_size,
        };
        Ok(match verdict.place {
            Said::Local => Place::Here,
            Said::Objects => Place::Objects(wanted(false)),
            Said::BySize if length > threshold => Place::Objects(wanted(true)),
            Said::BySize => Place::Here,
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
