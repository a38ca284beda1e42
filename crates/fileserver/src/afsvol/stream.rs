//! Bytes between calls and the store: dumps and deltas, out and in.
//!
//! A stream is made or consumed in pieces of about [`VOLUME_STREAM_PIECE_BYTES`], by work that may
//! wait for the disk. No thread is occupied between two pieces: the next piece is made, or the last
//! one consumed, while this one is being transferred. So a call with a slow peer holds two pieces
//! and no thread, and memory is bounded whatever the volume's size.
//!
//! If a stream contains the bytes of a file in objects or in archives, its source requests them.
//! They are then fed to it as the devices or the archive send them ([`ElsewhereBytes`]). A slow
//! archive holds no thread either: the peer's pings are answered, and the transaction is in use.

use std::future::Future;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use cellar_fileobjects::{Elsewhere, ElsewhereBytes};
use cellar_rpc::{IncomingCall, OutgoingCall, blocking};
use cellar_wire::AbortCode;
use cellar_wire::ids::Fid;
use tokio::time::timeout;

use super::progress::Progress;
use crate::audit;
use crate::limits::{VOLUME_STREAM_PATIENCE, VOLUME_STREAM_PIECE_BYTES};
use crate::services::VolumeServices;

/// Bytes passed between two volumes of this server before the thread is released: some milliseconds
/// of work.
const PASSED_AT_ONCE: usize = 4 << 20;

/// A producer of a stream.
pub(super) trait Source: Send + 'static {
    /// The next step. May wait for the disk.
    fn next(&mut self) -> Result<Next, AbortCode>;

    /// Receives the next bytes of the requested file.
    fn feed(&mut self, bytes: Bytes);
}

/// The next step of a stream.
pub(super) enum Next {
    /// A piece of it, never empty.
    Piece(Bytes),
    /// A request for the bytes of this file.
    Elsewhere(Elsewhere),
    /// A request for more of these bytes.
    More,
    /// The end of the stream.
    End,
}

/// A consumer of a stream.
pub(super) trait Sink: Send + 'static {
    /// Consumes the next bytes. May wait for the disk.
    fn take(&mut self, bytes: Bytes) -> Result<(), AbortCode>;

    /// Undoes everything that was consumed. May wait for the disk.
    fn give_up(self);
}

/// A call to which a stream is written.
pub(super) trait Writing {
    /// Waits until there is room, and writes the bytes.
    async fn write(&mut self, bytes: Bytes) -> Result<(), AbortCode>;
}

impl Writing for IncomingCall {
    async fn write(&mut self, bytes: Bytes) -> Result<(), AbortCode> {
        Self::write(self, bytes).await
    }
}

impl Writing for OutgoingCall {
    async fn write(&mut self, bytes: Bytes) -> Result<(), AbortCode> {
        Self::write(self, bytes).await.map_err(|error| error.code())
    }
}

/// A stream of a call in a transaction, with its clock and its progress.
#[derive(Clone)]
pub(super) struct Stream {
    services: Arc<VolumeServices>,
    progress: Arc<Progress>,
}

impl Stream {
    pub(super) fn new(services: &Arc<VolumeServices>, progress: Arc<Progress>) -> Self {
        Self {
            services: services.clone(),
            progress,
        }
    }

    /// Writes the whole stream of `source`.
    pub(super) async fn send<S: Source>(
        &self,
        source: S,
        to: &mut impl Writing,
    ) -> Result<(), AbortCode> {
        let (mut source, mut next) = make(source).await;
        let mut reading = None;
        loop {
            (source, next) = match next? {
                Next::Piece(bytes) => {
                    let len = bytes.len();
                    let (written, made) =
                        tokio::join!(self.within_patience(to.write(bytes)), make(source));
                    written?;
                    self.progress.sent(len, self.services.now_secs());
                    made
                }
                Next::Elsewhere(file) => {
                    let fid = file.fid();
                    let begun = ElsewhereBytes::begin(&self.services.objects, file);
                    reading = Some((fid, begun.inspect_err(|_| note_unreadable(fid))?));
                    make(source).await
                }
                Next::More => {
                    let (fid, bytes) = reading.as_mut().ok_or(AbortCode::VOLSERDUMPERROR)?;
                    let next = self.within_patience(bytes.next()).await;
                    source.feed(next.inspect_err(|_| note_unreadable(*fid))?);
                    make(source).await
                }
                Next::End => return Ok(()),
            };
        }
    }

