//! An archive of a server with databases: their text, the keys, and the identity of the server.
//!
//! | entry | contents |
//! | --- | --- |
//! | `databases` | the text of `cellar db export` |
//! | `cell.json`, `last-start.toml` | the identity of the server and the options of its last start |
//! | `server-etc/` | keys, superusers, configuration for OpenAFS's commands |
//!
//! An import makes a directory from it. It writes `cell.json` last: the directory of an interrupted
//! import has no cell, and the import can be repeated.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Component, Path, PathBuf};

use cellar_celldb::import as import_text;
use serde_json::json;
use tar::{Archive, Builder, EntryType, Header};

use super::{failure, sentence, shown};
use crate::cell_directory::CellDirectory;
use crate::failure::{Failure, Outcome};
use crate::suite::print_json;
use crate::up::lock;

/// The entry of the databases.
const DATABASES: &str = "databases";
/// The entry that makes a directory one of a cell.
const IDENTITY: &str = "cell.json";
/// The folder of the keys.
const SERVER_ETC: &str = "server-etc";
/// Files of the directory that an archive has, if they exist.
const FILES: [&str; 2] = ["last-start.toml", IDENTITY];
/// The place of tar's mark in a file, and the mark.
const MARK: (usize, &[u8]) = (257, b"ustar");
/// The longest entry but the databases. Keys and options are small.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The most entries of an archive.
const ENTRIES_MAX: usize = 1000;

/// A path with another end.
pub(super) fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(end);
    name.into()
}

/// Whether a file is an archive, not a text. A missing file is none; its import fails.
///
/// # Errors
/// The file cannot be read.
pub(super) fn is_archive(file: &Path) -> Outcome<bool> {
    let at = |cause: io::Error| Failure::new(format!("{}: {cause}", file.display()));
    let opened = match File::open(file) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened.map_err(at)?,
    };
    let (place, mark) = MARK;
    let mut head = Vec::new();
    let end = (place + mark.len()) as u64;
    opened.take(end).read_to_end(&mut head).map_err(at)?;
    Ok(head.get(place..).is_some_and(|end| end == mark))
}

/// Writes the archive of a directory whose databases are in `text`, whole or not at all.
///
/// # Errors
/// A file cannot be read or written.
pub(super) fn pack(directory: &CellDirectory, text: &Path, to: &Path) -> Outcome {
    let unfinished = beside(to, ".new");
    let written = (|| {
        let mut archive = Builder::new(cellar_private::create(&unfinished)?);
        add(&mut archive, DATABASES, text)?;
        let mut keys: Vec<_> = fs::read_dir(directory.server_etc())?.collect::<Result<_, _>>()?;
        keys.sort_by_key(fs::DirEntry::file_name);
        for entry in keys {
            if entry.file_type()?.is_file() {
                let name = entry.file_name().to_string_lossy().into_owned();
                add(&mut archive, &format!("{SERVER_ETC}/{name}"), &entry.path())?;
            }
        }
        for name in FILES {
            let path = directory.path().join(name);
            if path.exists() {
                add(&mut archive, name, &path)?;
            }
        }
        let mut file = archive.into_inner()?;
        file.flush()?;
        file.sync_all()?;
        fs::rename(&unfinished, to)?;
        cellar_private::sync_name(to)
    })();
    written.map_err(|cause: io::Error| {
        let _absent = fs::remove_file(&unfinished);
        Failure::new(format!("{}: {cause}", to.display()))
    })
}

fn add(archive: &mut Builder<File>, name: &str, path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    let mut header = Header::new_ustar();
    header.set_metadata(&file.metadata()?);
    header.set_entry_type(EntryType::Regular);
    // All of them are for the server's account alone.
    header.set_mode(0o600);
    archive.append_data(&mut header, name, file)
}

/// Makes a directory from an archive.
///
/// # Errors
/// There is a cell in the directory; the archive is damaged or is none; a file cannot be written.
pub(super) fn import(file: &Path, directory: &CellDirectory, as_json: bool) -> Outcome {
    let at = |cause: io::Error| Failure::new(format!("{}: {cause}", file.display()));
    if directory.identity_file().exists() {
        return Err(Failure::new(format!(
            "{} holds a cell already. An archive makes a new directory. For the databases or the keys alone: \
             'tar -xf {} {DATABASES} {SERVER_ETC}', then 'cellar db import {DATABASES}', or copy the files of \
             {SERVER_ETC}",
            directory.path().display(),
            file.display()
        )));
    }
    cellar_private::directory(directory.path())?;
    let _lock = lock::take(&directory.lock_file())?;
    let text = directory.path().join("databases.import");
    let mut identity = None;
    let mut has_text = false;
    let mut archive = Archive::new(File::open(file).map_err(at)?);
    for (number, entry) in archive.entries().map_err(at)?.enumerate() {
        if number >= ENTRIES_MAX {
            return Err(Failure::new(format!(
                "{}: too many entries",
                file.display()
            )));
        }
        let mut entry = entry.map_err(at)?;
        let place = entry.path().map_err(at)?.into_owned();
        if entry.header().entry_type() != EntryType::Regular {
            return Err(foreign(file, &place));
        }
        if place == Path::new(DATABASES) {
            let mut out = cellar_private::create(&text)?;
            io::copy(&mut entry, &mut out).map_err(at)?;
            has_text = true;
            continue;
        }
        let mut bytes = Vec::new();
        let read = (&mut entry)
            .take(FILE_BYTES_MAX + 1)
            .read_to_end(&mut bytes);
        if read.map_err(at)? as u64 > FILE_BYTES_MAX {
            return Err(foreign(file, &place));
        }
        if place == Path::new(IDENTITY) {
            identity = Some(bytes);
        } else if place == Path::new(FILES[0]) {
            cellar_private::replace(&directory.path().join(FILES[0]), &bytes)?;
        } else if let Some(name) = key_file(&place) {
            cellar_private::directory(&directory.server_etc())?;
            cellar_private::replace(&directory.server_etc().join(name), &bytes)?;
        } else {
            return Err(foreign(file, &place));
        }
    }
    let (Some(identity), true) = (identity, has_text) else {
        return Err(Failure::new(format!(
            "{}: the archive is not complete, or 'cellar db export --with-keys' did not write it",
            file.display()
        )));
    };
    cellar_private::directory(&directory.databases())?;
    let imported = import_text(&text, &directory.database_file());
    let (summary, old) = imported.map_err(|cause| failure(&cause))?;
    fs::remove_file(&text)?;
    cellar_private::replace(&directory.identity_file(), &identity)?;
    if as_json {
        return print_json(
            &json!({ "databases": shown(&summary), "old": old, "directory": directory.path() }),
        );
    }
    println!("{}: {}", directory.path().display(), sentence(&summary));
    println!(
        "Never start the old server again. If this machine has another address: cellar serve --bind ADDRESS"
    );
    Ok(())
}

/// The name of a file in the folder of the keys.
fn key_file(place: &Path) -> Option<OsString> {
    let mut parts = place.components();
    match (parts.next(), parts.next(), parts.next()) {
        (Some(Component::Normal(folder)), Some(Component::Normal(name)), None)
            if folder == SERVER_ETC =>
        {
            Some(name.to_owned())
        }
        _ => None,
    }
}

fn foreign(file: &Path, place: &Path) -> Failure {
    Failure::new(format!(
        "{}: 'cellar db export --with-keys' writes no entry {}",
        file.display(),
        place.display()
    ))
}
