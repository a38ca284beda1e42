//! Older bytes of files, and removed files, that archives keep: lists, and restores.

use cellar_client::{Follow, Node, OlderBytes};
use cellar_wire::afsosd::{ListOlder, OlderFile, OlderVersion};
use cellar_wire::ids::{AfsTime, Fid};
use cellar_wire::rxafs::AfsStoreStatus;
use cellar_wire::{AbortCode, Procedure};
use serde::Serialize;

use super::Files;
use crate::error::{Error, Result, is_unknown_there};
use crate::hsm::Archives;

/// Older bytes that can be restored.
#[derive(Clone, Debug, Serialize)]
pub struct Older {
    /// The name of the file.
    pub name: String,
    /// The file that had the bytes.
    pub fid: String,
    /// When that file was removed, in seconds since 1970; `None`: it is there.
    pub removed: Option<u64>,
    /// The data version of the bytes.
    pub data_version: u64,
    /// Whether they are the last bytes of a removed file.
    pub last: bool,
    /// Length in bytes.
    pub length: u64,
    /// When the first copy was made, in seconds since 1970.
    pub made: u64,
    /// Until when they are kept, in seconds since 1970; `None`: the server removes none.
    pub until: Option<u64>,
    /// The numbers of the archives that have them.
    pub archives: Vec<u32>,
    #[serde(skip)]
    file: Former,
    #[serde(skip)]
    bytes: OlderBytes,
}

/// The attributes of a file that had older bytes.
#[derive(Clone, Copy, Debug)]
struct Former {
    mode: u32,
    owner: cellar_wire::ids::ViceId,
    modified: AfsTime,
}

impl Older {
    fn of(name: &str, file: &OlderFile, version: &OlderVersion) -> Self {
        let is_removed = file.removed > 0;
        Self {
            name: name.to_owned(),
            fid: file.fid.to_string(),
            removed: is_removed.then_some(file.removed),
            data_version: version.data_version,
            last: is_removed && version.data_version == file.data_version,
            length: version.length,
            made: version.made,
            until: (version.until > 0).then_some(version.until),
            archives: version.archives.to_vec(),
            file: Former {
                mode: file.mode & 0o777,
                owner: file.owner,
                modified: file.modified,
            },
            bytes: OlderBytes {
                fid: file.fid,
                volume: version.volume,
                version: version.version,
                length: version.length,
            },
        }
    }

    /// The order of restores: the last one is the newest.
    fn age(&self) -> (u64, u64, u64) {
        (
            self.until.unwrap_or(self.made),
            self.made,
            self.data_version,
        )
    }
}

/// The target of a restore.
struct Target {
    directory: Node,
    name: String,
    /// The file, if there is one.
    file: Option<Node>,
}

/// The result of a restore.
#[derive(Clone, Debug, Serialize)]
pub struct Restored {
    /// The path that has the bytes now.
    pub path: String,
    /// Whether the file is new.
    pub new: bool,
    /// The restored bytes.
    #[serde(flatten)]
    pub older: Older,
}

