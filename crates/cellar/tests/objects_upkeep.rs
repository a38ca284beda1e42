//! Files in objects on a real cell: devices that are emptied and taken away, garbage, repairs.

mod common;

use common::{Cell, until};
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

/// What `osd objects` counts on a device.
fn objects(cell: &Cell, device: u32) -> usize {
    let listed = cell.json(&format!("osd objects {device} -json"));
    listed.as_array().map_or(0, Vec::len)
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
        std::fs::write(&local, &bytes).expect("a file");
        let copy = format!(
            "cp --admin --layout stripes=2,stripe-size=64K {} {}",
            local.display(),
            path(&name)
        );
        // The file server hears of the devices a little later.
        until(&copy, || cell.run(copy.split(' ')).status == 0);
        files.push((name, bytes));
    }
    // By the file server: who reads at the devices keeps what he reads from being collected for minutes.
    let check = |files: &[(String, String)]| {
        for (name, text) in files {
            assert!(cell.ok(&format!("cat {}", path(name))) == *text, "{name}");
        }
    };
    check(&files);
    cell.ok("vos backup scratch");

    // Refused while it is needed; emptied; taken away.
    let leaving = (2..5).find(|device| objects(&cell, *device) > 0);
    let leaving = leaving.expect("a device with objects");
    let on_all = |cell: &Cell| (2..5).map(|device| objects(cell, device)).sum::<usize>();
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

    // Clones keep what they need, and nobody else anything.
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

    // All of it, when nobody needs it any more.
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
