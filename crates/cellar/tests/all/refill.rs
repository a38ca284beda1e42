//! `cellar vos scrub` after a disk has changed stored bytes: damaged files are named, and restored
//! from any existing copy.

use std::os::unix::fs::FileExt;

use crate::common::Cell;

/// Stores a file in the volume that is mounted as `vol` in scratch. Returns its contents.
fn store(cell: &Cell, name: &str, seed: u32) -> Vec<u8> {
    let numbers = (0..50_000u32).map(|n| (n ^ seed).wrapping_mul(2_654_435_761));
    let contents: Vec<u8> = numbers.flat_map(u32::to_be_bytes).collect();
    let local = cell.local(name);
    std::fs::write(&local, &contents).expect("file");
    let (local, to) = (
        local.display(),
        format!("/afs/test.cell/scratch/vol/{name}"),
    );
    cell.ok(&format!("cp --admin --in-place {local} {to}"));
    contents
}

/// Checks the contents of a file in a volume that is mounted in scratch.
fn check(cell: &Cell, path: &str, contents: &[u8]) {
    let back = cell.local("back");
    cell.ok(&format!(
        "cp --admin /afs/test.cell/scratch/{path} {}",
        back.display()
    ));
    assert!(std::fs::read(&back).expect("the copied file") == contents);
    std::fs::remove_file(&back).expect("removed");
}

/// Changes a byte in the middle of a file's stored bytes on a stopped server. `copy` numbers their
/// copies by the order on the disk. Returns the number of copies.
fn spoil(cell: &Cell, contents: &[u8], copy: usize) -> usize {
    let blocks = cell.directory().join("vicepa/blocks.0");
    let stored = std::fs::read(&blocks).expect("blocks");
    let pattern = &contents[40_000..40_064];
    // Blocks of a file are stored unchanged, each at a multiple of its size.
    let copies: Vec<usize> = (40_000 % 4096..stored.len() - 64)
        .step_by(4096)
        .filter(|&at| stored[at..at + 64] == *pattern)
        .collect();
    let file = std::fs::OpenOptions::new().write(true).open(&blocks);
    let byte = [!contents[40_000]];
    file.expect("blocks")
        .write_all_at(&byte, copies[copy] as u64)
        .expect("spoilt");
    copies.len()
}

fn says(text: &str, start: &str, end: &str) -> bool {
    let mut lines = text.lines();
    lines.any(|line| line.starts_with(start) && line.ends_with(end))
}

#[test]
fn damage_on_a_disk_is_found_and_repaired_from_another_site() {
    let mut cell = Cell::new();
    let second = cell.join();
    cell.ok("vos create 127.0.0.1 a vol");
    cell.ok("fs mkmount /afs/test.cell/scratch/vol vol -rw");
    let kept = store(&cell, "kept", 1);
    cell.ok("vos addsite 127.0.0.2 a vol");
    cell.ok("vos release vol");
    // This one has no other copy.
    let later = store(&cell, "later", 2);
    assert!(cell.ok("vos scrub 127.0.0.1 a").ends_with(": 0 damaged\n"));
    assert_eq!(cell.end("-INT"), Some(0));
    spoil(&cell, &kept, 0);
    spoil(&cell, &later, 0);
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
    assert!(
        says(&refilled, "Refilled: ", " kept: from 127.0.0.2 /vicepa"),
        "{refilled}"
    );
    let not = " later: 1 of its blocks have no other copy";
    assert!(says(&refilled, "Not refilled: ", not), "{refilled}");
    check(&cell, "vol/kept", &kept);
    // Only files without another copy are left.
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

/// A backup volume shares its volume's blocks, and so their damage. A file that was stored again
/// after the backup has blocks of its own.
#[test]
fn a_file_is_put_right_from_the_backup_volume_and_the_backup_volume_from_it() {
    let mut cell = Cell::new();
    cell.ok("vos create 127.0.0.1 a vol");
    cell.ok("fs mkmount /afs/test.cell/scratch/vol vol -rw");
    cell.ok("fs mkmount /afs/test.cell/scratch/backup vol.backup");
    for copy in 0..2 {
        // Different contents each time: removed data stays on the disk, and is not a copy.
        let seed = 1 + copy as u32;
        store(&cell, "file", seed);
        cell.ok("vos backup vol");
        let contents = store(&cell, "file", seed);
        assert!(cell.ok("vos scrub 127.0.0.1 a").ends_with(": 0 damaged\n"));
        assert_eq!(cell.end("-INT"), Some(0));
        let copies = spoil(&cell, &contents, copy);
        assert!(copies >= 2, "{copies} copies");
        cell.start();
        let found = cell.run(["vos", "scrub", "127.0.0.1", "a"]).out;
        assert!(found.ends_with(": 1 damaged\n"), "{found}");
        let refilled = cell.ok("vos scrub 127.0.0.1 a -refill");
        assert!(
            says(&refilled, "Refilled: ", " file: from other versions here"),
            "{refilled}"
        );
        assert!(cell.ok("vos scrub 127.0.0.1 a").ends_with(": 0 damaged\n"));
        check(&cell, "vol/file", &contents);
        check(&cell, "backup/file", &contents);
    }
}

#[test]
fn a_file_is_put_right_from_a_read_only_site_on_the_same_server() {
    let mut cell = Cell::with_partitions(&["vicepa", "vicepb"]);
    cell.ok("vos create 127.0.0.1 a vol");
    cell.ok("fs mkmount /afs/test.cell/scratch/vol vol -rw");
    let contents = store(&cell, "file", 1);
    cell.ok("vos addsite 127.0.0.1 b vol");
    cell.ok("vos release vol");
    cell.ok("vos backup vol");
    assert_eq!(cell.end("-INT"), Some(0));
    spoil(&cell, &contents, 0);
    cell.start();
    cell.fails("cat --admin /afs/test.cell/scratch/vol/file");
    let refilled = cell.ok("vos scrub 127.0.0.1 a -refill");
    assert!(
        says(&refilled, "Refilled: ", " file: from 127.0.0.1 /vicepb"),
        "{refilled}"
    );
    assert!(cell.ok("vos scrub 127.0.0.1 a").ends_with(": 0 damaged\n"));
    check(&cell, "vol/file", &contents);
}
