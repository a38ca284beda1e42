//! Bytes of large files, from and to the devices that they are on instead of through the file server.
//!
//! 1. Where a version of a file is, is asked once (`BeginFetch`, with the file's promise) and serves all its chunks until
//!    the right to read ends. What is read so is of that version whatever happens to the file meanwhile:
//!    versions of objects do not change. So the bytes are taken as those of a call that was answered when the
//!    right was given, and are of no use once the cache knows of a newer version.
//! 2. A piece of [`DIRECT_MIN`] or more is stored so, unless it leaves the file shorter than the server has it. Where
//!    the file server says that it keeps the file itself, it is asked again after [`PAUSE`], when the file has
//!    [`GROWTH`] times the length that was asked about, and when it is cut off. Only speed depends on this answer: bytes
//!    that go through the file server come to objects as well, if the file belongs there by now.
//! 3. What cannot be done so goes through the file server, as everything does where it knows no objects. A file
//!    whose devices failed is read through it for [`PAUSE`].

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use cellar_cachestore::Piece;
use cellar_objects::{ReadOptions, Reader};
use cellar_wire::rxafs::{AfsFetchStatus, FileType};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::Cache;
use super::status::Asked;
use super::user::User;
use super::vnode::Vnode;
use crate::error::Result;
use crate::objects::{DIRECT_MIN, Granted, Stored, is_plain};
use crate::path::Node;

/// How long a file is read through the file server after its devices failed, and stored through it where that
/// keeps it.
const PAUSE: Duration = Duration::from_secs(10);

/// Policies look at sizes: a file that has become so many times longer may belong elsewhere.
const GROWTH: u64 = 2;

/// Where a file's bytes are, as far as it was asked.
#[derive(Debug, Default)]
pub(crate) struct Places {
    known: Mutex<Option<Known>>,
    /// Held by whoever asks, so that others wait for the same answer.
    asking: tokio::sync::Mutex<()>,
    /// The last answer to a store, if it was that the file server keeps the file.
    kept: Mutex<Option<KeptThere>>,
}

/// That the file server stores a file itself.
#[derive(Clone, Copy, Debug)]
struct KeptThere {
    /// Whose store it was: policies look at users, too.
    user: u32,
    /// The length of the file that was asked about.
    length: u64,
    until: Instant,
}

impl KeptThere {
    fn holds(&self, user: u32, length: u64, now: Instant) -> bool {
        let grown = self.length.saturating_mul(GROWTH);
        self.user == user && (self.length..grown).contains(&length) && now < self.until
    }
}

/// About one version of a file.
#[derive(Clone, Debug)]
enum Known {
    /// In objects, with the right of one user to read them.
    Granted { user: u32, granted: Arc<Granted> },
    /// On the file server.
    Plain { version: u64 },
    /// Whichever version it is, it is to be read through the file server until then.
    Avoided { until: Instant },
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
            Known::Plain { version: of } => (*of == version).then_some(None),
            Known::Avoided { until } => (now < *until).then_some(None),
        }
    }

    fn learn(&self, known: Known) {
        *self.known.lock() = Some(known);
    }

    /// Nothing is known any more: rights to read are this machine's, by its address.
    pub(crate) fn forget(&self) {
        *self.known.lock() = None;
    }

    fn avoid(&self) {
        let until = Instant::now() + PAUSE;
        self.learn(Known::Avoided { until });
    }

    /// Whether the file server has said that it keeps a file of this length.
    fn are_kept_there(&self, user: &User, length: u64) -> bool {
        let kept = self.kept.lock();
        kept.is_some_and(|kept| kept.holds(user.id(), length, Instant::now()))
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
        if !is_long {
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
                vnode.places.avoid();
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
        let (fid, client) = (vnode.fid(), user.client());
        match client.is_known_to_keep_objects(&vnode.volume).await {
            Some(true) => {}
            Some(false) => {
                vnode.places.avoid();
                return None;
            }
            None => return None,
        }
        let asked = Asked::about(vnode);
        let what = fid.to_string();
        match client
            .ask_where(&vnode.volume, fid, &what, 0..status.length)
            .await
        {
            Ok(granted) => {
                let promise = Some((granted.callback, asked.answered_by(granted.by)));
                self.heard(user, vnode, &granted.status, promise);
                let granted = Arc::new(granted);
                vnode.places.learn(Known::Granted {
                    user: user.id(),
                    granted: granted.clone(),
                });
                Some(granted)
            }
            Err(failure) => {
                if is_plain(&failure) {
                    vnode.places.learn(Known::Plain { version });
                } else {
                    vnode.places.avoid();
                }
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
        if piece.cuts() {
            *vnode.places.kept.lock() = None;
        }
        let client = user.client();
        if bytes < DIRECT_MIN
            || status.length > piece.file_length
            || vnode.places.are_kept_there(user, piece.file_length)
            || client.is_known_to_keep_objects(&vnode.volume).await != Some(true)
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
        Ok(match stored {
            Stored::Directly(status) => {
                let counts = &self.counts.stored_directly;
                counts.fetch_add(bytes, Ordering::Relaxed);
                Some(status)
            }
            Stored::KeptThere => {
                let kept = KeptThere {
                    user: user.id(),
                    length: piece.file_length,
                    until: Instant::now() + PAUSE,
                };
                *vnode.places.kept.lock() = Some(kept);
                None
            }
            Stored::NotNow => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_to_a_store_ends_with_time_and_growth() {
        let now = Instant::now();
        let kept = KeptThere {
            user: 7,
            length: 8 << 20,
            until: now + PAUSE,
        };
        assert!(kept.holds(7, 8 << 20, now));
        assert!(kept.holds(7, (16 << 20) - 1, now));
        assert!(!kept.holds(7, 16 << 20, now), "it has grown");
        assert!(!kept.holds(7, (8 << 20) - 1, now), "it is another file");
        assert!(!kept.holds(8, 8 << 20, now), "policies look at users");
        assert!(!kept.holds(7, 8 << 20, now + PAUSE), "policies change");
    }
}
