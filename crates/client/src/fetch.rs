//! Reading: a file's bytes as a stream of pieces.
//!
//! One `FetchData64` asks for at most [`FETCH_PIECE_BYTES`]; its bytes are handed on as they arrive,
//! so memory does not depend on the file. When a server fails in the middle, the next one is asked
//! from the first byte that was not handed on yet.

use std::collections::VecDeque;

use bytes::Bytes;
use cellar_rpc::{CallError, OutgoingCall};
use cellar_wire::rxafs::{FetchData64, FetchData64Reply};

use crate::client::Client;
use crate::course::Course;
use crate::error::Result;
use crate::path::Node;

/// Bytes that one call asks for.
pub(crate) const FETCH_PIECE_BYTES: u64 = 64 << 20;

/// Bytes taken from a call at a time.
const GULP_BYTES: u64 = 256 << 10;

/// A file being read.
pub struct Fetch<'a> {
    course: Course<'a>,
    node: &'a Node,
    what: String,
    position: u64,
    end: u64,
    call: Option<Call>,
    ready: VecDeque<Bytes>,
}

/// One `FetchData64` under way.
struct Call {
    call: OutgoingCall,
    /// Bytes that are still to come.
    coming: u64,
    /// It brings fewer bytes than asked for: the file ends there.
    last: bool,
}

impl Client {
    /// Reads a vnode's bytes from `position`, at most `length` of them, to its end.
    ///
    /// # Errors
    /// The volume is listed nowhere.
    pub async fn fetch<'a>(
        &'a self,
        node: &'a Node,
        position: u64,
        length: u64,
    ) -> Result<Fetch<'a>> {
        Ok(Fetch {
            course: Course::start(self, &node.volume).await?,
            node,
            what: format!("reading {}", node.fid),
            position,
            end: position.saturating_add(length).min(i64::MAX as u64),
            call: None,
            ready: VecDeque::new(),
        })
    }

    /// All bytes of a vnode that is not large: a link, a directory.
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
    /// Says what is being read in errors: a path instead of a fid.
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
                    self.course.failed(error, &self.what).await?;
                }
            }
        }
    }

    /// Takes some bytes off the wire.
    async fn advance(&mut self) -> std::result::Result<(), CallError> {
        if self.call.is_none() {
            let length = (self.end - self.position).min(FETCH_PIECE_BYTES);
            let arguments = FetchData64 {
                fid: self.node.fid,
                position: self.position as i64,
                length: length as i64,
            };
            let mut call = self.course.connection().open(&arguments).await?;
            let coming: u64 = call.read().await?;
            if coming > length {
                return Err(CallError::BadReply(cellar_wire::DecodeError::Invalid(
                    "more bytes than asked for",
                )));
            }
            self.call = Some(Call {
                call,
                coming,
                last: coming < length,
            });
        }
        let Some(Call { call, coming, last }) = &mut self.call else {
            return Ok(());
        };
        let gulp = (*coming).min(GULP_BYTES);
        let ready = &mut self.ready;
        let position = &mut self.position;
        // What comes before a failure is handed on; the rest is asked for again.
        call.read_exact(gulp, |piece| {
            *position += piece.len() as u64;
            ready.push_back(piece);
        })
        .await?;
        *coming -= gulp;
        if *coming == 0 {
            let _results: FetchData64Reply = call.read().await?;
            if *last {
                self.end = self.position;
            }
            self.call = None;
            self.course.succeeded();
        }
        Ok(())
    }
}
