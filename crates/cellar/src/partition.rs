//! `cellar partition`: adds partitions to the file server of this machine, removes empty ones, and
//! verifies those of any server.
//!
//! A partition is `vicepX` in the server's directory: a directory, a mounted disk, or a link to
//! one. The server opens its partitions at its start. `cell.json` lists those that have been used,
//! and a start refuses if one is missing.
//!
//! 1. `add` makes the directory or the link. It works beside a running server, which must then be
//!    restarted.
//! 2. `remove` takes the lock of the server, opens the partition and counts its volumes. It forgets
//!    the partition in `cell.json` before it removes anything. After a crash between the two, the
//!    next start takes the partition as a new one.

mod remove;
mod scrub;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use cellar_wire::ids::PartitionId;
use clap::Subcommand;
use serde_json::json;

use crate::cell_directory::{CellDirectory, Identity};
use crate::default_directory;
use crate::failure::{Failure, Outcome};
use crate::output::outln;
use crate::suite::print_json;
use crate::up;

/// The directory that `mkfs` makes on a new disk.
const LOST_AND_FOUND: &str = "lost+found";
/// The file by which a store is recognised.
const STORE_ID: &str = "store-id";

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    operation: Operation,
}

#[derive(Debug, Subcommand)]
enum Operation {
    /// Add a partition to the file server of this machine.
    #[command(after_help = "The server uses the partition after a restart.

Examples:
  cellar partition add b                          a directory in the server's directory
  cellar partition add b /mnt/disk2 --dir /srv/fs2
  cellar partition add c /mnt/disk3 && cellar bos restart 192.0.2.11 -bosserver")]
    Add(AddOptions),
    /// Remove an empty partition from the stopped file server of this machine.
    #[command(
        after_help = "A partition with volumes is refused: move them away first.

Examples:
  cellar vos move -all -fromserver fs2 -frompartition b -toserver fs2 -topartition a
  systemctl stop cellar && cellar partition remove b && systemctl start cellar"
    )]
    Remove(RemoveOptions),
    /// Verify the stored data of a partition, or show the scrubs of a server.
    Scrub(scrub::Options),
}

#[derive(Debug, clap::Args)]
struct AddOptions {
    /// The partition: a, vicepa or /vicepa.
    #[arg(value_name = "PARTITION", value_parser = partition)]
    partition: PartitionId,
    /// An empty directory, for instance a mounted disk. Default: a new directory.
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
    #[command(flatten)]
    server: ServerOptions,
}

#[derive(Debug, clap::Args)]
struct RemoveOptions {
    /// The partition: a, vicepa or /vicepa.
    #[arg(value_name = "PARTITION", value_parser = partition)]
    partition: PartitionId,
    #[command(flatten)]
    server: ServerOptions,
}

/// Options that select the server.
#[derive(Debug, clap::Args)]
struct ServerOptions {
    /// Directory of the server. Default: ./cell-data, or /var/lib/cellar if only that exists.
    #[arg(long, value_name = "DIR", env = "CELLAR_DIR")]
    dir: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn partition(text: &str) -> Result<PartitionId, String> {
    PartitionId::parse(text).ok_or_else(|| "write a, vicepa or /vicepa".to_owned())
}

impl Options {
    /// The name of the operation.
    pub(crate) fn name(&self) -> &'static str {
        match self.operation {
            Operation::Add(_) => "add",
            Operation::Remove(_) => "remove",
            Operation::Scrub(_) => "scrub",
        }
    }
}

pub(crate) async fn run(options: &Options) -> Outcome {
    match &options.operation {
        Operation::Add(options) => add(options),
        Operation::Remove(options) => remove::run(options),
        Operation::Scrub(options) => scrub::run(options).await,
    }
}

/// The directory of the server and its identity.
fn server(options: &ServerOptions) -> Outcome<(CellDirectory, Identity)> {
    let directory = default_directory::named_or_default(options.dir.as_deref())?;
    let identity = directory.identity()?;
    let place = directory.path().display();
    let identity = identity.ok_or_else(|| {
        Failure::new(format!(
            "{place} holds no server: name its directory with --dir"
        ))
    })?;
    if !identity.part.has_fileserver() {
        return Err(Failure::new(format!(
            "{place} has databases alone: partitions belong to a file server"
        )));
    }
    Ok((directory, identity))
}

