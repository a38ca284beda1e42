//! A store: creates new versions of the objects that it touches.
//!
//! 1. A store has *runs*: contiguous ranges of known length. A run is one contiguous range on each
//!    object, so it goes to each by calls of known length ([`Lane`]), all at the same time. The
//!    calls get the bytes in the order of the file, for all copies, without copying.
//! 2. With an erasure code the bytes are also kept until their row is complete; then the parity of
//!    the touched columns follows. If a row is not overwritten as a whole, the rest is read before
//!    anything is sent. In the old objects data and parity still match, so this works without one
//!    of the devices too.
//! 3. An object that fails is left out from then on, if the others still hold all bytes; otherwise
//!    the store has failed. The store ends with a list of the objects that have the new version and
//!    those that lack it. At that time all devices have confirmed that the data is durable. No
//!    reader sees it before the vnode names the versions. Giving up therefore needs no call: the
//!    remains are removed by the next store.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use cellar_rpc::CallError;
use cellar_wire::abort::AbortCode;
use cellar_wire::afsosd::Failed;
use cellar_wire::object::{Layout, OBJECTS_MAX, Scheme};
use cellar_xdr::List;
use futures_util::future::try_join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::{Instant, timeout_at};

use super::chunks::Chunks;
use super::reader::check;
use super::row::{OldColumns, Row, missing_ranges};
use super::write_lane::Lane;
use super::{Capabilities, ObjectSet, ReadOptions, Reader, WriteOptions};
use crate::arithmetic::{Striping, copies_of, length_at, stripe_of};
use crate::devices::{Condition, Devices};
use crate::erasure::Code;
use crate::error::{Error, Problem, Result, failed_devices};

/// A store in progress. Dropping it abandons the store.
pub struct Writer {
    devices: Devices,
    /// The current objects: touched ones have the new version already, failed ones are stale.
    set: ObjectSet,
    /// By place: the versions from which the new ones are made.
    bases: Vec<u64>,
    lanes: Vec<Option<Lane>>,
    striping: Striping,
    code: Option<Code>,
    options: WriteOptions,
    /// Length of the file, including written data.
    length: u64,
    /// Current position in the run; below, the run.
    position: u64,
    run: Range<u64>,
    /// End of all runs so far.
    high: u64,
    row: Option<Row>,
    /// Bytes that stay in rows of the current run.
    old: VecDeque<(u64, OldColumns)>,
    problems: Vec<Problem>,
}

/// Result of a store.
#[derive(Clone, Debug)]
pub struct Written {
    /// The new layout of the vnode.
    pub layout: Layout,
    /// New length of the file, unless it was longer already.
    pub length: u64,
    /// By place: whether the store touched the object (or should have, and failed).
    pub touched: Vec<bool>,
    /// Objects that failed and need repair.
    pub problems: Vec<Problem>,
}

impl Written {
    /// Returns the argument of `EndStore`: failures with their codes, and untouched objects with
    /// code 0.
    #[must_use]
    pub fn failed(&self) -> List<Failed, OBJECTS_MAX> {
        let places = self.layout.objects.iter().zip(&self.touched).enumerate();
        let said = places.filter_map(|(place, (placed, touched))| {
            let code = match (touched, placed.stale) {
                (false, _) => 0,
                (true, false) => return None,
                (true, true) => {
                    let mut problems = self.problems.iter();
                    let problem = problems.find(|problem| problem.place == place);
                    problem
                        .map_or(AbortCode::EIO, |problem| problem.cause.code())
                        .0
                }
            };
            let place = place as u32;
            Some(Failed { place, code })
        });
        List::from_iter_cut(said)
    }
}

