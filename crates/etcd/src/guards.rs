//! The conditions under which a group of transactions is committed: nothing that it read has
//! changed.
//!
//! A row that was read has the revision that was seen, or still does not exist. No row of a range
//! that was read has a revision above that of the copy, and no row of its table has been deleted
//! since.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use cellar_celldb::Table;

use crate::copy::{Copy, Reads, Span};
use crate::keys::Keys;
use crate::messages::{Compare, Operand, result, target};

/// Rows that are compared one by one. If a group read more of a table, their whole range is
/// compared: etcd takes 128 comparisons.
const KEYS_MAX: usize = 90;

/// What a group of transactions read.
///
/// All members read one state. If the copy becomes newer while a group is open, the group goes on
/// if nothing that it read has changed ([`Guards::hold`]). Otherwise its members run again.
#[derive(Debug, Default)]
pub(crate) struct Guards {
    keys: BTreeMap<(Table, Bytes), i64>,
    spans: BTreeSet<Span>,
    /// The last deletion in each table that was read.
    deleted: BTreeMap<Table, i64>,
    /// The revision of the copy.
    revision: i64,
    /// The revision of the plan of large transactions.
    plan: i64,
}

impl Guards {
    /// Adds what a body read from a copy.
    pub(crate) fn add(&mut self, reads: Reads, copy: &Copy) {
        self.revision = copy.revision;
        self.plan = copy.plan_revision();
        let tables = reads.keys.keys().map(|(table, _)| *table);
        for table in tables.chain(reads.spans.iter().map(|span| span.table)) {
            self.deleted.insert(table, copy.deleted(table));
        }
        self.keys.extend(reads.keys);
        self.spans.extend(reads.spans);
    }

    /// Whether the plan is the one of the copy at which the members ran.
    pub(crate) fn is_of_plan(&self, copy: &Copy) -> bool {
        self.plan == copy.plan_revision()
    }

    /// Whether everything that was read is the same in a newer copy, which then takes the place of
    /// the older one.
    pub(crate) fn hold(&mut self, copy: &Copy) -> bool {
        if self.revision == copy.revision {
            return true;
        }
        let is_same = self.plan == copy.plan_revision()
            && self
                .keys
                .iter()
                .all(|((table, key), seen)| copy.revision_of(*table, key) == *seen)
            && self
                .spans
                .iter()
                .all(|span| copy.is_unchanged(span, self.revision))
            && self
                .deleted
                .iter()
                .all(|(table, seen)| copy.deleted(*table) == *seen);
        self.revision = copy.revision;
        is_same
    }

    /// The number of comparisons with those of `reads`, at most.
    pub(crate) fn len_with(&self, reads: &Reads) -> usize {
        let keys = self.keys.len() + reads.keys.len();
        keys + 2 * (self.spans.len() + reads.spans.len())
    }

    /// The conditions.
    pub(crate) fn compares(mut self, keys: &Keys) -> Vec<Compare> {
        if self.keys.len() > KEYS_MAX {
            self.join_keys();
        }
        let mut compares = Vec::with_capacity(self.keys.len() + 2 * self.spans.len() + 2);
        compares.push(is_at(keys.plan(), self.plan));
        for ((table, key), seen) in self.keys {
            compares.push(is_at(keys.row(table, &key), seen));
        }
        for (table, seen) in self.deleted {
            if self.spans.iter().any(|span| span.table == table) {
                compares.push(is_at(keys.deleted(table), seen));
            }
        }
        for span in self.spans {
            let range_end = match &span.end {
                Some(end) => keys.row(span.table, end),
                None => keys.table_end(span.table),
            };
            compares.push(Compare {
                result: result::LESS,
                target: target::MOD,
                key: keys.row(span.table, &span.start),
                operand: Some(Operand::ModRevision(self.revision + 1)),
                range_end,
            });
        }
        compares
    }

    /// Replaces rows by the range from the first to the last of each table.
    fn join_keys(&mut self) {
        let mut ends: BTreeMap<Table, (Bytes, Bytes)> = BTreeMap::new();
        for (table, key) in std::mem::take(&mut self.keys).into_keys() {
            ends.entry(table)
                .and_modify(|(_, last)| *last = key.clone())
                .or_insert_with(|| (key.clone(), key));
        }
        let spans = ends.into_iter();
        self.spans
            .extend(spans.map(|(table, (first, last))| Span::between(table, &first, &last)));
    }
}

/// The condition that a key was last written at a revision; 0: it does not exist.
pub(crate) fn is_at(key: Bytes, revision: i64) -> Compare {
    Compare {
        result: result::EQUAL,
        target: target::MOD,
        key,
        operand: Some(Operand::ModRevision(revision)),
        range_end: Bytes::new(),
    }
}

/// The condition that a key has a value.
pub(crate) fn has_value(key: Bytes, value: Bytes) -> Compare {
    Compare {
        result: result::EQUAL,
        target: target::VALUE,
        key,
        operand: Some(Operand::Value(value)),
        range_end: Bytes::new(),
    }
}
