//! Files in objects on a real cell, created by `cellar cp`. The devices are in the cell's process
//! and in other processes, which are killed, stopped and damaged.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::Cell;
use crate::common::devices::{
    Servers, TOP, comes_back, devices_are, devices_of, local, pieces, ready, spoil,
};
use cellar_cachemanager::{Anonymous, Cache, Leases, NewAttributes, Options, Root};
use cellar_client::{CellName, Ports};
use cellar_rpc::{PortConfig, Runtime};
use cellar_until::until_blocking;
use cellar_wire::acl::Rights;
use cellar_wire::ids::AfsTime;
use md5::Md5;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Stores a file of each kind and copies it back.
const KINDS: [(&str, &str, usize); 5] = [
    ("stripes=1", "one object", 1),
    (
        "stripes=4,stripe-size=64K",
        "4 stripes in units of 64 KiB",
        4,
    ),
    (
        "stripes=2,stripe-size=64K,copies=2",
        "2 stripes in units of 64 KiB, in 2 copies",
        4,
    ),
    ("copies=3", "one object in 3 copies", 3),
    (
        "ec=4+2,stripe-size=64K",
        "an erasure code of 4 data and 2 parity objects, in units of 64 KiB",
        6,
    ),
];

#[test]
fn every_layout_is_stored_looked_at_and_fetched() {
    let cell = Cell::with(&["--osds", "7"]);
    ready(&cell, 7);
    let (path, bytes) = local(&cell, "large", 3_333_333);
    let path = path.display();
    for (number, (layout, shape, objects)) in KINDS.into_iter().enumerate() {
        let name = format!("k{number}");
        cell.ok(&format!(
            "cp --admin --layout {layout} --verify {path} {TOP}/{name}"
        ));
        comes_back(&cell, &name, &bytes);
        let found = pieces(&cell, &name);
        assert_eq!(
            (&found["shape"], &found["length"]),
            (&json!(shape), &json!(bytes.len())),
            "{layout}"
        );
        assert_eq!(
            (&found["readable"], &found["redundant"]),
            (&json!(true), &json!(true)),
            "{found}"
        );
        let mut devices = devices_of(&cell, &name);
        devices.sort_unstable();
        devices.dedup();
        assert_eq!(devices.len(), objects, "{layout}: a device for each object");
    }
    // By size: small files stay on the file server, and so do files without a policy.
    let (small, _) = local(&cell, "small", 100_000);
    cell.ok(&format!("cp {} {path} {TOP}", small.display()));
    assert_eq!(pieces(&cell, "small")["shape"], json!(null));
    assert_eq!(pieces(&cell, "large")["shape"], json!("one object"));
    // A copy within the cell is a file of its own.
    cell.ok(&format!(
        "cp --admin --layout copies=2 {TOP}/k4 {TOP}/copied"
    ));
    cell.ok(&format!("rm {TOP}/k4"));
    comes_back(&cell, "copied", &bytes);

    // A file whose layout is impossible does not exist afterwards; existing files stay readable.
    let error = cell.fails(&format!("cp --admin --layout ec=8+2 {path} {TOP}/wide"));
    assert!(error.contains("wide"), "{error}");
    assert!(!cell.ok(&format!("ls {TOP}")).contains("wide"));
    cell.ok("vos setfields scratch -osdpolicy 0");
    comes_back(&cell, "k3", &bytes);

    // The administrator examines a device.
    let one = &pieces(&cell, "k0")["pieces"][0];
    let (device, object) = (
        one["osd"].as_u64().expect("number"),
        one["object"].as_str().expect("object"),
    );
    let sums = cell.json(&format!("osd checksum {device} {object} -json"));
    let hexadecimal = |sum: &[u8]| -> String { sum.iter().map(|b| format!("{b:02x}")).collect() };
    assert_eq!(sums["md5"], json!(hexadecimal(&Md5::digest(&bytes))));
    assert_eq!(sums["sha256"], json!(hexadecimal(&Sha256::digest(&bytes))));
    let crc32c = format!("{:08x}", crc32c::crc32c(&bytes));
    assert_eq!(
        (&sums["crc32c"], &sums["length"]),
        (&json!(crc32c), &json!(bytes.len()))
    );
    let text = cell.ok(&format!("osd md5sum {device} {object}"));
    assert!(text.contains(&crc32c), "{text}");
    let error = cell.fails(&format!("osd checksum {device} {object} -version 1"));
    assert!(error.contains("is not on device"), "{error}");
    let examined = cell.json(&format!("osd examine {device} {object} -json"));
    assert_eq!(examined["versions"][0]["length"], json!(bytes.len()));
    let listed = cell.json(&format!("osd objects {device} scratch -json"));
    let listed = listed.as_array().expect("objects");
    assert!(listed.iter().any(|one| one["object"] == object));
    let files = cell.json(&format!("osd files {device} -json"));
    assert!(!files["files"].as_array().expect("files").is_empty());
    let volumes = cell.json(&format!("osd volumes {device} -json"));
    assert_eq!(volumes[0]["objects"], json!(listed.len()));
    let figures = cell.json(&format!("osd statistics {device} -json"));
    assert!(
        figures["bytes_written"].as_u64() > Some(10_000_000),
        "{figures}"
    );
    let all = cell.json("statistics --json");
    assert_eq!(
        all["osds"]["devices"].as_array().map(Vec::len),
        Some(7),
        "{all}"
    );
    assert!(all["osds"]["figures"]["calls_Write"].as_u64() > Some(10));
    assert_eq!(all["files_in_objects"]["stores_failed"], json!(0));

    // An existing object needs no undelete, and there is nothing to purge.
    let error = cell.run(["osd", "undelete", &device.to_string(), object, "-json"]);
    assert_eq!(error.status, 1);
    assert!(error.out.contains("\"restored\": 0"), "{}", error.out);
    assert_eq!(
        cell.json(&format!("osd purge {device} -all -json")),
        json!({ "purged": 0 })
    );
    let error = cell.fails(&format!("osd purge {device}"));
    assert!(error.contains("-before"), "{error}");
    let scrubbed = cell.json(&format!("osd scrub {device} -wait -json"));
    assert_eq!(
        (&scrubbed["running"], &scrubbed["damaged"]),
        (&json!(false), &json!([]))
    );
    assert!(scrubbed["bytes"].as_u64() > Some(3_000_000), "{scrubbed}");
    let error = cell.fails(&format!("osd scrub {device} -noauth"));
    assert!(error.contains("not permitted"), "{error}");
}

