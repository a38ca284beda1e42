//! A copy that is being read: pieces of bounded size, with read-ahead.

use std::fs::File;
use std::io::Read;
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{GetResultPayload, ObjectStoreExt};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::backend::Backend;
use crate::fault::Fault;
use crate::limits::{PIECE_BYTES_MAX, PIECES_AHEAD_MAX};

/// The pieces of a copy.
pub(crate) struct Reader {
    pieces: mpsc::Receiver<Result<Bytes, Fault>>,
    task: JoinHandle<()>,
    patience: Duration,
    /// Whether the next piece is the first.
    is_first: bool,
    recall_patience: Duration,
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Reader {
    /// Opens a copy. Returns its length too.
    pub(crate) async fn open(backend: &Backend, path: &Path) -> Result<(Self, u64), Fault> {
        let settings = backend.settings;
        let found = Backend::within(settings.recall_patience, backend.store.get(path)).await?;
        let length = found.meta.size;
        let (pieces, received) = mpsc::channel(PIECES_AHEAD_MAX);
        let task = tokio::spawn(async move {
            let failed = match found.payload {
                GetResultPayload::File(file, _) => read_file(file, &pieces).await,
                GetResultPayload::Stream(stream) => read_stream(stream, &pieces).await,
            };
            if let Err(fault) = failed {
                let _ = pieces.send(Err(fault)).await;
            }
        });
        let reader = Self {
            pieces: received,
            task,
            patience: settings.patience,
            is_first: true,
            recall_patience: settings.recall_patience,
        };
        Ok((reader, length))
    }

    /// The next piece; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Fault> {
        let patience = match self.is_first {
            true => self.recall_patience,
            false => self.patience,
        };
        match tokio::time::timeout(patience, self.pieces.recv()).await {
            Err(_) => Err(crate::Error::Slow(patience).into()),
            Ok(piece) => {
                self.is_first = false;
                piece.transpose()
            }
        }
    }
}

/// Reads a file in pieces on a thread of the blocking pool. The library's own stream has pieces of
/// 8 KiB, and a change of threads for each.
async fn read_file(file: File, pieces: &mpsc::Sender<Result<Bytes, Fault>>) -> Result<(), Fault> {
    let mut file = file;
    loop {
        let read = tokio::task::spawn_blocking(move || {
            let mut piece = Vec::with_capacity(PIECE_BYTES_MAX);
            let done = (&mut file)
                .take(PIECE_BYTES_MAX as u64)
                .read_to_end(&mut piece);
            (file, done.map(|_| piece))
        });
        let (back, piece) = read.await.map_err(|error| down(&error))?;
        file = back;
        let piece = piece.map_err(|error| down(&error))?;
        if piece.is_empty() || pieces.send(Ok(piece.into())).await.is_err() {
            return Ok(());
        }
    }
}

async fn read_stream(
    mut stream: futures_util::stream::BoxStream<'static, object_store::Result<Bytes>>,
    pieces: &mpsc::Sender<Result<Bytes, Fault>>,
) -> Result<(), Fault> {
    while let Some(piece) = stream.try_next().await? {
        if pieces.send(Ok(piece)).await.is_err() {
            break;
        }
    }
    Ok(())
}

fn down(error: &dyn std::fmt::Display) -> Fault {
    crate::Error::Down(crate::fault::message(error)).into()
}
