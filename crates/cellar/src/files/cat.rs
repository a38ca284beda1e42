//! `cellar cat`: writes files to standard output as their bytes arrive.

use std::io::{self, ErrorKind, Write};

use cellar_client::{Client, Error, Follow, PathProblem};

use crate::failure::{Failure, Failures, Outcome};
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
    let mut failures = Failures::of("cellar cat");
    let mut out = std::io::stdout().lock();
    for path in &options.paths {
        let printed = print(&session.client, path, &mut out).await;
        match failures.note(printed) {
            Some(Ok(())) | None => {}
            // The reader of the pipe has closed it.
            Some(Err(cause)) if cause.kind() == ErrorKind::BrokenPipe => return failures.end(),
            Some(Err(cause)) => return Err(Failure::new(format!("standard output: {cause}"))),
        }
    }
    match out.flush() {
        Err(cause) if cause.kind() != ErrorKind::BrokenPipe => Err(cause.into()),
        _ => failures.end(),
    }
}

/// Prints a file. A failure to write the output is returned apart from failures of the file.
async fn print(client: &Client, path: &str, out: &mut impl Write) -> Outcome<io::Result<()>> {
    let node = client.find(path, Follow::ALL).await?;
    if node.is_directory() {
        let problem = PathProblem::IsADirectory;
        let path = path.to_owned();
        return Err(Error::Path { path, problem }.into());
    }
    let mut fetch = client.fetch(&node, 0, u64::MAX).await?.named(path);
    loop {
        let bytes = match fetch.next().await {
            Ok(Some(bytes)) => bytes,
            Ok(None) => break,
            Err(failure) => {
                let all = 0..node.status.length;
                return Err(client.blame_device(&node, path, all, failure).await.into());
            }
        };
        if let Err(cause) = out.write_all(&bytes) {
            return Ok(Err(cause));
        }
    }
    Ok(Ok(()))
}
