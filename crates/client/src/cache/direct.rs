//! Bytes of large files, from and to the devices that they are on instead of through the file server.
//!
//! 1. Where a version of a file is, is asked once (`BeginFetch`, with the file's promise) and serves all its chunks until
//!    the right to read ends. What is read so is of that version whatever happens to the file meanwhile:
//!    versions of objects do not change. So the bytes are taken as those of a call that was answered when the
//!    right was given, and are of no use once the cache knows of a newer version.
//! 2. A piece of [`DIRECT_MIN`] or more is stored so, unless it leaves the file shorter than the server has it.
//! 3. What cannot be done so goes through the file server, as everything does where it knows no objects. A file
//!    whose devices failed is read through it for [`PAUSE`].

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use cellar_objects::{ReadOptions, Reader};
use cellar_wire::rxafs::{AfsFetchStatus, FileType};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::Cache;
use super::body::Piece;
use super::status::Asked;
use super::user::User;
use super::vnode::Vnode;
use crate::error::Result;
use crate::objects::{DIRECT_MIN, Granted, is_plain};
use crate::path::Node;

/// How long a file is read through the file server after its devices failed.
const PAUSE: Duration = Duration::from_secs(10);

/// Where a file's bytes are, as far as it was asked.
#[derive(Debug, Default)]
pub(crate) struct Places {
    known: Mutex<Option<Known>>,
    /// Held by whoever asks, so that others wait for the same answer.
    asking: tokio::sync::Mutex<()>,
}

/// About one version of a file.
#[derive(Clone, Debug)]
enum Known {
    /// In objects, with the right of one user to read them.
    Granted { user: u32, granted: Arc<Granted> },
    /// On the file server, or it is to be read through it until then.
    Plain {
        version: u64,
        until: Option<Instant>,
    },
}

impl Places {
    /// What is known of a version, for a user: `Some(None)`, that the file server has to be asked for the bytes.
    fn of(&self, user: &User, version: u64) -> Option<Option<Arc<Granted>>> {
        let known = self.known.lock();
        let now = Instant::now();
        match known.as_ref()? {
            Known::Granted { user: id, granted } => {
                let holds = *id == user.id()
                    && granted.status.data_version == version
                    && now < granted.renew;
                holds.then(|| Some(granted.clone()))
            }
            Known::Plain { version: of, until } => {
                let holds = match until {
                    None => *of == version,
                    Some(until) => now < *until,
                };
                holds.then_some(None)
            }
        }
    }

    fn learn(&self, known: Known) {
        *self.known.lock() = Some(known);
    }
}

impl Cache {
    /// Fetches `start..end` of a file from its devices, with the status of the version that the bytes are of. `None`: that is
    /// for the file server.
    pub(crate) async fn fetch_directly(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        start: u64,
        end: u64,
    ) -> Option<(Vec<Bytes>, AfsFetchStatus)> {
        let status = vnode.last_status()?;
        let is_long = status.file_type == FileType::File && status.length >= DIRECT_MIN;
        if !is_long || !user.client().is_known_to_keep_objects(&vnode.volume).await {
            return None;
        }
        let granted = self.granted(user, vnode, &status).await?;
        let end = end.min(granted.status.length);
        if start >= end {
            return None;
        }
        let devices = user.client().devices(&vnode.volume.cell);
        let options = ReadOptions::default();
        let read = async {
            let mut reader = Reader::new(devices, granted.set.clone(), start..end, options)?;
            let mut pieces = Vec::new();
            while let Some(piece) = reader.next().await? {
                pieces.push(piece);
            }
            Ok::<_, cellar_objects::Error>(pieces)
        };
        match read.await {
            Ok(pieces) => {
                let counts = &self.counts.fetched_directly;
                counts.fetch_add(end - start, Ordering::Relaxed);
                Some((pieces, granted.status))
            }
            Err(cause) => {
                tracing::info!(fid = %vnode.fid(), %cause, "read through the file server");
                vnode.places.learn(Known::Plain {
                    version: status.data_version,
                    until: Some(Instant::now() + PAUSE),
                });
                None
            }
        }
    }

    /// Where the version with this status is, and the right to read it; `None`: on the file server.
    async fn granted(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        status: &AfsFetchStatus,
    ) -> Option<Arc<Granted>> {
        let version = status.data_version;
        if let Some(known) = vnode.places.of(user, version) {
            return known;
        }
        let _alone = vnode.places.asking.lock().await;
        if let Some(known) = vnode.places.of(user, version) {
            return known;
        }
        let asked = Asked::about(vnode);
        let (fid, client) = (vnode.fid(), user.client());
        let what = fid.to_string();
        match client
            .ask_where(&vnode.volume, fid, &what, 0..status.length)
            .await
        {
            Ok(granted) => {
                let promise = Some((granted.callback, asked));
                self.heard(user, vnode, &granted.status, promise);
                let granted = Arc::new(granted);
                vnode.places.learn(Known::Granted {
                    user: user.id(),
                    granted: granted.clone(),
                });
                Some(granted)
            }
            Err(failure) => {
                let until = (!is_plain(&failure)).then(|| Instant::now() + PAUSE);
                vnode.places.learn(Known::Plain { version, until });
                None
            }
        }
    }

    /// Stores a piece at the devices of its file; `None`: that is for the file server.
    ///
    /// # Errors
    /// What the file server would say as well.
    pub(crate) async fn store_directly(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        piece: &Piece,
        chunks: &[Bytes],
    ) -> Result<Option<AfsFetchStatus>> {
        let bytes = piece.end - piece.start;
        let Some(status) = vnode.last_status() else {
            return Ok(None);
        };
        let client = user.client();
        if bytes < DIRECT_MIN
            || status.length > piece.file_length
            || !client.is_known_to_keep_objects(&vnode.volume).await
        {
            return Ok(None);
        }
        let node = Node {
            volume: vnode.volume.clone(),
            fid: vnode.fid(),
            status,
        };
        let what = vnode.fid().to_string();
        let range = piece.start..piece.end;
        let stored = client
            .store_directly(
                &node,
                &what,
                range,
                piece.file_length,
                piece.modified,
                chunks,
            )
            .await?;
        if stored.is_some() {
            let counts = &self.counts.stored_directly;
            counts.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(stored)
    }
}
