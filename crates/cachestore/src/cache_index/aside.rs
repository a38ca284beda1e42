//! Bytes that no server takes any more: listing them, and putting them aside.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::{ASIDE, Index, LOG, Unstored, path, sync_all};
use crate::backing_store::writes_reach_disk;
use crate::index_entry::Replayed;
use crate::index_record::Record;

impl Index {
    /// Moves a separate file aside, with a text beside it, and drops it from the index. A
    /// repetition after a crash does the remaining steps. Returns the new path.
    ///
    /// # Errors
    /// The file stays in the cache.
    pub(crate) fn put_aside(&self, number: u64, why: &str) -> io::Result<PathBuf> {
        let mut state = self.state.lock();
        let entry = state.entries.get(&number);
        let entry = entry.ok_or_else(|| io::Error::other("nothing is known of it"))?;
        let (cell, fid) = &entry.place;
        let dirty = entry.dirty.clone().unwrap_or_default();
        let name = format!(
            "{cell}-{}.{}.{}-{number}",
            fid.volume.0, fid.vnode.0, fid.uniquifier.0
        );
        let aside = self.directory.join(ASIDE).join(name);
        let mut text = format!(
            "cell {cell}\nfid {fid}\nwriter {}\nmodified {}\nversion {}\nlength {}\nwhy {why}\n",
            match dirty.writer {
                u32::MAX => "anybody".to_owned(),
                uid => format!("user {uid}"),
            },
            dirty.modified.0,
            dirty.version,
            dirty.length,
        );
        if let Some(create) = &entry.local_create {
            let name = String::from_utf8_lossy(&create.name);
            let (directory, uniquifier) = create.directory;
            text.push_str(&format!(
                "made as {name} in {}.{}.{}\n",
                fid.volume.0, directory.0, uniquifier.0
            ));
        }
        for (start, end) in dirty.ranges.iter() {
            text.push_str(&format!("written {start} {end}\n"));
        }
        if let Some(cut) = dirty.cut {
            text.push_str(&format!("cut {cut}\n"));
        }
        if !writes_reach_disk() {
            return Ok(aside);
        }
        let mut about = cellar_private::create(&aside.with_added_extension("txt"))?;
        about.write_all(text.as_bytes())?;
        about.sync_data()?;
        if writes_reach_disk() {
            let file = path(&self.directory, number);
            match sync_all(&file).and_then(|()| std::fs::rename(&file, &aside)) {
                // There are no bytes, only a length; or the file was moved before a crash.
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
            // A crash could undo the rename but keep the record. Then the file would be removed.
            sync_all(&self.directory.join(ASIDE))?;
        }
        self.write(&mut state, &[Record::Gone { number }]);
        Ok(aside)
    }
}

/// The unstored changes of the cache in `directory`, which may be in use, and the texts about files
/// that were put aside.
///
/// # Errors
/// `directory` is not a cache, or cannot be read.
pub fn unstored_in(directory: &Path) -> io::Result<(Vec<Unstored>, Vec<PathBuf>)> {
    let replayed = Replayed::of_cache(directory, &std::fs::read(directory.join(LOG))?)?;
    let mut unstored: Vec<_> = replayed
        .entries
        .values()
        .filter_map(|entry| {
            let mut dirty = entry.dirty.clone()?;
            dirty.put_back();
            Some(Unstored {
                cell: entry.place.0.to_string(),
                fid: entry.place.1,
                writer: dirty.writer,
                bytes: dirty.ranges.bytes(),
                version: dirty.version,
                torn: dirty.torn,
            })
        })
        .collect();
    unstored.sort_by_key(|one| (one.cell.clone(), one.fid));
    Ok((unstored, aside_in(directory)?))
}

/// The paths of the texts about files that were put aside.
///
/// # Errors
/// The directory cannot be read.
pub fn aside_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut aside = Vec::new();
    for entry in std::fs::read_dir(directory.join(ASIDE))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "txt") {
            aside.push(path);
        }
    }
    aside.sort();
    Ok(aside)
}