#[test]
fn a_damaged_block_is_found_and_read_around() {
    let mut cell = Cell::with(&["--osds", "3"]);
    ready(&cell, 3);
    let (path, bytes) = local(&cell, "large", 2_000_000);
    cell.ok(&format!(
        "cp --admin --layout copies=2 {} {TOP}/file",
        path.display()
    ));
    let devices = devices_of(&cell, "file");
    assert_eq!(cell.end("-INT"), Some(0));
    // Device 2 is osd1.
    let device = cell.directory().join(format!("osd{}", devices[0] - 1));
    spoil(&device, &bytes[1_000_000..1_000_064]);
    cell.start();
    devices_are(&cell, 3, "up");
    let scrubbed = cell.run(["osd", "scrub", &devices[0].to_string(), "-wait", "-json"]);
    let report: Value = serde_json::from_str(&scrubbed.out).expect("JSON");
    assert_eq!(scrubbed.status, 1, "{report}");
    assert_eq!(
        report["damaged"],
        json!([pieces(&cell, "file")["pieces"][0]["object"]])
    );
    let other = cell.json(&format!("osd scrub {} -wait -json", devices[1]));
    assert_eq!(other["damaged"], json!([]));
    comes_back(&cell, "file", &bytes);
}

#[test]
fn files_with_copies_or_parity_survive_a_lost_device() {
    let cell = Cell::with(&[]);
    let mut servers = Servers::start(&cell, 6);
    ready(&cell, 6);
    let (path, bytes) = local(&cell, "large", 2_222_222);
    let path = path.display();
    for (name, layout) in [
        ("alone", "stripes=3,stripe-size=64K"),
        ("copies", "stripes=3,copies=2,stripe-size=64K"),
        ("parity", "ec=4+2,stripe-size=64K"),
    ] {
        cell.ok(&format!("cp --admin --layout {layout} {path} {TOP}/{name}"));
    }
    // Each of the three layouts has an object on it.
    let lost = devices_of(&cell, "alone")[0];
    let place = servers.of(lost);
    servers.kill(place);
    for name in ["copies", "parity"] {
        comes_back(&cell, name, &bytes);
    }
    let began = Instant::now();
    let error = cell.fails(&format!("cat {TOP}/alone"));
    let took = began.elapsed();
    assert!(error.contains("alone"), "{error}");
    assert!(
        took < Duration::from_secs(60),
        "it took {took:?} to say that a file cannot be read"
    );
    devices_are(&cell, 1, "down");
    until_blocking("the file server learns of it", || {
        pieces(&cell, "alone")["readable"] == json!(false)
    });
    assert_eq!(pieces(&cell, "parity")["readable"], json!(true));
    assert_eq!(pieces(&cell, "parity")["redundant"], json!(false));
    // A store continues without it.
    let (path, news) = local(&cell, "news", 2_300_001);
    let path = path.display();
    for name in ["copies", "parity"] {
        cell.ok(&format!("cp --verify {path} {TOP}/{name}"));
        assert_eq!(pieces(&cell, name)["readable"], json!(true));
    }
    cell.fails(&format!("cp {path} {TOP}/alone"));
    // It comes back with its old objects, and no reader takes old bytes for new ones.
    servers.begin(place);
    devices_are(&cell, 6, "up");
    until_blocking("the file server learns that the device is back", || {
        pieces(&cell, "alone")["readable"] == json!(true)
    });
    comes_back(&cell, "alone", &bytes);
    for name in ["copies", "parity"] {
        comes_back(&cell, name, &news);
    }

    // A device that does not answer at all.
    let (path, _) = local(&cell, "quiet", 1_500_000);
    let quiet = servers.of(lost);
    servers.signal(quiet, "-STOP");
    for name in ["copies", "parity"] {
        comes_back(&cell, name, &news);
    }
    cell.ok(&format!("cp --verify {} {TOP}/parity", path.display()));
    servers.signal(quiet, "-CONT");
    devices_are(&cell, 6, "up");
    until_blocking("the file server learns that the device answers", || {
        pieces(&cell, "alone")["readable"] == json!(true)
    });
    comes_back(&cell, "alone", &bytes);
}

