//! `cellar db export`: writes the databases as text, alone or with the cell's keys.
//!
//! | databases | server | the text comes from |
//! | --- | --- | --- |
//! | in a file | stopped | the file |
//! | in a file | runs | the overseer, which copies the present state (BOZO's ExportDatabases) |
//! | in etcd | either | etcd |
//!
//! Each form is written beside its place first, so a failed export leaves an earlier one as it was.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use cellar_admin::bos::Overseer;
use cellar_celldb::{check_export, export};
use serde_json::json;

use super::{archive, failure};
use crate::block_on;
use crate::cell_directory::CellDirectory;
use crate::failure::{Failure, Outcome};
use crate::session::{As, CellOptions};
use crate::suite::print_json;
use crate::up::engine::EtcdPlace;
use crate::up::{lock, wall_clock};

/// The words of an export.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The text has users, groups, locations of volumes, devices and policies. An archive has the keys,
the list of superusers and the identity of the server, too: keep it as safe as the keys.

Examples:
  cellar db export /root/users-and-volumes --dir /srv/cell
  cellar db export /root/cell.tar --with-keys
  cellar db export /backup/cell --with-keys --keep 14     a new archive in the directory; the last 14 stay"
)]
pub(super) struct Options {
    /// The file to write; or a directory, for a file with the name of the cell and the time.
    place: PathBuf,
    /// Write an archive (tar) with the keys and the identity of the server.
    #[arg(long)]
    with_keys: bool,
    /// Keep only this number of exports in the directory, the last ones.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    keep: Option<u32>,
}

/// A finished text.
struct Text {
    rows: u64,
    /// Sentences about damage; empty if the text has every row.
    faults: Vec<String>,
}

impl Options {
    /// Runs the command.
    pub(super) fn run(
        &self,
        directory: &CellDirectory,
        place: Option<&EtcdPlace>,
        as_json: bool,
    ) -> Outcome {
        let is_directory = self.place.is_dir();
        if self.keep.is_some() && !is_directory {
            return Err(Failure::usage(format!(
                "--keep: {} is not a directory; make it first, or leave --keep out",
                self.place.display()
            )));
        }
        let name = cell_name(directory)?;
        let extension = if self.with_keys { "tar" } else { "export" };
        let file = match is_directory {
            true => self.place.join(format!("{name}-{}.{extension}", stamp())),
            false => self.place.clone(),
        };
        let text = match self.with_keys {
            false => text(directory, place, &file)?,
            true => {
                let beside = archive::beside(&file, ".text");
                let packed = text(directory, place, &beside)
                    .and_then(|text| archive::pack(directory, &beside, &file).map(|()| text));
                let _absent = fs::remove_file(&beside);
                packed?
            }
        };
        let mut removed = Vec::new();
        // A damaged export must not push an undamaged one out.
        if let Some(keep) = self.keep.filter(|_| text.faults.is_empty()) {
            removed = remove_older(&self.place, &name, extension, keep as usize)?;
        }
        if as_json {
            print_json(&json!({
                "file": file, "rows": text.rows, "faults": text.faults, "removed": removed,
            }))?;
        } else {
            println!("{} rows written to {}", text.rows, file.display());
            for old in removed {
                println!("removed {}", old.display());
            }
        }
        for fault in &text.faults {
            eprintln!(
                "cellar db: {}: {fault}",
                directory.database_file().display()
            );
        }
        match text.faults.is_empty() {
            true => Ok(()),
            false => Err(Failure::new(
                "the databases are damaged: the export has only the readable rows. Compare it with the copy beside \
                 them ('cellar db check') before you import it",
            )),
        }
    }
}

/// Writes the text to `file`.
fn text(directory: &CellDirectory, place: Option<&EtcdPlace>, file: &Path) -> Outcome<Text> {
    let whole = |rows| Text {
        rows,
        faults: Vec::new(),
    };
    if let Some(place) = place {
        let db = place.open().map_err(|cause| failure(&cause))?;
        return db.export(file).map(whole).map_err(|cause| failure(&cause));
    }
    let Ok(_lock) = lock::take(&directory.lock_file()) else {
        return of_running(directory, file).map(whole);
    };
    let exported = export(&directory.database_file(), file).map_err(|cause| failure(&cause))?;
    Ok(Text {
        rows: exported.rows,
        faults: exported.faults,
    })
}

