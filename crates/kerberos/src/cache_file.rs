//! The files of credential caches: reading, replacing and copying them safely.
//!
//! Root does this for other users too, in directories that other users can write. Three rules make
//! that safe:
//!
//! 1. A cache that must belong to one user is opened without following links, and its owner is
//!    checked on the open file ([`read_owned`]).
//! 2. A cache is replaced by a rename of a new file with mode 0600 ([`replace`]). The new file
//!    belongs to the calling user, unless the owner of the directory owns the old file
//!    (`owner_after_replace`).
//! 3. A file that a program writes for another user lies in a directory of that user, below a
//!    directory of ours ([`PrivateFile`]).

use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use crate::credential_cache::{CACHE_BYTES_MAX, CredentialCache};
use crate::error::Error;

/// A user and a group.
pub(crate) type Owner = (u32, u32);
/// The bytes of a file, and the owner of the file.
pub(crate) type Owned = (Zeroizing<Vec<u8>>, Owner);

/// Copies a cache from one file to another, in one atomic step.
///
/// The new file belongs to the calling user and no other user can read it. There is one exception:
/// root may keep tickets for another user in a directory of that user. If the old file in it
/// belonged to that user, so does the new one.
///
/// # Errors
/// [`Error::File`]; [`Error::NoTicket`] if `from` does not exist.
pub fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    let bytes = read_file(from)?.ok_or(Error::NoTicket)?;
    replace(to, &bytes, owner_after_replace(to))
}

/// The owner of the file that replaces `path`, if it is to be another user than the calling one.
///
/// In a directory like `/tmp` every user can make a file with the name of another user's cache.
/// Therefore the owner of an old file counts only if it also owns the directory.
fn owner_after_replace(path: &Path) -> Option<Owner> {
    let old = std::fs::symlink_metadata(path).ok()?;
    let directory = std::fs::metadata(directory_of(path)).ok()?;
    (old.uid() == directory.uid()).then(|| (old.uid(), old.gid()))
}

fn directory_of(path: &Path) -> &Path {
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    directory.unwrap_or(Path::new("."))
}

/// The name of a cache file in a new directory that only its owner can read. Removed on drop.
#[derive(Debug)]
pub struct PrivateFile(Private);

#[derive(Debug)]
enum Private {
    /// A directory of the calling user.
    Own(tempfile::TempDir),
    /// A directory of another user, in a directory of ours. Files that the user adds are not
    /// removed.
    OfUser(PathBuf),
}

impl PrivateFile {
    /// Makes the directory, in the user's runtime directory (`XDG_RUNTIME_DIR`) or else in the
    /// directory for temporary files.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn new() -> Result<Self, Error> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let places = runtime.into_iter().chain([std::env::temp_dir()]);
        let mut last = None;
        for place in places {
            // Mode 0700.
            match tempfile::Builder::new()
                .prefix("cellar-")
                .tempdir_in(&place)
            {
                Ok(directory) => return Ok(Self(Private::Own(directory))),
                Err(cause) => last = Some(Error::File { path: place, cause }),
            }
        }
        Err(last.unwrap_or(Error::NoTicket))
    }

    /// Makes the directory for another user, which can reach neither our runtime directory nor our
    /// directory for temporary files. `None`: for the calling user.
    pub(crate) fn of(user: Option<u32>) -> Result<Self, Error> {
        let Some(user) = user else {
            return Self::new();
        };
        let place = Path::new("/tmp");
        let made = (|| {
            let outer = tempfile::Builder::new()
                .prefix("cellar-")
                .tempdir_in(place)?;
            // Mode 0700, like the outer directory until its mode is changed below.
            let inner = tempfile::tempdir_in(outer.path())?.keep();
            std::os::unix::fs::chown(&inner, Some(user), None)?;
            std::fs::set_permissions(outer.path(), std::fs::Permissions::from_mode(0o711))?;
            // `TempDir` would remove everything below, with our rights. Only the empty directories
            // are removed (see `drop`).
            let _kept = outer.keep();
            Ok(inner)
        })();
        let made = made.map_err(|cause| Error::File {
            path: place.to_owned(),
            cause,
        });
        Ok(Self(Private::OfUser(made?)))
    }

    /// The path of the file, which does not exist yet.
    pub fn path(&self) -> PathBuf {
        let directory = match &self.0 {
            Private::Own(directory) => directory.path(),
            Private::OfUser(directory) => directory,
        };
        directory.join("krb5cc")
    }
}

