//! Dates as the AFS commands print them.

use cellar_wire::ids::AfsTime;
use chrono::{Datelike, Local, NaiveDate, NaiveTime, TimeZone};

/// `Www Mmm dd hh:mm:ss yyyy` in the local time zone: the 24 characters of C's `ctime`.
pub fn ctime(time: AfsTime) -> String {
    match Local.timestamp_opt(i64::from(time.0), 0).earliest() {
        Some(date) => date.format("%a %b %e %H:%M:%S %Y").to_string(),
        None => format!("{} seconds after 1970", time.0),
    }
}

/// [`ctime`], or `Never` for zero.
pub fn ctime_or_never(time: AfsTime) -> String {
    if time.0 == 0 {
        "Never".to_owned()
    } else {
        ctime(time)
    }
}

/// `YYYY-MM-DD hh:mm` in the local time zone, for tables. `seconds` count from 1970.
pub fn to_the_minute(seconds: u64) -> String {
    let date = i64::try_from(seconds).ok();
    let date = date.and_then(|seconds| Local.timestamp_opt(seconds, 0).earliest());
    match date {
        Some(date) => date.format("%Y-%m-%d %H:%M").to_string(),
        None => format!("{seconds} s"),
    }
}

/// Parses a date in the local time zone: `MM/DD/YYYY` as OpenAFS's commands take it, or
/// `YYYY-MM-DD`. `HH:MM` or `HH:MM:SS` may follow. `now` is the current time. A date outside the
/// range of AFS becomes the nearest one in it, see [`AfsTime::of_seconds`].
pub fn parse(text: &str) -> Option<AfsTime> {
    let text = text.trim();
    if text == "now" {
        return Some(AfsTime::of_seconds(Local::now().timestamp()));
    }
    let (day, time) = text.split_once([' ', 'T']).unwrap_or((text, "00:00"));
    let day = ["%m/%d/%Y", "%Y-%m-%d"]
        .iter()
        .find_map(|form| NaiveDate::parse_from_str(day, form).ok())
        // A year of two digits is a mistake.
        .filter(|day| (1000..10_000).contains(&day.year()))?;
    let time = ["%H:%M:%S", "%H:%M"]
        .iter()
        .find_map(|form| NaiveTime::parse_from_str(time.trim(), form).ok())?;
    let date = Local.from_local_datetime(&day.and_time(time)).earliest()?;
    Some(AfsTime::of_seconds(date.timestamp()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_as_administrators_write_them() {
        let noon = parse("11/21/2026 12:00").expect("a date");
        assert_eq!(parse("2026-11-21 12:00:00"), Some(noon));
        assert_eq!(parse("2026-11-21T12:00"), Some(noon));
        assert_eq!(ctime(noon), "Sat Nov 21 12:00:00 2026");
        assert_eq!(
            ctime(parse("11/21/2026").expect("a day")),
            "Sat Nov 21 00:00:00 2026"
        );
        assert_eq!(parse("12/30/1969"), Some(AfsTime(0)));
        assert_eq!(parse("2106-02-09"), Some(AfsTime(u32::MAX)));
        assert_eq!(parse("01/01/9999"), Some(AfsTime(u32::MAX)));
        for wrong in [
            "",
            "yesterday",
            "13/13/2026",
            "11/21/26",
            "2026-11-21 25:00",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn has_the_shape_of_ctime() {
        // The test cannot choose the time zone. Noon falls on the same day from UTC-11 to UTC+11.
        let text = ctime(AfsTime(1_795_262_400));
        assert_eq!(text.len(), 24, "{text}");
        assert!(
            text.starts_with("Sat Nov 21 ") && text.ends_with(" 2026"),
            "{text}"
        );
        assert_eq!(ctime_or_never(AfsTime(0)), "Never");
        // One-digit days are padded with a blank.
        assert_eq!(&ctime(AfsTime(1_793_707_200 - 86_400))[8..9], " ");
    }
}