    /// Passes the whole stream of `source` to `sink`, both of this server: [`PASSED_AT_ONCE`] bytes
    /// in one piece of work. If that fails, everything that `sink` consumed is undone. `to` is the
    /// progress of the receiving side.
    pub(super) async fn pass<A: Source, B: Sink>(
        &self,
        mut source: A,
        mut sink: B,
        to: &Progress,
    ) -> Result<B, AbortCode> {
        loop {
            let turn = move || {
                let passed = pass(&mut source, &mut sink, PASSED_AT_ONCE);
                (source, sink, passed)
            };
            let passed;
            (source, sink, passed) = blocking(turn).await;
            let failed = match passed {
                Ok(passed) => {
                    let now = self.services.now_secs();
                    self.progress.sent(passed.bytes, now);
                    to.received(passed.bytes, now);
                    if passed.ended {
                        return Ok(sink);
                    }
                    let stopped = self.progress.is_stopped() || to.is_stopped();
                    stopped.then_some(AbortCode::RX_USER_ABORT)
                }
                Err(code) => Some(code),
            };
            if let Some(code) = failed {
                blocking(move || sink.give_up()).await;
                return Err(code);
            }
        }
    }

    /// Passes the rest of a request to `sink`. If that fails, everything that `sink` consumed is
    /// undone.
    pub(super) async fn receive<S: Sink>(
        &self,
        call: &mut IncomingCall,
        sink: S,
    ) -> Result<S, AbortCode> {
        let (sink, received) = self.receive_into(call, sink).await;
        if let Err(code) = received {
            blocking(move || sink.give_up()).await;
            return Err(code);
        }
        Ok(sink)
    }

    async fn receive_into<S: Sink>(
        &self,
        call: &mut IncomingCall,
        mut sink: S,
    ) -> (S, Result<(), AbortCode>) {
        let mut gathered = self.gather(call).await;
        loop {
            let (bytes, ended) = match gathered {
                Ok(gathered) => gathered,
                Err(code) => return (sink, Err(code)),
            };
            if ended {
                return take(sink, bytes).await;
            }
            let (next, (taken_by, taken)) = tokio::join!(self.gather(call), take(sink, bytes));
            if taken.is_err() {
                return (taken_by, taken);
            }
            (sink, gathered) = (taken_by, next);
        }
    }

    /// The next piece of a request, and whether the request has ended.
    async fn gather(&self, call: &mut IncomingCall) -> Result<(Bytes, bool), AbortCode> {
        let mut piece = BytesMut::new();
        loop {
            let Some(bytes) = self.within_patience(call.read_chunk()).await? else {
                return Ok((piece.freeze(), true));
            };
            self.progress
                .received(bytes.len(), self.services.now_secs());
            if piece.is_empty() {
                if bytes.len() >= VOLUME_STREAM_PIECE_BYTES {
                    return Ok((bytes, false));
                }
                piece.reserve(VOLUME_STREAM_PIECE_BYTES + 2 * bytes.len());
            }
            piece.extend_from_slice(&bytes);
            if piece.len() >= VOLUME_STREAM_PIECE_BYTES {
                return Ok((piece.freeze(), false));
            }
        }
    }

    /// Waits for the peer, with a timeout, and fails when the transaction was ended.
    pub(super) async fn within_patience<T>(
        &self,
        moving: impl Future<Output = Result<T, AbortCode>>,
    ) -> Result<T, AbortCode> {
        tokio::select! {
            biased;
            moved = timeout(VOLUME_STREAM_PATIENCE, moving) => {
                moved.unwrap_or(Err(AbortCode::RX_CALL_TIMEOUT))
            }
            () = self.progress.stopped() => Err(AbortCode::RX_USER_ABORT),
        }
    }
}

/// The result of passing data from a source to a sink.
pub(super) struct StreamResult {
    bytes: usize,
    ended: bool,
}

/// Passes the stream of `source` to `sink`, to the end or until at least `most` bytes were passed.
pub(super) fn pass(
    source: &mut impl Source,
    sink: &mut impl Sink,
    most: usize,
) -> Result<StreamResult, AbortCode> {
    let mut bytes = 0;
    while bytes < most {
        let piece = match source.next()? {
            Next::Piece(piece) => piece,
            Next::End => return Ok(StreamResult { bytes, ended: true }),
            // Transfers within a server use layouts and copies, and never bytes of objects.
            Next::Elsewhere(_) | Next::More => return Err(AbortCode::VOLSERDUMPERROR),
        };
        bytes += piece.len();
        sink.take(piece)?;
    }
    Ok(StreamResult {
        bytes,
        ended: false,
    })
}

/// Records the file that ended a stream: the code on the wire cannot name it.
fn note_unreadable(fid: Fid) {
    audit::add_detail("unreadable", fid.to_string());
}

async fn make<S: Source>(mut source: S) -> (S, Result<Next, AbortCode>) {
    blocking(move || {
        let next = source.next();
        (source, next)
    })
    .await
}

async fn take<S: Sink>(mut sink: S, bytes: Bytes) -> (S, Result<(), AbortCode>) {
    blocking(move || {
        let taken = sink.take(bytes);
        (sink, taken)
    })
    .await
}
