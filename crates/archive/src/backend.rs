//! The few operations on objects that an archive consists of, over the library.
//!
//! | operation | directory | S3 |
//! | --- | --- | --- |
//! | create a small object | file in the same directory, then as below | put, see below |
//! | create a copy | file in `staging/`, then as below | upload in parts, see below |
//! | remove | unlink, fsync of the directory | delete |
//!
//! In a directory a new object is synced, gets its name by a hard link, and then the directory is
//! synced. In S3 a put and the completion of an upload carry `If-None-Match: *`. So an existing
//! name is never replaced.
//!
//! The library syncs files and directories when it writes (`LocalFileSystem::with_fsync`), but not
//! when it removes: this file does.

use std::future::Future;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions};

use crate::fault::Fault;
use crate::limits::SMALL_BYTES_MAX;
use crate::{Error, Location, Settings, s3};

/// The objects of an archive.
#[derive(Clone, Debug)]
pub(crate) struct Backend {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) form: Form,
    pub(crate) settings: Settings,
}

/// The differences between the kinds of archives.
#[derive(Clone, Debug)]
pub(crate) enum Form {
    /// A directory, with its path.
    Directory(PathBuf),
    /// A bucket of S3.
    S3,
}

impl Backend {
    /// Opens the objects at a location; `None` if there is no directory.
    pub(crate) async fn open(
        location: &Location,
        settings: Settings,
    ) -> Result<Option<Self>, Error> {
        let (store, form): (Arc<dyn ObjectStore>, _) = match location {
            Location::Directory(path) => match open_directory(path.clone(), settings).await? {
                None => return Ok(None),
                Some(store) => (Arc::new(store), Form::Directory(path.clone())),
            },
            Location::S3(at) => {
                let client = s3::client(at, settings.patience)?;
                let prefix = Path::from(at.prefix.as_str());
                (Arc::new(PrefixStore::new(client, prefix)), Form::S3)
            }
        };
        Ok(Some(Self {
            store,
            form,
            settings,
        }))
    }

    /// Waits for one step of the library, at most for `patience`.
    pub(crate) async fn within<T>(
        patience: Duration,
        step: impl Future<Output = Result<T, object_store::Error>>,
    ) -> Result<T, Fault> {
        match tokio::time::timeout(patience, step).await {
            Ok(done) => Ok(done?),
            Err(_) => Err(Error::Slow(patience).into()),
        }
    }

    /// The length of an object.
    pub(crate) async fn length(&self, path: &Path) -> Result<Option<u64>, Error> {
        match Self::within(self.settings.patience, self.store.head(path)).await {
            Ok(meta) => Ok(Some(meta.size)),
            Err(Fault::Missing) => Ok(None),
            Err(fault) => Err(fault.unexpected("asking for the length of an object")),
        }
    }

    /// The bytes of a small object.
    pub(crate) async fn small(&self, path: &Path) -> Result<Option<Bytes>, Error> {
        let read = async {
            let found = self.store.get(path).await?;
            match found.meta.size > SMALL_BYTES_MAX {
                true => Ok(None),
                false => found.bytes().await.map(Some),
            }
        };
        match Self::within(self.settings.patience, read).await {
            Ok(Some(bytes)) => Ok(Some(bytes)),
            Ok(None) => Err(Error::Identity(format!("{path} is too long"))),
            Err(Fault::Missing) => Ok(None),
            Err(fault) => Err(fault.unexpected("reading a small object")),
        }
    }

    /// Creates a small object. Returns false if there is one of this name.
    pub(crate) async fn create_small(&self, path: &Path, bytes: Bytes) -> Result<bool, Error> {
        let options = PutOptions::from(PutMode::Create);
        let put = self.store.put_opts(path, bytes.into(), options);
        match Self::within(self.settings.patience, put).await {
            Ok(_) => Ok(true),
            Err(Fault::Exists) => Ok(false),
            Err(fault) => Err(fault.unexpected("creating a small object")),
        }
    }

