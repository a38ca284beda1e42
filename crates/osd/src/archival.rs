//! A device whose objects are copies in an archive.
//!
//! It answers the calls of a device with these differences:
//!
//! | call | behaviour |
//! | --- | --- |
//! | Write | the whole object in one call, which is never rewritten |
//! | Read | the whole object in one call; all bytes are compared before the call succeeds |
//! | Checksum | the MD5 of the bytes that were written; no other sum |
//! | Digest | the length, BLAKE3 and MD5 of the bytes that were written |
//! | Truncate, Copy, Scrub | refused with EOPNOTSUPP |
//!
//! The device's directory has the file `archive.json`, which names the archive, and the catalogue
//! of its copies. The archive itself holds the bytes. An archive that belongs to another cell, or
//! that is empty although the catalogue has copies, is refused at the start.
//!
//! The work with an archive runs on threads of its own, because it may take hours. A call passes
//! pieces through a channel of a few places, so memory is bounded and no shard waits.

mod calls;
mod catalogue;
mod pipe;
mod place;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cellar_archive::{Archive, ArchiveId, CellId, Expected, Location, ObjectKey, Settings};
use cellar_celldb::Embedded;
use cellar_wire::object::ObjectId;
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Handle, Runtime};
use uuid::Uuid;

use crate::limits::TAPE_PATIENCE;

pub(crate) use catalogue::{Catalogue, Copy};
pub(crate) use pipe::{Incoming, Outgoing};
pub use place::{NotAPlace, Place};

/// The file in a device's directory that names its archive.
const FILE: &str = "archive.json";
/// The catalogue of the copies.
const CATALOGUE: &str = "catalogue.redb";
/// Threads for the work with one archive. The work waits for disks and networks.
const THREADS: usize = 2;

/// The patience with an archive. A directory may be the file system of a tape system, which opens a
/// file only after its tape was read.
fn settings(location: &Location) -> Settings {
    match location {
        Location::Directory(_) => Settings {
            recall_patience: TAPE_PATIENCE,
            ..Settings::default()
        },
        Location::S3(_) => Settings::default(),
    }
}

/// The archive of a device, as its directory records it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    /// Its place.
    place: Place,
    /// Its id.
    archive: ArchiveId,
}

/// Why an archival device cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The archive refuses, or is not the expected one.
    #[error("archive {place}: {cause}")]
    Archive {
        /// Its place.
        place: Box<Place>,
        /// The reason.
        cause: cellar_archive::Error,
    },
    /// The device has another archive than the caller names.
    #[error("the device's archive is {known}, not {wanted}")]
    Other {
        /// The archive of the device.
        known: Box<Place>,
        /// The one that the caller names.
        wanted: Box<Place>,
    },
    /// The device holds objects on its disk already.
    #[error("{} holds the objects of a device on a disk, and cannot become an archive", .0.display())]
    InUse(PathBuf),
    /// A file of the device cannot be read or written.
    #[error("{}: {cause}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        cause: std::io::Error,
    },
    /// The catalogue cannot be opened.
    #[error("the catalogue: {0}")]
    Catalogue(#[from] cellar_celldb::Error),
}

/// An archival device.
#[derive(Debug)]
pub struct ArchivalDevice {
    archive: Archive,
    cell: CellId,
    place: Place,
    pub(crate) catalogue: Arc<Catalogue>,
    threads: Threads,
    /// Whether the last work with the archive did not show it down.
    is_up: AtomicBool,
}

/// Threads that end in the background when they are dropped.
#[derive(Debug)]
struct Threads {
    handle: Handle,
    /// Taken when this is dropped.
    runtime: Option<Runtime>,
}

impl Threads {
    fn start() -> std::io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("cellar-archive")
            .enable_all()
            .build()?;
        Ok(Self {
            handle: runtime.handle().clone(),
            runtime: Some(runtime),
        })
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The id of a cell with that name, for the owners of archives.
pub fn cell_id(name: &str) -> CellId {
    let hash = blake3::hash(format!("cellar cell {}", name.to_ascii_lowercase()).as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.as_bytes()[..16]);
    CellId(Uuid::from_bytes(bytes))
}

/// Whether the directory of a device has an object store.
fn has_store(device: &Path) -> bool {
    let entries = std::fs::read_dir(device).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .any(|name| name.starts_with("journal"))
}

/// Whether the directory of a device names an archive.
pub fn is_archival(device: &Path) -> bool {
    device.join(FILE).exists()
}

impl ArchivalDevice {
    /// Opens the archive of a device. The first time, `wanted` becomes its archive; it must be
    /// empty. `now` is in seconds since 1970. May wait for the archive.
    ///
    /// # Errors
    /// [`OpenError`]; nothing is written into an archive of another owner.
    pub fn open(
        device: &Path,
        cell: &str,
        wanted: Option<&Place>,
        now: u64,
    ) -> Result<Self, OpenError> {
        let file = device.join(FILE);
        let at = |cause| OpenError::File {
            path: file.clone(),
            cause,
        };
        let threads = Threads::start().map_err(at)?;
        let id = cell_id(cell);
        let record = match std::fs::read(&file) {
            Ok(text) => Some(serde_json::from_slice::<Record>(&text).map_err(|e| at(e.into()))?),
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => None,
            Err(cause) => return Err(at(cause)),
        };
        if let (Some(known), Some(wanted)) = (&record, wanted)
            && known.place != *wanted
        {
            return Err(OpenError::Other {
                known: Box::new(known.place.clone()),
                wanted: Box::new(wanted.clone()),
            });
        }
        if record.is_none() && has_store(device) {
            return Err(OpenError::InUse(device.to_owned()));
        }
        let catalogue = Catalogue::new(Embedded::open(&device.join(CATALOGUE))?)?;
        let record = match (record, wanted) {
            (Some(record), _) => record,
            (None, Some(wanted)) => {
                let record = threads.handle.block_on(create(wanted, id, cell, now))?;
                let text = serde_json::to_vec_pretty(&record).map_err(|e| at(e.into()))?;
                cellar_private::replace(&file, &text).map_err(at)?;
                record
            }
            (None, None) => return Err(at(std::io::ErrorKind::NotFound.into())),
        };
        let expected = Expected {
            cell: id,
            archive: record.archive,
            session: catalogue.session()?,
            copies: u64::from(!catalogue.is_empty()?),
        };
        let location = record.place.location();
        let settings = settings(location);
        let opened = threads
            .handle
            .block_on(Archive::open(location, settings, &expected));
        let archive = opened.map_err(|cause| OpenError::Archive {
            place: Box::new(record.place.clone()),
            cause,
        })?;
        Ok(Self {
            archive,
            cell: id,
            place: record.place,
            catalogue: Arc::new(catalogue),
            threads,
            is_up: AtomicBool::new(true),
        })
    }

