//! One dialect: the same options on every command, true reasons of failures, and file commands as
//! on Unix.

use std::fs;

use cellar_until::until_blocking;
use serde_json::Value;

use crate::common::devices::{TOP, comes_back, local, pieces, ready};
use crate::common::{Answer, Cell, run};

/// Runs commands that must fail, each with a text in its message.
fn refused(cell: &Cell, table: &[(&str, &str)]) {
    for (line, text) in table {
        let said = cell.fails(line);
        assert!(said.contains(text), "{line}: {said}");
    }
}

#[test]
fn refusals_give_the_true_reason() {
    let cell = Cell::new();
    cell.ok("pts createuser ann");
    cell.ok("mkdir --admin -p /afs/test.cell/scratch/secret/a/b");
    cell.ok("fs setacl /afs/test.cell/scratch/secret system:anyuser none");
    cell.ok("fs setacl /afs/test.cell/scratch system:anyuser rl");
    refused(
        &cell,
        &[
            (
                "pts creategroup nobodyhere:x",
                "There is no user or group 'nobodyhere'",
            ),
            (
                "pts creategroup ann:x -owner system:administrators",
                "not 'ann'",
            ),
            (
                "pts listentries -noauth",
                "Only members of system:administrators",
            ),
            (
                "fs setquota /afs/test.cell/scratch 10000 -noauth",
                "Only superusers of the cell set the quota",
            ),
            (
                "vos changeaddr 127.0.0.1 -remove",
                "'vos listvldb -server 127.0.0.1' lists them",
            ),
            (
                "cat --noauth /afs/test.cell/scratch/secret/a/b/c",
                "/afs/test.cell/scratch/secret/a/b/c: at /afs/test.cell/scratch/secret: permission denied",
            ),
            ("ls /afs/wrong.cell/x", "no cell wrong.cell is known here"),
            ("ls --dir /nonexistent /afs", "cellar up --dir"),
        ],
    );
}

#[test]
fn a_list_of_members_names_those_who_may_read_it() {
    let cell = Cell::new();
    cell.ok("pts creategroup staff");
    cell.ok("pts setfields staff -access S----");
    // Reported, and no failure, as in OpenAFS's pts.
    let answer = cell.run("pts membership staff -noauth".split(' '));
    let said = "'pts examine staff' shows owner and flags";
    assert!(answer.err.contains(said), "{}", answer.err);
    assert!(!answer.err.contains("Changes need"), "{}", answer.err);
}

#[test]
fn a_layout_that_needs_more_devices_says_how_many() {
    let cell = Cell::with(&["--osds", "1"]);
    ready(&cell, 1);
    let (path, _) = local(&cell, "large", 3 << 20);
    let line = format!(
        "cp --admin --layout stripes=2,copies=2 {} {TOP}/x",
        path.display()
    );
    let said = cell.fails(&line);
    assert!(said.contains("needs 4 object storage devices"), "{said}");
    assert!(said.contains("cellar osd list"), "{said}");
    assert_eq!(
        cell.ok(&format!("ls -a {TOP}")),
        ".\n..\n",
        "nothing is left"
    );
}

#[test]
fn a_drain_that_cannot_end_says_why() {
    let cell = Cell::with(&["--osds", "1"]);
    ready(&cell, 1);
    let (path, _) = local(&cell, "large", 2 << 20);
    cell.ok(&format!(
        "cp --admin --layout stripes=1 {} {TOP}/x",
        path.display()
    ));
    let said = cell.fails("osd drain 2 -wait");
    assert!(said.contains("still holds objects of 1 files"), "{said}");
    assert!(said.contains("the cell has no other device"), "{said}");
}

#[test]
fn bos_says_what_does_not_apply_to_a_cellar_server() {
    let cell = Cell::new();
    let table = [
        ("bos stop 127.0.0.1 fs", "'systemctl stop cellar'"),
        ("bos shutdown 127.0.0.1 fs", "all its roles in one process"),
        (
            "bos create 127.0.0.1 x simple /bin/true",
            "no programs to install",
        ),
        ("bos getlog 127.0.0.1 FileLog", "has the log AuditLog"),
    ];
    for (line, text) in table {
        // Some end with 0, as in OpenAFS's bos.
        let answer = cell.run(line.split(' '));
        assert!(answer.err.contains(text), "{line}: {}", answer.err);
    }
}

