//! A row of an erasure code while it is written: the new version of all data units, for their parity.
//!
//! The store brings some bytes of the row, in order; the others are those of the version before, read before
//! anything was sent. Only the columns that the store touches count, see [`Striping::columns`].

use std::ops::Range;

use bytes::Bytes;

use super::chunks::Chunks;
use crate::arithmetic::Striping;
use crate::erasure::{Code, CodeError};

/// Bytes of each shard put together at a time: what is encoded stays in the processor's cache.
const SLICE_BYTES: usize = 32 << 10;

/// A row being filled.
#[derive(Debug)]
pub(crate) struct Row {
    /// Which columns of it count.
    pub(crate) columns: Range<u64>,
    /// By stripe: what is known of the columns from their begin on.
    units: Vec<Chunks>,
    /// By stripe: what was there behind the bytes that come.
    behind: Vec<Chunks>,
}

/// What is not overwritten of the columns of a row.
#[derive(Debug, Default)]
pub(crate) struct Old {
    /// By stripe: before the bytes that come.
    pub(crate) before: Vec<Chunks>,
    /// By stripe: behind them.
    pub(crate) behind: Vec<Chunks>,
}

/// Which bytes of the file a store does not bring, of the columns of a row: by stripe before, and behind.
pub(crate) fn not_brought(
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
            // Nothing comes: all of it is before.
            return (unit.clone(), unit.end..unit.end);
        }
        (unit.start..begin, end..unit.end)
    };
    (0..striping.stripes as usize).map(of_stripe).collect()
}

impl Row {
    /// Begins a row of the store of `run`, with what it does not bring.
    pub(crate) fn begin(striping: &Striping, number: u64, run: &Range<u64>, old: Old) -> Self {
        let stripes = striping.stripes as usize;
        let Old {
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

    /// Bytes of the store that lie on a stripe.
    pub(crate) fn push(&mut self, stripe: usize, bytes: Bytes) {
        if let Some(unit) = self.units.get_mut(stripe) {
            unit.push(bytes);
        }
    }

    /// The parity of the columns, when all bytes have come.
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
            // A row of megabytes takes milliseconds; others use this thread too.
            if done % (16 * SLICE_BYTES) == 0 {
                tokio::task::yield_now().await;
            }
        }
        Ok(parity.into_iter().map(Bytes::from).collect())
    }
}
