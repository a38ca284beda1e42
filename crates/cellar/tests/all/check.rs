//! `cellar check`: faults that are made, and the command that mends each.

use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::common::{Cell, run};

/// The findings about a cell, with the exit status.
fn check(cell: &Cell) -> (i32, Vec<Value>) {
    let answer = cell.run(["check", "--json", "--no-dns"]);
    let found: Value = serde_json::from_str(&answer.out).expect(&answer.err);
    assert_eq!(
        (&found["schema"], &found["server"]),
        (&1.into(), &true.into())
    );
    let findings = found["findings"].as_array().expect("findings").clone();
    (answer.status, findings)
}

/// The only finding of a subject whose text contains `part`.
fn about<'a>(findings: &'a [Value], subject: &str, part: &str) -> &'a Value {
    let is_meant = |finding: &&Value| {
        finding["check"] == subject && finding["text"].as_str().is_some_and(|t| t.contains(part))
    };
    let mut found = findings.iter().filter(is_meant);
    let first = found
        .next()
        .unwrap_or_else(|| panic!("{subject} {part}: {findings:#?}"));
    assert!(found.next().is_none(), "{subject} {part}: {findings:#?}");
    first
}

#[test]
fn a_running_server_is_in_order() {
    let cell = Cell::new();
    let (_, findings) = check(&cell);
    for (subject, part) in [
        ("ports", "the running server, process "),
        ("directory", "owners and modes"),
        ("keys", "the newest key has version 0"),
        ("databases", "answers: Cellar "),
        ("servers", "answers: Cellar "),
        ("clock", "agree"),
    ] {
        assert_eq!(
            about(&findings, subject, part)["severity"],
            "ok",
            "{subject}"
        );
    }
    let wrong = findings
        .iter()
        .filter(|finding| finding["severity"] == "error");
    assert_eq!(wrong.count(), 0, "{findings:#?}");
    let screen = cell.run(["check", "--no-dns"]).out;
    assert!(screen.starts_with("Check "), "{screen}");
}

#[test]
fn faults_have_the_command_that_mends_them() {
    let mut cell = Cell::new();
    let keys = cell.directory().join("server-etc/KeyFileExt");
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o644)).expect("mode");
    let (code, findings) = check(&cell);
    assert_eq!(code, 1);
    let mode = about(&findings, "directory", "mode 644");
    assert_eq!(mode["severity"], "error");
    assert_eq!(mode["remedy"], format!("chmod 600 {}", keys.display()));

    assert_eq!(cell.end("-INT"), Some(0));
    let other = UdpSocket::bind(("127.0.0.1", cell.port)).expect("a port");
    fs::remove_file(&keys).expect("keys");
    let (code, findings) = check(&cell);
    drop(other);
    assert_eq!(code, 1);
    let port = about(&findings, "ports", "is held by");
    assert_eq!(port["severity"], "error");
    let own = format!("process {}", std::process::id());
    assert!(
        port["text"].as_str().expect("text").ends_with(&own),
        "{port}"
    );
    about(&findings, "ports", "are free");
    let missing = about(&findings, "keys", "has no keys");
    assert!(
        missing["remedy"]
            .as_str()
            .expect("a command")
            .contains("import-keytab")
    );
    let silent = about(&findings, "databases", "does not answer");
    assert_eq!(silent["severity"], "error");
}

#[test]
fn a_machine_without_a_cell_cannot_be_checked() {
    for words in [
        &["check", "--no-dns", "--cell", "no.cell"][..],
        &["check", "--bogus"],
    ] {
        assert_eq!(run(None, words).status, 2, "{words:?}");
    }
}
