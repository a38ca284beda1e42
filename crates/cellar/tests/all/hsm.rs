//! `cellar hsm` on a real cell: three devices, one of them an archive.

use serde_json::{Value, json};

use cellar_until::until_blocking;

use crate::common::Cell;
use crate::common::devices::{TOP, comes_back, devices_of, local, ready};

/// The length of the files, which are larger than the threshold of objects.
const LENGTH: usize = 2_500_000;

/// A cell whose device with this number is an archive.
fn cell_with_archive() -> (Cell, u64) {
    let cell = Cell::with(&["--osds", "3"]);
    ready(&cell, 3);
    let devices = cell.json("osd list -json");
    let last = devices.as_array().expect("devices").last().expect("one");
    let archive = last["id"].as_u64().expect("a number");
    cell.ok(&format!("osd set {archive} -archival on"));
    (cell, archive)
}

/// Stores a file and copies it to the archive. The file server hears of a changed device some
/// seconds later.
fn archived(cell: &Cell, archive: u64, name: &str) -> Vec<u8> {
    let (path, bytes) = local(cell, name, LENGTH);
    until_blocking("a file is placed beside the archive", || {
        cell.ok(&format!("cp {} {TOP}/{name}", path.display()));
        let away = !devices_of(cell, name).contains(&archive);
        if !away {
            cell.ok(&format!("rm {TOP}/{name}"));
        }
        away
    });
    until_blocking("the archive takes the file", || {
        cell.run(["hsm", "archive", &format!("{TOP}/{name}")])
            .status
            == 0
    });
    bytes
}

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value
        .as_object()
        .expect("an object")
        .keys()
        .map(String::as_str)
        .collect();
    keys.sort_unstable();
    keys
}

#[test]
fn a_wiped_file_is_recalled_when_it_is_read() {
    let (cell, archive) = cell_with_archive();
    let bytes = archived(&cell, archive, "run7");
    let path = format!("{TOP}/run7");

    let copies = cell.json(&format!("hsm copies --json {path}"));
    assert_eq!(
        keys(&copies),
        [
            "bytes",
            "done",
            "failed",
            "files",
            "looked",
            "skipped",
            "unchanged"
        ]
    );
    let file = &copies["files"][0];
    assert_eq!(
        keys(file),
        [
            "copies",
            "errors",
            "fid",
            "in_objects",
            "length",
            "online",
            "path",
            "result"
        ]
    );
    let copy = &file["copies"][0];
    assert_eq!(
        keys(copy),
        [
            "blake3",
            "data_version",
            "length",
            "made",
            "md5",
            "object",
            "osd",
            "osd_name",
            "state",
            "verified"
        ]
    );
    assert_eq!(
        (
            &copy["osd"],
            &copy["state"],
            &copy["length"],
            &file["online"]
        ),
        (
            &json!(archive),
            &json!("good"),
            &json!(LENGTH),
            &json!(true)
        )
    );
    let table = cell.ok(&format!("hsm copies {path}"));
    assert!(
        table.lines().skip(1).all(|line| line.len() <= 80),
        "{table}"
    );
    // The bytes are read back.
    assert_eq!(copy["verified"], json!(null));
    let verified = cell.json(&format!("hsm verify --json --in {archive} {path}"));
    assert_eq!(verified["done"], json!(1), "{verified}");
    assert!(verified["files"][0]["copies"][0]["verified"].is_u64());
    // Again: there is nothing to do.
    let again = cell.json(&format!("hsm archive --json {path}"));
    assert_eq!(
        (&again["done"], &again["unchanged"]),
        (&json!(0), &json!(1))
    );

    let error = cell.fails(&format!("hsm wipe --copies 2 {path}"));
    assert!(error.contains("1 of the 2 needed archives"), "{error}");
    let dry = cell.ok(&format!("hsm wipe --dry-run {path}"));
    assert!(
        dry.starts_with(&path) && dry.contains("1 of 1 files could be wiped"),
        "{dry}"
    );
    // A pin of the directory keeps the file.
    assert_eq!(cell.ok("hsm pins"), "The cell has no pins\n");
    cell.ok(&format!("hsm pin --for 2d {TOP}"));
    let pins = cell.json("hsm pins --json");
    assert_eq!(pins["pins"][0]["remark"], json!(TOP), "{pins}");
    let error = cell.fails(&format!("hsm wipe {path}"));
    assert!(error.contains("the file is pinned"), "{error}");
    let error = cell.fails(&format!("hsm unpin {path}"));
    assert!(error.contains("no pin of it"), "{error}");
    cell.ok(&format!("hsm unpin {TOP}"));
    let wiped = cell.ok(&format!("hsm wipe {path}"));
    assert!(wiped.contains("1 of 1 files wiped"), "{wiped}");
    let place = cell.json(&format!("fs osd {path} -json"));
    let name = copy["osd_name"].as_str().expect("a name");
    assert_eq!(
        (
            &place[0]["wiped"],
            &place[0]["archives"],
            &place[0]["shape"]
        ),
        (&json!(true), &json!([name]), &json!(null))
    );
    let text = cell.ok(&format!("fs osd {path}"));
    assert!(
        text.contains("only in archives") && text.contains(name),
        "{text}"
    );
    comes_back(&cell, "run7", &bytes);
    let place = cell.json(&format!("fs osd {path} -json"));
    assert_eq!(
        (&place[0]["wiped"], &place[0]["readable"]),
        (&json!(false), &json!(true))
    );

    // The next census counts the work.
    cell.ok("hsm status --now");
    let report = cell.json("hsm report --json");
    let today = report["days"].as_array().expect("days").last().cloned();
    let today = today.expect("today");
    for work in ["copied", "wiped", "recalled", "verified"] {
        assert_eq!(today[work]["files"], json!(1), "{work}: {report}");
        assert_eq!(today[work]["bytes"], json!(LENGTH), "{work}: {report}");
    }
    assert!(
        cell.ok("hsm report")
            .contains("needs figures of three days")
    );

    // The same by prefetch.
    cell.ok(&format!("hsm wipe {path}"));
    let recalled = cell.json(&format!("hsm prefetch --json {path}"));
    assert_eq!(
        (&recalled["done"], &recalled["files"][0]["online"]),
        (&json!(1), &json!(true))
    );
    comes_back(&cell, "run7", &bytes);
}

