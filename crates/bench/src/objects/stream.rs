//! One client with one file, which is written or read as a whole.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cellar_client::{Client, Node, Source, Upload, UploadStep, VolumeKind, volume_of};
use cellar_wire::ids::Fid;
use cellar_wire::object::Shape;
use cellar_wire::rxafs::AfsStoreStatus;
use rustix::process::{Pid, Signal, kill_process};

use super::{ObjectsError, Operation};

/// A client machine and its file.
pub(super) struct Stream {
    pub(super) client: Arc<Client>,
    /// The thread of its port.
    pub(super) shard: usize,
    pub(super) name: String,
    pub(super) volume: String,
    /// Bytes of the file.
    pub(super) length: u64,
    /// Size of the writes, bytes.
    pub(super) record: u64,
    /// Size of each `StoreData64` or `FetchData64`, in sequence, bytes; `None`: as our client
    /// chooses.
    pub(super) call: Option<u64>,
    pub(super) shape: Option<Shape>,
    pub(super) payload: Bytes,
    /// Its directory, and the file.
    pub(super) file: Option<(Node, Node)>,
}

/// Start and end of a client's work, and its longest time without progress.
pub(super) struct Streamed {
    pub(super) begun: Instant,
    pub(super) ended: Instant,
    pub(super) silence: Duration,
}

/// A process that is killed after a number of bytes.
pub(super) struct Half {
    pid: u32,
    wanted: u64,
    gone: AtomicU64,
    killed: AtomicBool,
}

impl Half {
    pub(super) fn new(pid: u32, wanted: u64) -> Self {
        Self {
            pid,
            wanted,
            gone: AtomicU64::new(0),
            killed: AtomicBool::new(false),
        }
    }

    fn count(&self, bytes: u64) {
        let gone = self.gone.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if gone >= self.wanted && !self.killed.swap(true, Ordering::Relaxed) {
            let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
            if let Some(Err(cause)) = pid.map(|pid| kill_process(pid, Signal::KILL)) {
                eprintln!("process {} was not killed: {cause}", self.pid);
            }
        }
    }
}

/// Measures the longest time without progress.
struct Pace<'h> {
    last: Instant,
    silence: Duration,
    half: Option<&'h Half>,
}

impl<'h> Pace<'h> {
    fn new(half: Option<&'h Half>) -> Self {
        Self {
            last: Instant::now(),
            silence: Duration::ZERO,
            half,
        }
    }

    fn moved(&mut self, bytes: u64) {
        let now = Instant::now();
        self.silence = self.silence.max(now - self.last);
        self.last = now;
        if let Some(half) = self.half {
            half.count(bytes);
        }
    }
}

/// The contents of a file, in records.
struct Records {
    payload: Bytes,
    record: u64,
    left: Range<u64>,
}

/// Returns the contents of every file from `position` on, at most `max` bytes.
pub(super) fn bytes_at(payload: &Bytes, position: u64, max: u64) -> Bytes {
    let at = (position % payload.len() as u64) as usize;
    let end = payload
        .len()
        .min(at.saturating_add(usize::try_from(max).unwrap_or(usize::MAX)));
    payload.slice(at..end)
}

impl Source for Records {
    async fn take(&mut self, max: u64) -> std::io::Result<Vec<Bytes>> {
        let end = self.left.end.min(self.left.start.saturating_add(max));
        let mut records = Vec::new();
        while self.left.start < end {
            let wanted = self.record.min(end - self.left.start);
            let record = bytes_at(&self.payload, self.left.start, wanted);
            self.left.start += record.len() as u64;
            records.push(record);
        }
        Ok(records)
    }

    async fn rewind(&mut self, position: u64) -> std::io::Result<bool> {
        self.left.start = position;
        Ok(true)
    }
}

impl Stream {
    /// Creates the empty file in the volume's root directory.
    pub(super) async fn make(&mut self) -> Result<(), ObjectsError> {
        let client = &self.client;
        let unknown = || ObjectsError::Option("no cell".to_owned());
        let cell = client.home().ok_or_else(unknown)?;
        let family = client.locations().family(cell, &self.volume).await?;
        let volume = volume_of(&family, VolumeKind::ReadWrite);
        let root = client.node(&volume, Fid::root(volume.id)).await?;
        let place = client.place(&root, self.name.as_bytes(), &self.name)?;
        let status = AfsStoreStatus {
            unix_mode: Some(0o644),
            ..AfsStoreStatus::default()
        };
        let file = place.create_file(status).await?;
        self.file = Some((root, file));
        Ok(())
    }

