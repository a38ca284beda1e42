//! Walks over trees: each directory comes before its contents, and names are in order. Mount points
//! and links are visited and not followed.

use cellar_client::{Client, Node};

use super::{join, ls::named, printable};
use crate::failure::{Failures, Outcome};

/// One vnode of a tree.
pub(super) struct Visit {
    pub(super) path: String,
    /// The last name of the path.
    pub(super) name: Vec<u8>,
    pub(super) node: Node,
    /// 0 for the top.
    pub(super) depth: usize,
}

/// Visits a vnode and, if it is a directory, everything below it, down to `depth_max` levels. A
/// directory that cannot be read is reported and skipped.
pub(super) async fn walk(
    client: &Client,
    path: &str,
    top: Node,
    depth_max: usize,
    failures: &mut Failures,
    mut visit: impl AsyncFnMut(&Visit, &mut Failures) -> Outcome,
) -> Outcome {
    let name = path.trim_end_matches('/').rsplit('/').next();
    let mut todo = vec![Visit {
        path: path.to_owned(),
        name: name.unwrap_or_default().into(),
        node: top,
        depth: 0,
    }];
    while let Some(at) = todo.pop() {
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
            node,
            depth: at.depth + 1,
        };
        todo.extend(children.into_iter().map(visit));
    }
    Ok(())
}
