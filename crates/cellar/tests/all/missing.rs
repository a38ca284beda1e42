//! A cell with a missing piece is refused with a sentence, and an option declares that the piece is
//! new. The cell is not opened as an empty one.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{Answer, Cell};

const TOP: &str = "/afs/test.cell/scratch";

/// Copies a directory with its contents.
fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp")
        .args(["-a", "--sparse=always"])
        .args([from, to])
        .status();
    assert!(copied.expect("cp").success());
}

/// The message of a start that must be refused.
fn refused(cell: &Cell, options: &[&str]) -> String {
    // A start that is not refused is ended by `timeout`, with status 124.
    let mut command = Command::new("timeout");
    command
        .args([
            "-s",
            "INT",
            "60",
            env!("CARGO_BIN_EXE_cellar"),
            "up",
            "--dir",
        ])
        .arg(cell.directory())
        .args(options)
        .stdin(Stdio::null());
    let answer = Answer::of(command);
    assert_eq!(answer.status, 1, "{}{}", answer.out, answer.err);
    assert!(!answer.err.contains("panicked"), "{}", answer.err);
    answer.err
}

/// A stopped cell with a file on each of two partitions, and a copy of its directory.
fn used() -> (Cell, std::path::PathBuf) {
    let mut cell = Cell::with_partitions(&["vicepa", "vicepb"]);
    let file = cell.local("file");
    fs::write(&file, "precious").expect("file");
    let file = file.to_str().expect("path");
    cell.ok("vos create 127.0.0.1 b onb");
    cell.ok(&format!("fs mkmount {TOP}/onb onb"));
    cell.ok(&format!("cp --admin {file} {TOP}/file"));
    cell.ok(&format!("cp --admin {file} {TOP}/onb/file"));
    cell.ok("pts createuser alice");
    cell.end("-KILL");
    let good = cell.local("good");
    copy(&cell.directory(), &good);
    (cell, good)
}

fn back(cell: &Cell, good: &Path) {
    fs::remove_dir_all(cell.directory()).expect("removed");
    copy(good, &cell.directory());
}

fn whole(cell: &mut Cell) {
    cell.start();
    for name in ["file", "onb/file"] {
        assert_eq!(cell.ok(&format!("cat --admin {TOP}/{name}")), "precious");
    }
    assert!(cell.ok("pts examine alice").contains("id: 1"));
    cell.end("-KILL");
}

#[test]
fn each_missing_piece_is_a_refusal_that_says_what_to_do() {
    let (mut cell, good) = used();
    type Breaks = fn(&Path);
    let cases: [(&str, &str, Breaks); 11] = [
        ("vicepa is not mounted", "--new-partition a", |at| {
            fs::remove_dir_all(at.join("vicepa")).expect("removed");
            fs::create_dir(at.join("vicepa")).expect("made");
        }),
        ("vicepa is gone", "is its disk mounted", |at| {
            fs::remove_dir_all(at.join("vicepa")).expect("removed");
        }),
        ("vicepb is gone", "--new-partition b", |at| {
            fs::remove_dir_all(at.join("vicepb")).expect("removed");
        }),
        ("the two are exchanged", "each other's place", |at| {
            fs::rename(at.join("vicepa"), at.join("x")).expect("renamed");
            fs::rename(at.join("vicepb"), at.join("vicepa")).expect("renamed");
            fs::rename(at.join("x"), at.join("vicepb")).expect("renamed");
        }),
        ("base is gone", "'base' is missing", |at| {
            fs::remove_file(at.join("vicepa/base")).expect("removed");
        }),
        ("a journal is gone", "journal.1 is missing", |at| {
            fs::remove_file(at.join("vicepb/journal.1")).expect("removed");
        }),
        ("the id is gone", "store-id is missing", |at| {
            fs::remove_file(at.join("vicepb/store-id")).expect("removed");
        }),
        ("the databases are gone", "--new-database", |at| {
            fs::remove_file(at.join("db/cell.redb")).expect("removed");
        }),
        (
            "the directory of databases is gone",
            "--new-database",
            |at| {
                fs::remove_dir_all(at.join("db")).expect("removed");
            },
        ),
        ("the keys are gone", "--new-server-etc", |at| {
            fs::remove_file(at.join("server-etc/KeyFileExt")).expect("removed");
        }),
        ("cell.json is gone", "client-etc/cell.json", |at| {
            fs::remove_file(at.join("cell.json")).expect("removed");
        }),
    ];
    for (what, says, breaks) in cases {
        back(&cell, &good);
        breaks(&cell.directory());
        let said = refused(&cell, &[]);
        assert!(said.contains(says), "{what}: {said}");
        // The start made nothing in its place: it is refused again, and works after the piece is
        // put back.
        assert!(refused(&cell, &[]).contains(says), "{what}, again");
    }
    // The copy of cell.json is enough, as the message says.
    let at = cell.directory();
    fs::copy(at.join("client-etc/cell.json"), at.join("cell.json")).expect("copied");
    whole(&mut cell);
}

