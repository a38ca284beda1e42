//! One more file server of a cell: it joins by the cell's key, asks the databases over the network, and
//! serves volumes like the first.

mod common;

use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use common::{Cell, PATIENCE, run};

const SECOND: &str = "127.0.0.2";

/// Starts one more file server of the cell, at another address of this machine.
fn join(cell: &Cell) -> Cell {
    let etc = cell.directory().join("server-etc");
    let etc = etc.to_str().expect("a path of this test");
    Cell::with_options(cell.port, &["--join", etc, "--bind", SECOND])
}

/// Waits until the location database knows the second server.
fn registered(cell: &Cell) {
    let start = Instant::now();
    while !cell.ok("vos listaddrs -noresolve").contains(SECOND) {
        assert!(start.elapsed() < PATIENCE, "not registered");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_file_server_joins_serves_and_comes_back() {
    let cell = Cell::new();
    let mut second = join(&cell);
    registered(&cell);
    // Its directory is enough for administrators there: the key lies in it.
    second.ok("vos create 127.0.0.2 a far");
    second.ok("fs setacl far system:anyuser rlidwk");
    let list = cell.json("vos listvldb -server 127.0.0.2 -json");
    assert_eq!(list["entries"][0]["name"], "far");
    assert!(second.ok("bos status 127.0.0.2").contains("fs"));
    let file = cell.local("file");
    std::fs::write(&file, "over there").expect("file");
    let file = file.to_str().expect("path");
    cell.ok("fs mkmount /afs/test.cell/scratch/far far");
    cell.ok(&format!("cp {file} /afs/test.cell/scratch/far/file"));
    assert_eq!(cell.ok("cat /afs/test.cell/scratch/far/file"), "over there");
    // Rights by the protection database of the first: groups, and names in lists.
    cell.ok("pts creategroup friends");
    second.ok("fs setacl far friends rl");
    assert!(cell.ok("fs listacl far").contains("friends rl"));
    assert_eq!(second.end("-INT"), Some(0));
    cell.fails("cat /afs/test.cell/scratch/far/file");
    second.start();
    assert_eq!(cell.ok("cat /afs/test.cell/scratch/far/file"), "over there");
    let count = cell.ok("vos listaddrs -noresolve").matches(SECOND).count();
    assert_eq!(count, 1, "it came back as itself");
}

/// Changes a byte in the middle of what a stopped server stores of a file.
fn spoil(cell: &Cell, contents: &[u8]) {
    let blocks = cell.directory().join("vicepa/blocks.0");
    let stored = std::fs::read(&blocks).expect("blocks");
    let pattern = &contents[40_000..40_064];
    let at = stored.windows(64).position(|window| window == pattern);
    let at = at.expect("the file's block") as u64;
    let file = std::fs::OpenOptions::new().write(true).open(&blocks);
    let byte = [!contents[40_000]];
    file.expect("blocks")
        .write_all_at(&byte, at)
        .expect("spoilt");
}

#[test]
fn what_a_disk_has_spoilt_is_found_and_put_right_from_another_site() {
    let mut cell = Cell::new();
    let second = join(&cell);
    registered(&cell);
    cell.ok("vos create 127.0.0.1 a vol");
    cell.ok("fs mkmount /afs/test.cell/scratch/vol vol -rw");
    let store = |name: &str, seed: u32| {
        let numbers = (0..50_000u32).map(|n| (n ^ seed).wrapping_mul(2_654_435_761));
        let contents: Vec<u8> = numbers.flat_map(u32::to_be_bytes).collect();
        let local = cell.local(name);
        std::fs::write(&local, &contents).expect("file");
        let (local, to) = (
            local.display(),
            format!("/afs/test.cell/scratch/vol/{name}"),
        );
        cell.ok(&format!("cp --admin {local} {to}"));
        contents
    };
    let kept = store("kept", 1);
    cell.ok("vos addsite 127.0.0.2 a vol");
    cell.ok("vos release vol");
    // Nobody has another copy of this one.
    let later = store("later", 2);
    assert!(cell.ok("vos scrub 127.0.0.1 a").ends_with(": 0 damaged\n"));
    assert_eq!(cell.end("-INT"), Some(0));
    spoil(&cell, &kept);
    spoil(&cell, &later);
    cell.start();
    cell.fails("cat --admin /afs/test.cell/scratch/vol/kept");
    let scrub = |words: &str| {
        let words = format!("vos scrub 127.0.0.1 a vol{words}");
        cell.run(words.split(' ').map(str::to_owned))
    };
    let found = scrub("").out;
    assert!(
        found.contains(" kept: ") && found.contains(" later: "),
        "{found}"
    );
    assert!(found.ends_with(": 2 damaged\n"), "{found}");
    let refilled = scrub(" -refill").out;
    let said = |start: &str, end: &str| {
        let mut lines = refilled.lines();
        lines.any(|line| line.starts_with(start) && line.ends_with(end))
    };
    assert!(
        said("Refilled: ", " kept: from 127.0.0.2 /vicepa"),
        "{refilled}"
    );
    assert!(
        said(
            "Not refilled: ",
            " later: no copy of 1 of its blocks was found"
        ),
        "{refilled}"
    );
    let back = cell.local("back");
    cell.ok(&format!(
        "cp --admin /afs/test.cell/scratch/vol/kept {}",
        back.display()
    ));
    assert!(std::fs::read(&back).expect("what came back") == kept);
    // Only what nobody has another copy of is left.
    let left = scrub("").out;
    assert!(
        !left.contains(" kept: ") && left.ends_with(": 1 damaged\n"),
        "{left}"
    );
    cell.ok("rm --admin /afs/test.cell/scratch/vol/later");
    assert!(
        cell.ok("vos scrub 127.0.0.1 a vol -refill")
            .ends_with(": 0 damaged\n")
    );
    drop(second);
}

#[test]
fn what_cannot_join_says_why() {
    let cell = Cell::new();
    let directory = cell.local("other");
    let directory = directory.to_str().expect("path");
    let join = |from: &str, more: &[&str]| {
        let line = ["up", "--dir", directory, "--bind", SECOND, "--join", from];
        run(None, line.iter().chain(more)).failure("up --join")
    };
    assert!(join("/nonexistent", &[]).contains("ThisCell"));
    // Without a key nobody in the cell would believe it.
    let etc = cell.local("etc");
    std::fs::create_dir(&etc).expect("directory");
    for name in ["ThisCell", "CellServDB"] {
        let from = cell.directory().join("server-etc").join(name);
        std::fs::copy(from, etc.join(name)).expect("copy");
    }
    let etc = etc.to_str().expect("path");
    assert!(join(etc, &[]).contains("KeyFileExt"));
    assert!(join(etc, &["--cell", "other.cell"]).contains("other.cell"));
    let etc = cell.directory().join("server-etc");
    let own = run(
        Some(&cell.directory()),
        ["up", "--join", etc.to_str().expect("path")],
    );
    // The running server holds the directory; stopped, it is a whole cell.
    own.failure("up --join");
}
