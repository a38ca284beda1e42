//! Views of tables, and transactions as layers of changes over a view.
//!
//! A transaction never touches the engine's state: it collects its writes in an [`Overlay`] of its
//! own and reads through it. Cancelling is dropping the overlay. Committing hands it to the engine,
//! which may lay several over each other before it writes them out together.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;

use crate::table::limits;
use crate::{Error, Table, Verdict};

/// Rows in key order.
pub type Rows = Vec<(Bytes, Bytes)>;

/// One consistent state of the tables.
pub trait View {
    /// The value at `key`.
    ///
    /// # Errors
    /// The engine cannot read.
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, Error>;

    /// Shows `each` the rows of a range in key order until it returns `false`.
    ///
    /// # Errors
    /// The engine cannot read.
    fn visit(
        &self,
        table: Table,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Error>;
}

impl<'v> dyn View + 'v {
    /// At most `limit` rows of a range, in key order.
    ///
    /// # Errors
    /// As [`View::visit`].
    pub fn scan(
        &self,
        table: Table,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        limit: usize,
    ) -> Result<Rows, Error> {
        let mut rows = Rows::new();
        if limit == 0 {
            return Ok(rows);
        }
        self.visit(table, range, &mut |key, value| {
            rows.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
            rows.len() < limit
        })?;
        Ok(rows)
    }

    /// All rows whose key begins with `prefix`, at most `limit`.
    ///
    /// # Errors
    /// As [`View::visit`].
    pub fn scan_prefix(&self, table: Table, prefix: &[u8], limit: usize) -> Result<Rows, Error> {
        let mut rows = Rows::new();
        if limit == 0 {
            return Ok(rows);
        }
        self.visit(
            table,
            (Bound::Included(prefix), Bound::Unbounded),
            &mut |key, value| {
                if !key.starts_with(prefix) {
                    return false;
                }
                rows.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
                rows.len() < limit
            },
        )?;
        Ok(rows)
    }
}

/// Changes that lie over a view: a value, or `None` where the row is deleted.
#[derive(Clone, Debug, Default)]
pub struct Overlay {
    tables: BTreeMap<Table, BTreeMap<Bytes, Option<Bytes>>>,
    changes: usize,
}

impl Overlay {
    fn get(&self, table: Table, key: &[u8]) -> Option<&Option<Bytes>> {
        self.tables.get(&table)?.get(key)
    }

    fn set(&mut self, table: Table, key: Bytes, value: Option<Bytes>) {
        if self
            .tables
            .entry(table)
            .or_default()
            .insert(key, value)
            .is_none()
        {
            self.changes += 1;
        }
    }

    /// Lays `upper` over this one.
    pub fn absorb(&mut self, upper: &Self) {
        for (table, key, value) in upper.iter() {
            self.set(table, key.clone(), value.clone());
        }
    }

    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        self.changes == 0
    }

    /// The number of changed rows.
    pub fn len(&self) -> usize {
        self.changes
    }

    /// All changes, by table and key.
    pub fn iter(&self) -> impl Iterator<Item = (Table, &Bytes, &Option<Bytes>)> {
        self.tables
            .iter()
            .flat_map(|(table, rows)| rows.iter().map(|(key, value)| (*table, key, value)))
    }

    pub(crate) fn tables(&self) -> impl Iterator<Item = (Table, &BTreeMap<Bytes, Option<Bytes>>)> {
        self.tables.iter().map(|(table, rows)| (*table, rows))
    }
}

/// A view with layers of changes over it, the last one on top.
pub(crate) struct Layered<'a> {
    pub(crate) base: &'a dyn View,
    pub(crate) layers: &'a [&'a Overlay],
}

