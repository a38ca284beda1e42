//! The number of retired files of a group, so that their table has a bound.

use parking_lot::Mutex;

use crate::error::Result;

/// Retired files of a volume, at most. About 300 bytes each.
pub const RETIRED_MAX: usize = 100_000;

/// A count in memory; `None`: not counted yet. It may be too high by changes that failed.
#[derive(Default)]
pub(crate) struct RetiredCount(Mutex<Option<usize>>);

impl RetiredCount {
    /// Counts one more file. Returns false if there is no room. `counted` reads the number from the
    /// table.
    pub(crate) fn take_place(&self, counted: impl FnOnce() -> Result<usize>) -> Result<bool> {
        let mut known = self.0.lock();
        let count = match *known {
            Some(count) => count,
            None => counted()?,
        };
        let fits = count < RETIRED_MAX;
        *known = Some(count + usize::from(fits));
        Ok(fits)
    }

    /// Forgets the count after entries were removed.
    pub(crate) fn count_again(&self) {
        *self.0.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_place_is_given_once() {
        let count = RetiredCount::default();
        assert_eq!(count.take_place(|| Ok(RETIRED_MAX - 1)), Ok(true));
        assert_eq!(count.take_place(|| Ok(0)), Ok(false), "counted once");
        count.count_again();
        assert_eq!(count.take_place(|| Ok(0)), Ok(true));
    }
}
