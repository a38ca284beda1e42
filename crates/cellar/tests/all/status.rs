//! `cellar status`: the state of a cell, its JSON, and its exit status.

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{Cell, SECOND, run};

/// The status of a cell as JSON, with the exit status; as if the disk of this machine had room.
fn status(cell: &Cell) -> (i32, Value) {
    let answer = cell.run(["status", "--json"]);
    let mut status: Value = serde_json::from_str(&answer.out).expect(&answer.err);
    let findings = status["findings"].as_array_mut().expect("findings");
    let is_full = !findings.is_empty();
    findings.retain(|finding| finding["kind"] != "partition-full");
    // Each server of the test has a partition on this machine's disk.
    if findings.is_empty() && is_full {
        assert_eq!(answer.status, 1);
        status["verdict"] = "well".into();
        return (0, status);
    }
    (answer.status, status)
}

fn kinds(status: &Value) -> BTreeSet<&str> {
    let findings = status["findings"].as_array().expect("findings");
    let kinds = findings
        .iter()
        .filter_map(|finding| finding["kind"].as_str());
    kinds.collect()
}

fn names(object: &Value) -> BTreeSet<&str> {
    let members = object.as_object().expect("an object");
    members.keys().map(String::as_str).collect()
}

#[test]
fn a_healthy_cell_is_well_and_the_names_of_the_fields_are_stable() {
    let cell = Cell::new();
    let (code, status) = status(&cell);
    assert_eq!((code, &status["verdict"]), (0, &"well".into()), "{status}");
    assert_eq!(status["findings"], Value::Array(Vec::new()));
    assert_eq!(status["not_known"], Value::Array(Vec::new()), "{status}");
    assert_eq!(status["schema"], 1);
    assert_eq!(status["cell"], "test.cell");
    let all = [
        "schema",
        "cell",
        "verdict",
        "findings",
        "not_known",
        "database_servers",
        "file_servers",
        "devices",
        "volumes",
    ];
    assert_eq!(names(&status), all.into());
    let database = ["address", "location", "protection", "version"];
    assert_eq!(names(&status["database_servers"][0]), database.into());
    let server = &status["file_servers"][0];
    let of_server = [
        "uuid",
        "addresses",
        "answered",
        "reachable",
        "volume_server",
        "version",
        "started",
        "uptime_seconds",
        "clock_offset_seconds",
        "partitions",
        "repairs",
        "scrubs",
    ];
    assert_eq!(names(server), of_server.into());
    let version = server["version"].as_str().expect("a version");
    assert!(version.starts_with("Cellar "), "{version}");
    assert!(server["uptime_seconds"].as_u64().expect("a time") < 3600);
    let space = ["partition", "free_kib", "total_kib"];
    assert_eq!(names(&server["partitions"][0]), space.into());
    let volumes = [
        "examined",
        "busy",
        "entries",
        "locked",
        "damaged",
        "off_line",
        "quota_full",
        "outdated_sites",
        "missing",
        "unlisted",
        "copies",
        "unreleased",
    ];
    assert_eq!(names(&status["volumes"]), volumes.into());
    assert_eq!(status["volumes"]["examined"], 3);
    let screen = cell.run(["status", "--noresolve"]).out;
    let verdict = screen.strip_prefix("Cell test.cell: ").expect(&screen);
    let has_room = !screen.contains("/vicepa of 127.0.0.1 has ");
    assert_eq!(verdict.starts_with("all is well\n"), has_room, "{screen}");
    assert!(screen.contains("/vicepa"), "{screen}");
}

#[test]
fn entries_that_need_attention_are_found() {
    let cell = Cell::new();
    let mut second = cell.join();
    cell.ok("vos create 127.0.0.1 a vol");
    cell.ok("vos addsite 127.0.0.1 a vol");
    cell.ok(&format!("vos addsite {SECOND} a vol"));
    cell.ok("vos release vol");
    cell.ok("vos create 127.0.0.1 a away");
    cell.ok("vos create 127.0.0.1 a small");
    assert_eq!(status(&cell).0, 0, "all sites are released");
    cell.ok("vos offline 127.0.0.1 a away");
    cell.ok("vos setfields small -maxquota 1");
    let (code, found) = status(&cell);
    assert_eq!((code, &found["verdict"]), (1, &"attention".into()));
    let expected = ["volume-off-line", "quota-full"];
    assert_eq!(kinds(&found), expected.into(), "{found}");
    let off_line = &found["volumes"]["off_line"];
    assert_eq!(off_line["count"], 1);
    assert_eq!(off_line["listed"][0]["name"], "away");

    // A server that has ended answers with ICMP; a silent one only costs its time.
    assert_eq!(second.end("-INT"), Some(0));
    cell.fails("vos release -f vol");
    let silent = UdpSocket::bind((SECOND, cell.port)).expect("the port of the ended server");
    let begun = Instant::now();
    let (code, found) = status(&cell);
    let took = begun.elapsed();
    drop(silent);
    assert_eq!(code, 1);
    assert!(took < Duration::from_secs(6), "{took:?}");
    let expected = [
        "volume-off-line",
        "quota-full",
        "file-server-down",
        "site-outdated",
    ];
    assert_eq!(kinds(&found), expected.into(), "{found}");
    let outdated = &found["volumes"]["outdated_sites"]["listed"][0];
    assert_eq!(outdated["name"], "vol.readonly");
    assert_eq!(outdated["server"], SECOND);
    let screen = cell.run(["status", "--noresolve"]).out;
    assert!(
        screen.contains("the file server 127.0.0.2 does not answer"),
        "{screen}"
    );
    assert!(screen.contains("volume away ("), "{screen}");
}

