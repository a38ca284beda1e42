//! `cellar vos` with files in objects, on a cell of two file servers and three devices. No file's
//! bytes travel between the two servers, and all of them go into a dump.

use std::fs;

use crate::common::Cell;
use cellar_until::until_blocking;
use serde_json::Value;

const LENGTH: usize = 700_000;

fn pieces(cell: &Cell, path: &str) -> Vec<Value> {
    let shown = cell.json(&format!("fs osd {path} -json"));
    shown[0]["pieces"].as_array().expect("pieces").clone()
}

fn objects(cell: &Cell, path: &str) -> Vec<String> {
    let pieces = pieces(cell, path);
    let object = |piece: &Value| piece["object"].as_str().expect("an object").to_owned();
    pieces.iter().map(object).collect()
}

#[test]
fn volumes_travel_with_their_objects() {
    let cell = Cell::with(&["--osds", "3"]);
    let _second = cell.join();
    let policy = [
        "osd",
        "policy",
        "add",
        "striped",
        "=> osd, stripes=2, stripe_size=64k;",
    ];
    cell.run(policy).ok("osd policy add");
    let refused = cell.fails("vos create 127.0.0.1 a none -osdpolicy nine");
    assert!(refused.contains("there is no policy nine"), "{refused}");
    cell.ok("vos create 127.0.0.1 a vol -osdpolicy striped");
    cell.ok("fs mkmount /afs/test.cell/scratch/vol vol -rw");
    let bytes: Vec<u8> = (0..LENGTH).map(|n| (n ^ (n >> 8)) as u8).collect();
    let local = cell.local("file");
    fs::write(&local, &bytes).expect("a file");
    let local = local.display();
    let path = "/afs/test.cell/scratch/vol/file";
    // Policy and devices become known within seconds; until then the file is not in objects.
    let copied = |from: &str, to: &str| {
        let words = ["cp", "--admin", from, to];
        cell.run(words).status == 0
    };
    until_blocking("the file is in objects", || {
        copied(&local.to_string(), path) && pieces(&cell, path).len() == 2
    });
    let back = cell.local("back");
    let check = |path: &str, what: &str| {
        // The other server learns of the devices in time, too.
        until_blocking(what, || {
            let _gone = fs::remove_file(&back);
            copied(path, &back.to_string_lossy())
        });
        assert!(fs::read(&back).expect("the copied file") == bytes, "{what}");
    };
    let first = objects(&cell, path);

    // After a release and a move: the same objects.
    cell.ok("vos addsite 127.0.0.2 a vol");
    cell.ok("vos release vol");
    let size = |line: &str| cell.json(line)["volumes"][0]["volume"]["size_kib"].clone();
    assert_eq!(
        size("vos examine vol -json"),
        size("vos examine vol.readonly -json")
    );
    assert!(size("vos examine vol -json").as_u64() >= Some(LENGTH as u64 / 1024));
    cell.ok("vos move vol 127.0.0.1 a 127.0.0.2 a");
    check(path, "moved");
    assert_eq!(objects(&cell, path), first);
    let bytes_of = |file: &str| fs::metadata(cell.local(file)).expect("a dump").len();
    let dump = |options: &str, file: &str| {
        let file = cell.local(file);
        cell.ok(&format!("vos dump vol {options} -file {}", file.display()));
    };
    dump("", "full");
    dump("-metadataonly", "metadata");
    assert!(bytes_of("full") > LENGTH as u64);
    assert!(bytes_of("metadata") < 10_000);
    // Restored: bytes to the server's own disk, metadata as the objects that it names.
    for (name, file, count) in [("whole", "full", 0), ("named", "metadata", 2)] {
        let dump = cell.local(file);
        cell.ok(&format!(
            "vos restore 127.0.0.1 a {name} -file {}",
            dump.display()
        ));
        cell.ok(&format!(
            "fs mkmount /afs/test.cell/scratch/{name} {name} -rw"
        ));
        let path = format!("/afs/test.cell/scratch/{name}/file");
        check(&path, name);
        assert_eq!(pieces(&cell, &path).len(), count, "{name}");
    }
    let named = "/afs/test.cell/scratch/named/file";
    assert_eq!(objects(&cell, named), first);
    cell.ok(&format!("cp --admin {local} {named}"));
    assert_ne!(
        objects(&cell, named),
        first,
        "the file has objects of its own now"
    );
    check(path, "what was copied from");

    // The tables.
    let found = cell.json("vos traverse -volume vol -json");
    assert_eq!(
        (&found["files"], &found["bytes"]),
        (&1.into(), &LENGTH.into())
    );
    let places = found["places"].as_array().expect("places");
    let sum: u64 = places
        .iter()
        .filter_map(|place| place["bytes"].as_u64())
        .sum();
    assert_eq!((places.len(), sum), (2, LENGTH as u64));
    assert_eq!(found["single"], found["places"], "stripes without copies");
    let last = found["sizes"].as_array().expect("sizes").last().cloned();
    let last = last.expect("a class");
    assert_eq!(
        (&last["to"], &last["files"]),
        (&(1 << 20).into(), &1.into())
    );
    let table = cell.ok("vos traverse");
    for said in [
        "Files by size",
        "Usage by place",
        "Data without a second copy",
        "local_disk",
        "@127.0.0.1",
    ] {
        assert!(table.contains(said), "{said}: {table}");
    }
    let of_server = cell.json("vos traverse -server 127.0.0.2 -json");
    assert_eq!(of_server["volumes"], 1, "vol alone");
}
