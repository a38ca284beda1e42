//! Checking, exporting and importing a database that is not in use, and the copy beside one that
//! is.
//!
//! 1. A check reads everything and changes nothing.
//! 2. An export of a damaged database holds the rows that match their checksums, and says how many
//!    do not. Rows that are gone leave no trace, so a copy may have more.
//! 3. An import makes a new database in one step; the old file stays beside it under another name.
//!    Its revision is above all that there were, so that no reader of the old one takes it for
//!    that.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use redb::ReadableDatabase;

use crate::backend::{LockedFile, Shared};
use crate::embedded::{FORMAT_VERSION, appended, failed, fill, make, stored};
use crate::guard::guarded;
use crate::revision_file::RevisionFile;
use crate::text::{self, Row};
use crate::verify::{self, Summary};
use crate::{DatabaseId, Embedded, Error, Revision, sealed};

/// Faults that are told one by one.
const FAULTS_MAX: usize = 100;
/// Old files that are kept by imports.
const OLD_FILES_MAX: u32 = 1000;

/// Looks at all of a database.
///
/// # Errors
/// [`Error::Missing`], [`Error::InUse`], [`Error::Damaged`], [`Error::Older`], [`Error::Format`].
pub fn check(path: &Path) -> Result<Summary, Error> {
    let storage = open(path)?;
    let summary = verify::verify(&storage).map_err(|reason| damaged(path, reason))?;
    if summary.format > FORMAT_VERSION {
        return Err(Error::Format {
            path: path.to_path_buf(),
            format: summary.format,
        });
    }
    let newest = summary.id.and_then(|id| RevisionFile::read(path, id));
    match newest {
        Some(newest) if newest > summary.revision => Err(Error::Older {
            path: path.to_path_buf(),
            revision: summary.revision,
            newest,
        }),
        _ => Ok(summary),
    }
}

/// Looks at all of an export or a copy.
///
/// # Errors
/// [`Error::Missing`], [`Error::Damaged`].
pub fn check_export(path: &Path) -> Result<Summary, Error> {
    read(path, |_| {})
}

/// The result of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Rows that were written.
    pub rows: u64,
    /// Sentences about what is damaged, the first hundred. None: everything was written.
    pub faults: Vec<String>,
}

/// Writes a database that is not in use to a file, as text. Of a damaged one, the rows that match
/// their checksums.
///
/// # Errors
/// [`Error::Missing`], [`Error::InUse`], [`Error::Failed`]; [`Error::Damaged`] if nothing can be
/// read.
pub fn export(path: &Path, to: &Path) -> Result<Exported, Error> {
    let storage = open(path)?;
    let mut faults = Vec::new();
    let format = match verify::verify(&storage) {
        Ok(summary) => summary.format,
        Err(reason) => {
            faults.push(reason);
            FORMAT_VERSION
        }
    };
    let database = verify::open_copy(&storage).map_err(|reason| damaged(path, reason))?;
    let known = guarded(|| stored(&database)).ok().flatten();
    let noted = RevisionFile::any(path);
    let id = known.and_then(|(.., id)| id).or(noted.map(|(id, _)| id));
    let revision = known
        .map(|(_, revision, _)| revision)
        .or(noted.map(|(_, revision)| revision));
    let transaction = guarded(|| database.begin_read()).map_err(|reason| damaged(path, reason))?;
    let tables = verify::tables(&transaction).map_err(|reason| damaged(path, reason))?;
    let id = id.unwrap_or_else(DatabaseId::random);
    let rows = write(to, id, revision.unwrap_or(0), |writer| {
        for table in &tables {
            let mut outcome = Ok(());
            let read = verify::rows(&transaction, table, |key, value| {
                let row = match format {
                    FORMAT_VERSION => sealed::open(table, key, value),
                    _ => Ok(value),
                };
                match row {
                    Ok(value) => {
                        outcome = writer.row(table, key, value);
                        outcome.as_ref().map_err(ToString::to_string).copied()
                    }
                    Err(reason) => {
                        fault(&mut faults, format!("a row of table {table}: {reason}"));
                        Ok(())
                    }
                }
            });
            outcome?;
            if let Err(reason) = read {
                fault(
                    &mut faults,
                    format!("table {table} cannot be read further: {reason}"),
                );
            }
        }
        Ok(())
    })?;
    // Closing it can panic.
    let _ = guarded(|| {
        drop((transaction, database));
        Ok::<_, String>(())
    });
    Ok(Exported { rows, faults })
}

fn fault(faults: &mut Vec<String>, fault: String) {
    if faults.len() < FAULTS_MAX {
        faults.push(fault);
    }
}