/// The names of the volumes of a list in the JSON.
fn listed<'a>(status: &'a Value, list: &str) -> Vec<&'a str> {
    let found = &status["volumes"][list];
    let listed = found["listed"].as_array().expect("a list");
    assert_eq!(found["count"], listed.len(), "{found}");
    let names = listed.iter().filter_map(|problem| problem["name"].as_str());
    names.collect()
}

#[test]
fn volumes_and_entries_without_each_other_are_found() {
    let cell = Cell::new();
    let _second = cell.join();
    cell.ok("vos create 127.0.0.1 a lost");
    cell.ok("vos create 127.0.0.1 a unknown");
    cell.ok("vos create 127.0.0.1 a both");
    for server in ["127.0.0.1", SECOND] {
        cell.ok(&format!("vos addsite {server} a both"));
    }
    cell.ok("vos release both");
    let id = |name: &str, kind: &str| {
        let entry = cell.json(&format!("vos listvldb {name} -json"));
        entry["entries"][0][kind].as_u64().expect("an id")
    };
    let (code, found) = status(&cell);
    assert_eq!((code, &found["verdict"]), (0, &"well".into()), "{found}");

    // A server that lost volumes, and a VLDB that lost an entry.
    let (lost, both) = (id("lost", "read_write"), id("both", "read_only"));
    cell.ok(&format!("vos zap 127.0.0.1 a {lost}"));
    cell.ok(&format!("vos zap {SECOND} a {both}"));
    cell.ok("vos delentry unknown");
    let (code, found) = status(&cell);
    assert_eq!((code, &found["verdict"]), (1, &"attention".into()));
    let expected = ["volume-missing", "volume-unlisted"];
    assert_eq!(kinds(&found), expected.into(), "{found}");
    let missing: BTreeSet<_> = listed(&found, "missing").into_iter().collect();
    assert_eq!(missing, ["both.readonly", "lost"].into());
    assert_eq!(listed(&found, "unlisted"), ["unknown"]);
    assert!(listed(&found, "copies").is_empty());
    let screen = cell.run(["status", "--noresolve"]).out;
    for sentence in [
        format!("volume lost ({lost}) is not on 127.0.0.1 /vicepa, where the VLDB names it"),
        format!("volume both.readonly ({both}) is not on {SECOND} /vicepa"),
        "on 127.0.0.1 /vicepa is not in the VLDB".to_owned(),
        "2 missing, 1 not in the VLDB".to_owned(),
    ] {
        assert!(screen.contains(&sentence), "{sentence}: {screen}");
    }

    // The advice of the findings ends them.
    cell.ok("vos syncvldb 127.0.0.1");
    cell.ok("vos syncserv 127.0.0.1");
    cell.ok(&format!("vos syncserv {SECOND}"));
    let (code, found) = status(&cell);
    assert_eq!((code, &found["verdict"]), (0, &"well".into()), "{found}");
}

#[test]
fn differences_of_operations_need_no_attention() {
    let cell = Cell::new();
    let _second = cell.join();
    for name in ["locked", "vol", "away"] {
        cell.ok(&format!("vos create 127.0.0.1 a {name}"));
    }
    cell.ok("vos backup vol");
    cell.ok("vos clone vol 127.0.0.1 a -toname vol.clone");
    cell.ok(&format!("vos shadow vol 127.0.0.1 a {SECOND} a"));
    cell.ok("vos lock locked");
    cell.ok("vos offline 127.0.0.1 a away");
    let id = |name: &str| {
        let entry = cell.json(&format!("vos listvldb {name} -json"));
        entry["entries"][0]["read_write"].as_u64().expect("an id")
    };
    cell.ok(&format!("vos zap 127.0.0.1 a {}", id("locked")));
    cell.ok("vos delentry away");
    let (_, found) = status(&cell);
    assert_eq!(kinds(&found), ["volume-off-line"].into(), "{found}");
    assert_eq!(found["volumes"]["missing"]["count"], 0, "{found}");
    assert_eq!(found["volumes"]["unlisted"]["count"], 0, "{found}");
    assert_eq!(listed(&found, "copies"), ["vol"]);
    cell.ok("vos unlock locked");
    let (_, found) = status(&cell);
    assert_eq!(listed(&found, "missing"), ["locked"]);
}

#[test]
fn a_list_that_takes_too_long_is_not_compared() {
    let cell = Cell::new();
    cell.ok("vos create 127.0.0.1 a unknown");
    cell.ok("vos delentry unknown");
    let answer = cell.run(["status", "--json", "--listing-time", "1us"]);
    let found: Value = serde_json::from_str(&answer.out).expect(&answer.err);
    assert!(!kinds(&found).contains("volume-unlisted"), "{found}");
    assert!(!kinds(&found).contains("volume-missing"), "{found}");
    assert_ne!(found["not_known"], Value::Array(Vec::new()), "{found}");
}

#[test]
fn a_cell_without_databases_cannot_be_judged() {
    let mut cell = Cell::new();
    assert_eq!(cell.end("-INT"), Some(0));
    let (code, found) = status(&cell);
    assert_eq!((code, &found["verdict"]), (2, &"unknown".into()));
    assert_eq!(kinds(&found), ["database-server-down"].into());
    for wrong in [["status", "--bogus"], ["status", "--timeout=0"]] {
        assert_eq!(run(None, wrong).status, 2, "{wrong:?}");
    }
    assert_eq!(
        run(None, ["status", "--no-dns", "--cell", "no.cell"]).status,
        2
    );
}
