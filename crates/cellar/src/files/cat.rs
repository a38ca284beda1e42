//! `cellar cat`: files to standard output, as their bytes arrive.

use std::io::{ErrorKind, Write};

use cellar_client::{Error, Follow, PathProblem};

use crate::failure::{Failure, Outcome};
use crate::session::CellOptions;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Files below /afs.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    #[command(flatten)]
    cell: CellOptions,
}

pub(crate) async fn run(options: Options) -> Outcome {
    let session = super::session(&options.cell, &options.paths).await?;
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
