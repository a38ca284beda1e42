//! Reads and stores the bytes of large files directly at their devices, instead of through the file
//! server.
//!
//! 1. One call (`BeginFetch`, which also returns the file's promise) returns the location of a
//!    version of a file. It serves all chunks of the file until the right to read ends. The bytes
//!    are of that version whatever happens to the file in between: versions of objects do not
//!    change. So the bytes count as those of a call that was answered when the right was given.
//!    They are of no use once the cache knows of a newer version.
//! 2. A piece of [`DIRECT_MIN`] or more is stored directly, unless the file becomes shorter than
//!    the server has it. The file server may answer that it keeps the file itself. Then it is asked
//!    again after [`PAUSE`], when the file has `GROWTH` times the length of the request, and when
//!    the file is shortened. Only speed depends on this answer: bytes that go through the file
//!    server also reach objects, if the file belongs there by then.
//! 3. All other bytes go through the file server, as all do if it has no objects. If its devices
//!    failed, a file is read through the file server for [`PAUSE`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use cellar_cachestore::Piece;
use cellar_objects::{ReadOptions, Reader};
use cellar_wire::rxafs::{AfsFetchStatus, FileType};
use tokio::time::Instant;

use super::device_locations::{KeptThere, KnownLocation, PAUSE};
use crate::promises::status_request::StatusRequest;
use crate::statuses::Statuses;
use crate::user::User;
use crate::vnode::Vnode;
use cellar_client::error::Result;
use cellar_client::objects::{DIRECT_MIN, Granted, Stored, is_plain};
use cellar_client::path::Node;

impl Statuses {
    /// Fetches `start..end` of a file from its devices, with the status of the version of the
    /// bytes. `None`: the file server must be used.
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
        let devices = user.client().devices(&vnode.volume().cell);
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
                let counts = &self.env.counts.fetched_directly;
                counts.fetch_add(end - start, Ordering::Relaxed);
                Some((pieces, granted.status))
            }
            Err(cause) => {
                tracing::info!(fid = %vnode.fid(), %cause, "read through the file server");
                vnode.devices.avoid();
                None
            }
        }
    }

    /// Returns the location of the version with this status, and the right to read it. `None`: it
    /// is on the file server.
    async fn granted(
        &self,
        user: &Arc<User>,
        vnode: &Arc<Vnode>,
        status: &AfsFetchStatus,
    ) -> Option<Arc<Granted>> {
        let version = status.data_version;
        if let Some(known) = vnode.devices.of(user, version) {
            return known;
        }
        let _alone = vnode.devices.asking.lock().await;
        if let Some(known) = vnode.devices.of(user, version) {
            return known;
        }
        let (fid, client) = (vnode.fid(), user.client());
        match client.is_known_to_keep_objects(vnode.volume()).await {
            Some(true) => {}
            Some(false) => {
                vnode.devices.avoid();
                return None;
            }
            None => return None,
        }
        let asked = StatusRequest::about(vnode);
        let what = fid.to_string();
        match client
            .ask_where(vnode.volume(), fid, &what, 0..status.length)
            .await
        {
            Ok(granted) => {
                let promise = Some((granted.callback, asked.answered_by(granted.by)));
                self.promises
                    .apply_status(user, vnode, &granted.status, promise);
                let granted = Arc::new(granted);
                vnode.devices.learn(KnownLocation::Granted {
                    user: user.id(),
                    granted: granted.clone(),
                });
                Some(granted)
            }
            Err(failure) => {
                if is_plain(&failure) {
                    vnode.devices.learn(KnownLocation::Plain { version });
                } else {
                    vnode.devices.avoid();
                }
                None
            }
        }
    }

    /// Stores a piece at the devices of its file. `None`: the file server must be used.
    ///
    /// # Errors
    /// An error that the file server would return, too.
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
        if piece.truncates() {
            *vnode.devices.kept.lock() = None;
        }
        let client = user.client();
        if bytes < DIRECT_MIN
            || status.length > piece.file_length
            || vnode.devices.are_kept_there(user, piece.file_length)
            || client.is_known_to_keep_objects(vnode.volume()).await != Some(true)
        {
            return Ok(None);
        }
        let node = Node {
            volume: vnode.volume().clone(),
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
                let counts = &self.env.counts.stored_directly;
                counts.fetch_add(bytes, Ordering::Relaxed);
                Some(status)
            }
            Stored::KeptThere => {
                let kept = KeptThere {
                    user: user.id(),
                    length: piece.file_length,
                    until: Instant::now() + PAUSE,
                };
                *vnode.devices.kept.lock() = Some(kept);
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