impl Writer {
    /// Begins a store of a file of `length` bytes. Nothing is sent yet.
    ///
    /// # Errors
    /// [`Error::Misused`] for an invalid layout, or one whose version is not newer.
    pub fn new(
        devices: Devices,
        set: ObjectSet,
        length: u64,
        options: WriteOptions,
    ) -> Result<Self> {
        check(&set.layout)?;
        let objects = set.layout.objects.iter();
        let bases: Vec<u64> = objects.map(|placed| placed.version).collect();
        if bases.iter().any(|base| *base >= set.layout.version) {
            return Err(Error::Misused("a store whose version is not newer"));
        }
        let mut lanes = Vec::new();
        lanes.resize_with(bases.len(), || None);
        Ok(Self {
            striping: Striping::of(&set.layout.shape),
            code: Code::of(&set.layout.shape),
            devices,
            set,
            bases,
            lanes,
            options,
            length,
            position: 0,
            run: 0..0,
            high: 0,
            row: None,
            old: VecDeque::new(),
            problems: Vec::new(),
        })
    }

    /// Returns the length of the file, including written data.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns the objects that failed so far and were left out.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Replaces the capabilities, since the others expire soon.
    pub fn renew(&mut self, capabilities: Capabilities) {
        for (place, lane) in self.lanes.iter_mut().enumerate() {
            let osd = self.set.layout.objects[place].osd;
            if let (Some(lane), Some(capability)) = (lane, capabilities.at(place, osd)) {
                lane.renew(capability);
            }
        }
        self.set.capabilities = capabilities;
    }

    /// Begins a run: `length` bytes for `position` follow by [`Writer::push`]. The previous run
    /// must be complete.
    ///
    /// # Errors
    /// Too few objects are left; [`Error::Misused`] within another run.
    pub async fn begin(&mut self, position: u64, length: u64) -> Result<()> {
        if self.position != self.run.end {
            return Err(Error::Misused("the previous run is not complete"));
        }
        let end = position
            .checked_add(length)
            .filter(|end| *end <= i64::MAX as u64);
        let end = end.ok_or(Error::Misused("the file exceeds the largest length"))?;
        let run = position..end;
        let row = self.striping.row();
        let safe = match self.code {
            None => position,
            Some(_) => position / row * row,
        };
        let keeps = self.code.is_some() && self.has_kept_bytes(&run);
        if safe < self.high || (keeps && self.high > 0) {
            // Calls may overtake each other. So no other call for the same bytes may be in
            // progress, and no version may be read that its device has yet to create.
            self.drain().await?;
        }
        if !run.is_empty() && self.code.is_some() {
            self.old = self.read_old(&run).await?;
        }
        for place in 0..self.lanes.len() {
            let range = self.range_at(place, &run);
            if !range.is_empty() {
                self.touch(place, range);
            }
        }
        self.enough()?;
        self.position = position;
        self.high = self.high.max(end);
        self.run = run;
        Ok(())
    }

    /// Writes the next bytes of the run. Waits while devices have no room.
    ///
    /// # Errors
    /// Too few objects are left; [`Error::Misused`] for more bytes than were announced.
    pub async fn push(&mut self, mut bytes: Bytes) -> Result<()> {
        while !bytes.is_empty() {
            if self.position >= self.run.end {
                return Err(Error::Misused("more bytes than were announced"));
            }
            let piece = self.striping.piece(self.position, self.run.end);
            let length = usize::try_from(piece.length).unwrap_or(usize::MAX);
            let part = bytes.split_to(length.min(bytes.len()));
            if self.code.is_some() {
                let (striping, run) = (self.striping, &self.run);
                let number = self.position / striping.row();
                let old = &mut self.old;
                let row = self.row.get_or_insert_with(|| {
                    let old = match old.front() {
                        Some((of, _)) if *of == number => old.pop_front(),
                        _ => None,
                    };
                    let old = old.map(|(_, old)| old).unwrap_or_default();
                    Row::begin(&striping, number, run, old)
                });
                row.push(piece.stripe, part.clone());
            }
            self.position += part.len() as u64;
            for place in copies_of(&self.set.layout.shape, piece.stripe) {
                self.write(place, part.clone()).await?;
            }
            let row_ends = self.position.is_multiple_of(self.striping.row());
            if row_ends || self.position == self.run.end {
                self.end_row().await?;
            }
            self.length = self.length.max(self.position);
        }
        Ok(())
    }

