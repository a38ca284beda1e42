//! `cellar vos`, `pts` and `bos` as scripts for OpenAFS's commands use them: exit statuses, words
//! that scripts search for, and refusals before an operation starts.
//!
//! `interop/tests/wrong-commands` compares some hundred commands with OpenAFS's own. This file has
//! the cases that need no package of OpenAFS, and those with several partitions.

use std::fs;

use crate::common::Cell;
use serde_json::json;

/// Runs commands. Each must end with its status and print its words.
fn check(cell: &Cell, table: &[(&str, i32, &str)]) {
    for (line, status, said) in table {
        let answer = cell.run(line.split_whitespace());
        let all = format!("{}{}", answer.out, answer.err);
        assert_eq!(answer.status, *status, "{line}: {all}");
        assert!(all.contains(said), "{line}: {all}");
    }
}

fn ids(cell: &Cell, name: &str) -> [u64; 3] {
    let listed = cell.json(&format!("vos listvldb -name {name} -json"));
    let entry = &listed["entries"][0];
    ["read_write", "read_only", "backup"].map(|kind| entry[kind].as_u64().expect(kind))
}

#[test]
fn ids_of_volumes_are_given_and_refused() {
    let cell = Cell::with_partitions(&["vicepa", "vicepb"]);
    cell.ok("vos create 127.0.0.1 a plain -id 700100");
    assert_eq!(ids(&cell, "plain"), [700_100, 700_101, 700_102]);
    cell.ok("vos create 127.0.0.1 a both -id 700200 -roid 700250");
    assert_eq!(ids(&cell, "both"), [700_200, 700_250, 700_251]);
    // The volume has no entry, but is on a partition.
    cell.ok("vos create 127.0.0.1 b stray -id 700300");
    cell.ok("vos delentry stray");
    check(
        &cell,
        &[
            (
                "vos create 127.0.0.1 b x -id 700100",
                255,
                "Volume ID 700100 already exists",
            ),
            (
                "vos create 127.0.0.1 b x -id 700101",
                255,
                "Volume ID 700101 already exists",
            ),
            (
                "vos create 127.0.0.1 b x -id 700099",
                255,
                "Volume ID 700100 already exists",
            ),
            (
                "vos create 127.0.0.1 a x -id 700300",
                255,
                "already exists on 127.0.0.1 /vicepb",
            ),
            (
                "vos create 127.0.0.1 a x -id y",
                255,
                "Given volume ID y should be numeric",
            ),
            (
                "vos create 127.0.0.1 c x",
                255,
                "does not exist on the server",
            ),
            ("vos listvldb -name x", 1, "VLDB: no such entry"),
        ],
    );
    // The conflicting volume was not touched.
    cell.ok("vos examine plain");
    assert!(cell.ok("vos listvol 127.0.0.1 b").contains("stray"));
}

#[test]
fn volumes_are_removed_and_zapped_where_they_are() {
    let cell = Cell::with_partitions(&["vicepa", "vicepb"]);
    cell.ok("vos create 127.0.0.1 a vol");
    cell.ok("vos addsite 127.0.0.1 a vol");
    cell.ok("vos release vol");
    cell.ok("vos remsite 127.0.0.1 a vol");
    check(
        &cell,
        &[
            ("vos zap 127.0.0.1 a 4711", 1, "does not exist"),
            (
                "vos zap 127.0.0.1 c 4711",
                1,
                "does not exist on the server",
            ),
            (
                "vos zap 127.0.0.1 a 4711 -force",
                255,
                "failed with code 103.",
            ),
            (
                "vos remove 127.0.0.1 b vol",
                255,
                "does not exist on server and partition",
            ),
            (
                "vos remove 127.0.0.1 a 4711",
                255,
                "Volume 4711 does not exist",
            ),
            (
                "vos remove -id nosuch",
                255,
                "Can't find volume name 'nosuch' in VLDB",
            ),
            // The volume is there without a VLDB entry.
            (
                "vos remove 127.0.0.1 a vol.readonly",
                0,
                "does not exist in VLDB on server and partition",
            ),
            (
                "vos remove 127.0.0.1 a vol.readonly",
                255,
                "VOLSER: no such volume",
            ),
            ("vos remove 127.0.0.1 a vol", 0, "deleted"),
            ("vos examine vol", 255, "VLDB: no such entry"),
        ],
    );
}

