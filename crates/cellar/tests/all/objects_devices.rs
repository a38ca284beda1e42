//! Servers of several devices, and removed objects that are restored.

use std::process::{Child, Command, Stdio};

use crate::common::Cell;
use crate::common::devices::{
    TOP, comes_back, devices_are, devices_of, local, objects_of, objects_on, ready, seen_on,
};
use cellar_until::until_blocking;
use serde_json::{Value, json};

/// A process that serves devices of these numbers; it is killed when it is dropped.
struct Server(Child);

impl Server {
    fn start(cell: &Cell, devices: &str, port: u16) -> Self {
        let server = Command::new(env!("CARGO_BIN_EXE_cellar"))
            .args(["osd", "serve", "--dir"])
            .arg(cell.local("disks"))
            .args(["--id", devices, "--port", &port.to_string()])
            .args(["--fileserver-port", &cell.port.to_string()])
            .arg("--join")
            .arg(cell.directory().join("server-etc"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("the program starts");
        Self(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

#[test]
fn one_process_serves_several_devices() {
    let cell = Cell::with(&[]);
    let port = cell.port + 11;
    let ids = [7, 9];
    for id in ids {
        cell.ok(&format!(
            "osd create disk{id} 127.0.0.1 -id {id} -port {port}"
        ));
    }
    let server = Server::start(&cell, "7,9", port);
    ready(&cell, 2);
    let (path, bytes) = local(&cell, "large", 3_000_000);
    cell.ok(&format!(
        "cp --admin --layout stripes=2,stripe-size=64K --verify {} {TOP}/file",
        path.display()
    ));
    let mut devices = devices_of(&cell, "file");
    devices.sort_unstable();
    assert_eq!(devices, ids);
    // Each device has its own objects, in a directory of its own.
    for (device, object) in devices_of(&cell, "file")
        .into_iter()
        .zip(objects_of(&cell, "file"))
    {
        assert_eq!(objects_on(&cell, device), [object]);
        let disk = cell.local("disks").join(format!("osd{device}"));
        assert!(disk.is_dir(), "{}", disk.display());
    }
    drop(server);
    devices_are(&cell, 2, "down");
    // One of them is known alone, too.
    let one = Server::start(&cell, "9", port);
    devices_are(&cell, 1, "up");
    assert_eq!(cell.json("osd examine 7 -json")["state"], json!("down"));
    assert_eq!(objects_on(&cell, 9).len(), 1);
    drop(one);
    let _both = Server::start(&cell, "7,9", port);
    devices_are(&cell, 2, "up");
    until_blocking("the file server learns that they are back", || {
        let line = format!("cat {TOP}/file");
        cell.run(line.split(' ')).status == 0
    });
    comes_back(&cell, "file", &bytes);
}

#[test]
fn a_removed_device_is_not_served_until_it_is_put_back() {
    let cell = Cell::with(&[]);
    let port = cell.port + 11;
    for id in [7, 9] {
        cell.ok(&format!(
            "osd create disk{id} 127.0.0.1 -id {id} -port {port}"
        ));
    }
    let server = Server::start(&cell, "7,9", port);
    devices_are(&cell, 2, "up");
    let refused = || {
        let answer = cell.run(["osd", "objects", "7"]);
        answer.status == 1 && answer.err.contains("does not serve device 7")
    };
    assert!(seen_on(&cell, 7).is_some());
    cell.ok("osd remove 7");
    until_blocking("the removed device is refused", refused);
    assert!(objects_on(&cell, 9).is_empty(), "the other is served");
    // A restart with the directory of the removed device does not serve it either.
    drop(server);
    let _again = Server::start(&cell, "7,9", port);
    until_blocking("the other is served", || seen_on(&cell, 9).is_some());
    until_blocking("the removed device is refused", refused);
    cell.ok("osd set 7 -obsolete off");
    until_blocking("it is served again", || seen_on(&cell, 7).is_some());
}

#[test]
fn softly_removed_objects_come_back() {
    let cell = Cell::with(&["--osds", "1"]);
    ready(&cell, 1);
    let (path, bytes) = local(&cell, "large", 1_500_000);
    let path = path.display();
    let removed = || -> Vec<String> {
        let listed = cell.json("osd objects 2 -onlyunlinked -json");
        let listed = listed.as_array().expect("objects").iter();
        let object = |one: &Value| one["object"].as_str().expect("an object").to_owned();
        listed.map(object).collect()
    };
    // The device learns from its heartbeats that it keeps removed objects; until then it does not.
    cell.ok("osd set 2 -dont_unlink on");
    let mut kept = String::new();
    until_blocking("the device keeps removed objects", || {
        cell.ok(&format!("cp --admin --layout stripes=1 {path} {TOP}/file"));
        kept = objects_of(&cell, "file").remove(0);
        cell.ok(&format!("rm {TOP}/file"));
        until_blocking("the object is removed", || {
            !objects_on(&cell, 2).contains(&kept)
        });
        removed().contains(&kept)
    });
    let checksum = format!("osd checksum 2 {kept} -json");
    let error = cell.fails(&checksum);
    assert!(error.contains("is not on device"), "{error}");
    // It is restored unchanged, and only once.
    let undelete = format!("osd undelete 2 {kept} -json");
    assert_eq!(cell.json(&undelete), json!({ "asked": 1, "restored": 1 }));
    assert!(objects_on(&cell, 2).contains(&kept));
    assert!(!removed().contains(&kept));
    let sums = cell.json(&checksum);
    let crc32c = format!("{:08x}", crc32c::crc32c(&bytes));
    assert_eq!(sums["crc32c"], json!(crc32c));
    let answer = cell.run(undelete.split(' '));
    assert_eq!(answer.status, 1, "{}", answer.out);
    // No file names it: it is garbage, kept once more, until it is purged.
    cell.ok("osd collect -grace 0");
    assert!(removed().contains(&kept));
    let purged = cell.json("osd purge 2 -all -json");
    assert!(purged["purged"].as_u64() >= Some(1), "{purged}");
    assert!(removed().is_empty());
    let answer = cell.run(undelete.split(' '));
    assert_eq!(answer.status, 1, "{}", answer.out);
    assert!(answer.out.contains("\"restored\": 0"), "{}", answer.out);
}
