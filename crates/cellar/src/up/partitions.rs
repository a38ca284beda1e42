//! The partitions: every `vicepa`, `vicepb`, ... in the cell's directory. Each may be a mounted
//! disk, or a symbolic link to one.

use std::sync::Arc;

use cellar_volume::disk::FileDisk;
use cellar_volume::{Durability, Options as StoreOptions, Partition};
use cellar_wire::ids::PartitionId;

use super::damaged::{Damaged, failure};
use super::pieces::{self, New};
use crate::cell_directory::{CellDirectory, Identity};
use crate::failure::{Failure, Outcome};

/// Opens the existing partitions in their order; makes `vicepa` if there is none.
///
/// Partitions that the cell has used must be there.
pub(super) fn open(
    directory: &CellDirectory,
    identity: &Identity,
    new: &New,
    durability: Durability,
    damaged: &Damaged,
) -> Outcome<Vec<(PartitionId, Arc<Partition>)>> {
    pieces::check_partitions(directory, identity, new)?;
    let mut found = find(directory)?;
    if found.is_empty() {
        let first = PartitionId::try_from(0).map_err(Failure::new)?;
        let path = directory.partition(first);
        cellar_private::directory(&path).map_err(|cause| at(directory, first, &cause))?;
        found.push(first);
    }
    let mut opened = Vec::with_capacity(found.len());
    for id in found {
        let path = directory.partition(id);
        let disk = FileDisk::open(&path);
        let disk = disk.map_err(|cause| at(directory, id, &cause))?;
        let store = StoreOptions {
            durability,
            drop_damaged_journal: damaged.is_dropped(&path),
            ..StoreOptions::default()
        };
        let span = tracing::error_span!("partition", path = %path.display());
        let partition = span.in_scope(|| Partition::open(disk, store));
        let partition = partition.map_err(|cause| failure("partition", &path, &cause))?;
        damaged.note(&path, partition.opening());
        opened.push((id, partition));
    }
    Ok(opened)
}

fn at(directory: &CellDirectory, id: PartitionId, cause: &dyn std::fmt::Display) -> Failure {
    Failure::new(format!(
        "partition {}: {cause}",
        directory.partition(id).display()
    ))
}

pub(crate) fn find(directory: &CellDirectory) -> Outcome<Vec<PartitionId>> {
    let path = directory.path();
    let unreadable = |cause: std::io::Error| Failure::new(format!("{}: {cause}", path.display()));
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name();
        let letters = name.to_str().and_then(|name| name.strip_prefix("vicep"));
        if let Some(letters) = letters
            && letters.bytes().all(|byte| byte.is_ascii_lowercase())
            && let Some(id) = PartitionId::parse(letters)
        {
            found.push(id);
        }
    }
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_named_as_partitions_are_partitions() {
        let temporary = tempfile::tempdir().expect("tempdir");
        let directory = CellDirectory::new(temporary.path());
        let numbers = |list: Vec<PartitionId>| -> Vec<i32> {
            list.into_iter().map(PartitionId::number).collect()
        };
        assert_eq!(numbers(find(&directory).expect("none")), [0; 0]);
        for name in [
            "vicepb", "vicepaa", "vicepa", "vicep", "vicep1", "vicepA", "x",
        ] {
            std::fs::create_dir(temporary.path().join(name)).expect("directory");
        }
        assert_eq!(numbers(find(&directory).expect("three")), [0, 1, 26]);
    }
}