impl View for Layered<'_> {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, Error> {
        for layer in self.layers.iter().rev() {
            if let Some(change) = layer.get(table, key) {
                return Ok(change.clone());
            }
        }
        self.base.get(table, key)
    }

    fn visit(
        &self,
        table: Table,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Error> {
        if is_empty_range(range) {
            return Ok(());
        }
        let mut over: BTreeMap<&[u8], &Option<Bytes>> = BTreeMap::new();
        for layer in self.layers {
            if let Some(rows) = layer.tables.get(&table) {
                over.extend(
                    rows.range::<[u8], _>(range)
                        .map(|(key, change)| (&key[..], change)),
                );
            }
        }
        let mut over = over.into_iter().peekable();
        let mut go_on = true;
        self.base.visit(table, range, &mut |key, value| {
            while let Some((changed, change)) = over.next_if(|(changed, _)| *changed < key) {
                if let Some(value) = change {
                    go_on = each(changed, value);
                    if !go_on {
                        return false;
                    }
                }
            }
            go_on = match over.next_if(|(changed, _)| *changed == key) {
                Some((_, Some(value))) => each(key, value),
                Some((_, None)) => true,
                None => each(key, value),
            };
            go_on
        })?;
        if go_on {
            for (changed, change) in over {
                if let Some(value) = change
                    && !each(changed, value)
                {
                    break;
                }
            }
        }
        Ok(())
    }
}

/// Whether no key can be in `range`; `BTreeMap::range` panics on some of these.
fn is_empty_range(range: (Bound<&[u8]>, Bound<&[u8]>)) -> bool {
    match range {
        (Bound::Included(low), Bound::Included(high)) => low > high,
        (
            Bound::Included(low) | Bound::Excluded(low),
            Bound::Included(high) | Bound::Excluded(high),
        ) => low >= high,
        _ => false,
    }
}

/// Runs a body over a view with layers of changes over it, the last one on top. Returns its writes,
/// or `None` if it cancelled. The view sees every read of the body that no layer answers, so an
/// engine can record them.
///
/// # Errors
/// The first write that was over a limit.
pub fn run(
    base: &dyn View,
    layers: &[&Overlay],
    body: &mut dyn FnMut(&mut Transaction<'_>) -> Verdict,
) -> Result<Option<Overlay>, Error> {
    let mut transaction = Transaction::new(Layered { base, layers });
    match body(&mut transaction) {
        Verdict::Cancel => Ok(None),
        Verdict::Commit => transaction.into_changes().map(Some),
    }
}

/// A transaction in the making: reads see the state it began in and its own writes.
pub struct Transaction<'a> {
    below: Layered<'a>,
    own: Overlay,
    refused: Option<Error>,
}

impl<'a> Transaction<'a> {
    pub(crate) fn new(below: Layered<'a>) -> Self {
        Self {
            below,
            own: Overlay::default(),
            refused: None,
        }
    }

    /// Returns the writes.
    ///
    /// # Errors
    /// The first write that was over a limit.
    pub(crate) fn into_changes(self) -> Result<Overlay, Error> {
        match self.refused {
            Some(error) => Err(error),
            None => Ok(self.own),
        }
    }

    /// Sets the value at `key`.
    ///
    /// A key, value or transaction over its limit ([`limits`]) makes the whole transaction fail
    /// when it is committed.
    pub fn put(&mut self, table: Table, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.change(table, key.into(), Some(value.into()));
    }

    /// Deletes the row at `key`, if there is one.
    pub fn delete(&mut self, table: Table, key: impl Into<Bytes>) {
        self.change(table, key.into(), None);
    }

    fn change(&mut self, table: Table, key: Bytes, value: Option<Bytes>) {
        let value_bytes = value.as_ref().map_or(0, Bytes::len);
        let checks = [
            ("a key", key.len(), limits::KEY_BYTES_MAX),
            ("a value", value_bytes, limits::VALUE_BYTES_MAX),
            ("a transaction", self.own.len() + 1, limits::CHANGES_MAX),
        ];
        match checks.into_iter().find(|(_, size, limit)| size > limit) {
            Some((what, size, limit)) => {
                self.refused
                    .get_or_insert(Error::TooLarge { what, size, limit });
            }
            None => self.own.set(table, key, value),
        }
    }
}

impl View for Transaction<'_> {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, Error> {
        match self.own.get(table, key) {
            Some(change) => Ok(change.clone()),
            None => self.below.get(table, key),
        }
    }

    fn visit(
        &self,
        table: Table,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Error> {
        Layered {
            base: &self.below,
            layers: &[&self.own],
        }
        .visit(table, range, each)
    }
}

impl<'a> Transaction<'a> {
    /// This transaction as a view, for code that only reads.
    pub fn view(&self) -> &(dyn View + 'a) {
        self
    }
}
