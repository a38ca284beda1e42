//! `cellar db`: recovers a cell with damaged databases.

use std::fs;

use crate::common::Cell;

#[test]
fn damaged_databases_are_found_exported_and_made_again_from_the_copy() {
    let mut cell = Cell::new();
    cell.ok("pts createuser alice");
    cell.ok("pts creategroup alice:friends -owner alice");
    let running = cell.fails("db check");
    assert!(running.contains("is running already"), "{running}");
    // A clean stop writes the copy.
    cell.end("-INT");
    let sound = cell.ok("db check");
    assert_eq!(sound.matches("undamaged;").count(), 2, "{sound}");
    let export = cell.local("export");
    let export = export.to_str().expect("a path");
    assert!(
        cell.ok(&format!("db export {export}"))
            .contains("rows written")
    );
    let json: serde_json::Value = serde_json::from_str(&cell.ok("db check --json")).expect("json");
    assert!(
        json["databases"].is_object() && json["copy"].is_object(),
        "{json}"
    );

    let file = cell.directory().join("db/cell.redb");
    let mut bytes = fs::read(&file).expect("databases");
    let name = b"alice:friends";
    let places: Vec<usize> = (0..bytes.len() - name.len())
        .filter(|&at| bytes[at..].starts_with(name))
        .collect();
    assert!(!places.is_empty());
    for place in places {
        bytes[place] ^= 1;
    }
    fs::write(&file, bytes).expect("damaged");
    let found = cell.fails("db check");
    assert!(
        found.contains("cell.redb") && found.contains("db import"),
        "{found}"
    );
    let partly = cell.local("partly");
    cell.fails(&format!("db export {}", partly.display()));
    let copy = cell.directory().join("db/cell.copy");
    let made = cell.ok(&format!("db import {}", copy.display()));
    assert!(
        made.contains("undamaged;") && made.contains("the old file is"),
        "{made}"
    );
    cell.start();
    assert!(
        cell.ok("pts examine alice:friends")
            .contains("owner: alice")
    );
    cell.end("-INT");

    // An export works too.
    let remade = cell.ok(&format!("db import {export}"));
    assert!(remade.contains("undamaged;"), "{remade}");
    cell.start();
    assert!(cell.ok("pts examine alice").contains("id: 1"));
    cell.end("-INT");

    // A lost machine has neither the file nor its folder.
    fs::remove_dir_all(cell.directory().join("db")).expect("removed");
    let again = cell.ok(&format!("db import {export}"));
    assert!(again.contains("undamaged;"), "{again}");
    cell.start();
    assert!(cell.ok("pts examine alice").contains("id: 1"));
}

#[test]
fn a_running_server_exports_all_changes() {
    let mut cell = Cell::new();
    let export = cell.local("export");
    let export = export.to_str().expect("a path");
    let rows = |cell: &Cell| cell.json(&format!("db export {export} --json"))["rows"].as_u64();
    let before = rows(&cell).expect("rows");
    for name in ["ann", "bob"] {
        cell.ok(&format!("pts createuser {name}"));
        let now = rows(&cell).expect("rows");
        assert!(now > before, "{now} rows after {name}");
    }
    // A failed export leaves the last one.
    let missing = cell.fails(&format!("db export {export}/none"));
    assert!(missing.contains("export"), "{missing}");
    let audit = cell.ok("bos getlog 127.0.0.1 AuditLog");
    assert!(audit.contains("ExportDatabases"), "{audit}");

    cell.ok("pts delete bob");
    cell.end("-INT");
    cell.ok(&format!("db import {export}"));
    cell.start();
    assert!(cell.ok("pts examine bob").contains("id: 2"));
}

#[test]
fn an_archive_makes_a_lost_server_again() {
    let mut cell = Cell::new();
    cell.ok("pts createuser ann");
    let place = cell.local("backup");
    fs::create_dir(&place).expect("a directory");
    let place = place.to_str().expect("a path");
    let line = format!("db export {place} --with-keys --keep 1 --json");
    let first = cell.json(&line);
    cell.ok("pts createuser bob");
    // Names differ by the second.
    let second = cellar_until::until_some_blocking("another name", || {
        let next = cell.json(&line);
        (next["file"] != first["file"]).then_some(next)
    });
    assert_eq!(second["removed"][0], first["file"]);
    let archive = second["file"].as_str().expect("a path");
    assert_eq!(fs::read_dir(place).expect("a directory").count(), 1);
    let into_a_cell = cell.fails(&format!("db import {archive}"));
    assert!(
        into_a_cell.contains("holds a cell already"),
        "{into_a_cell}"
    );

    let keys = fs::read(cell.directory().join("server-etc/KeyFileExt")).expect("keys");
    cell.end("-KILL");
    let lost = cell.local("lost");
    fs::rename(cell.directory(), &lost).expect("lost");
    let cut = cell.local("cut.tar");
    let bytes = fs::read(archive).expect("the archive");
    fs::write(&cut, &bytes[..bytes.len() / 2]).expect("a cut archive");
    cell.fails(&format!("db import {}", cut.display()));
    let made = cell.ok(&format!("db import {archive}"));
    assert!(made.contains("undamaged;"), "{made}");
    let again = fs::read(cell.directory().join("server-etc/KeyFileExt")).expect("keys");
    assert_eq!(again, keys);
    // The disk of the partition is not in the archive, and comes back from the old machine.
    fs::rename(lost.join("vicepa"), cell.directory().join("vicepa")).expect("the disk");
    cell.start();
    assert!(cell.ok("pts examine bob").contains("id: 2"));
    assert!(cell.ok("ls /afs/test.cell").contains("scratch"));
}