    /// The name of a copy.
    fn key(&self, object: ObjectId, version: u64) -> ObjectKey {
        ObjectKey {
            cell: self.cell,
            object,
            version,
        }
    }

    /// Begins to write a copy of `length` bytes, which the caller sends through the result.
    pub(crate) fn begin_put(&self, object: ObjectId, version: u64, length: u64) -> Incoming {
        let (archive, key) = (self.archive.clone(), self.key(object, version));
        Incoming::begin(&self.threads.handle, move |mut source| async move {
            archive.put(&key, length, &mut source).await
        })
    }

    /// Begins to read a copy, whose bytes arrive through the result.
    pub(crate) fn begin_get(&self, object: ObjectId, copy: &Copy) -> Outgoing {
        let (archive, key) = (self.archive.clone(), self.key(object, copy.version));
        let receipt = copy.receipt;
        Outgoing::begin(&self.threads.handle, move |mut sink| async move {
            archive.get(&key, &receipt, &mut sink).await
        })
    }

    /// The length of a copy in the archive; `None` if it is not there.
    pub(crate) async fn length(
        &self,
        object: ObjectId,
        version: u64,
    ) -> Result<Option<u64>, cellar_archive::Error> {
        let (archive, key) = (self.archive.clone(), self.key(object, version));
        let found = self.apart(async move { archive.length(&key).await }).await;
        self.note(&found);
        found
    }

    /// Removes a copy from the archive.
    pub(crate) async fn remove(
        &self,
        object: ObjectId,
        version: u64,
    ) -> Result<(), cellar_archive::Error> {
        let (archive, key) = (self.archive.clone(), self.key(object, version));
        self.apart(async move { archive.remove(&key).await }).await
    }

    /// Asks the archive whether it is up and still the same.
    pub(crate) async fn check(&self) {
        let archive = self.archive.clone();
        let checked = self.apart(async move { archive.check().await }).await;
        self.note(&checked);
    }

    /// Runs work on the threads of the archive.
    async fn apart<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, cellar_archive::Error>> + Send + 'static,
    ) -> Result<T, cellar_archive::Error> {
        let done = self.threads.handle.spawn(work).await;
        done.unwrap_or(Err(cellar_archive::Error::Cancelled))
    }

    /// Notes from the result of some work whether the archive is up.
    pub(crate) fn note<T>(&self, result: &Result<T, cellar_archive::Error>) {
        use cellar_archive::Blame;
        let is_up = match result {
            Ok(_) => true,
            Err(error) => !matches!(error.blame(), Blame::Archive | Blame::Configuration),
        };
        if self.is_up.swap(is_up, Ordering::Relaxed) != is_up {
            let place = &self.place;
            match (is_up, result) {
                (false, Err(error)) => tracing::error!(%place, %error, "an archive is out of use"),
                _ => tracing::info!(%place, "an archive is in use again"),
            }
        }
    }

    /// Whether the archive is up.
    pub(crate) fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Relaxed)
    }

    /// The number of the session. The catalogue keeps it, so that an old state of the archive is
    /// noticed later.
    pub(crate) fn session(&self) -> u64 {
        self.archive.session()
    }

    /// The size of the archive's file system, and its free bytes; of S3, which does not say, the
    /// largest number. Queries the system.
    pub(crate) fn room(&self) -> (u64, u64) {
        if !self.is_up() {
            return (0, 0);
        }
        let Location::Directory(directory) = self.place.location() else {
            return (u64::MAX, u64::MAX);
        };
        let found = rustix::fs::statvfs(directory);
        found.map_or((0, 0), |found| {
            let bytes = |blocks: u64| found.f_frsize.saturating_mul(blocks);
            (bytes(found.f_blocks), bytes(found.f_bavail))
        })
    }
}

/// Makes a place an archive.
async fn create(place: &Place, id: CellId, cell: &str, now: u64) -> Result<Record, OpenError> {
    let created = Archive::create(place.location(), Settings::default(), id, cell, now).await;
    let identity = created.map_err(|cause| OpenError::Archive {
        place: Box::new(place.clone()),
        cause,
    })?;
    Ok(Record {
        place: place.clone(),
        archive: identity.archive,
    })
}
