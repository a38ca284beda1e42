//! FetchData: the client's half of the RPC, and a file's bytes as a stream.
//!
//! [`FetchCall`] is one `FetchData64`; the cache, [`Fetch`] and `vos scrub` read through it. A
//! [`Fetch`] requests at most `FETCH_PIECE_BYTES` in one call and passes bytes on as they arrive.
//! So its memory does not depend on the size of the file. When a server fails in the middle, the
//! next server continues with the first byte that was not passed on.

use std::collections::VecDeque;

use bytes::Bytes;
use cellar_rpc::{CallError, Connection, OutgoingCall};
use cellar_wire::DecodeError;
use cellar_wire::ids::Fid;
use cellar_wire::rxafs::{FetchData64, FetchData64Reply};

use crate::client::Client;
use crate::error::Result;
use crate::operation::VolumeOperation;
use crate::path::Node;

/// The bytes that one call requests.
pub(crate) const FETCH_PIECE_BYTES: u64 = 64 << 20;

/// The bytes that are read from a call at a time.
const GULP_BYTES: u64 = 256 << 10;

/// One `FetchData64` in progress.
///
/// The stream is the number of bytes that follow, these bytes, and the reply. Source:
/// `RXAFS_FetchData64`, observed between `afsd.fuse` and OpenAFS's file server.
pub struct FetchCall {
    call: OutgoingCall,
    asked: u64,
    coming: u64,
    left: u64,
}

impl FetchCall {
    /// Requests `length` bytes of a file from `position`, and reads how many bytes follow.
    ///
    /// # Errors
    /// The call fails, or the server announces more bytes than were asked for.
    pub async fn open(
        connection: &Connection,
        fid: Fid,
        position: u64,
        length: u64,
    ) -> std::result::Result<Self, CallError> {
        let arguments = FetchData64 {
            fid,
            position: position as i64,
            length: length as i64,
        };
        let mut call = connection.open(&arguments).await?;
        let coming: u64 = call.read().await?;
        if coming > length {
            let detail = DecodeError::Invalid("more bytes than asked for");
            return Err(CallError::BadReply(detail));
        }
        Ok(Self {
            call,
            asked: length,
            coming,
            left: coming,
        })
    }

    /// Whether the server announced fewer bytes than were asked for: the file ends after them.
    pub fn is_short(&self) -> bool {
        self.coming < self.asked
    }

    /// The announced bytes that were not read yet.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Reads the next `length` bytes, at most those left, and calls `sink` with each piece as it
    /// arrives.
    ///
    /// # Errors
    /// The call fails. `sink` has received the pieces that arrived before.
    pub async fn read(
        &mut self,
        length: u64,
        mut sink: impl FnMut(Bytes),
    ) -> std::result::Result<(), CallError> {
        let left = &mut self.left;
        let length = length.min(*left);
        self.call
            .read_exact(length, |piece| {
                *left -= piece.len() as u64;
                sink(piece);
            })
            .await
    }

    /// Reads the next bytes that have arrived; `None` after the last announced byte.
    ///
    /// # Errors
    /// The call fails.
    pub async fn next(&mut self) -> std::result::Result<Option<Bytes>, CallError> {
        if self.left == 0 {
            return Ok(None);
        }
        let piece = self.call.read_some(self.left).await?;
        self.left -= piece.len() as u64;
        Ok(Some(piece))
    }

    /// Reads the reply, which follows the last byte.
    ///
    /// # Errors
    /// The call fails, or bytes are left.
    pub async fn finish(mut self) -> std::result::Result<FetchData64Reply, CallError> {
        if self.left != 0 {
            return Err(CallError::BadReply(DecodeError::Truncated));
        }
        self.call.read().await
    }
}

/// A file being read.
pub struct Fetch<'a> {
    operation: VolumeOperation<'a>,
    node: &'a Node,
    what: String,
    position: u64,
    end: u64,
    call: Option<FetchCall>,
    ready: VecDeque<Bytes>,
}

impl Client {
    /// Reads a vnode's bytes from `position`, at most `length` of them, to its end.
    ///
    /// # Errors
    /// The VLDB does not list the volume.
    pub async fn fetch<'a>(
        &'a self,
        node: &'a Node,
        position: u64,
        length: u64,
    ) -> Result<Fetch<'a>> {
        Ok(Fetch {
            operation: VolumeOperation::start(self, &node.volume).await?,
            node,
            what: format!("reading {}", node.fid),
            position,
            end: position.saturating_add(length).min(i64::MAX as u64),
            call: None,
            ready: VecDeque::new(),
        })
    }

    /// All bytes of a small vnode: a link or a directory.
    ///
    /// # Errors
    /// As [`Fetch::next`].
    pub async fn fetch_all(&self, node: &Node, limit: u64) -> Result<Bytes> {
        let mut fetch = self.fetch(node, 0, limit).await?;
        let mut all = bytes::BytesMut::new();
        while let Some(piece) = fetch.next().await? {
            all.extend_from_slice(&piece);
        }
        Ok(all.freeze())
    }
}

impl Fetch<'_> {
    /// Sets the name that errors use for the file: a path instead of a fid.
    #[must_use]
    pub fn named(mut self, what: impl Into<String>) -> Self {
        self.what = what.into();
        self
    }

    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// No server of the volume serves the rest.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Ok(Some(piece));
            }
            if self.position >= self.end {
                return Ok(None);
            }
            match self.advance().await {
                Ok(()) => {}
                Err(error) => {
                    self.call = None;
                    self.operation.failed(error, &self.what).await?;
                }
            }
        }
    }

    /// Reads some bytes from the connection.
    async fn advance(&mut self) -> std::result::Result<(), CallError> {
        if self.call.is_none() {
            let length = (self.end - self.position).min(FETCH_PIECE_BYTES);
            let connection = self.operation.connection();
            let call = FetchCall::open(connection, self.node.fid, self.position, length).await?;
            self.call = Some(call);
        }
        let Some(call) = &mut self.call else {
            return Ok(());
        };
        let ready = &mut self.ready;
        let position = &mut self.position;
        // The pieces that arrived before a failure are passed on; the rest is requested again.
        call.read(GULP_BYTES, |piece| {
            *position += piece.len() as u64;
            ready.push_back(piece);
        })
        .await?;
        if call.left() == 0
            && let Some(call) = self.call.take()
        {
            let is_last = call.is_short();
            let _results = call.finish().await?;
            if is_last {
                self.end = self.position;
            }
            self.operation.succeeded();
        }
        Ok(())
    }
}
