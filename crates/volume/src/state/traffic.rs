//! Statistics of reads and writes of a volume: by origin of the call, and by age and author of the
//! last change. These are the tables of `vos examine -extended`.
//!
//! The tables are for one day, as OpenAFS's are. They restart when the day's accesses do
//! ([`crate::state::usage`]), are saved with these, and stay with the id when a clone is replaced.
//! An unused volume has none. Counting is one addition to a word in each table, without a lock.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use cellar_wire::ids::AfsTime;

use crate::types::{Context, FileType, Origin, Traffic, VnodeStatus};
use crate::volume::Volume;

/// Number of words in all tables.
pub(crate) const WORDS: usize = 32;

/// The index at which each table begins, in the order of the wire.
const READS: usize = 0;
const WRITES: usize = 4;
const FILE_SAME: usize = 8;
const FILE_OTHER: usize = 14;
const DIRECTORY_SAME: usize = 20;
const DIRECTORY_OTHER: usize = 26;

/// The upper limits, in seconds, of the columns before the last one.
const AGES: [u32; 5] = [60, 600, 3600, 86_400, 604_800];

impl Traffic {
    /// All counts in the order of the wire.
    pub(crate) fn words(&self) -> impl Iterator<Item = u32> {
        let ends = [self.reads, self.writes].into_iter().flatten();
        let authors = [
            self.file_same_author,
            self.file_other_author,
            self.directory_same_author,
            self.directory_other_author,
        ];
        ends.chain(authors.into_iter().flatten())
    }

    pub(crate) fn from_words(words: &[u32; WORDS]) -> Self {
        let ages = |begin: usize| std::array::from_fn(|age| words[begin + age]);
        Self {
            reads: std::array::from_fn(|column| words[READS + column]),
            writes: std::array::from_fn(|column| words[WRITES + column]),
            file_same_author: ages(FILE_SAME),
            file_other_author: ages(FILE_OTHER),
            directory_same_author: ages(DIRECTORY_SAME),
            directory_other_author: ages(DIRECTORY_OTHER),
        }
    }
}

/// Counts that are not in the volume's record yet. Memory is allocated at the first count.
#[derive(Default)]
pub(crate) struct FreshTraffic {
    words: OnceLock<Box<[AtomicU32; WORDS]>>,
    some: AtomicBool,
}

impl FreshTraffic {
    /// Returns whether anything was counted since the record was last updated.
    pub(crate) fn is_some(&self) -> bool {
        self.some.load(Ordering::Relaxed)
    }

    /// Moves the counts into a record. Returns whether there were any.
    pub(crate) fn fold(&self, into: &mut Option<Box<Traffic>>) -> bool {
        // Cleared before the words are read: a count that comes meanwhile sets it again.
        let some = self.some.swap(false, Ordering::Acquire);
        if some {
            self.add(into, |word| word.swap(0, Ordering::Relaxed));
        }
        some
    }

    /// Adds the counts to a copy of a record.
    pub(crate) fn show_in(&self, info: &mut Option<Box<Traffic>>) {
        if self.is_some() {
            self.add(info, |word| word.load(Ordering::Relaxed));
        }
    }

    fn add(&self, into: &mut Option<Box<Traffic>>, take: impl Fn(&AtomicU32) -> u32) {
        let Some(fresh) = self.words.get() else {
            return;
        };
        let known = into.get_or_insert_default();
        let mut words = [0; WORDS];
        for ((word, known), fresh) in words.iter_mut().zip(known.words()).zip(fresh.iter()) {
            *word = known.saturating_add(take(fresh));
        }
        **known = Traffic::from_words(&words);
    }

    fn count(&self, places: impl IntoIterator<Item = usize>) {
        let words = self.words.get_or_init(Box::default);
        for place in places {
            words[place].fetch_add(1, Ordering::Relaxed);
        }
        self.some.store(true, Ordering::Release);
    }
}

/// The columns of a table for an origin: all calls, and authenticated ones.
fn columns(table: usize, from: Origin) -> impl Iterator<Item = usize> {
    let all = table + if from.near { 0 } else { 2 };
    [Some(all), from.authenticated.then_some(all + 1)]
        .into_iter()
        .flatten()
}

/// The column of a change, by the date of the change before it. A date in the future counts as age
/// 0.
fn age_column(before: AfsTime, now: AfsTime) -> usize {
    let age = now.0.saturating_sub(before.0);
    AGES.iter().filter(|&&end| age >= end).count()
}

impl Volume {
    /// Counts a read of contents. Never waits, like all counting.
    pub fn count_read(&self, from: Origin) {
        self.usage.traffic.count(columns(READS, from));
    }

    /// Counts a new vnode, or new attributes of one.
    pub fn count_write(&self, from: Origin) {
        self.usage.traffic.count(columns(WRITES, from));
    }

    /// Counts a change of contents: bytes of a file, or names in a directory. `before` is the
    /// status before the change; `by` has the author and time of the change.
    pub fn count_change(&self, from: Origin, before: &VnodeStatus, by: Context) {
        let same = before.author == by.author;
        let table = match (before.kind == FileType::Directory, same) {
            (false, true) => FILE_SAME,
            (false, false) => FILE_OTHER,
            (true, true) => DIRECTORY_SAME,
            (true, false) => DIRECTORY_OTHER,
        };
        let age = table + age_column(before.client_time, by.now);
        self.usage.traffic.count(columns(WRITES, from).chain([age]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_the_columns_of_openafs() {
        let column = |age: u32| age_column(AfsTime(1_000_000), AfsTime(1_000_000 + age));
        for (age, is) in [
            (0, 0),
            (59, 0),
            (60, 1),
            (599, 1),
            (600, 2),
            (3599, 2),
            (3600, 3),
            (86_399, 3),
            (86_400, 4),
            (604_799, 4),
            (604_800, 5),
        ] {
            assert_eq!(column(age), is, "{age}");
        }
        assert_eq!(age_column(AfsTime(9), AfsTime(1)), 0);
    }

    #[test]
    fn counts_move_into_the_record_once() {
        let fresh = FreshTraffic::default();
        let mut record = None;
        assert!(!fresh.fold(&mut record) && record.is_none());
        fresh.count(0..WORDS);
        fresh.count([READS, DIRECTORY_OTHER + 5]);
        let mut shown = None;
        fresh.show_in(&mut shown);
        assert!(fresh.fold(&mut record));
        assert_eq!(shown, record);
        let record = record.unwrap();
        assert_eq!((record.reads, record.writes), ([2, 1, 1, 1], [1; 4]));
        assert_eq!(record.directory_other_author, [1, 1, 1, 1, 1, 2]);
        let words: Vec<u32> = record.words().collect();
        assert_eq!(Traffic::from_words(&words.try_into().unwrap()), *record);
        let mut again = Some(record.clone());
        fresh.count([WRITES]);
        assert!(fresh.fold(&mut again) && !fresh.is_some());
        assert_eq!(again.unwrap().writes, [2, 1, 1, 1]);
    }
}
