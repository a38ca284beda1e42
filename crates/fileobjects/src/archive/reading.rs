//! The bytes of wiped files, and older bytes, for streams to receivers that cannot read the
//! archives.
//!
//! The bytes pass from an archive to the stream at the archive's pace. The file stays wiped, and no
//! device takes them up.
//!
//! 1. The last [`HELD_BYTES`] are held back until the BLAKE3 of the whole file was compared. So no
//!    stream is complete with other bytes than were copied.
//! 2. A copy with other bytes is marked bad. If nothing was handed out yet, the next copy is read
//!    from its beginning. Otherwise the stream ends, and its repetition reads the next copy.
//! 3. If an archive fails, the next copy is read from the same place on.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use cellar_rpc::{OutgoingCall, blocking};
use cellar_wire::AbortCode;
use cellar_wire::ids::Fid;
use cellar_wire::object::{ArchiveCopies, ArchiveCopy, Contents};
use tracing::warn;

use super::super::Objects;
use super::super::failure::Failure;
use super::super::figures::Counters;
use super::copy_reader::{self, NotRead, PIECE_BYTES, of_copy};
use super::sums::Sums;

/// Bytes that are held back until the file was compared. Shorter files are compared before any byte
/// is handed out.
const HELD_BYTES: u64 = 8 << 20;

/// A file whose bytes are needed, of which archives have copies.
pub struct InArchives {
    /// The file.
    pub fid: Fid,
    /// The name of its bytes.
    pub contents: Contents,
    /// Its copies, also of older bytes.
    pub copies: Arc<ArchiveCopies>,
    /// The number of its bytes.
    pub length: u64,
}

/// The bytes of a file, as an archive delivers them.
pub struct ArchivedBytes {
    objects: Arc<Objects>,
    file: InArchives,
    /// The copies that have not failed, the best one last.
    copies: Vec<ArchiveCopy>,
    /// The call that reads the best copy, and the place at which it began.
    reading: Option<(OutgoingCall, u64)>,
    sums: Sums,
    /// The number of bytes that were read.
    position: u64,
    /// The read bytes that were not handed out, and their number.
    held: VecDeque<Bytes>,
    held_bytes: u64,
    is_compared: bool,
}

impl ArchivedBytes {
    /// Begins to read the whole file.
    ///
    /// # Errors
    /// EIO: no copy is known to be good, or this server uses no object storage.
    pub fn begin(objects: &Arc<Objects>, file: InArchives) -> Result<Self, AbortCode> {
        let fid = file.fid;
        let good = file.copies.iter().copied();
        let good = good.filter(|copy| copy.has(file.contents) && !copy.bad);
        let mut copies = objects.in_order(good).map_err(|failure| {
            warn!(%fid, %failure, "the bytes of a file cannot be read from archives");
            AbortCode::EIO
        })?;
        copies.reverse();
        if copies.is_empty() {
            warn!(%fid, "the bytes of a file cannot be read from archives, no copy of them is good");
            return Err(AbortCode::EIO);
        }
        Ok(Self {
            objects: objects.clone(),
            file,
            copies,
            reading: None,
            sums: Sums::default(),
            position: 0,
            held: VecDeque::new(),
            held_bytes: 0,
            is_compared: false,
        })
    }

    /// The next bytes; at least one.
    ///
    /// # Errors
    /// The code of the last archive that failed. EIO: the copies are bad. The log names the file.
    pub async fn next(&mut self) -> Result<Bytes, AbortCode> {
        loop {
            if (self.is_compared || self.held_bytes > HELD_BYTES)
                && let Some(bytes) = self.held.pop_front()
            {
                self.held_bytes -= bytes.len() as u64;
                return Ok(bytes);
            }
            if self.is_compared {
                // More bytes than the file has.
                return Err(AbortCode::VOLSERDUMPERROR);
            }
            if let Err(cause) = self.advance().await {
                self.turn_to_next_copy(cause).await?;
            }
        }
    }

    /// Reads some bytes of the best copy, or compares it at its end.
    async fn advance(&mut self) -> Result<(), NotRead> {
        let Some(copy) = self.copies.last().copied() else {
            return Err(NotRead::Failed(Failure::NoGoodCopy));
        };
        let (mut call, from) = match self.reading.take() {
            Some(reading) => reading,
            None => {
                let InArchives { fid, length, .. } = self.file;
                let storage = self.objects.needed()?;
                let open = copy_reader::open(storage, fid, &copy, length, self.position);
                (open.await?, self.position)
            }
        };
        let left = self.file.length - self.position;
        if left > 0 {
            let piece = call.read_some(left.min(PIECE_BYTES)).await;
            let piece = piece.map_err(|cause| of_copy(cause.code()))?;
            self.position += piece.len() as u64;
            self.held_bytes += piece.len() as u64;
            self.sums.add(piece.clone()).await;
            self.held.push_back(piece);
            self.reading = Some((call, from));
            return Ok(());
        }
        copy_reader::ended(call).await?;
        let sums = std::mem::take(&mut self.sums);
        match copy_reader::compare(sums, &copy).await {
            // The first part came from another copy.
            Err(NotRead::WrongBytes(_)) if from > 0 => Err(NotRead::Failed(Failure::NoGoodCopy)),
            ended => {
                self.is_compared = ended.is_ok();
                ended
            }
        }
    }

    /// Gives up the best copy. An error ends the stream.
    async fn turn_to_next_copy(&mut self, cause: NotRead) -> Result<(), AbortCode> {
        let fid = self.file.fid;
        let copy = self.copies.pop();
        let osd = copy.map_or(0, |copy| copy.osd);
        let code = match cause {
            NotRead::WrongBytes(reason) => {
                warn!(%fid, osd, reason, "a copy in an archive is bad and is not used any more");
                if let Some(copy) = copy {
                    self.mark(copy).await;
                }
                AbortCode::EIO
            }
            NotRead::Failed(failure) => {
                warn!(%fid, osd, %failure, "an archive did not deliver a copy");
                match failure {
                    Failure::Devices(code) => code,
                    _ => AbortCode::EIO,
                }
            }
        };
        self.reading = None;
        let handed_out = self.position > self.held_bytes;
        let is_at_end = self.position == self.file.length;
        if self.copies.is_empty() || (handed_out && is_at_end) {
            Counters::count(&self.objects.counters.fetches_failed);
            warn!(%fid, %code, "the bytes of a file cannot be read from archives");
            return Err(code);
        }
        if !handed_out {
            self.sums = Sums::default();
            self.held.clear();
            (self.position, self.held_bytes) = (0, 0);
        }
        Ok(())
    }

    /// Marks a copy as bad. If that fails, the next reader does it.
    async fn mark(&self, copy: ArchiveCopy) {
        let (objects, fid) = (self.objects.clone(), self.file.fid);
        let found = blocking(move || objects.volumes.find(fid.volume)).await;
        if let Ok(Some((_, attached))) = found {
            let marked = self.objects.mark_bad(&attached.volume, fid, copy);
            if let Err(failure) = marked.await {
                warn!(%fid, %failure, "a bad copy in an archive cannot be marked");
            }
        }
    }
}
