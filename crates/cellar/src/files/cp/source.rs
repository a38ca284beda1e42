//! Sources of a copy's bytes.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use cellar_client::{self as client, Client, Download, Node};
use futures_util::future::try_join_all;
use parking_lot::Mutex;

/// Bytes read from a local file at a time.
const CHUNK_BYTES: usize = 256 << 10;

/// Bytes that each stream fetches at a time.
const STREAM_BYTES: u64 = 8 << 20;

/// A source of either kind.
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

    async fn rewind(&mut self, position: u64) -> io::Result<bool> {
        match self {
            Self::Local(source) => source.rewind(position).await,
            Self::Afs(source) => source.rewind(position).await,
        }
    }
}

/// A source that remembers whether a read failed. Failures of the target do not count.
pub(super) struct Watched<'a, 's> {
    source: &'a mut Source<'s>,
    /// Whether a read failed.
    pub(super) failed: bool,
}

impl<'a, 's> Watched<'a, 's> {
    pub(super) fn new(source: &'a mut Source<'s>) -> Self {
        Self {
            source,
            failed: false,
        }
    }
}

impl client::Source for Watched<'_, '_> {
    async fn take(&mut self, max: u64) -> io::Result<Vec<Bytes>> {
        let taken = self.source.take(max).await;
        self.failed |= taken.is_err();
        taken
    }

    async fn rewind(&mut self, position: u64) -> io::Result<bool> {
        let rewound = self.source.rewind(position).await;
        self.failed |= rewound.is_err();
        rewound
    }
}

/// A file of this machine, or standard input.
pub(super) struct LocalSource(Arc<Mutex<Input>>);

enum Input {
    /// An open file, and the number of bytes still to read.
    File(File, u64),
    Standard,
}

impl LocalSource {
    /// A range of a file.
    pub(super) fn file(mut file: File, range: Range<u64>) -> io::Result<Self> {
        if range.start > 0 {
            file.seek(SeekFrom::Start(range.start))?;
        }
        let left = range.end.saturating_sub(range.start);
        Ok(Self(Arc::new(Mutex::new(Input::File(file, left)))))
    }

    pub(super) fn standard_input() -> Self {
        Self(Arc::new(Mutex::new(Input::Standard)))
    }
}

impl client::Source for LocalSource {
    async fn take(&mut self, max: u64) -> io::Result<Vec<Bytes>> {
        let input = self.0.clone();
        let read = move || match &mut *input.lock() {
            Input::File(file, left) => {
                let chunks = read_up_to(file, max.min(*left))?;
                *left -= chunks.iter().map(|chunk| chunk.len() as u64).sum::<u64>();
                Ok(chunks)
            }
            Input::Standard => read_up_to(&mut io::stdin(), max),
        };
        tokio::task::spawn_blocking(read)
            .await
            .map_err(io::Error::other)?
    }

    async fn rewind(&mut self, position: u64) -> io::Result<bool> {
        match &mut *self.0.lock() {
            Input::File(file, left) => {
                let end = file.stream_position()? + *left;
                *left = end.saturating_sub(position);
                file.seek(SeekFrom::Start(position))?;
                Ok(true)
            }
            Input::Standard => Ok(false),
        }
    }
}

fn read_up_to(file: &mut impl Read, max: u64) -> io::Result<Vec<Bytes>> {
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

/// A range of a file of AFS. Devices deliver it over many calls in parallel without further help; a
/// file server delivers it over `streams` calls.
pub(super) struct AfsSource<'a> {
    client: &'a Client,
    node: &'a Node,
    path: &'a str,
    streams: usize,
    /// The range that is not requested yet, if there are several streams. Otherwise `one` delivers
    /// all of it.
    range: Range<u64>,
    one: Option<Download<'a>>,
    /// Bytes received from the servers and not yet handed on.
    held: VecDeque<Bytes>,
}

impl<'a> AfsSource<'a> {
    pub(super) async fn open(
        client: &'a Client,
        (node, path): (&'a Node, &'a str),
        range: Range<u64>,
        streams: usize,
    ) -> Result<Self, client::Error> {
        let one = client.download(node, path, range.clone()).await?;
        let long = range.end.min(node.status.length) > range.start + STREAM_BYTES;
        let many = streams > 1 && long && !one.is_direct();
        Ok(Self {
            client,
            node,
            path,
            streams,
            range,
            one: (!many).then_some(one),
            held: VecDeque::new(),
        })
    }

    /// Fetches more from the servers. Adds nothing at the end of the range.
    async fn fill(&mut self) -> Result<(), client::Error> {
        if let Some(one) = &mut self.one {
            self.held.extend(one.next().await?);
            return Ok(());
        }
        let end = self.range.end.min(self.node.status.length);
        let mut pieces = Vec::new();
        while pieces.len() < self.streams && self.range.start < end {
            let begin = self.range.start;
            let until = (begin + STREAM_BYTES).min(end);
            self.range.start = until;
            pieces.push(self.piece(begin..until));
        }
        for piece in try_join_all(pieces).await? {
            self.held.extend(piece);
        }
        Ok(())
    }

    fn piece(
        &self,
        range: Range<u64>,
    ) -> impl Future<Output = Result<Vec<Bytes>, client::Error>> + use<'a> {
        let (client, node, path) = (self.client, self.node, self.path);
        async move {
            let length = range.end - range.start;
            let mut fetch = client.fetch(node, range.start, length).await?.named(path);
            let mut chunks = Vec::new();
            while let Some(chunk) = fetch.next().await? {
                chunks.push(chunk);
            }
            Ok(chunks)
        }
    }
}

impl client::Source for AfsSource<'_> {
    async fn take(&mut self, max: u64) -> io::Result<Vec<Bytes>> {
        let mut chunks = Vec::new();
        let mut left = usize::try_from(max).unwrap_or(usize::MAX);
        while left > 0 {
            let Some(first) = self.held.front_mut() else {
                self.fill().await.map_err(io::Error::other)?;
                if self.held.is_empty() {
                    break;
                }
                continue;
            };
            let part = first.split_to(first.len().min(left));
            if first.is_empty() {
                self.held.pop_front();
            }
            left -= part.len();
            chunks.push(part);
        }
        Ok(chunks)
    }

    async fn rewind(&mut self, position: u64) -> io::Result<bool> {
        self.held.clear();
        if self.one.is_some() {
            let range = position..self.range.end;
            let again = self.client.download(self.node, self.path, range).await;
            self.one = Some(again.map_err(io::Error::other)?);
        }
        self.range.start = position;
        Ok(true)
    }
}
