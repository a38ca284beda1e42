//! Paths: from `/afs/CELL/…` to a fid, across mount points and symbolic links.
//!
//! 1. `/afs` is the root directory of the home cell's `root.afs` (read-only if there is one). A
//!    name that is not in that directory may be the name of a known cell. It then leads to the
//!    cell's `root.cell`; with a dot before it, to the read-write `root.cell`. So paths work in a
//!    cell without `root.afs` too.
//! 2. A mount point is replaced by the root of the volume that it leads to
//!    ([`crate::mount_point::choose`]). At the end of a path this depends on [`Follow`].
//! 3. A symbolic link is replaced by its target; at the end of a path this depends on [`Follow`]
//!    too. A target that begins with `/afs` starts there, a relative one in the directory that
//!    holds the link. Any other absolute target leaves AFS.
//! 4. `..` goes back along the walk: from a volume's root it leads to the directory of the mount
//!    point.
//! 5. One walk follows at most [`LINKS_MAX`] links and mount points, so loops end.
//!
//! The walk uses a trait `Tree`, so tests of these rules need no server.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::{AfsFetchStatus, FileType};

use crate::cell::CellName;
use crate::error::{Error, PathProblem, Result};
use crate::mount_point::{MountPoint, is_mount_point};
use crate::volume::Volume;

/// The most links and mount points that one walk follows. Linux allows 40 links.
pub const LINKS_MAX: u32 = 40;

/// The longest name of one component, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// The end of a path: a vnode of a volume, with its status.
#[derive(Clone, Debug)]
pub struct Node {
    /// The volume.
    pub volume: Arc<Volume>,
    /// Its fid.
    pub fid: Fid,
    /// Its status at the time of the walk.
    pub status: AfsFetchStatus,
}

impl Node {
    /// Another vnode of the same volume.
    pub fn neighbour(&self, fid: Fid, status: AfsFetchStatus) -> Self {
        Self {
            volume: self.volume.clone(),
            fid,
            status,
        }
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.status.file_type == FileType::Directory
    }

    /// Whether it is a mount point that was not followed.
    pub fn is_mount_point(&self) -> bool {
        self.status.file_type == FileType::Symlink && is_mount_point(self.status.unix_mode)
    }

    /// Whether it is a symbolic link and no mount point.
    pub fn is_link(&self) -> bool {
        self.status.file_type == FileType::Symlink && !is_mount_point(self.status.unix_mode)
    }
}

/// Whether the last component of a path is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Follow {
    /// A symbolic link.
    pub links: bool,
    /// A mount point.
    pub mounts: bool,
}

impl Follow {
    /// Both, as `stat(2)`.
    pub const ALL: Self = Self {
        links: true,
        mounts: true,
    };
    /// Mount points only, as `lstat(2)`.
    pub const MOUNTS: Self = Self {
        links: false,
        mounts: true,
    };
    /// Neither: the vnode that has the name.
    pub const NONE: Self = Self {
        links: false,
        mounts: false,
    };
}

/// The source of names and links.
pub(crate) trait Tree {
    /// The volume behind `/afs`, if the home cell has one.
    fn afs_root(&self) -> impl Future<Output = Result<Option<Arc<Volume>>>> + Send;
    /// The `root.cell` of a cell, if the cell is known.
    fn cell_root(
        &self,
        cell: &CellName,
        read_write: bool,
    ) -> impl Future<Output = Result<Option<Arc<Volume>>>> + Send;
    /// The fid of a name in a directory, if the name exists.
    fn lookup(
        &self,
        directory: &Node,
        name: &[u8],
    ) -> impl Future<Output = Result<Option<Fid>>> + Send;
    /// The status of a vnode.
    fn node(&self, volume: &Arc<Volume>, fid: Fid) -> impl Future<Output = Result<Node>> + Send;
    /// The text of a link or mount point.
    fn link_text(&self, node: &Node) -> impl Future<Output = Result<Bytes>> + Send;
    /// The volume that a mount point in `from` leads to.
    fn mount(
        &self,
        from: &Arc<Volume>,
        mount: &MountPoint,
    ) -> impl Future<Output = Result<Arc<Volume>>> + Send;
}