#[test]
fn a_switch_says_that_a_piece_is_new() {
    let (mut cell, good) = used();
    let at = cell.directory();
    let cat = format!("cat --admin {TOP}/file");

    // A lost partition is forgotten; the other volumes stay available.
    fs::remove_dir_all(at.join("vicepb")).expect("removed");
    cell.start_with(&["--new-partition", "b"]);
    assert_eq!(cell.ok(&cat), "precious");
    cell.end("-INT");
    cell.start();
    cell.end("-INT");
    // Later a new disk in its place.
    fs::create_dir(at.join("vicepb")).expect("made");
    cell.start();
    cell.ok("vos create 127.0.0.1 b other");
    cell.end("-INT");
    fs::remove_dir_all(at.join("vicepb")).expect("removed");
    refused(&cell, &[]);

    // Lost databases.
    back(&cell, &good);
    fs::remove_dir_all(at.join("db")).expect("removed");
    cell.start_with(&["--new-database"]);
    assert!(cell.fails("pts examine alice").contains("alice"));
    cell.end("-INT");
    cell.start();
    cell.end("-INT");
    // Databases of another time and id are not accepted.
    copy(&good.join("db"), &at.join("older"));
    fs::rename(at.join("older/cell.redb"), at.join("db/cell.redb")).expect("renamed");
    assert!(refused(&cell, &[]).contains("not the databases"));
    cell.start_with(&["--new-database"]);
    assert!(cell.ok("pts examine alice").contains("id: 1"));
    cell.end("-INT");

    // Lost keys.
    back(&cell, &good);
    fs::remove_file(at.join("server-etc/KeyFileExt")).expect("removed");
    cell.start_with(&["--new-server-etc"]);
    cell.ok("vos listvldb -localauth");
    cell.end("-INT");
    cell.start();
    cell.end("-INT");

    // A lost cell.json without its copy.
    back(&cell, &good);
    for lost in ["cell.json", "client-etc/cell.json"] {
        fs::remove_file(at.join(lost)).expect("removed");
    }
    refused(&cell, &["--cell", "test.cell"]);
    cell.start_with(&["--new-cell", "--cell", "test.cell"]);
    assert_eq!(cell.ok(&cat), "precious");
    assert!(cell.ok("pts examine alice").contains("id: 1"));
    cell.end("-INT");
    whole(&mut cell);
}

/// testdata/cells/README.md describes its contents.
#[test]
fn a_cell_of_a_release_without_ids_is_taken_over_and_guarded() {
    let mut cell = Cell::of_release("05f1d99");
    let good = cell.local("good");
    let at = cell.directory();
    copy(&at, &good);
    for missing in [
        "vicepa/base",
        "vicepb/journal.0",
        "db/cell.redb",
        "server-etc/KeyFileExt",
    ] {
        fs::remove_file(at.join(missing)).expect("removed");
        refused(&cell, &[]);
        back(&cell, &good);
    }
    for partition in ["vicepa", "vicepb"] {
        fs::remove_dir_all(at.join(partition)).expect("removed");
    }
    assert!(refused(&cell, &[]).contains("disks mounted"));
    back(&cell, &good);

    cell.start();
    let top = "/afs/old.cell/scratch";
    for (name, text) in [
        ("small", "a small file\n".to_owned()),
        ("large", "x".repeat(100_000)),
    ] {
        assert_eq!(cell.ok(&format!("cat --admin {top}/{name}")), text);
        assert_eq!(cell.ok(&format!("cat --admin {top}/onb/{name}")), text);
    }
    let members = cell.ok("pts membership alice:friends");
    assert!(members.contains("bob"), "{members}");
    assert!(cell.ok("fs listacl onb").contains("alice:friends rlidwk"));
    assert!(cell.ok("osd list").contains("osd1@127.0.0.1"));
    cell.end("-KILL");
    for missing in ["vicepa/base", "osd1/base", "db/cell.redb"] {
        fs::rename(at.join(missing), cell.local("aside")).expect("away");
        refused(&cell, &[]);
        fs::rename(cell.local("aside"), at.join(missing)).expect("back");
    }
    // A device that is completely missing is noticed without --osds too.
    fs::rename(at.join("osd1"), cell.local("aside")).expect("away");
    let gone = refused(&cell, &[]);
    assert!(gone.contains("osd1: it was used before"), "{gone}");
    assert!(!at.join("osd1").exists());
    fs::rename(cell.local("aside"), at.join("osd1")).expect("back");
    fs::remove_dir_all(at.join("vicepb")).expect("removed");
    assert!(refused(&cell, &[]).contains("--new-partition b"));
}
