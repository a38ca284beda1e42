//! `cellar vos` on a real cell: every operation that changes something, and moves whose client or
//! server is killed at a random moment.

use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::common::{Cell, SECOND};

const A: &str = "127.0.0.1 a";
const B: &str = "127.0.0.1 b";

/// A cell with two partitions.
fn cell() -> Cell {
    Cell::with_partitions(&["vicepa", "vicepb"])
}

#[test]
fn a_cell_uses_the_partitions_that_it_is_given() {
    let mut cell = Cell::with_partitions(&["vicepb"]);
    let partitions = cell.json("vos listpart 127.0.0.1 -json");
    assert_eq!(partitions, serde_json::json!(["/vicepb"]));
    for volume in ["root.afs", "root.cell", "scratch"] {
        assert_eq!(entry(&cell, volume).0, "/vicepb");
        cell.ok(&format!("vos examine {volume}"));
    }
    cell.ok(&format!("vos create {B} vol"));
    // A partition that is added later is used from the next start on.
    cell.end("-TERM");
    fs::create_dir(cell.directory().join("vicepa")).expect("a partition");
    cell.start();
    cell.ok(&format!("vos move vol {B} {A}"));
    assert_eq!(entry(&cell, "vol"), ("/vicepa".to_owned(), false));
}

/// A volume with files in it, mounted in scratch under its name.
fn volume(cell: &Cell, name: &str, bytes: usize) {
    cell.ok(&format!("vos create {A} {name} -maxquota 0"));
    cell.ok(&format!(
        "fs mkmount /afs/test.cell/scratch/{name} {name} -rw"
    ));
    store(cell, name, "large", bytes);
    store(cell, name, "small", 100);
}

fn store(cell: &Cell, volume: &str, file: &str, bytes: usize) {
    let local = cell.local(file);
    let contents: Vec<u8> = (0..bytes)
        .map(|n| (n ^ (n >> 7) ^ file.len()) as u8)
        .collect();
    fs::write(&local, contents).expect("file");
    cell.ok(&format!(
        "cp --admin {} /afs/test.cell/scratch/{volume}/{file}",
        local.display()
    ));
}

/// Checks the contents of a volume's files.
fn check(cell: &Cell, volume: &str, files: &[&str]) {
    for file in files {
        let local = cell.local(format!("{file}.back"));
        cell.ok(&format!(
            "cp --admin /afs/test.cell/scratch/{volume}/{file} {}",
            local.display()
        ));
        let stored = fs::read(cell.local(file)).expect("the stored file");
        assert!(
            fs::read(&local).expect("the copied file") == stored,
            "{volume}/{file}"
        );
        fs::remove_file(&local).expect("removed");
    }
}

/// The site of a volume in the VLDB, and whether it is locked.
fn entry(cell: &Cell, volume: &str) -> (String, bool) {
    let listed = cell.json(&format!("vos listvldb -name {volume} -json"));
    let entry = &listed["entries"][0];
    let site = entry["sites"][0]["partition"].as_str().expect("a site");
    let flags = entry["flags"].as_array().expect("flags").iter();
    let mut flags = flags.map(|flag| flag.as_str().expect("a name"));
    let locked = flags.any(|flag| flag.starts_with("locked_"));
    (site.to_owned(), locked)
}

/// Names of the volumes on a partition.
fn listed(cell: &Cell, partition: &str) -> Vec<String> {
    let volumes = cell.json(&format!("vos listvol 127.0.0.1 {partition} -json"));
    let volumes = volumes[format!("/vicep{partition}")]
        .as_array()
        .expect("a list");
    let name = |volume: &serde_json::Value| volume["name"].as_str().expect("a name").to_owned();
    volumes.iter().map(name).collect()
}