/// The components of a path below `/afs`.
pub(crate) fn components(path: &str) -> Result<Vec<Bytes>> {
    let problem = |problem| Error::Path {
        path: path.to_owned(),
        problem,
    };
    let rest = match path.strip_prefix("/afs") {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => rest,
        _ => return Err(problem(PathProblem::NotAfs)),
    };
    let names = rest
        .split('/')
        .filter(|name| !name.is_empty() && *name != ".");
    let names: Vec<_> = names
        .map(|name| Bytes::copy_from_slice(name.as_bytes()))
        .collect();
    if names
        .iter()
        .any(|name| name.len() > NAME_BYTES_MAX || name.contains(&0))
    {
        return Err(problem(PathProblem::BadName));
    }
    Ok(names)
}

/// Follows a path. `None` is `/afs` itself in a home cell without `root.afs`.
pub(crate) async fn walk(tree: &impl Tree, path: &str, follow: Follow) -> Result<Option<Node>> {
    let mut walk = Walk {
        tree,
        path,
        trail: Vec::new(),
        todo: components(path)?.into(),
        links_left: LINKS_MAX,
    };
    walk.start_at_afs().await?;
    while let Some(name) = walk.todo.pop_front() {
        let last = walk.todo.is_empty();
        walk.step(&name, if last { follow } else { Follow::ALL })
            .await?;
    }
    Ok(walk.trail.pop().and_then(|place| place.node))
}

/// One directory of a walk, or its end.
#[derive(Clone)]
struct Place {
    /// The name in the directory before it; empty for `/afs`.
    name: Bytes,
    /// `None` is `/afs` without a volume.
    node: Option<Node>,
}

struct Walk<'a, T> {
    tree: &'a T,
    path: &'a str,
    /// The directories from `/afs` to here.
    trail: Vec<Place>,
    /// The components that are still to be walked.
    todo: VecDeque<Bytes>,
    links_left: u32,
}

