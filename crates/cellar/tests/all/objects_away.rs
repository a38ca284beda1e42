//! New files on a real cell while a device is dead, and right after a start. They are stored on
//! devices, never on the file server's disk, and are complete when the device is back.

use std::time::{Duration, Instant};

use crate::common::Cell;
use crate::common::devices::{
    Servers, TOP, comes_back, devices_are, devices_of, local, pieces, ready,
};
use cellar_until::until_blocking;
use serde_json::json;

/// As many devices as the layouts have objects.
const DEVICES: u16 = 4;

#[test]
fn with_one_device_dead_new_files_are_stored_and_repaired_when_it_is_back() {
    let cell = Cell::with(&[]);
    let mut servers = Servers::start(&cell, DEVICES);
    ready(&cell, DEVICES.into());
    servers.kill(0);
    devices_are(&cell, 1, "down");
    let dead = servers.devices()[0];
    let mut files = Vec::new();
    for (name, policy) in [
        ("stripes", "osd, stripes=4, stripe_size=64k;"),
        ("copies", "osd, stripes=2, copies=2, stripe_size=64k;"),
        ("parity", "osd, ec=2+2, stripe_size=64k;"),
    ] {
        cell.run(["osd", "policy", "add", name, &format!("=> {policy}")])
            .ok("osd policy add");
        let set = format!("vos setfields scratch -osdpolicy {name}");
        until_blocking(&set, || cell.run(set.split(' ')).status == 0);
        // Directly to the devices, and through the file server.
        for length in [2_000_000, 200_000] {
            let name = format!("{name}{length}");
            let (path, bytes) = local(&cell, &name, length);
            cell.ok(&format!("cp {} {TOP}/{name}", path.display()));
            comes_back(&cell, &name, &bytes);
            let found = pieces(&cell, &name);
            assert_eq!(found["readable"], json!(true), "{found}");
            let on = devices_of(&cell, &name);
            if name.starts_with("stripes") {
                assert!(on.len() == 3 && !on.contains(&dead), "{on:?}");
            } else {
                assert_eq!(on.len(), 4, "{found}");
                assert_eq!(found["redundant"], json!(false), "{found}");
            }
            files.push((name, bytes));
        }
    }
    let test = cell.ok("osd policy test x -size 2m -policy stripes");
    assert!(test.contains("the file gets 3 of 4 stripes"), "{test}");
    let test = cell.ok("osd policy test x -size 2m -policy parity");
    assert!(test.contains("1 of its objects are made later"), "{test}");
    servers.begin(0);
    devices_are(&cell, DEVICES.into(), "up");
    for (name, bytes) in &files {
        if !name.starts_with("stripes") {
            until_blocking(&format!("{name} is complete"), || {
                pieces(&cell, name)["redundant"] == json!(true)
            });
        }
        comes_back(&cell, name, bytes);
    }
    // Files from that time are complete, so another device may fail.
    servers.kill(1);
    for (name, bytes) in files
        .iter()
        .filter(|(name, _)| !name.starts_with("stripes"))
    {
        comes_back(&cell, name, bytes);
    }
}

#[test]
fn right_after_a_start_a_new_file_waits_for_the_devices() {
    let mut cell = Cell::with(&["--osds", "2"]);
    ready(&cell, 2);
    for round in 0..3 {
        cell.end("-KILL");
        cell.start();
        let began = Instant::now();
        // By its size alone.
        let name = format!("f{round}");
        let (path, bytes) = local(&cell, &name, 1_500_000);
        cell.ok(&format!("cp {} {TOP}/{name}", path.display()));
        let took = began.elapsed();
        assert!(took < Duration::from_secs(60), "it waited for {took:?}");
        let on = devices_of(&cell, &name);
        assert_eq!(on.len(), 1, "the file is on the file server's disk");
        comes_back(&cell, &name, &bytes);
    }
}
