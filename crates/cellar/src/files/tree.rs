//! Walks over trees: each directory comes before its contents, and names are in order. Links are
//! visited and not followed. [`Across`] says whether mount points are followed.
//!
//! A walk ends although mount points can form cycles:
//!
//! 1. A volume that is on the way from the top to a mount point is not entered again there. The
//!    mount point is reported, as find(1) reports a loop of the file system.
//! 2. With [`Across::Once`], a volume is entered at its first mount point only, as du(1) counts a
//!    directory once.
//! 3. A way has at most [`LINKS_MAX`] mount points, as a path has.

use std::collections::HashSet;
use std::sync::Arc;

use cellar_client::{CellName, Client, LINKS_MAX, Node};
use cellar_wire::ids::VolumeId;

use super::{join, ls::named, printable};
use crate::failure::{Failure, Failures, Outcome};

/// The mount points that a walk follows.
#[derive(Debug)]
pub(super) enum Across {
    /// None: the walk stays in the volume.
    Nothing,
    /// Each one, except for cycles.
    All,
    /// The first one of each volume. The set has the volumes that were entered.
    Once(HashSet<(CellName, VolumeId)>),
}

impl Across {
    /// Whether a mount point is followed to this volume.
    fn enters(&mut self, volume: &(CellName, VolumeId)) -> bool {
        match self {
            Self::Nothing => false,
            Self::All => true,
            Self::Once(entered) => entered.insert(volume.clone()),
        }
    }
}

/// The option of commands that walk over trees.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct StayOption {
    /// Stay in the volume of PATH: follow no mount points below it.
    #[arg(short = 'x', long, visible_alias = "xdev")]
    pub(super) one_file_system: bool,
}

/// One vnode of a tree.
pub(super) struct Visit {
    pub(super) path: String,
    /// The last name of the path.
    pub(super) name: Vec<u8>,
    /// The vnode. For a mount point that is followed, the root directory behind it.
    pub(super) node: Node,
    /// The name is a mount point below the top, followed or not.
    pub(super) is_mount_point: bool,
    /// 0 for the top.
    pub(super) depth: usize,
    /// The volumes on the way from the top, the own volume first.
    volumes: Arc<Way>,
}

/// A volume, and those above it.
struct Way {
    volume: (CellName, VolumeId),
    above: Option<Arc<Way>>,
    mount_points: u32,
}

impl Way {
    fn has(&self, volume: &(CellName, VolumeId)) -> bool {
        let mut next = Some(self);
        while let Some(way) = next {
            if way.volume == *volume {
                return true;
            }
            next = way.above.as_deref();
        }
        false
    }
}

/// The identity of a node's volume.
fn volume_of(node: &Node) -> (CellName, VolumeId) {
    (node.volume.cell.clone(), node.volume.id)
}

/// Visits a vnode and, if it is a directory, everything below it, down to `depth_max` levels. A
/// directory that cannot be read is reported and skipped. A mount point that cannot be followed is
/// reported and visited as it is.
pub(super) async fn walk(
    client: &Client,
    (path, top): (&str, Node),
    depth_max: usize,
    across: &mut Across,
    failures: &mut Failures,
    mut visit: impl AsyncFnMut(&Visit, &mut Failures) -> Outcome,
) -> Outcome {
    let name = path.trim_end_matches('/').rsplit('/').next();
    let volume = volume_of(&top);
    if let Across::Once(entered) = across {
        entered.insert(volume.clone());
    }
    let mut todo = vec![Visit {
        path: path.to_owned(),
        name: name.unwrap_or_default().into(),
        is_mount_point: top.is_mount_point(),
        node: top,
        depth: 0,
        volumes: Arc::new(Way {
            volume,
            above: None,
            mount_points: 0,
        }),
    }];
    while let Some(mut at) = todo.pop() {
        if at.is_mount_point && at.depth > 0 {
            let entered = enter(client, &mut at, across).await;
            failures.note(entered);
        }
        visit(&at, failures).await?;
        if !at.node.is_directory() || at.depth >= depth_max {
            continue;
        }
        let children = client.children(&at.node).await;
        let children = children.map_err(|error| named(&at.path, error));
        let Some(mut children) = failures.note(children) else {
            continue;
        };
        children.sort_by(|a, b| b.0.cmp(&a.0));
        let visit = |(name, node): (bytes::Bytes, Node)| Visit {
            path: join(&at.path, &printable(&name)),
            name: name.to_vec(),
            is_mount_point: node.is_mount_point(),
            node,
            depth: at.depth + 1,
            volumes: at.volumes.clone(),
        };
        todo.extend(children.into_iter().map(visit));
    }
    Ok(())
}

/// Replaces a mount point by the root directory behind it, if the walk goes there.
async fn enter(client: &Client, at: &mut Visit, across: &mut Across) -> Outcome {
    if matches!(across, Across::Nothing) {
        return Ok(());
    }
    let root = client.mounted_root(&at.node).await;
    let root = root.map_err(|error| Failure::new(format!("{}: {error}", at.path)))?;
    let volume = volume_of(&root);
    let mount_points = at.volumes.mount_points + 1;
    if !across.enters(&volume) {
        return Ok(());
    }
    if at.volumes.has(&volume) || mount_points > LINKS_MAX {
        let name = &root.volume.name;
        let problem = format!(
            "{}: the mount point leads back to volume {name}, and is not followed",
            at.path
        );
        return Err(Failure::new(problem));
    }
    at.node = root;
    at.volumes = Arc::new(Way {
        volume,
        above: Some(at.volumes.clone()),
        mount_points,
    });
    Ok(())
}