impl<T: Tree> Walk<'_, T> {
    fn problem(&self, problem: PathProblem) -> Error {
        Error::Path {
            path: self.path.to_owned(),
            problem,
        }
    }

    /// Names the directory or file of the way that a file server refused, and the whole path.
    fn refused(&self, name: &[u8], error: Error) -> Error {
        let Error::Fileserver { cause, .. } = error else {
            return error;
        };
        let names = self.trail.iter().skip(1).map(|place| &place.name[..]);
        let mut at = String::from("/afs");
        for name in names.chain([name]).filter(|name| !name.is_empty()) {
            at.push('/');
            at.push_str(&String::from_utf8_lossy(name));
        }
        let path = self.path;
        let what = match at == path.trim_end_matches('/') {
            true => path.to_owned(),
            false => format!("{path}: at {at}"),
        };
        Error::Fileserver { what, cause }
    }

    async fn start_at_afs(&mut self) -> Result<()> {
        self.trail.clear();
        let node = match self.tree.afs_root().await? {
            Some(volume) => Some(self.root_of(&volume, b"").await?),
            None => None,
        };
        let name = Bytes::new();
        self.trail.push(Place { name, node });
        Ok(())
    }

    /// The root directory of a volume, which is under `name` in the present directory.
    async fn root_of(&self, volume: &Arc<Volume>, name: &[u8]) -> Result<Node> {
        let found = self.tree.node(volume, Fid::root(volume.id)).await;
        found.map_err(|error| self.refused(name, error))
    }

    async fn step(&mut self, name: &Bytes, follow: Follow) -> Result<()> {
        if &name[..] == b".." {
            if self.trail.len() > 1 {
                self.trail.pop();
            }
            return Ok(());
        }
        let here = self.trail.last().and_then(|place| place.node.clone());
        if let Some(here) = &here
            && !here.is_directory()
        {
            return Err(self.problem(PathProblem::NotADirectory));
        }
        let found = match &here {
            Some(here) => {
                let found = self.tree.lookup(here, name).await;
                match found.map_err(|error| self.refused(b"", error))? {
                    Some(fid) => {
                        let node = self.tree.node(&here.volume, fid).await;
                        Some(node.map_err(|error| self.refused(name, error))?)
                    }
                    None => None,
                }
            }
            None => None,
        };
        let Some(mut node) = found else {
            return self.cell_by_name(name).await;
        };
        if node.is_mount_point() && follow.mounts {
            self.count_link()?;
            let text = self.link_text(&node, name).await?;
            let mount = MountPoint::parse(&text).ok_or_else(|| {
                let text = String::from_utf8_lossy(&text).into_owned();
                self.problem(PathProblem::BadMountPoint(text))
            })?;
            let volume = self.tree.mount(&node.volume, &mount).await?;
            node = self.root_of(&volume, name).await?;
        } else if node.is_link() && follow.links {
            self.count_link()?;
            let text = self.link_text(&node, name).await?;
            return self.follow_link(&text).await;
        }
        self.push(name.clone(), node);
        Ok(())
    }

    async fn link_text(&self, node: &Node, name: &[u8]) -> Result<Bytes> {
        let text = self.tree.link_text(node).await;
        text.map_err(|error| self.refused(name, error))
    }

    fn push(&mut self, name: Bytes, node: Node) {
        let node = Some(node);
        self.trail.push(Place { name, node });
    }

    /// Rule 1: a name directly below `/afs` that no volume has.
    async fn cell_by_name(&mut self, name: &Bytes) -> Result<()> {
        let not_found = self.problem(PathProblem::NotFound);
        if self.trail.len() != 1 {
            return Err(not_found);
        }
        let text = std::str::from_utf8(name).unwrap_or_default();
        let (text, read_write) = match text.strip_prefix('.') {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        let Ok(cell) = CellName::new(text) else {
            return Err(not_found);
        };
        let Some(volume) = self.tree.cell_root(&cell, read_write).await? else {
            return Err(self.problem(PathProblem::NoSuchCell(cell)));
        };
        let node = self.root_of(&volume, name).await?;
        self.push(name.clone(), node);
        Ok(())
    }

    /// Rule 3. The rest of the path comes after the target's components.
    async fn follow_link(&mut self, text: &[u8]) -> Result<()> {
        let text = String::from_utf8_lossy(text);
        let names: Vec<Bytes> = if text.starts_with('/') {
            let names = components(&text)
                .map_err(|_| self.problem(PathProblem::LeavesAfs(text.clone().into_owned())))?;
            self.start_at_afs().await?;
            names
        } else {
            let names = text
                .split('/')
                .filter(|name| !name.is_empty() && *name != ".");
            names
                .map(|name| Bytes::copy_from_slice(name.as_bytes()))
                .collect()
        };
        for name in names.into_iter().rev() {
            self.todo.push_front(name);
        }
        Ok(())
    }

    fn count_link(&mut self) -> Result<()> {
        self.links_left = self
            .links_left
            .checked_sub(1)
            .ok_or_else(|| self.problem(PathProblem::Loop))?;
        Ok(())
    }
}

/// The directory part and the last name of the path of a file to create or remove.
pub fn split_last(path: &str) -> Result<(&str, &str)> {
    let problem = |problem| Error::Path {
        path: path.to_owned(),
        problem,
    };
    let trimmed = path.trim_end_matches('/');
    let (directory, name) = trimmed
        .rsplit_once('/')
        .ok_or_else(|| problem(PathProblem::NotAfs))?;
    if name.is_empty() || name == "." || name == ".." || name.len() > NAME_BYTES_MAX {
        return Err(problem(PathProblem::BadName));
    }
    let directory = directory.trim_end_matches('/');
    if directory.is_empty() {
        return Err(problem(PathProblem::NotChangeable));
    }
    Ok((directory, name))
}

#[cfg(test)]
mod tests;
