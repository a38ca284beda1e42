//! The work of hierarchical storage by day, and a forecast of the use of devices.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cellar_wire::afsosd::{DayView, ListDays};
use serde::Serialize;

use super::{Jobs, Tally};
use crate::error::Result;
use crate::osd::Device;

/// Days that a forecast looks back.
const LOOK_BACK: u32 = 14;
/// Days with figures that a forecast needs.
const DAYS_NEEDED: usize = 3;

/// The work of one day, of one server or of several.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DayWork {
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
}

impl DayWork {
    fn add(&mut self, view: &DayView) {
        let add = |to: &mut Tally, more: Tally| {
            to.files += more.files;
            to.bytes += more.bytes;
        };
        add(&mut self.copied, view.copied.into());
        add(&mut self.wiped, view.wiped.into());
        add(&mut self.recalled, view.recalled.into());
        add(&mut self.verified, view.verified.into());
        self.failed += view.failed;
    }
}

/// The use of a device, and its forecast.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Forecast {
    /// Its number.
    pub osd: u32,
    /// Its name; empty if the cell has no such device any more.
    pub name: String,
    /// Whether it is an archive.
    pub archive: bool,
    /// Bytes in use.
    pub used: u64,
    /// All bytes.
    pub total: u64,
    /// Bytes by which the use grows in a day, by the last two weeks; negative: it falls. `None`:
    /// there are figures of less than three days.
    pub growth: Option<f64>,
    /// Days until it is full, at this rate. `None`: it does not grow, or the rate is not known.
    pub full_in_days: Option<f64>,
}

/// The work of all asked servers by day, and the devices.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The days, the oldest first.
    pub days: Vec<DayWork>,
    /// The devices, by number.
    pub devices: Vec<Forecast>,
}

/// The use of a device on some days.
type Uses = BTreeMap<u32, (u64, u64)>;

/// Collects the answers of servers.
#[derive(Debug, Default)]
pub struct Reports {
    days: BTreeMap<u32, DayWork>,
    devices: BTreeMap<u32, Uses>,
}

impl Reports {
    fn add(&mut self, views: &[DayView]) {
        for view in views {
            let day = self.days.entry(view.day).or_default();
            day.day = view.day;
            day.add(view);
            for device in view.devices.iter() {
                let uses = self.devices.entry(device.osd).or_default();
                // All servers see the same device; the largest figure is the last one of the day.
                let known = uses.entry(view.day).or_default();
                *known = (*known).max((device.used, device.total));
            }
        }
    }

    /// The sums. `devices` have the names. `last` is the number of days that are listed.
    #[must_use]
    pub fn report(self, devices: &[Device], last: usize) -> Report {
        let begin = self.days.len().saturating_sub(last);
        let of_device = |(osd, uses): (u32, Uses)| {
            let (_, (used, total)) = uses.last_key_value()?;
            let (used, total) = (*used, *total);
            let device = devices.iter().find(|device| device.id == osd);
            let growth = growth(&uses);
            let room = total.saturating_sub(used) as f64;
            Some(Forecast {
                osd,
                name: device.map_or_else(String::new, |device| device.name.clone()),
                archive: device.is_some_and(|device| device.archival),
                used,
                total,
                growth,
                full_in_days: growth.filter(|rate| *rate > 0.0).map(|rate| room / rate),
            })
        };
        Report {
            days: self.days.into_values().skip(begin).collect(),
            devices: self.devices.into_iter().filter_map(of_device).collect(),
        }
    }
}

/// The slope of the line through the last days, by least squares, in bytes a day.
fn growth(uses: &Uses) -> Option<f64> {
    let (last, _) = uses.last_key_value()?;
    let recent = uses.range(last.saturating_sub(LOOK_BACK - 1)..);
    let points: Vec<(f64, f64)> = recent
        .map(|(day, (used, _))| (f64::from(*day), *used as f64))
        .collect();
    if points.len() < DAYS_NEEDED {
        return None;
    }
    let count = points.len() as f64;
    let mean_day = points.iter().map(|(day, _)| day).sum::<f64>() / count;
    let mean_used = points.iter().map(|(_, used)| used).sum::<f64>() / count;
    let along: f64 = points
        .iter()
        .map(|(day, used)| (day - mean_day) * (used - mean_used))
        .sum();
    let across: f64 = points.iter().map(|(day, _)| (day - mean_day).powi(2)).sum();
    Some(along / across)
}

impl Jobs<'_> {
    /// Adds the statistics of a file server to `reports`.
    ///
    /// # Errors
    /// As [`Jobs::list`].
    pub async fn report_of(&self, server: IpAddr, reports: &mut Reports) -> Result<()> {
        let days = self.call(server, &ListDays {}).await?.days;
        reports.add(&days);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use cellar_wire::List;
    use cellar_wire::afsosd::{DeviceUse, FileTally};

    use super::*;

    fn day(day: u32, files: u64, used: u64) -> DayView {
        let device = DeviceUse {
            osd: 7,
            used,
            total: 1000,
        };
        DayView {
            day,
            copied: FileTally { files, bytes: 10 },
            devices: List::from_iter_cut([device]),
            ..DayView::default()
        }
    }

    #[test]
    fn servers_are_added_by_day_and_a_growing_device_is_full_some_day() {
        let mut reports = Reports::default();
        reports.add(&[day(10, 1, 400), day(11, 2, 450), day(12, 3, 500)]);
        reports.add(&[day(11, 10, 440), day(13, 5, 550)]);
        let report = reports.report(&[], 3);
        let files: Vec<_> = report
            .days
            .iter()
            .map(|day| (day.day, day.copied.files))
            .collect();
        assert_eq!(files, [(11, 12), (12, 3), (13, 5)]);
        let device = &report.devices[0];
        assert_eq!((device.osd, device.used, device.total), (7, 550, 1000));
        assert_eq!(device.growth, Some(50.0));
        assert_eq!(device.full_in_days, Some(9.0));
    }

    #[test]
    fn two_days_or_a_falling_use_give_no_forecast() {
        let forecast = |views: &[DayView]| {
            let mut reports = Reports::default();
            reports.add(views);
            reports.report(&[], 9).devices[0].clone()
        };
        assert_eq!(forecast(&[day(1, 0, 5), day(2, 0, 9)]).growth, None);
        let falls = forecast(&[day(1, 0, 9), day(2, 0, 8), day(3, 0, 7)]);
        assert_eq!((falls.growth, falls.full_in_days), (Some(-1.0), None));
        // Days long ago do not count.
        let long_ago = [
            day(1, 0, 900),
            day(50, 0, 10),
            day(51, 0, 20),
            day(52, 0, 30),
        ];
        assert_eq!(forecast(&long_ago).growth, Some(10.0));
    }
}
