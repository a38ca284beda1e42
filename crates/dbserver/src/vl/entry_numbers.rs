//! Numbers for new entries.
//!
//! Two servers that need the same row cannot commit at the same time. Therefore a creation does
//! not raise the row `next_entry`: each server reserves numbers ahead, as it reserves volume ids.
//! The row is the first number that no server has reserved. A restart skips the rest of a
//! reservation, and a creation that fails skips its number.

use std::ops::Range;

use cellar_wire::AbortCode;

use super::Vl;
use super::limits::RESERVED_ENTRIES;
use super::tables::Tables;
use crate::Error;

/// The numbers that this server may use.
#[derive(Default)]
pub(crate) struct ReservedNumbers(Range<u32>);

impl Vl {
    /// A number that no other entry has.
    ///
    /// # Errors
    /// VL_CREATEFAIL if all numbers are used.
    pub(super) fn take_entry_number(&self) -> Result<u32, Error> {
        let mut reserved = self.reserved_numbers.lock();
        if let Some(number) = reserved.0.next() {
            return Ok(number);
        }
        let mut range = self.replica.write(|transaction| {
            let mut tables = Tables(transaction);
            let first = tables.next_entry()?;
            // Numbers are cursors of list calls, and these are signed.
            if first >= i32::MAX as u32 {
                return Err(Error::from(AbortCode::VL_CREATEFAIL));
            }
            let end = (first + RESERVED_ENTRIES).min(i32::MAX as u32);
            tables.set_next_entry(end);
            Ok(first..end)
        })?;
        let first = range.next();
        reserved.0 = range;
        first.ok_or(AbortCode::VL_CREATEFAIL.into())
    }
}