    pub(super) async fn remove(&self) -> Result<(), ObjectsError> {
        if let Some((root, _)) = &self.file {
            let place = self.client.place(root, self.name.as_bytes(), &self.name)?;
            place.remove_file().await?;
        }
        Ok(())
    }

    /// Writes or reads the whole file; returns the longest time without progress.
    pub(super) async fn run(
        &mut self,
        operation: Operation,
        half: &Option<Half>,
    ) -> Result<Duration, ObjectsError> {
        let mut pace = Pace::new(half.as_ref());
        let Some((_, file)) = &self.file else {
            return Err(ObjectsError::Ended);
        };
        // The current status is needed, since the length counts.
        let file = self.client.node(&file.volume, file.fid).await?;
        let mut source = Records {
            payload: self.payload.clone(),
            record: self.record,
            left: 0..self.length,
        };
        match operation {
            Operation::Write => {
                let upload = Upload {
                    range: 0..self.length,
                    shape: self.shape,
                    ..Upload::default()
                };
                let moved = |step| {
                    if let UploadStep::Sent(bytes) = step {
                        pace.moved(bytes);
                    }
                };
                let client = &self.client;
                client
                    .upload(&file, &self.name, &mut source, &upload, moved)
                    .await?;
            }
            Operation::Store if let Some(each) = self.call => {
                let mut position = 0;
                while position < self.length {
                    let each = each.min(self.length - position);
                    let piece = source.take(each).await.map_err(ObjectsError::Io)?;
                    let client = &self.client;
                    client
                        .store_piece(&file, &self.name, position, &piece, each, None)
                        .await?;
                    position += each;
                    pace.moved(each);
                }
            }
            Operation::Store => {
                let moved = |bytes| pace.moved(bytes);
                let client = &self.client;
                client
                    .store(&file, &self.name, &mut source, None, moved)
                    .await?;
            }
            Operation::Read => {
                let range = 0..self.length;
                let mut download = self.client.download(&file, &self.name, range).await?;
                if !download.is_direct() {
                    let plain = "the file is not in objects, or they cannot be reached";
                    return Err(ObjectsError::Option(plain.to_owned()));
                }
                let mut position = 0;
                while let Some(bytes) = download.next().await? {
                    self.compare(&mut position, &bytes, &mut pace)?;
                }
                self.whole(position)?;
            }
            _ => {
                let mut position = 0;
                let each = self.call.unwrap_or(self.length).max(1);
                while position < self.length {
                    let mut fetch = self.client.fetch(&file, position, each).await?;
                    let before = position;
                    while let Some(bytes) = fetch.next().await? {
                        self.compare(&mut position, &bytes, &mut pace)?;
                    }
                    if position == before {
                        break;
                    }
                }
                self.whole(position)?;
            }
        }
        pace.moved(0);
        Ok(pace.silence)
    }

    /// Compares the beginning of a piece with what was written there.
    fn compare(
        &self,
        position: &mut u64,
        bytes: &Bytes,
        pace: &mut Pace<'_>,
    ) -> Result<(), ObjectsError> {
        let expected = bytes_at(&self.payload, *position, 16);
        let common = expected.len().min(bytes.len());
        if expected[..common] != bytes[..common] {
            return Err(ObjectsError::Differs(*position));
        }
        *position += bytes.len() as u64;
        pace.moved(bytes.len() as u64);
        Ok(())
    }

    fn whole(&self, position: u64) -> Result<(), ObjectsError> {
        if position == self.length {
            return Ok(());
        }
        Err(ObjectsError::Differs(position))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn records_are_the_payload_again_and_again() {
        let payload = Bytes::from_static(b"0123456789");
        let mut source = Records {
            payload: payload.clone(),
            record: 4,
            left: 0..25,
        };
        let all = source.take(22).await.unwrap().concat();
        assert_eq!(all, b"0123456789012345678901");
        assert_eq!(source.take(100).await.unwrap().concat(), b"234");
        assert!(source.rewind(20).await.unwrap());
        assert_eq!(source.take(100).await.unwrap().concat(), b"01234");
        assert_eq!(bytes_at(&payload, 18, 5), &b"89"[..]);
    }
}
