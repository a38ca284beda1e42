//! A copy that is being written: parts, and the step that gives it its name.
//!
//! A copy that is not complete is never visible under its name:
//!
//! 1. In a directory, the bytes go to a file in `staging/`. When it is whole and synced, a hard
//!    link gives it its name, which fails if the name exists. A crash leaves a file in `staging/`,
//!    which [`crate::Archive::remove_abandoned`] removes. A tape system must not watch `staging/`.
//! 2. File systems without hard links (FAT, some FUSE) get a rename after a look at the name. Two
//!    processes that put the same key at the same moment could then both succeed. Keys contain the
//!    version of an object, and one file server writes it, so this does not happen.
//! 3. In a bucket, a copy of one part is one request, on condition that the name is free. The
//!    parts of a larger one get their name when the upload is completed, on the same condition
//!    (`http.rs`).
//!
//! Dropping an upload aborts it in the background.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use rustix::fs::Advice;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::Error;
use crate::backend::{Backend, Form};
use crate::fault::{Fault, io_kind};
use crate::limits::{BYTES_PER_SECOND_MIN, PARTS_IN_MEMORY_MAX, WRITEBACK_BYTES};

/// The directory of unfinished copies.
pub(crate) const STAGING: &str = "staging";

/// A copy that is being written.
pub(crate) struct Upload<'a> {
    backend: &'a Backend,
    path: Path,
    /// The name until the end, in a directory.
    staging: Option<Path>,
    parts: Option<Box<dyn MultipartUpload>>,
    /// Parts that are on their way.
    under_way: VecDeque<Part>,
    /// The early writeback of a copy in a directory.
    writeback: Option<Writeback>,
}

/// A part on its way. Its task is aborted when it is dropped.
struct Part {
    task: JoinHandle<object_store::Result<()>>,
    bytes: u64,
    /// The time that its bytes need on the slowest link.
    transfer: Duration,
}

impl Drop for Part {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<'a> Upload<'a> {
    /// Begins a copy.
    pub(crate) async fn begin(backend: &'a Backend, path: Path) -> Result<Self, Error> {
        let staging = match &backend.form {
            Form::Directory(_) => Some(Path::from_iter([STAGING, &Uuid::new_v4().to_string()])),
            Form::S3 => None,
        };
        let target = staging.as_ref().unwrap_or(&path);
        let begun = backend.store.put_multipart(target);
        let parts = Backend::within(backend.settings.patience, begun).await;
        let parts = parts.map_err(|fault| fault.unexpected("beginning a copy"))?;
        let writeback = match (&backend.form, &staging) {
            (Form::Directory(root), Some(staging)) => Some(Writeback::of(root, staging)),
            _ => None,
        };
        Ok(Self {
            backend,
            path,
            staging,
            parts: Some(parts),
            under_way: VecDeque::new(),
            writeback,
        })
    }

    fn patience(&self) -> Duration {
        self.backend.settings.patience
    }

    /// Sends a part, in the background. Waits if too many are on their way.
    pub(crate) async fn part(&mut self, pieces: Vec<Bytes>) -> Result<(), Error> {
        while self.under_way.len() + 1 >= PARTS_IN_MEMORY_MAX {
            self.oldest().await?;
        }
        let Some(parts) = self.parts.as_mut() else {
            return Err(Error::Down("the copy is complete".to_owned()));
        };
        let payload = PutPayload::from_iter(pieces);
        let bytes = payload.content_length() as u64;
        let transfer = Duration::from_secs(bytes / BYTES_PER_SECOND_MIN);
        let task = tokio::spawn(parts.put_part(payload));
        self.under_way.push_back(Part {
            task,
            bytes,
            transfer,
        });
        Ok(())
    }

    /// Waits for the oldest part that is on its way.
    async fn oldest(&mut self) -> Result<(), Error> {
        let Some(part) = self.under_way.front_mut() else {
            return Ok(());
        };
        let patience = self.backend.settings.patience + part.transfer;
        let done = match tokio::time::timeout(patience, &mut part.task).await {
            Err(_) => Err(Error::Slow(patience)),
            Ok(Err(error)) => Err(Error::Down(error.to_string())),
            Ok(Ok(done)) => done.map_err(|e| Fault::from(e).unexpected("writing a part")),
        };
        if let (Some(part), Ok(()), Some(writeback)) =
            (self.under_way.pop_front(), &done, &mut self.writeback)
        {
            writeback.written(part.bytes);
        }
        done
    }

