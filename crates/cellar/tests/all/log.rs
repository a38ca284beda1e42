//! The log of a server: one line for each change of state that an administrator must know.

use cellar_until::until_blocking;

use crate::common::Cell;
use crate::common::devices::{Servers, ready};

#[test]
fn a_device_that_fails_and_returns_has_one_line_each() {
    let cell = Cell::new();
    let mut servers = Servers::start(&cell, 1);
    // The file server must have seen the device before it can miss it.
    ready(&cell, 1);
    let lines = |text: &str| cell.log().matches(text).count();
    servers.kill(0);
    until_blocking("the loss is logged", || lines("a device is down") == 1);
    servers.begin(0);
    until_blocking("the return is logged", || {
        lines("a device is up again") == 1
    });
    assert_eq!(
        (lines("a device is down"), lines("a device is up again")),
        (1, 1)
    );
}

#[test]
fn lines_about_a_damaged_journal_name_the_partition() {
    let mut cell = Cell::new();
    assert_eq!(cell.end("-KILL"), None);
    let journals =
        ["journal.0", "journal.1"].map(|name| cell.directory().join("vicepa").join(name));
    let last = |bytes: &Vec<u8>| bytes.iter().rposition(|byte| *byte != 0);
    let mut read = journals.iter().filter_map(|path| {
        let bytes = std::fs::read(path).ok()?;
        Some((path, last(&bytes)?, bytes))
    });
    let (journal, last, mut bytes) = read.next().expect("a journal with groups");
    // The first groups are kept, and one in the middle is damaged. A group begins at a block.
    bytes[(last / 2).next_multiple_of(4096) + 64] ^= 0xff;
    std::fs::write(journal, bytes).expect("damage");
    cell.start_with(&["--drop-damaged-journal", "vicepa"]);
    let log = cell.log();
    let line = log.lines().find(|line| line.contains("in the journal"));
    let line = line.unwrap_or_else(|| panic!("no line about the journal:\n{log}"));
    assert!(line.contains("vicepa"), "{line}");
}
