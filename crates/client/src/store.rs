//! Stores a stream of bytes into a file.
//!
//! The bytes are collected into pieces of `STORE_PIECE_BYTES`, and each piece is sent in one
//! `StoreData64`. Such a call has to state first how many bytes follow. A failed call is repeated
//! at the next server, so a piece is kept until a server has acknowledged it. Meanwhile the next
//! piece is read.

use std::fmt;

use bytes::Bytes;
use cellar_rpc::CallError;
use cellar_wire::ids::AfsTime;
use cellar_wire::rxafs::{AfsFetchStatus, AfsStoreStatus, StoreData64, StoreData64Reply};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::client::Client;
use crate::error::Result;
use crate::operation::VolumeOperation;
use crate::path::Node;

/// The most bytes of one call.
pub(crate) const STORE_PIECE_BYTES: u64 = 8 << 20;

/// A source of the bytes to store.
pub trait Source {
    /// Returns the next bytes in chunks, at most `max`; fewer than `max` only at the end.
    fn take(&mut self, max: u64) -> impl Future<Output = std::io::Result<Vec<Bytes>>> + Send;

    /// Moves the source back to that byte for another attempt at a failed store. Returns false if
    /// the source cannot do that.
    fn rewind(&mut self, position: u64) -> impl Future<Output = std::io::Result<bool>> + Send {
        let _cannot = position;
        async { Ok(false) }
    }
}

impl Client {
    /// Replaces the contents of a file with the bytes of `source`, and sets its modification time.
    /// Calls `progress` with the length of each acknowledged piece.
    ///
    /// # Errors
    /// The source cannot be read, or no server takes the bytes. The pieces that a server
    /// acknowledged before the failure are in the file.
    pub async fn store(
        &self,
        node: &Node,
        what: &str,
        source: &mut impl Source,
        modified: Option<AfsTime>,
        progress: impl FnMut(u64),
    ) -> Result<AfsFetchStatus> {
        self.store_from(node, what, 0, source, modified, progress)
            .await
    }

    /// As [`Client::store`], for the bytes after the first `position` bytes, which stay as they
    /// are.
    pub(crate) async fn store_from(
        &self,
        node: &Node,
        what: &str,
        mut position: u64,
        source: &mut impl Source,
        modified: Option<AfsTime>,
        mut progress: impl FnMut(u64),
    ) -> Result<AfsFetchStatus> {
        let local = |cause| crate::error::Error::Local {
            what: what.to_owned(),
            cause,
        };
        let mut piece = source.take(STORE_PIECE_BYTES).await.map_err(local)?;
        loop {
            let length: u64 = piece.iter().map(|chunk| chunk.len() as u64).sum();
            let last = length < STORE_PIECE_BYTES;
            let store = self.store_piece(node, what, position, &piece, length, modified);
            let (status, next) = if last {
                (store.await?, Vec::new())
            } else {
                let (status, next) = tokio::join!(store, source.take(STORE_PIECE_BYTES));
                (status?, next.map_err(local)?)
            };
            progress(length);
            position += length;
            if last || next.is_empty() {
                return Ok(status);
            }
            piece = next;
        }
    }

    /// Shortens a file to `length` bytes.
    pub(crate) async fn cut(&self, node: &Node, what: &str, length: u64) -> Result<AfsFetchStatus> {
        self.store_piece(node, what, length, &[], 0, None).await
    }

    /// Makes one `StoreData64`: stores `piece`, which has `length` bytes, at `position`. The file
    /// ends after them.
    ///
    /// # Errors
    /// No server takes the bytes.
    pub async fn store_piece(
        &self,
        node: &Node,
        what: &str,
        position: u64,
        piece: &[Bytes],
        length: u64,
        modified: Option<AfsTime>,
    ) -> Result<AfsFetchStatus> {
        let in_status = AfsStoreStatus {
            client_mod_time: modified,
            ..AfsStoreStatus::default()
        };
        let arguments = StoreData64 {
            fid: node.fid,
            in_status,
            position,
            length,
            file_length: position + length,
        };
        let mut operation = VolumeOperation::start(self, &node.volume).await?;
        let unanswered = Unanswered::default();
        let reply = store(&mut operation, &unanswered, &arguments, piece, &what).await?;
        Ok(reply.status)
    }
}

/// The time at which an unanswered store of a file was given up, if there is one. The server may
/// still execute that store after its replacement, and would then restore the old bytes and the old
/// length. So the server has to answer another call before the replacement is sent
/// (`VolumeOperation::wait_out_stalled_calls`).
#[derive(Debug, Default)]
pub struct Unanswered(Mutex<Option<Instant>>);

/// A store in progress. Dropping it without an answer, for instance when the caller is cancelled,
/// notes that the store was given up.
struct Sent<'a>(Option<&'a Unanswered>);

impl Sent<'_> {
    /// The server has answered, so the store cannot take effect later.
    fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if let Some(unanswered) = self.0 {
            *unanswered.0.lock() = Some(Instant::now());
        }
    }
}

/// Tries one server after the other until one takes the store.
pub async fn store(
    operation: &mut VolumeOperation<'_>,
    unanswered: &Unanswered,
    arguments: &StoreData64,
    piece: &[Bytes],
    what: &(dyn fmt::Display + Sync),
) -> Result<StoreData64Reply> {
    loop {
        let given_up = unanswered.0.lock().take();
        let sent = Sent(Some(unanswered));
        let storing = async {
            if let Some(at) = given_up {
                operation.wait_out_stalled_calls(arguments.fid, at).await?;
            }
            send(operation, arguments, piece).await
        };
        match storing.await {
            Ok(reply) => {
                sent.answered();
                operation.succeeded();
                return Ok(reply);
            }
            Err(error) => {
                match error {
                    CallError::Aborted(_) => sent.answered(),
                    _ => drop(sent),
                }
                operation.failed(error, what).await?;
            }
        }
    }
}

async fn send(
    operation: &VolumeOperation<'_>,
    arguments: &StoreData64,
    piece: &[Bytes],
) -> std::result::Result<StoreData64Reply, CallError> {
    let mut call = operation.connection().open(arguments).await?;
    for chunk in piece {
        match call.write(chunk.clone()).await {
            Ok(()) => {}
            // The server has answered before the last byte; the answer contains the reason.
            Err(CallError::AnsweredEarly) => break,
            Err(error) => return Err(error),
        }
    }
    call.finish();
    call.read().await
}
