//! An archive, and the operations on one copy.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::ObjectStore;
use object_store::path::Path;
use tokio::sync::OnceCell;

use crate::backend::{Backend, Form};
use crate::digest::Hasher;
use crate::fault::Fault;
use crate::identity::{self, Expected, Identity, OBJECTS};
use crate::limits::{
    COPY_BYTES_MAX, DIRECTORY_PART_BYTES, PART_BYTES_MIN, PIECE_BYTES_MAX, part_bytes,
};
use crate::reader::Reader;
use crate::upload::{STAGING, Upload, put_whole};
use crate::{CellId, Error, Location, ObjectKey, Receipt, Settings, Sink, Source};

/// An open archive. Clones share it.
#[derive(Clone, Debug)]
pub struct Archive {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    backend: Backend,
    identity: Identity,
    /// The counter at the time of the open.
    session_before: u64,
    /// The session that this archive began with its first change.
    session: OnceCell<u64>,
}

impl Archive {
    /// Makes a location an archive of a cell. `now` is in seconds since 1970.
    ///
    /// # Errors
    /// [`Error::InUse`] if an archive or anything else is there; nothing is written then. Errors of
    /// the location.
    pub async fn create(
        location: &Location,
        settings: Settings,
        cell: CellId,
        cell_name: &str,
        now: u64,
    ) -> Result<Identity, Error> {
        identity::create(location, settings, cell, cell_name, now).await
    }

    /// Opens an archive if it is the expected one. Writes nothing.
    ///
    /// # Errors
    /// [`Error::NotAnArchive`], [`Error::EmptyThoughUsed`], [`Error::Foreign`],
    /// [`Error::OtherArchive`], [`Error::Older`], [`Error::Identity`], and errors of the location.
    pub async fn open(
        location: &Location,
        settings: Settings,
        expected: &Expected,
    ) -> Result<Self, Error> {
        let was_used = expected.session > 0 || expected.copies > 0;
        let Some(backend) = Backend::open(location, settings).await? else {
            return Err(match was_used {
                true => Error::EmptyThoughUsed("its directory is missing; is it mounted?"),
                false => Error::NotAnArchive,
            });
        };
        let identity = identity::check(&backend, expected).await?;
        let session_before = identity::newest_session(&backend).await?;
        Ok(Self {
            shared: Arc::new(Shared {
                backend,
                identity,
                session_before,
                session: OnceCell::new(),
            }),
        })
    }

    /// The identity of the archive at a location, also of another cell; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Identity`], and errors of the location.
    pub async fn identify(
        location: &Location,
        settings: Settings,
    ) -> Result<Option<Identity>, Error> {
        match Backend::open(location, settings).await? {
            None => Ok(None),
            Some(backend) => identity::read(&backend).await,
        }
    }

    /// The identity.
    pub fn identity(&self) -> &Identity {
        &self.shared.identity
    }

    /// The counter of the sessions that wrote, this one included after its first change. The caller
    /// keeps the highest for [`Expected::session`].
    pub fn session(&self) -> u64 {
        let own = self.shared.session.get();
        own.copied().unwrap_or(self.shared.session_before)
    }

    /// The time limits.
    pub fn settings(&self) -> Settings {
        self.shared.backend.settings
    }

    /// Asks the archive for its identity. An answer means that it is up and still the same.
    ///
    /// # Errors
    /// [`Error::EmptyThoughUsed`] if the identity disappeared, and errors of the archive.
    pub async fn check(&self) -> Result<(), Error> {
        identity::check_again(&self.shared.backend, &self.shared.identity).await
    }