    /// Sets the length of the file: cuts it, or adds a hole.
    ///
    /// # Errors
    /// Too few objects are left; [`Error::Misused`] within a run.
    pub async fn truncate(&mut self, length: u64) -> Result<()> {
        if self.position != self.run.end {
            return Err(Error::Misused("the previous run is not complete"));
        }
        if length >= self.length {
            // Shorter objects read as zeros after their end.
            self.length = length;
            return Ok(());
        }
        self.drain().await?;
        let parity = self.parity_of_cut(length).await?;
        let shape = self.set.layout.shape;
        let mut cut = Vec::new();
        for place in 0..self.lanes.len() {
            let shorter = length_at(&shape, place, length);
            let is_parity = stripe_of(&shape, place).is_none();
            let written = is_parity && parity.is_some();
            let there = self.set.layout.objects[place].version != 0;
            if there && (written || shorter < length_at(&shape, place, self.length)) {
                self.touch(place, 0..0);
                cut.push((place, shorter));
            }
        }
        self.enough()?;
        for (place, shorter) in cut {
            if let Some(lane) = &mut self.lanes[place] {
                lane.cut(shorter);
            }
        }
        self.drain().await?;
        self.length = length;
        if let Some((offset, parity)) = parity {
            for (number, bytes) in parity.into_iter().enumerate() {
                let place = self.striping.stripes as usize + number;
                if let Some(lane) = self.lanes[place].as_mut() {
                    lane.begin(offset..offset + bytes.len() as u64);
                }
                self.write(place, bytes).await?;
            }
            self.drain().await?;
        }
        Ok(())
    }

    /// Waits until everything is durable on all devices that are not left out.
    ///
    /// # Errors
    /// Too few objects are left; [`Error::Misused`] within a run.
    pub async fn finish(mut self) -> Result<Written> {
        if self.position != self.run.end {
            return Err(Error::Misused("the previous run is not complete"));
        }
        self.drain().await?;
        let version = self.set.layout.version;
        let objects = self.set.layout.objects.iter();
        let touched = objects.map(|placed| placed.version == version).collect();
        Ok(Written {
            layout: self.set.layout,
            length: self.length,
            touched,
            problems: self.problems,
        })
    }

    /// Returns the range of the object at a place that a run of the file writes.
    fn range_at(&self, place: usize, run: &Range<u64>) -> Range<u64> {
        if let Some(stripe) = stripe_of(&self.set.layout.shape, place) {
            return self.striping.object_range(stripe, run);
        }
        if run.is_empty() {
            return 0..0;
        }
        let row = self.striping.row();
        let (first, last) = (run.start / row, (run.end - 1) / row);
        let begin = self.striping.columns(first, run).start;
        let end = self.striping.columns(last, run).end;
        first * self.striping.unit + begin..last * self.striping.unit + end
    }

    /// Gives the object at a place the new version, and prepares its lane for these bytes.
    fn touch(&mut self, place: usize, range: Range<u64>) {
        let version = self.set.layout.version;
        let placed = &mut self.set.layout.objects.as_mut_slice()[place];
        placed.version = version;
        let placed = *placed;
        if placed.stale {
            return;
        }
        if let Some(lane) = &mut self.lanes[place] {
            lane.begin(range);
            return;
        }
        if self.devices.condition(placed.osd) == Condition::Dead {
            return self.fail(place, CallError::Dead);
        }
        let Some(capability) = self.set.capabilities.at(place, placed.osd) else {
            return self.fail(place, CallError::Aborted(AbortCode::EACCES));
        };
        let object = self.set.object(&placed);
        let versions = (self.bases[place], version);
        let (devices, osd) = (&self.devices, placed.osd);
        let lane = Lane::new(devices, osd, capability, object, versions, self.options);
        let Some(mut lane) = lane else {
            return self.fail(place, CallError::Dead);
        };
        lane.begin(range);
        self.lanes[place] = Some(lane);
    }

    /// Sends bytes to the object at a place, unless it is left out.
    async fn write(&mut self, place: usize, bytes: Bytes) -> Result<()> {
        let patience = self.patience();
        let Some(lane) = self.lanes[place].as_mut() else {
            return Ok(());
        };
        if let Err(cause) = lane.write(bytes, patience).await {
            self.fail(place, cause);
            self.enough()?;
        }
        Ok(())
    }

