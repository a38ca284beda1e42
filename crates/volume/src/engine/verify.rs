//! The part of a scrub that verifies the base table itself: its file on the disk, and the order of
//! its keys.
//!
//! Blocks of the file are compared with their sums, one megabyte at a time; flushes wait that long.
//! A block that does not match may belong to no state of the table: a crash can leave such blocks.
//! So in that case all keys are looked up in a second opening of the file that has nothing in
//! memory. This shows which entries are damaged.
//!
//! Until a restart, the pages in memory continue to serve reads: time to move the volumes.

use std::ops::ControlFlow;

use super::Engine;
use super::base::View;
use super::key::Key;
use crate::error::Result;

/// Bytes of the file that are compared, and keys that are looked up, before a flush may go on.
const BYTES_TOGETHER: u64 = 1 << 20;
const KEYS_TOGETHER: usize = 20_000;
/// The most damaged records that are named.
const NAMED_MAX: usize = 1000;

/// The faults of the table.
#[derive(Debug, Default)]
pub(crate) struct TableFaults {
    /// Entries that lie in damaged blocks of the disk.
    pub(crate) lost: Vec<Key>,
    /// The number of further such entries.
    pub(crate) unnamed: u64,
    /// The offset of the first damaged block.
    pub(crate) offset: Option<u64>,
    /// Other faults, one sentence each.
    pub(crate) others: Vec<String>,
    /// The verification ended before everything was read.
    pub(crate) is_partial: bool,
}

impl TableFaults {
    /// Logs where the disk is damaged, if it is.
    pub(crate) fn log(&self) {
        if let Some(offset) = self.offset {
            let records = self.lost.len() as u64 + self.unnamed;
            tracing::warn!(
                file = "base",
                offset,
                records,
                "blocks on the disk do not match their checksums"
            );
        }
    }
}

impl Engine {
    /// Verifies the table. `pace` is called with the number of verified bytes, and may end the
    /// work.
    pub(crate) fn verify_table(
        &self,
        pace: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<TableFaults> {
        let mut faults = TableFaults::default();
        let mut at = 0;
        loop {
            // While the base has to be opened again, there is nothing to compare.
            let unsound = match &*self.base.lock() {
                Some(base) => base.unsound_blocks(at, BYTES_TOGETHER)?,
                None => None,
            };
            let Some(unsound) = unsound else { break };
            faults.offset = faults.offset.or(unsound.first().copied());
            at += BYTES_TOGETHER;
            if pace(BYTES_TOGETHER).is_break() {
                faults.is_partial = true;
                return Ok(faults);
            }
        }
        let mut next = Some(Key::first());
        while let Some(from) = next {
            next = match faults.offset {
                Some(_) => self.compare_with_stored(&from, &mut faults)?,
                None => {
                    let view = self.levels();
                    walk(&view.base, &from, &mut faults, &mut |_, _| {})
                }
            };
            if pace(0).is_break() {
                faults.is_partial = true;
                break;
            }
        }
        Ok(faults)
    }

    /// Looks up some of the keys on the disk. Returns the key at which to go on.
    fn compare_with_stored(&self, from: &Key, faults: &mut TableFaults) -> Result<Option<Key>> {
        let slot = self.base.lock();
        let Some(base) = &*slot else {
            return Ok(None);
        };
        let table = match base.disk_table() {
            Ok(table) => table,
            Err(error) => {
                faults.others.push(format!(
                    "the table that is on the disk cannot be opened ({error}), and a restart may not \
                     be able to: move the volumes before it"
                ));
                return Ok(None);
            }
        };
        let view = match base.view() {
            Ok(view) => view,
            Err(error) => {
                faults.others.push(error.to_string());
                return Ok(None);
            }
        };
        let mut look = |key: &Key, faults: &mut TableFaults| {
            if table.check(key).is_ok() {
                return;
            }
            match faults.lost.len() < NAMED_MAX {
                true => faults.lost.push(*key),
                false => faults.unnamed += 1,
            }
        };
        Ok(walk(&view, from, faults, &mut look))
    }
}

/// Checks the order of some keys. Returns the key at which to go on.
fn walk(
    view: &View,
    from: &Key,
    faults: &mut TableFaults,
    look: &mut dyn FnMut(&Key, &mut TableFaults),
) -> Option<Key> {
    // Unreadable places are reported where the records there are verified.
    let mut entries = view.entries(from).ok();
    let (mut last, mut place) = (None, *from);
    for _ in 0..KEYS_TOGETHER {
        let next = match &mut entries {
            Some(entries) => entries.next(),
            None => return skip_unreadable(view, &place),
        };
        let key = match next {
            Ok(Some((key, _))) => key,
            Ok(None) => return None,
            Err(_) => return skip_unreadable(view, &place),
        };
        if last.is_some_and(|last| key <= last) || key < *from {
            let fault =
                format!("the key {key:?} of the base table is not behind the one before it");
            faults.others.push(fault);
            return None;
        }
        look(&key, faults);
        last = Some(key);
        place = key.successor();
    }
    Some(place)
}

/// The first key behind a damaged page that can be read, or one not far behind it.
pub(crate) fn skip_unreadable(view: &View, bad: &Key) -> Option<Key> {
    skip(bad, &mut |key| {
        view.entries(key)
            .and_then(|mut entries| entries.next())
            .is_ok()
    })
}

/// The smallest key found behind `bad` for which `is_readable` is true, if any. Steps double until
/// one is found, and then halve.
pub(super) fn skip(bad: &Key, is_readable: &mut dyn FnMut(&Key) -> bool) -> Option<Key> {
    let bits = 8 * super::key::KEY_MAX as u32;
    let (step, mut good) = (0..bits).find_map(|step| {
        let key = bad.plus_power(step)?;
        is_readable(&key).then_some((step, key))
    })?;
    let mut low = match step {
        0 => return Some(good),
        _ => bad.plus_power(step - 1)?,
    };
    for step in (0..step.saturating_sub(1)).rev() {
        let Some(middle) = low.plus_power(step).filter(|middle| *middle < good) else {
            continue;
        };
        match is_readable(&middle) {
            true => good = middle,
            false => low = middle,
        }
    }
    Some(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_what_cannot_be_read_is_found() {
        let bad = Key::vnode(1, 2, 7);
        for end in [
            bad.successor(),
            Key::vnode(1, 2, 6),
            Key::vnode(1, 3, 9),
            Key::vnode(2, 0, 1),
            Key::region(7),
        ] {
            let mut asked = 0;
            let mut is_readable = |key: &Key| {
                asked += 1;
                *key >= end
            };
            let found = skip(&bad, &mut is_readable).unwrap();
            assert!(found >= end, "{found:?} {end:?}");
            assert_eq!(found.as_slice()[..end.as_slice().len()], *end.as_slice());
            assert!(asked < 500);
        }
        assert_eq!(skip(&bad, &mut |_| false), None);
    }
}
