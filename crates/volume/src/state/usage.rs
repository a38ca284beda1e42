//! Accesses of a volume by day and by week, as `vos examine` shows them.
//!
//! An access is counted in memory by one addition, without waiting for a disk. The counts enter the
//! volume's record when the record is read or changed. They enter the table with the next change of
//! the record, in the background some minutes later, at a flush, and at the end. A crash loses the
//! accesses since then. They are only statistics, and a journal entry for each read would cost more
//! than the read.
//!
//! Days are as in OpenAFS: a day begins at local midnight. The first access of a new day moves the
//! old counts to the days of the week, newest first. It also clears the tables of reads and writes
//! ([`crate::state::traffic`]), which are for one day only. On days without an access nothing is
//! moved. So a reader of the counts moves them too, in its own copy.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use cellar_wire::ids::AfsTime;
use chrono::{Local, Offset, TimeZone};

use crate::clock;
use crate::engine::batch::Batch;
use crate::engine::key::Key;
use crate::error::Result;
use crate::state::core::Core;
use crate::state::traffic::FreshTraffic;
use crate::types::VolumeInfo;
use crate::volume::Volume;

/// Seconds of a day.
const DAY: u32 = 86_400;

/// Accesses that are not in the volume's record yet.
#[derive(Default)]
pub(crate) struct Usage {
    fresh: AtomicU32,
    /// Time of the last access.
    last: AtomicU32,
    /// The time at which the record's day ends; 0 if not determined yet.
    day_ends: AtomicU32,
    /// The record in memory has counts that the table's record does not have.
    unsaved: AtomicBool,
    /// Counts of reads and writes among these accesses.
    pub(crate) traffic: FreshTraffic,
}

impl Usage {
    /// Returns whether dropping the volume now would lose counts.
    pub(crate) fn is_unsaved(&self) -> bool {
        self.fresh.load(Ordering::Relaxed) > 0
            || self.traffic.is_some()
            || self.unsaved.load(Ordering::Relaxed)
    }

    /// Moves the counts into the volume's record, which the caller has locked for writing.
    pub(crate) fn fold(&self, info: &mut VolumeInfo, now: AfsTime) {
        let traffic = self.traffic.fold(&mut info.traffic);
        let fresh = self.fresh.swap(0, Ordering::Relaxed);
        let moved = enter(info, fresh, self.last.load(Ordering::Relaxed), now);
        if fresh > 0 || traffic || moved {
            self.unsaved.store(true, Ordering::Relaxed);
        }
        let ends = info.day_use_date.0.saturating_add(DAY + 1);
        self.day_ends.store(ends, Ordering::Relaxed);
    }

    /// Enters the counts in a copy of the record, which the caller has locked for reading.
    pub(crate) fn show_in(&self, info: &mut VolumeInfo, now: AfsTime) {
        self.traffic.show_in(&mut info.traffic);
        let fresh = self.fresh.load(Ordering::Relaxed);
        enter(info, fresh, self.last.load(Ordering::Relaxed), now);
    }
}

/// If the day of a record that has no open volume is over, begins a new one.
pub(crate) fn begin_day(info: &mut VolumeInfo, now: AfsTime) {
    enter(info, 0, 0, now);
}

/// Adds accesses to the present day, and begins a new day if the present one is over. Returns
/// whether it was.
fn enter(info: &mut VolumeInfo, fresh: u32, last: u32, now: AfsTime) -> bool {
    if fresh > 0 {
        info.day_use = info.day_use.saturating_add(fresh);
        info.accessed = info.accessed.max(AfsTime(last));
    }
    let Some(age) = now.0.checked_sub(info.day_use_date.0) else {
        return false;
    };
    if age <= DAY {
        return false;
    }
    let days = (age / DAY) as usize;
    let before = info.week_use;
    for (index, day) in info.week_use.iter_mut().enumerate() {
        *day = match (index + 1).cmp(&days) {
            std::cmp::Ordering::Less => 0,
            std::cmp::Ordering::Equal => info.day_use,
            std::cmp::Ordering::Greater => before[index - days],
        };
    }
    info.day_use = 0;
    info.traffic = None;
    info.day_use_date = midnight(now);
    true
}