#[test]
fn a_volume_is_dumped_restored_released_and_looked_after() {
    let cell = cell();
    volume(&cell, "vol", 300_000);
    let (full, increment) = (cell.local("full"), cell.local("increment"));
    cell.ok(&format!("vos dump vol -file {}", full.display()));
    cell.ok(&format!("vos restore {B} copy -file {}", full.display()));
    cell.ok("fs mkmount /afs/test.cell/scratch/copy copy -rw");
    check(&cell, "copy", &["large", "small"]);
    // An existing volume is not overwritten without the switch.
    let refused = cell.fails(&format!("vos restore {B} copy -file {}", full.display()));
    assert!(refused.contains("no -overwrite option"), "{refused}");
    // Dates have a resolution of a second.
    sleep(Duration::from_millis(2100));
    let since = now();
    store(&cell, "vol", "later", 5000);
    cell.run(
        ["vos", "dump", "vol", "-time", &since, "-clone", "-file"]
            .iter()
            .map(|word| (*word).to_owned())
            .chain([increment.display().to_string()]),
    )
    .ok("vos dump -time");
    let sizes = [&full, &increment].map(|file| fs::metadata(file).expect("a dump").len());
    assert!(sizes[1] < sizes[0] / 10, "{sizes:?}");
    cell.ok(&format!(
        "vos restore {B} copy -file {} -overwrite i",
        increment.display()
    ));
    check(&cell, "copy", &["large", "small", "later"]);
    // A damaged dump leaves the existing volume, whatever it should replace.
    let cut = cell.local("cut");
    let whole = fs::read(&full).expect("a dump");
    fs::write(&cut, &whole[..whole.len() / 2]).expect("half a dump");
    for overwrite in ["i", "f"] {
        let failed = cell.fails(&format!(
            "vos restore {B} copy -file {} -overwrite {overwrite}",
            cut.display()
        ));
        assert!(failed.contains("the dump ends too early"), "{failed}");
        check(&cell, "copy", &["large", "small", "later"]);
    }
    // A file that is not a dump does not replace it, nor does an incremental dump.
    fs::write(&cut, "no dump").expect("file");
    let nothing = cell.fails(&format!(
        "vos restore {B} copy -file {} -overwrite f",
        cut.display()
    ));
    assert!(nothing.contains("This is no dump of a volume"), "{nothing}");
    let changes = cell.fails(&format!(
        "vos restore {B} copy -file {} -overwrite f",
        increment.display()
    ));
    assert!(changes.contains("only the changes since"), "{changes}");
    check(&cell, "copy", &["large", "small", "later"]);
    cell.ok(&format!(
        "vos restore {B} copy -file {} -overwrite f",
        full.display()
    ));
    check(&cell, "copy", &["large", "small"]);
    cell.fails("stat --admin /afs/test.cell/scratch/copy/later");

    cell.ok(&format!("vos addsite {A} vol"));
    cell.ok("vos release vol");
    let nothing = cell.ok("vos release vol -resume");
    assert_eq!(nothing, "Volume vol has no unfinished release\n");
    assert_eq!(cell.ok("vos release -resume"), "No release is unfinished\n");
    cell.ok("vos backup vol");
    let done = cell.ok("vos backupsys -prefix co");
    assert_eq!(
        done,
        "done\nTotal volumes backed up: 1; failed to backup: 0\n"
    );
    assert_eq!(listed(&cell, "b"), ["copy", "copy.backup"]);
    assert!(listed(&cell, "a").contains(&"vol.readonly".to_owned()));

    cell.ok("vos rename copy renamed");
    assert_eq!(listed(&cell, "b"), ["renamed", "renamed.backup"]);
    cell.ok("vos setfields renamed -maxquota 777");
    cell.ok(&format!("vos offline {B} renamed"));
    assert!(cell.ok("vos listvol 127.0.0.1 b").contains("Off-line"));
    cell.ok(&format!("vos online {B} renamed"));
    cell.ok(&format!(
        "vos shadow renamed {B} {A} -toname shadow -toid 537000000 -offline"
    ));
    cell.ok(&format!(
        "vos shadow renamed {B} {A} -toname shadow -toid 537000000 -incremental"
    ));
    cell.ok(&format!("vos zap {A} 537000000"));
    cell.ok(&format!("vos copy renamed {B} third {A}"));
    cell.ok("vos delentry third");
    cell.ok("vos syncvldb 127.0.0.1");
    assert_eq!(entry(&cell, "third").0, "/vicepa");
    // A caller who may not change the database synchronises nothing.
    cell.ok(&format!("vos changeloc {B} third"));
    let refused = cell.run("vos syncserv 127.0.0.1 b -noauth".split(' '));
    assert_eq!((refused.status, refused.out.as_str()), (1, ""));
    assert!(refused.err.contains("third"), "{}", refused.err);
    cell.ok("vos syncvldb 127.0.0.1");
    assert_eq!(entry(&cell, "third").0, "/vicepa");
    cell.ok(&format!("vos remsite {A} vol"));
    cell.ok("vos remove -id third");
    cell.ok("vos size vol -dump");
    let verified = cell.ok(&format!("vos scrub {A}"));
    assert!(
        verified.starts_with("Verified ") && verified.ends_with(": 0 damaged\n"),
        "{verified}"
    );
    cell.ok(&format!("vos scrub {A} vol -rate 100000 -json"));
    assert_eq!(
        cell.ok("vos status 127.0.0.1"),
        "No active transactions on 127.0.0.1\n"
    );
}

