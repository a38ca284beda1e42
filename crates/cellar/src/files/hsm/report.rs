//! `cellar hsm report`: the work by day, and when devices will be full.

use cellar_admin::jobs::{Forecast, Jobs, Report, Reports, Tally};
use cellar_admin::osd::Osds;
use cellar_admin::table::{Side, Table, short_size};

use crate::failure::{Failures, Outcome};
use crate::jobs::servers;
use crate::output::{out, outln};
use crate::session::{As, CellOptions, Session};
use crate::suite::print_json;

/// Seconds of a day.
const DAY: u64 = 86_400;
/// Forecasts beyond this are not shown in days: ten years.
const LONG: f64 = 3650.0;

#[derive(Debug, clap::Args)]
pub(crate) struct ReportOptions {
    /// The file server, by name or address. Default: all of the cell.
    #[arg(id = "fileserver", value_name = "SERVER")]
    server: Option<String>,
    /// The number of days to list.
    #[arg(long, value_name = "N", default_value_t = 14)]
    days: usize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cell: CellOptions,
}

pub(super) async fn report(options: &ReportOptions) -> Outcome {
    let session = options.cell.session(None, As::AdministratorIfPossible);
    let session = session.await?;
    let outcome = report_in(&session, options).await;
    session.end(outcome).await
}

async fn report_in(session: &Session, options: &ReportOptions) -> Outcome {
    let jobs = Jobs::new(&session.client, &session.cell);
    let devices = Osds::new(&session.client, &session.cell).list().await?;
    let (mut failures, mut reports) = (Failures::of("cellar hsm report"), Reports::default());
    for server in servers(&jobs, options.server.as_deref()).await? {
        failures.note(jobs.report_of(server, &mut reports).await);
    }
    let report = reports.report(&devices, options.days);
    match options.json {
        true => print_json(&report)?,
        false => print(&report),
    }
    failures.end()
}

fn print(report: &Report) {
    if report.days.is_empty() {
        outln!("No statistics yet: file servers write them with each census ('cellar hsm status')");
        return;
    }
    let right = |text| (text, Side::Right);
    let mut table = Table::new([
        ("Day (UTC)", Side::Left),
        right("Copied"),
        right("Wiped"),
        right("Recalled"),
        right("Verified"),
        right("Failed"),
    ]);
    let amount = |tally: Tally| match tally.files {
        0 => "-".to_owned(),
        files => format!("{files}, {}", short_size(tally.bytes)),
    };
    for day in &report.days {
        let date = cellar_admin::date::to_the_minute(u64::from(day.day) * DAY + DAY / 2);
        table.row([
            date.chars().take(10).collect(),
            amount(day.copied),
            amount(day.wiped),
            amount(day.recalled),
            amount(day.verified),
            day.failed.to_string(),
        ]);
    }
    out!("{table}");
    if report.devices.is_empty() {
        return;
    }
    outln!("");
    let mut table = Table::new([
        ("Device", Side::Left),
        right("Used"),
        right("Size"),
        right("%"),
        right("A day"),
        ("Forecast", Side::Left),
    ]);
    for device in &report.devices {
        let name = match device.name.as_str() {
            "" => device.osd.to_string(),
            name => name.to_owned(),
        };
        let percent = device.used as f64 * 100.0 / device.total.max(1) as f64;
        table.row([
            name,
            short_size(device.used),
            short_size(device.total),
            format!("{percent:.0}"),
            device.growth.map_or_else(|| "-".to_owned(), signed_size),
            forecast(device),
        ]);
    }
    out!("{table}");
}

fn signed_size(bytes: f64) -> String {
    let sign = if bytes < 0.0 { "-" } else { "+" };
    format!("{sign}{}", short_size(bytes.abs() as u64))
}

fn forecast(device: &Forecast) -> String {
    match (device.growth, device.full_in_days) {
        (None, _) => "needs figures of three days".to_owned(),
        (Some(_), Some(days)) if days < 1.0 => "full within a day".to_owned(),
        (Some(_), Some(days)) if days < LONG => format!("full in {days:.0} days"),
        (Some(_), _) => "does not fill up".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forecast_is_a_sentence() {
        let device = |growth, full_in_days| Forecast {
            osd: 7,
            name: String::new(),
            archive: false,
            used: 1,
            total: 2,
            growth,
            full_in_days,
        };
        let said = |growth, days| forecast(&device(growth, days));
        assert_eq!(said(None, None), "needs figures of three days");
        assert_eq!(said(Some(9.0), Some(12.4)), "full in 12 days");
        assert_eq!(said(Some(9.0), Some(0.2)), "full within a day");
        assert_eq!(said(Some(9.0), Some(1e9)), "does not fill up");
        assert_eq!(said(Some(-9.0), None), "does not fill up");
    }
}