    /// Writes the parity of the completed row.
    async fn end_row(&mut self) -> Result<()> {
        let (Some(row), Some(code)) = (self.row.take(), self.code.as_mut()) else {
            return Ok(());
        };
        let count = self.set.layout.shape.copies as usize;
        let parity = row.parity(code, count).await.map_err(|_| MISFIT)?;
        for (number, bytes) in parity.into_iter().enumerate() {
            self.write(self.striping.stripes as usize + number, bytes)
                .await?;
        }
        Ok(())
    }

    /// Waits until all sent data is durable. Devices that exceed the patience are left out, if the
    /// file can do without all of them together.
    async fn drain(&mut self) -> Result<()> {
        let deadline = Instant::now() + self.options.patience;
        let mut waiting = Vec::new();
        let mut drains = FuturesUnordered::new();
        for (place, lane) in self.lanes.iter_mut().enumerate() {
            if let Some(lane) = lane {
                waiting.push(place);
                drains.push(async move { (place, lane.drain(None).await) });
            }
        }
        let mut failed: Vec<(usize, CallError)> = Vec::new();
        loop {
            let without: Vec<usize> = failed
                .iter()
                .map(|(place, _)| *place)
                .chain(waiting.iter().copied())
                .collect();
            let next = if spare(&self.set.layout, &without) > 0 {
                let next = timeout_at(deadline, drains.next()).await;
                next.unwrap_or_else(|_| {
                    let late = waiting.drain(..).map(|place| (place, CallError::Timeout));
                    failed.extend(late);
                    None
                })
            } else {
                drains.next().await
            };
            let Some((place, result)) = next else {
                break;
            };
            waiting.retain(|other| *other != place);
            match result {
                Ok(()) => self.devices.succeeded(self.set.layout.objects[place].osd),
                Err(cause) => failed.push((place, cause)),
            }
        }
        drop(drains);
        for (place, cause) in failed {
            self.fail(place, cause);
        }
        self.enough()
    }

    /// Returns the first and the last row of a run, which it may fill only partly.
    fn edge_rows(&self, run: &Range<u64>) -> Vec<u64> {
        if run.is_empty() {
            return Vec::new();
        }
        let row = self.striping.row();
        let (first, last) = (run.start / row, (run.end - 1) / row);
        if first == last {
            vec![first]
        } else {
            vec![first, last]
        }
    }

    /// Whether bytes of the file remain in the rows of a run, so that they must be read.
    fn has_kept_bytes(&self, run: &Range<u64>) -> bool {
        let rows = self.edge_rows(run).into_iter();
        let mut kept = rows.flat_map(|number| missing_ranges(&self.striping, number, run));
        let is_there = |range: &Range<u64>| !range.is_empty() && range.start < self.length;
        kept.any(|(before, behind)| is_there(&before) || is_there(&behind))
    }

    /// Reads the remaining bytes of the first and last row of a run.
    async fn read_old(&self, run: &Range<u64>) -> Result<VecDeque<(u64, OldColumns)>> {
        let mut old = VecDeque::new();
        for number in self.edge_rows(run) {
            let ranges = missing_ranges(&self.striping, number, run);
            let before = ranges.iter().map(|(before, _)| self.read(before.clone()));
            let behind = ranges.iter().map(|(_, behind)| self.read(behind.clone()));
            let (before, behind) = (try_join_all(before).await?, try_join_all(behind).await?);
            old.push_back((number, OldColumns { before, behind }));
        }
        Ok(old)
    }

    /// Reads bytes of the current file, with zeros after its end.
    async fn read(&self, range: Range<u64>) -> Result<Chunks> {
        let mut chunks = Chunks::default();
        let there = range.start.min(self.length)..range.end.min(self.length);
        if !there.is_empty() {
            let options = ReadOptions {
                insists: true,
                ..ReadOptions::default()
            };
            let devices = self.devices.clone();
            let reader = Reader::new(devices, self.set.clone(), there, options)?;
            let mut reader = reader.of_file(self.length);
            while let Some(piece) = reader.next().await? {
                chunks.push(piece);
            }
        }
        chunks.push_zeros(range.end - range.start - chunks.len());
        Ok(chunks)
    }

