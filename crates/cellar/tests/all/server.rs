//! `cellar server`: file servers are drained, removed and replaced, with other servers at other
//! addresses of this machine.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::common::{Cell, SECOND};

/// The address of a third server.
const THIRD: &str = "127.0.0.3";

/// A third file server, which has registered.
fn third(cell: &Cell) -> Cell {
    let etc = cell.directory().join("server-etc");
    let etc = etc.to_str().expect("path");
    let third = Cell::with_options(cell.port, &["--join", etc, "--bind", THIRD]);
    cellar_until::until_blocking("registered", || {
        cell.ok("vos listaddrs -noresolve").contains(THIRD)
    });
    third
}

/// A volume on the second server with a file, mounted in scratch under its name. Its read-only
/// volume is mounted beside it.
fn volume(cell: &Cell, name: &str, server: &str) {
    cell.ok(&format!("vos create {server} a {name} -maxquota 0"));
    cell.ok(&format!(
        "fs mkmount /afs/test.cell/scratch/{name} {name} -rw"
    ));
    cell.ok(&format!(
        "fs mkmount /afs/test.cell/scratch/{name}.ro {name}.readonly"
    ));
    cell.ok(&format!("fs setacl {name} system:anyuser rlidwk"));
    store(cell, name, "before");
}

/// Stores a file with the given contents.
fn store(cell: &Cell, volume: &str, contents: &str) {
    let local = cell.local("file");
    fs::write(&local, contents).expect("file");
    cell.ok(&format!(
        "cp {} /afs/test.cell/scratch/{volume}/file",
        local.display()
    ));
}

fn read(cell: &Cell, directory: &str) -> String {
    cell.ok(&format!("cat /afs/test.cell/scratch/{directory}/file"))
}

/// The servers of a volume's sites of a kind.
fn sites(cell: &Cell, volume: &str, kind: &str) -> Vec<String> {
    let listed = cell.json(&format!("vos listvldb -name {volume} -json"));
    let sites = listed["entries"][0]["sites"].as_array().expect("sites");
    let of_kind = sites.iter().filter(|site| {
        let flags = site["flags"].as_array().expect("flags");
        flags.contains(&Value::from(kind))
    });
    let mut servers: Vec<_> = of_kind
        .map(|site| site["server"].as_str().expect("a server").to_owned())
        .collect();
    servers.sort();
    servers
}

/// The number of volumes on a server's first partition.
fn held(cell: &Cell, server: &str) -> usize {
    let volumes = cell.json(&format!("vos listvol {server} a -json"));
    volumes["/vicepa"].as_array().expect("a list").len()
}

#[test]
fn a_drained_server_is_empty_and_its_volumes_are_elsewhere_unchanged() {
    let cell = Cell::new();
    let mut second = cell.join();
    let _third = third(&cell);
    volume(&cell, "moves", SECOND);
    volume(&cell, "stays", "127.0.0.1");
    volume(&cell, "dropped", "127.0.0.1");
    for (volume, servers) in [
        ("moves", &["127.0.0.1", SECOND][..]),
        ("stays", &[SECOND]),
        ("dropped", &["127.0.0.1", SECOND, THIRD]),
    ] {
        for server in servers {
            cell.ok(&format!("vos addsite {server} a {volume}"));
        }
        cell.ok(&format!("vos release {volume}"));
    }
    // Not released: a drain must not publish it.
    store(&cell, "moves", "after");
    let refused = cell.fails(&format!("server remove {SECOND}"));
    assert!(
        refused.contains("dropped, moves, stays") && refused.contains("cellar server drain"),
        "{refused}"
    );
    let line = format!("server drain {SECOND} --to 127.0.0.1 --to {THIRD}");
    let plan = cell.json(&format!("{line} --dry-run --json"));
    let actions = plan["steps"].as_array().expect("steps").iter();
    let mut actions: Vec<_> = actions
        .map(|step| format!("{} {}", step["name"], step["action"]).replace('"', ""))
        .collect();
    actions.sort();
    let expected = [
        "dropped drop_site",
        "moves move",
        "moves move_site",
        "stays move_site",
    ];
    assert_eq!(actions, expected);
    assert_eq!(sites(&cell, "moves", "read_write"), [SECOND], "a plan");
    let said = cell.ok(&line);
    assert!(said.contains("is empty"), "{said}");
    assert_eq!(held(&cell, SECOND), 0);
    assert_ne!(sites(&cell, "moves", "read_write"), [SECOND]);
    assert_eq!(sites(&cell, "moves", "read_only"), ["127.0.0.1", THIRD]);
    assert_eq!(sites(&cell, "dropped", "read_only"), ["127.0.0.1", THIRD]);
    assert_eq!(sites(&cell, "stays", "read_only").len(), 1);
    assert_eq!(read(&cell, "moves"), "after");
    for volume in ["moves.ro", "stays.ro", "dropped.ro"] {
        assert_eq!(read(&cell, volume), "before", "{volume}");
    }
    // The next release finds the copies usable.
    cell.ok("vos release moves");
    assert_eq!(read(&cell, "moves.ro"), "after");
    let again = cell.json(&format!("{line} --json"));
    assert_eq!(again["steps"], serde_json::json!([]));
    assert_eq!(again["empty"], true);
    cell.ok(&format!("server remove {SECOND} --dry-run"));
    assert!(cell.ok("vos listaddrs -noresolve").contains(SECOND));
    let said = cell.ok(&format!("server remove {SECOND}"));
    assert!(said.contains("systemctl disable"), "{said}");
    assert!(!cell.ok("vos listaddrs -noresolve").contains(SECOND));
    second.end("-TERM");
}

