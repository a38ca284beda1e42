//! The target of a copy: a name in a directory of this machine or of AFS, behind one interface.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use cellar_client::{Client, Error, Follow, Node, Source, Stop, Upload, UploadStep};
use cellar_wire::ids::AfsTime;
use cellar_wire::object::Shape;
use cellar_wire::rxafs::AfsStoreStatus;
use rustix::fs::OFlags;

use super::origin::Origin;
use super::part::{Names, Plan, local_plan, take_after};
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
    pub(super) names: Names,
}

/// How a file is opened for a copy.
#[derive(Clone, Copy)]
pub(super) struct Opening {
    /// Mode bits of a new file.
    pub(super) mode: u32,
    /// The modification time that the file gets at the end.
    pub(super) modified: Option<AfsTime>,
    /// Open the part that an earlier copy has left, or else the file itself.
    pub(super) resume: bool,
    /// Open the file itself.
    pub(super) in_place: bool,
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
    Afs(Arc<Node>, String, Names),
}

impl Directory {
    /// The node, if the directory is in AFS.
    pub(super) fn node(&self) -> Option<&Node> {
        match self {
            Self::Local(_) => None,
            Self::Afs(node, ..) => Some(node),
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
            Self::Afs(node, path, names) => Destination::Afs(AfsDestination {
                parent: node.clone(),
                path: join(path, &printable(&name)),
                name,
                names: names.clone(),
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
                let is_new = made.is_ok();
                let node = place.or_there(client, made).await?;
                let names = match is_new {
                    true => Names::none(),
                    false => Names::read(client, &node).await,
                };
                Ok(Directory::Afs(Arc::new(node), place.path.clone(), names))
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

    /// Opens the file for writing, under its part name if that is possible.
    pub(super) async fn file(&self, client: &Client, how: Opening) -> Outcome<OpenFile> {
        match self {
            Self::Local(path) => match local_plan(path).filter(|_| !how.in_place) {
                Some((part, old)) => self.local_part(part, old, how),
                None => self.local(path, how),
            },
            Self::Afs(place) => {
                let plan = match how.in_place {
                    true => Plan::InPlace,
                    false => {
                        let names = &place.names;
                        names.plan(client, &place.parent, &place.name).await?
                    }
                };
                if let Plan::Part(part, old) = plan
                    && let Some(file) = place.part(client, part, old, how).await?
                {
                    return Ok(file);
                }
                let (node, is_new) = place.in_place(client, how).await?;
                let about = About {
                    modified: how.modified,
                    is_new,
                    part: None,
                    replaces: None,
                };
                Ok(OpenFile::Afs(node, about))
            }
        }
    }

    /// Opens a file of this machine under its final name.
    fn local(&self, path: &Path, how: Opening) -> Outcome<OpenFile> {
        let mut options = fs::OpenOptions::new();
        options.write(true).mode(how.mode & 0o777);
        let (file, is_new) = match options.clone().create_new(true).open(path) {
            Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => {
                options.create(true).truncate(false);
                (options.open(path).map_err(self.at())?, false)
            }
            made => (made.map_err(self.at())?, true),
        };
        let about = About {
            modified: how.modified,
            is_new,
            part: None,
            replaces: None,
        };
        Ok(OpenFile::Local(file, about))
    }

    /// Opens a file of this machine under its part name.
    fn local_part(
        &self,
        part: PathBuf,
        old: Option<fs::Metadata>,
        how: Opening,
    ) -> Outcome<OpenFile> {
        let Self::Local(path) = self else {
            return Err(Failure::new(format!("{}: not a local file", self.path())));
        };
        let about = |is_new| About {
            modified: how.modified,
            is_new,
            part: Some(part.as_os_str().as_bytes().to_vec().into()),
            replaces: None,
        };
        let mut options = fs::OpenOptions::new();
        options.write(true);
        // Other users may have put a link under this name.
        options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        if how.resume {
            if let Ok(file) = options.open(&part) {
                return Ok(OpenFile::Local(file, about(false)));
            }
            if old.is_some() {
                return self.local(path, how);
            }
        }
        let _none = fs::remove_file(&part);
        let file = match options.mode(how.mode & 0o777).create_new(true).open(&part) {
            Ok(file) => file,
            // The directory may not be writable, and the file in it may be.
            Err(_) => return self.local(path, how),
        };
        if let Some(old) = &old
            && !take_after(&file, old)?
        {
            fs::remove_file(&part).map_err(self.at())?;
            return self.local(path, how);
        }
        Ok(OpenFile::Local(file, about(true)))
    }

    /// Gives a complete copy its final name.
    pub(super) async fn complete(&self, client: &Client, file: &OpenFile) -> Outcome {
        let Some(part) = &file.about().part else {
            return Ok(());
        };
        match self {
            Self::Local(path) => {
                fs::rename(OsStr::from_bytes(part), path).map_err(self.at())?;
            }
            Self::Afs(place) => {
                let (from, to) = (
                    (&*place.parent, &part[..]),
                    (&*place.parent, &place.name[..]),
                );
                client.rename(from, to, &place.path).await?;
            }
        }
        Ok(())
    }

    /// The current state of the file, as an origin to read from.
    pub(super) async fn look(&self, client: &Client, file: &OpenFile) -> Outcome<Origin> {
        match (self, file) {
            (Self::Local(path), OpenFile::Local(open, about)) => Ok(Origin::Local {
                path: about.local_path(path),
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

    /// Removes a file that was created for this copy, if it is still empty. Otherwise it stays:
    /// `--resume` can continue it. Returns the path of a part that stays.
    pub(super) async fn give_up(&self, client: &Client, file: &OpenFile) -> Option<String> {
        let about = file.about();
        let left = match (self, file) {
            (Self::Local(path), OpenFile::Local(out, _)) => {
                let path = about.local_path(path);
                let is_empty = out.metadata().is_ok_and(|about| about.len() == 0);
                if is_empty
                    && about.is_new
                    && let Err(cause) = fs::remove_file(&path)
                {
                    tracing::debug!(%cause, "cannot remove an empty file");
                }
                (!is_empty).then(|| path.display().to_string())
            }
            (Self::Afs(place), OpenFile::Afs(node, _)) => {
                let name = about.part.as_ref().unwrap_or(&place.name);
                let now = client.node(&node.volume, node.fid).await;
                let is_empty = now.is_ok_and(|now| now.status.length == 0);
                if is_empty
                    && about.is_new
                    && let Ok(place) = client.place(&place.parent, name, &place.path)
                    && let Err(failure) = place.remove_file().await
                {
                    tracing::debug!(%failure, "cannot remove an empty file");
                }
                let above = place.path.rsplit_once('/').map_or("", |(above, _)| above);
                (!is_empty).then(|| join(above, &printable(name)))
            }
            _ => None,
        };
        left.filter(|_| about.part.is_some())
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
    /// The part name in AFS, or the part path on this machine.
    part: Option<Bytes>,
    /// The file that the complete copy replaces.
    replaces: Option<Node>,
}

impl About {
    /// The path under which the file is now.
    fn local_path(&self, path: &Path) -> PathBuf {
        match &self.part {
            Some(part) => PathBuf::from(OsStr::from_bytes(part)),
            None => path.to_owned(),
        }
    }
}

impl OpenFile {
    fn about(&self) -> &About {
        match self {
            Self::Local(_, about) | Self::Afs(_, about) => about,
        }
    }

    /// The node, if the file is in AFS.
    pub(super) fn node(&self) -> Option<&Node> {
        match self {
            Self::Local(..) => None,
            Self::Afs(node, _) => Some(node),
        }
    }

    /// The node at the final name, if there is one.
    pub(super) fn target(&self) -> Option<&Node> {
        match &self.about().part {
            Some(_) => self.about().replaces.as_ref(),
            None => self.node(),
        }
    }

    /// The length at the time of opening, if the file is in AFS; otherwise 0.
    pub(super) fn length(&self) -> u64 {
        self.node().map_or(0, |node| node.status.length)
    }
}

fn new_status(mode: u32, modified: Option<AfsTime>) -> AfsStoreStatus {
    AfsStoreStatus {
        unix_mode: Some(mode),
        client_mod_time: modified,
        ..Default::default()
    }
}

impl AfsDestination {
    fn on<'a>(&'a self, client: &'a Client) -> Result<cellar_client::NameInDirectory<'a>, Error> {
        client.place(&self.parent, &self.name, &self.path)
    }

    /// Opens the file under its part name. Returns `None` if the copy has to be made in place.
    async fn part(
        &self,
        client: &Client,
        part: Bytes,
        replaces: Option<Node>,
        how: Opening,
    ) -> Outcome<Option<OpenFile>> {
        let place = || client.place(&self.parent, &part, &self.path);
        let left = match how.resume {
            true => client.lookup_name(&self.parent, &part).await?,
            false => None,
        };
        let (node, is_new) = match left {
            Some(fid) => (client.node(&self.parent.volume, fid).await?, false),
            None if how.resume && replaces.is_some() => return Ok(None),
            None => {
                let old = replaces.as_ref().map(|old| old.status.unix_mode);
                let status = new_status(old.unwrap_or(how.mode), how.modified);
                let made = match place()?.create_file(status).await {
                    // An earlier copy has left a part.
                    Err(error) if exists(&error) => {
                        place()?.remove_file().await?;
                        place()?.create_file(status).await
                    }
                    made => made,
                };
                (made?, true)
            }
        };
        if let Some(old) = &replaces
            && is_new
            && node.status.owner != old.status.owner
        {
            let status = AfsStoreStatus {
                owner: Some(old.status.owner),
                ..Default::default()
            };
            if client.set_status(&node, status, &self.path).await.is_err() {
                place()?.remove_file().await?;
                return Ok(None);
            }
        }
        let about = About {
            modified: how.modified,
            is_new,
            part: Some(part),
            replaces,
        };
        Ok(Some(OpenFile::Afs(node, about)))
    }

    /// Opens the file under its final name. Returns whether it was created. A caller that may write
    /// files may not always create them, so an existing file is not created first.
    async fn in_place(&self, client: &Client, how: Opening) -> Outcome<(Node, bool)> {
        let known = client.lookup_name(&self.parent, &self.name).await;
        if let Ok(Some(_)) = known {
            return Ok((self.there(client).await?, false));
        }
        let status = new_status(how.mode, how.modified);
        let made = self.on(client)?.create_file(status).await;
        let is_new = made.is_ok();
        Ok((self.or_there(client, made).await?, is_new))
    }

    /// The node that was made, or the node that already has this name.
    async fn or_there(&self, client: &Client, made: Result<Node, Error>) -> Result<Node, Error> {
        match made {
            Err(error) if exists(&error) => self.there(client).await,
            other => other,
        }
    }

    /// The node that has this name, after links and mount points are followed.
    async fn there(&self, client: &Client) -> Result<Node, Error> {
        let Self {
            parent, name, path, ..
        } = self;
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
