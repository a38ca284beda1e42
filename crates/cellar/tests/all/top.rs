//! `cellar top`: the load of several clients, and its readers.

use std::fs;

use serde_json::Value;

use crate::common::{Cell, run};

/// The rows of a kind, each as its name and its rate.
fn rates<'a>(load: &'a Value, kind: &str, rate: &str) -> Vec<(&'a str, f64)> {
    let rows = load[kind].as_array().expect(kind);
    let row = |row: &'a Value| {
        let name = row["name"].as_str().expect("a name");
        (name, row[rate].as_f64().expect("a rate"))
    };
    rows.iter().map(row).collect()
}

#[test]
fn busy_volumes_and_clients_come_first() {
    let cell = Cell::new();
    for volume in ["busy", "quiet"] {
        cell.ok(&format!("vos create 127.0.0.1 a {volume} -maxquota 0"));
        cell.ok(&format!(
            "fs mkmount /afs/test.cell/scratch/{volume} {volume}"
        ));
        cell.ok(&format!(
            "fs setacl /afs/test.cell/scratch/{volume} system:anyuser rlidwk"
        ));
    }
    let large = cell.local("large");
    fs::write(&large, vec![7; 300_000]).expect("a file");
    let load: Value = std::thread::scope(|scope| {
        // Several programs, each a client of its own; one of them in the other volume.
        for client in 0..4 {
            let (cell, large) = (&cell, large.display());
            let volume = if client == 0 { "quiet" } else { "busy" };
            scope.spawn(move || {
                for round in 0..10 {
                    cell.ok(&format!(
                        "cp {large} /afs/test.cell/scratch/{volume}/{client}-{round}"
                    ));
                }
            });
        }
        cell.json("top --once --json --interval 2s")
    });
    assert_eq!((&load["schema"], &load["servers"]), (&1.into(), &1.into()));
    assert_eq!(load["not_known"], Value::Array(Vec::new()), "{load}");
    let volumes = rates(&load, "volumes", "bytes_per_second");
    let rate = |name: &str| {
        volumes
            .iter()
            .find(|(volume, _)| *volume == name)
            .map(|row| row.1)
    };
    let (busy, quiet) = (rate("busy"), rate("quiet"));
    assert!(busy > quiet && quiet > Some(0.0), "{load:#}");
    let clients = rates(&load, "clients", "operations_per_second");
    assert_eq!(clients[0].0, "127.0.0.1");
    assert!(!rates(&load, "users", "busy").is_empty());
    let by_bytes = cell.ok("top --once --interval 100ms --of volumes --by bytes --lines 1");
    assert!(by_bytes.contains("OPS/S"), "{by_bytes}");
}

#[test]
fn only_superusers_may_read_the_load() {
    let cell = Cell::new();
    let server = format!("127.0.0.1:{}", cell.port + 3);
    let words = [
        "top",
        "--once",
        "--interval",
        "100ms",
        "--noauth",
        "--cell",
        "test.cell",
    ];
    let words = words.into_iter().chain(["--server", &server]);
    let refused = run(None, words).failure("top --noauth");
    assert!(refused.contains("Superusers"), "{refused}");
}