    /// Writes a copy of `length` bytes, durably.
    ///
    /// If a copy of this name has the same bytes, it stays and the put succeeds.
    ///
    /// # Errors
    /// [`Error::Exists`] if the copy has other bytes, [`Error::Source`] if the source fails or has
    /// another length, and errors of the archive. Nothing is visible under the name then.
    pub async fn put(
        &self,
        key: &ObjectKey,
        length: u64,
        source: &mut dyn Source,
    ) -> Result<Receipt, Error> {
        if length > COPY_BYTES_MAX {
            return Err(Error::Source(format!(
                "{length} bytes are too many for one copy"
            )));
        }
        let path = self.path(key)?;
        self.begin_change().await?;
        if let Some(there) = self.shared.backend.length(&path).await? {
            return self.compare_existing(key, length, there, source).await;
        }
        let (receipt, is_new) = self.write(&path, length, source).await?;
        if !is_new {
            // The name appeared meanwhile: the other writer may have put the same bytes.
            return match self.verify(key, &receipt).await {
                Ok(()) => Ok(receipt),
                Err(Error::WrongBytes { .. }) => Err(Error::Exists(*key)),
                Err(error) => Err(error),
            };
        }
        // A file system that was unmounted meanwhile, or a server that lies about success.
        self.still_mounted().await?;
        match self.shared.backend.length(&path).await? {
            Some(there) if there == length => Ok(receipt),
            Some(there) => Err(Error::WrongBytes {
                key: *key,
                reason: format!("{there} bytes instead of {length}, just after the put"),
            }),
            None => Err(Error::Missing(*key)),
        }
    }

    /// Writes a copy whose name is free. Returns false if the name appeared meanwhile.
    async fn write(
        &self,
        path: &Path,
        length: u64,
        source: &mut dyn Source,
    ) -> Result<(Receipt, bool), Error> {
        let backend = &self.shared.backend;
        if matches!(backend.form, Form::S3) && length < PART_BYTES_MIN {
            // One byte more than announced shows a source that is too long.
            let pieces = read_part(source, length + 1).await?;
            let hasher = hash(Hasher::default(), pieces.clone()).await?;
            let receipt = finished(hasher, length)?;
            return Ok((receipt, put_whole(backend, path, pieces).await?));
        }
        let mut upload = Upload::begin(backend, path.clone()).await?;
        let receipt = self.send(&mut upload, length, source).await?;
        Ok((receipt, upload.complete().await?))
    }

    /// Sends all bytes of a source in parts, and hashes them on the way.
    async fn send(
        &self,
        upload: &mut Upload<'_>,
        length: u64,
        source: &mut dyn Source,
    ) -> Result<Receipt, Error> {
        let part_bytes = match self.shared.backend.form {
            Form::Directory(_) => DIRECTORY_PART_BYTES,
            Form::S3 => part_bytes(length),
        };
        let mut hasher = Hasher::default();
        loop {
            let pieces = read_part(source, part_bytes).await?;
            let bytes: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
            if hasher.length() + bytes > length {
                return Err(Error::Source(format!("it has more than {length} bytes")));
            }
            if bytes > 0 {
                upload.part(pieces.clone()).await?;
                hasher = hash(hasher, pieces).await?;
            }
            if bytes < part_bytes {
                break;
            }
        }
        finished(hasher, length)
    }

    /// A put whose name exists: compares all bytes with those of the source.
    async fn compare_existing(
        &self,
        key: &ObjectKey,
        length: u64,
        there: u64,
        source: &mut dyn Source,
    ) -> Result<Receipt, Error> {
        if there != length {
            return Err(Error::Exists(*key));
        }
        let mut hasher = Hasher::default();
        loop {
            let piece = read_piece(source, PIECE_BYTES_MAX).await?;
            if piece.is_empty() {
                break;
            }
            hasher = hash(hasher, vec![piece]).await?;
            if hasher.length() > length {
                return Err(Error::Source(format!("it has more than {length} bytes")));
            }
        }
        let receipt = finished(hasher, length)?;
        match self.verify(key, &receipt).await {
            Ok(()) => Ok(receipt),
            Err(Error::WrongBytes { .. }) => Err(Error::Exists(*key)),
            Err(error) => Err(error),
        }
    }

    /// Reads a copy into a sink. The sink is finished only if all bytes are those of the receipt.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::WrongBytes`], [`Error::Sink`], and errors of the archive.
    pub async fn get(
        &self,
        key: &ObjectKey,
        receipt: &Receipt,
        sink: &mut dyn Sink,
    ) -> Result<(), Error> {
        let copy = self.open_copy(key, receipt).await?;
        self.read_into(copy, key, receipt, sink).await
    }