#[test]
fn the_directory_of_a_joined_server_is_the_cells() {
    let cell = Cell::new();
    let second = cell.join();
    for line in [
        "ls /afs/test.cell",
        "ls --admin /afs/test.cell",
        "vos examine scratch",
    ] {
        second.ok(line);
    }
    second.ok("mkdir --admin /afs/test.cell/scratch/by-key");
    assert!(cell.ok("ls /afs/test.cell/scratch").contains("by-key"));
}

#[test]
fn shared_options_have_one_name_and_any_place() {
    let cell = Cell::new();
    let directory = cell.directory();
    let directory = directory.display();
    let server = format!("127.0.0.1:{}", cell.port + 3);
    for line in [
        format!("--dir {directory} vos examine scratch"),
        format!("--dir={directory} --json ls /afs/test.cell"),
        format!("vos --dir {directory} examine scratch"),
        format!("pts examine system:administrators --server {server} --cell test.cell"),
        format!("--server {server} --cell test.cell vos examine scratch"),
        format!("vos examine scratch -dbserver {server} -cell test.cell"),
        format!("ls --dbserver {server} /afs/test.cell"),
        format!("fs listquota /afs/test.cell --server {server}"),
        format!("--dir {directory} osd list --admin"),
    ] {
        run(None, line.split_whitespace()).ok(&line);
    }
    // `-server` keeps OpenAFS's meaning, and advice names the switch that works there.
    let line = format!("vos create 127.0.0.1 a x -cell wrong.cell --noauth --dir {directory}");
    let said = cell.fails(&line);
    assert!(said.contains("-dbserver ADDRESS"), "{said}");
    assert!(!said.contains("--server ADDRESS"), "{said}");
    let line = "pts examine system:administrators -cell wrong.cell";
    let said = run(None, line.split(' ')).failure(line);
    assert!(said.contains("--server ADDRESS"), "{said}");
}

#[test]
fn verbose_commands_report_as_whom_they_act() {
    let cell = Cell::new();
    for (line, text) in [
        (
            "vos examine scratch -verbose",
            "Acting as administrator of cell test.cell, through ",
        ),
        (
            "pts examine system:administrators -v",
            "Acting as administrator of cell test.cell, through ",
        ),
        (
            "pts examine system:administrators -v -localauth",
            "with the cell's key",
        ),
        (
            "ls -v --noauth /afs/test.cell",
            "Acting as system:anyuser in cell test.cell",
        ),
        (
            "-v ls --admin /afs/test.cell",
            "Acting as administrator of cell test.cell",
        ),
    ] {
        let answer = cell.run(line.split(' '));
        assert_eq!(answer.status, 0, "{line}: {}", answer.err);
        assert!(answer.err.contains(text), "{line}: {}", answer.err);
        assert!(!answer.out.contains("Acting"), "{line}: {}", answer.out);
    }
}

/// A cell with a small tree in its scratch volume.
fn with_tree() -> Cell {
    let cell = Cell::new();
    cell.ok(&format!("mkdir -p {TOP}/src/deep {TOP}/other"));
    for (name, length) in [
        ("src/a.rs", 10),
        ("src/b.rs", 3000),
        ("src/deep/c.rs", 20_000),
        ("src/.hidden", 1),
        ("other/d.txt", 5),
    ] {
        let path = cell.local("file");
        fs::write(&path, vec![b'x'; length]).expect("a local file");
        cell.ok(&format!("cp {} {TOP}/{name}", path.display()));
    }
    cell
}

#[test]
fn ls_has_the_options_of_unix() {
    let cell = with_tree();
    let ls = |options: &str| cell.ok(&format!("ls {options}"));
    assert_eq!(ls(&format!("{TOP}/src")), "a.rs\nb.rs\ndeep\n");
    assert_eq!(ls(&format!("-A {TOP}/src")), ".hidden\na.rs\nb.rs\ndeep\n");
    assert_eq!(
        ls(&format!("-a {TOP}/src")),
        ".\n..\n.hidden\na.rs\nb.rs\ndeep\n"
    );
    assert_eq!(
        ls(&format!("-R {TOP}/src")),
        format!("{TOP}/src:\na.rs\nb.rs\ndeep\n\n{TOP}/src/deep:\nc.rs\n")
    );
    let long = ls(&format!("-lha {TOP}/src"));
    assert!(long.contains(" 3.0K ") && long.contains(" .."), "{long}");
    assert!(long.contains(" anonymous "), "owners have names: {long}");
    let json = cell.json(&format!("ls --json {TOP}/src"));
    let entries = json[0]["entries"].as_array().expect("entries");
    assert_eq!(entries.len(), 4, "JSON has all names: {json}");
    assert_eq!(entries[0]["owner_name"], "anonymous", "{json}");
}

