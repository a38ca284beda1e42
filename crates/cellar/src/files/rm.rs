//! `cellar rm`: removes files, links, and with `-r` trees. It never follows a mount point.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use cellar_client::path::split_last;
use cellar_client::{Client, Error, Follow, Node, PathProblem, Stop};
use tokio::task::LocalSet;

use super::tasks::Tasks;
use super::{join, printable};
use crate::failure::{Failure, Outcome};
use crate::progress::Progress;
use crate::session::{CellOptions, Session};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Files, links or (with -r) directories to remove, below /afs.
    #[arg(required = true, value_name = "PATH")]
    pub(super) paths: Vec<String>,
    /// Remove directories with all their contents.
    #[arg(short, long)]
    recursive: bool,
    /// Ignore paths that do not exist.
    #[arg(short, long)]
    pub(super) force: bool,
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
        // The root of a volume has no name in the volume. A path leads to it only through a cell's
        // name.
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
                .place(&directory, name.as_bytes(), path)?
                .remove_file()
                .await?;
        } else if options.recursive {
            let doomed = Doomed {
                parent: Arc::new(directory),
                name: Bytes::copy_from_slice(name.as_bytes()),
                directory: Arc::new(node),
                path: path.clone(),
            };
            let progress = Arc::new(Progress::names());
            let removed = LocalSet::new()
                .run_until(remove_tree(client, &progress, doomed))
                .await;
            progress.finish();
            removed?;
        } else {
            return Err(Failure::new(format!(
                "{path}: is a directory; -r removes it"
            )));
        }
    }
    Ok(())
}

/// A directory to remove with its contents.
struct Doomed {
    parent: Arc<Node>,
    name: Bytes,
    directory: Arc<Node>,
    path: String,
}

/// Removes the contents of a directory, then the directory.
fn remove_tree<'a>(
    client: &'a Arc<Client>,
    progress: &'a Arc<Progress>,
    doomed: Doomed,
) -> Pin<Box<dyn Future<Output = Outcome> + 'a>> {
    Box::pin(async move {
        let Doomed {
            parent,
            name,
            directory,
            path,
        } = doomed;
        let mut tasks = Tasks::new(Stop::default());
        for (child_name, child) in client.children(&directory).await? {
            let child_path = join(&path, &printable(&child_name));
            if child.is_directory() {
                let doomed = Doomed {
                    parent: directory.clone(),
                    name: child_name,
                    directory: Arc::new(child),
                    path: child_path,
                };
                remove_tree(client, progress, doomed).await?;
            } else if child.is_mount_point() {
                return Err(Failure::new(format!(
                    "{child_path}: a mount point; 'cellar fs rmmount {child_path}' removes it, \
                     then repeat this command"
                )));
            } else {
                let (client, directory) = (client.clone(), directory.clone());
                let progress = progress.clone();
                tasks
                    .start(async move {
                        client
                            .place(&directory, &child_name, &child_path)?
                            .remove_file()
                            .await?;
                        progress.add(1);
                        Ok(())
                    })
                    .await?;
            }
        }
        tasks.finish(Ok(())).await?;
        client.place(&parent, &name, &path)?.remove_dir().await?;
        progress.name(&path);
        progress.add(1);
        Ok(())
    })
}
