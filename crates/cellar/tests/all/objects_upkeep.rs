//! Files in objects on a real cell: devices that are drained and removed, garbage, repairs.

use std::collections::HashSet;
use std::fs;
use std::time::{Duration, Instant};

use crate::common::Cell;
use crate::common::devices::{
    Held, Servers, TOP, comes_back, devices_are, devices_of, local, objects_of, objects_on, pieces,
    ready, repairs, seen_on, spoil,
};
use cellar_until::{until_blocking, until_some_blocking};
use serde_json::json;

/// Letters that do not repeat.
fn pattern(length: usize, seed: u32) -> String {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let next = move || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        char::from(b'a' + (state >> 8) as u8 % 26)
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// The number of objects that `osd objects` lists for a device.
fn objects(cell: &Cell, device: u64) -> usize {
    objects_on(cell, device).len()
}

#[test]
fn a_device_is_emptied_and_taken_away_and_garbage_is_collected() {
    let cell = Cell::with(&["--osds", "3"]);
    cell.ok("vos setfields scratch -osdpolicy 1");
    let path = |name: &str| format!("/afs/test.cell/scratch/{name}");
    let mut files = Vec::new();
    for n in 0..4 {
        let (name, bytes) = (format!("f{n}"), pattern(3 << 20, n));
        let local = cell.local(&name);
        fs::write(&local, &bytes).expect("a file");
        let copy = format!(
            "cp --admin --layout stripes=2,stripe-size=64K {} {}",
            local.display(),
            path(&name)
        );
        // The file server learns of the devices a little later.
        until_blocking(&copy, || cell.run(copy.split(' ')).status == 0);
        files.push((name, bytes));
    }
    // Through the file server: data that a client reads directly at the devices is not collected
    // for minutes.
    let check = |files: &[(String, String)]| {
        for (name, text) in files {
            assert!(cell.ok(&format!("cat {}", path(name))) == *text, "{name}");
        }
    };
    check(&files);
    cell.ok("vos backup scratch");

    // Refused while it is needed; drained; removed.
    let leaving = (2..5u64).find(|device| objects(&cell, *device) > 0);
    let leaving = leaving.expect("a device with objects");
    // The removed device is not served.
    let on_all = |cell: &Cell| -> usize {
        let staying = (2..5).filter(|device| *device != leaving);
        staying.map(|device| objects(cell, device)).sum()
    };
    // The plan of a drain of the whole server names the command for its devices.
    let plan = cell.run("server drain 127.0.0.1 --dry-run".split(' ')).out;
    let remedy = format!("'cellar osd drain {leaving} -wait'");
    assert!(plan.contains(&remedy), "{plan}");
    let error = cell.fails(&format!("osd remove {leaving}"));
    let needed = format!("files have objects on device {leaving}");
    assert!(error.contains(&needed), "{error}");
    let said = cell.ok(&format!("osd drain {leaving} -wait"));
    assert!(said.contains("is empty"), "{said}");
    let files_there = cell.json(&format!("osd files {leaving} -json"));
    assert_eq!(files_there["files"], json!([]));
    check(&files);
    let status = cell.json("osd repair-status -json");
    let queue = &status["servers"][0];
    assert!(queue["repaired"].as_u64() > Some(0), "{status}");
    assert_eq!(queue["failed"], json!(0), "{status}");
    assert!(cell.ok("osd repair-status").contains("Repaired"));

    // Clones keep the objects that they need, and no others.
    cell.ok(&format!("rm {}", path("f3")));
    let listed = cell.json("osd collect -dryrun -grace 0 -json");
    let volumes = listed.as_array().expect("a list");
    assert_eq!(volumes.len(), 1, "{listed}");
    assert_eq!(volumes[0]["silent"], json!([]));
    cell.ok("osd collect -grace 0");
    let left = cell.json("osd collect -dryrun -grace 0 -json");
    assert_eq!(left[0]["garbage"], json!([]), "{left}");
    assert_eq!(objects(&cell, leaving), 0);
    cell.ok(&format!("osd remove {leaving}"));
    check(&files[..3]);

    // All of it, when no volume needs it any more.
    let before = on_all(&cell);
    assert!(
        before >= 8,
        "{before}: the backup has four files of two stripes"
    );
    cell.ok("vos remove -id scratch.backup");
    for n in 0..3 {
        cell.ok(&format!("rm {}", path(&format!("f{n}"))));
    }
    let spared = cell.ok("osd collect");
    assert!(
        spared.contains("No objects") || spared.contains("0 pieces of garbage"),
        "{spared}"
    );
    cell.ok("osd collect -grace 0");
    assert_eq!(on_all(&cell), 0);
    assert_eq!(cell.ok("osd collect -dryrun"), "No objects\n");
    for (line, said) in [
        ("osd collect -grace x", "is not a time"),
        ("osd collect -volume nosuch", "no such entry"),
    ] {
        let error = cell.fails(line);
        assert!(error.contains(said), "{line}: {error}");
    }
}

/// An object of a file that is being made on one of the devices `on`, with its device: the first
/// that is not `known`. All devices are asked at the same time, so that the answer is early. The
/// `source` of a copy has a turn before each look.
fn being_made(
    cell: &Cell,
    file: &str,
    on: &[u64],
    known: &mut HashSet<String>,
    source: Option<&Held>,
) -> (u64, String) {
    until_some_blocking(&format!("an object of {file} is being made"), || {
        if let Some(source) = source {
            source.turn();
        }
        let lists: Vec<(u64, Vec<String>)> = std::thread::scope(|scope| {
            // A device that was just started may not answer yet.
            let ask = |device: u64| (device, seen_on(cell, device).unwrap_or_default());
            let asked = on.iter().map(|device| scope.spawn(move || ask(*device)));
            let asked: Vec<_> = asked.collect();
            let lists = asked.into_iter().map(|list| list.join());
            lists.map(|list| list.expect("a list")).collect()
        });
        lists.into_iter().find_map(|(device, seen)| {
            let mut seen = seen.into_iter();
            let object = seen.find(|o| o.starts_with(file) && known.insert(o.clone()))?;
            Some((device, object))
        })
    })
}

/// A device dies for good. During the repair two devices are killed: one from which the object is
/// computed, while it is read, then the one that receives the object.
///
/// The repair must last longer than the commands that find its object. `rate`, in MiB/s, delays
/// each step of a computation. A copy is one call between two devices, which no rate delays: its
/// source is stopped, and runs for a moment before each look.
fn repairs_go_on(name: &str, layout: &str, length: usize, rate: &str) {
    let options = [
        "--repair-after",
        "1",
        "--repair-rate",
        rate,
        "--collect-every",
        "0",
    ];
    let cell = Cell::with(&options);
    let mut servers = Servers::start(&cell, 7);
    ready(&cell, 7);
    let (path, bytes) = local(&cell, name, length);
    cell.ok(&format!(
        "cp --admin --layout {layout} {} {TOP}/{name}",
        path.display()
    ));
    let all = servers.devices();
    let place_of = |device: u64| all.iter().position(|one| *one == device).expect("ours");
    let on_all = all.iter().flat_map(|device| objects_on(&cell, *device));
    let mut known: HashSet<String> = on_all.collect();
    let (devices, objects) = (devices_of(&cell, name), objects_of(&cell, name));
    let (file, _) = objects[0].rsplit_once('.').expect("a serial number");
    let lost = devices[0];
    servers.kill(place_of(lost));
    let source = place_of(devices[1]);
    let hold = |servers: &Servers| (name == "copies").then(|| servers.hold(source));
    let held = hold(&servers);
    // The source is no target of a repair.
    let others = [lost, devices[1]];
    let on = all.iter().copied().filter(|one| !others.contains(one));
    let on: Vec<u64> = on.collect();
    // So long that no call continues with a restarted process.
    let away = |servers: &mut Servers, places: &[usize], held: Option<Held>| {
        for place in places {
            servers.kill(*place);
        }
        drop(held);
        std::thread::sleep(Duration::from_secs(12));
        for place in places {
            servers.begin(*place);
        }
    };
    let (target, object) = being_made(&cell, file, &on, &mut known, held.as_ref());
    let mut never = vec![object];
    if name == "copies" {
        // No other device has the bytes, so the repair is tried again.
        away(&mut servers, &[source], held);
        let held = hold(&servers);
        let (target, object) = being_made(&cell, file, &on, &mut known, held.as_ref());
        never.push(object);
        away(&mut servers, &[place_of(target)], held);
    } else {
        // Four of seven are left, which are enough to compute it.
        away(&mut servers, &[source, place_of(target)], held);
    }
    until_blocking(&format!("{name} is complete again"), || {
        let now = pieces(&cell, name);
        now["redundant"] == json!(true) && !devices_of(&cell, name).contains(&lost)
    });
    let now = objects_of(&cell, name);
    let early = never.iter().find(|object| now.contains(object));
    assert_eq!(
        early, None,
        "the object was complete before a process was killed"
    );
    until_blocking("nothing waits", || repairs(&cell)["waiting"] == json!(0));
    servers.begin(place_of(lost));
    devices_are(&cell, 7, "up");
    // Its objects are of no use any more. The other objects on it are in their place or elsewhere.
    until_blocking("the file is complete", || {
        repairs(&cell)["waiting"] == json!(0) && pieces(&cell, name)["redundant"] == json!(true)
    });
    // All named objects exist, and no others stay.
    let mut named = objects_of(&cell, name);
    named.sort_unstable();
    until_blocking("only named objects are left", || {
        cell.ok("osd collect -grace 0");
        let on_all = all.iter().flat_map(|device| objects_on(&cell, *device));
        let mut there: Vec<String> = on_all.collect();
        there.sort_unstable();
        assert!(named.iter().all(|object| there.contains(object)));
        there == named
    });
    // The rebuilt object is the one that is read now.
    let devices = devices_of(&cell, name);
    let away = match name {
        "copies" => &devices[1..],
        _ => &devices[1..3],
    };
    for device in away {
        servers.kill(servers.of(*device));
    }
    comes_back(&cell, name, &bytes);
    for device in away {
        servers.begin(servers.of(*device));
    }
    devices_are(&cell, 7, "up");
}

#[test]
fn repairs_of_copies_go_on_when_devices_that_take_part_are_killed() {
    repairs_go_on("copies", "copies=2", 160 << 20, "0");
}

#[test]
fn repairs_of_a_code_go_on_when_devices_that_take_part_are_killed() {
    // An object has 15 MiB.
    repairs_go_on("parity", "ec=4+2,stripe-size=64K", 60 << 20, "1");
}

/// Without a command: objects that no file names are removed when their time has come, and not
/// before. Named objects stay, and are healed.
#[test]
fn garbage_goes_and_damage_is_healed_unasked() {
    const GRACE: Duration = Duration::from_secs(20);
    let cell = Cell::with(&["--collect-every", "1s", "--collect-grace", "20s"]);
    let mut servers = Servers::start_with(&cell, 3, &["--scrub-every", "2s"]);
    ready(&cell, 3);
    let store = |name: &str| {
        let (path, bytes) = local(&cell, name, 2_000_000);
        let path = path.display();
        cell.ok(&format!("cp --admin --layout copies=2 {path} {TOP}/{name}"));
        (objects_of(&cell, name), devices_of(&cell, name), bytes)
    };
    type Stored = (Vec<String>, Vec<u64>, Vec<u8>);
    let count = |(objects, devices, _): &Stored| {
        let places = objects.iter().zip(devices);
        let is_there = |(object, device): &(&String, &u64)| {
            let seen = seen_on(&cell, **device);
            // A device that does not answer still has its objects.
            seen.is_none_or(|seen| seen.contains(object))
        };
        places.filter(is_there).count()
    };
    let (stays, cloned, missed) = (store("stays"), store("cloned"), store("missed"));
    cell.ok("vos backup scratch");
    cell.ok(&format!("rm {TOP}/cloned"));
    cell.ok(&format!("rm {TOP}/missed"));
    // Nothing is collected after the grace either.
    std::thread::sleep(GRACE + Duration::from_secs(3));
    let all = [count(&stays), count(&cloned), count(&missed)];
    assert_eq!(all, [2; 3], "the backup volume needs them");

    // A new backup volume names neither of the two. One device's share is found when the device is
    // back.
    let away = servers.of(missed.1[0]);
    servers.kill(away);
    cell.ok("vos remove -id scratch.backup");
    servers.begin(away);
    let written = Instant::now();
    let goes = store("goes");
    cell.ok("vos backup scratch");
    cell.ok(&format!("rm {TOP}/goes"));
    cell.ok("vos remove -id scratch.backup");
    let left = || {
        let left = count(&goes);
        let age = written.elapsed();
        assert!(left == 2 || age >= GRACE, "gone after {age:?}");
        left
    };
    until_blocking("old garbage is collected", || {
        left();
        count(&cloned) + count(&missed) == 0
    });
    until_blocking("recent garbage is collected", || left() == 0);
    assert_eq!(count(&stays), 2);

    // A block that no client reads.
    let (objects, devices, bytes) = stays;
    let place = servers.of(devices[0]);
    servers.stop(place);
    spoil(&servers.disk(place), &bytes[1_000_000..1_000_064]);
    servers.begin(place);
    until_blocking("a damaged object is healed", || {
        repairs(&cell)["healed"] == json!(1) && pieces(&cell, "stays")["redundant"] == json!(true)
    });
    let now = objects_of(&cell, "stays");
    assert_ne!(now[0], objects[0]);
    assert_eq!(now[1], objects[1]);
    // The new one alone.
    servers.kill(servers.of(devices[1]));
    comes_back(&cell, "stays", &bytes);
}