#[test]
fn patterns_stand_for_names() {
    let cell = with_tree();
    assert_eq!(
        cell.ok(&format!("ls {TOP}/s*/[ab].rs")),
        format!("{TOP}/src/a.rs:\n{TOP}/src/a.rs\n\n{TOP}/src/b.rs:\n{TOP}/src/b.rs\n")
    );
    assert_eq!(cell.ok(&format!("cat {TOP}/*/d.txt")), "xxxxx");
    let back = cell.local("back");
    fs::create_dir(&back).expect("a directory");
    cell.ok(&format!("cp {TOP}/src/*.rs {}", back.display()));
    assert_eq!(fs::read_dir(&back).expect("copies").count(), 2);
    refused(
        &cell,
        &[
            (&format!("ls {TOP}/*.none"), "no name matches"),
            (&format!("rm {TOP}/src/[a"), "src/[a"),
        ],
    );
    // A name that exists is not expanded.
    let star = cell.local("file");
    cell.ok(&format!("cp {} {TOP}/other/*", star.display()));
    cell.ok(&format!("rm {TOP}/other/*"));
    assert_eq!(cell.ok(&format!("ls {TOP}/other")), "d.txt\n");
    cell.ok(&format!("rm -f {TOP}/other/* {TOP}/other/none*"));
    assert_eq!(cell.ok(&format!("ls {TOP}/other")), "");
}

#[test]
fn du_df_chmod_and_find() {
    let cell = with_tree();
    let sums = cell.json(&format!("du --json {TOP}/src"));
    assert_eq!(sums[0]["path"], format!("{TOP}/src/deep"), "{sums}");
    let (deep, all) = (&sums[0]["bytes"], &sums[1]["bytes"]);
    assert!(deep.as_u64() >= Some(20_000), "{sums}");
    assert!(
        all.as_u64() >= Some(deep.as_u64().expect("a number") + 3011),
        "{sums}"
    );
    let sum = cell.ok(&format!("du -sh {TOP}/src"));
    assert!(
        sum.ends_with(&format!("K\t{TOP}/src\n")) && sum.lines().count() == 1,
        "{sum}"
    );
    assert!(cell.ok(&format!("du -a {TOP}/src")).contains("b.rs"));

    let room = cell.ok(&format!("df -h {TOP}"));
    assert!(room.contains("Quota") && room.contains("scratch"), "{room}");
    assert_eq!(cell.json(&format!("df --json {TOP}"))[0]["name"], "scratch");

    let mode = |name: &str| cell.json(&format!("stat --json {TOP}/{name}"))[0]["mode"].clone();
    cell.ok(&format!("chmod 640 {TOP}/src/a.rs"));
    assert_eq!(mode("src/a.rs"), "0640");
    cell.ok(&format!("chmod u+x,g=r {TOP}/src/a.rs"));
    assert_eq!(mode("src/a.rs"), "0740");
    cell.ok(&format!("chmod -R go-rwx {TOP}/src"));
    assert_eq!(mode("src/deep/c.rs"), "0600");
    assert_eq!(mode("src/deep"), "0700");
    refused(
        &cell,
        &[
            (&format!("chmod 99 {TOP}/src"), "not a mode"),
            (
                &format!("chmod 4755 {TOP}/src/a.rs"),
                "did not set the bits 4000",
            ),
        ],
    );
    cell.ok(&format!("chmod --admin 4755 {TOP}/src/a.rs"));

    let find = |options: &str| cell.ok(&format!("find {TOP} {options}"));
    assert_eq!(
        find("--name *.rs"),
        format!("{TOP}/src/a.rs\n{TOP}/src/b.rs\n{TOP}/src/deep/c.rs\n")
    );
    assert_eq!(
        find("--type d --max-depth 1"),
        format!("{TOP}\n{TOP}/other\n{TOP}/src\n")
    );
    assert_eq!(
        find("--min-size 2K --max-size 10K"),
        format!("{TOP}/src/b.rs\n")
    );
    assert_eq!(
        find("--name d* --type f -0"),
        format!("{TOP}/other/d.txt\0")
    );
    assert_eq!(find("--older-than 1h"), "");
    assert_eq!(find("--newer-than 1h --type f").lines().count(), 5);
    assert_eq!(find("--owner anonymous --type f").lines().count(), 5);
    assert_eq!(cell.ok("find /afs/test.cell --type m"), format!("{TOP}\n"));
    assert!(
        cell.fails("find --owner nosuch /afs/test.cell")
            .contains("no user or group")
    );
}