/// A site may have a newer state than the one that the volume was restored to. The release brings
/// it back to that state, whatever dates the restore gave the volume: later changes carry dates
/// that the site has seen.
#[test]
fn a_volume_restored_to_an_older_state_is_released_in_that_state() {
    let cell = cell();
    volume(&cell, "vol", 300_000);
    let old = cell.local("old");
    cell.ok(&format!("vos dump vol -file {}", old.display()));
    // Not on the volume's partition, where a site would be a clone.
    cell.ok(&format!("vos addsite {B} vol"));
    cell.ok("fs mkmount /afs/test.cell/scratch/ro vol.readonly");
    let local = |name: &str| fs::read(cell.local(name)).expect("a file");
    let (large, small) = (local("large"), local("small"));
    // Longer than the difference of clocks that a release allows for.
    sleep(Duration::from_millis(3100));
    for dates in ["", "-creation keep", "-creation dump -lastupdate dump"] {
        store(&cell, "vol", "small", 200);
        store(&cell, "vol", "large", 400_000);
        store(&cell, "vol", "later", 5000);
        cell.ok("vos release vol");
        check(&cell, "ro", &["large", "small", "later"]);
        cell.ok(&format!(
            "vos restore {A} vol -file {} -overwrite f {dates}",
            old.display()
        ));
        cell.ok("vos release vol");
        fs::write(cell.local("large"), &large).expect("file");
        fs::write(cell.local("small"), &small).expect("file");
        check(&cell, "ro", &["large", "small"]);
        cell.fails("stat --admin /afs/test.cell/scratch/ro/later");
    }
}

/// The present time, in the form of -time.
fn now() -> String {
    let date = Command::new("date")
        .args(["+%Y-%m-%d %H:%M:%S"])
        .output()
        .expect("date");
    String::from_utf8(date.stdout)
        .expect("text")
        .trim()
        .to_owned()
}

#[test]
fn a_lock_says_whose_it_is() {
    let cell = cell();
    cell.ok(&format!("vos create {A} vol"));
    cell.ok("vos lock vol");
    let shown = cell.ok("vos examine vol");
    assert!(
        shown.contains("Locked by local administrator since "),
        "{shown}"
    );
    assert!(shown.contains(": delete/misc, process "), "{shown}");
    let refused = cell.fails(&format!("vos move vol {A} {B}"));
    assert!(
        refused.contains("by local administrator since "),
        "{refused}"
    );
    cell.ok("vos unlockvldb 127.0.0.1");
    cell.ok(&format!("vos move vol {A} {B}"));
    assert_eq!(entry(&cell, "vol"), ("/vicepb".to_owned(), false));
}

#[test]
fn many_volumes_move_at_once_and_lose_nothing() {
    let cell = cell();
    for number in 0..12 {
        volume(&cell, &format!("v{number}"), 40_000);
    }
    let places = "-fromserver 127.0.0.1 -frompartition a -toserver 127.0.0.1 -topartition b";
    let done = cell.ok(&format!("vos move -all {places} -parallel 6"));
    // The cell's own three volumes are moved with them.
    assert!(
        done.ends_with("\nTotal volumes moved: 15; failed to move: 0\n"),
        "{done}"
    );
    assert_eq!(done.lines().count(), 16, "{done}");
    assert!(listed(&cell, "a").is_empty());
    for number in 0..12 {
        check(&cell, &format!("v{number}"), &["large", "small"]);
    }
    let back = "-id v1 v2 v3 -toserver 127.0.0.1 -topartition a";
    cell.ok(&format!("vos move {back}"));
    assert_eq!(listed(&cell, "a"), ["v1", "v2", "v3"]);
}

/// After the same move is repeated, the volume is complete at its new place, and no other copy
/// exists.
fn check_moved(cell: &Cell, to: &str, from: &str, case: &str) {
    let (site, locked) = entry(cell, "vol");
    assert_eq!(
        (site.as_str(), locked),
        (format!("/vicep{to}").as_str(), false),
        "{case}"
    );
    check(cell, "vol", &["large", "small"]);
    let left: Vec<_> = listed(cell, from)
        .into_iter()
        .chain(listed(cell, to))
        .filter(|name| name.starts_with("vol") || name.contains("clone"))
        .collect();
    assert_eq!(left, ["vol"], "{case}");
}

