//! `cellar db switch`: copies the databases of a stopped server from the file to etcd, or back.
//!
//! 1. The server of the directory does not run, and the target has no databases.
//! 2. All rows are exported, written to the target, and compared there. The id stays; revisions
//!    rise.
//! 3. `etcd.json` is written, or removed. From that step on, the target counts.
//!
//! A switch that ends earlier leaves the databases where they were, and can be repeated.

use std::path::Path;

use bytes::Bytes;
use cellar_celldb::{Summary, check, check_export, export, import, read_export};
use cellar_etcd::{fill, is_empty};
use serde_json::json;

use super::{failure, sentence};
use crate::cell_directory::CellDirectory;
use crate::failure::{Failure, Outcome};
use crate::suite::print_json;
use crate::up::engine::{EtcdOptions, EtcdPlace};

/// Where the databases go.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Target {
    /// Copy the databases to an etcd cluster, which other database servers can share.
    ///
    /// Example: cellar db switch etcd --etcd http://192.0.2.1:2379,http://192.0.2.2:2379
    Etcd {
        #[command(flatten)]
        options: EtcdOptions,
    },
    /// Copy the databases from etcd to the file of this server, for a cell with one database
    /// server.
    ///
    /// Example: cellar db switch file --dir /srv/cell
    File,
}

/// Runs the command. The caller has the lock of the directory.
pub(super) fn run(directory: &CellDirectory, target: &Target, as_json: bool) -> Outcome {
    let scratch = directory.databases().join("switch.export");
    let known = EtcdPlace::load(directory)?;
    let switched = match (target, known) {
        (Target::Etcd { .. }, Some(place)) => {
            return Err(Failure::new(format!(
                "the databases are in etcd already, at {}",
                place.prefix
            )));
        }
        (Target::File, None) => {
            return Err(Failure::new(format!(
                "the databases are in {} already",
                directory.database_file().display()
            )));
        }
        (Target::Etcd { options }, None) => to_etcd(directory, options, &scratch),
        (Target::File, Some(place)) => to_file(directory, &place, &scratch),
    };
    // The export holds the accounts of the cell.
    match std::fs::remove_file(&scratch) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
            eprintln!("cellar db: {}: {cause}", scratch.display());
        }
        _ => {}
    }
    let (summary, place, next) = switched?;
    if as_json {
        return print_json(&json!({ "place": place, "databases": super::shown(&summary) }));
    }
    println!("{place}: {}", sentence(&summary));
    println!("{next}");
    Ok(())
}

/// What was copied, where it is, and what comes next.
type Switched = (Summary, String, &'static str);

fn to_etcd(directory: &CellDirectory, options: &EtcdOptions, scratch: &Path) -> Outcome<Switched> {
    let identity = directory.identity()?.ok_or_else(|| {
        let path = directory.identity_file();
        Failure::new(format!("{} is missing", path.display()))
    })?;
    let place = EtcdPlace::of_options(options, &identity)?
        .ok_or_else(|| Failure::usage("name the cluster: --etcd http://HOST:2379"))?;
    let settings = place.settings(false);
    if !is_empty(&settings).map_err(|cause| failure(&cause))? {
        return Err(Failure::new(format!(
            "etcd has databases at {} already. If another server of this cell has copied its databases there, \
             make a new directory for this one; otherwise remove them with 'etcdctl del --prefix {}/'",
            place.prefix, place.prefix
        )));
    }
    let file = directory.database_file();
    let exported = export(&file, scratch).map_err(|cause| failure(&cause))?;
    if let Some(fault) = exported.faults.first() {
        return Err(Failure::new(format!(
            "{} is damaged ({fault}): 'cellar db check' says more",
            file.display()
        )));
    }
    let mut rows: Vec<(String, Bytes, Bytes)> = Vec::new();
    let summary = read_export(scratch, |table, key, value| {
        rows.push((table.to_owned(), key, value));
    })
    .map_err(|cause| failure(&cause))?;
    let id = summary
        .id
        .ok_or_else(|| Failure::new("the export has no id"))?;
    let count = fill(&settings, id, summary.revision, rows).map_err(|cause| failure(&cause))?;
    if count as u64 != summary.rows() {
        return Err(Failure::new("the export has a row twice"));
    }
    place.save(directory)?;
    let next = "start the server; the file stays as it is, and no longer counts";
    Ok((summary, format!("etcd:{}", place.prefix), next))
}

fn to_file(directory: &CellDirectory, place: &EtcdPlace, scratch: &Path) -> Outcome<Switched> {
    let db = place.open().map_err(|cause| failure(&cause))?;
    let rows = db.export(scratch).map_err(|cause| failure(&cause))?;
    let id = db.id();
    drop(db);
    let written = check_export(scratch).map_err(|cause| failure(&cause))?;
    let file = directory.database_file();
    import(scratch, &file).map_err(|cause| failure(&cause))?;
    let summary = check(&file).map_err(|cause| failure(&cause))?;
    if summary.rows() != rows || summary.tables != written.tables || summary.id != Some(id) {
        return Err(Failure::new(format!(
            "{} does not have the rows of etcd; the databases in etcd count as before",
            file.display()
        )));
    }
    let record = directory.etcd_file();
    let removed = std::fs::remove_file(&record).and_then(|()| cellar_private::sync_name(&record));
    removed.map_err(|cause| Failure::new(format!("{}: {cause}", record.display())))?;
    let next = "start the server with '--forget etcd' if it was started with --etcd. The other database servers of \
                the cell still use etcd: stop them";
    Ok((summary, file.display().to_string(), next))
}