#[test]
fn a_copy_replaces_a_file_and_keeps_its_rights() {
    let cell = Cell::new();
    let (path, bytes) = local(&cell, "bytes", 5000);
    let path = path.display();
    let stat = |name: &str| cell.json(&format!("stat --json {TOP}/{name}"))[0].take();
    cell.ok(&format!("cp {path} {TOP}/file"));
    cell.ok(&format!("chmod 600 {TOP}/file"));
    let before = stat("file");
    let other = cell.local("other");
    fs::write(&other, b"short").expect("a local file");
    cell.ok(&format!("cp {} {TOP}/file", other.display()));
    let after = stat("file");
    assert_eq!(cell.ok(&format!("cat {TOP}/file")), "short");
    assert_ne!(after["fid"], before["fid"], "a new file replaces it");
    for field in ["mode", "owner", "links"] {
        assert_eq!(after[field], before[field], "{field}");
    }
    // With further names, or without the right to make names, a file is written in place.
    cell.ok(&format!("ln {TOP}/file {TOP}/second"));
    cell.ok(&format!("cp {path} {TOP}/second"));
    assert_eq!(stat("file")["fid"], after["fid"]);
    assert_eq!(stat("file")["length"], bytes.len());
    cell.ok(&format!("rm {TOP}/second"));
    cell.ok(&format!("fs setacl {TOP} system:anyuser rlw"));
    cell.ok(&format!("cp {} {TOP}/file", other.display()));
    assert_eq!(stat("file")["fid"], after["fid"]);
    assert_eq!(cell.ok(&format!("ls -A {TOP}")), "file\n");
    // The same on this machine.
    let back = cell.local("back");
    fs::write(&back, b"old").expect("a local file");
    fs::hard_link(&back, cell.local("link")).expect("a link");
    cell.ok(&format!("cp {TOP}/file {}", back.display()));
    assert_eq!(fs::read(cell.local("link")).expect("the file"), b"short");
}

#[test]
fn policies_see_the_final_name_of_a_copy() {
    let cell = Cell::with(&["--osds", "1"]);
    ready(&cell, 1);
    let rule = "~'*.obj' => osd, stop; => local;";
    cell.run(["osd", "policy", "add", "byname", rule])
        .ok("osd policy add");
    cell.ok("vos setfields scratch -osdpolicy byname");
    let (path, bytes) = local(&cell, "bytes", 300_000);
    let place = |name: &str| {
        cell.ok(&format!("cp --admin {} {TOP}/{name}", path.display()));
        pieces(&cell, name)["pieces"].as_array().map_or(0, Vec::len)
    };
    until_blocking("the file server knows the policy", || place("a.obj") == 1);
    assert_eq!(place("a.txt"), 0);
    comes_back(&cell, "a.obj", &bytes);
}

#[test]
fn a_move_reports_the_backup_volume_that_it_removes() {
    let cell = Cell::with_partitions(&["vicepa", "vicepb"]);
    cell.ok("vos create 127.0.0.1 a vol");
    cell.ok("vos backup vol");
    let line = "vos move vol 127.0.0.1 a 127.0.0.1 b";
    let moved = cell.run(line.split(' '));
    assert_eq!(moved.status, 0, "{}", moved.err);
    assert!(
        moved.err.contains("'vos backup vol' makes a new one"),
        "{}",
        moved.err
    );
    let moved = cell.json("vos move vol 127.0.0.1 b 127.0.0.1 a -json");
    assert!(moved["backup_removed"].is_null(), "{moved}");
    assert_eq!(moved["to"]["partition"], "/vicepa", "{moved}");
    let backup = cell.json("vos backup vol -json")["backup"].clone();
    let moved = cell.json("vos move vol 127.0.0.1 a 127.0.0.1 b -json");
    assert_eq!(moved["backup_removed"], backup, "{moved}");
    cell.ok("vos create 127.0.0.1 b second");
    let listed = cell.ok(
        "vos move -all -fromserver 127.0.0.1 -frompartition b -toserver 127.0.0.1 -topartition a",
    );
    for name in ["vol", "second"] {
        assert!(
            listed.contains(&format!("{name} moved from 127.0.0.1 /vicepb")),
            "{listed}"
        );
    }
}