#[test]
fn a_move_whose_client_or_server_is_killed_is_finished_by_the_next() {
    let mut cell = cell();
    // Large enough to be cloned first.
    volume(&cell, "vol", 12_000_000);
    let (mut from, mut to) = ("a", "b");
    for (number, millis) in [1, 20, 60, 120, 200, 350].into_iter().enumerate() {
        let words = format!("vos move vol 127.0.0.1 {from} 127.0.0.1 {to}");
        let mut client = Command::new(env!("CARGO_BIN_EXE_cellar"))
            .args(words.split(' '))
            .env("CELLAR_DIR", cell.directory())
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("the program starts");
        // The end comes at different steps of the move.
        sleep(Duration::from_millis(millis));
        let case = format!("{words}, killed after {millis} ms");
        if number % 2 == 0 {
            // It may have finished already.
            let _killed = client.kill();
            client.wait().expect("it ended");
        } else {
            cell.end("-KILL");
            cell.start();
            client.wait().expect("it ended");
        }
        let next = cell.run(words.split(' '));
        // A completed move is refused, as by OpenAFS's vos.
        let moved = next
            .err
            .contains(&format!("it is on 127.0.0.1 /vicep{to} already"));
        assert!(next.status == 0 || moved, "{case}: {}", next.err);
        check_moved(&cell, to, from, &case);
        std::mem::swap(&mut from, &mut to);
    }
}

#[test]
fn a_refused_dump_is_explained_from_a_file_and_from_a_pipe() {
    let cell = cell();
    volume(&cell, "vol", 300_000);
    let dump = cell.local("dump");
    cell.ok(&format!("vos dump vol -file {}", dump.display()));
    let whole = fs::read(&dump).expect("a dump");
    for (case, bytes) in [
        ("its end is missing", &whole[..whole.len() - 4]),
        ("half of it", &whole[..whole.len() / 2]),
    ] {
        fs::write(&dump, bytes).expect("a dump");
        let output = cell.fails(&format!("vos restore {B} new -file {}", dump.display()));
        let (_, fault) = output
            .lines()
            .find_map(|line| line.split_once(&format!("{}: ", dump.display())))
            .unwrap_or_else(|| panic!("{case}: {output}"));
        let restored = Command::new(env!("CARGO_BIN_EXE_cellar"))
            .args(format!("vos restore {B} new").split(' '))
            .env("CELLAR_DIR", cell.directory())
            .stdin(fs::File::open(&dump).expect("a dump"))
            .output()
            .expect("the program starts");
        assert_ne!(restored.status.code(), Some(0), "{case}");
        let output = String::from_utf8_lossy(&restored.stderr);
        let wanted = format!("standard input: {fault}");
        assert!(output.contains(&wanted), "{case}: {output}");
    }
}

#[test]
fn a_volume_of_a_lost_server_is_restored_on_another() {
    let cell = Cell::new();
    let mut second = cell.join();
    cell.ok(&format!("vos create {SECOND} a vol"));
    let dump = cell.local("dump");
    cell.ok(&format!("vos dump vol -file {}", dump.display()));
    let site = |cell: &Cell| {
        let entry = cell.json("vos listvldb vol -json");
        entry["entries"][0]["sites"][0]["server"].clone()
    };
    let id = cell.json("vos listvldb vol -json")["entries"][0]["read_write"].clone();
    assert_eq!(second.end("-KILL"), None);

    let restore = format!(
        "vos restore 127.0.0.1 a vol -file {} -overwrite full",
        dump.display()
    );
    let refused = cell.fails(&restore);
    assert!(refused.contains("'-nodelete'"), "{refused}");
    assert_eq!(site(&cell), SECOND);
    let volumes = cell.ok("vos listvol 127.0.0.1 a");
    assert!(!volumes.contains(&id.to_string()), "{volumes}");

    cell.ok(&format!("{restore} -nodelete"));
    assert_eq!(site(&cell), "127.0.0.1");
    cell.ok(&format!("vos examine {id}"));

    // The lost server comes back with its copy, which the VLDB does not name.
    second.start();
    cell.ok(&format!("vos zap {SECOND} a {id}"));
    cell.ok("vos examine vol");
}