    /// Gives the copy its name. Returns false if the name exists; the copy is discarded then.
    pub(crate) async fn complete(mut self) -> Result<bool, Error> {
        while !self.under_way.is_empty() {
            self.oldest().await?;
        }
        let patience = self.patience();
        let Some(parts) = self.parts.as_mut() else {
            return Err(Error::Down("the copy is complete".to_owned()));
        };
        match Backend::within(patience, parts.complete()).await {
            Ok(_) => self.parts = None,
            Err(Fault::Exists) => return Ok(false),
            Err(fault) => return Err(fault.unexpected("completing a copy")),
        }
        match self.staging.take() {
            None => Ok(true),
            Some(staging) => {
                let named = publish(self.backend, &staging, &self.path).await;
                if !matches!(named, Ok(true)) {
                    let _ = self.backend.remove(&staging).await;
                }
                named
            }
        }
    }
}

/// Makes the kernel write a copy to the disk while its next bytes arrive.
struct Writeback {
    /// The file that the library writes: it appends `#1` to the name in `staging/`. Without such a
    /// file, all bytes are written at the end.
    file: Option<Arc<File>>,
    written: u64,
    begun: u64,
}

impl Writeback {
    fn of(root: &FilePath, staging: &Path) -> Self {
        let file = File::open(root.join(format!("{staging}#1")));
        Self {
            file: file.ok().map(Arc::new),
            written: 0,
            begun: 0,
        }
    }

    /// Notes that bytes were written to the file.
    fn written(&mut self, bytes: u64) {
        self.written += bytes;
        let more = self.written - self.begun;
        if more < WRITEBACK_BYTES {
            return;
        }
        let from = std::mem::replace(&mut self.begun, self.written);
        if let Some(file) = self.file.clone() {
            // Advice only: the sync at the end reports errors of the disk.
            drop(tokio::task::spawn_blocking(move || {
                rustix::fs::fadvise(file, from, NonZeroU64::new(more), Advice::DontNeed)
            }));
        }
    }
}

impl Drop for Upload<'_> {
    fn drop(&mut self) {
        self.under_way.clear();
        let patience = self.patience();
        if let Some(mut parts) = self.parts.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move { tokio::time::timeout(patience, parts.abort()).await });
        }
    }
}

/// Writes a copy of one part to a bucket with one request. Returns false if the name exists.
pub(crate) async fn put_whole(
    backend: &Backend,
    path: &Path,
    pieces: Vec<Bytes>,
) -> Result<bool, Error> {
    let payload = PutPayload::from_iter(pieces);
    let transfer = Duration::from_secs(payload.content_length() as u64 / BYTES_PER_SECOND_MIN);
    let options = PutOptions::from(PutMode::Create);
    let put = backend.store.put_opts(path, payload, options);
    match Backend::within(backend.settings.patience + transfer, put).await {
        Ok(_) => Ok(true),
        Err(Fault::Exists) => Ok(false),
        Err(fault) => Err(fault.unexpected("writing a copy")),
    }
}

/// Gives a whole file in `staging/` its name. Returns false if the name exists.
async fn publish(backend: &Backend, staging: &Path, path: &Path) -> Result<bool, Error> {
    let patience = backend.settings.patience;
    let renamed = backend.store.rename_if_not_exists(staging, path);
    match tokio::time::timeout(patience, renamed).await {
        Err(_) => Err(Error::Slow(patience)),
        Ok(Ok(())) => Ok(true),
        Ok(Err(error)) if has_no_links(&error) => {
            publish_without_links(backend, staging, path).await
        }
        Ok(Err(error)) => match Fault::from(error) {
            Fault::Exists => Ok(false),
            fault => Err(fault.unexpected("naming a copy")),
        },
    }
}

/// Returns whether the file system has no hard links: EPERM on Linux, else EOPNOTSUPP or ENOSYS.
fn has_no_links(error: &object_store::Error) -> bool {
    matches!(
        io_kind(error),
        Some(io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied)
    )
}

/// The same on a file system without hard links. See rule 2 at the head.
async fn publish_without_links(
    backend: &Backend,
    staging: &Path,
    path: &Path,
) -> Result<bool, Error> {
    if backend.length(path).await?.is_some() {
        return Ok(false);
    }
    let renamed = backend.store.rename(staging, path);
    match Backend::within(backend.settings.patience, renamed).await {
        Ok(()) => Ok(true),
        Err(fault) => Err(fault.unexpected("naming a copy")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Location, Settings};

    /// Linux answers EPERM to a hard link on FAT; no such file system can be mounted by a test
    /// without root.
    #[tokio::test]
    async fn a_file_system_without_links_gets_no_second_copy_either() {
        let home = tempfile::tempdir().unwrap();
        let location = Location::Directory(home.path().to_path_buf());
        let backend = Backend::open(&location, Settings::default()).await;
        let backend = backend.unwrap().unwrap();
        let name = Path::from("objects/a");
        for (staged, bytes, wanted) in [("staging/1", "one", true), ("staging/2", "two", false)] {
            let staged = Path::from(staged);
            backend.create_small(&staged, bytes.into()).await.unwrap();
            let named = publish_without_links(&backend, &staged, &name).await;
            assert_eq!(named.unwrap(), wanted);
        }
        assert_eq!(backend.small(&name).await.unwrap().unwrap(), "one");
        let eperm = io::Error::from_raw_os_error(libc_eperm());
        let error = object_store::Error::Generic {
            store: "test",
            source: Box::new(eperm),
        };
        assert!(has_no_links(&error));
    }

    fn libc_eperm() -> i32 {
        1
    }
}