#[test]
fn a_server_uses_the_devices_of_its_owner_first() {
    let mut cell = Cell::with(&[
        "--osds",
        "3",
        "--location",
        "hq/r1/rack7/h3",
        "--owner",
        "physics",
    ]);
    for device in cell.json("osd list -json").as_array().expect("devices") {
        let known = (&device["owner"], &device["location"]);
        let expected = match device["name"] == "local_disk" {
            true => (json!(""), json!("")),
            false => (json!("physics"), json!("hq/r1/rack7/h3")),
        };
        assert_eq!(known, (&expected.0, &expected.1));
    }
    cell.ok("osd set 3 -owner chemistry");
    // The file server has the new list when it starts.
    assert_eq!(cell.end("-INT"), Some(0));
    cell.start();
    ready(&cell, 3);
    let (path, bytes) = local(&cell, "large", 1_100_000);
    for number in 0..5 {
        let name = format!("f{number}");
        let path = path.display();
        cell.ok(&format!(
            "cp --admin --layout stripes=2 {path} {TOP}/{name}"
        ));
        assert!(!devices_of(&cell, &name).contains(&3));
    }
    // If its own devices are not enough, it uses others.
    let path = path.display();
    cell.ok(&format!("cp --admin --layout stripes=3 {path} {TOP}/wide"));
    comes_back(&cell, "wide", &bytes);
}

#[test]
fn a_mount_stores_mode_and_time_of_what_it_stores_at_devices() {
    let cell = Cell::with(&["--osds", "1"]);
    ready(&cell, 1);
    cell.ok(&format!("fs setacl -dir {TOP} -acl system:anyuser rlidwk"));
    let runtime = Runtime::client_only().expect("runtime");
    let cache = || {
        let any = "0.0.0.0:0".parse().expect("address");
        let port = runtime.open(PortConfig::new(any)).expect("port");
        let there = cellar_client::Cell {
            name: CellName::new("test.cell").expect("name"),
            database_servers: vec![[127, 0, 0, 1].into()],
            ports: Ports::based_at(cell.port).expect("ports"),
        };
        let options = Options {
            cells: vec![there],
            root: Root::Volume("scratch".to_owned()),
            directory: None,
            size: 64 << 20,
            vnodes_max: 1000,
            sysnames: Vec::new(),
            patience: Duration::from_secs(30),
            nat_ping: None,
            leases: Leases::Files,
        };
        let now = || AfsTime(1_800_000_000);
        Cache::new(port, options, Arc::new(Anonymous), now).expect("cache")
    };
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("tokio");
    tokio.block_on(async {
        let bytes = vec![5; 2 << 20];
        let time = AfsTime(1_234_567_890);
        let (a, b) = (cache(), cache());
        let user = a.user(0).await.expect("user");
        let root = a
            .names()
            .root(&user)
            .await
            .expect("root")
            .expect("a volume");
        // The first stores go through the file server, until it has announced that it keeps
        // objects.
        let mut name = String::new();
        for number in 0..100 {
            name = format!("f{number}");
            let file = a
                .names()
                .create_file(&user, &root, name.as_bytes(), 0o644)
                .await;
            let file = file.expect("made");
            let handle = a.open(&user, &file, Rights::WRITE, false).await;
            let handle = handle.expect("open");
            handle.write(0, &bytes).await.expect("write");
            let wanted = NewAttributes {
                mode: Some(0o600),
                modified: Some(time),
                ..NewAttributes::default()
            };
            let set = a.set_attributes(&user, &file, wanted, true).await;
            set.expect("set");
            handle.store(false).await.expect("stored");
            handle.close().await;
            assert!(a.write_back().unstored().is_empty());
            let none = "\ncellar_stored_directly_bytes_total 0\n";
            if !a.metrics().contains(none) {
                break;
            }
            // The next file comes later.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let direct = "\ncellar_stored_directly_bytes_total 2097152\n";
        assert!(a.metrics().contains(direct), "{}", a.metrics());
        let user = b.user(0).await.expect("user");
        let root = b
            .names()
            .root(&user)
            .await
            .expect("root")
            .expect("a volume");
        let found = b.names().lookup(&user, &root, name.as_bytes()).await;
        let found = found.expect("found").vnode;
        let there = b
            .reads()
            .attributes(&user, &found)
            .await
            .expect("status")
            .status;
        let shown = (there.unix_mode & 0o7777, there.client_mod_time);
        assert_eq!(shown, (0o600, time));
        comes_back(&cell, &name, &bytes);
    });
    runtime.shutdown();
}
