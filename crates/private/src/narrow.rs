//! Removal of other accounts' rights to a place when a program starts on it.

use std::fmt;
use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The rights of group and others.
pub(crate) const OTHERS: u32 = 0o077;

/// Made by the system on each file system, and root's.
const SYSTEMS_OWN: &str = "lost+found";

/// Why a place cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Our machine: the place cannot be looked at or changed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Our caller: something in the place belongs to another account.
    #[error(
        "{} belongs to account {owner}, and this program runs as account {own}: run it as that account, or give \
         the place to this one ('chown -R')",
        path.display()
    )]
    Foreign {
        /// The path.
        path: PathBuf,
        /// The account that owns it.
        owner: u32,
        /// The account of this process.
        own: u32,
    },
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Io { source, .. } => source.kind(),
            Error::Foreign { .. } => io::ErrorKind::PermissionDenied,
        };
        Self::new(kind, error.to_string())
    }
}

/// The parts of a place that were open to other accounts, for one log line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Narrowed {
    /// Mode of the place itself before, if that was open.
    pub mode: Option<u32>,
    /// Files and directories in it that were open.
    pub entries: usize,
}

impl fmt::Display for Narrowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.entries;
        match self.mode {
            Some(mode) => write!(f, "mode {mode:04o}, {entries} open entries"),
            None => write!(f, "{entries} open entries"),
        }
    }
}

/// Returns the owner of a file that does not belong to this process's account.
pub(crate) fn other_owner(about: &Metadata) -> Option<u32> {
    (about.uid() != rustix::process::geteuid().as_raw()).then(|| about.uid())
}

/// Takes the rights of other accounts to `path` away, and to what lies directly in it if it is a
/// directory. `None`: they had none.
///
/// Links are followed, since a place may be a link to a mounted disk; they, too, must be ours. In a
/// directory that is closed, what lies deeper is closed as well.
///
/// # Errors
/// [`Error::Foreign`] for another account's place, before anything is changed in it.
pub fn narrow(path: &Path) -> Result<Option<Narrowed>, Error> {
    let at = |path: &Path, source| Error::Io {
        path: path.to_owned(),
        source,
    };
    let mut open = Vec::new();
    let about = metadata_if_ours(path)?;
    if about.is_dir() {
        for entry in fs::read_dir(path).map_err(|error| at(path, error))? {
            let entry = entry.map_err(|error| at(path, error))?;
            if entry.file_name() == SYSTEMS_OWN {
                continue;
            }
            let path = entry.path();
            match metadata_if_ours(&path) {
                Ok(about) if about.mode() & OTHERS != 0 => open.push((path, about.mode())),
                Ok(_) => {}
                // A link to nothing, or a name that has gone meanwhile.
                Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    let entries = open.len();
    let mode = (about.mode() & OTHERS != 0).then_some(about.mode() & 0o7777);
    if mode.is_some() {
        open.push((path.to_owned(), about.mode()));
    }
    // The directory first: then what is in it is closed already.
    for (path, mode) in open.iter().rev() {
        close(path, *mode).map_err(|error| at(path, error))?;
    }
    Ok((!open.is_empty()).then_some(Narrowed { mode, entries }))
}

/// The same for `path` alone, of which only the rights in `mask` are taken away.
///
/// # Errors
/// As [`narrow`].
pub fn narrow_alone(path: &Path, mask: u32) -> Result<Option<Narrowed>, Error> {
    let about = metadata_if_ours(path)?;
    if about.mode() & mask == 0 {
        return Ok(None);
    }
    let closed = Permissions::from_mode(about.mode() & 0o7777 & !mask);
    fs::set_permissions(path, closed).map_err(|source| Error::Io {
        path: path.to_owned(),
        source,
    })?;
    Ok(Some(Narrowed {
        mode: Some(about.mode() & 0o7777),
        entries: 0,
    }))
}

fn close(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode & 0o7777 & !OTHERS))
}

/// Metadata of what a name leads to, if both are ours.
fn metadata_if_ours(path: &Path) -> Result<Metadata, Error> {
    let at = |source| Error::Io {
        path: path.to_owned(),
        source,
    };
    for about in [fs::symlink_metadata(path), fs::metadata(path)] {
        let about = about.map_err(at)?;
        if let Some(owner) = other_owner(&about) {
            return Err(Error::Foreign {
                path: path.to_owned(),
                owner,
                own: rustix::process::geteuid().as_raw(),
            });
        }
    }
    fs::metadata(path).map_err(at)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, lchown, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    /// A mounted disk with an open file, and a link to it.
    fn disk() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let home = tempfile::tempdir().unwrap();
        let disk = home.path().join("disk");
        fs::create_dir(&disk).unwrap();
        fs::write(disk.join("base"), "bytes").unwrap();
        fs::write(disk.join("closed"), "bytes").unwrap();
        fs::create_dir(disk.join(SYSTEMS_OWN)).unwrap();
        set(&disk.join("base"), 0o644);
        set(&disk.join("closed"), 0o600);
        set(&disk.join(SYSTEMS_OWN), 0o755);
        set(&disk, 0o1755);
        let link = home.path().join("vicepb");
        symlink(&disk, &link).unwrap();
        (home, disk, link)
    }

    #[test]
    fn a_place_is_closed_once_with_all_that_is_in_it() {
        let (_home, disk, link) = disk();
        let found = narrow(&link).unwrap().unwrap();
        assert_eq!((found.mode, found.entries), (Some(0o1755), 1));
        assert_eq!(found.to_string(), "mode 1755, 1 open entries");
        assert_eq!(mode(&disk), 0o1700);
        assert_eq!(mode(&disk.join("base")), 0o600);
        assert_eq!(mode(&disk.join(SYSTEMS_OWN)), 0o755);
        assert_eq!(narrow(&link).unwrap(), None);
        set(&disk.join("base"), 0o640);
        let found = narrow(&link).unwrap().unwrap();
        assert_eq!((found.mode, found.entries), (None, 1));
        set(&disk, 0o777);
        narrow_alone(&disk, 0o022).unwrap().unwrap();
        assert_eq!(mode(&disk), 0o755);
        assert_eq!(narrow_alone(&disk, 0o022).unwrap(), None);
    }

    #[test]
    fn files_of_another_account_are_refused_unchanged() {
        if !rustix::process::geteuid().is_root() {
            return; // Only root can give files away; the tests of a container run as root.
        }
        let (_home, disk, link) = disk();
        let refused = |what: &Path| match narrow(&link) {
            Err(Error::Foreign { path, owner, .. }) => {
                assert_eq!((path.as_path(), owner), (what, 12_345));
                assert_eq!(mode(&disk), 0o1755);
            }
            other => panic!("{other:?}"),
        };
        for what in [&disk, &link.join("base")] {
            let other = (Some(12_345), None);
            chown(what, other.0, other.1).unwrap();
            refused(if *what == disk { &link } else { what });
            chown(what, Some(0), None).unwrap();
        }
        lchown(&link, Some(12_345), None).unwrap();
        refused(&link);
    }
}