/// Receives the text from the running server of the directory; answers the number of its rows.
fn of_running(directory: &CellDirectory, file: &Path) -> Outcome<u64> {
    let identity = directory.known_identity()?;
    let identity = identity.ok_or_else(|| Failure::new("the directory has no cell.json"))?;
    let options = CellOptions {
        dir: Some(directory.path().to_owned()),
        ..CellOptions::default()
    };
    let at = |cause: std::io::Error| Failure::new(format!("{}: {cause}", file.display()));
    let beside = archive::beside(file, ".new");
    let received = block_on(async {
        let session = options.session(None, As::Administrator).await?;
        let overseer = Overseer::new(&session.client, &session.cell, identity.address);
        let mut out = std::io::BufWriter::new(cellar_private::create(&beside).map_err(at)?);
        let done = overseer
            .export_databases(&mut |bytes| out.write_all(bytes))
            .await;
        session.end(done.map(drop).map_err(Failure::from)).await?;
        out.into_inner()
            .map_err(std::io::IntoInnerError::into_error)
            .and_then(|out| out.sync_all())
            .map_err(at)?;
        Ok(())
    });
    let finished = received.and_then(|()| {
        // The checksum of the last line proves that all bytes have arrived.
        let summary = check_export(&beside).map_err(|cause| failure(&cause))?;
        let renamed = fs::rename(&beside, file);
        renamed
            .and_then(|()| cellar_private::sync_name(file))
            .map_err(at)?;
        Ok(summary.rows())
    });
    finished.inspect_err(|_| {
        let _absent = fs::remove_file(&beside);
    })
}

/// The name of the cell, as a part of file names.
fn cell_name(directory: &CellDirectory) -> Outcome<String> {
    let identity = directory.known_identity()?;
    let name = identity.map(|identity| identity.cell.name.to_string());
    Ok(name.unwrap_or_else(|| "cell".to_owned()))
}

/// The present time as a part of file names, such as 2026-11-29T020000Z.
fn stamp() -> String {
    let now = UNIX_EPOCH + wall_clock();
    let text = humantime::format_rfc3339_seconds(now).to_string();
    text.replace(':', "")
}

/// Removes exports of the same cell and kind, except the last `keep`. Returns their paths.
fn remove_older(place: &Path, cell: &str, extension: &str, keep: usize) -> Outcome<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(place)? {
        let name = entry?.file_name();
        let Some(name) = name.to_str() else {
            continue;
        };
        let stamp = name
            .strip_prefix(cell)
            .and_then(|rest| rest.strip_prefix('-'));
        let stamp = stamp.and_then(|rest| rest.strip_suffix(extension));
        let stamp = stamp.and_then(|rest| rest.strip_suffix('.'));
        if stamp.is_some_and(is_stamp) {
            found.push(name.to_owned());
        }
    }
    // Names of one cell sort by their time.
    found.sort();
    let old = found.len().saturating_sub(keep);
    let old: Vec<_> = found
        .iter()
        .take(old)
        .map(|name| place.join(name))
        .collect();
    for file in &old {
        fs::remove_file(file)?;
    }
    Ok(old)
}

/// Whether a text has the form of [`stamp`].
fn is_stamp(text: &str) -> bool {
    const FORM: &str = "0000-00-00T000000Z";
    let fits = |(byte, form): (u8, u8)| match form {
        b'0' => byte.is_ascii_digit(),
        form => byte == form,
    };
    text.len() == FORM.len() && text.bytes().zip(FORM.bytes()).all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_exports_of_the_same_cell_stay() {
        let place = tempfile::tempdir().expect("tempdir");
        let names = [
            "a.b-2026-11-27T020000Z.tar",
            "a.b-2026-11-28T020000Z.tar",
            "a.b-2026-11-29T020000Z.tar",
            "a.b-2026-11-27T020000Z.export",
            "a.b-notes.tar",
            "a.b.c-2026-11-01T020000Z.tar",
            "other",
        ];
        for name in names {
            fs::write(place.path().join(name), "").expect("file");
        }
        let removed = remove_older(place.path(), "a.b", "tar", 2).expect("removed");
        assert_eq!(removed, [place.path().join(names[0])]);
        for name in &names[1..] {
            assert!(place.path().join(name).exists(), "{name}");
        }
        assert!(is_stamp(&stamp()), "{}", stamp());
    }
}
