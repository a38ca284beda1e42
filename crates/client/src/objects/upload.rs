//! Stores bytes into a file, at its devices or through its file server.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use cellar_objects::{Capabilities, WriteOptions, Writer, Written};
use cellar_rpc::CallError;
use cellar_wire::abort::AbortCode;
use cellar_wire::afsosd::{
    AbortStore, BeginStore, BeginStoreReply, EndStore, ExtendStore, STORE_LEASE,
};
use cellar_wire::ids::AfsTime;
use cellar_wire::object::Shape;
use cellar_wire::rxafs::AfsFetchStatus;
use tokio::time::{Instant, sleep, sleep_until};

use super::{DIRECT_MIN, PART_BYTES_FIRST, PART_BYTES_MAX, is_plain, object_set};
use crate::client::Client;
use crate::error::{Error, Result};
use crate::path::Node;
use crate::stop::Stop;
use crate::store::Source;

/// The bytes read from the source at a time, while those before are sent.
const TAKE_BYTES: u64 = 4 << 20;

/// The time after which the lease of a store is renewed.
const RENEW: Duration = Duration::from_secs(STORE_LEASE as u64 / 3);

/// The longest wait for a store of another client. The server has forgotten the store of a dead
/// client by then.
const BUSY_WAIT: Duration = Duration::from_secs(STORE_LEASE as u64 + 15);

/// The intended duration of a part. An interrupted store loses at most one part.
const PART_TIME: Duration = Duration::from_secs(10);

/// A request to store bytes.
#[derive(Clone, Debug, Default)]
pub struct Upload {
    /// The range of bytes to store. The bytes before it are in the file already, and the file ends
    /// after it.
    pub range: Range<u64>,
    /// Modification time.
    pub modified: Option<AfsTime>,
    /// The layout of the file's objects, if the file is new; `None` leaves the choice to the
    /// policies.
    pub shape: Option<Shape>,
    /// Cancels the store, at the servers too, so that the next store need not wait until they
    /// forget it.
    pub stop: Stop,
}

/// The progress of an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UploadStep {
    /// This number of further bytes was sent.
    Sent(u64),
    /// Another client stores into the file. Reported once for each wait.
    Waits,
}

/// A store in progress.
struct Store<'a> {
    client: &'a Client,
    node: &'a Node,
    what: &'a str,
    number: u64,
    part: Part,
    renew: Instant,
}

/// The bytes of one store.
#[derive(Clone, Debug)]
struct Part {
    range: Range<u64>,
    /// The least length of the file after the store.
    length: u64,
}

/// The outcome of storing a piece at the devices.
pub enum Stored {
    /// The piece is stored at the devices.
    Directly(AfsFetchStatus),
    /// The piece has to go through the file server, which keeps the file itself.
    KeptThere,
    /// The piece has to go through the file server; the next may be stored at the devices.
    NotNow,
}

/// The reason why a part was not stored at the devices.
enum Missed {
    /// The file server keeps the file itself, so a plain store is needed. No bytes were taken from
    /// the source.
    Plain,
    /// The file is longer than it has to be, so a plain store is needed too. No bytes were taken
    /// from the source.
    TooLong,
    /// The store failed. Bytes may have been taken from the source.
    Failed(Error),
}

