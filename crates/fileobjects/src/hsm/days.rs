//! Statistics by day: copied, wiped, recalled and verified files, and the use of devices.
//!
//! Each census adds the work since the last one to the row of the day, in the database of the jobs.
//! A crash loses the work since the last census, ten minutes of it. Days are those of UTC.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use cellar_celldb::{CellDb, Error, Table, View};
use cellar_rpc::blocking;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::census::Tally;
use crate::figures::ObjectFigures;

/// Rows by day: the number of days since 1970, big-endian.
const DAYS: Table = Table::new("hsm.day");
/// Days that are kept.
pub(crate) const DAYS_MAX: usize = 400;
const DAY_SECONDS: u64 = 86_400;

/// The bytes of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceUse {
    /// Bytes in use.
    pub used: u64,
    /// All bytes.
    pub total: u64,
}

/// The work of a day.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Day {
    /// Days since 1970, in UTC.
    pub day: u32,
    /// Copies made in archives.
    pub copied: Tally,
    /// Files wiped.
    pub wiped: Tally,
    /// Files recalled.
    pub recalled: Tally,
    /// Copies read back and compared.
    pub verified: Tally,
    /// Copies and recalls that failed.
    pub failed: u64,
    /// The use of each device at the last census of the day.
    pub devices: BTreeMap<u32, DeviceUse>,
}

/// The counters at some moment.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    copied: Tally,
    wiped: Tally,
    recalled: Tally,
    verified: Tally,
    failed: u64,
}

impl Counted {
    fn of(figures: &ObjectFigures) -> Self {
        let tally = |files, bytes| Tally { files, bytes };
        Self {
            copied: tally(figures.copies_made, figures.copied_bytes),
            wiped: tally(figures.wiped, figures.wiped_bytes),
            recalled: tally(figures.recalled, figures.recalled_bytes),
            verified: tally(figures.copies_verified, figures.verified_bytes),
            failed: figures.copies_failed + figures.recalls_failed,
        }
    }

    /// Adds the work since `before` to a day.
    fn add_since(&self, before: &Self, day: &mut Day) {
        let add = |to: &mut Tally, now: Tally, before: Tally| {
            to.files += now.files.saturating_sub(before.files);
            to.bytes += now.bytes.saturating_sub(before.bytes);
        };
        add(&mut day.copied, self.copied, before.copied);
        add(&mut day.wiped, self.wiped, before.wiped);
        add(&mut day.recalled, self.recalled, before.recalled);
        add(&mut day.verified, self.verified, before.verified);
        day.failed += self.failed.saturating_sub(before.failed);
    }
}

/// The rows of days.
pub(crate) struct Days {
    db: Arc<dyn CellDb>,
    /// The counters that the rows contain already.
    counted: Mutex<Counted>,
}

impl Days {
    pub(super) fn new(db: Arc<dyn CellDb>) -> Self {
        Self {
            db,
            counted: Mutex::default(),
        }
    }

    /// Adds the work since the last call to the day of `now`, in seconds since 1970, and removes
    /// the oldest days.
    ///
    /// # Errors
    /// The database cannot be read or written. The next call adds the same work.
    pub(super) async fn note(
        &self,
        now: u64,
        figures: &ObjectFigures,
        devices: BTreeMap<u32, DeviceUse>,
    ) -> Result<(), Error> {
        let (db, after) = (self.db.clone(), Counted::of(figures));
        let before = *self.counted.lock();
        let number = u32::try_from(now / DAY_SECONDS).unwrap_or(u32::MAX);
        blocking(move || {
            db.write(|transaction| {
                let key = number.to_be_bytes();
                let row = transaction.get(DAYS, &key)?;
                let mut day: Day = row.and_then(|row| parsed(&row)).unwrap_or_default();
                day.day = number;
                after.add_since(&before, &mut day);
                day.devices.clone_from(&devices);
                let row = serde_json::to_vec(&day).unwrap_or_default();
                transaction.put(DAYS, key.to_vec(), row);
                let all = (Bound::Unbounded, Bound::Unbounded);
                let rows = transaction.view().scan(DAYS, all, DAYS_MAX + 1)?;
                if let Some((oldest, _)) = rows.first().filter(|_| rows.len() > DAYS_MAX) {
                    transaction.delete(DAYS, oldest.to_vec());
                }
                Ok::<_, Error>(())
            })
        })
        .await?;
        *self.counted.lock() = after;
        Ok(())
    }

    /// The last days, the oldest first.
    ///
    /// # Errors
    /// The database cannot be read.
    pub(crate) async fn list(&self) -> Result<Vec<Day>, Error> {
        let db = self.db.clone();
        blocking(move || {
            db.read(|view, _| {
                let all = (Bound::Unbounded, Bound::Unbounded);
                let rows = view.scan(DAYS, all, DAYS_MAX + 1)?;
                Ok(rows.iter().filter_map(|(_, row)| parsed(row)).collect())
            })
        })
        .await
    }
}

/// A row. A row that does not parse counts as missing.
fn parsed(row: &Bytes) -> Option<Day> {
    serde_json::from_slice(row).ok()
}

#[cfg(test)]
mod tests {
    use cellar_celldb::Embedded;

    use super::*;

    #[tokio::test]
    async fn the_work_between_two_censuses_counts_for_the_day_of_the_second() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs");
        let db: Arc<dyn CellDb> = Arc::new(Embedded::open(&path).unwrap());
        let days = Days::new(db.clone());
        let figures = |copies, bytes| ObjectFigures {
            copies_made: copies,
            copied_bytes: bytes,
            ..ObjectFigures::default()
        };
        let devices = |used| BTreeMap::from([(7, DeviceUse { used, total: 100 })]);
        let noon = 20_000 * DAY_SECONDS + DAY_SECONDS / 2;
        days.note(noon, &figures(3, 300), devices(10))
            .await
            .unwrap();
        let later = figures(5, 800);
        days.note(noon + 600, &later, devices(20)).await.unwrap();
        let tomorrow = figures(6, 900);
        let next = noon + DAY_SECONDS;
        days.note(next, &tomorrow, devices(30)).await.unwrap();
        let all = days.list().await.unwrap();
        let copied: Vec<_> = all.iter().map(|day| (day.day, day.copied.files)).collect();
        assert_eq!(copied, [(20_000, 5), (20_001, 1)]);
        assert_eq!((all[0].copied.bytes, all[1].copied.bytes), (800, 100));
        assert_eq!(all[0].devices[&7].used, 20);
        // The counters of a restarted server begin with 0.
        let again = Days::new(db);
        again
            .note(next, &figures(2, 50), devices(30))
            .await
            .unwrap();
        let all = again.list().await.unwrap();
        assert_eq!((all[1].copied.files, all[1].copied.bytes), (3, 150));
    }

    #[tokio::test]
    async fn old_days_go() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs");
        let days = Days::new(Arc::new(Embedded::open(&path).unwrap()));
        for day in 0..DAYS_MAX as u64 + 2 {
            let none = ObjectFigures::default();
            let noted = days.note(day * DAY_SECONDS, &none, BTreeMap::new());
            noted.await.unwrap();
        }
        let all = days.list().await.unwrap();
        assert_eq!((all.len(), all[0].day), (DAYS_MAX, 2));
    }
}
