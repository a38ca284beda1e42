//! Where the bytes of a copy come from.

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use cellar_client::{self as client, Fetch};
use parking_lot::Mutex;

/// Bytes read from a file at a time.
const CHUNK_BYTES: usize = 256 << 10;

/// Either.
pub(super) enum Source<'a> {
    Local(LocalSource),
    Afs(Box<AfsSource<'a>>),
}

impl client::Source for Source<'_> {
    async fn take(&mut self, max: u64) -> io::Result<Vec<Bytes>> {
        match self {
            Self::Local(source) => source.take(max).await,
            Self::Afs(source) => source.take(max).await,
        }
    }
}

/// A file of this machine, or standard input.
pub(super) struct LocalSource(Arc<Mutex<Box<dyn Read + Send>>>);

impl LocalSource {
    pub(super) fn file(file: File) -> Self {
        Self(Arc::new(Mutex::new(Box::new(file))))
    }

    pub(super) fn standard_input() -> Self {
        Self(Arc::new(Mutex::new(Box::new(io::stdin()))))
    }
}

impl client::Source for LocalSource {
    async fn take(&mut self, max: u64) -> io::Result<Vec<Bytes>> {
        let file = self.0.clone();
        let read = move || read_up_to(&mut **file.lock(), max);
        tokio::task::spawn_blocking(read)
            .await
            .map_err(io::Error::other)?
    }
}

fn read_up_to(file: &mut dyn Read, max: u64) -> io::Result<Vec<Bytes>> {
    let mut chunks = Vec::new();
    let mut left = max;
    while left > 0 {
        let mut chunk =
            BytesMut::zeroed(CHUNK_BYTES.min(usize::try_from(left).unwrap_or(usize::MAX)));
        let mut filled = 0;
        while filled < chunk.len() {
            match file.read(&mut chunk[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(cause),
            }
        }
        let whole = filled == chunk.len();
        chunk.truncate(filled);
        left -= filled as u64;
        if filled > 0 {
            chunks.push(chunk.freeze());
        }
        if !whole {
            break;
        }
    }
    Ok(chunks)
}

/// A file of AFS, while it is fetched.
pub(super) struct AfsSource<'a> {
    fetch: Fetch<'a>,
    /// Taken from the fetch, not yet handed on.
    held: Bytes,
}

impl<'a> AfsSource<'a> {
    pub(super) fn new(fetch: Fetch<'a>) -> Self {
        Self {
            fetch,
            held: Bytes::new(),
        }
    }
}

impl client::Source for AfsSource<'_> {
    async fn take(&mut self, max: u64) -> io::Result<Vec<Bytes>> {
        let mut chunks = Vec::new();
        let mut left = usize::try_from(max).unwrap_or(usize::MAX);
        while left > 0 {
            if self.held.is_empty() {
                match self.fetch.next().await.map_err(io::Error::other)? {
                    Some(bytes) => self.held = bytes,
                    None => break,
                }
            }
            let part = self.held.split_to(self.held.len().min(left));
            left -= part.len();
            chunks.push(part);
        }
        Ok(chunks)
    }
}