/// Makes a database of an export or copy, in place of the one at `path`. Answers what is in it, and
/// where the old file is.
///
/// # Errors
/// [`Error::Missing`] or [`Error::Damaged`] about the export, [`Error::InUse`], [`Error::Failed`].
pub fn import(from: &Path, path: &Path) -> Result<(Summary, Option<PathBuf>), Error> {
    let mut rows: Vec<Row> = Vec::new();
    let mut summary = read(from, |row| rows.push(row))?;
    rows.sort_unstable_by(|one, other| (&one.0, &one.1).cmp(&(&other.0, &other.1)));
    let twice = rows
        .windows(2)
        .find(|pair| (&pair[0].0, &pair[0].1) == (&pair[1].0, &pair[1].1));
    if let Some([row, _]) = twice {
        let reason = format!("a row of table {} is in it twice", row.0);
        return Err(damaged(from, reason));
    }
    let id = summary.id.unwrap_or_else(DatabaseId::random);
    let noted = RevisionFile::any(path).map_or(0, |(_, revision)| revision);
    summary.revision = summary.revision.max(noted) + 1;
    let aside = match path.try_exists().map_err(failed)? {
        true => {
            // Held until the new one is in its place.
            let in_use = LockedFile::open(path, false)?;
            Some((link_old(path)?, in_use))
        }
        false => None,
    };
    make(path, |storage| {
        guarded(|| fill(storage, &rows, summary.revision, id)).map_err(failed)
    })?;
    RevisionFile::open(path, id)
        .map_err(failed)?
        .note(summary.revision);
    Ok((summary, aside.map(|(old, _)| old)))
}

/// Gives the file at `path` a second name.
fn link_old(path: &Path) -> Result<PathBuf, Error> {
    for number in 1..OLD_FILES_MAX {
        let old = appended(path, &format!(".old-{number}"));
        match fs::hard_link(path, &old) {
            Ok(()) => return Ok(old),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(format!("{}: {error}", old.display()))),
        }
    }
    Err(failed("too many old files beside the database"))
}

impl Embedded {
    /// Writes a copy to a file, as text, unless it is there already. One that is newer than the
    /// database, or of another one, is kept under the name with `.kept` behind it.
    ///
    /// # Errors
    /// [`Error::Failed`], [`Error::Read`], [`Error::BadRow`]. The old copy is there then.
    pub fn save_copy(&self, to: &Path) -> Result<(), Error> {
        let transaction = self.read()?;
        let revision = self.revision_of(&transaction)?;
        if let Ok(there) = check_export(to) {
            let same = there.id == Some(self.id());
            if same && there.revision == revision {
                return Ok(());
            }
            if !same || there.revision > revision {
                fs::rename(to, appended(to, ".kept")).map_err(failed)?;
            }
        }
        let unreadable = |reason: String| Error::Read(reason.into());
        let tables = verify::tables(&transaction).map_err(unreadable)?;
        write(to, self.id(), revision, |writer| {
            for table in &tables {
                let read = verify::rows(&transaction, table, |key, stored| {
                    let value = sealed::open(table, key, stored)?;
                    writer
                        .row(table, key, value)
                        .map_err(|error| error.to_string())
                });
                read.map_err(|reason| io::Error::other(format!("table {table}: {reason}")))?;
            }
            Ok(())
        })?;
        Ok(())
    }
}

/// Reads an export or a copy, and shows `each` its rows: table, key, value.
///
/// # Errors
/// [`Error::Missing`], [`Error::Damaged`].
pub fn read_export(
    path: &Path,
    mut each: impl FnMut(&str, Bytes, Bytes),
) -> Result<Summary, Error> {
    read(path, |(table, key, value)| each(&table, key, value))
}

/// Writes rows as an export: table, key, value, in the order of tables and keys. Returns their
/// number.
///
/// # Errors
/// [`Error::Failed`].
pub fn export_rows<'a>(
    to: &Path,
    id: DatabaseId,
    revision: Revision,
    rows: impl IntoIterator<Item = (&'a str, &'a [u8], &'a [u8])>,
) -> Result<u64, Error> {
    write(to, id, revision.0, |writer| {
        let mut rows = rows.into_iter();
        rows.try_for_each(|(table, key, value)| writer.row(table, key, value))
    })
}

/// Writes an export, whole or not at all; answers the number of its rows.
fn write(
    to: &Path,
    id: DatabaseId,
    revision: u64,
    rows: impl FnOnce(&mut text::Writer<BufWriter<File>>) -> io::Result<()>,
) -> Result<u64, Error> {
    let unfinished = appended(to, ".new");
    let written = (|| {
        let file = BufWriter::new(cellar_private::create(&unfinished)?);
        let mut writer = text::Writer::new(file, id, revision)?;
        rows(&mut writer)?;
        let (file, count) = writer.end()?;
        file.into_inner()?.sync_all()?;
        fs::rename(&unfinished, to)?;
        cellar_private::sync_name(to)?;
        Ok::<_, io::Error>(count)
    })();
    written.map_err(|error| {
        let _ = fs::remove_file(&unfinished);
        failed(format!("{}: {error}", to.display()))
    })
}

fn read(path: &Path, each: impl FnMut(Row)) -> Result<Summary, Error> {
    let file = File::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::Missing(path.to_path_buf()),
        _ => failed(format!("{}: {error}", path.display())),
    })?;
    text::read(BufReader::new(file), each).map_err(|reason| damaged(path, reason))
}

fn open(path: &Path) -> Result<Shared, Error> {
    Ok(Shared(Arc::new(LockedFile::open(path, false)?)))
}

fn damaged(path: &Path, reason: String) -> Error {
    Error::Damaged {
        path: path.to_path_buf(),
        reason,
    }
}
