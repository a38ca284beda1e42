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

/// Comparisons of a group's rows and ranges. etcd takes 128 unless it is configured for more
/// (`--max-txn-ops`). Some are left for the engine's own keys.
///
/// A transaction that reads more rows compares whole ranges, and etcd visits each row of them.
/// Therefore a group ends before it would.
const COMPARISONS_MAX: usize = 110;

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

    /// Whether a transaction with these reads can join without comparisons of whole ranges.
    pub(crate) fn have_room_for(&self, reads: &Reads) -> bool {
        let new_keys = reads.keys.keys().filter(|key| !self.keys.contains_key(key));
        let new_spans = reads.spans.difference(&self.spans);
        self.len() + new_keys.count() + 2 * new_spans.count() <= COMPARISONS_MAX
    }

    /// The number of comparisons, at most: a range also needs that of its table's deletions.
    fn len(&self) -> usize {
        self.keys.len() + 2 * self.spans.len()
    }

    /// The conditions.
    pub(crate) fn compares(mut self, keys: &Keys) -> Vec<Compare> {
        if self.len() > COMPARISONS_MAX {
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

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: Table = Table::new("vl.id");

    fn reads(keys: std::ops::Range<u32>) -> Reads {
        let key = |number: u32| Bytes::copy_from_slice(&number.to_be_bytes());
        Reads {
            keys: keys.map(|number| ((TABLE, key(number)), 0)).collect(),
            spans: BTreeSet::new(),
        }
    }

    #[test]
    fn a_group_ends_before_it_compares_whole_ranges() {
        let mut guards = Guards::default();
        let mut members = 0;
        // Each reads ten rows, of which one is common to all.
        loop {
            let mut next = reads(10 * members..10 * members + 9);
            next.keys.extend(reads(1_000_000..1_000_001).keys);
            if !guards.have_room_for(&next) {
                break;
            }
            guards.keys.extend(next.keys);
            members += 1;
        }
        assert_eq!(members, 12);
        let keys = Keys::new("/cellar/test").unwrap();
        let compares = guards.compares(&keys);
        assert!(compares.iter().all(|compare| compare.range_end.is_empty()));
        assert!(compares.len() < 128);
    }

    #[test]
    fn a_transaction_that_reads_more_compares_a_range() {
        let mut guards = Guards::default();
        guards.keys.extend(reads(0..1000).keys);
        let keys = Keys::new("/cellar/test").unwrap();
        let compares = guards.compares(&keys);
        // The plan, and one range.
        assert_eq!(compares.len(), 2);
    }
}
