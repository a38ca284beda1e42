//! `cellar mkdir`, `ln` and `mv`.

use cellar_client::path::split_last;
use cellar_client::{Client, Error, Follow, Node};
use cellar_wire::rxafs::AfsStoreStatus;

use super::join;
use crate::failure::{Failure, Outcome};
use crate::session::{CellOptions, Session};

#[derive(Debug, clap::Args)]
pub(crate) struct MkdirOptions {
    /// Directories to make, below /afs.
    #[arg(required = true, value_name = "PATH")]
    pub(super) paths: Vec<String>,
    /// Also make missing parent directories, and accept directories that exist.
    #[arg(short, long)]
    parents: bool,
    /// Mode bits, in octal.
    #[arg(short, long, value_name = "MODE", value_parser = octal, default_value = "755")]
    mode: u32,
    #[command(flatten)]
    pub(super) cell: CellOptions,
}

#[derive(Debug, clap::Args)]
pub(crate) struct LnOptions {
    /// The file that the link leads to: any text with -s, otherwise a file of the same directory.
    target: String,
    /// The link to make, below /afs.
    pub(super) path: String,
    /// Make a symbolic link.
    #[arg(short, long)]
    symbolic: bool,
    #[command(flatten)]
    pub(super) cell: CellOptions,
}

#[derive(Debug, clap::Args)]
pub(crate) struct MvOptions {
    /// The file or directory to move, below /afs.
    pub(super) from: String,
    /// The new name, or an existing directory to move it into.
    to: String,
    #[command(flatten)]
    pub(super) cell: CellOptions,
}

fn octal(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err(format!("'{text}' is not an octal mode, for example 755")),
    }
}

/// The status of a new file or directory.
pub(super) fn new_status(mode: u32) -> AfsStoreStatus {
    AfsStoreStatus {
        unix_mode: Some(mode),
        client_mod_time: Some(super::now()),
        ..AfsStoreStatus::default()
    }
}

pub(super) async fn mkdir(session: &Session, options: MkdirOptions) -> Outcome {
    for path in &options.paths {
        if options.parents {
            make_with_parents(&session.client, path, options.mode).await?;
        } else {
            let (directory, name) = split_last(path)?;
            let directory = session.client.find(directory, Follow::ALL).await?;
            let status = new_status(options.mode);
            session
                .client
                .place(&directory, name.as_bytes(), path)?
                .make_dir(status)
                .await?;
        }
    }
    Ok(())
}

/// Returns the directory at `path`; makes it and all its missing parents.
pub(super) async fn make_with_parents(
    client: &Client,
    path: &str,
    mode: u32,
) -> Result<Node, Error> {
    let mut missing = Vec::new();
    let mut known = path.trim_end_matches('/');
    let mut node = loop {
        match client.find(known, Follow::ALL).await {
            Ok(node) => break node,
            Err(error) if error.is_not_found() => {
                let (directory, name) = split_last(known)?;
                missing.push(name);
                known = directory;
            }
            Err(error) => return Err(error),
        }
    };
    let mut here = known.to_owned();
    for name in missing.into_iter().rev() {
        here = join(&here, name);
        node = client
            .place(&node, name.as_bytes(), &here)?
            .make_dir(new_status(mode))
            .await?;
    }
    Ok(node)
}

pub(super) async fn ln(session: &Session, options: LnOptions) -> Outcome {
    let client = &session.client;
    let (directory, name) = split_last(&options.path)?;
    let directory = client.find(directory, Follow::ALL).await?;
    let place = client.place(&directory, name.as_bytes(), &options.path)?;
    if options.symbolic {
        let status = new_status(0o777);
        let target = options.target.into_bytes().into();
        place.symlink(target, status).await?;
        return Ok(());
    }
    let existing = client.find(&options.target, Follow::MOUNTS).await?;
    if existing.volume != directory.volume {
        return Err(Failure::new(format!(
            "{}: a hard link must be in the same directory as the file; -s makes a symbolic link",
            options.path
        )));
    }
    place.link(existing.fid).await?;
    Ok(())
}

pub(super) async fn mv(session: &Session, options: MvOptions) -> Outcome {
    let client = &session.client;
    let (from_directory, name) = split_last(&options.from)?;
    let (to_directory, to_name) = match client.find(&options.to, Follow::ALL).await {
        Ok(node) if node.is_directory() => (options.to.as_str(), name),
        Ok(_) => split_last(&options.to)?,
        Err(error) if error.is_not_found() => split_last(&options.to)?,
        Err(error) => return Err(error.into()),
    };
    let from = client.find(from_directory, Follow::ALL).await?;
    let to = client.find(to_directory, Follow::ALL).await?;
    if from.volume != to.volume {
        return Err(Failure::new(format!(
            "{}: not in the same volume as {}; copy it with 'cellar cp -r', then remove it",
            options.to, options.from
        )));
    }
    client
        .rename(
            (&from, name.as_bytes()),
            (&to, to_name.as_bytes()),
            &options.from,
        )
        .await?;
    Ok(())
}
