//! The databases as text: the form of the copy beside them, and of `cellar db export`.
//!
//! `docs/format/databases.md` describes it. Each row has a checksum. The last line has the number
//! of rows and a checksum of the text before it, so a truncated file is recognised.

// Foreign bytes are parsed here: nothing may panic on them.
#![cfg_attr(
    not(test),
    deny(clippy::expect_used, clippy::indexing_slicing, clippy::panic)
)]

use std::fmt::Write as _;
use std::io::{self, BufRead, Write};

use bytes::Bytes;

use crate::DatabaseId;
use crate::verify::Summary;

const TITLE: &str = "cellar databases 1";
/// Bytes of a line at most: the largest row in hexadecimal digits, and its names.
const LINE_BYTES_MAX: u64 = 4 << 20;

/// One row: name of the table, key, value.
pub(crate) type Row = (String, Bytes, Bytes);

/// Writes a database as text.
pub(crate) struct Writer<W: Write> {
    out: W,
    sum: u32,
    rows: u64,
    line: String,
}

impl<W: Write> Writer<W> {
    pub(crate) fn new(out: W, id: DatabaseId, revision: u64) -> io::Result<Self> {
        let mut writer = Self {
            out,
            sum: 0,
            rows: 0,
            line: format!("{TITLE}\nid {id}\nrevision {revision}\n"),
        };
        writer.put()?;
        Ok(writer)
    }

    pub(crate) fn row(&mut self, table: &str, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.line.clear();
        self.line.push_str("row ");
        self.line.push_str(table);
        for bytes in [key, value] {
            self.line.push(' ');
            hex(&mut self.line, bytes);
        }
        let sum = crc32c::crc32c(self.line.as_bytes());
        // A String takes everything.
        let _ = writeln!(self.line, " {sum:08x}");
        self.rows += 1;
        self.put()
    }

    /// Ends the text; answers what it was written to, and the number of rows.
    pub(crate) fn end(mut self) -> io::Result<(W, u64)> {
        self.line = format!("end {} {:08x}\n", self.rows, self.sum);
        self.put()?;
        self.out.flush()?;
        Ok((self.out, self.rows))
    }

    fn put(&mut self) -> io::Result<()> {
        self.sum = crc32c::crc32c_append(self.sum, self.line.as_bytes());
        self.out.write_all(self.line.as_bytes())
    }
}

/// Reads such a text to its end, and shows `each` its rows.
///
/// # Errors
/// A sentence that names the line.
pub(crate) fn read(mut from: impl BufRead, mut each: impl FnMut(Row)) -> Result<Summary, String> {
    let (mut number, mut sum) = (0_u64, 0);
    let mut next = |sum: &mut u32| -> Result<(u64, String, u32), String> {
        number += 1;
        let before = *sum;
        let mut line = String::new();
        let read = io::Read::take(&mut from, LINE_BYTES_MAX).read_line(&mut line);
        let read = read.map_err(|error| format!("line {number}: {error}"))?;
        if read == 0 || line.pop() != Some('\n') {
            return Err(format!("it ends in line {number}, before its last line"));
        }
        *sum = crc32c::crc32c_append(crc32c::crc32c_append(*sum, line.as_bytes()), b"\n");
        Ok((number, line, before))
    };
    let wrong = |number: u64, what: &str| Err(format!("line {number}: {what}"));
    let (number, title, _) = next(&mut sum)?;
    if title != TITLE {
        return wrong(number, "this is no export of cellar's databases");
    }
    let (number, line, _) = next(&mut sum)?;
    let Some(Ok(id)) = line.strip_prefix("id ").map(str::parse) else {
        return wrong(number, "no id");
    };
    let (number, line, _) = next(&mut sum)?;
    let Some(Ok(revision)) = line.strip_prefix("revision ").map(str::parse) else {
        return wrong(number, "no revision");
    };
    let mut summary = Summary {
        format: crate::embedded::FORMAT_VERSION,
        revision,
        id: Some(id),
        tables: Vec::new(),
    };
    loop {
        let (number, line, before) = next(&mut sum)?;
        if let Some(end) = line.strip_prefix("end ") {
            if end != format!("{} {before:08x}", summary.rows()) {
                return wrong(number, "rows are missing, or the text was changed");
            }
            return Ok(summary);
        }
        let Some(row) = row(&line) else {
            return wrong(number, "the row does not match its checksum");
        };
        match summary.tables.last_mut() {
            Some((table, rows)) if *table == row.0 => *rows += 1,
            _ => summary.tables.push((row.0.clone(), 1)),
        }
        each(row);
    }
}

fn row(line: &str) -> Option<Row> {
    let (content, sum) = line.rsplit_once(' ')?;
    if sum.len() != 8 || u32::from_str_radix(sum, 16).ok()? != crc32c::crc32c(content.as_bytes()) {
        return None;
    }
    let mut words = content.strip_prefix("row ")?.split(' ');
    let row = (
        words.next()?.to_owned(),
        unhex(words.next()?)?,
        unhex(words.next()?)?,
    );
    words.next().is_none().then_some(row)
}

fn hex(line: &mut String, bytes: &[u8]) {
    for byte in bytes {
        let _ = write!(line, "{byte:02x}");
    }
}

fn unhex(digits: &str) -> Option<Bytes> {
    if !digits.len().is_multiple_of(2) || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let starts = (0..digits.len()).step_by(2);
    let bytes = starts.map(|at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok());
    bytes.collect::<Option<Vec<u8>>>().map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> Vec<u8> {
        let id = DatabaseId::from_bytes([7; 16]);
        let mut writer = Writer::new(Vec::new(), id, 42).unwrap();
        writer.row("pr.entry", b"\0\x01", b"alice").unwrap();
        writer.row("pr.entry", b"\0\x02", b"").unwrap();
        writer.row("pr.member", b"", b"x").unwrap();
        writer.end().unwrap().0
    }

    fn rows(text: &[u8]) -> Result<(Summary, Vec<Row>), String> {
        let mut rows = Vec::new();
        let summary = read(text, |row| rows.push(row))?;
        Ok((summary, rows))
    }

    #[test]
    fn written_values_are_read_back() {
        let (summary, rows) = rows(&text()).unwrap();
        assert_eq!((summary.revision, summary.rows()), (42, 3));
        let tables = [("pr.entry".to_owned(), 2), ("pr.member".to_owned(), 1)];
        assert_eq!(summary.tables, tables);
        assert_eq!(
            rows[0],
            ("pr.entry".into(), "\0\x01".into(), "alice".into())
        );
        assert_eq!(rows[1].2, "");
    }

    #[test]
    fn every_changed_bit_and_every_cut_is_refused() {
        let good = text();
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(rows(&bytes).is_err(), "bit {bit}");
        }
        for length in 0..good.len() {
            assert!(rows(&good[..length]).is_err(), "{length} bytes");
        }
        let lines: Vec<_> = std::str::from_utf8(&good).unwrap().lines().collect();
        let without = [&lines[..4], &lines[5..]].concat().join("\n") + "\n";
        assert!(rows(without.as_bytes()).is_err(), "a row is missing");
    }
}
