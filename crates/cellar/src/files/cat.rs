//! `cellar cat`: files to standard output, as their bytes arrive.

use std::io::{ErrorKind, Write};

use cellar_client::{Error, Follow, PathProblem};

use crate::failure::{Failure, Outcome};
use crate::session::{CellOptions, Session};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Files below /afs.
    #[arg(required = true, value_name = "PATH")]
    pub(super) paths: Vec<String>,
    #[command(flatten)]
    pub(super) cell: CellOptions,
}

pub(super) async fn run(session: &Session, options: Options) -> Outcome {
    let client = &session.client;
    let mut out = std::io::stdout().lock();
    for path in &options.paths {
        let node = client.find(path, Follow::ALL).await?;
        if node.is_directory() {
            let problem = PathProblem::IsADirectory;
            return Err(Error::Path {
                path: path.clone(),
                problem,
            }
            .into());
        }
        let mut fetch = client.fetch(&node, 0, u64::MAX).await?.named(path.as_str());
        while let Some(bytes) = fetch.next().await? {
            match out.write_all(&bytes) {
                Ok(()) => {}
                // The reader has seen enough.
                Err(cause) if cause.kind() == ErrorKind::BrokenPipe => return Ok(()),
                Err(cause) => return Err(Failure::new(format!("standard output: {cause}"))),
            }
        }
    }
    match out.flush() {
        Err(cause) if cause.kind() != ErrorKind::BrokenPipe => Err(cause.into()),
        _ => Ok(()),
    }
}
