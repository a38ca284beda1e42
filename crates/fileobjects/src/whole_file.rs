//! The bytes of files in objects, for streams to receivers that cannot read the objects.
//!
//! The transferred volume shows one moment, and so do its layouts: they name versions that do not
//! change. While they are read, they are registered as being read, so they are not removed. The
//! stream contains all bytes of a file, or ends with an error. An error occurs if a device fails in
//! the middle and there is no other copy and no parity.
//!
//! A file is read in parts. A slow receiver may let a device wait so long that it seems to have
//! failed. Each part starts without that suspicion.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use cellar_objects::{ReadOptions, Reader};
use cellar_wire::AbortCode;
use cellar_wire::ids::Fid;
use cellar_wire::object::Layout;
use tracing::{info, warn};

use super::Objects;
use super::figures::Counters;
use super::limits::OBJECT_PATIENCE;
use super::open_reads::ReadGuard;

/// The number of bytes that one reader reads.
const PART_BYTES: u64 = 32 << 20;

/// A file in objects whose bytes are needed.
pub struct InObjects {
    /// The file.
    pub fid: Fid,
    /// The layout of its bytes.
    pub layout: Arc<Layout>,
    /// The number of its bytes.
    pub length: u64,
}

/// The bytes of a file in objects, as they arrive.
pub struct ObjectBytes {
    objects: Arc<Objects>,
    file: InObjects,
    /// The end of the present part.
    end: u64,
    reader: Reader,
    reported: usize,
    _read_guard: ReadGuard,
}

impl ObjectBytes {
    /// Begins to read the whole file.
    pub fn begin(objects: &Arc<Objects>, file: InObjects) -> Result<Self, AbortCode> {
        let read_guard = objects.open_reads.begin(file.fid, &file.layout);
        let end = file.length.min(PART_BYTES);
        Ok(Self {
            reader: reader(objects, &file, 0..end)?,
            objects: objects.clone(),
            file,
            end,
            reported: 0,
            _read_guard: read_guard,
        })
    }

    /// The next bytes; at least one.
    pub async fn next(&mut self) -> Result<Bytes, AbortCode> {
        let mut next = self.reader.next().await;
        if matches!(next, Ok(None)) && self.end < self.file.length {
            let end = self.file.length.min(self.end + PART_BYTES);
            self.reader = reader(&self.objects, &self.file, self.end..end)?;
            (self.end, self.reported) = (end, 0);
            next = self.reader.next().await;
        }
        let problems = self.reader.problems();
        for problem in problems.get(self.reported..).unwrap_or_default() {
            Counters::count(&self.objects.counters.problems);
            let InObjects {
                fid,
                layout,
                length,
            } = &self.file;
            info!(%fid, osd = problem.placed.osd, cause = %problem.cause,
                "an object was not read for a dump, another was");
            self.objects
                .repair_after_read(*fid, layout, *length, problem);
        }
        self.reported = problems.len();
        match next {
            Ok(Some(bytes)) if !bytes.is_empty() => Ok(bytes),
            Ok(_) => Err(AbortCode::VOLSERDUMPERROR),
            Err(error) => {
                Counters::count(&self.objects.counters.fetches_failed);
                warn!(fid = %self.file.fid, %error, "a file in objects cannot be dumped");
                Err(error.code())
            }
        }
    }
}

fn reader(objects: &Objects, file: &InObjects, part: Range<u64>) -> Result<Reader, AbortCode> {
    let fid = file.fid;
    let Some(storage) = objects.storage() else {
        warn!(%fid, "a file is in objects, and this server uses no object storage");
        return Err(AbortCode::EIO);
    };
    let set = storage.set(fid, (*file.layout).clone());
    let options = ReadOptions {
        patience: OBJECT_PATIENCE,
        ..ReadOptions::default()
    };
    let reader = Reader::new(storage.devices.clone(), set, part, options);
    reader.map_err(|error| error.code())
}