fn add(options: &AddOptions) -> Outcome {
    let (directory, _) = server(&options.server)?;
    let place = directory.partition(options.partition);
    let at = |cause: io::Error| Failure::new(format!("{}: {cause}", place.display()));
    if let Ok(about) = fs::symlink_metadata(&place) {
        let what = match about.is_symlink() {
            true => "a link is there already",
            false => "it is there already, and the server uses it from its next start on",
        };
        return Err(Failure::new(format!("{}: {what}", place.display())));
    }
    let holds_store = match &options.path {
        None => {
            cellar_private::directory(&place).map_err(at)?;
            false
        }
        Some(path) => {
            let (target, holds_store) = target(&directory, path)?;
            std::os::unix::fs::symlink(&target, &place).map_err(at)?;
            holds_store
        }
    };
    // A running server holds the lock.
    let is_running = up::lock::take(&directory.lock_file()).is_err();
    if options.server.json {
        return print_json(&json!({
            "partition": options.partition.to_string(),
            "path": place.display().to_string(),
            "target": options.path,
            "holds_store": holds_store,
            "restart_needed": is_running,
        }));
    }
    outln!("{} was added", place.display());
    if holds_store {
        outln!(
            "It holds a partition that was used before. After the start, 'cellar vos syncvldb' enters its volumes"
        );
    }
    match is_running {
        true => outln!(
            "The server runs, and uses it after a restart: 'systemctl restart cellar', or 'cellar bos restart \
             SERVER -bosserver'"
        ),
        false => outln!("The server uses it from its next start on"),
    }
    Ok(())
}

/// Checks a directory for a partition. Returns its absolute path, and whether it holds a store.
fn target(directory: &CellDirectory, path: &Path) -> Outcome<(PathBuf, bool)> {
    let at = |cause: io::Error| Failure::new(format!("{}: {cause}", path.display()));
    let refuse = |why: &str| Err(Failure::new(format!("{}: {why}", path.display())));
    let target = fs::canonicalize(path).map_err(at)?;
    let about = fs::metadata(&target).map_err(at)?;
    if !about.is_dir() {
        return refuse("it is not a directory");
    }
    let own = rustix::process::geteuid().as_raw();
    if about.uid() != own && about.uid() != 0 {
        return refuse("it belongs to another account: 'chown' it to the account of the server");
    }
    for id in up::partitions::find(directory)? {
        if fs::canonicalize(directory.partition(id)).is_ok_and(|other| other == target) {
            return refuse(&format!("it is partition {id} already"));
        }
    }
    let mut is_empty = true;
    let mut holds_store = false;
    for entry in fs::read_dir(&target).map_err(at)? {
        let name = entry.map_err(at)?.file_name();
        is_empty &= name == LOST_AND_FOUND;
        holds_store |= name == STORE_ID;
    }
    if !is_empty && !holds_store {
        return refuse("it is not empty; a partition needs a directory of its own");
    }
    Ok((target, holds_store))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_with_other_files_are_refused() {
        let home = tempfile::tempdir().expect("directory");
        let directory = CellDirectory::new(home.path());
        let disk = home.path().join("disk");
        fs::create_dir(&disk).expect("disk");
        fs::create_dir(disk.join(LOST_AND_FOUND)).expect("lost+found");
        let (_, holds_store) = target(&directory, &disk).expect("empty");
        assert!(!holds_store);
        fs::write(disk.join("letters.txt"), "mine").expect("file");
        assert!(target(&directory, &disk).is_err());
        fs::write(disk.join(STORE_ID), "").expect("file");
        assert!(target(&directory, &disk).expect("a store").1);
        std::os::unix::fs::symlink(&disk, home.path().join("vicepc")).expect("link");
        let again = target(&directory, &disk).expect_err("used").to_string();
        assert!(again.contains("/vicepc already"), "{again}");
        assert!(target(&directory, &home.path().join("missing")).is_err());
    }
}