    /// The second half of [`Archive::get`].
    pub(crate) async fn read_into(
        &self,
        mut reader: Reader,
        key: &ObjectKey,
        receipt: &Receipt,
        sink: &mut dyn Sink,
    ) -> Result<(), Error> {
        let failed = |error: std::io::Error| Error::Sink(error.to_string());
        let mut hasher = Hasher::default();
        while let Some(piece) = reader.next().await.map_err(|fault| of_copy(key, fault))? {
            if hasher.length() + piece.len() as u64 > receipt.length {
                // The sink has no space for these bytes.
                hasher = hash(hasher, vec![piece]).await?;
                break;
            }
            let hashed = hash(hasher, vec![piece.clone()]);
            let (hashed, written) = futures_util::future::join(hashed, sink.write(piece)).await;
            written.map_err(failed)?;
            hasher = hashed?;
        }
        compare(key, receipt, hasher)?;
        sink.finish().await.map_err(failed)
    }

    /// Reads a copy and compares it with its receipt.
    ///
    /// # Errors
    /// As [`Archive::get`].
    pub async fn verify(&self, key: &ObjectKey, receipt: &Receipt) -> Result<(), Error> {
        let mut reader = self.open_copy(key, receipt).await?;
        let mut hasher = Hasher::default();
        while let Some(piece) = reader.next().await.map_err(|fault| of_copy(key, fault))? {
            hasher = hash(hasher, vec![piece]).await?;
            if hasher.length() > receipt.length {
                break;
            }
        }
        compare(key, receipt, hasher)
    }

    /// Opens a copy whose length is that of its receipt.
    pub(crate) async fn open_copy(
        &self,
        key: &ObjectKey,
        receipt: &Receipt,
    ) -> Result<Reader, Error> {
        let opened = Reader::open(&self.shared.backend, &self.path(key)?).await;
        match opened {
            Ok((reader, length)) if length == receipt.length => Ok(reader),
            Ok((_, length)) => Err(Error::WrongBytes {
                key: *key,
                reason: format!("{length} bytes instead of {}", receipt.length),
            }),
            // A directory that is not mounted lacks all copies: none of them is lost.
            Err(Fault::Missing) => {
                self.check().await?;
                Err(Error::Missing(*key))
            }
            Err(fault) => Err(fault.unexpected("opening a copy")),
        }
    }

    /// The length of a copy; `None` if the archive does not have it.
    ///
    /// # Errors
    /// Errors of the archive.
    pub async fn length(&self, key: &ObjectKey) -> Result<Option<u64>, Error> {
        let length = self.shared.backend.length(&self.path(key)?).await?;
        if length.is_none() {
            self.check().await?;
        }
        Ok(length)
    }

    /// Removes a copy, durably. It need not exist.
    ///
    /// # Errors
    /// Errors of the archive.
    pub async fn remove(&self, key: &ObjectKey) -> Result<(), Error> {
        let path = self.path(key)?;
        self.begin_change().await?;
        self.shared.backend.remove(&path).await
    }

    /// Removes what interrupted puts left in a directory before a time. Returns the number of
    /// files. S3 removes abandoned uploads by a rule of the bucket
    /// (`AbortIncompleteMultipartUpload`).
    ///
    /// # Errors
    /// Errors of the archive.
    pub async fn remove_abandoned(&self, before: SystemTime) -> Result<usize, Error> {
        let backend = &self.shared.backend;
        let Form::Directory(root) = &backend.form else {
            return Ok(0);
        };
        let staging = root.join(STAGING);
        crate::backend::blocking(backend.settings, move || remove_older(&staging, before))
            .await?
            .map_err(|error| Error::Down(error.to_string()))
    }

