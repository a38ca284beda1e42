//! Removes the rights of other accounts to a server's directory, at its start.
//!
//! Everything is made for the server's account alone (`cellar_private`). This module is for files
//! that were made by other means: copied, restored from a backup, or written by an older release.
//! Partitions and devices are narrowed when they are opened.

use std::path::Path;

use cellar_private::{Error, Narrowed, narrow, narrow_alone};

use crate::cell_directory::CellDirectory;
use crate::failure::Outcome;

/// The rights of group and others to make, remove and replace names.
const OTHERS_WRITE: u32 = 0o022;

/// Narrows the directory itself, before a file in it is opened: other accounts must not be able to
/// put a file there.
pub(crate) fn directory(directory: &CellDirectory) -> Outcome {
    log_narrowed(
        directory.path(),
        narrow_alone(directory.path(), OTHERS_WRITE),
    )
}

/// Narrows the contents of the directory, except partitions and devices.
pub(crate) fn contents(directory: &CellDirectory) -> Outcome {
    let private = [
        directory.lock_file(),
        directory.identity_file(),
        directory.databases(),
        directory.jobs(),
        directory.callback_state(),
        directory.server_etc(),
        directory.audit_log(),
        super::osds::used_file(directory.path()),
        crate::last_start::file(directory.path()),
    ];
    for path in private {
        // Opening a log refuses a link.
        let is_link = path == directory.audit_log() && path.is_symlink();
        if !is_link {
            log_narrowed(&path, narrow(&path))?;
        }
    }
    let public = directory.client_etc();
    log_narrowed(&public, narrow_alone(&public, OTHERS_WRITE))
}

/// Logs one line for a place that was open. A missing place is not a failure.
fn log_narrowed(path: &Path, found: Result<Option<Narrowed>, Error>) -> Outcome {
    match found {
        Ok(None) => Ok(()),
        Ok(Some(found)) => {
            tracing::warn!(
                path = %path.display(), %found,
                "other accounts could use this; their rights are removed"
            );
            Ok(())
        }
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(refused) => Err(refused.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn directories_that_an_older_release_left_open_are_closed() {
        let home = tempfile::tempdir().expect("tempdir");
        let cell = CellDirectory::new(home.path());
        let open = |path: &Path, mode| {
            fs::set_permissions(path, Permissions::from_mode(mode)).expect("mode");
        };
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        directory(&cell).expect("new");
        contents(&cell).expect("nothing is there");
        open(home.path(), 0o777);
        fs::write(cell.identity_file(), "{}").expect("file");
        open(&cell.identity_file(), 0o644);
        for made in [cell.server_etc(), cell.client_etc()] {
            fs::create_dir(&made).expect("directory");
            open(&made, 0o777);
        }
        let key = cell.server_etc().join("KeyFileExt");
        fs::write(&key, "secret").expect("file");
        open(&key, 0o640);
        let link = cell.audit_log();
        std::os::unix::fs::symlink(&key, &link).expect("link");
        directory(&cell).expect("narrowed");
        contents(&cell).expect("narrowed");
        assert_eq!(mode(home.path()), 0o755);
        assert_eq!(mode(&cell.identity_file()), 0o600);
        assert_eq!(mode(&cell.server_etc()), 0o700);
        assert_eq!(mode(&key), 0o600);
        assert_eq!(mode(&cell.client_etc()), 0o755);
    }
}
