//! `cellar db`: checks, exports and imports the databases of a cell, and moves them between a file
//! and etcd.

mod archive;
mod export;
mod state;
mod switch;

use std::ops::Bound;
use std::path::PathBuf;

use cellar_celldb::{CellDb as _, Error, Summary, check, check_export, import};
use serde_json::json;

use crate::cell_directory::CellDirectory;
use crate::default_directory;
use crate::failure::{Failure, Outcome};
use crate::suite::print_json;
use crate::up::engine::EtcdPlace;
use crate::up::lock;
use switch::Target;

/// Check, export, import or move the databases of a cell; show where they are.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  cellar db check --dir /srv/cell
  cellar db export /root/users-and-volumes --dir /srv/cell
  cellar db export /backup/cell --with-keys --keep 14         (a new archive in a directory, each day)
  cellar db import /backup/cell/example.org-2026-11-29T020000Z.tar --dir /var/lib/cellar    (on a new machine)
  cellar db import /srv/cell/db/cell.copy --dir /srv/cell     (after a start that refused damaged databases)
  cellar db status --json                                     (the cluster under several database servers)
  cellar db switch etcd --etcd http://192.0.2.1:2379          (copy the databases to a cluster)")]
pub(crate) struct Options {
    #[command(subcommand)]
    what: DbCommand,
    /// The cell's directory. Default: ./cell-data.
    #[arg(long, value_name = "DIR", env = "CELLAR_DIR", global = true)]
    dir: Option<PathBuf>,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum DbCommand {
    /// Check every page and row of the databases, and of the copy beside them. Of databases in
    /// etcd: every row.
    ///
    /// Example: cellar db check --dir /srv/cell
    Check,
    /// Write the databases to a text file, or with the cell's keys to an archive. The server may
    /// run. Of damaged databases, the readable rows are written.
    ///
    /// Example: cellar db export /root/users-and-volumes --dir /srv/cell
    Export(export::Options),
    /// Make the databases again from an export, an archive, or the copy beside them. The old file
    /// is kept. An archive makes a new directory with the keys, too.
    ///
    /// Example: cellar db import /srv/cell/db/cell.copy --dir /srv/cell
    Import {
        /// The export, archive or copy to read.
        file: PathBuf,
    },
    /// Show where the databases are. For etcd: the cluster's members, leader and alarms, and the
    /// last transaction. The server may run. Exit status 1: the cluster needs attention.
    ///
    /// Example: cellar db status --json
    Status,
    /// Copy the databases of a stopped server to an etcd cluster, or from there to its file.
    ///
    /// Example: cellar db switch etcd --etcd http://192.0.2.1:2379 --dir /srv/cell
    Switch {
        #[command(subcommand)]
        target: Target,
    },
}

pub(crate) fn run(options: &Options) -> Outcome {
    let directory = default_directory::named_or_default(options.dir.as_deref())?;
    if let DbCommand::Import { file } = &options.what {
        if archive::is_archive(file)? {
            return archive::import(file, &directory, options.json);
        }
        make_lost_folder(&directory)?;
    }
    if !directory.databases().is_dir() {
        return Err(Failure::new(format!(
            "{} holds no databases of a cell",
            directory.path().display()
        )));
    }
    if let DbCommand::Status = options.what {
        return state::run(&directory, options.json);
    }
    let place = EtcdPlace::load(&directory)?;
    if let DbCommand::Export(export) = &options.what {
        return export.run(&directory, place.as_ref(), options.json);
    }
    let _lock = lock::take(&directory.lock_file())?;
    let path = directory.database_file();
    match &options.what {
        DbCommand::Status | DbCommand::Export(_) => Ok(()),
        DbCommand::Switch { target } => switch::run(&directory, target, options.json),
        DbCommand::Import { .. } if place.is_some() => Err(Failure::new(
            "the databases are in etcd: 'cellar db switch file' brings them back to the file; import there, and \
             'cellar db switch etcd' copies them to an empty place in etcd",
        )),
        DbCommand::Check => match &place {
            Some(place) => check_etcd(place, options.json),
            None => check_both(&directory, options.json),
        },
        DbCommand::Import { file } => {
            let (summary, old) = import(file, &path).map_err(|cause| failure(&cause))?;
            if options.json {
                return print_json(&json!({ "databases": shown(&summary), "old": old }));
            }
            println!("{}: {}", path.display(), sentence(&summary));
            if let Some(old) = old {
                println!("the old file is kept as {}", old.display());
            }
            Ok(())
        }
    }
}

/// Makes the folder of the databases again, if a database server was lost and only its `cell.json`
/// has come back.
fn make_lost_folder(directory: &CellDirectory) -> Outcome {
    let identity = directory
        .identity()
        .map_err(|cause| Failure::new(cause.to_string()))?;
    if !identity.is_some_and(|identity| identity.part.has_databases()) {
        return Ok(());
    }
    let folder = directory.databases();
    cellar_private::directory(&folder)
        .map_err(|cause| Failure::new(format!("cannot make {}: {cause}", folder.display())))
}

/// Reads all rows in etcd. Opening them does so; the export meets damaged ones.
fn check_etcd(place: &EtcdPlace, as_json: bool) -> Outcome {
    let db = place.open().map_err(|cause| failure(&cause))?;
    let (view, _) = db.snapshot().map_err(|cause| failure(&cause))?;
    let tables = db.tables();
    for (table, _) in &tables {
        let all = (Bound::Unbounded, Bound::Unbounded);
        let visited = view.visit(*table, all, &mut |_, _| true);
        visited.map_err(|cause| failure(&cause))?;
    }
    let tables = tables.into_iter();
    let summary = Summary {
        format: 1,
        revision: db.revision().0,
        id: Some(db.id()),
        tables: tables
            .map(|(table, rows)| (table.name().to_owned(), rows as u64))
            .collect(),
    };
    if as_json {
        return print_json(&json!({ "databases": shown(&summary) }));
    }
    println!("etcd:{}: {}", place.prefix, sentence(&summary));
    Ok(())
}

fn check_both(directory: &CellDirectory, as_json: bool) -> Outcome {
    let files = [
        (
            "databases",
            directory.database_file(),
            check(&directory.database_file()),
        ),
        (
            "copy",
            directory.database_copy(),
            check_export(&directory.database_copy()),
        ),
    ];
    let mut shown_all = serde_json::Map::new();
    let mut bad = None;
    for (what, path, result) in files {
        match result {
            Ok(summary) if as_json => {
                shown_all.insert(what.to_owned(), shown(&summary));
            }
            Ok(summary) => println!("{}: {}", path.display(), sentence(&summary)),
            // A cell that has not run long has no copy.
            Err(Error::Missing(_)) if what == "copy" => {}
            Err(cause) => {
                let failure = failure(&cause);
                eprintln!("cellar db: {failure}");
                bad = Some(failure);
            }
        }
    }
    if as_json {
        print_json(&serde_json::Value::Object(shown_all))?;
    }
    Failure::if_any(bad.is_some())
}

/// Adds to a failure the advice how to recover.
pub(crate) fn failure(cause: &Error) -> Failure {
    let hint = match cause {
        Error::Damaged { .. } | Error::Older { .. } | Error::BadRow { .. } => {
            ". 'cellar db check' checks the copy beside it, and 'cellar db import' makes the databases again \
             from that copy or from an export"
        }
        _ => "",
    };
    Failure::new(format!("{cause}{hint}"))
}

fn sentence(summary: &Summary) -> String {
    let Summary {
        revision, tables, ..
    } = summary;
    format!(
        "undamaged; {} rows in {} tables, after transaction {revision}",
        summary.rows(),
        tables.len()
    )
}

fn shown(summary: &Summary) -> serde_json::Value {
    let tables: serde_json::Map<_, _> = summary
        .tables
        .iter()
        .map(|(name, rows)| (name.clone(), (*rows).into()))
        .collect();
    json!({ "rows": summary.rows(), "transaction": summary.revision, "tables": tables })
}
