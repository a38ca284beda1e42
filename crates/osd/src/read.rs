//! Read: sends the bytes of a version from the store.
//!
//! Every block is checked before its bytes are sent; a damaged one ends the call with EIO in the
//! middle. Data in the system's cache is read when there is room to send it. If the device must be
//! waited for, it reads the next pieces while one is sent. A slow client holds only its own call
//! and these pieces.

use std::collections::VecDeque;
use std::pin::Pin;

use bytes::Bytes;
use cellar_auth::capability::Act;
use cellar_rpc::IncomingCall;
use cellar_volume::objects::ObjectReader;
use cellar_volume::{Error, nonblocking};
use cellar_wire::osd::{Read, ReadReply};
use cellar_wire::serve::HandleStream;
use tokio::time::timeout;

use crate::limits::{PIECES_AHEAD, READ_PIECE_BYTES, SMALL_BYTES, STREAM_PATIENCE};
use crate::refusal::Refusal;
use crate::service::{OsdService, on_disk};
use crate::statistics::add;

impl HandleStream<Read, IncomingCall> for OsdService {
    async fn handle_stream(
        &self,
        call: &mut IncomingCall,
        arguments: Read,
    ) -> Result<ReadReply, Refusal> {
        let server = &self.0;
        let Read {
            ref capability,
            object,
            version,
            position,
            length,
        } = arguments;
        let act = Act::Read {
            version,
            begin: position,
            end: position.saturating_add(length),
        };
        let device = server.admit(call, capability, object, act)?;
        if let Some(archive) = device.archive() {
            let client = call.peer().address.ip();
            let _stream = server.streams.begin(client).ok_or(Refusal::Busy)?;
            return archive.read(call, &arguments).await;
        }
        let _stream = match length > SMALL_BYTES {
            true => {
                let client = call.peer().address.ip();
                Some(server.streams.begin(client).ok_or(Refusal::Busy)?)
            }
            false => None,
        };
        let store = device.disk()?;
        let begin = move || store.reader(object, version, position, length);
        let reader = match nonblocking(&begin) {
            Err(Error::WouldBlock) => on_disk(begin).await?,
            begun => begun?,
        };
        let length = reader.remaining();
        call.reply(&length);
        let mut ahead = Ahead::new(reader);
        while let Some(piece) = ahead.next().await? {
            if length <= SMALL_BYTES {
                call.append(&piece);
            } else {
                let sent = timeout(STREAM_PATIENCE, call.write(piece)).await;
                sent.map_err(|_| Refusal::StoppedSending)??;
            }
        }
        add(&server.statistics.bytes_read, length);
        Ok(ReadReply {})
    }
}

/// A range that is read piece by piece, with read-ahead.
pub(crate) struct Ahead {
    reader: ObjectReader,
    /// Pieces that are being read on threads that may wait for the disk, in order.
    coming: VecDeque<PieceFuture>,
}

type PieceFuture = Pin<Box<dyn Future<Output = cellar_volume::Result<Option<Bytes>>>>>;

impl Ahead {
    pub(crate) fn new(reader: ObjectReader) -> Self {
        Self {
            reader,
            coming: VecDeque::new(),
        }
    }

    /// Returns the next piece; `None` after the last.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
        if self.coming.is_empty() {
            match nonblocking(|| self.reader.next(READ_PIECE_BYTES)) {
                Err(Error::WouldBlock) => {}
                piece => return Ok(piece?),
            }
        }
        while self.coming.len() < PIECES_AHEAD && self.reader.remaining() > 0 {
            let mut part = self.reader.split(READ_PIECE_BYTES as u64);
            let read = move || part.next(READ_PIECE_BYTES);
            self.coming
                .push_back(Box::pin(cellar_rpc::begin_blocking(read)));
        }
        match self.coming.pop_front() {
            Some(piece) => Ok(piece.await?),
            None => Ok(None),
        }
    }
}
