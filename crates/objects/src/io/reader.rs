//! Reads a range of a file as a stream of pieces, from many objects at once.
//!
//! 1. The range is read in *spans* of whole rows. In a span each needed object is read with one
//!    call. The calls of this span and of some following ones are open at the same time. A call
//!    holds up to a megabyte of received data. The calls therefore are the read-ahead, and no task
//!    is needed. The consumer takes the next bytes from the calls in turn, in the order of the
//!    file.
//! 2. If a call fails, or is silent for longer than [`ReadOptions::patience`], its object is marked
//!    as tried. All open spans are dropped and opened again from the current position with what is
//!    left: another copy, or any objects of an erasure code. There is only this way to recover, and
//!    each object permits it a few times at most.
//! 3. If a needed object of an erasure code is unavailable, the span is read *whole*. The same
//!    range of as many objects as there are data objects is read, and the missing ones are computed
//!    from it.
//! 4. If the caller is slow, calls that were read ahead may end unnoticed, by our limits or the
//!    server's. These are opened again and do not count as failures.
//! 5. Silence counts from the last byte received on that call, not from the start of our wait. Two
//!    devices that die together thus cost one wait.
//! 6. If a file server stands in for devices, it is the last copy. All silence of a reader is
//!    charged to one budget ([`SILENCES`]), which is refilled when a span is complete. Without a
//!    budget, two silent copies took 19 s: each was retried with more patience, and the last one
//!    until its server counted as dead. A silent device is therefore not retried, and other readers
//!    pass it over too. It may only be slow: the reader keeps listening to it, and uses it again
//!    once it sends something. While other copies are left, each gets at most half of the remaining
//!    budget, so that the next one has its turn. The last one gets the rest.

mod failures;

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use cellar_rpc::CallError;
use cellar_wire::object::Scheme;
use futures_util::future::{join_all, try_join_all};
use tokio::time::Instant;

use failures::Failure;

use super::{ObjectSet, ReadCall, ReadOptions};
use crate::arithmetic::{BLOCK, Piece, Striping, copies_of};
use crate::devices::Devices;
use crate::erasure::Code;
use crate::error::{Error, Problem, Result};

/// Budget of silence for all devices together if a file server stands in, in units of the patience.
const SILENCES: u32 = 2;

/// Least bytes of an object that are computed together, since decoding has a fixed cost.
const WHOLE_BYTES: u64 = 512 << 10;

/// A range of a file that is being read.
pub struct Reader {
    devices: Devices,
    set: ObjectSet,
    options: ReadOptions,
    striping: Striping,
    code: Option<Code>,
    /// Length of the file, if known.
    file_length: Option<u64>,
    /// Position of the next byte to return.
    position: u64,
    end: u64,
    /// End of the open spans.
    opened: u64,
    spans: VecDeque<Span>,
    /// Computed or collected data, in the order of the file.
    ready: VecDeque<Bytes>,
    /// Number of failures by place; `u32::MAX`: the object must not be used.
    tried: Vec<u32>,
    /// Remaining budget of rule 6; `None`: no file server stands in for the devices.
    silence: Option<Duration>,
    problems: Vec<Problem>,
    last: CallError,
}

/// A part of the range, with a call for each needed object.
struct Span {
    end: u64,
    /// Calls by stripe.
    calls: Vec<Option<ReadCall>>,
    /// For a span that is read whole: the range of the objects, and the calls that read it.
    whole: Option<(Range<u64>, Vec<ReadCall>)>,
}

/// Result of a step whose failures only leave objects out.
type StepResult<T> = std::result::Result<T, Vec<Failure>>;

impl Reader {
    /// Creates a reader of `range`, which must end at the end of the file at the latest. An object
    /// that is shorter than it should be reads as zeros.
    ///
    /// # Errors
    /// [`Error::Misused`] for an invalid layout.
    pub fn new(
        devices: Devices,
        set: ObjectSet,
        range: Range<u64>,
        options: ReadOptions,
    ) -> Result<Self> {
        check(&set.layout)?;
        let tried = set.layout.objects.iter();
        let tried = tried.map(|placed| if placed.stale { u32::MAX } else { 0 });
        Ok(Self {
            striping: Striping::of(&set.layout.shape),
            code: None,
            file_length: None,
            tried: tried.collect(),
            silence: (devices.has_fallback() && !options.insists)
                .then_some(options.patience * SILENCES),
            devices,
            set,
            options,
            position: range.start,
            end: range.end.max(range.start),
            opened: range.start,
            spans: VecDeque::new(),
            ready: VecDeque::new(),
            problems: Vec::new(),
            last: CallError::Dead,
        })
    }

    /// Sets the length of the file: bytes after it are not requested, even for computations.
    #[must_use]
    pub fn of_file(mut self, length: u64) -> Self {
        self.file_length = Some(length);
        self
    }

