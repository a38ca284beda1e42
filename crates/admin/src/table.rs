//! Tables for terminals: each column is as wide as its widest cell, with two blanks between
//! columns.

use std::fmt;

/// The alignment of a cell in its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// For words.
    Left,
    /// For numbers.
    Right,
}

/// A table: a head and rows.
#[derive(Clone, Debug)]
pub struct Table<const N: usize> {
    sides: [Side; N],
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    /// A table without rows.
    pub fn new(head: [(&str, Side); N]) -> Self {
        Self {
            sides: head.map(|(_, side)| side),
            rows: vec![head.map(|(text, _)| text.to_owned())],
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells);
    }

    /// Whether the table has no rows below its head.
    pub fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }
}

impl<const N: usize> fmt::Display for Table<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut widths = [0; N];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for row in &self.rows {
            let mut line = String::new();
            for ((cell, width), side) in row.iter().zip(widths).zip(self.sides) {
                if !line.is_empty() {
                    line.push_str("  ");
                }
                line.push_str(&match side {
                    Side::Left => format!("{cell:<width$}"),
                    Side::Right => format!("{cell:>width$}"),
                });
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// A size for a table: about three digits and the unit.
pub fn short_size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    // Rounding may fill a unit: 1023.97 KiB is 1.0 MiB.
    let mut size = bytes as f64 / 1024.0;
    let mut unit = 0;
    while size >= 999.95 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    format!("{size:.1} {}", UNITS[unit])
}

/// A time in seconds, in its two largest units.
pub fn lasting(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min"),
        (0, hours, minutes) => format!("{hours} h {} min", minutes % 60),
        (days, hours, _) => format!("{days} d {} h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_must_be() {
        let mut table = Table::new([("Id", Side::Right), ("Name", Side::Left), ("", Side::Left)]);
        assert!(table.is_empty());
        table.row(["1".into(), "größe".into(), String::new()]);
        table.row(["100".into(), "a".into(), "x".into()]);
        assert_eq!(table.to_string(), " Id  Name\n  1  größe\n100  a      x\n");
    }

    #[test]
    fn sizes_are_short() {
        let table = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (64 << 30, "64.0 GiB"),
            (u64::MAX, "16.0 EiB"),
        ];
        for (bytes, text) in table {
            assert_eq!(short_size(bytes), text);
        }
    }

    #[test]
    fn times_have_two_units() {
        for (seconds, text) in [
            (0, "0 s"),
            (59, "59 s"),
            (61, "1 min"),
            (3_700, "1 h 1 min"),
            (90_000, "1 d 1 h"),
        ] {
            assert_eq!(lasting(seconds), text);
        }
    }
}
