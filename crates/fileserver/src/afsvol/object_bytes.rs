//! Bytes of files in objects, for streams to who cannot have the objects themselves.
//!
//! A volume that is sent is of one moment, and so are its layouts: they name versions that do not change.
//! While they are read they are noted as being read, so nobody gives them up. All bytes of the file come, or
//! an error: a device that fails in the middle, where there is no other copy and no parity, ends the stream.
//!
//! A file is read in parts. Who takes the stream may be slow, and let a device wait so long that it seems to have
//! failed; what is held against it is forgotten with the part.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use cellar_objects::{ReadOptions, Reader};
use cellar_wire::AbortCode;
use cellar_wire::ids::Fid;
use cellar_wire::object::Layout;
use tracing::{info, warn};

use crate::limits::OBJECT_PATIENCE;
use crate::objects::ObjectFigures;
use crate::objects::reading::Reading;
use crate::server::Server;

/// Bytes that are read by one reader.
const PART_BYTES: u64 = 32 << 20;

/// A file in objects whose bytes are wanted.
pub(super) struct InObjects {
    /// The file.
    pub(super) fid: Fid,
    /// Where its bytes are.
    pub(super) layout: Arc<Layout>,
    /// How many.
    pub(super) length: u64,
}

/// The bytes of a file in objects, as they come.
pub(super) struct ObjectBytes {
    server: Arc<Server>,
    file: InObjects,
    /// Where the present part ends.
    end: u64,
    reader: Reader,
    told: usize,
    _reading: Reading,
}

impl ObjectBytes {
    /// Begins to read all of a file.
    pub(super) fn begin(server: &Arc<Server>, file: InObjects) -> Result<Self, AbortCode> {
        let reading = server.objects.readings.begin(file.fid, &file.layout);
        let end = file.length.min(PART_BYTES);
        Ok(Self {
            reader: reader(server, &file, 0..end)?,
            server: server.clone(),
            file,
            end,
            told: 0,
            _reading: reading,
        })
    }

    /// The next bytes; at least one.
    pub(super) async fn next(&mut self) -> Result<Bytes, AbortCode> {
        let mut next = self.reader.next().await;
        if matches!(next, Ok(None)) && self.end < self.file.length {
            let end = self.file.length.min(self.end + PART_BYTES);
            self.reader = reader(&self.server, &self.file, self.end..end)?;
            (self.end, self.told) = (end, 0);
            next = self.reader.next().await;
        }
        let problems = self.reader.problems();
        for problem in problems.get(self.told..).unwrap_or_default() {
            ObjectFigures::count(&self.server.objects.figures.problems);
            let InObjects {
                fid,
                layout,
                length,
            } = &self.file;
            info!(%fid, osd = problem.placed.osd, cause = %problem.cause,
                "an object was not read for a dump, another was");
            self.server
                .repair_after_read(*fid, layout, *length, problem);
        }
        self.told = problems.len();
        match next {
            Ok(Some(bytes)) if !bytes.is_empty() => Ok(bytes),
            Ok(_) => Err(AbortCode::VOLSERDUMPERROR),
            Err(error) => {
                ObjectFigures::count(&self.server.objects.figures.fetches_failed);
                warn!(fid = %self.file.fid, %error, "a file in objects cannot be dumped");
                Err(error.code())
            }
        }
    }
}

fn reader(server: &Server, file: &InObjects, part: Range<u64>) -> Result<Reader, AbortCode> {
    let fid = file.fid;
    let Some(storage) = server.objects.storage() else {
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
