//! The source of a copy: a file, link or directory of this machine or of AFS, behind one interface.

use std::fs::{self, File, Metadata};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;

use bytes::Bytes;
use cellar_client::{Client, Follow, Node};
use cellar_wire::AbortCode;
use cellar_wire::ids::AfsTime;
use cellar_wire::rxafs::FileType;

use super::source::{AfsSource, LocalSource, Source};
use crate::failure::{Failure, Outcome};
use crate::files::{is_afs, join, printable};

/// A file, link or directory to copy.
pub(super) enum Origin {
    Local { path: PathBuf, about: Metadata },
    Afs { path: String, node: Node },
}

/// The type of an origin, as far as a copy needs it.
pub(super) enum Kind {
    Directory,
    Link,
    File,
    /// Left out, for this reason.
    Other(&'static str),
    /// The server did not return a status; the code says why.
    Unknown(AbortCode),
}

impl Origin {
    /// The origin for a path of the command line. A link at its end is followed.
    pub(super) async fn named(client: &Client, path: &str) -> Outcome<Self> {
        if is_afs(path) {
            let node = client.find(path, Follow::ALL).await?;
            let path = path.to_owned();
            return Ok(Self::Afs { path, node });
        }
        let about = fs::metadata(path).map_err(|cause| Failure::new(format!("{path}: {cause}")))?;
        Ok(Self::Local {
            path: PathBuf::from(path),
            about,
        })
    }

    /// The path, for messages.
    pub(super) fn path(&self) -> String {
        match self {
            Self::Local { path, .. } => path.display().to_string(),
            Self::Afs { path, .. } => path.clone(),
        }
    }

    /// The node, if the origin is in AFS.
    pub(super) fn node(&self) -> Option<&Node> {
        match self {
            Self::Local { .. } => None,
            Self::Afs { node, .. } => Some(node),
        }
    }

    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Local { about, .. } if about.is_dir() => Kind::Directory,
            Self::Local { about, .. } if about.is_symlink() => Kind::Link,
            Self::Local { about, .. } if about.is_file() => Kind::File,
            Self::Local { .. } => Kind::Other("neither file nor directory"),
            Self::Afs { node, .. } if node.status.file_type == FileType::Invalid => {
                Kind::Unknown(node.status.error_code.to_plain())
            }
            Self::Afs { node, .. } if node.is_directory() => Kind::Directory,
            Self::Afs { node, .. } if node.is_mount_point() => Kind::Other("a mount point"),
            Self::Afs { node, .. } if node.is_link() => Kind::Link,
            Self::Afs { .. } => Kind::File,
        }
    }

    pub(super) fn length(&self) -> u64 {
        match self {
            Self::Local { about, .. } => about.len(),
            Self::Afs { node, .. } => node.status.length,
        }
    }

    pub(super) fn mode(&self) -> u32 {
        match self {
            Self::Local { about, .. } => about.permissions().mode() & 0o7777,
            Self::Afs { node, .. } => node.status.unix_mode,
        }
    }

    pub(super) fn modified(&self) -> AfsTime {
        match self {
            Self::Local { about, .. } => AfsTime::of_seconds(about.mtime()),
            Self::Afs { node, .. } => node.status.client_mod_time,
        }
    }

    /// The names in a directory, and the origin of each.
    pub(super) async fn children(&self, client: &Client) -> Outcome<Vec<(Bytes, Self)>> {
        match self {
            Self::Local { path, .. } => {
                let at = |cause| Failure::new(format!("{}: {cause}", path.display()));
                let mut children = Vec::new();
                for entry in fs::read_dir(path).map_err(at)? {
                    let entry = entry.map_err(at)?;
                    let name = Bytes::copy_from_slice(entry.file_name().as_bytes());
                    let path = entry.path();
                    // If the entry is a link, this is the metadata of the link itself.
                    let about = entry
                        .metadata()
                        .map_err(|cause| Failure::new(format!("{}: {cause}", path.display())))?;
                    children.push((name, Self::Local { path, about }));
                }
                children.sort_by(|(a, _), (b, _)| a.cmp(b));
                Ok(children)
            }
            Self::Afs { path, node } => {
                let children = client.children(node).await;
                let children =
                    children.map_err(|cause| Failure::new(format!("{path}: {cause}")))?;
                let named = children.into_iter().map(|(name, node)| {
                    let path = join(path, &printable(&name));
                    (name, Self::Afs { path, node })
                });
                Ok(named.collect())
            }
        }
    }

    /// The text of a symbolic link.
    pub(super) async fn link_text(&self, client: &Client) -> Outcome<Bytes> {
        match self {
            Self::Local { path, .. } => {
                let text = fs::read_link(path)
                    .map_err(|cause| Failure::new(format!("{}: {cause}", path.display())))?;
                Ok(Bytes::copy_from_slice(text.as_os_str().as_bytes()))
            }
            Self::Afs { node, .. } => Ok(client.link_text(node).await?),
        }
    }

    /// A range of a file's bytes, fetched by one stream.
    pub(super) async fn open<'a>(
        &'a self,
        client: &'a Client,
        range: Range<u64>,
    ) -> Outcome<Source<'a>> {
        self.open_by(client, range, 1).await
    }

    /// A range of a file's bytes, fetched by up to `streams` streams where that helps.
    pub(super) async fn open_by<'a>(
        &'a self,
        client: &'a Client,
        range: Range<u64>,
        streams: usize,
    ) -> Outcome<Source<'a>> {
        match self {
            Self::Local { path, .. } => {
                let source = File::open(path).and_then(|file| LocalSource::file(file, range));
                let at = |cause| Failure::new(format!("{}: {cause}", path.display()));
                Ok(Source::Local(source.map_err(at)?))
            }
            Self::Afs { path, node } => {
                let source = AfsSource::open(client, (node, path), range, streams).await?;
                Ok(Source::Afs(Box::new(source)))
            }
        }
    }
}
