//! Times and sizes, as administrators write them on every command line.
//!
//! Times are seconds, or `humantime`'s: `90`, `90s`, `15m`, `2h 30m`, `7d`, `500ms`. Sizes are
//! bytes, or use powers of 1024: `500M`, `2GiB`. The crate `bytesize` reads `500M` as 500,000,000,
//! so it is not suitable here. Numbers in policies and quotas have their own syntax.

use std::ops::RangeInclusive;
use std::time::Duration;

/// The forms of times, for messages.
pub(crate) const FORMS: &str = "write 0, 90s, 15m, 2h or 7d";

/// Parses a time: seconds, or a number with units.
pub(crate) fn time(text: &str) -> Option<Duration> {
    match text.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => humantime::parse_duration(text).ok(),
    }
}

/// Like [`time`], in whole seconds. A fraction of a second returns `None`.
pub(crate) fn seconds(text: &str) -> Option<u32> {
    let time = time(text).filter(|time| time.subsec_nanos() == 0)?;
    time.as_secs().try_into().ok()
}

/// Like [`seconds`], for an option of the command line.
pub(crate) fn time_option(text: &str) -> Result<Duration, String> {
    let seconds = seconds(text).ok_or_else(|| format!("not a time; {FORMS}"))?;
    Ok(Duration::from_secs(seconds.into()))
}

/// The parser of an option whose seconds are bounded.
pub(crate) fn seconds_within(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync + 'static {
    move |text| {
        let seconds = time_option(text)?.as_secs();
        let (least, most) = (range.start(), range.end());
        match range.contains(&seconds) {
            true => Ok(seconds),
            false => Err(format!("{seconds} s is not within {least} to {most} s")),
        }
    }
}

/// Parses a size: bytes, or with K, M, G or T for powers of 1024. `KiB` and `kb` are the same as
/// `K`.
pub(crate) fn size(text: &str) -> Option<u64> {
    let text = text.trim().trim_end_matches(['b', 'B']);
    let text = text.trim_end_matches('i');
    let units = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];
    let last = text.chars().last()?.to_ascii_uppercase();
    let (number, shift) = match units.iter().find(|(unit, _)| *unit == last) {
        Some((_, shift)) => (&text[..text.len() - 1], *shift),
        None => (text, 0),
    };
    let number: u64 = number.trim_end().parse().ok()?;
    number.checked_mul(1 << shift)
}

/// A size in at most five characters, as `ls -h` prints it: rounded up, with one decimal below 10.
pub(crate) fn human(bytes: u64) -> String {
    if bytes < 1024 {
        return bytes.to_string();
    }
    let mut size = bytes as f64;
    let mut units = ['K', 'M', 'G', 'T', 'P', 'E'].into_iter();
    let mut shown = ' ';
    while size.ceil() >= 1024.0
        && let Some(unit) = units.next()
    {
        size /= 1024.0;
        shown = unit;
    }
    let tenths = (size * 10.0).ceil() / 10.0;
    match tenths < 10.0 {
        true => format!("{tenths:.1}{shown}"),
        false => format!("{:.0}{shown}", size.ceil()),
    }
}

/// A time limit of the command line: a time above 0.
pub(crate) fn limit(text: &str) -> Result<Duration, String> {
    let limit = time(text).filter(|time| !time.is_zero());
    limit.ok_or_else(|| format!("not a time above 0; {FORMS}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        for (text, wanted) in [
            ("0", 0),
            ("90", 90),
            ("90s", 90),
            ("15m", 900),
            ("2h 30m", 9_000),
            ("1.5h", 5_400),
            ("7d", 604_800),
        ] {
            assert_eq!(seconds(text), Some(wanted), "{text}");
        }
        for text in ["", "m", "-1", "1x", "99999999d", "1.5", "500ms"] {
            assert_eq!(seconds(text), None, "{text}");
            assert!(time_option(text).is_err(), "{text}");
        }
        assert_eq!(time_option("2h"), Ok(Duration::from_secs(7200)));
        assert_eq!(time("500ms"), Some(Duration::from_millis(500)));
        let bounded = seconds_within(6..=3600);
        assert_eq!(bounded("1m"), Ok(60));
        assert!(bounded("5").is_err() && bounded("2h").is_err());
    }

    #[test]
    fn sizes() {
        for (text, wanted) in [
            ("0", 0),
            ("4096", 4096),
            ("64k", 64 << 10),
            ("500M", 500 << 20),
            ("2GiB", 2 << 30),
            ("3 GB", 3 << 30),
            ("1t", 1 << 40),
        ] {
            assert_eq!(size(text), Some(wanted), "{text}");
        }
        for text in ["", "M", "-1", "1.5G", "1E", "99999999999T"] {
            assert_eq!(size(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_for_people() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10 << 10, "10K"),
            ((10 << 10) + 1, "11K"),
            ((1 << 20) - 1, "1.0M"),
            (5 << 30, "5.0G"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(human(bytes), text);
        }
    }
}