    /// The names of the copies of this cell, in no order.
    pub fn copies(&self) -> impl futures_util::Stream<Item = Result<(ObjectKey, u64), Error>> {
        let prefix = Path::from_iter([OBJECTS, &self.shared.identity.cell.to_string()]);
        let found = self.shared.backend.store.list(Some(&prefix));
        found
            .map_err(|error| Fault::from(error).unexpected("listing copies"))
            .try_filter_map(|object| {
                let name = object.location.as_ref().strip_prefix("objects/");
                let key = name.and_then(|name| name.parse().ok());
                std::future::ready(Ok(key.map(|key| (key, object.size))))
            })
    }

    fn path(&self, key: &ObjectKey) -> Result<Path, Error> {
        if key.cell != self.shared.identity.cell {
            return Err(Error::Foreign {
                found: self.shared.identity.cell,
                wanted: key.cell,
            });
        }
        Ok(Path::from(format!("{OBJECTS}/{key}")))
    }

    /// Begins the session with the first change.
    async fn begin_change(&self) -> Result<(), Error> {
        let backend = &self.shared.backend;
        self.still_mounted().await?;
        let begun = &self.shared.session;
        begun
            .get_or_try_init(|| identity::begin_session(backend))
            .await?;
        Ok(())
    }

    /// Checks that a directory is still the archive. A bucket stays the same.
    async fn still_mounted(&self) -> Result<(), Error> {
        match self.shared.backend.form {
            Form::Directory(_) => self.check().await,
            Form::S3 => Ok(()),
        }
    }
}

/// The receipt of a source that has ended, if it had the announced length.
fn finished(hasher: Hasher, length: u64) -> Result<Receipt, Error> {
    match hasher.length() {
        found if found == length => Ok(hasher.finish()),
        found if found > length => Err(Error::Source(format!("it has more than {length} bytes"))),
        found => Err(Error::Source(format!(
            "it has {found} bytes instead of {length}"
        ))),
    }
}

/// Compares what was read with the receipt.
fn compare(key: &ObjectKey, receipt: &Receipt, read: Hasher) -> Result<(), Error> {
    match receipt.difference(&read.finish()) {
        None => Ok(()),
        Some(reason) => Err(Error::WrongBytes { key: *key, reason }),
    }
}

/// The error of a read in the middle of a copy.
fn of_copy(key: &ObjectKey, fault: Fault) -> Error {
    match fault {
        Fault::Missing => Error::Missing(*key),
        fault => fault.unexpected("reading a copy"),
    }
}

/// Hashes pieces on a thread of the blocking pool: 8 MiB take 20 ms.
async fn hash(mut hasher: Hasher, pieces: Vec<Bytes>) -> Result<Hasher, Error> {
    let hashed = tokio::task::spawn_blocking(move || {
        pieces.iter().for_each(|piece| hasher.update(piece));
        hasher
    });
    hashed.await.map_err(|error| Error::Down(error.to_string()))
}

/// The next bytes of a source; empty at its end.
async fn read_piece(source: &mut dyn Source, most: usize) -> Result<Bytes, Error> {
    let piece = source.read(most).await;
    let piece = piece.map_err(|error| Error::Source(error.to_string()))?;
    match piece.len() > most {
        true => Err(Error::Source(format!(
            "{} bytes instead of {most}",
            piece.len()
        ))),
        false => Ok(piece),
    }
}

/// The next part of a source: shorter only at its end.
async fn read_part(source: &mut dyn Source, bytes: u64) -> Result<Vec<Bytes>, Error> {
    let mut pieces = Vec::new();
    let mut wanted = bytes;
    while wanted > 0 {
        let most = usize::try_from(wanted).unwrap_or(usize::MAX);
        let piece = read_piece(source, most.min(PIECE_BYTES_MAX)).await?;
        if piece.is_empty() {
            break;
        }
        wanted -= piece.len() as u64;
        pieces.push(piece);
    }
    Ok(pieces)
}

/// Removes the files of a directory that have not changed since a time.
fn remove_older(directory: &std::path::Path, before: SystemTime) -> std::io::Result<usize> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    let mut removed = 0;
    for entry in entries {
        let entry = entry?;
        let about = entry.metadata()?;
        if about.is_file() && about.modified()? < before {
            std::fs::remove_file(entry.path())?;
            removed += 1;
        }
    }
    Ok(removed)
}