impl Files<'_> {
    /// The older bytes under a path, the oldest first. For a directory: of the files that were
    /// removed from it; with `all`, from the whole volume. Otherwise: of the file, and of files of
    /// that name that were removed.
    ///
    /// # Errors
    /// The path does not exist, the caller may not read it, or the file server is not Cellar's.
    pub async fn older(&self, path: &str, all: bool) -> Result<Vec<Older>> {
        let (node, name) = match self.find(path).await {
            Ok(node) if node.is_directory() => (node, None),
            Ok(_) => {
                let (directory, name) = self.parent(path).await?;
                (directory, Some(name))
            }
            // A removed file may have had the name.
            Err(error) if is_not_found(&error) => {
                let (directory, name) = self.parent(path).await?;
                (directory, Some(name))
            }
            Err(error) => return Err(error),
        };
        let mut found = Vec::new();
        if let Some(name) = name
            && let Some(fid) = self.client.lookup_name(&node, name.as_bytes()).await?
            && !fid.vnode.is_directory()
        {
            found.extend(self.listed(&node, path, (fid, false)).await?);
        }
        found.extend(self.listed(&node, path, (node.fid, all)).await?);
        let is_wanted = |file: &&OlderFile| {
            let removed_name = file.removed > 0 && name.is_some_and(|name| file.name != *name);
            !removed_name || all
        };
        let mut older = Vec::new();
        for file in found.iter().filter(is_wanted) {
            let name = match file.removed {
                0 => name.unwrap_or_default().to_owned(),
                _ => file.name.to_string(),
            };
            let versions = file.versions.iter();
            older.extend(versions.map(|version| Older::of(&name, file, version)));
        }
        older.sort_by_key(Older::age);
        Ok(older)
    }

    /// All pages of a list.
    async fn listed(
        &self,
        node: &Node,
        path: &str,
        (fid, all): (Fid, bool),
    ) -> Result<Vec<OlderFile>> {
        let (mut files, mut after) = (Vec::new(), Fid::default());
        loop {
            let asked = ListOlder { fid, all, after };
            let page = self.call_older(node, path, &asked).await?;
            files.extend(page.files.into_vec());
            if !page.more || page.next <= after {
                return Ok(files);
            }
            after = page.next;
        }
    }

    /// Chooses among the older bytes under a path: those of that data version, or of that fid, or
    /// the newest.
    ///
    /// # Errors
    /// There are none, or several that differ.
    pub async fn choose_older(
        &self,
        path: &str,
        (version, fid, all): (Option<u64>, Option<&str>, bool),
    ) -> Result<Older> {
        let is_directory = match self.find(path).await {
            Ok(node) => node.is_directory(),
            Err(error) if is_not_found(&error) => false,
            Err(error) => return Err(error),
        };
        if is_directory && fid.is_none() {
            return Err(Error::Usage(format!(
                "{path}: a directory; name the file that was removed from it, or give its -fid"
            )));
        }
        let mut found = self.older(path, all).await?;
        found.retain(|older| version.is_none_or(|version| older.data_version == version));
        found.retain(|older| fid.is_none_or(|fid| older.fid == fid));
        let named = version.is_some() && fid.is_none();
        let Some(newest) = found.pop() else {
            return Err(Error::Usage(format!(
                "{path}: archives keep no such older version; 'cellar fs oldversion -list' shows those that they keep"
            )));
        };
        match found.iter().find(|other| named && other.fid != newest.fid) {
            Some(other) => Err(Error::Usage(format!(
                "{path}: several files had this version; name one with -fid {} or -fid {}",
                newest.fid, other.fid
            ))),
            None => Ok(newest),
        }
    }

    /// Restores older bytes of `path`: into the file `to`, which is made if it does not exist.
    /// `force`: also into a file that exists elsewhere, and into one whose present bytes are in no
    /// archive. Calls `progress` with the number of bytes that were stored.
    ///
    /// # Errors
    /// The target exists, no archive delivers the bytes, or the caller may not store them. Then the
    /// target is unchanged.
    pub async fn restore_older(
        &self,
        path: &str,
        older: &Older,
        to: Option<&str>,
        force: bool,
        progress: impl FnMut(u64),
    ) -> Result<Restored> {
        let source = self.source(path).await?;
        let at = to.unwrap_or(path);
        let target = self.target(at).await?;
        let (file, is_new) = match target.file {
            Some(file) => {
                self.check_overwrite(&file, at, older, force).await?;
                (file, false)
            }
            None => {
                let status = AfsStoreStatus {
                    unix_mode: Some(older.file.mode),
                    ..AfsStoreStatus::default()
                };
                let place = self
                    .client
                    .place(&target.directory, target.name.as_bytes(), at)?;
                (place.create_file(status).await?, true)
            }
        };
        let modified = older.last.then_some(older.file.modified);
        let from = (&source, &older.bytes, path);
        let stored = self
            .client
            .store_older(from, (&file, at), modified, progress);
        if let Err(error) = stored.await {
            if is_new {
                let place = self
                    .client
                    .place(&target.directory, target.name.as_bytes(), at)?;
                place.remove_file().await?;
            }
            return Err(delivered(error.into(), path));
        }
        if is_new && file.status.owner != older.file.owner {
            let owner = AfsStoreStatus {
                owner: Some(older.file.owner),
                ..AfsStoreStatus::default()
            };
            // Only administrators may do this. For others the file stays theirs.
            let _refused = self.client.set_status(&file, owner, at).await;
        }
        Ok(Restored {
            path: at.to_owned(),
            new: is_new,
            older: older.clone(),
        })
    }

    /// A node of the volume that has the older bytes.
    async fn source(&self, path: &str) -> Result<Node> {
        match self.find(path).await {
            Err(error) if is_not_found(&error) => Ok(self.parent(path).await?.0),
            found => found,
        }
    }

    async fn target(&self, path: &str) -> Result<Target> {
        let (directory, name) = self.parent(path).await?;
        let file = match self.client.find(path, Follow::ALL).await {
            Ok(node) if node.is_directory() => {
                return Err(Error::Usage(format!(
                    "{path}: a directory; name a file with -to"
                )));
            }
            Ok(node) => Some(node),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error.into()),
        };
        Ok(Target {
            directory,
            name: name.to_owned(),
            file,
        })
    }

    /// Checks that a restore into a file loses nothing that the user may want.
    async fn check_overwrite(
        &self,
        file: &Node,
        path: &str,
        older: &Older,
        force: bool,
    ) -> Result<()> {
        // An interrupted restore leaves an empty file.
        if force || file.status.length == 0 {
            return Ok(());
        }
        if file.fid.to_string() != older.fid {
            return Err(Error::Usage(format!(
                "{path}: there is another file of this name; -to restores elsewhere, --force overwrites it"
            )));
        }
        let copies = Archives::new(self.client).copies(file, path, &[]).await?;
        match copies.good().next().is_some() {
            true => Ok(()),
            false => Err(Error::Usage(format!(
                "{path}: no archive has the present bytes, so they would be lost; -to restores elsewhere, --force \
                 overwrites them"
            ))),
        }
    }

    async fn call_older<P: Procedure>(
        &self,
        node: &Node,
        path: &str,
        asked: &P,
    ) -> Result<P::Reply> {
        let answer = self.client.call_volume(&node.volume, &path, asked).await;
        answer.map_err(|error| match error.code() {
            Some(code) if is_unknown_there(code) => Error::Usage(format!(
                "{path}: the file server keeps no older versions; it is older, or not Cellar's"
            )),
            Some(AbortCode::EPERM) => Error::Usage(format!(
                "{path}: only administrators of the cell may list the whole volume (--localauth, or --admin on the \
                 server)"
            )),
            _ => error.into(),
        })
    }
}

fn is_not_found(error: &Error) -> bool {
    matches!(error, Error::Client(error) if error.is_not_found())
}

/// The error of a restore, with the reasons of archives in words.
fn delivered(error: Error, path: &str) -> Error {
    match error.code() {
        Some(AbortCode::ENOENT) => Error::Usage(format!(
            "{path}: the time of this version has passed, or no archive has a good copy any more"
        )),
        Some(AbortCode::EIO) => Error::Usage(format!(
            "{path}: no archive delivers a good copy; 'cellar osd list' shows which archives are up"
        )),
        _ => error,
    }
}
