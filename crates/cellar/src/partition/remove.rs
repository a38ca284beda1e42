//! `cellar partition remove`: removes an empty partition of a stopped server.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use cellar_volume::disk::FileDisk;
use cellar_volume::{Options as StoreOptions, Partition};
use serde_json::json;

use super::{RemoveOptions, server};
use crate::failure::{Failure, Outcome};
use crate::output::outln;
use crate::suite::print_json;
use crate::up;

/// The most volumes that a refusal names.
const NAMED_MAX: usize = 5;

/// The rest of the partition's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// Nothing.
    Gone,
    /// The target of the link, with the files of an empty store.
    Target,
    /// A mounted disk.
    Mount,
}

pub(super) fn run(options: &RemoveOptions) -> Outcome {
    let (directory, mut identity) = server(&options.server)?;
    let id = options.partition;
    let place = directory.partition(id);
    let _lock = up::lock::take(&directory.lock_file()).map_err(|failure| {
        Failure::new(format!(
            "{failure}. A partition is removed from a stopped server: 'systemctl stop cellar'"
        ))
    })?;
    let there = up::partitions::find(&directory)?;
    if !there.contains(&id) {
        return Err(Failure::new(format!(
            "{}: there is no such partition. If its disk is lost, 'cellar up --new-partition' with its letter \
             forgets it",
            place.display()
        )));
    }
    if there.len() == 1 {
        return Err(Failure::new(format!(
            "{} is the only partition, and a file server needs one",
            place.display()
        )));
    }
    check_empty(&place)?;
    if let Some(used) = &mut identity.used {
        used.partitions.remove(&id);
        directory.write_identity(&identity)?;
    }
    let rest =
        dispose(&place).map_err(|cause| Failure::new(format!("{}: {cause}", place.display())))?;
    if options.server.json {
        return print_json(&json!({
            "partition": id.to_string(),
            "path": place.display().to_string(),
            "mounted": rest == Rest::Mount,
        }));
    }
    outln!("{} was removed", place.display());
    match rest {
        Rest::Gone => {}
        Rest::Target => {
            outln!("The directory that it linked to keeps the files of an empty partition")
        }
        Rest::Mount => outln!(
            "Unmount {} and remove it before the next start, which makes it a partition again otherwise",
            place.display()
        ),
    }
    Ok(())
}

/// Refuses a partition with volumes.
fn check_empty(place: &Path) -> Outcome {
    let at = |cause: &dyn std::fmt::Display| Failure::new(format!("{}: {cause}", place.display()));
    let disk = FileDisk::open(place).map_err(|cause| at(&cause))?;
    let partition = Partition::open(disk, StoreOptions::default()).map_err(|cause| at(&cause))?;
    let volumes = partition.volumes(None, NAMED_MAX + 1);
    let closed = partition.close();
    let volumes = volumes.map_err(|cause| at(&cause))?;
    closed.map_err(|cause| at(&cause))?;
    if volumes.is_empty() {
        return Ok(());
    }
    let named = volumes.iter().take(NAMED_MAX);
    let named: Vec<_> = named.map(|volume| volume.name.to_string()).collect();
    let more = match volumes.len() > NAMED_MAX {
        true => ", and more",
        false => "",
    };
    Err(at(&format!(
        "it has volumes: {}{more}. Start the server and move them: 'cellar vos move -all', or 'cellar vos remsite' and \
         'cellar vos remove' for copies",
        named.join(", ")
    )))
}

/// Removes the directory or the link of an empty partition.
fn dispose(place: &Path) -> io::Result<Rest> {
    let about = fs::symlink_metadata(place)?;
    if about.is_symlink() {
        fs::remove_file(place)?;
        return Ok(Rest::Target);
    }
    let parent = place.parent().unwrap_or(place);
    if fs::metadata(parent)?.dev() != about.dev() {
        return Ok(Rest::Mount);
    }
    fs::remove_dir_all(place)?;
    Ok(Rest::Gone)
}
