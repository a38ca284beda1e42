//! Small configuration files that change under a running server.
//!
//! 1. The contents of a file are kept together with its stamp (device, inode, size, change time) at
//!    the time of opening. Each use compares the stamp, which costs one system call.
//! 2. If a file cannot be read or parsed, its last good contents stay in force. A careless edit of
//!    the keys must not lock out all users. The failure is logged once for each stamp.
//! 3. Cellar's own changes are atomic: a new file of mode 0600 is written in the same directory,
//!    synced and renamed.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use zeroize::Zeroizing;

use crate::{Error, Result};

/// The largest configuration file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Identifies one version of a file's contents.
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

/// The parsed contents of a file, updated when the file changes.
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
    /// Reads the file. A missing file counts as an empty one.
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

    /// The current contents of the file.
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
                tracing::error!(%error, "a changed file is not used; its last good contents remain valid");
                state.stamp = seen;
            }
        }
        state.content.clone()
    }

    /// Changes the file. `edit` returns the new bytes and a result, or `None` to leave the file
    /// unchanged.
    pub(crate) fn change<R>(
        &self,
        edit: impl FnOnce(&T) -> Result<(Option<Zeroizing<Vec<u8>>>, R)>,
    ) -> Result<R> {
        let _one_at_a_time = self.change.lock();
        let directory = directory_of(&self.path).map_err(|error| Error::file(&self.path, error))?;
        // Locks out other processes too. Closing the directory releases the lock.
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

/// The contents of a small file.
pub(crate) fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>> {
    Ok(read_stamped(path)?.1)
}

fn read_stamped(path: &Path) -> Result<(Stamp, Zeroizing<Vec<u8>>)> {
    let failed = |error| Error::file(path, error);
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.size() > FILE_BYTES_MAX {
        return Err(Error::malformed(path, "is longer than 1 MiB"));
    }
    // Reserves the whole size at once: a growing buffer would leave copies of keys in memory.
    let room = usize::try_from(FILE_BYTES_MAX.min(metadata.size() + 4096)).unwrap_or(0);
    let mut bytes = Zeroizing::new(Vec::with_capacity(room));
    file.take(room as u64)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    Ok((Stamp::of(&metadata), bytes))
}

/// Replaces `path` by a file of mode 0600 with these bytes, atomically.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    cellar_private::replace(path, bytes).map_err(|error| Error::file(path, error))
}

fn directory_of(path: &Path) -> io::Result<File> {
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))
}
