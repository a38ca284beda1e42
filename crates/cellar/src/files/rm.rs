//! `cellar rm`: names, and with `-r` trees. Never through a mount point.

use std::future::Future;
use std::pin::Pin;

use cellar_client::path::split_last;
use cellar_client::{Client, Error, Follow, Node, PathProblem};

use super::{join, printable};
use crate::failure::{Failure, Outcome};
use crate::session::{CellOptions, Session};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// What to remove, below /afs.
    #[arg(required = true, value_name = "PATH")]
    pub(super) paths: Vec<String>,
    /// Directories with all that is in them.
    #[arg(short, long)]
    recursive: bool,
    /// Do not mind what is not there.
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    pub(super) cell: CellOptions,
}

pub(super) async fn run(session: &Session, options: Options) -> Outcome {
    let client = &session.client;
    for path in &options.paths {
        let (directory, name) = split_last(path)?;
        let node = match client.find(path, Follow::NONE).await {
            Err(error) if error.is_not_found() && options.force => continue,
            other => other?,
        };
        let directory = client.find(directory, Follow::ALL).await?;
        if node.is_mount_point() {
            return Err(Failure::new(format!(
                "{path}: a mount point; 'cellar fs rmmount {path}' removes it"
            )));
        }
        // A volume's root has no name in the volume: it is reached by a cell's name only.
        if node.volume != directory.volume {
            let problem = PathProblem::NotChangeable;
            return Err(Error::Path {
                path: path.clone(),
                problem,
            }
            .into());
        }
        if !node.is_directory() {
            client
                .remove_file(&directory, name.as_bytes(), path)
                .await?;
        } else if options.recursive {
            remove_tree(client, &directory, name.as_bytes(), &node, path).await?;
        } else {
            return Err(Failure::new(format!(
                "{path}: is a directory; -r removes it"
            )));
        }
    }
    Ok(())
}

/// Removes what is in a directory, then the directory.
fn remove_tree<'a>(
    client: &'a Client,
    parent: &'a Node,
    name: &'a [u8],
    directory: &'a Node,
    path: &'a str,
) -> Pin<Box<dyn Future<Output = Outcome> + 'a>> {
    Box::pin(async move {
        let entries = client.read_directory(directory).await?;
        let fids: Vec<_> = entries.iter().map(|entry| entry.fid).collect();
        let statuses = client.statuses(directory, &fids).await?;
        for (entry, status) in entries.iter().zip(statuses) {
            let child = Node {
                volume: directory.volume.clone(),
                fid: entry.fid,
                status,
            };
            let child_path = join(path, &printable(&entry.name));
            if child.is_directory() {
                remove_tree(client, directory, &entry.name, &child, &child_path).await?;
            } else if child.is_mount_point() {
                return Err(Failure::new(format!(
                    "{child_path}: a mount point; 'cellar fs rmmount {child_path}' removes it, \
                     then go on"
                )));
            } else {
                client
                    .remove_file(directory, &entry.name, &child_path)
                    .await?;
            }
        }
        client.remove_dir(parent, name, path).await?;
        Ok(())
    })
}