    /// Computes the parity of the row that a cut shortens: its offset in the parity objects, and
    /// its bytes.
    async fn parity_of_cut(&mut self, length: u64) -> Result<Option<(u64, Vec<Bytes>)>> {
        let number = length / self.striping.row();
        let row_end = (number + 1) * self.striping.row();
        if self.code.is_none() || length == number * self.striping.row() {
            return Ok(None);
        }
        let gone = length..self.length.min(row_end);
        let mut columns = self.striping.columns(number, &gone);
        // There is no parity after the remaining data.
        let left = self.striping.parity_length(length) - number * self.striping.unit;
        columns.end = columns.end.min(left);
        if columns.is_empty() {
            return Ok(None);
        }
        let kept = (0..self.striping.stripes as usize).map(|stripe| {
            let unit = self.striping.in_row(number, stripe, &columns);
            let end = length.clamp(unit.start, unit.end);
            let read = self.read(unit.start..end);
            async move {
                let mut chunks = read.await?;
                chunks.push_zeros(unit.end - end);
                Ok::<_, Error>(chunks)
            }
        });
        let before = try_join_all(kept).await?;
        let old = OldColumns {
            before,
            behind: Vec::new(),
        };
        let mut row = Row::begin(&self.striping, number, &gone, old);
        row.columns = columns.clone();
        let Some(code) = self.code.as_mut() else {
            return Ok(None);
        };
        let count = self.set.layout.shape.copies as usize;
        let parity = row.parity(code, count).await.map_err(|_| MISFIT)?;
        Ok(Some((number * self.striping.unit + columns.start, parity)))
    }

    /// Leaves an object out: it lacks the new version.
    fn fail(&mut self, place: usize, cause: CallError) {
        self.lanes[place] = None;
        let placed = &mut self.set.layout.objects.as_mut_slice()[place];
        placed.stale = true;
        tracing::debug!(osd = placed.osd, place, %cause, "writing an object failed");
        self.devices.failed(placed.osd, &cause);
        self.problems.push(Problem {
            place,
            placed: *placed,
            cause,
        });
    }

    /// Checks that all bytes are still stored.
    fn enough(&self) -> Result<()> {
        if spare(&self.set.layout, &[]) > 0 {
            return Ok(());
        }
        let shape = &self.set.layout.shape;
        let last = self.problems.last();
        let cause = last.map_or(CallError::Dead, |problem| problem.cause.clone());
        match shape.scheme {
            Scheme::Striped => Err(Error::Device {
                osd: last.map_or(0, |problem| problem.placed.osd),
                cause,
            }),
            Scheme::Erasure => {
                let objects = self.set.layout.objects.iter();
                Err(Error::TooFew {
                    left: objects.filter(|placed| !placed.stale).count(),
                    needed: shape.stripes as usize,
                    failed: failed_devices(&self.problems),
                    cause,
                })
            }
        }
    }

    /// Returns the time that a device may make no progress; unlimited if the file cannot do without
    /// it.
    fn patience(&self) -> Option<Duration> {
        (spare(&self.set.layout, &[]) > 1).then_some(self.options.patience)
    }
}

/// Returns the number of good objects of the stripe that has the fewest, without those at the
/// places `without`. For an erasure code: the number of objects that may still be lost, plus one.
fn spare(layout: &Layout, without: &[usize]) -> usize {
    let shape = &layout.shape;
    let good = |place: &usize| !layout.objects[*place].stale && !without.contains(place);
    match shape.scheme {
        Scheme::Erasure => {
            let left = (0..layout.objects.len()).filter(good).count();
            (left + 1).saturating_sub(shape.stripes as usize)
        }
        Scheme::Striped => (0..shape.stripes as usize)
            .map(|stripe| copies_of(shape, stripe).filter(good).count())
            .min()
            .unwrap_or(0),
    }
}

const MISFIT: Error = Error::Misused("shards of different lengths");