    /// Returns the objects that failed so far and were read elsewhere; they need repair.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Returns the file position of the next byte.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns the next bytes in the order of the file, `None` at the end of the range. Dropping
    /// the future before it is ready invalidates the reader.
    ///
    /// # Errors
    /// Too few readable objects are left. The reader cannot be used any more.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                self.position += bytes.len() as u64;
                return Ok(Some(bytes));
            }
            if self.position >= self.end {
                return Ok(None);
            }
            let began = Instant::now();
            if let Err(failures) = self.advance().await? {
                self.failed(failures, began.elapsed());
            }
        }
    }

    /// Returns the rest of the range, in pieces.
    ///
    /// # Errors
    /// As [`Reader::next`].
    pub async fn rest(&mut self) -> Result<Vec<Bytes>> {
        let mut pieces = Vec::new();
        while let Some(piece) = self.next().await? {
            pieces.push(piece);
        }
        Ok(pieces)
    }

    /// Makes more data ready. The outer error ends the reader; the inner one leaves objects out.
    async fn advance(&mut self) -> Result<StepResult<()>> {
        if let Err(failures) = self.open_spans().await? {
            return Ok(Err(failures));
        }
        let Some(span) = self.spans.front_mut() else {
            return Err(Error::Misused("an empty range"));
        };
        if let Some((range, calls)) = span.whole.take() {
            let file = self.position..span.end;
            return self.gather(file, range, calls).await;
        }
        let piece = self.striping.piece(self.position, span.end);
        let Some(mut call) = span.calls.get_mut(piece.stripe).and_then(Option::take) else {
            return Err(Error::Misused("a stripe that was not opened"));
        };
        let patience = self.patience(call.place);
        match call.next(piece.length, patience).await {
            Ok(bytes) => {
                if let Some(span) = self.spans.front_mut() {
                    span.calls[piece.stripe] = Some(call);
                    if self.position + bytes.len() as u64 >= span.end {
                        self.end_span();
                    }
                }
                self.ready.push_back(bytes);
                Ok(Ok(()))
            }
            Err(cause) => Ok(Err(vec![Failure::of(call, cause)])),
        }
    }

    /// Opens spans until the window is full.
    async fn open_spans(&mut self) -> Result<StepResult<()>> {
        if self.spans.is_empty() {
            self.opened = self.position;
        }
        // Each call holds up to a megabyte.
        let each = self.striping.stripes << 20;
        let ahead = (self.options.window_bytes / each).clamp(1, 2) as usize + 1;
        while self.spans.len() < ahead && self.opened < self.end {
            let span = match self.open_span(self.opened).await {
                Ok(Ok(span)) => span,
                Ok(Err(failure)) => return Ok(Err(vec![failure])),
                // Open spans are read first; afterwards the situation may have changed.
                Err(_) if !self.spans.is_empty() => break,
                Err(error) => return Err(error),
            };
            self.opened = span.end;
            self.spans.push_back(span);
        }
        Ok(Ok(()))
    }

    /// Returns the end of a span that begins at `start`, if each object may contribute
    /// `object_bytes`.
    fn span_end(&self, start: u64, object_bytes: u64) -> u64 {
        let rows = (object_bytes / self.striping.unit).max(1);
        let row = self.striping.row();
        ((start / row).saturating_add(rows).saturating_mul(row)).min(self.end)
    }

    async fn open_span(&self, start: u64) -> Result<std::result::Result<Span, Failure>> {
        let shape = self.set.layout.shape;
        // Units larger than a call's bytes are not cut: a call may be as long as a unit.
        let end = self.span_end(start, self.options.call_bytes);
        let file = start..end;
        let mut chosen = Vec::new();
        let mut worst = None;
        for stripe in 0..self.striping.stripes as usize {
            let range = self.striping.object_range(stripe, &file);
            if range.is_empty() {
                continue;
            }
            let best = self.best_of(copies_of(&shape, stripe));
            worst = worst.max(Some(best.map_or(u32::MAX, |(rank, _)| rank)));
            chosen.push((stripe, range, best));
        }
        let worst = worst.unwrap_or(0);
        if shape.scheme == Scheme::Erasure
            && worst > 0
            && let Some((rank, places)) = self.any_of(self.striping.stripes as usize)
            && rank < worst
        {
            return Ok(self.open_whole(start, &places).await);
        }
        let mut calls: Vec<Option<ReadCall>> = Vec::new();
        calls.resize_with(self.striping.stripes as usize, || None);
        for (stripe, range, best) in chosen {
            let Some((_, place)) = best else {
                return Err(self.nothing_left(stripe));
            };
            match ReadCall::open(&self.devices, &self.set, place, range, self.file_length).await {
                Ok(call) => calls[stripe] = Some(call),
                Err(cause) => return Ok(Err(Failure::of_open(place, cause))),
            }
        }
        Ok(Ok(Span {
            end,
            calls,
            whole: None,
        }))
    }

    /// Opens a span of an erasure code from the objects at `places`.
    async fn open_whole(&self, start: u64, places: &[usize]) -> std::result::Result<Span, Failure> {
        let end = self.span_end(start, WHOLE_BYTES);
        let (first, last) = (start / self.striping.row(), (end - 1) / self.striping.row());
        let unit = self.striping.unit;
        let range = if first == last {
            let columns = self.striping.columns(first, &(start..end));
            first * unit + columns.start..first * unit + columns.end
        } else {
            first * unit..(last + 1) * unit
        };
        let open = places.iter().map(|place| async {
            let range = range.clone();
            ReadCall::open(&self.devices, &self.set, *place, range, self.file_length)
                .await
                .map_err(|cause| Failure::of_open(*place, cause))
        });
        let calls = try_join_all(open).await?;
        Ok(Span {
            end,
            calls: Vec::new(),
            whole: Some((range, calls)),
        })
    }

    /// Reads a span's objects to the end, computes missing data, and puts the bytes into the order
    /// of the file.
    async fn gather(
        &mut self,
        file: Range<u64>,
        range: Range<u64>,
        calls: Vec<ReadCall>,
    ) -> Result<StepResult<()>> {
        let length = usize::try_from(range.end - range.start).unwrap_or(0);
        let reads = calls.into_iter().map(|mut call| {
            let patience = self.patience(call.place);
            async move {
                match call.rest(patience).await {
                    Ok(mut chunks) => Ok((call.place, chunks.take(length))),
                    Err(cause) => Err(Failure::of(call, cause)),
                }
            }
        });
        // All failures are collected, not only the first: devices that died together cost one wait.
        let (mut have, mut failures) = (Vec::new(), Vec::new());
        for read in join_all(reads).await {
            match read {
                Ok(shard) => have.push(shard),
                Err(failure) => failures.push(failure),
            }
        }
        if !failures.is_empty() {
            return Ok(Err(failures));
        }
        let stripes = self.striping.stripes as usize;
        let needed = |stripe: &usize| !self.striping.object_range(*stripe, &file).is_empty();
        let there = |stripe: &usize| !have.iter().any(|(place, _)| place == stripe);
        let missing: Vec<usize> = (0..stripes).filter(needed).filter(there).collect();
        if !missing.is_empty() && self.code.is_none() {
            self.code = Code::of(&self.set.layout.shape);
        }
        if let Some(code) = &mut self.code {
            let made = code
                .reconstruct(&have, &missing)
                .map_err(|_| Error::Misused("shards of different lengths"))?;
            have.extend(missing.into_iter().zip(made));
        }
        for Piece {
            stripe,
            offset,
            length,
            ..
        } in self.striping.pieces(file)
        {
            let shard = have.iter().find(|(place, _)| *place == stripe);
            let at = usize::try_from(offset - range.start).unwrap_or(usize::MAX);
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            match shard {
                Some((_, shard)) if shard.len() >= at + length => {
                    self.ready.push_back(shard.slice(at..at + length));
                }
                _ => return Err(Error::Misused("shards of different lengths")),
            }
        }
        for (place, _) in &have {
            self.clear_silence(*place);
        }
        self.reset_silence();
        self.spans.pop_front();
        Ok(Ok(()))
    }

    /// Ends the first span after its last byte.
    fn end_span(&mut self) {
        let calls = self.spans.pop_front().map(|span| span.calls);
        for call in calls.into_iter().flatten().flatten() {
            self.clear_silence(call.place);
        }
        self.reset_silence();
    }

    /// Refills the budget of silence, since data arrived.
    fn reset_silence(&mut self) {
        self.silence = self.silence.map(|_| self.options.patience * SILENCES);
    }

    /// Records that the object at a place returned all requested data, even if others pass its
    /// device over.
    fn clear_silence(&self, place: usize) {
        if self.silence.is_some()
            && let Some(placed) = self.set.layout.objects.get(place)
        {
            self.devices.clear_silence(placed.osd);
        }
    }
}

/// Checks that a layout is valid.
pub(crate) fn check(layout: &cellar_wire::object::Layout) -> Result<()> {
    let shape = &layout.shape;
    if shape.check().is_err() || layout.objects.len() != shape.objects() {
        return Err(Error::Misused(
            "the layout and its shape have different numbers of objects",
        ));
    }
    if shape.scheme == Scheme::Erasure && u64::from(shape.unit) % BLOCK != 0 {
        return Err(Error::Misused(
            "the stripe unit is not a multiple of the block size",
        ));
    }
    Ok(())
}
