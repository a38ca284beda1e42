//! The true reason of a failed fetch or store, where the code of AFS does not say it.
//!
//! File servers have one code for all devices out of reach, `EIO`, and one for a lack of room,
//! `VDISKFULL`. Both are also the codes of the server's own partition. After such a failure this
//! client makes one more call that tells the reasons apart. If that call fails too, the error stays
//! as it is.

use std::ops::Range;
use std::time::Duration;

use cellar_wire::abort::AbortCode;
use cellar_wire::object::Shape;
use cellar_wire::rxafs::GetVolumeStatus;
use tokio::time::timeout;

use super::download::Download;
use crate::client::Client;
use crate::error::{Error, Result};
use crate::path::Node;

/// The most bytes that are read to find the device that fails.
const READ_MAX: u64 = 64 << 20;

/// The longest search for the device that fails.
const SEARCH_TIME: Duration = Duration::from_secs(15);

/// A partition with less room than this many KiB counts as full.
const ROOM_MIN_KIB: u64 = 1024;

impl Client {
    /// The error for a failure to read the bytes of `range`, or to store them. If it is an `EIO` of
    /// a file server and the bytes are in objects, it names the device that fails.
    pub async fn blame_device(
        &self,
        node: &Node,
        what: &str,
        range: Range<u64>,
        failure: Error,
    ) -> Error {
        if !is(&failure, AbortCode::EIO) {
            return failure;
        }
        let end = range.end.min(range.start.saturating_add(READ_MAX));
        let search = async {
            let mut direct = Download::direct(self, node, what, range.start..end)
                .await
                .ok()?;
            loop {
                match direct.read_device().await {
                    Some(Ok(Some(_))) => {}
                    Some(Err(cause)) => return Some(cause),
                    Some(Ok(None)) | None => return None,
                }
            }
        };
        match timeout(SEARCH_TIME, search).await {
            Ok(Some(cause)) => Error::Objects {
                what: what.to_owned(),
                cause,
            },
            Ok(None) | Err(_) => failure,
        }
    }

    /// Returns whether the devices or the partition have no room, for a store that failed with
    /// `VDISKFULL`. `needed` is the number of bytes that the partition would have to take.
    pub(super) async fn blame_layout(
        &self,
        node: &Node,
        what: &str,
        shape: Option<Shape>,
        needed: u64,
        failure: Error,
    ) -> Error {
        if !is(&failure, AbortCode::VDISKFULL) {
            return failure;
        }
        match self.has_room(node, needed).await {
            Ok(true) => Error::NoDevices {
                what: what.to_owned(),
                objects: shape.map(|shape| shape.objects()),
            },
            Ok(false) | Err(_) => failure,
        }
    }

    async fn has_room(&self, node: &Node, needed: u64) -> Result<bool> {
        let volume = node.volume.id;
        let asked = GetVolumeStatus { volume };
        let status = self
            .call_volume(&node.volume, &node.fid, &asked)
            .await?
            .status;
        let room = u64::try_from(status.partition_blocks_available).unwrap_or(0);
        Ok(room > ROOM_MIN_KIB.saturating_add(needed / 1024))
    }
}

fn is(failure: &Error, code: AbortCode) -> bool {
    matches!(failure, Error::Fileserver { .. }) && failure.code() == Some(code)
}
