//! One server a directory: the running server holds a lock on a file. The kernel releases the lock
//! whenever the process ends.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::failure::{Failure, Outcome};

/// Takes the lock. It is held until the returned file is dropped.
pub(crate) fn take(path: &Path) -> Outcome<File> {
    let at = |cause: std::io::Error| Failure::new(format!("{}: {cause}", path.display()));
    let mut file = cellar_private::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)
        .map_err(at)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {
            // The process id is for the message of a refused start; nothing else uses it.
            file.set_len(0).map_err(at)?;
            file.rewind().map_err(at)?;
            writeln!(file, "{}", std::process::id()).map_err(at)?;
            Ok(file)
        }
        Err(Errno::WOULDBLOCK) => {
            let mut holder = String::new();
            // If the id cannot be read, the message leaves it out.
            let _unread = file.read_to_string(&mut holder);
            let holder = match holder.trim() {
                "" => String::new(),
                pid => format!(" (process {pid})"),
            };
            let directory = path.parent().unwrap_or(path);
            Err(Failure::new(format!(
                "the cell in {} is running already{holder}: stop it first, or give another \
                 --dir",
                directory.display()
            )))
        }
        Err(cause) => Err(at(cause.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_refused_until_the_first_is_gone() {
        let directory = tempfile::tempdir().expect("tempdir");
        let path = directory.path().join("lock");
        let first = take(&path).expect("first");
        assert!(take(&path).is_err());
        drop(first);
        assert!(take(&path).is_ok());
    }
}