impl Client {
    /// Stores the bytes of `source`: at devices if the file is in objects, or will be, else at its
    /// file server. Calls `progress` with each step.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if a stop was requested through `upload.stop`; the source cannot be
    /// read or has fewer bytes; neither devices nor file server take the bytes. The parts that
    /// ended before the failure are in the file.
    pub async fn upload(
        &self,
        node: &Node,
        what: &str,
        source: &mut impl Source,
        upload: &Upload,
        mut progress: impl FnMut(UploadStep),
    ) -> Result<AfsFetchStatus> {
        let Upload {
            range,
            modified,
            stop,
            ..
        } = upload;
        let interrupted = || Error::Interrupted {
            what: what.to_owned(),
        };
        let length = range.end.saturating_sub(range.start);
        let wanted = length >= DIRECT_MIN || (upload.shape.is_some() && length > 0);
        let direct = wanted && self.knows_objects(&node.volume).await?;
        if wanted && !direct && upload.shape.is_some() {
            let what = what.to_owned();
            return Err(Error::NoObjects { what });
        }
        let mut status = node.status;
        if status.length > range.end {
            status = self.cut(node, what, range.end).await?;
        }
        let mut position = range.start;
        if direct {
            let mut next = PART_BYTES_FIRST;
            while position < range.end {
                let end = range.end.min(position + next);
                let began = Instant::now();
                let part = Part {
                    range: position..end,
                    length: end,
                };
                let mut sent = 0;
                let count = |step| {
                    if let UploadStep::Sent(bytes) = step {
                        sent += bytes;
                    }
                    progress(step);
                };
                match self
                    .store_part(node, what, source, upload, part, count)
                    .await
                {
                    Ok(ended) => status = ended,
                    Err(Missed::Plain | Missed::TooLong) if upload.shape.is_some() => {
                        let what = what.to_owned();
                        return Err(Error::NoObjects { what });
                    }
                    Err(Missed::Plain | Missed::TooLong) => break,
                    Err(Missed::Failed(failure)) => {
                        let local = |cause| Error::Local {
                            what: what.to_owned(),
                            cause,
                        };
                        if is_final(&failure) || !source.rewind(position).await.map_err(local)? {
                            // The devices would take the bytes.
                            let full = self.blame_layout(node, what, upload.shape, 0, failure);
                            return Err(full.await);
                        }
                        tracing::info!(what, %failure, "continuing through the file server");
                        let mut again = |bytes: u64| {
                            let news = bytes.saturating_sub(sent);
                            sent = sent.saturating_sub(bytes);
                            progress(UploadStep::Sent(news));
                        };
                        let stored =
                            self.store_from(node, what, position, source, *modified, &mut again);
                        let stored = stop.unless(stored).await.ok_or_else(interrupted)?;
                        return stored.map_err(|error| match error.code() {
                            // The first failure names the device.
                            Some(AbortCode::EIO) => failure,
                            _ => error,
                        });
                    }
                }
                next = part_after(end - position, began.elapsed());
                position = end;
            }
        }
        if position < range.end || (length == 0 && modified.is_some()) {
            let sent = |bytes| progress(UploadStep::Sent(bytes));
            let stored = self.store_from(node, what, position, source, *modified, sent);
            let stored = stop.unless(stored).await.ok_or_else(interrupted)?;
            return match stored {
                Ok(status) => Ok(status),
                Err(failure) => {
                    let needed = range.end - position;
                    let failure = self
                        .blame_layout(node, what, upload.shape, needed, failure)
                        .await;
                    Err(self.blame_device(node, what, range.clone(), failure).await)
                }
            };
        }
        Ok(status)
    }

    /// Stores a piece of a file of `length` bytes at its devices. After a failure of the devices
    /// only, the caller can store the piece through the file server: the failed attempt does not
    /// block that.
    ///
    /// # Errors
    /// A failure that the file server would report too.
    pub async fn store_directly(
        &self,
        node: &Node,
        what: &str,
        piece: Range<u64>,
        length: u64,
        modified: Option<AfsTime>,
        chunks: &[Bytes],
    ) -> Result<Stored> {
        let upload = Upload {
            range: 0..length,
            modified,
            ..Upload::default()
        };
        let part = Part {
            range: piece,
            length,
        };
        let mut source = Chunks(chunks);
        let stored = self.store_part(node, what, &mut source, &upload, part, |_| {});
        match stored.await {
            Ok(status) => Ok(Stored::Directly(status)),
            Err(Missed::Plain) => Ok(Stored::KeptThere),
            Err(Missed::TooLong) => Ok(Stored::NotNow),
            Err(Missed::Failed(failure)) if is_final(&failure) => Err(failure),
            Err(Missed::Failed(failure)) => {
                tracing::info!(what, %failure, "stored through the file server");
                Ok(Stored::NotNow)
            }
        }
    }