/// The local midnight before `now`, by the present offset from UTC.
fn midnight(now: AfsTime) -> AfsTime {
    let offset = match Local.timestamp_opt(i64::from(now.0), 0).single() {
        Some(time) => i64::from(time.offset().fix().local_minus_utc()),
        None => 0,
    };
    let of_day = (i64::from(now.0) + offset).rem_euclid(i64::from(DAY));
    AfsTime(now.0.saturating_sub(of_day as u32))
}

impl Volume {
    /// Counts one access of the volume: in the terms of the file server, a vnode reference. Costs
    /// an addition and a reading of the clock; never waits. [`Volume::info`] shows the sums of a
    /// day and a week. A crash may lose the counts of some minutes.
    pub fn count_access(&self) {
        let now = clock::time();
        if now.0 >= self.usage.day_ends.load(Ordering::Relaxed) {
            // The counts belong to the day that is over. If the record is locked just now, the next
            // access does this.
            if let Some(mut record) = self.record().try_write() {
                self.usage.fold(&mut record.info, now);
            }
        }
        self.usage.last.store(now.0, Ordering::Relaxed);
        self.usage.fresh.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes the counts to the journal, if there are new ones.
    fn save_usage(&self) -> Result<()> {
        if !self.usage.is_unsaved() {
            return Ok(());
        }
        let _room = self.core.engine.admit(0)?;
        let _state = self.group.state.read();
        if self.is_gone() {
            return Ok(());
        }
        let mut record = self.record().write();
        self.usage.fold(&mut record.info, clock::time());
        let mut batch = Batch::new();
        batch.put(Key::volume(self.id().0), record.encode());
        self.core.engine.commit(batch)?;
        self.usage.unsaved.store(false, Ordering::Relaxed);
        Ok(())
    }
}

impl Core {
    /// Writes the access counts of all open volumes to the journal.
    pub(crate) fn save_usage(&self) -> Result<()> {
        self.attached_volumes()
            .iter()
            .try_for_each(|volume| volume.save_usage())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Noon of a day in 2026, in the time zone of the test machine.
    fn noon() -> AfsTime {
        AfsTime(midnight(AfsTime(1_790_000_000)).0 + DAY / 2)
    }

    fn after(days: u32) -> AfsTime {
        AfsTime(noon().0 + days * DAY)
    }

    fn info() -> VolumeInfo {
        crate::partition::new_info(&crate::types::VolumeSpec::new(
            cellar_wire::ids::VolumeId(1),
            "v",
            cellar_wire::ids::ViceId(0),
            noon(),
        ))
    }

    #[test]
    fn days_move_through_the_week_and_out_of_it() {
        let mut info = info();
        assert!(
            enter(&mut info, 3, noon().0, noon()),
            "the first day begins"
        );
        assert_eq!((info.day_use, info.day_use_date), (0, midnight(noon())));
        info.week_use = [0; 7];
        info.traffic = Some(Box::default());
        assert!(!enter(&mut info, 5, noon().0, noon()));
        assert_eq!((info.day_use, info.accessed), (5, noon()));
        assert!(enter(&mut info, 2, noon().0, after(1)));
        assert_eq!((info.day_use, info.week_use), (0, [7, 0, 0, 0, 0, 0, 0]));
        assert_eq!(info.traffic, None, "tables are of a day");
        enter(&mut info, 4, after(1).0, after(1));
        assert!(enter(&mut info, 0, 0, after(3)));
        assert_eq!(info.week_use, [0, 4, 7, 0, 0, 0, 0], "a day without any");
        assert!(enter(&mut info, 0, 0, after(8)));
        assert_eq!(info.week_use, [0, 0, 0, 0, 0, 0, 4]);
        assert!(enter(&mut info, 1, after(8).0, after(100)));
        assert_eq!(info.week_use, [0; 7]);
        assert_eq!(info.day_use_date, midnight(after(100)));
    }

    #[test]
    fn a_clock_that_went_back_moves_nothing() {
        let mut info = info();
        info.day_use_date = midnight(after(3));
        assert!(!enter(&mut info, 2, noon().0, noon()));
        assert_eq!((info.day_use, info.week_use), (2, [0; 7]));
    }

    #[test]
    fn a_day_begins_at_midnight() {
        let begins = midnight(noon());
        assert_eq!(noon().0 - begins.0, DAY / 2);
        assert_eq!(midnight(begins), begins);
        assert_eq!(midnight(AfsTime(begins.0 + DAY - 1)), begins);
    }
}
