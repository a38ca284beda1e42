//! The time at which an overseer restarts its servers: daily, or on one day of the week.
//!
//! Typed and shown as by OpenAFS's `bos`: `never`, `now`, `4:00 am`, `sun 4:00`, optionally with
//! seconds.

use std::fmt;

use cellar_wire::bozo::NetKTime;

/// Bits of `mask` of [`NetKTime`]: the fields that are valid.
const HOUR: i32 = 1;
const MINUTE: i32 = 2;
const SECOND: i32 = 4;
const DAY: i32 = 8;
const NEVER: i32 = 0x10;
const NOW: i32 = 0x20;

const DAYS: [&str; 7] = [
    "sunday",
    "monday",
    "tuesday",
    "wednesday",
    "thursday",
    "friday",
    "saturday",
];

/// A restart time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartTime {
    /// Never.
    Never,
    /// At once.
    Now,
    /// At a time of every day, or of one day of the week.
    At {
        /// 0 is Sunday.
        day: Option<i16>,
        /// 0 to 23.
        hour: i16,
        /// 0 to 59.
        minute: i16,
        /// 0 to 59.
        second: i16,
    },
}

impl RestartTime {
    /// Parses a time in the form of `bos setrestart`.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.to_lowercase();
        let mut words: Vec<&str> = text.split_whitespace().collect();
        match words[..] {
            ["never"] => return Some(Self::Never),
            ["now"] => return Some(Self::Now),
            ["at", ..] => _ = words.remove(0),
            _ => {}
        }
        let day = words.first().and_then(|word| {
            let fits = |day: &&str| word.len() >= 3 && day.starts_with(word);
            DAYS.iter().position(fits)
        });
        if day.is_some() {
            words.remove(0);
        }
        let joined = words.concat();
        let (time, afternoon) = match (joined.strip_suffix("am"), joined.strip_suffix("pm")) {
            (Some(time), _) => (time, Some(false)),
            (_, Some(time)) => (time, Some(true)),
            _ => (joined.as_str(), None),
        };
        let fields: Option<Vec<i16>> = time.split(':').map(|field| field.parse().ok()).collect();
        let (hour, minute, second) = match fields?[..] {
            [hour, minute] => (hour, minute, 0),
            [hour, minute, second] => (hour, minute, second),
            _ => return None,
        };
        let hour = match (afternoon, hour) {
            (None, 0..=23) => hour,
            (Some(false), 12) => 0,
            (Some(true), 12) => 12,
            (Some(false), 0..=11) => hour,
            (Some(true), 0..=11) => hour + 12,
            _ => return None,
        };
        let legal = (0..60).contains(&minute) && (0..60).contains(&second);
        legal.then_some(Self::At {
            day: day.map(|day| day as i16),
            hour,
            minute,
            second,
        })
    }

    /// The wire form.
    pub(super) fn to_wire(self) -> NetKTime {
        match self {
            Self::Never => NetKTime {
                mask: NEVER,
                ..NetKTime::default()
            },
            Self::Now => NetKTime {
                mask: NOW,
                ..NetKTime::default()
            },
            Self::At {
                day,
                hour,
                minute,
                second,
            } => NetKTime {
                mask: HOUR | MINUTE | SECOND | if day.is_some() { DAY } else { 0 },
                hour,
                minute,
                second,
                day: day.unwrap_or(0),
            },
        }
    }

    /// From the wire; fields that are not valid are 0.
    pub(super) fn from_wire(time: &NetKTime) -> Self {
        let field = |flag: i32, value: i16| if time.mask & flag != 0 { value } else { 0 };
        match time.mask {
            mask if mask & NEVER != 0 => Self::Never,
            mask if mask & NOW != 0 => Self::Now,
            mask => Self::At {
                day: (mask & DAY != 0).then_some(time.day),
                hour: field(HOUR, time.hour),
                minute: field(MINUTE, time.minute),
                second: field(SECOND, time.second),
            },
        }
    }
}

impl fmt::Display for RestartTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Never => f.write_str("never"),
            Self::Now => f.write_str("now"),
            Self::At {
                day,
                hour,
                minute,
                second,
            } => {
                f.write_str("at ")?;
                let day = day.and_then(|day| DAYS.get(usize::try_from(day).ok()?));
                if let Some(day) = day {
                    write!(f, "{} ", &day[..3])?;
                }
                let twelve = match hour % 12 {
                    0 => 12,
                    hour => hour,
                };
                write!(f, "{twelve}:{minute:02}")?;
                if second != 0 {
                    write!(f, ":{second:02}")?;
                }
                f.write_str(if hour < 12 { " am" } else { " pm" })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ways, and in the forms that administrators type.
    #[test]
    fn times_are_read_and_shown_as_bos_does() {
        let table = [
            ("never", "never"),
            ("now", "now"),
            ("4:00", "at 4:00 am"),
            ("16:30", "at 4:30 pm"),
            ("sun 4:00 am", "at sun 4:00 am"),
            ("at Saturday 11:05:09 pm", "at sat 11:05:09 pm"),
            ("12:00 am", "at 12:00 am"),
            ("0:15", "at 12:15 am"),
            ("12:15pm", "at 12:15 pm"),
        ];
        for (typed, shown) in table {
            let time = RestartTime::parse(typed).expect(typed);
            assert_eq!(time.to_string(), shown, "{typed}");
            assert_eq!(RestartTime::from_wire(&time.to_wire()), time, "{typed}");
        }
        for wrong in [
            "", "nonsense", "4", "25:00", "4:60", "13:00 pm", "su 4:00", "sun",
        ] {
            assert_eq!(RestartTime::parse(wrong), None, "{wrong}");
        }
    }
}
