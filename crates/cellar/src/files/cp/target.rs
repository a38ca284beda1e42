//! The target of a copy: a name in a directory of this machine or of AFS, behind one interface.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use cellar_client::{Client, Error, Follow, Node, Source, Stop, Upload, UploadStep};
use cellar_wire::ids::AfsTime;
use cellar_wire::object::Shape;
use cellar_wire::rxafs::AfsStoreStatus;

use super::origin::Origin;
use crate::failure::{Failure, Outcome};
use crate::files::{join, make, printable};

/// Bytes of an AFS file that are written to a local file at a time.
const PIECE_BYTES: u64 = 1 << 20;

/// A name under which a copy is made.
pub(super) enum Destination {
    Local(PathBuf),
    Afs(AfsDestination),
}

/// A name in a directory of AFS.
pub(super) struct AfsDestination {
    pub(super) parent: Arc<Node>,
    pub(super) name: Bytes,
    pub(super) path: String,
}

/// The contents for a file.
pub(super) struct Filling<'a> {
    /// The range of bytes to write. The file ends at its end.
    pub(super) range: Range<u64>,
    /// The layout of its objects, if the file is new.
    pub(super) shape: Option<Shape>,
    /// Aborts the transfer when it is set.
    pub(super) stop: &'a Stop,
}

/// An existing directory that receives copies.
pub(super) enum Directory {
    Local(PathBuf),
    Afs(Arc<Node>, String),
}

impl Directory {
    /// The node, if the directory is in AFS.
    pub(super) fn node(&self) -> Option<&Node> {
        match self {
            Self::Local(_) => None,
            Self::Afs(node, _) => Some(node),
        }
    }

    /// The target for a name in this directory. Returns `None` if the name would lead out of it: a
    /// server must not be able to make this client write elsewhere.
    pub(super) fn child(&self, name: Bytes) -> Option<Destination> {
        if name.contains(&b'/') || matches!(&name[..], b"" | b"." | b"..") {
            return None;
        }
        Some(match self {
            Self::Local(path) => Destination::Local(path.join(OsStr::from_bytes(&name))),
            Self::Afs(node, path) => Destination::Afs(AfsDestination {
                parent: node.clone(),
                path: join(path, &printable(&name)),
                name,
            }),
        })
    }

    /// Sets the mode of a directory after it has been filled. A mode without `w` would have
    /// prevented that.
    pub(super) fn finish(&self, mode: u32) -> Outcome {
        let Self::Local(path) = self else {
            return Ok(());
        };
        let mode = fs::Permissions::from_mode(mode & 0o777 | 0o700);
        fs::set_permissions(path, mode)
            .map_err(|cause| Failure::new(format!("{}: {cause}", path.display())))
    }
}

impl Destination {
    /// The path, for messages.
    pub(super) fn path(&self) -> String {
        match self {
            Self::Local(path) => path.display().to_string(),
            Self::Afs(place) => place.path.clone(),
        }
    }

    fn at(&self) -> impl Fn(io::Error) -> Failure + use<> {
        let path = self.path();
        move |cause| Failure::new(format!("{path}: {cause}"))
    }

    /// Returns the directory; makes it if it does not exist.
    pub(super) async fn directory(&self, client: &Client, mode: u32) -> Outcome<Directory> {
        match self {
            Self::Local(path) => {
                match fs::create_dir(path) {
                    Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {
                    }
                    other => other.map_err(self.at())?,
                }
                Ok(Directory::Local(path.clone()))
            }
            Self::Afs(place) => {
                let status = AfsStoreStatus {
                    unix_mode: Some(mode),
                    ..Default::default()
                };
                let made = place.on(client)?.make_dir(status).await;
                let node = place.or_there(client, made).await?;
                Ok(Directory::Afs(Arc::new(node), place.path.clone()))
            }
        }
    }

