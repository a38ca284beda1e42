//! The copy of the tables in memory, and a view of it that records its reads.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use bytes::Bytes;
use cellar_celldb::{Change, Error, Overlay, Table, View, sealed};
use parking_lot::Mutex;

use crate::keys::{Key, Keys};
use crate::large;
use crate::messages::{EVENT_DELETE, Event, KeyValue};

/// Tables of one process at most. A name is a few bytes that are never freed.
const TABLES_MAX: usize = 256;

/// The table of a name that arrived from etcd.
pub(crate) fn table_named(name: &str) -> Option<Table> {
    static KNOWN: Mutex<BTreeMap<&'static str, Table>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock();
    if let Some(table) = known.get(name) {
        return Some(*table);
    }
    if name.is_empty() || name.starts_with('_') || known.len() >= TABLES_MAX {
        return None;
    }
    let name: &'static str = Box::leak(name.to_owned().into_boxed_str());
    let table = Table::new(name);
    known.insert(name, table);
    Some(table)
}

/// A row as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    /// The value, or the reason why the row is not as it was written.
    value: Result<Bytes, &'static str>,
    stored: usize,
    revision: i64,
}

impl Row {
    fn of(table: Table, key: &[u8], kv: &KeyValue) -> Self {
        let opened = sealed::open(table.name(), key, &kv.value);
        let value = opened.map(Bytes::copy_from_slice);
        if let Err(reason) = value {
            tracing::error!(table = table.name(), reason, "a row in etcd is damaged");
        }
        Self {
            value,
            stored: kv.value.len(),
            revision: kv.mod_revision,
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Rows {
    rows: BTreeMap<Bytes, Row>,
    /// The revision of the last transaction that deleted rows.
    deleted: i64,
}

/// The large transaction that is not finished.
#[derive(Clone, Debug, Default)]
struct Plan {
    revision: i64,
    id: Option<String>,
    changes: Vec<Change>,
}

/// All tables at one revision of etcd.
#[derive(Clone, Debug, Default)]
pub(crate) struct Copy {
    tables: BTreeMap<Table, Rows>,
    /// Everything up to this revision of etcd is in the copy.
    pub(crate) revision: i64,
    /// The revision of the last transaction of the database.
    pub(crate) last: i64,
    plan: Plan,
    /// Parts of large transactions.
    staged: BTreeMap<Bytes, Bytes>,
}

impl Copy {
    /// Applies a row that was read, or an event. Returns the change of a table, if it is one.
    fn set(&mut self, keys: &Keys, kv: &KeyValue, is_delete: bool) -> Option<Change> {
        match keys.parse(&kv.key) {
            Some(Key::Row { table, key }) => {
                let table = table_named(table)?;
                let rows = &mut self.tables.entry(table).or_default().rows;
                let key = Bytes::copy_from_slice(key);
                let value = if is_delete {
                    rows.remove(&key);
                    None
                } else {
                    let row = Row::of(table, &key, kv);
                    let value = row.value.clone();
                    rows.insert(key.clone(), row);
                    // A follower finds a value that does not parse.
                    Some(value.unwrap_or_default())
                };
                Some(Change { table, key, value })
            }
            Some(Key::Deleted { table }) => {
                let table = table_named(table)?;
                self.tables.entry(table).or_default().deleted = kv.mod_revision;
                None
            }
            Some(Key::Last) => {
                self.last = kv.mod_revision;
                None
            }
            Some(Key::Plan) => {
                self.plan = Plan {
                    revision: kv.mod_revision,
                    id: std::str::from_utf8(&kv.value)
                        .ok()
                        .filter(|id| !id.is_empty())
                        .map(str::to_owned),
                    changes: Vec::new(),
                };
                None
            }
            Some(Key::Staged) if is_delete => {
                self.staged.remove(&kv.key);
                None
            }
            Some(Key::Staged) => {
                let part = Bytes::copy_from_slice(&kv.value);
                self.staged.insert(Bytes::copy_from_slice(&kv.key), part);
                None
            }
            Some(Key::Meta | Key::Writer) | None => None,
        }
    }

    /// Applies the staged changes of a plan that has come into force.
    fn enter_plan(&mut self, keys: &Keys) {
        let Some(id) = self.plan.id.clone() else {
            return;
        };
        let (first, end) = keys.staged_of(&id);
        let mut changes = Vec::new();
        for (key, part) in self.staged.range(first..end) {
            match large::decode(key, part) {
                Some(part) => changes.extend(part),
                None => tracing::error!(id, "a part of a large transaction in etcd is damaged"),
            }
        }
        for change in &changes {
            let rows = &mut self.tables.entry(change.table).or_default().rows;
            match &change.value {
                Some(value) => {
                    let row = Row {
                        value: Ok(value.clone()),
                        stored: value.len(),
                        revision: self.plan.revision,
                    };
                    rows.insert(change.key.clone(), row);
                }
                None => drop(rows.remove(&change.key)),
            }
        }
        self.plan.changes = changes;
    }

    /// Ends the reading of all rows.
    pub(crate) fn end_load(&mut self, keys: &Keys) {
        self.enter_plan(keys);
    }

    /// The revision of the plan.
    pub(crate) fn plan_revision(&self) -> i64 {
        self.plan.revision
    }

    pub(crate) fn has_plan(&self) -> bool {
        self.plan.id.is_some()
    }

    /// The plan in force: its revision, id and changes.
    pub(crate) fn plan_in_force(&self) -> Option<(i64, String, Vec<Change>)> {
        let id = self.plan.id.clone()?;
        Some((self.plan.revision, id, self.plan.changes.clone()))
    }

    /// Puts a row that was read into the copy. Clones nothing: the first clone of bytes allocates a
    /// counter of references, which millions of rows would keep.
    pub(crate) fn load(&mut self, keys: &Keys, kv: &KeyValue) {
        let Some(Key::Row { table, key }) = keys.parse(&kv.key) else {
            let _ = self.set(keys, kv, false);
            return;
        };
        if let Some(table) = table_named(table) {
            let row = Row::of(table, key, kv);
            let rows = &mut self.tables.entry(table).or_default().rows;
            rows.insert(Bytes::copy_from_slice(key), row);
        }
    }

    /// Applies the events of one revision. Returns the changes if it is a transaction of this
    /// database.
    pub(crate) fn apply(
        &mut self,
        keys: &Keys,
        revision: i64,
        events: &[Event],
    ) -> Option<Vec<Change>> {
        let mut changes = Vec::new();
        for event in events {
            if let Some(kv) = &event.kv {
                changes.extend(self.set(keys, kv, event.kind == EVENT_DELETE));
            }
        }
        self.revision = revision;
        if self.plan.revision == revision {
            self.enter_plan(keys);
            changes.extend(self.plan.changes.iter().cloned());
        }
        (self.last == revision || !changes.is_empty()).then_some(changes)
    }

    /// The changes that lead from this copy to a newer one.
    pub(crate) fn difference(&self, newer: &Self) -> Vec<Change> {
        let mut changes = Vec::new();
        let none = Rows::default();
        let names: BTreeSet<_> = self.tables.keys().chain(newer.tables.keys()).collect();
        for &table in names {
            let old = &self.tables.get(&table).unwrap_or(&none).rows;
            let new = &newer.tables.get(&table).unwrap_or(&none).rows;
            let gone = old.keys().filter(|key| !new.contains_key(*key));
            changes.extend(gone.map(|key| Change {
                table,
                key: key.clone(),
                value: None,
            }));
            let changed = new
                .iter()
                .filter(|(key, row)| old.get(*key).map(|row| row.revision) != Some(row.revision));
            changes.extend(changed.map(|(key, row)| Change {
                table,
                key: key.clone(),
                value: Some(row.value.clone().unwrap_or_default()),
            }));
        }
        changes
    }

    /// The names of the tables that have rows.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (Table, usize)> {
        let filled = self.tables.iter().filter(|(_, rows)| !rows.rows.is_empty());
        filled.map(|(table, rows)| (*table, rows.rows.len()))
    }

    /// The revision of the last deletion in a table.
    pub(crate) fn deleted(&self, table: Table) -> i64 {
        self.tables.get(&table).map_or(0, |rows| rows.deleted)
    }

    /// The revision of a row; 0 if it is not there.
    pub(crate) fn revision_of(&self, table: Table, key: &[u8]) -> i64 {
        self.row(table, key).map_or(0, |row| row.revision)
    }

    /// Whether no row of a range has been written after a revision. Deletions are not seen.
    pub(crate) fn is_unchanged(&self, span: &Span, since: i64) -> bool {
        let Some(rows) = self.tables.get(&span.table).filter(|_| !span.is_empty()) else {
            return true;
        };
        let end = match &span.end {
            Some(end) => Bound::Excluded(&end[..]),
            None => Bound::Unbounded,
        };
        let range = (Bound::Included(&span.start[..]), end);
        let mut rows = rows.rows.range::<[u8], _>(range);
        rows.all(|(_, row)| row.revision <= since)
    }

    fn row(&self, table: Table, key: &[u8]) -> Option<&Row> {
        self.tables.get(&table)?.rows.get(key)
    }
}

fn value_of(table: Table, row: &Row) -> Result<&Bytes, Error> {
    row.value.as_ref().map_err(|reason| Error::BadRow {
        table: table.name(),
        len: row.stored,
        reason,
    })
}

impl View for Copy {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, Error> {
        let row = self.row(table, key);
        row.map(|row| value_of(table, row).cloned()).transpose()
    }

    fn visit(
        &self,
        table: Table,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Error> {
        let Some(rows) = self.tables.get(&table) else {
            return Ok(());
        };
        if Span::of(table, range).is_empty() {
            return Ok(());
        }
        for (key, row) in rows.rows.range::<[u8], _>(range) {
            if !each(key, value_of(table, row)?) {
                break;
            }
        }
        Ok(())
    }
}

/// A range of keys of a table, from `start` up to but without `end`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span {
    pub(crate) table: Table,
    pub(crate) start: Bytes,
    /// `None`: the end of the table.
    pub(crate) end: Option<Bytes>,
}

/// The first key behind `key`.
fn behind(key: &[u8]) -> Bytes {
    [key, &[0]].concat().into()
}

impl Span {
    fn of(table: Table, range: (Bound<&[u8]>, Bound<&[u8]>)) -> Self {
        let start = match range.0 {
            Bound::Included(key) => Bytes::copy_from_slice(key),
            Bound::Excluded(key) => behind(key),
            Bound::Unbounded => Bytes::new(),
        };
        let end = match range.1 {
            Bound::Included(key) => Some(behind(key)),
            Bound::Excluded(key) => Some(Bytes::copy_from_slice(key)),
            Bound::Unbounded => None,
        };
        Self { table, start, end }
    }

    fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| *end <= self.start)
    }