impl Drop for PrivateFile {
    fn drop(&mut self) {
        if let Private::OfUser(directory) = &self.0 {
            let _none = std::fs::remove_file(self.path());
            let _not_empty = std::fs::remove_dir(directory);
            let _user_files_left = directory.parent().map(std::fs::remove_dir);
        }
    }
}

/// Reads a cache from a file; `None` if the file does not exist or is empty.
///
/// # Errors
/// [`Error::File`], [`Error::BadCache`].
pub fn read_cache(path: impl AsRef<Path>) -> Result<Option<CredentialCache>, Error> {
    let path = path.as_ref();
    parse_cache(path, read_owned(path, None)?)
}

pub(crate) fn parse_cache(
    path: &Path,
    read: Option<Owned>,
) -> Result<Option<CredentialCache>, Error> {
    let Some((bytes, _)) = read else {
        return Ok(None);
    };
    if bytes.is_empty() {
        return Ok(None);
    }
    let cache = CredentialCache::parse(&bytes);
    cache.map(Some).map_err(|cause| Error::BadCache {
        path: path.to_owned(),
        cause,
    })
}

fn read_file(path: &Path) -> Result<Option<Zeroizing<Vec<u8>>>, Error> {
    Ok(read_owned(path, None)?.map(|(bytes, _)| bytes))
}

/// The bytes of a file; `None` if the file does not exist.
///
/// With an `owner`, also `None` if `path` is not a regular file of that user. Links are not
/// followed, and a pipe does not block the call.
pub(crate) fn read_owned(path: &Path, owner: Option<u32>) -> Result<Option<Owned>, Error> {
    let at = |cause| Error::File {
        path: path.to_owned(),
        cause,
    };
    let mut open = std::fs::File::options();
    open.read(true);
    if owner.is_some() {
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        open.custom_flags(flags.bits().cast_signed());
    }
    let file = match open.open(path) {
        Ok(file) => file,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(_) if owner.is_some() && path.is_symlink() => return Ok(None),
        Err(cause) => return Err(at(cause)),
    };
    // The metadata of the open file: the name may refer to another file by now.
    let metadata = file.metadata().map_err(at)?;
    if owner.is_some_and(|owner| !metadata.is_file() || metadata.uid() != owner) {
        return Ok(None);
    }
    // Allocates the full size at once: a growing buffer would leave copies of keys in freed memory.
    let capacity = usize::try_from(metadata.len().min(CACHE_BYTES_MAX)).unwrap_or(0);
    let mut bytes = Zeroizing::new(Vec::with_capacity(capacity + 1));
    let read = file.take(CACHE_BYTES_MAX).read_to_end(&mut bytes);
    read.map_err(at)?;
    Ok(Some((bytes, (metadata.uid(), metadata.gid()))))
}