    /// Makes a symbolic link. Replaces an existing link or file.
    pub(super) async fn link(&self, client: &Client, text: Bytes) -> Outcome {
        match self {
            Self::Local(path) => {
                if fs::symlink_metadata(path).is_ok_and(|about| !about.is_dir()) {
                    fs::remove_file(path).map_err(self.at())?;
                }
                std::os::unix::fs::symlink(OsStr::from_bytes(&text), path).map_err(self.at())
            }
            Self::Afs(place) => {
                let status = make::new_status(0o777);
                match place.on(client)?.symlink(text.clone(), status).await {
                    Err(error) if exists(&error) => {
                        place.on(client)?.remove_file().await?;
                        place.on(client)?.symlink(text, status).await?;
                    }
                    other => drop(other?),
                }
                Ok(())
            }
        }
    }

    /// Opens the file for writing; creates it if it does not exist.
    pub(super) async fn file(
        &self,
        client: &Client,
        mode: u32,
        modified: Option<AfsTime>,
    ) -> Outcome<OpenFile> {
        match self {
            Self::Local(path) => {
                let mut options = fs::OpenOptions::new();
                options.write(true).mode(mode & 0o777);
                let (file, is_new) = match options.clone().create_new(true).open(path) {
                    Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => {
                        options.create(true).truncate(false);
                        (options.open(path).map_err(self.at())?, false)
                    }
                    made => (made.map_err(self.at())?, true),
                };
                Ok(OpenFile::Local(file, About { modified, is_new }))
            }
            Self::Afs(place) => {
                let status = AfsStoreStatus {
                    unix_mode: Some(mode),
                    client_mod_time: modified,
                    ..Default::default()
                };
                let made = place.on(client)?.create_file(status).await;
                let is_new = made.is_ok();
                let node = place.or_there(client, made).await?;
                let about = About { modified, is_new };
                Ok(OpenFile::Afs(node, about))
            }
        }
    }

    /// The current state of the file, as an origin to read from.
    pub(super) async fn look(&self, client: &Client, file: &OpenFile) -> Outcome<Origin> {
        match (self, file) {
            (Self::Local(path), OpenFile::Local(open, _)) => Ok(Origin::Local {
                path: path.clone(),
                about: open.metadata().map_err(self.at())?,
            }),
            (_, OpenFile::Local(..)) => Err(Failure::new(format!("{}: moved", self.path()))),
            (_, OpenFile::Afs(node, _)) => Ok(Origin::Afs {
                path: self.path(),
                node: client.node(&node.volume, node.fid).await?,
            }),
        }
    }

    /// Fills a file that [`Destination::file`] opened from a source of unknown length, for instance
    /// standard input.
    pub(super) async fn fill(
        &self,
        client: &Client,
        file: &OpenFile,
        source: &mut impl Source,
        progress: impl Fn(u64),
    ) -> Outcome {
        match file {
            OpenFile::Local(out, _) => self.write(out, 0, source, progress).await,
            OpenFile::Afs(node, about) => {
                let path = self.path();
                client
                    .store(node, &path, source, about.modified, progress)
                    .await?;
                Ok(())
            }
        }
    }

    /// Fills a range of a file. The file ends at the end of the range.
    pub(super) async fn fill_range(
        &self,
        client: &Client,
        file: &OpenFile,
        source: &mut impl Source,
        Filling { range, shape, stop }: Filling<'_>,
        step: impl Fn(UploadStep),
    ) -> Outcome {
        match file {
            OpenFile::Local(out, About { modified, .. }) => {
                let progress = |bytes| step(UploadStep::Sent(bytes));
                let written = stop.unless(self.write(out, range.start, source, progress));
                written.await.ok_or_else(Failure::interrupted)??;
                if let Some(modified) = modified {
                    let when = UNIX_EPOCH + Duration::from_secs(u64::from(modified.0));
                    out.set_modified(when).map_err(self.at())?;
                }
            }
            OpenFile::Afs(node, about) => {
                let upload = Upload {
                    range,
                    modified: about.modified,
                    shape,
                    stop: stop.clone(),
                };
                let path = self.path();
                client.upload(node, &path, source, &upload, step).await?;
            }
        }
        Ok(())
    }

