//! The name under which a copy is made until it is complete: `.NAME.cellar-part` in the same
//! directory. The complete copy is renamed to NAME, so NAME never leads to a part of a file.
//!
//! 1. A copy that replaces a file keeps the mode bits and the owner of that file.
//! 2. A copy is written in place, under its final name, in these cases. The name leads to a link, a
//!    device or a file with further names. The caller may not give the new file the owner of the
//!    old one, or may not create and remove names in the directory. The name is too long.
//! 3. A copy that fails stays under the part name if it has bytes. `--resume` continues it, and the
//!    next copy without `--resume` replaces it.
//! 4. File servers evaluate policies for the final name (`fileobjects`).

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use cellar_client::path::NAME_BYTES_MAX;
use cellar_client::{Client, Error, Node};
use cellar_wire::acl::Rights;
use cellar_wire::ids::Fid;
use cellar_wire::object::{PART_PREFIX, PART_SUFFIX};

use crate::failure::Outcome;

/// The part name for a file; `None` if it would be too long.
pub(super) fn part_name(name: &[u8]) -> Option<Bytes> {
    let part = [PART_PREFIX, name, PART_SUFFIX].concat();
    (part.len() <= NAME_BYTES_MAX).then(|| part.into())
}

/// The part path of a file of this machine.
pub(super) fn part_path(path: &Path) -> Option<PathBuf> {
    let name = part_name(path.file_name()?.as_bytes())?;
    Some(path.with_file_name(OsStr::from_bytes(&name)))
}

/// The names that a directory of AFS had when the copy first used it. One copy asks once, because
/// its own changes end the validity of the client's copy of the directory.
#[derive(Clone)]
pub(super) struct Names(Option<Arc<HashMap<Bytes, Fid>>>);

impl Names {
    /// The names of a directory that this copy has made.
    pub(super) fn none() -> Self {
        Self(Some(Arc::default()))
    }

    /// Reads the names. They stay unknown if the caller may not list the directory, or may not
    /// create and remove names there.
    pub(super) async fn read(client: &Client, directory: &Node) -> Self {
        let rights = directory.status.caller_access;
        if !rights.contains(Rights::INSERT.union(Rights::DELETE)) {
            return Self(None);
        }
        let entries = client.read_directory(directory).await.ok();
        Self(entries.map(|entries| {
            let entries = entries.into_iter();
            Arc::new(entries.map(|entry| (entry.name, entry.fid)).collect())
        }))
    }

    /// The way in which a copy to `name` is made.
    pub(super) async fn plan(
        &self,
        client: &Client,
        directory: &Node,
        name: &[u8],
    ) -> Result<Plan, Error> {
        let Self(Some(names)) = self else {
            return Ok(Plan::InPlace);
        };
        let Some(part) = part_name(name) else {
            return Ok(Plan::InPlace);
        };
        let Some(&fid) = names.get(name) else {
            return Ok(Plan::Part(part, None));
        };
        let old = client.node(&directory.volume, fid).await;
        Ok(match old {
            Ok(old) if is_plain(&old) => Plan::Part(part, Some(old)),
            Ok(_) => Plan::InPlace,
            // It was removed meanwhile.
            Err(error) if error.is_not_found() => Plan::Part(part, None),
            Err(error) => return Err(error),
        })
    }
}

/// How a copy is made.
pub(super) enum Plan {
    /// Under the final name.
    InPlace,
    /// Under a part name; it replaces this file.
    Part(Bytes, Option<Node>),
}

/// Whether a vnode is a file with one name.
fn is_plain(node: &Node) -> bool {
    let is_other = node.is_directory() || node.is_link() || node.is_mount_point();
    !is_other && node.status.link_count == 1
}

/// The part path for a copy to a file of this machine, and the file that it replaces. `None` if the
/// copy is made in place.
pub(super) fn local_plan(path: &Path) -> Option<(PathBuf, Option<Metadata>)> {
    let part = part_path(path)?;
    match fs::symlink_metadata(path) {
        Ok(old) if old.is_file() && old.nlink() == 1 => Some((part, Some(old))),
        Ok(_) => None,
        Err(_) => Some((part, None)),
    }
}

/// Gives a new file of this machine the mode and the owner of the file that it replaces. Returns
/// whether that is possible.
pub(super) fn take_after(new: &fs::File, old: &Metadata) -> Outcome<bool> {
    let about = new.metadata()?;
    if (about.uid(), about.gid()) != (old.uid(), old.gid())
        && std::os::unix::fs::fchown(new, Some(old.uid()), Some(old.gid())).is_err()
    {
        return Ok(false);
    }
    new.set_permissions(old.permissions())?;
    Ok(true)
}
