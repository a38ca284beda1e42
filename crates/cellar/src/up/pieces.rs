//! A start refuses a cell with a missing piece. Options declare that a piece is new.
//!
//! `cell.json` lists the pieces that a cell has used ([`Used`]). A cell of a release that did not
//! record them is taken over at its first start. It must have the pieces of every complete cell.

use std::path::Path;

use cellar_volume::StoreId;
use cellar_wire::ids::PartitionId;

use super::partitions;
use crate::cell_directory::{CellDirectory, Identity, Used, letters};
use crate::failure::{Failure, Outcome};

/// The files in `server-etc` whose loss is noticed. The others are written at each start.
const TRUSTED: [&str; 6] = [
    "KeyFileExt",
    "rxkad.keytab",
    "UserList",
    "krb.conf",
    "krb.excl",
    "OsdKey",
];

/// Pieces that are new although the cell has been used. Otherwise a missing piece is refused.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct New {
    /// Accept what is at vicepLETTER as a new partition, or forget the partition if nothing is
    /// there. Removes nothing.
    #[arg(long, value_name = "LETTER", value_parser = partition)]
    new_partition: Vec<PartitionId>,
    /// Accept the databases in db/ as new, or make new ones if there are none.
    #[arg(long)]
    new_database: bool,
    /// Accept the present contents of server-etc, and make a key if there is none.
    #[arg(long)]
    new_server_etc: bool,
    /// Make a new cell.json from the command line, for the existing databases and partitions.
    #[arg(long)]
    new_cell: bool,
}

fn partition(letters: &str) -> Result<PartitionId, String> {
    let known = letters.bytes().all(|byte| byte.is_ascii_lowercase());
    let id = known.then(|| PartitionId::parse(letters)).flatten();
    id.ok_or_else(|| format!("'{letters}' is not a partition: a to iv"))
}

/// Checks whether a new cell can begin in the directory. Returns whether the directory holds pieces
/// of a cell that are taken over with --new-cell. Without that option such pieces are refused.
pub(super) fn take_over(directory: &CellDirectory, new: &New) -> Outcome<bool> {
    let Some(piece) = existing_piece(directory)? else {
        return Ok(false);
    };
    if new.new_cell {
        return Ok(true);
    }
    let missing = directory.identity_file();
    Err(Failure::new(format!(
        "{} is missing, but {piece} exists: restore cell.json from a copy ({} is one). If there is none, \
         'cellar up --new-cell --cell NAME' makes one for the existing pieces",
        missing.display(),
        directory.public_identity_file().display()
    )))
}

/// A piece of a cell in the directory, if any.
fn existing_piece(directory: &CellDirectory) -> Outcome<Option<String>> {
    let there = |path: &Path| path.exists().then(|| path.display().to_string());
    if let Some(database) = there(&directory.database_file()) {
        return Ok(Some(database));
    }
    for id in partitions::find(directory)? {
        if holds_store(&directory.partition(id)) {
            return Ok(Some(directory.partition(id).display().to_string()));
        }
    }
    Ok(None)
}

fn holds_store(path: &Path) -> bool {
    ["store-id", "base"]
        .iter()
        .any(|name| path.join(name).exists())
}

/// Refuses partitions other than those that the cell has used.
pub(super) fn check_partitions(
    directory: &CellDirectory,
    identity: &Identity,
    new: &New,
) -> Outcome {
    let refuse = |path: &Path, id: PartitionId, why: &str| {
        Err(Failure::new(format!(
            "partition {}: {why} If it is lost or was replaced on purpose, start with: \
             'cellar up --new-partition {}'",
            path.display(),
            letters(id)
        )))
    };
    let Some(used) = &identity.used else {
        return check_old_partitions(directory, identity, new);
    };
    for (&id, known) in &used.partitions {
        if new.new_partition.contains(&id) {
            continue;
        }
        let path = directory.partition(id);
        let there = StoreId::in_folder(&path);
        match there.map_err(|cause| Failure::new(format!("{}: {cause}", path.display())))? {
            Some(there) if there == *known => {}
            Some(there) => {
                let why = format!(
                    "this is not the partition that the cell has used ({there}, not {known}): are disks \
                     mounted in each other's place?"
                );
                return refuse(&path, id, &why);
            }
            None if holds_store(&path) => {
                return refuse(
                    &path,
                    id,
                    "its file store-id is missing: restore it from a copy.",
                );
            }
            None => {
                return refuse(
                    &path,
                    id,
                    "it has been used, and its files are missing: is its disk mounted?",
                );
            }
        }
    }
    Ok(())
}

/// For a cell of an older release: its first volumes are on some partition.
fn check_old_partitions(directory: &CellDirectory, identity: &Identity, new: &New) -> Outcome {
    let there = partitions::find(directory)?;
    let any = there
        .iter()
        .any(|id| holds_store(&directory.partition(*id)) || new.new_partition.contains(id));
    if !identity.complete || any || !new.new_partition.is_empty() {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{}: the cell has been used, and all its partitions are missing: are their disks mounted? If they are \
         lost, start with: 'cellar up --new-partition a'",
        directory.path().display()
    )))
}

/// How databases are opened. They may be made if they never existed or are declared new.
pub(super) fn opening(identity: &Identity, new: &New) -> cellar_celldb::Opening {
    let known = identity.used.as_ref().and_then(|used| used.database);
    cellar_celldb::Opening {
        create: new.new_database || (known.is_none() && !identity.complete),
        older: new.new_database,
    }
}

/// Refuses databases other than those that the cell has used.
pub(super) fn check_database(
    identity: &Identity,
    new: &New,
    there: cellar_celldb::DatabaseId,
) -> Result<(), String> {
    match identity.used.as_ref().and_then(|used| used.database) {
        Some(known) if known != there && !new.new_database => Err(format!(
            "these are not the databases that the cell has used ({there}, not {known}): restore those, or, \
             if these are intended, start with: 'cellar up --new-database'"
        )),
        _ => Ok(()),
    }
}

/// Refuses a `server-etc` that lacks a file of the last start.
pub(super) fn check_trust(directory: &CellDirectory, identity: &Identity, new: &New) -> Outcome {
    let trust = identity.used.iter().flat_map(|used| &used.trust);
    for name in trust.filter(|_| !new.new_server_etc) {
        let path = directory.server_etc().join(name);
        if !path.exists() {
            return Err(Failure::new(format!(
                "{} existed at the last start and is missing: restore it from a copy of server-etc. \
                 'cellar up --new-server-etc' accepts the present files",
                path.display()
            )));
        }
    }
    Ok(())
}

/// Returns whether a key may be made for a cell without one: a new cell, or one whose server-etc is
/// declared new.
pub(super) fn may_make_key(identity: &Identity, new: &New) -> bool {
    new.new_server_etc || !identity.complete
}

/// The existing files of `server-etc` whose loss is noticed.
pub(super) fn trusted(directory: &CellDirectory) -> impl Iterator<Item = String> {
    let etc = directory.server_etc();
    let there = TRUSTED
        .into_iter()
        .filter(move |name| etc.join(name).exists());
    there.map(str::to_owned)
}

/// The pieces that the next start must find.
pub(super) fn used(
    directory: &CellDirectory,
    partitions: impl Iterator<Item = (PartitionId, Option<StoreId>)>,
    database: Option<cellar_celldb::DatabaseId>,
) -> Used {
    let known = partitions.filter_map(|(id, store)| store.map(|store| (id, store)));
    Used {
        partitions: known.collect(),
        database,
        trust: trusted(directory).collect(),
    }
}