    fn contains(&self, table: Table, key: &[u8]) -> bool {
        self.table == table && self.start <= key && self.end.as_ref().is_none_or(|end| key < end)
    }

    /// The range from the first to the last of some keys.
    pub(crate) fn between(table: Table, first: &Bytes, last: &Bytes) -> Self {
        Self {
            table,
            start: first.clone(),
            end: Some(behind(last)),
        }
    }
}

/// The rows that a body read from the copy.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reads {
    /// Rows and their revisions; 0 for a row that is not there.
    pub(crate) keys: BTreeMap<(Table, Bytes), i64>,
    pub(crate) spans: BTreeSet<Span>,
}

impl Reads {
    /// Whether one of the changes is to a row that was read.
    pub(crate) fn touch(&self, changes: &Overlay) -> bool {
        changes.iter().any(|(table, key, _)| {
            self.keys.contains_key(&(table, key.clone()))
                || self.spans.iter().any(|span| span.contains(table, key))
        })
    }
}

/// A view of the copy that records reads.
pub(crate) struct Recorded<'a> {
    copy: &'a Copy,
    reads: RefCell<Reads>,
}

impl<'a> Recorded<'a> {
    pub(crate) fn new(copy: &'a Copy) -> Self {
        Self {
            copy,
            reads: RefCell::default(),
        }
    }

