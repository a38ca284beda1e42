//! Dates as the AFS commands print them.

use cellar_wire::ids::AfsTime;
use chrono::{Local, TimeZone};

/// `Www Mmm dd hh:mm:ss yyyy` in the local time zone: the 24 characters of C's `ctime`.
pub fn ctime(time: AfsTime) -> String {
    match Local.timestamp_opt(i64::from(time.0), 0).earliest() {
        Some(date) => date.format("%a %b %e %H:%M:%S %Y").to_string(),
        None => format!("{} seconds after 1970", time.0),
    }
}

/// The same, or `Never` for zero.
pub fn ctime_or_never(time: AfsTime) -> String {
    if time.0 == 0 {
        "Never".to_owned()
    } else {
        ctime(time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_the_shape_of_ctime() {
        // The zone of the machine is not ours to choose; noon of a mid-month day is the same day
        // from UTC-11 to UTC+11.
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