    /// Removes an object durably. It need not exist.
    pub(crate) async fn remove(&self, path: &Path) -> Result<(), Error> {
        match Self::within(self.settings.patience, self.store.delete(path)).await {
            Ok(()) | Err(Fault::Missing) => {}
            Err(fault) => return Err(fault.unexpected("removing an object")),
        }
        match &self.form {
            Form::S3 => Ok(()),
            Form::Directory(root) => {
                let file = root.join(path.as_ref());
                let synced = blocking(self.settings, move || sync_removal(&file)).await?;
                synced.map_err(|error| Error::Down(format!("{path}: {error}")))
            }
        }
    }

    /// The first objects below a prefix, at most `most`.
    pub(crate) async fn list(&self, prefix: &Path, most: usize) -> Result<Vec<Path>, Error> {
        let listing = async {
            let mut objects = self.store.list(Some(prefix));
            let mut found = Vec::new();
            while found.len() < most
                && let Some(object) = objects.try_next().await?
            {
                found.push(object.location);
            }
            Ok(found)
        };
        match Self::within(self.settings.patience, listing).await {
            Ok(found) => Ok(found),
            Err(Fault::Missing) => Ok(Vec::new()),
            Err(fault) => Err(fault.unexpected("listing objects")),
        }
    }

    /// Returns whether nothing at all is at the location. The directory `lost+found` of a new file
    /// system does not count.
    pub(crate) async fn is_empty(&self) -> Result<bool, Error> {
        match &self.form {
            Form::S3 => Ok(self.list(&Path::default(), 1).await?.is_empty()),
            Form::Directory(root) => {
                let path = root.clone();
                let entries = blocking(self.settings, move || {
                    let entries = std::fs::read_dir(path)?;
                    let names: Result<Vec<_>, _> = entries
                        .take(2)
                        .map(|entry| entry.map(|e| e.file_name()))
                        .collect();
                    names.map(|names| names.iter().all(|name| name == "lost+found"))
                });
                entries.await?.map_err(|error| of_io(root, &error))
            }
        }
    }
}

/// Runs file operations on a thread of the blocking pool.
///
/// The thread stays occupied if the file system hangs. The wait ends nevertheless.
pub(crate) async fn blocking<T: Send + 'static>(
    settings: Settings,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let work = tokio::task::spawn_blocking(work);
    match tokio::time::timeout(settings.patience, work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(Error::Down(error.to_string())),
        Err(_) => Err(Error::Slow(settings.patience)),
    }
}

async fn open_directory(
    path: PathBuf,
    settings: Settings,
) -> Result<Option<LocalFileSystem>, Error> {
    blocking(settings, move || {
        match std::fs::metadata(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(of_io(&path, &error)),
            Ok(about) if !about.is_dir() => {
                let reason = format!("{} is no directory", path.display());
                return Err(Error::Configuration(reason));
            }
            Ok(_) => {}
        }
        let store = LocalFileSystem::new_with_prefix(&path)
            .map_err(|error| Fault::from(error).unexpected("opening the directory"))?;
        Ok(Some(store.with_fsync(true)))
    })
    .await?
}

/// Makes the directory of a new archive, for this account alone. One that is there keeps its mode.
pub(crate) async fn make_directory(path: PathBuf, settings: Settings) -> Result<(), Error> {
    blocking(settings, move || {
        cellar_private::directory(&path)
            .and_then(|()| cellar_private::sync_name(&path))
            .map_err(|error| of_io(&path, &error))
    })
    .await?
}

fn of_io(path: &FilePath, error: &std::io::Error) -> Error {
    let text = format!("{}: {error}", path.display());
    match error.kind() {
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
            Error::Refused(text)
        }
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Error::Full(text),
        _ => Error::Down(text),
    }
}

/// Syncs the directory of a removed file. If the directory is missing, the removal is durable.
fn sync_removal(file: &FilePath) -> std::io::Result<()> {
    match cellar_private::sync_name(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        synced => synced,
    }
}