    /// Removes a file that was created for this copy, if it is still empty. A partial copy stays:
    /// `--resume` can continue it.
    pub(super) async fn give_up(&self, client: &Client, file: &OpenFile) {
        if let (Self::Local(path), OpenFile::Local(out, About { is_new: true, .. })) = (self, file)
        {
            if out.metadata().is_ok_and(|about| about.len() == 0)
                && let Err(cause) = fs::remove_file(path)
            {
                tracing::debug!(%cause, "cannot remove an empty file");
            }
            return;
        }
        let (Self::Afs(place), OpenFile::Afs(node, About { is_new: true, .. })) = (self, file)
        else {
            return;
        };
        let now = client.node(&node.volume, node.fid).await;
        if now.is_ok_and(|now| now.status.length == 0)
            && let Ok(place) = place.on(client)
            && let Err(failure) = place.remove_file().await
        {
            tracing::debug!(%failure, "cannot remove an empty file");
        }
    }

    /// Writes from `position` on to a file of this machine and ends the file there. While one piece
    /// is written, the next is fetched.
    async fn write(
        &self,
        out: &fs::File,
        mut position: u64,
        source: &mut impl Source,
        progress: impl Fn(u64),
    ) -> Outcome {
        out.set_len(position).map_err(self.at())?;
        let mut chunks = source.take(PIECE_BYTES).await.map_err(Failure::from)?;
        while !chunks.is_empty() {
            let length: u64 = chunks.iter().map(|chunk| chunk.len() as u64).sum();
            let file = out.try_clone().map_err(self.at())?;
            let write = tokio::task::spawn_blocking(move || {
                let mut at = position;
                for chunk in chunks {
                    file.write_all_at(&chunk, at)?;
                    at += chunk.len() as u64;
                }
                Ok::<_, io::Error>(())
            });
            let (written, next) = tokio::join!(write, source.take(PIECE_BYTES));
            written
                .map_err(io::Error::other)
                .flatten()
                .map_err(self.at())?;
            chunks = next.map_err(Failure::from)?;
            position += length;
            progress(length);
        }
        Ok(())
    }
}

/// A file that is open for the copy.
pub(super) enum OpenFile {
    Local(fs::File, About),
    Afs(Node, About),
}

/// Facts about a file that is being filled.
pub(super) struct About {
    /// The modification time that the file gets at the end.
    modified: Option<AfsTime>,
    /// Whether the file was created for this copy.
    is_new: bool,
}

impl OpenFile {
    /// The node, if the file is in AFS.
    pub(super) fn node(&self) -> Option<&Node> {
        match self {
            Self::Local(..) => None,
            Self::Afs(node, _) => Some(node),
        }
    }

    /// The length at the time of opening, if the file is in AFS; otherwise 0.
    pub(super) fn length(&self) -> u64 {
        self.node().map_or(0, |node| node.status.length)
    }
}

impl AfsDestination {
    fn on<'a>(&'a self, client: &'a Client) -> Result<cellar_client::NameInDirectory<'a>, Error> {
        client.place(&self.parent, &self.name, &self.path)
    }

    /// The node that was made, or the node that already has this name, after links and mount points
    /// are followed.
    async fn or_there(&self, client: &Client, made: Result<Node, Error>) -> Result<Node, Error> {
        match made {
            Err(error) if exists(&error) => {}
            other => return other,
        }
        let Self { parent, name, path } = self;
        let found = match client.lookup_name(parent, name).await? {
            Some(fid) => Some(client.node(&parent.volume, fid).await?),
            None => None,
        };
        match found {
            Some(node) if !node.is_link() && !node.is_mount_point() => Ok(node),
            // Walk the whole path from the top: that follows links and mount points.
            _ => client.find(path, Follow::ALL).await,
        }
    }
}

fn exists(error: &Error) -> bool {
    error.code() == Some(cellar_wire::AbortCode::EEXIST)
}
