//! Reads of a durable state. Damage is an error, never the absence of a row.

use std::ops::Bound;

use bytes::Bytes;
use redb::{ReadTransaction, ReadableTable, TableError};

use super::{definition, unreadable};
use crate::guard::guarded;
use crate::{Error, Table, View, sealed};

/// A durable state, as redb shows it. A row that is not as it was written is an error. So is the
/// absence of a row if the rows beside its place are damaged or out of order ([`Neighbours`]).
pub(super) struct Durable(pub(super) ReadTransaction);

type Rows = redb::ReadOnlyTable<&'static [u8], &'static [u8]>;

impl Durable {
    /// The redb table, if it was ever written.
    fn open(&self, table: Table) -> Result<Option<Rows>, Error> {
        let open = guarded(|| match self.0.open_table(definition(table)) {
            Ok(open) => Ok(Some(open)),
            Err(TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(error),
        });
        open.map_err(unreadable)
    }
}

impl View for Durable {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, Error> {
        let Some(open) = self.open(table)? else {
            return Ok(None);
        };
        let stored = guarded(|| {
            let value = open.get(key)?;
            let value = value.map(|value| Bytes::copy_from_slice(value.value()));
            Ok::<_, redb::Error>(value)
        });
        match stored.map_err(unreadable)? {
            Some(stored) => {
                let value = opened(table, key, &stored)?.len();
                Ok(Some(stored.slice(..value)))
            }
            None => {
                let beside = Neighbours { table, rows: &open };
                beside.check_before(Bound::Included(key))?;
                beside.check_after(key)?;
                Ok(None)
            }
        }
    }

    fn visit(
        &self,
        table: Table,
        (start, end): (Bound<&[u8]>, Bound<&[u8]>),
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Error> {
        let Some(open) = self.open(table)? else {
            return Ok(());
        };
        Neighbours { table, rows: &open }.check_before(start)?;
        // The row behind the end is looked at, too.
        let rows = guarded(|| ReadableTable::range::<&[u8]>(&open, (start, Bound::Unbounded)));
        let mut rows = rows.map_err(unreadable)?;
        let mut previous: Option<Vec<u8>> = None;
        while let Some((key, stored)) = guarded(|| rows.next().transpose()).map_err(unreadable)? {
            let (key, stored) = (key.value(), stored.value());
            let value = opened(table, key, stored)?;
            if previous.is_some_and(|previous| *previous >= *key) {
                return Err(out_of_order(table, stored));
            }
            let is_inside = match end {
                Bound::Included(end) => key <= end,
                Bound::Excluded(end) => key < end,
                Bound::Unbounded => true,
            };
            if !is_inside || !each(key, value) {
                break;
            }
            previous = Some(key.to_vec());
        }
        Ok(())
    }
}

/// The rows beside a place where a row is looked for.
///
/// A search that misses a key with a flipped bit ends beside that key. A flipped bit in a page of
/// the tree above ends the search beside rows that are on the wrong side. So both neighbours
/// together tell a damaged row from an absent one.
struct Neighbours<'a> {
    table: Table,
    rows: &'a Rows,
}

impl Neighbours<'_> {
    /// Looks at the last row before `start`.
    fn check_before(&self, start: Bound<&[u8]>) -> Result<(), Error> {
        let before = match start {
            Bound::Included(start) => Bound::Excluded(start),
            Bound::Excluded(start) => Bound::Included(start),
            Bound::Unbounded => return Ok(()),
        };
        let range = (Bound::Unbounded, before);
        let row = guarded(|| {
            let mut rows = ReadableTable::range::<&[u8]>(self.rows, range)?;
            rows.next_back().transpose()
        });
        let Some((key, stored)) = row.map_err(unreadable)? else {
            return Ok(());
        };
        let (key, stored) = (key.value(), stored.value());
        opened(self.table, key, stored)?;
        let is_before = match before {
            Bound::Included(end) => key <= end,
            Bound::Excluded(end) => key < end,
            Bound::Unbounded => true,
        };
        match is_before {
            true => Ok(()),
            false => Err(out_of_order(self.table, stored)),
        }
    }

    /// Looks at the first row behind `key`, which is absent.
    fn check_after(&self, key: &[u8]) -> Result<(), Error> {
        let row = guarded(|| {
            let mut rows = ReadableTable::range::<&[u8]>(self.rows, key..)?;
            rows.next().transpose()
        });
        let Some((found, stored)) = row.map_err(unreadable)? else {
            return Ok(());
        };
        let (found, stored) = (found.value(), stored.value());
        opened(self.table, found, stored)?;
        match found > key {
            true => Ok(()),
            false => Err(out_of_order(self.table, stored)),
        }
    }
}

/// The value of a stored row. A damaged one is an error, which is logged by who answers a caller.
fn opened<'a>(table: Table, key: &[u8], stored: &'a [u8]) -> Result<&'a [u8], Error> {
    sealed::open(table.name(), key, stored).map_err(|reason| Error::BadRow {
        table: table.name(),
        len: stored.len(),
        reason,
    })
}

fn out_of_order(table: Table, stored: &[u8]) -> Error {
    Error::BadRow {
        table: table.name(),
        len: stored.len(),
        reason: "it is out of order",
    }
}
