//! A row of an erasure code during a write: the new version of all data units, for their parity.
//!
//! The store provides some bytes of the row, in order. The others are those of the old version,
//! read before anything was sent. Only the columns that the store touches matter, see
//! [`Striping::columns`].

use std::ops::Range;

use bytes::Bytes;

use super::chunks::Chunks;
use crate::arithmetic::Striping;
use crate::erasure::{Code, CodeError};

/// Bytes of each shard processed at a time, so that they stay in the processor's cache.
const SLICE_BYTES: usize = 32 << 10;

/// A row that is being filled.
#[derive(Debug)]
pub(crate) struct Row {
    /// The columns that matter.
    pub(crate) columns: Range<u64>,
    /// By stripe: the known bytes of the columns, from their start.
    units: Vec<Chunks>,
    /// By stripe: the old bytes after those of the store.
    behind: Vec<Chunks>,
}

/// The bytes of a row's columns that are not overwritten.
#[derive(Debug, Default)]
pub(crate) struct OldColumns {
    /// By stripe: before the bytes of the store.
    pub(crate) before: Vec<Chunks>,
    /// By stripe: after them.
    pub(crate) behind: Vec<Chunks>,
}

/// Returns the ranges of the file in a row's columns that a store does not provide: by stripe,
/// before and after its bytes.
pub(crate) fn missing_ranges(
    striping: &Striping,
    row: u64,
    run: &Range<u64>,
) -> Vec<(Range<u64>, Range<u64>)> {
    let columns = striping.columns(row, run);
    let of_stripe = |stripe| {
        let unit = striping.in_row(row, stripe, &columns);
        let begin = run.start.clamp(unit.start, unit.end);
        let end = run.end.clamp(unit.start, unit.end);
        if begin >= end {
            // The store has no bytes here: the whole unit is before.
            return (unit.clone(), unit.end..unit.end);
        }
        (unit.start..begin, end..unit.end)
    };
    (0..striping.stripes as usize).map(of_stripe).collect()
}

impl Row {
    /// Begins a row of the store of `run`, with the bytes that the store does not provide.
    pub(crate) fn begin(
        striping: &Striping,
        number: u64,
        run: &Range<u64>,
        old: OldColumns,
    ) -> Self {
        let stripes = striping.stripes as usize;
        let OldColumns {
            mut before,
            mut behind,
        } = old;
        before.resize_with(stripes, Chunks::default);
        behind.resize_with(stripes, Chunks::default);
        Self {
            columns: striping.columns(number, run),
            units: before,
            behind,
        }
    }

    /// Appends bytes of the store that belong to a stripe.
    pub(crate) fn push(&mut self, stripe: usize, bytes: Bytes) {
        if let Some(unit) = self.units.get_mut(stripe) {
            unit.push(bytes);
        }
    }

    /// Returns the parity of the columns after all bytes have arrived.
    pub(crate) async fn parity(
        mut self,
        code: &mut Code,
        count: usize,
    ) -> Result<Vec<Bytes>, CodeError> {
        for (unit, behind) in self.units.iter_mut().zip(&mut self.behind) {
            while let Some(piece) = behind.next(usize::MAX) {
                unit.push(piece);
            }
        }
        let length = usize::try_from(self.columns.end - self.columns.start).unwrap_or(0);
        let mut parity = vec![Vec::with_capacity(length); count];
        let mut done = 0;
        while done < length {
            let slice = (length - done).min(SLICE_BYTES);
            let shards: Vec<Bytes> = self.units.iter_mut().map(|u| u.take(slice)).collect();
            code.encode(&shards, &mut parity)?;
            done += slice;
            // A row of megabytes takes milliseconds, and other tasks use this thread too.
            if done % (16 * SLICE_BYTES) == 0 {
                tokio::task::yield_now().await;
            }
        }
        Ok(parity.into_iter().map(Bytes::from).collect())
    }
}