/// The values under a key, at any depth.
fn values<'j>(json: &'j Value, key: &str, found: &mut Vec<&'j Value>) {
    match json {
        Value::Object(fields) => {
            found.extend(fields.get(key));
            fields.values().for_each(|value| values(value, key, found));
        }
        Value::Array(all) => all.iter().for_each(|value| values(value, key, found)),
        _ => {}
    }
}

#[test]
fn json_has_names_and_no_codes() {
    let cell = Cell::new();
    cell.ok("vos addsite 127.0.0.1 a root.cell");
    cell.ok("vos lock scratch");
    let all = |line: &str, key: &str| {
        let json = cell.json(line);
        let mut found = Vec::new();
        values(&json, key, &mut found);
        assert!(!found.is_empty(), "{line}: {json}");
        let names = found.iter().map(|value| value.to_string());
        names.collect::<Vec<_>>()
    };
    let entries = all("vos listvldb -json", "flags");
    assert!(
        entries.contains(&r#"["read_write"]"#.to_owned()),
        "{entries:?}"
    );
    assert!(
        entries.contains(&r#"["read_only","not_released"]"#.to_owned()),
        "{entries:?}"
    );
    let locked = r#"["read_write_exists","locked_delete"]"#;
    assert!(entries.contains(&locked.to_owned()), "{entries:?}");
    assert_eq!(
        all("vos examine scratch -json", "operation"),
        [r#""delete/misc""#]
    );
    for key in ["state", "goal", "file_goal"] {
        let states = all("bos status 127.0.0.1 -json", key);
        assert!(
            states.iter().all(|state| state == r#""running""#),
            "{states:?}"
        );
    }
    let letters = all("pts examine system:administrators -json", "flags");
    assert_eq!(letters, [r#""S-M--""#]);
    assert!(all("vos examine scratch -json", "flags").contains(&"[]".to_owned()));
    // Ids of users have names beside them.
    cell.ok(&format!("mkdir {TOP}/own"));
    for line in [
        &format!("stat --json {TOP}/own"),
        &format!("find --json {TOP}/own"),
        &format!("ls --json -d {TOP}/own"),
    ] {
        assert_eq!(all(line, "owner_name"), [r#""anonymous""#], "{line}");
    }
    let stat = &format!("stat --json {TOP}/own");
    assert_eq!(all(stat, "author_name").len(), 1);
    assert_eq!(all(stat, "group_name").len(), 1);
}

#[test]
fn small_answers_are_what_they_say() {
    let mut cell = Cell::new();
    let answer = cell.run(["fs", "listquota", "/afs/test.cell/none"]);
    assert_ne!(answer.status, 0);
    assert_eq!(answer.out, "", "an empty table");
    assert!(
        cell.banner.contains("/vicepa (3 volumes)"),
        "{}",
        cell.banner
    );
    cell.ok("vos create 127.0.0.1 a fourth");
    cell.end("-INT");
    cell.start();
    assert!(
        cell.banner.contains("/vicepa (4 volumes)"),
        "{}",
        cell.banner
    );
}

#[test]
fn a_link_has_the_syntax_of_its_command() {
    let cell = Cell::new();
    for (link, words, text) in [
        ("vos", "examine root.cell", "root.cell"),
        (
            "pts",
            "examine system:administrators",
            "system:administrators",
        ),
        (
            "fs",
            "listacl /afs/test.cell",
            "Access list for /afs/test.cell is",
        ),
        (
            "bos",
            "status 127.0.0.1",
            "Instance fs, currently running normally.",
        ),
        ("tokens", "", "   --End of list--"),
        ("unlog", "", ""),
    ] {
        let path = cell.local(link);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_cellar"), &path).expect("a link");
        let mut command = std::process::Command::new(path);
        command.args(words.split_whitespace());
        command.env("CELLAR_DIR", cell.directory());
        command.env("CELLAR_CELLSERVDB", "/nonexistent");
        command.env(
            "KRB5CCNAME",
            format!("FILE:{}", cell.local("none").display()),
        );
        let said = Answer::of(command).ok(link);
        assert!(said.contains(text), "{link}: {said}");
    }
}
