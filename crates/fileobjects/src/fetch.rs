//! FetchData of a file in objects, for clients without support for objects.
//!
//! The layout that was read with the status names versions that do not change. So the bytes match
//! that status, despite later stores. These versions are kept until the last byte was sent.
//!
//! Silent devices are skipped if there is another copy or parity. Otherwise the call fails before
//! any byte was sent, because the answer does not begin before the first bytes have arrived.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use cellar_objects::{ReadOptions, Reader};
use cellar_volume::VnodeStatus;
use cellar_wire::ids::Fid;
use cellar_wire::object::Layout;

use super::Objects;
use super::failure::Failure;
use super::figures::Counters;
use super::limits::OBJECT_PATIENCE;
use super::open_reads::ReadGuard;

/// A range of a file in objects, which is being read.
pub struct Fetching {
    objects: Arc<Objects>,
    reader: Reader,
    fid: Fid,
    layout: Arc<Layout>,
    /// Length of the file.
    whole: u64,
    length: u64,
    first: Option<Bytes>,
    reported: usize,
    done: bool,
    _read_guard: ReadGuard,
}

impl Fetching {
    /// Begins to read, and waits for the first bytes.
    pub async fn begin(
        objects: &Arc<Objects>,
        status: &VnodeStatus,
        layout: &Arc<Layout>,
        (position, length): (u64, u64),
        read_guard: ReadGuard,
    ) -> Result<Self, Failure> {
        let range = clip(status.length, position, length);
        let storage = objects.needed()?;
        let fid = status.fid;
        let set = storage.set(fid, (**layout).clone());
        let options = ReadOptions {
            patience: OBJECT_PATIENCE,
            ..ReadOptions::default()
        };
        let length = range.end - range.start;
        let reader = Reader::new(storage.devices.clone(), set, range, options);
        let mut fetching = Self {
            objects: objects.clone(),
            reader: reader.map_err(|error| Failure::Devices(error.code()))?,
            fid,
            layout: layout.clone(),
            whole: status.length,
            length,
            first: None,
            reported: 0,
            done: length == 0,
            _read_guard: read_guard,
        };
        if length > 0 {
            fetching.first = fetching.next().await?;
        }
        Ok(fetching)
    }

    /// The number of bytes that will be sent.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The next bytes, `None` after the last.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        let next = self.reader.next().await;
        self.report();
        let figures = &self.objects.counters;
        match next {
            Ok(Some(bytes)) => Ok(Some(bytes)),
            Ok(None) => {
                if !self.done {
                    self.done = true;
                    Counters::count(&figures.fetched);
                }
                Ok(None)
            }
            Err(error) => {
                Counters::count(&figures.fetches_failed);
                tracing::warn!(fid = %self.fid, %error, "a file in objects cannot be read");
                Err(Failure::Devices(error.code()))
            }
        }
    }

    /// Reports objects that could not be read.
    fn report(&mut self) {
        let problems = self.reader.problems();
        for problem in problems.get(self.reported..).unwrap_or_default() {
            Counters::count(&self.objects.counters.problems);
            let name = self.objects.device_name(problem.placed.osd);
            tracing::info!(fid = %self.fid, osd = problem.placed.osd, name, cause = %problem.cause,
                "an object could not be read, another one was read");
            self.objects
                .repair_after_read(self.fid, &self.layout, self.whole, problem);
        }
        self.reported = problems.len();
    }
}

/// The part of a range that lies within the file.
fn clip(file: u64, position: u64, length: u64) -> Range<u64> {
    let begin = position.min(file);
    begin..begin.saturating_add(length).min(file)
}
