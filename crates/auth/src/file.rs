//! Small configuration files that change under a running server.
//!
//! 1. What a file says is kept, together with the stamp (device, inode, size, change time) it had when it
//!    was opened; the stamp is compared at each use. One system call is what it costs.
//! 2. A file that cannot be read or parsed does not take away what the last good one said: rekeying by
//!    a careless editor must not lock everybody out. The failure is logged once a stamp.
//! 3. Our own changes are atomic: a new file of mode 0600 beside, synced, renamed.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use zeroize::Zeroizing;

use crate::{Error, Result};

/// Largest configuration file that is read, bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What tells one content of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// A file's parsed content, as fresh as the file.
pub(crate) struct Watched<T> {
    path: PathBuf,
    parse: fn(&Path, &[u8]) -> Result<T>,
    state: Mutex<State<T>>,
    /// Held while the file is read, changed and written.
    change: Mutex<()>,
}

struct State<T> {
    /// `None`: there was no file.
    stamp: Option<Stamp>,
    content: Arc<T>,
}

impl<T: Default> Watched<T> {
    /// Reads the file; no file is an empty one.
    pub(crate) fn open(path: PathBuf, parse: fn(&Path, &[u8]) -> Result<T>) -> Result<Self> {
        let (stamp, content) = load(&path, parse)?;
        Ok(Self {
            path,
            parse,
            state: Mutex::new(State {
                stamp,
                content: Arc::new(content),
            }),
            change: Mutex::new(()),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What the file says now.
    pub(crate) fn get(&self) -> Arc<T> {
        let seen = match fs::metadata(&self.path) {
            Ok(metadata) => Some(Stamp::of(&metadata)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(_) => return self.state.lock().content.clone(),
        };
        let mut state = self.state.lock();
        if state.stamp == seen {
            return state.content.clone();
        }
        match load(&self.path, self.parse) {
            Ok((stamp, content)) => {
                state.stamp = stamp;
                state.content = Arc::new(content);
            }
            Err(error) => {
                tracing::error!(%error, "a changed file is not used; what it said before still holds");
                state.stamp = seen;
            }
        }
        state.content.clone()
    }

    /// Changes the file: `edit` answers its new bytes and a result, or `None` to leave it.
    pub(crate) fn change<R>(
        &self,
        edit: impl FnOnce(&T) -> Result<(Option<Zeroizing<Vec<u8>>>, R)>,
    ) -> Result<R> {
        let _one_at_a_time = self.change.lock();
        let directory = directory_of(&self.path).map_err(|error| Error::file(&self.path, error))?;
        // Other processes too; closing the directory lets go of it.
        directory
            .lock()
            .map_err(|error| Error::file(&self.path, error))?;
        let (_, content) = load(&self.path, self.parse)?;
        let (bytes, result) = edit(&content)?;
        if let Some(bytes) = bytes {
            replace(&self.path, &bytes)?;
            self.get();
        }
        Ok(result)
    }
}

fn load<T: Default>(
    path: &Path,
    parse: fn(&Path, &[u8]) -> Result<T>,
) -> Result<(Option<Stamp>, T)> {
    match read_stamped(path) {
        Ok((stamp, bytes)) => Ok((Some(stamp), parse(path, &bytes)?)),
        Err(Error::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Ok((None, T::default()))
        }
        Err(error) => Err(error),
    }
}

/// The whole of a small file.
pub(crate) fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>> {
    Ok(read_stamped(path)?.1)
}

fn read_stamped(path: &Path) -> Result<(Stamp, Zeroizing<Vec<u8>>)> {
    let failed = |error| Error::file(path, error);
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.size() > FILE_BYTES_MAX {
        return Err(Error::malformed(path, "is longer than a file of its kind"));
    }
    // Room for all of it at once: a buffer that grows leaves copies of keys behind.
    let room = usize::try_from(FILE_BYTES_MAX.min(metadata.size() + 4096)).unwrap_or(0);
    let mut bytes = Zeroizing::new(Vec::with_capacity(room));
    file.take(room as u64)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    Ok((Stamp::of(&metadata), bytes))
}

/// Puts a file of mode 0600 with these bytes in the place of `path`, whole or not at all.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    cellar_private::replace(path, bytes).map_err(|error| Error::file(path, error))
}

fn directory_of(path: &Path) -> io::Result<File> {
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))
}
