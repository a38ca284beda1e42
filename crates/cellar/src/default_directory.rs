//! The cell's directory that commands find without an option: `./cell-data`; if that is missing,
//! `/var/lib/cellar`, if it holds a cell.
//!
//! Only `cellar serve` begins a cell in `/var/lib/cellar`.
//!
//! An account that may write to the directory where a command is run (for instance `/tmp`) could
//! create a directory of that name there. A socket in it could then play the cell's servers. So a
//! directory that was found and not named is used only if root or the caller owns it and the files
//! used in it. A directory that was named, by `--dir` or `CELLAR_DIR`, may have any owner.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::cell_directory::{self, CellDirectory};
use crate::failure::{Failure, Outcome};

/// Returns the directory that was named, otherwise `./cell-data` or the system's, whether it exists
/// or not.
pub(crate) fn named_or_default(named: Option<&Path>) -> Outcome<CellDirectory> {
    if let Some(named) = named {
        return Ok(CellDirectory::new(named));
    }
    let here = Path::new(cell_directory::DEFAULT);
    let directory = found(here, Path::new(cell_directory::SYSTEM));
    match of_another_account(&directory, rustix::process::geteuid().as_raw())? {
        None => Ok(directory),
        Some(path) => Err(Failure::new(format!(
            "{}{} belongs to another account, or every account may write to it: 'cd' to another directory, or \
             name it with --dir if you trust it",
            if path.is_relative() { "./" } else { "" },
            path.display()
        ))),
    }
}

/// The directory here, unless only the system's holds a cell.
fn found(here: &Path, system: &Path) -> CellDirectory {
    let of_system = CellDirectory::new(system);
    match fs::symlink_metadata(here).is_err() && of_system.identity_file().exists() {
        true => of_system,
        false => CellDirectory::new(here),
    }
}

/// The first path of a directory that belongs to neither root nor `user`, or that every account may
/// replace.
fn of_another_account(directory: &CellDirectory, user: u32) -> io::Result<Option<PathBuf>> {
    let path = directory.path();
    let trusted = |about: &Metadata| about.uid() == 0 || about.uid() == user;
    // Check a link as well as its target.
    for about in [fs::symlink_metadata(path), fs::metadata(path)] {
        let Some(about) = unless_missing(about)? else {
            return Ok(None);
        };
        let open_to_all = !about.is_symlink() && about.mode() & 0o002 != 0;
        if !trusted(&about) || open_to_all {
            return Ok(Some(path.to_owned()));
        }
    }
    for used in [
        directory.identity_file(),
        directory.public_identity_file(),
        directory.admin_socket(),
    ] {
        if unless_missing(fs::symlink_metadata(&used))?.is_some_and(|about| !trusted(&about)) {
            return Ok(Some(used));
        }
    }
    Ok(None)
}

fn unless_missing(about: io::Result<Metadata>) -> io::Result<Option<Metadata>> {
    match about {
        Ok(about) => Ok(Some(about)),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
        // A file that this account may not examine is not used. Opening it fails later.
        Err(cause) if cause.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        Err(cause) => Err(cause),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    #[test]
    fn the_systems_cell_is_found_if_there_is_none_here() {
        let home = tempfile::tempdir().expect("tempdir");
        let (here, system) = (home.path().join("here"), home.path().join("system"));
        let found = || found(&here, &system).path().to_owned();
        fs::create_dir(&system).expect("directory");
        assert_eq!(found(), here, "the system has no cell");
        fs::write(system.join("cell.json"), "{}").expect("file");
        assert_eq!(found(), system);
        fs::create_dir(&here).expect("directory");
        assert_eq!(found(), here);
    }

    #[test]
    fn only_what_is_ours_is_used_unnamed() {
        let home = tempfile::tempdir().expect("tempdir");
        let ours = fs::metadata(home.path()).expect("there").uid();
        let directory = CellDirectory::new(home.path().join("cell-data"));
        let path = directory.path();
        let bad = |user| of_another_account(&directory, user).expect("looked at");
        assert_eq!(bad(ours), None, "nothing is there");
        fs::create_dir(path).expect("directory");
        fs::write(directory.identity_file(), "{}").expect("file");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("mode");
        assert_eq!(bad(ours), None);
        fs::set_permissions(path, fs::Permissions::from_mode(0o1777)).expect("mode");
        assert_eq!(bad(ours).as_deref(), Some(path), "open to all");
        fs::set_permissions(path, fs::Permissions::from_mode(0o775)).expect("mode");
        if ours != 0 {
            assert_eq!(bad(ours + 1).as_deref(), Some(path));
            return; // Only root can give files away.
        }
        fs::write(directory.admin_socket(), "").expect("file");
        for used in [
            directory.admin_socket(),
            directory.identity_file(),
            path.to_owned(),
        ] {
            chown(&used, Some(12_345), None).expect("chown");
            assert_eq!(bad(0), Some(used.clone()));
            assert_eq!(bad(12_345), None, "the user's own, and root's");
            chown(&used, Some(0), None).expect("chown");
        }
        let link = home.path().join("link");
        symlink(path, &link).expect("link");
        let linked = CellDirectory::new(&link);
        assert_eq!(of_another_account(&linked, 0).expect("looked at"), None);
        std::os::unix::fs::lchown(&link, Some(12_345), None).expect("chown");
        assert_eq!(
            of_another_account(&linked, 0).expect("looked at"),
            Some(link)
        );
    }
}
