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
}