    pub(crate) fn into_reads(self) -> Reads {
        self.reads.into_inner()
    }
}

impl View for Recorded<'_> {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, Error> {
        let revision = self.copy.revision_of(table, key);
        let at = (table, Bytes::copy_from_slice(key));
        self.reads.borrow_mut().keys.insert(at, revision);
        self.copy.get(table, key)
    }

    fn visit(
        &self,
        table: Table,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Error> {
        let mut stopped_at = None;
        let outcome = self.copy.visit(table, range, &mut |key, value| {
            let goes_on = each(key, value);
            if !goes_on {
                stopped_at = Some(behind(key));
            }
            goes_on
        });
        let mut span = Span::of(table, range);
        if stopped_at.is_some() {
            span.end = stopped_at;
        }
        if !span.is_empty() {
            self.reads.borrow_mut().spans.insert(span);
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: Table = Table::new("test");

    fn put(keys: &Keys, key: &[u8], value: &[u8], revision: i64) -> Event {
        let kv = KeyValue {
            key: keys.row(TABLE, key),
            mod_revision: revision,
            value: sealed::seal(TABLE.name(), key, value).into(),
        };
        Event {
            kind: 0,
            kv: Some(kv),
        }
    }

    fn copy() -> (Keys, Copy) {
        let keys = Keys::new("/c").unwrap();
        let mut copy = Copy::default();
        for (revision, key) in [(3, b"a"), (4, b"c"), (5, b"e")] {
            copy.apply(&keys, revision, &[put(&keys, key, b"v", revision)]);
        }
        (keys, copy)
    }

    #[test]
    fn reads_are_recorded_up_to_the_place_where_they_stop() {
        let (_, copy) = copy();
        let view = Recorded::new(&copy);
        assert_eq!(view.get(TABLE, b"a").unwrap().unwrap(), "v");
        assert_eq!(view.get(TABLE, b"b").unwrap(), None);
        let all = (Bound::Unbounded, Bound::Unbounded);
        view.visit(TABLE, all, &mut |key, _| key != b"c").unwrap();
        let reads = view.into_reads();
        let known: Vec<_> = reads
            .keys
            .iter()
            .map(|((_, key), at)| (&key[..], *at))
            .collect();
        assert_eq!(known, [(&b"a"[..], 3), (&b"b"[..], 0)]);
        let change = |key: &'static [u8]| {
            let mut changes = Overlay::default();
            changes.absorb(&overlay(key));
            changes
        };
        assert!(reads.touch(&change(b"c")) && reads.touch(&change(b"bb")));
        assert!(!reads.touch(&change(b"d")) && !reads.touch(&change(b"e")));
    }

    fn overlay(key: &'static [u8]) -> Overlay {
        let nothing = Copy::default();
        let run = cellar_celldb::run(&nothing, &[], &mut |transaction| {
            transaction.put(TABLE, key, &b"new"[..]);
            cellar_celldb::Verdict::Commit
        });
        run.unwrap().unwrap()
    }

    #[test]
    fn a_damaged_row_is_an_error_of_its_readers() {
        let (keys, mut copy) = copy();
        let mut event = put(&keys, b"c", b"x", 6);
        if let Some(kv) = &mut event.kv {
            kv.value = Bytes::from_static(b"something else");
        }
        copy.apply(&keys, 6, &[event]);
        assert!(matches!(copy.get(TABLE, b"c"), Err(Error::BadRow { .. })));
        assert_eq!(copy.get(TABLE, b"a").unwrap().unwrap(), "v");
        let all = (Bound::Unbounded, Bound::Unbounded);
        assert!(copy.visit(TABLE, all, &mut |_, _| true).is_err());
    }

    #[test]
    fn the_difference_leads_to_the_newer_copy() {
        let (keys, old) = copy();
        let mut new = old.clone();
        let gone = Event {
            kind: EVENT_DELETE,
            ..put(&keys, b"a", b"", 6)
        };
        new.apply(
            &keys,
            6,
            &[gone, put(&keys, b"c", b"w", 6), put(&keys, b"f", b"x", 6)],
        );
        let changes = old.difference(&new);
        let shown: Vec<_> = changes
            .iter()
            .map(|change| (&change.key[..], change.value.as_deref()))
            .collect();
        assert_eq!(
            shown,
            [
                (&b"a"[..], None),
                (&b"c"[..], Some(&b"w"[..])),
                (&b"f"[..], Some(&b"x"[..]))
            ]
        );
        assert_eq!(new.difference(&new), []);
        // A view of a range without keys is empty.
        let backwards = (Bound::Included(&b"c"[..]), Bound::Excluded(&b"a"[..]));
        new.visit(TABLE, backwards, &mut |_, _| panic!("no row"))
            .unwrap();
    }
}
