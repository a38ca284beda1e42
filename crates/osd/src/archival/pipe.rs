//! Pieces of a copy on their way between a call and an archive.
//!
//! The call is on a shard's thread, the archive on a thread of its own. A channel with a few places
//! lies between them. If either side ends early, the other one sees the end of the channel.

use std::io;

use bytes::Bytes;
use cellar_archive::{Error, Receipt, Sink, Source};
use futures_util::future::{BoxFuture, FutureExt};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Pieces between the two sides, of at most half a megabyte each.
const PIECES: usize = 8;

/// Bytes that go to an archive.
pub(crate) struct Incoming {
    pieces: mpsc::Sender<Bytes>,
    work: JoinHandle<Result<Receipt, Error>>,
}

/// Bytes that come from an archive.
pub(crate) struct Outgoing {
    pieces: mpsc::Receiver<Bytes>,
    work: JoinHandle<Result<(), Error>>,
}

impl Incoming {
    pub(super) fn begin<F>(
        threads: &Handle,
        work: impl FnOnce(PieceSource) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Receipt, Error>> + Send + 'static,
    {
        let (pieces, receiver) = mpsc::channel(PIECES);
        let source = PieceSource {
            pieces: receiver,
            rest: Bytes::new(),
        };
        Self {
            pieces,
            work: threads.spawn(work(source)),
        }
    }

    /// Sends a piece. Returns `false` if the archive takes no more; [`Incoming::finish`] has the
    /// reason.
    pub(crate) async fn send(&self, piece: Bytes) -> bool {
        self.pieces.send(piece).await.is_ok()
    }

    /// Ends the bytes, and waits until the copy is durable.
    pub(crate) async fn finish(self) -> Result<Receipt, Error> {
        drop(self.pieces);
        ended(self.work).await
    }
}

impl Outgoing {
    pub(super) fn begin<F>(
        threads: &Handle,
        work: impl FnOnce(PieceSink) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let (sender, pieces) = mpsc::channel(PIECES);
        Self {
            pieces,
            work: threads.spawn(work(PieceSink(sender))),
        }
    }

    /// The next piece; `None` at the end, and after an error.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        self.pieces.recv().await
    }

    /// The result: the bytes are right only if it is `Ok`.
    pub(crate) async fn finish(self) -> Result<(), Error> {
        drop(self.pieces);
        ended(self.work).await
    }
}

/// The result of work; work ends without one only if the threads end.
async fn ended<T>(work: JoinHandle<Result<T, Error>>) -> Result<T, Error> {
    work.await.unwrap_or(Err(Error::Cancelled))
}

/// The archive's end of bytes that go to it.
pub(super) struct PieceSource {
    pieces: mpsc::Receiver<Bytes>,
    /// The rest of a piece that was longer than wanted.
    rest: Bytes,
}

impl Source for PieceSource {
    fn read(&mut self, most: usize) -> BoxFuture<'_, io::Result<Bytes>> {
        async move {
            while self.rest.is_empty() {
                match self.pieces.recv().await {
                    Some(piece) => self.rest = piece,
                    None => return Ok(Bytes::new()),
                }
            }
            let count = self.rest.len().min(most);
            Ok(self.rest.split_to(count))
        }
        .boxed()
    }
}

/// The archive's end of bytes that come from it.
pub(super) struct PieceSink(mpsc::Sender<Bytes>);

impl Sink for PieceSink {
    fn write(&mut self, bytes: Bytes) -> BoxFuture<'_, io::Result<()>> {
        async move {
            let sent = self.0.send(bytes).await;
            sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
        }
        .boxed()
    }

    fn finish(&mut self) -> BoxFuture<'_, io::Result<()>> {
        async { Ok(()) }.boxed()
    }
}