#[test]
fn a_refused_move_clone_or_release_says_why() {
    let cell = Cell::with_partitions(&["vicepa", "vicepb"]);
    cell.ok("vos create 127.0.0.1 a vol");
    cell.ok("vos backup vol");
    cell.ok("vos create 127.0.0.1 b other");
    let [_, _, other] = ids(&cell, "other");
    cell.ok("vos backup other");
    let clone = format!("vos clone vol -toid {other}");
    let before = cell.ok("vos listvldb -name vol");
    check(
        &cell,
        &[
            (
                "vos move vol 127.0.0.1 b 127.0.0.1 a",
                1,
                "cannot access volume",
            ),
            (
                "vos move vol 127.0.0.1 a 127.0.0.1 a",
                1,
                "to its home partition ignored",
            ),
            (
                "vos move vol 127.0.0.1 a 127.0.0.1 c",
                255,
                "does not exist on the server",
            ),
            (
                "vos move vol.backup 127.0.0.1 a 127.0.0.1 b",
                1,
                "Only RW volume can be moved",
            ),
            (
                "vos copy vol 127.0.0.1 b copy 127.0.0.1 a",
                1,
                "cannot access volume",
            ),
            (
                "vos copy vol 127.0.0.1 a other 127.0.0.1 b",
                255,
                "Volume other already exists",
            ),
            (
                &clone,
                255,
                "not in the same partition as the read-write volume",
            ),
            (
                "vos release vol",
                255,
                "has no replicas - release operation is meaningless!",
            ),
        ],
    );
    assert_eq!(cell.ok("vos listvldb -name vol"), before);
    // A read-only volume without a VLDB entry, on the other partition of the site's server.
    cell.ok("vos addsite 127.0.0.1 a vol");
    cell.ok("vos release vol");
    cell.ok("vos remsite 127.0.0.1 a vol");
    cell.ok("vos addsite 127.0.0.1 b vol");
    let released = cell.fails("vos release vol");
    assert!(
        released.contains("is on 127.0.0.1 /vicepa already"),
        "{released}"
    );
    cell.ok("vos remove 127.0.0.1 a vol.readonly");
    cell.ok("vos release vol");
}

#[test]
fn users_and_groups_as_scripts_make_them() {
    let cell = Cell::new();
    cell.ok("pts createuser ann -id 500");
    cell.ok("pts creategroup ann:friends -owner ann");
    cell.ok("pts adduser ann ann:friends");
    check(
        &cell,
        &[
            (
                "pts createuser ann",
                1,
                "Entry for name already exists ; unable to create user ann",
            ),
            (
                "pts createuser bob -id 500",
                1,
                "Entry for id already exists ; unable to create user bob with id 500",
            ),
            (
                "pts createuser bob -id -5",
                1,
                "argument illegal or out of range because user id -5 was not positive",
            ),
            (
                "pts createuser bob -id 0",
                1,
                "0 isn't a valid user id; aborting",
            ),
            ("pts createuser bob -id x", 1, "because id was: 'x'"),
            (
                "pts creategroup ann:x -id 5",
                1,
                "because group id 5 was not negative",
            ),
            ("pts examine bob -5", 1, "couldn't look up id for bob"),
            (
                "pts adduser ann ann:friends",
                1,
                "Entry for id already exists ; unable to add user ann",
            ),
            (
                "pts adduser ann nosuch",
                1,
                "User or group doesn't exist ; unable to add user ann to group nosuch",
            ),
            (
                "pts delete nosuch",
                0,
                "User or group doesn't exist so couldn't look up id for nosuch",
            ),
            (
                "pts delete 4711",
                1,
                "User or group doesn't exist deleting 4711 (id: 4711)",
            ),
            (
                "pts membership nosuch ann",
                0,
                "Groups ann (id: 500) is a member of:",
            ),
            (
                "pts setfields ann -access x",
                1,
                "Access bits must be of the form 'somar', not x",
            ),
            (
                "pts setfields ann -access smoar",
                1,
                "Access bits out of order or illegal",
            ),
        ],
    );
    for name in ["tab\tname", "new\nline", "esc\u{1b}[31m", "del\u{7f}"] {
        let answer = cell.run(["pts", "createuser", name]);
        assert_eq!(answer.status, 1, "{name:?}");
        assert!(!answer.err.contains(name), "{name:?}: {}", answer.err);
        assert!(answer.err.contains("control characters"), "{}", answer.err);
    }
    // A script continues after a refusal, until `quit`.
    let inner = cell.local("inner");
    fs::write(&inner, "createuser dora\n").expect("a file");
    let script = cell.local("script");
    let text = format!(
        "createuser \"carl\"\nnosuch\ncreateuser ann\n\nsource {}\ncreateuser emma\nquit\ncreateuser late\n",
        inner.display()
    );
    fs::write(&script, text).expect("a file");
    let said = cell.ok(&format!("pts source {}", script.display()));
    assert_eq!(said.matches("User ").count(), 3, "{said}");
    let users = cell.json("pts examine carl dora emma -json");
    assert_eq!(users.as_array().map(Vec::len), Some(3), "{users}");
    assert_eq!(
        cell.json("pts examine carl late -json")
            .as_array()
            .map(Vec::len),
        Some(1)
    );
    check(
        &cell,
        &[
            (
                "pts source /nonexistent",
                1,
                "/nonexistent: No such file or directory",
            ),
            ("pts interactive", 0, ""),
            ("pts quit", 0, ""),
        ],
    );
}