    /// Stores one part at the devices.
    async fn store_part(
        &self,
        node: &Node,
        what: &str,
        source: &mut impl Source,
        upload: &Upload,
        part: Part,
        mut progress: impl FnMut(UploadStep),
    ) -> std::result::Result<AfsFetchStatus, Missed> {
        let waits = || progress(UploadStep::Waits);
        let begun = self
            .begin_store(node, what, upload, &part.range, waits)
            .await;
        let begun = begun.map_err(|failure| match is_plain(&failure) {
            true => Missed::Plain,
            false => Missed::Failed(failure),
        })?;
        tracing::debug!(what, store = begun.store, ?part, "a store begins");
        let mut store = Store {
            client: self,
            node,
            what,
            number: begun.store,
            part,
            renew: Instant::now() + RENEW,
        };
        if begun.status.length > upload.range.end {
            // Only the file server can shorten a file.
            store.abort().await;
            return Err(Missed::TooLong);
        }
        let stored = async {
            let devices = self.devices(&node.volume.cell);
            devices.merge(&begun.access.devices);
            let set = object_set(node.fid, begun.access);
            let (length, options) = (begun.status.length, WriteOptions::default());
            let writer = Writer::new(devices, set, length, options);
            let writer = writer.map_err(|cause| store.failed(cause))?;
            let mut sent = |bytes| progress(UploadStep::Sent(bytes));
            let sending = store.send(writer, source, &mut sent);
            let interrupted = || Error::Interrupted {
                what: what.to_owned(),
            };
            let sent = upload.stop.unless(sending).await;
            let written = sent.ok_or_else(interrupted)??;
            store.end(&written, upload.modified).await
        };
        let stored = stored.await;
        if stored.is_err() {
            store.abort().await;
        }
        stored.map_err(Missed::Failed)
    }

    async fn begin_store(
        &self,
        node: &Node,
        what: &str,
        upload: &Upload,
        part: &Range<u64>,
        mut waits: impl FnMut(),
    ) -> Result<BeginStoreReply> {
        let arguments = BeginStore {
            fid: node.fid,
            position: part.start,
            length: part.end - part.start,
            // Policies depend on the final size of the file.
            file_length: upload.range.end,
            shape: cellar_wire::List::from_iter_cut(upload.shape),
        };
        let asked = format!("storing {what}");
        let until = Instant::now() + BUSY_WAIT;
        let mut is_logged = false;
        loop {
            if upload.stop.is_asked() {
                let what = what.to_owned();
                return Err(Error::Interrupted { what });
            }
            let reply = self.call_volume(&node.volume, &asked, &arguments).await;
            match reply {
                Err(failure)
                    if failure.code() == Some(AbortCode::EBUSY) && Instant::now() < until =>
                {
                    // The server itself has waited for a while before it answered `EBUSY`.
                    if !is_logged {
                        waits();
                        is_logged = true;
                    }
                    let pause = sleep(Duration::from_millis(200));
                    let _asked = upload.stop.unless(pause).await;
                }
                other => return other,
            }
        }
    }
}

/// A source of bytes in memory.
struct Chunks<'a>(&'a [Bytes]);

impl Source for Chunks<'_> {
    async fn take(&mut self, max: u64) -> std::io::Result<Vec<Bytes>> {
        let mut taken = Vec::new();
        let mut left = usize::try_from(max).unwrap_or(usize::MAX);
        while let Some((first, rest)) = self.0.split_first()
            && (first.len() <= left || taken.is_empty())
        {
            left = left.saturating_sub(first.len());
            taken.push(first.clone());
            self.0 = rest;
        }
        Ok(taken)
    }
}