#[test]
fn a_drain_that_cannot_end_says_why() {
    let cell = Cell::new();
    let failed = cell.fails("server drain 127.0.0.1");
    for words in ["root.cell", "no other file server", "is not empty"] {
        assert!(failed.contains(words), "{failed}");
    }
    assert!(cell.fails("server drain 192.0.2.1").contains("listaddrs"));
    let itself = cell.fails("server drain 127.0.0.1 --to 127.0.0.1");
    assert!(itself.contains("--to names another"), "{itself}");
    let mut second = cell.join();
    // A volume that the VLDB does not have stays, with the remedy.
    cell.ok(&format!("vos create {SECOND} a lost"));
    cell.ok("vos delentry lost");
    let failed = cell.fails(&format!("server drain {SECOND} --to 127.0.0.1"));
    assert!(
        failed.contains("lost (") && failed.contains("syncvldb"),
        "{failed}"
    );
    second.end("-TERM");
    let failed = cell.fails(&format!("server drain {SECOND}"));
    assert!(failed.contains("convertROtoRW"), "{failed}");
}

#[test]
fn a_killed_drain_is_continued() {
    let cell = Cell::new();
    let _second = cell.join();
    let names = ["one", "two", "three"];
    for name in names {
        volume(&cell, name, SECOND);
        cell.ok(&format!("vos addsite {SECOND} a {name}"));
        cell.ok(&format!("vos release {name}"));
    }
    let line = format!("server drain {SECOND} --to 127.0.0.1 --parallel 2");
    let seed = u64::from(std::process::id());
    for kill in 0..3 {
        let wait = Duration::from_millis(40 + (seed * 31 + kill * 97) % 260);
        eprintln!("killed after {wait:?}");
        let mut drain = Command::new(env!("CARGO_BIN_EXE_cellar"))
            .args(line.split_whitespace())
            .env("CELLAR_DIR", cell.directory())
            .env("CELLAR_CELLSERVDB", "/nonexistent")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        // The moment of the kill is the test.
        std::thread::sleep(wait);
        drain.kill().expect("killed");
        drain.wait().expect("ended");
    }
    // A copy whose site has moved already may be left; the drain names it.
    let outcome = cell.run(line.split_whitespace());
    if outcome.status != 0 {
        assert!(outcome.err.contains("vos zap"), "{}", outcome.err);
    }
    for name in names {
        assert_eq!(sites(&cell, name, "read_write"), ["127.0.0.1"]);
        assert_eq!(sites(&cell, name, "read_only"), ["127.0.0.1"]);
        assert_eq!(read(&cell, name), "before");
        assert_eq!(read(&cell, &format!("{name}.ro")), "before");
    }
}

#[test]
fn a_machine_with_the_old_directory_takes_the_place_of_the_old_one() {
    let cell = Cell::new();
    let mut second = cell.join();
    volume(&cell, "data", SECOND);
    let running = cell.fails(&format!("server replace {SECOND} {THIRD}"));
    assert!(running.contains("still answers"), "{running}");
    second.end("-TERM");
    let plan = cell.json(&format!("server replace {SECOND} {THIRD} --dry-run --json"));
    assert_eq!(plan["plan"]["action"], "readdress");
    assert_eq!(plan["replaced"], false);
    assert_eq!(sites(&cell, "data", "read_write"), [SECOND]);
    cell.ok(&format!("server replace {SECOND} {THIRD}"));
    assert_eq!(sites(&cell, "data", "read_write"), [THIRD]);
    second.start_with(&["--bind", THIRD]);
    assert_eq!(read(&cell, "data"), "before");
    let addresses = cell.ok("vos listaddrs -noresolve");
    assert!(!addresses.contains(SECOND), "{addresses}");
    let gone = cell.fails(&format!("server replace {SECOND} {THIRD}"));
    assert!(gone.contains("has its place already"), "{gone}");
}

#[test]
fn a_machine_of_its_own_identity_adopts_the_volumes_of_the_old_one() {
    let cell = Cell::new();
    let mut second = cell.join();
    volume(&cell, "data", SECOND);
    let dump = cell.local("dump");
    cell.ok(&format!("vos dump data -file {}", dump.display()));
    second.end("-KILL");
    let mut third = third(&cell);
    let refused = cell.fails(&format!("server replace {SECOND} {THIRD}"));
    assert!(
        refused.contains("data (") && refused.contains("--force"),
        "{refused}"
    );
    assert_eq!(sites(&cell, "data", "read_write"), [SECOND]);
    cell.ok(&format!("server replace {SECOND} {THIRD} --force"));
    assert_eq!(sites(&cell, "data", "read_write"), [THIRD]);
    cell.ok(&format!(
        "vos restore {THIRD} a data -file {} -overwrite f",
        dump.display()
    ));
    assert_eq!(read(&cell, "data"), "before");
    // The machine keeps the place: it registers with the UUID of the entry.
    third.end("-TERM");
    third.start();
    assert_eq!(sites(&cell, "data", "read_write"), [THIRD]);
    assert_eq!(read(&cell, "data"), "before");
    let registered = cell.ok("vos listaddrs -noresolve");
    assert_eq!(registered.matches(THIRD).count(), 1, "{registered}");
    // A server with volumes cannot take a place.
    volume(&cell, "other", THIRD);
    let first = cell.fails(&format!("server replace {THIRD} 127.0.0.1"));
    assert!(first.contains("still answers"), "{first}");
    third.end("-TERM");
    let first = cell.fails(&format!("server replace {THIRD} 127.0.0.1"));
    assert!(first.contains("a server of its own"), "{first}");
}