/// The older versions that a list has.
fn older(cell: &Cell, path: &str) -> Vec<Value> {
    let listed = cell.json(&format!("fs oldversion -list {path} -json"));
    assert_eq!(listed[0]["path"], path);
    let versions = listed[0]["versions"].as_array().expect("versions");
    versions.clone()
}

#[test]
fn older_versions_and_removed_files_come_back() {
    let (cell, archive) = cell_with_archive();
    let first = archived(&cell, archive, "run7");
    let path = format!("{TOP}/run7");
    assert_eq!(older(&cell, &path), [] as [Value; 0]);
    let none = cell.ok(&format!("fs oldversion -list {path}"));
    assert!(none.contains("keep no older versions"), "{none}");

    // Other bytes in the file itself.
    let (other, second) = local(&cell, "other", LENGTH / 2);
    cell.ok(&format!("cp --in-place {} {path}", other.display()));
    let versions = older(&cell, &path);
    assert_eq!(versions.len(), 1);
    assert_eq!(
        keys(&versions[0]),
        [
            "archives",
            "data_version",
            "fid",
            "last",
            "length",
            "made",
            "name",
            "removed",
            "until"
        ]
    );
    assert_eq!(
        (
            &versions[0]["length"],
            &versions[0]["archives"],
            &versions[0]["removed"]
        ),
        (&json!(LENGTH), &json!([archive]), &json!(null))
    );
    let refused = cell.fails(&format!("fs oldversion -restore {path}"));
    assert!(
        refused.contains("no archive has the present bytes"),
        "{refused}"
    );
    comes_back(&cell, "run7", &second);
    let refused = cell.fails(&format!("fs oldversion -restore {path} -version 999"));
    assert!(refused.contains("keep no such older version"), "{refused}");
    cell.ok(&format!("fs oldversion -restore {path} -to {TOP}/before"));
    comes_back(&cell, "before", &first);
    let refused = format!("fs oldversion -restore {path} -to {TOP}/before");
    let refused = cell.fails(&refused);
    assert!(refused.contains("another file of this name"), "{refused}");
    let restored = cell.json(&format!("fs oldversion -restore {path} --force -json"));
    assert_eq!(
        (&restored["new"], &restored["path"]),
        (&json!(false), &json!(path))
    );
    comes_back(&cell, "run7", &first);

    // The file is removed, and its objects are collected.
    cell.ok(&format!("hsm archive {path}"));
    cell.ok(&format!("rm {path}"));
    cell.ok("osd collect -grace 0");
    let versions = older(&cell, TOP);
    let last = versions.last().expect("the removed file");
    assert_eq!(
        (&last["name"], &last["last"]),
        (&json!("run7"), &json!(true))
    );
    let table = cell.ok(&format!("fs oldversion -list {TOP}"));
    assert!(
        table.contains("run7") && table.contains("Kept until"),
        "{table}"
    );
    let restored = cell.ok(&format!("fs oldversion -restore {path}"));
    assert!(restored.contains("made again"), "{restored}");
    comes_back(&cell, "run7", &first);

    // 'cp' replaces the file by another one.
    cell.ok(&format!("hsm archive {path}"));
    cell.ok(&format!("cp {} {path}", other.display()));
    comes_back(&cell, "run7", &second);
    let refused = cell.fails(&format!("fs oldversion -restore {path}"));
    assert!(refused.contains("another file of this name"), "{refused}");
    cell.ok(&format!("fs oldversion -restore {path} --force"));
    comes_back(&cell, "run7", &first);

    // A restore that was killed has left an empty file.
    cell.ok(&format!("rm {path}"));
    let (empty, _) = local(&cell, "empty", 0);
    cell.ok(&format!("cp {} {path}", empty.display()));
    cell.ok(&format!("fs oldversion -restore {path}"));
    comes_back(&cell, "run7", &first);
}