impl Store<'_> {
    fn failed(&self, cause: cellar_objects::Error) -> Error {
        Error::Objects {
            what: self.what.to_owned(),
            cause,
        }
    }

    /// Sends the part to the devices; it is durable there when this function returns.
    async fn send(
        &mut self,
        mut writer: Writer,
        source: &mut impl Source,
        progress: &mut impl FnMut(u64),
    ) -> Result<Written> {
        let mut left = self.part.range.end - self.part.range.start;
        let begun = writer.begin(self.part.range.start, left).await;
        begun.map_err(|cause| self.failed(cause))?;
        let what = self.what;
        let local = |cause| Error::Local {
            what: what.to_owned(),
            cause,
        };
        let mut chunks = source.take(left.min(TAKE_BYTES)).await.map_err(local)?;
        while left > 0 {
            let count: u64 = chunks.iter().map(|chunk| chunk.len() as u64).sum();
            if count == 0 {
                let early = std::io::ErrorKind::UnexpectedEof;
                return Err(local(std::io::Error::new(
                    early,
                    "the source became shorter while it was copied",
                )));
            }
            left -= count;
            let (pushed, next) =
                tokio::join!(push(&mut writer, chunks), source.take(left.min(TAKE_BYTES)));
            pushed.map_err(|cause| self.failed(cause))?;
            chunks = next.map_err(local)?;
            progress(count);
            if Instant::now() >= self.renew {
                writer.renew(self.extend().await?);
            }
        }
        let finish = writer.finish();
        tokio::pin!(finish);
        loop {
            tokio::select! {
                written = &mut finish => return written.map_err(|cause| self.failed(cause)),
                () = sleep_until(self.renew) => {}
            }
            self.extend().await?;
        }
    }

    /// Extends the lease of the store.
    async fn extend(&mut self) -> Result<Capabilities> {
        let arguments = ExtendStore {
            fid: self.node.fid,
            store: self.number,
            position: self.part.range.start,
            length: self.part.range.end - self.part.range.start,
        };
        let asked = format!("storing {}", self.what);
        let volume = &self.node.volume;
        let reply = self.client.call_volume(volume, &asked, &arguments).await?;
        let devices = self.client.devices(&volume.cell);
        devices.merge(&reply.access.devices);
        self.renew = Instant::now() + RENEW;
        Ok(Capabilities::Listed(reply.access.capabilities.into()))
    }

    /// Ends the store: the bytes become the contents of the file.
    async fn end(&self, written: &Written, modified: Option<AfsTime>) -> Result<AfsFetchStatus> {
        let modified = modified.unwrap_or_else(|| {
            let seconds = super::now();
            AfsTime(u32::try_from(seconds).unwrap_or(u32::MAX))
        });
        let arguments = EndStore {
            fid: self.node.fid,
            store: self.number,
            length: self.part.length,
            modified,
            failed: written.failed(),
        };
        let asked = format!("storing {}", self.what);
        let volume = &self.node.volume;
        let reply = self.client.call_volume(volume, &asked, &arguments).await?;
        Ok(reply.status)
    }

    /// Gives the store up, so that other clients need not wait until its lease ends.
    async fn abort(&self) {
        let arguments = AbortStore {
            fid: self.node.fid,
            store: self.number,
        };
        let asked = format!("giving up the store of {}", self.what);
        let given_up = self
            .client
            .call_volume(&self.node.volume, &asked, &arguments);
        if let Err(failure) = given_up.await {
            tracing::debug!(%failure, "the server did not end a store that was given up");
        }
    }
}

/// The size of the next part, after a part of `bytes` bytes that took `took`.
fn part_after(bytes: u64, took: Duration) -> u64 {
    let speed = bytes as f64 / took.as_secs_f64().max(1e-3);
    // The number need not be exact outside the limits.
    let fits = (speed * PART_TIME.as_secs_f64()) as u64;
    let fits = fits.clamp(PART_BYTES_FIRST, PART_BYTES_MAX);
    fits - fits % PART_BYTES_FIRST
}

async fn push(writer: &mut Writer, chunks: Vec<Bytes>) -> cellar_objects::Result<()> {
    for chunk in chunks {
        writer.push(chunk).await?;
    }
    Ok(())
}

/// Whether the file server would fail in the same way.
fn is_final(failure: &Error) -> bool {
    match failure {
        Error::Local { .. } | Error::Interrupted { .. } => true,
        Error::Fileserver { cause, .. } => matches!(
            cause,
            CallError::Aborted(code) if matches!(
                code.to_plain(),
                AbortCode::EACCES | AbortCode::EROFS | AbortCode::VOVERQUOTA | AbortCode::VDISKFULL
            )
        ),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_take_ten_seconds_within_limits() {
        const MIB: u64 = 1 << 20;
        let after = |mib: u64, seconds: f64| {
            let next = part_after(mib * MIB, Duration::from_secs_f64(seconds));
            assert_eq!(next % MIB, 0);
            next / MIB
        };
        assert_eq!(after(64, 0.0), 1024, "nothing is too fast");
        assert_eq!(after(64, 0.05), 1024);
        assert_eq!(after(64, 2.0), 320);
        assert_eq!(after(320, 20.0), 128, "whole units of the first");
        assert_eq!(after(64, 10.0), 64);
        assert_eq!(after(1024, 3600.0), 64);
        assert_eq!(after(0, 1.0), 64);
    }
}
