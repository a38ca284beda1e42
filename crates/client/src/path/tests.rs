//! Walks in a tree in memory: two cells, mount points, links.

use std::collections::HashMap;

use cellar_rpc::CallError;
use cellar_wire::abort::AbortCode;
use cellar_wire::ids::{VnodeId, VolumeId};

use super::*;
use crate::mount_point::{Existing, VolumeKind, choose};

/// A volume is a number; its vnodes are listed as (vnode, kind and text).
#[derive(Clone)]
enum Vnode {
    Directory(Vec<(&'static str, u32)>),
    File,
    Link(&'static str),
    Mount(&'static str),
}

#[derive(Default)]
struct Fake {
    vnodes: HashMap<(u32, u32), Vnode>,
    without_root_afs: bool,
    /// Names in this vnode are refused.
    refused: Option<(u32, u32)>,
}

const ROOT_AFS: u32 = 1;
const ROOT_CELL: u32 = 2;
const ROOT_CELL_RO: u32 = 3;
const HOME: u32 = 4;
const FAR_ROOT: u32 = 5;

fn volume(id: u32) -> Arc<Volume> {
    let (cell, name, kind) = match id {
        ROOT_AFS => ("near.org", "root.afs", VolumeKind::ReadOnly),
        ROOT_CELL => ("near.org", "root.cell", VolumeKind::ReadWrite),
        ROOT_CELL_RO => ("near.org", "root.cell", VolumeKind::ReadOnly),
        HOME => ("near.org", "home", VolumeKind::ReadWrite),
        _ => ("far.org", "root.cell", VolumeKind::ReadWrite),
    };
    Arc::new(Volume {
        cell: CellName::new(cell).expect("cell"),
        name: name.to_owned(),
        kind,
        id: VolumeId(id),
    })
}

impl Tree for Fake {
    async fn afs_root(&self) -> Result<Option<Arc<Volume>>> {
        Ok((!self.without_root_afs).then(|| volume(ROOT_AFS)))
    }

    async fn cell_root(&self, cell: &CellName, rw: bool) -> Result<Option<Arc<Volume>>> {
        Ok(match (cell.as_str(), rw) {
            ("near.org", true) => Some(volume(ROOT_CELL)),
            ("near.org", false) => Some(volume(ROOT_CELL_RO)),
            ("far.org", _) => Some(volume(FAR_ROOT)),
            _ => None,
        })
    }

    async fn lookup(&self, directory: &Node, name: &[u8]) -> Result<Option<Fid>> {
        let key = (directory.fid.volume.0, directory.fid.vnode.0);
        if self.refused == Some(key) {
            return Err(Error::Fileserver {
                what: directory.fid.to_string(),
                cause: CallError::Aborted(AbortCode::EACCES),
            });
        }
        let Some(Vnode::Directory(entries)) = self.vnodes.get(&key) else {
            panic!("lookup in what is no directory: {key:?}");
        };
        let entry = entries.iter().find(|(entry, _)| entry.as_bytes() == name);
        Ok(entry.map(|(_, vnode)| Fid::new(key.0, *vnode, 1)))
    }

    async fn node(&self, volume: &Arc<Volume>, fid: Fid) -> Result<Node> {
        let vnode = self
            .vnodes
            .get(&(fid.volume.0, fid.vnode.0))
            .expect("vnode");
        let mut status = AfsFetchStatus::failed(0.into());
        (status.file_type, status.unix_mode) = match vnode {
            Vnode::Directory(_) => (FileType::Directory, 0o755),
            Vnode::File => (FileType::File, 0o644),
            Vnode::Link(_) => (FileType::Symlink, 0o755),
            Vnode::Mount(_) => (FileType::Symlink, 0o644),
        };
        Ok(Node {
            volume: volume.clone(),
            fid,
            status,
        })
    }

    async fn link_text(&self, node: &Node) -> Result<Bytes> {
        match self.vnodes.get(&(node.fid.volume.0, node.fid.vnode.0)) {
            Some(Vnode::Link(text) | Vnode::Mount(text)) => Ok(Bytes::from_static(text.as_bytes())),
            _ => panic!("no link"),
        }
    }

    async fn mount(&self, from: &Arc<Volume>, mount: &MountPoint) -> Result<Arc<Volume>> {
        let existing = Existing {
            read_write: true,
            read_only: true,
            backup: false,
        };
        let read_only = from.kind != VolumeKind::ReadWrite;
        Ok(match mount.volume.as_str() {
            "root.cell" if mount.cell.is_some() => volume(FAR_ROOT),
            "root.cell" => match choose(mount, read_only, existing) {
                Some(VolumeKind::ReadOnly) => volume(ROOT_CELL_RO),
                _ => volume(ROOT_CELL),
            },
            "home" => volume(HOME),
            other => panic!("mount of {other}"),
        })
    }
}

fn cell() -> Fake {
    use Vnode::*;
    let mut vnodes = HashMap::new();
    vnodes.insert(
        (ROOT_AFS, 1),
        Directory(vec![("near.org", 2), (".near.org", 4), ("far", 6)]),
    );
    vnodes.insert((ROOT_AFS, 2), Mount("#root.cell."));
    vnodes.insert((ROOT_AFS, 4), Mount("%root.cell."));
    vnodes.insert((ROOT_AFS, 6), Mount("#far.org:root.cell."));
    for id in [ROOT_CELL, ROOT_CELL_RO] {
        let entries = vec![
            ("home", 2),
            ("in", 4),
            ("out", 6),
            ("loop", 8),
            ("bad", 10),
            ("file", 12),
        ];
        vnodes.insert((id, 1), Directory(entries));
        vnodes.insert((id, 2), Mount("#home."));
        vnodes.insert((id, 4), Link("/afs/near.org/home/dir"));
        vnodes.insert((id, 6), Link("/etc/passwd"));
        vnodes.insert((id, 8), Link("loop"));
        vnodes.insert((id, 10), Mount("root.cell."));
        vnodes.insert((id, 12), File);
    }
    vnodes.insert((HOME, 1), Directory(vec![("dir", 3), ("up", 2)]));
    vnodes.insert((HOME, 2), Link("../file"));
    vnodes.insert((HOME, 3), Directory(vec![("f", 4), ("sideways", 6)]));
    vnodes.insert((HOME, 4), File);
    vnodes.insert((HOME, 6), Link("./../dir//f"));
    vnodes.insert((FAR_ROOT, 1), Directory(vec![]));
    Fake {
        vnodes,
        ..Fake::default()
    }
}

async fn try_walk(tree: &Fake, path: &str, follow: Follow) -> Result<(u32, u32)> {
    let node = walk(tree, path, follow).await?.expect("a node");
    Ok((node.fid.volume.0, node.fid.vnode.0))
}

async fn walked(path: &str) -> (u32, u32) {
    try_walk(&cell(), path, Follow::ALL).await.expect(path)
}

async fn problem(path: &str) -> PathProblem {
    match try_walk(&cell(), path, Follow::ALL).await {
        Err(Error::Path { problem, .. }) => problem,
        other => panic!("{path}: {other:?}"),
    }
}

#[tokio::test]
async fn mount_points_lead_into_volumes() {
    assert_eq!(walked("/afs").await, (ROOT_AFS, 1));
    assert_eq!(walked("/afs/near.org").await, (ROOT_CELL_RO, 1));
    assert_eq!(walked("/afs/.near.org/").await, (ROOT_CELL, 1));
    assert_eq!(walked("/afs/near.org/home/dir/f").await, (HOME, 4));
    assert_eq!(walked("/afs//near.org/./home/").await, (HOME, 1));
    assert_eq!(walked("/afs/far").await, (FAR_ROOT, 1));
}

#[tokio::test]
async fn the_end_of_a_path_is_followed_as_wanted() {
    let tree = cell();
    let mount = try_walk(&tree, "/afs/near.org/home", Follow::NONE).await;
    assert_eq!(mount.expect("mount point"), (ROOT_CELL_RO, 2));
    let link = try_walk(&tree, "/afs/near.org/in", Follow::MOUNTS).await;
    assert_eq!(link.expect("link"), (ROOT_CELL_RO, 4));
    assert_eq!(walked("/afs/near.org/in").await, (HOME, 3));
    assert_eq!(walked("/afs/near.org/in/f").await, (HOME, 4));
}

#[tokio::test]
async fn two_dots_cross_mount_points_backwards() {
    assert_eq!(walked("/afs/near.org/home/..").await, (ROOT_CELL_RO, 1));
    assert_eq!(walked("/afs/near.org/home/up").await, (ROOT_CELL_RO, 12));
    assert_eq!(walked("/afs/near.org/home/dir/sideways").await, (HOME, 4));
    assert_eq!(walked("/afs/../../near.org/..").await, (ROOT_AFS, 1));
}

#[tokio::test]
async fn cells_are_found_by_name_too() {
    let tree = Fake {
        without_root_afs: true,
        ..cell()
    };
    let root = try_walk(&tree, "/afs/near.org", Follow::ALL).await;
    assert_eq!(root.expect("read-only root"), (ROOT_CELL_RO, 1));
    let root = try_walk(&tree, "/afs/.near.org", Follow::ALL).await;
    assert_eq!(root.expect("read-write root"), (ROOT_CELL, 1));
    assert!(
        walk(&tree, "/afs", Follow::ALL)
            .await
            .expect("afs")
            .is_none()
    );
    // In a cell that has a root.afs, names that are not in it are tried as names of cells.
    assert_eq!(walked("/afs/far.org").await, (FAR_ROOT, 1));
}

#[tokio::test]
async fn links_that_cannot_be_followed() {
    assert_eq!(problem("/etc/passwd").await, PathProblem::NotAfs);
    assert_eq!(problem("/afsx").await, PathProblem::NotAfs);
    let nowhere = CellName::new("nowhere.org").expect("cell");
    assert_eq!(
        problem("/afs/nowhere.org/x").await,
        PathProblem::NoSuchCell(nowhere)
    );
    // No name of a cell.
    assert_eq!(problem("/afs/a%20b").await, PathProblem::NotFound);
    assert_eq!(problem("/afs/near.org/none").await, PathProblem::NotFound);
    assert_eq!(
        problem("/afs/near.org/file/x").await,
        PathProblem::NotADirectory
    );
    assert_eq!(problem("/afs/near.org/loop").await, PathProblem::Loop);
    assert!(matches!(
        problem("/afs/near.org/out").await,
        PathProblem::LeavesAfs(_)
    ));
    assert!(matches!(
        problem("/afs/near.org/bad").await,
        PathProblem::BadMountPoint(_)
    ));
    assert_eq!(
        problem(&format!("/afs/{}", "x".repeat(256))).await,
        PathProblem::BadName
    );
}

#[test]
fn the_last_name_of_a_path() {
    assert_eq!(
        split_last("/afs/near.org/a/").expect("split"),
        ("/afs/near.org", "a")
    );
    assert_eq!(
        split_last("/afs/near.org").expect("split"),
        ("/afs", "near.org")
    );
    for bad in ["/afs", "/afs/near.org/..", "/afs/a/.", "x", ""] {
        assert!(split_last(bad).is_err(), "{bad}");
    }
    assert!(VnodeId::ROOT.is_directory());
}

#[tokio::test]
async fn a_refusal_names_the_directory_on_the_way() {
    let tree = Fake {
        refused: Some((HOME, 3)),
        ..cell()
    };
    for (path, at) in [
        ("/afs/near.org/home/dir/a/b", ": at /afs/near.org/home/dir"),
        ("/afs/near.org/in/a", ": at /afs/near.org/home/dir"),
        (
            "/afs/.near.org/home/dir/../dir/a",
            ": at /afs/.near.org/home/dir",
        ),
    ] {
        let refused = try_walk(&tree, path, Follow::ALL).await;
        let Err(Error::Fileserver { what, .. }) = refused else {
            panic!("{path}: {refused:?}");
        };
        assert_eq!(what, format!("{path}{at}"));
    }
}
