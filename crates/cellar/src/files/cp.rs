//! `cellar cp`: into AFS, out of it, and within it.
//!
//! A tree is walked in order: directories are made as they are met, files are copied by up to
//! [`super::tasks::TASKS_MAX`] tasks at a time, so that many small files do not wait for each other's round trips.
//! The first failure stops the copy; what was copied stays. Symbolic links are copied as links with
//! `-r`; mount points are not followed, and named.

mod from_afs;
mod into_afs;
mod source;

use std::sync::Arc;

use cellar_client::{Client, Follow, Node};

use super::is_afs;
use super::tasks::Tasks;
use crate::failure::{Failure, Outcome};
use crate::progress::Progress;
use crate::session::{CellOptions, Session};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// What to copy, then where to: a file or an existing directory. Paths below /afs are AFS's,
    /// others this machine's; '-' is standard input.
    #[arg(required = true, num_args = 2.., value_name = "PATH")]
    pub(super) paths: Vec<String>,
    /// Directories with all that is in them, links as links.
    #[arg(short, long)]
    recursive: bool,
    /// Keep modification times.
    #[arg(short, long)]
    preserve: bool,
    #[command(flatten)]
    pub(super) cell: CellOptions,
}

/// What all parts of a copy share.
struct Copy {
    client: Arc<Client>,
    recursive: bool,
    preserve: bool,
    progress: Progress,
}

pub(super) async fn run(session: &Session, options: Options) -> Outcome {
    let Some((target, sources)) = options.paths.split_last() else {
        return Err(Failure::usage("what is to be copied, and where to?"));
    };
    if !is_afs(target) && !sources.iter().any(|source| is_afs(source)) {
        return Err(Failure::usage(
            "none of these paths is below /afs; 'cp' copies files of this machine",
        ));
    }
    let copy = Arc::new(Copy {
        recursive: options.recursive,
        preserve: options.preserve,
        progress: Progress::bytes(Some(0)),
        client: session.client.clone(),
    });
    let outcome = if is_afs(target) {
        into_afs::copy(&copy, sources, target).await
    } else {
        from_afs::copy(&copy, sources, target).await
    };
    copy.progress.finish();
    outcome
}

/// The directory at an AFS path, if that is what is there.
async fn existing_directory(client: &Client, path: &str) -> Outcome<Option<Node>> {
    match client.find(path, Follow::ALL).await {
        Ok(node) if node.is_directory() => Ok(Some(node)),
        Ok(_) => Ok(None),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The last name of a path of either kind.
fn last_name(path: &str) -> Outcome<&str> {
    let name = path
        .trim_end_matches('/')
        .rsplit('/')
        .next()
        .unwrap_or_default();
    if name.is_empty() || name == ".." || name == "." {
        return Err(Failure::usage(format!(
            "{path}: which name shall the copy have?"
        )));
    }
    Ok(name)
}