#[test]
fn an_overseer_answers_as_scripts_expect() {
    let cell = Cell::new();
    check(
        &cell,
        &[
            (
                "bos status 127.0.0.1 fs -long",
                0,
                "Instance fs, (type is fs) currently running normally.",
            ),
            (
                "bos status 127.0.0.1 fs",
                0,
                "Auxiliary status is: file server running.",
            ),
            (
                "bos status 127.0.0.1 nosuch",
                0,
                "failed to get instance info for 'nosuch' (no such entity)",
            ),
            (
                "bos stop 127.0.0.1 fs",
                2,
                "failed to change stop instance 'fs' (can't do operation now)",
            ),
            (
                "bos start 127.0.0.1 nosuch",
                1,
                "failed to start instance 'nosuch' (no such entity)",
            ),
            (
                "bos create 127.0.0.1 x simple /bin/true",
                6,
                "failed to create new server instance x of type 'simple'",
            ),
            ("bos restart 127.0.0.1", 0, "please specify '-all'"),
            (
                "bos exec 127.0.0.1 /bin/true",
                6,
                "failed to execute command",
            ),
            (
                "bos getdate 127.0.0.1 x",
                0,
                "File /usr/afs/bin/x does not exist, no .BAK file, no .OLD file.",
            ),
            (
                "bos getrestart 127.0.0.1",
                0,
                "Server 127.0.0.1 restarts never",
            ),
            ("bos getrestricted 127.0.0.1", 0, "Restricted mode is on"),
            (
                "bos setrestart 127.0.0.1 nonsense",
                255,
                "failed to parse 'nonsense'",
            ),
            ("bos salvage 127.0.0.1", 255, "must specify -all switch"),
            ("bos salvage 127.0.0.1 a", 2, "bos: shutting down 'fs'."),
            ("bos addkey 127.0.0.1 -kvno 7", 1, "not applicable because"),
            (
                "bos removeuser 127.0.0.1 nosuch",
                1,
                "failed to delete user 'nosuch', (no such user)",
            ),
        ],
    );
    cell.ok("bos adduser 127.0.0.1 ann bob");
    let users = cell.json("bos listusers 127.0.0.1 -json");
    assert_eq!(users, json!(["ann", "bob"]));
    check(
        &cell,
        &[(
            "bos adduser 127.0.0.1 ann carl",
            1,
            "failed to add user 'ann' (File exists)",
        )],
    );
    assert!(
        cell.ok("bos listusers 127.0.0.1")
            .starts_with("SUsers are: ann bob carl")
    );
}

#[test]
fn rights_are_added_and_removed() {
    let cell = Cell::new();
    cell.ok("pts createuser ann");
    for (rights, listed) in [
        ("rl", "ann rl"),
        ("w+", "ann rlw"),
        ("r-", "ann lw"),
        ("rl=", "ann rl"),
    ] {
        cell.ok(&format!("fs setacl scratch ann {rights}"));
        let list = cell.ok("fs listacl scratch");
        assert!(list.contains(&format!("  {listed}\n")), "{rights}: {list}");
    }
    check(
        &cell,
        &[
            (
                "fs setacl scratch ann x+",
                1,
                "illegal rights character 'x'",
            ),
            (
                "fs getserverprefs",
                1,
                "getserverprefs: not applicable because",
            ),
            (
                "fs rxstatproc -enable",
                1,
                "rxstatproc: not applicable because",
            ),
            ("fs help uuid", 0, "uuid: not applicable because"),
        ],
    );
}

