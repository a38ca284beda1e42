//! Files, directories and sockets that no other account of the machine may use.
//!
//! Access lists decide about what a server stores, not accounts of the machine that it runs on.
//! Every crate therefore makes its files with the functions here; `dev/tidy` finds other ways.
//!
//! 1. A new file has mode 0600 and a new directory 0700 from its creation on. The umask can only
//!    remove more rights.
//! 2. An existing file keeps its mode. So each program that opens such a place at its start calls
//!    [`narrow`] on it, which removes the rights of other accounts.
//! 3. A place of another account is refused: its owner can change the contents at any time, and
//!    restore the rights.
//!
//! `docs/operating/files.md` lists all places with owner and mode.

mod narrow;
mod socket;

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::OFlags;

pub use narrow::{Error, Narrowed, narrow, narrow_alone};
pub use socket::socket;

/// Mode of a file that is made here.
pub const FILE: u32 = 0o600;
/// Mode of a directory that is made here.
pub const DIRECTORY: u32 = 0o700;
/// Mode of a directory that other accounts pass through, to public files below, and cannot list.
pub const PASSAGE: u32 = 0o711;
/// Mode of a file that clients of other accounts read.
pub const PUBLIC_FILE: u32 = 0o644;
/// Mode of a directory with such files.
pub const PUBLIC_DIRECTORY: u32 = 0o755;

/// Options that make a file with mode 0600. The caller adds the rest: `read`, `write`, `create`.
#[must_use]
pub fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(FILE);
    options
}

/// Opens a file for writing, empty; makes it if it is missing.
///
/// # Errors
/// Those of the system.
pub fn create(path: &Path) -> io::Result<File> {
    options().write(true).create(true).truncate(true).open(path)
}

/// Makes a directory, and those above it, with mode 0700. One that is there keeps its mode.
///
/// # Errors
/// Those of the system.
pub fn directory(path: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(DIRECTORY)
        .create(path)
}

/// Makes a directory, and those above it, that other accounts can pass through and not list. One
/// that is there keeps its mode.
///
/// # Errors
/// Those of the system.
pub fn passage(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    DirBuilder::new()
        .recursive(true)
        .mode(PASSAGE)
        .create(path)?;
    // Whatever the umask is.
    fs::set_permissions(path, Permissions::from_mode(PASSAGE))
}

/// Makes a directory that all accounts may look into, whatever the umask is.
///
/// # Errors
/// Those of the system.
pub fn public_directory(path: &Path) -> io::Result<()> {
    directory(path)?;
    fs::set_permissions(path, Permissions::from_mode(PUBLIC_DIRECTORY))
}

/// Opens a log to append to it; makes it if it is missing, and narrows it if others may read it.
///
/// A symbolic link, a pipe or a file of another account is refused: a log goes to the file of that
/// name and nowhere else.
///
/// # Errors
/// `InvalidInput` with a sentence for what is no file of ours; else those of the system.
pub fn log(path: &Path) -> io::Result<File> {
    let refused = |why: &str| {
        let text = format!("a log is only written to a file of its own: {why}");
        io::Error::new(io::ErrorKind::InvalidInput, text)
    };
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let opened = options()
        .append(true)
        .create(true)
        .custom_flags(flags)
        .open(path);
    let file = match opened {
        Err(_) if path.is_symlink() => return Err(refused("this is a symbolic link; remove it")),
        opened => opened?,
    };
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(refused("this is none; remove it"));
    }
    if let Some(owner) = narrow::other_owner(&about) {
        return Err(refused(&format!(
            "this one belongs to account {owner}; remove it, or give it to the account of the server"
        )));
    }
    if about.permissions().mode() & narrow::OTHERS != 0 {
        file.set_permissions(Permissions::from_mode(FILE))?;
    }
    Ok(file)
}

/// Opens a file for reading, unless the name is a symbolic link.
///
/// # Errors
/// Those of the system; ELOOP for a link.
pub fn read(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Replaces a file in one step: after a crash the old one is there or the new one, whole and with
/// mode 0600.
///
/// # Errors
/// Those of the system. The old file is there then.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_with(path, bytes, FILE)
}

/// The same, for a file that all accounts may read, whatever the umask is.
///
/// # Errors
/// As [`replace`].
pub fn publish(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_with(path, bytes, PUBLIC_FILE)
}

fn replace_with(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".new.{}", std::process::id()));
    let beside = path.with_file_name(name);
    let written = (|| {
        // One that a crash left may have another mode.
        match fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = options().write(true).create_new(true).open(&beside)?;
        file.write_all(bytes)?;
        if mode != FILE {
            file.set_permissions(Permissions::from_mode(mode))?;
        }
        file.sync_all()?;
        fs::rename(&beside, path)?;
        sync_name(path)
    })();
    written.inspect_err(|_| {
        let _ = fs::remove_file(&beside);
    })
}

/// Makes the presence or absence of a name durable.
///
/// # Errors
/// Those of the system.
pub fn sync_name(path: &Path) -> io::Result<()> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn files_are_made_for_their_owner_alone() {
        let home = tempfile::tempdir().unwrap();
        let at = |name| home.path().join(name);
        create(&at("file")).unwrap();
        directory(&at("a/b")).unwrap();
        replace(&at("replaced"), b"1").unwrap();
        log(&at("log")).unwrap().write_all(b"1").unwrap();
        publish(&at("public"), b"1").unwrap();
        public_directory(&at("etc")).unwrap();
        passage(&at("cell")).unwrap();
        for name in ["file", "replaced", "log"] {
            assert_eq!(mode(&at(name)), 0o600, "{name}");
        }
        for name in ["a", "a/b"] {
            assert_eq!(mode(&at(name)), 0o700, "{name}");
        }
        assert_eq!(mode(&at("public")), 0o644);
        assert_eq!(mode(&at("etc")), 0o755);
        assert_eq!(mode(&at("cell")), 0o711);
        fs::set_permissions(at("cell"), Permissions::from_mode(0o700)).unwrap();
        passage(&at("cell")).unwrap();
        assert_eq!(mode(&at("cell")), 0o700, "it was there");
    }

    #[test]
    fn a_replaced_file_has_the_new_mode_and_leaves_nothing_beside() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("file");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        replace(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(mode(&path), 0o600);
        let in_the_way = home.path().join("directory");
        directory(&in_the_way.join("full")).unwrap();
        assert!(replace(&in_the_way, b"new").is_err());
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_log_is_no_link_and_nothing_else_than_a_file() {
        let home = tempfile::tempdir().unwrap();
        let target = home.path().join("target");
        fs::write(&target, "kept").unwrap();
        let link = home.path().join("log");
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let refused = log(&link).unwrap_err().to_string();
        assert!(refused.contains("symbolic link"), "{refused}");
        assert!(read(&link).is_err());
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(home.path().join("none"), &link).unwrap();
        assert!(log(&link).is_err(), "a link to nothing makes nothing");
        assert!(!home.path().join("none").exists());
        let pipe = home.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        assert!(log(&pipe).is_err(), "a pipe");
        assert!(log(home.path()).is_err(), "a directory");
        assert_eq!(fs::read(&target).unwrap(), b"kept");
    }

    #[test]
    fn a_log_that_others_could_read_is_narrowed() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("log");
        fs::write(&path, "a\n").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        log(&path).unwrap().write_all(b"b\n").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"a\nb\n");
        assert_eq!(mode(&path), 0o600);
    }
}