/// Replaces a cache in one atomic step, with mode 0600. `owner`: the owner of the new file, if it
/// is not the calling user.
pub(crate) fn replace(path: &Path, bytes: &[u8], owner: Option<Owner>) -> Result<(), Error> {
    use std::io::Write as _;
    let at = |cause| Error::File {
        path: path.to_owned(),
        cause,
    };
    let mut file = tempfile::Builder::new()
        .permissions(std::fs::Permissions::from_mode(0o600))
        .prefix(".krb5cc-")
        .tempfile_in(directory_of(path))
        .map_err(at)?;
    file.write_all(bytes).map_err(at)?;
    if let Some((user, group)) = owner {
        std::os::unix::fs::fchown(file.as_file(), Some(user), Some(group)).map_err(at)?;
    }
    file.persist(path).map_err(|error| at(error.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_replaced_with_its_owners_rights() {
        let home = tempfile::tempdir().expect("tempdir");
        let path = home.path().join("cc");
        replace(&path, b"one", None).expect("new");
        replace(&path, b"two", None).expect("again");
        assert_eq!(std::fs::read(&path).expect("read"), b"two");
        let mode = std::fs::metadata(&path)
            .expect("there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(home.path()).expect("dir").count(), 1);
    }

    /// Root, when it reads the cache of one user, must not be led to the cache of another user.
    #[test]
    fn a_cache_of_a_given_account_is_no_link_and_no_pipe() {
        let home = tempfile::tempdir().expect("tempdir");
        let at = |name: &str| home.path().join(name);
        let ours = std::fs::metadata(home.path()).expect("there").uid();
        std::fs::write(at("cc"), b"tickets").expect("write");
        std::os::unix::fs::symlink(at("cc"), at("link")).expect("link");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("pipe"),
            rustix::fs::FileType::Fifo,
            0o600.into(),
            0,
        )
        .expect("a pipe");
        let read = |name: &str, owner| read_owned(&at(name), owner).expect("looked at").is_some();
        assert!(read("cc", Some(ours)) && read("link", None));
        assert!(!read("cc", Some(ours + 1)), "another's");
        assert!(!read("link", Some(ours)) && !read("pipe", Some(ours)));
        assert!(!read("nothing", Some(ours)));
    }

    /// In `/tmp`, every user can make a file with the name of root's cache.
    #[test]
    fn tickets_are_not_given_to_the_account_that_made_the_file_first() {
        let home = tempfile::tempdir().expect("tempdir");
        let (from, to) = (home.path().join("from"), home.path().join("to"));
        let owner = |path: &Path| std::fs::metadata(path).expect("there").uid();
        let ours = owner(home.path());
        std::fs::write(&from, b"tickets").expect("write");
        std::fs::write(&to, b"bait").expect("write");
        if std::os::unix::fs::chown(&to, Some(12_345), None).is_err() {
            return; // The attack is possible only against root.
        }
        copy(&from, &to).expect("copy");
        assert_eq!(std::fs::read(&to).expect("read"), b"tickets");
        assert_eq!(owner(&to), ours);
        // In a directory of the other user, the cache stays that user's.
        let theirs = home.path().join("theirs");
        std::fs::create_dir(&theirs).expect("directory");
        let to = theirs.join("cc");
        std::fs::write(&to, b"old").expect("write");
        for path in [&theirs, &to] {
            std::os::unix::fs::chown(path, Some(12_345), None).expect("chown");
        }
        copy(&from, &to).expect("copy");
        assert_eq!(owner(&to), 12_345);
    }

    #[test]
    fn files_of_another_account_beside_a_copy_are_not_removed() {
        let user = rustix::process::geteuid().as_raw();
        let file = PrivateFile::of(Some(user)).expect("a directory");
        let path = file.path();
        let directory = path.parent().expect("a directory").to_owned();
        std::fs::write(&path, b"tickets").expect("write");
        drop(file);
        assert!(!directory.parent().expect("ours").exists());

        let file = PrivateFile::of(Some(user)).expect("a directory");
        let directory = file.path().parent().expect("a directory").to_owned();
        std::fs::create_dir(directory.join("his own")).expect("mkdir");
        std::fs::write(directory.join("his own/letter"), b"dear").expect("write");
        drop(file);
        assert!(directory.join("his own/letter").exists());
        std::fs::remove_dir_all(directory.parent().expect("ours")).expect("clean up");
    }
}