#[test]
fn a_copy_goes_on_past_what_cannot_be_read() {
    let cell = Cell::new();
    let tree = cell.local("tree");
    for directory in ["hidden", "listed", "open"] {
        fs::create_dir_all(tree.join(directory)).expect("a directory");
        fs::write(tree.join(directory).join("file"), directory).expect("a file");
    }
    let top = "/afs/test.cell/scratch/tree";
    cell.ok(&format!("cp --admin -r {} {top}", tree.display()));
    // Without l nothing is listed, without r nothing is read.
    cell.ok(&format!("fs setacl {top}/hidden system:anyuser none"));
    cell.ok(&format!("fs setacl {top}/listed system:anyuser l"));
    let back = cell.local("back");
    let answer = cell.run(["cp", "-r", top, back.to_str().expect("utf-8")]);
    assert_eq!(answer.status, 1, "{}", answer.err);
    let said = "not all was copied: 2 could not be read, 0 were left out";
    assert!(answer.err.contains(said), "{}", answer.err);
    for named in ["tree/hidden", "tree/listed/file"] {
        assert!(answer.err.contains(named), "{named}: {}", answer.err);
    }
    assert_eq!(fs::read(back.join("open/file")).expect("copied"), b"open");
    assert!(!back.join("hidden").exists() && !back.join("listed/file").exists());
    // A copy within AFS has no placeholder either.
    let copy = "/afs/test.cell/scratch/copy";
    let answer = cell.run(["cp", "-r", top, copy]);
    assert_eq!(answer.status, 1, "{}", answer.err);
    assert_eq!(cell.ok(&format!("ls {copy}")), "listed\nopen\n");
    assert_eq!(cell.ok(&format!("ls {copy}/listed")), "");
    assert_eq!(cell.ok(&format!("cat {copy}/open/file")), "open");
    // One file that cannot be read is a plain failure.
    assert!(
        cell.fails(&format!(
            "cp {top}/listed/file {}",
            cell.local("x").display()
        ))
        .contains("listed/file")
    );
    assert!(!cell.local("x").exists());
    // An object that is not a file is named and counts as a failure.
    let made = std::process::Command::new("mkfifo")
        .arg(tree.join("fifo"))
        .status();
    assert!(made.expect("mkfifo").success());
    let answer = cell.run([
        "cp",
        "-r",
        tree.to_str().expect("utf-8"),
        "/afs/test.cell/scratch/again",
    ]);
    assert_eq!(answer.status, 1, "{}", answer.err);
    assert!(
        answer.err.contains("0 could not be read, 1 were left out"),
        "{}",
        answer.err
    );
}

/// Names and messages that would drive a terminal are printed escaped.
#[test]
fn control_characters_are_escaped_in_all_output() {
    let cell = Cell::new();
    let scratch = "/afs/test.cell/scratch";
    let evil = cell.local("evil\u{1b}]0;t\u{7}\n.");
    fs::write(&evil, "bytes").expect("a file");
    let copy = ["cp", "--admin"].map(std::ffi::OsStr::new);
    let words = copy.into_iter().chain([evil.as_os_str(), scratch.as_ref()]);
    cell.run(words).ok("cp");
    let shown = "evil\\u001b]0;t\\u0007\\u000a.";
    assert_eq!(cell.ok(&format!("ls {scratch}")), format!("{shown}\n"));

    let offline = "hello\u{1b}[2Jyou";
    cell.run(["fs", "setvol", scratch, "-offlinemsg", offline])
        .ok("setvol");
    let examined = cell.ok(&format!("fs examine {scratch}"));
    assert!(examined.contains("hello\\x1b[2Jyou"), "{examined}");
    assert!(!examined.contains('\u{1b}'), "{examined:?}");

    // Refusals repeat names from the command line.
    for command in [
        ["pts", "examine", "who\u{1b}[2J"],
        ["vos", "examine", "which\u{1b}[2J"],
        ["ls", "--noauth", "/afs/test.cell/none\u{1b}[2J"],
    ] {
        let answer = cell.run(command);
        assert!(
            answer.err.contains("\\u001b[2J"),
            "{command:?}: {}",
            answer.err
        );
        assert!(
            !answer.err.contains('\u{1b}'),
            "{command:?}: {:?}",
            answer.err
        );
    }
}

/// A file time outside the range of AFS becomes the nearest time in it, not the first.
#[test]
fn a_copy_has_the_nearest_time_that_afs_has() {
    use std::time::{Duration, UNIX_EPOCH};
    let cell = Cell::new();
    let file = cell.local("file");
    fs::write(&file, "bytes").expect("a file");
    let second = Duration::from_secs(1);
    for (time, right) in [
        (UNIX_EPOCH - 5 * second, 0),
        (UNIX_EPOCH + second, 1),
        (UNIX_EPOCH + second * u32::MAX, u32::MAX),
        (UNIX_EPOCH + second * u32::MAX + second, u32::MAX),
    ] {
        let open = fs::File::options().write(true).open(&file);
        open.and_then(|open| open.set_modified(time))
            .expect("a time");
        let kept = file.metadata().and_then(|about| about.modified());
        assert_eq!(
            kept.expect("a time"),
            time,
            "the local file system keeps the time"
        );
        let to = "/afs/test.cell/scratch/file";
        cell.ok(&format!("cp --admin -p {} {to}", file.display()));
        let listed = cell.json(&format!("ls --json {to}")).to_string();
        assert!(
            listed.contains(&format!("\"modified\":{right},")),
            "{right}: {listed}"
        );
    }
}
