//! `cellar partition` and `bos restart`: partitions come, go and are verified, and the server
//! restarts on request.

use std::fs;

use cellar_until::until_blocking;

use crate::common::devices::spoil;
use crate::common::{Cell, run};

const AT: &str = "127.0.0.1";

/// The process of the running server, by its lock.
fn process(cell: &Cell) -> String {
    fs::read_to_string(cell.directory().join("lock")).expect("the lock")
}

#[test]
fn a_partition_is_added_used_after_bos_restart_emptied_and_removed() {
    let mut cell = Cell::new();
    let disk = cell.local("disk");
    fs::create_dir(&disk).expect("a disk");
    let added = cell.json(&format!("partition add b {} --json", disk.display()));
    assert_eq!(added["restart_needed"], true);
    let again = cell.fails("partition add b");
    assert!(again.contains("a link is there already"), "{again}");
    let twice = cell.fails(&format!("partition add c {}", disk.display()));
    assert!(twice.contains("/vicepb already"), "{twice}");
    let before = process(&cell);
    cell.ok(&format!("bos restart {AT} -bosserver"));
    until_blocking("restarted with the partition", || {
        let listed = cell.run(["vos", "listpart", AT]);
        listed.out.contains("/vicepb")
    });
    assert_eq!(process(&cell), before, "the process keeps its number");
    assert!(cell.log().contains("restarting"), "{}", cell.log());
    cell.ok(&format!("vos create {AT} b data"));
    let running = cell.fails("partition remove b");
    assert!(running.contains("running already"), "{running}");
    cell.end("-TERM");
    let full = cell.fails("partition remove b");
    assert!(full.contains("it has volumes: data"), "{full}");
    cell.start();
    cell.ok(&format!("vos move data {AT} b {AT} a"));
    cell.end("-TERM");
    let only = cell.ok("partition remove b");
    assert!(only.contains("was removed"), "{only}");
    let last = cell.fails("partition remove a");
    assert!(last.contains("the only partition"), "{last}");
    cell.start();
    let listed = cell.ok(&format!("vos listpart {AT}"));
    assert!(!listed.contains("/vicepb"), "{listed}");
    cell.ok("vos examine data");
}

#[test]
fn bos_restarts_instances_and_refuses_to_stop_them() {
    let cell = Cell::new();
    for act in ["shutdown", "stop"] {
        // OpenAFS's bos ends with 0 after a refused shutdown.
        let refused = cell.run(["bos", act, AT, "fs"]).err;
        assert!(
            refused.contains("all its roles in one process"),
            "{refused}"
        );
    }
    let status = cell.ok(&format!("bos status {AT}"));
    assert!(status.contains("currently running normally"), "{status}");
    let starts = || cell.log().matches("restarting").count();
    cell.ok(&format!("bos restart {AT} -all"));
    until_blocking("asked", || starts() == 1);
    until_blocking("serves again", || {
        cell.run(["bos", "status", AT]).out.contains("fs")
    });
    // A stranger cannot.
    let port = (cell.port + 3).to_string();
    let server = format!("{AT}:{port}");
    let stranger = run(
        None,
        [
            "bos",
            "restart",
            AT,
            "-all",
            "-noauth",
            "-dbserver",
            &server,
        ],
    );
    assert!(
        stranger.err.contains("failed to restart"),
        "{}",
        stranger.err
    );
    assert_eq!(starts(), 1);
    cell.ok("ls /afs/test.cell");
}

#[test]
fn damage_that_a_scrub_finds_is_in_the_status() {
    let mut cell = Cell::new();
    let local = cell.local("file");
    let contents: Vec<u8> = (0..200_000_u32).map(|n| (n % 251) as u8).collect();
    fs::write(&local, &contents).expect("file");
    cell.ok(&format!(
        "cp --admin {} /afs/test.cell/scratch/file",
        local.display()
    ));
    let scrubbed = cell.json(&format!("partition scrub {AT} a --json"));
    assert_eq!(scrubbed[0]["last"]["damaged"], 0);
    assert!(scrubbed[0]["last"]["bytes"].as_u64() > Some(200_000));
    let text = cell.ok(&format!("partition scrub {AT} --status"));
    assert!(text.contains("0 damaged files"), "{text}");
    assert!(
        text.contains("one every 604800 s at up to 16384 KiB/s"),
        "{text}"
    );
    cell.end("-TERM");
    spoil(&cell.directory().join("vicepa"), &contents[..64]);
    // The first regular scrub begins a 64th of the interval after the start.
    cell.start_with(&["--scrub-every", "64s"]);
    let status = || cell.run(["partition", "scrub", AT, "--status", "--json"]);
    until_blocking("scrubbed by itself", || status().out.contains("\"ended\""));
    let found = status();
    assert_eq!(found.status, 1, "{}", found.out);
    let found: serde_json::Value = serde_json::from_str(&found.out).expect("JSON");
    assert_eq!(found[0]["last"]["damaged"], 1, "{found}");
    assert_eq!(found[0]["every_seconds"], 64);
    let whole = cell.run(["status", "--json"]);
    assert_eq!(whole.status, 1, "{}", whole.out);
    assert!(whole.out.contains("\"scrub-damage\""), "{}", whole.out);
}