#[test]
fn a_tree_is_done_as_far_as_possible() {
    let (cell, archive) = cell_with_archive();
    archived(&cell, archive, "first");
    cell.ok(&format!("mkdir {TOP}/tree"));
    let (large, _) = local(&cell, "large", LENGTH);
    let (small, _) = local(&cell, "small", 100);
    for name in ["a", "b"] {
        cell.ok(&format!("cp {} {TOP}/tree/{name}", large.display()));
    }
    cell.ok(&format!("cp {} {TOP}/tree/small", small.display()));

    let error = cell.fails(&format!("hsm archive {TOP}/tree"));
    assert!(error.contains("-r takes all files"), "{error}");
    let line = cell.ok(&format!("hsm archive -r {TOP}/tree"));
    assert!(
        line.contains("2 of 3 files copied") && line.contains("1 not in objects"),
        "{line}"
    );
    // A changed file has no copy of its present bytes: the other one is wiped all the same.
    cell.ok(&format!(
        "cp {} {TOP}/tree/b",
        cell.local("first").display()
    ));
    let answer = cell.run(["hsm", "wipe", "--json", "-r", &format!("{TOP}/tree")]);
    assert_eq!(answer.status, 1);
    let wiped: Value = serde_json::from_str(&answer.out).expect("JSON");
    assert_eq!(
        (&wiped["done"], &wiped["failed"], &wiped["skipped"]),
        (&json!(1), &json!(1), &json!(1))
    );
    let failed = &wiped["files"][1];
    let copies = failed["copies"].as_array().expect("copies");
    assert!(
        copies.iter().all(|copy| copy["state"] == "older"),
        "{failed}"
    );
    assert_eq!(
        (&failed["result"], &failed["online"]),
        (&json!("failed"), &json!(true))
    );
    assert!(
        failed["errors"][0]
            .to_string()
            .contains("0 of the 1 needed"),
        "{failed}"
    );

    // Nothing matches; no such archive.
    let error = cell.fails(&format!("hsm prefetch {TOP}/tree/small"));
    assert!(error.contains("no file in objects"), "{error}");
    cell.ok(&format!("mkdir {TOP}/empty"));
    let error = cell.fails(&format!("hsm wipe -r {TOP}/empty"));
    assert!(error.contains("no file matches"), "{error}");
    let answer = cell.run(["hsm", "archive", "--to", "tape9", &format!("{TOP}/tree/a")]);
    assert_eq!(answer.status, 2);
}
