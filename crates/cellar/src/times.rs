//! Lengths of time, as administrators write them.

use std::time::Duration;

/// How they are written, for those who did not.
pub(crate) const FORMS: &str = "write 0, 90s, 15m, 2h or 7d";

/// Seconds, or with a unit: `90`, `15m`, `2h`, `7d`.
pub(crate) fn seconds(text: &str) -> Option<u32> {
    let units = [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400)];
    let unit = units.iter().find(|(unit, _)| text.ends_with(*unit));
    let digits = unit.map_or(text, |_| &text[..text.len() - 1]);
    let number: u32 = digits.parse().ok()?;
    number.checked_mul(unit.map_or(1, |(_, seconds)| *seconds))
}

/// The same, of an option of the command line.
pub(crate) fn option(text: &str) -> Result<Duration, String> {
    let seconds = seconds(text).ok_or_else(|| format!("not a time; {FORMS}"))?;
    Ok(Duration::from_secs(seconds.into()))
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
            ("7d", 604_800),
        ] {
            assert_eq!(seconds(text), Some(wanted), "{text}");
        }
        for text in ["", "m", "-1", "1w", "99999999d", "1.5h"] {
            assert_eq!(seconds(text), None, "{text}");
            assert!(option(text).is_err(), "{text}");
        }
        assert_eq!(option("2h"), Ok(Duration::from_secs(7200)));
    }
}
