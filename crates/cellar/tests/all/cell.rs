//! Runs the real program: a cell is created, used, killed and started again.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::common::{Answer, Cell, run};

/// A tree with typical contents: empty and large files, odd names, links, depth.
fn make_tree(root: &Path) {
    fs::create_dir_all(root.join("a/b/c/d")).expect("directories");
    fs::create_dir(root.join("empty")).expect("directory");
    fs::write(root.join("nothing"), b"").expect("file");
    fs::write(root.join("a/b/c/d/deep"), b"deep").expect("file");
    fs::write(root.join("name with blanks"), b"x").expect("file");
    fs::write(root.join(format!("long{}", "g".repeat(200))), b"long name").expect("file");
    fs::write(root.join("\u{fc}ml\u{e4}ut"), b"utf-8").expect("file");
    // Longer than two parts of a store, and not a round number.
    let large: Vec<u8> = (0..17_000_003u32).map(|n| (n ^ (n >> 8)) as u8).collect();
    fs::write(root.join("large"), large).expect("file");
    for n in 0..300 {
        fs::write(root.join(format!("a/small{n}")), vec![n as u8; n * 37]).expect("file");
    }
    fs::set_permissions(root.join("a/small1"), fs::Permissions::from_mode(0o751)).expect("mode");
    symlink("../large", root.join("a/link")).expect("link");
}

/// Path, mode and contents of everything in a tree.
fn contents(root: &Path) -> BTreeMap<String, (u32, Vec<u8>)> {
    let mut all = BTreeMap::new();
    let mut todo = vec![root.to_path_buf()];
    while let Some(directory) = todo.pop() {
        for entry in fs::read_dir(&directory).expect("directory") {
            let entry = entry.expect("entry");
            let path = entry.path();
            let about = entry.metadata().expect("metadata");
            let name = path
                .strip_prefix(root)
                .expect("below")
                .display()
                .to_string();
            let (mode, bytes) = if about.is_symlink() {
                let target = fs::read_link(&path).expect("link");
                (0, target.into_os_string().into_encoded_bytes())
            } else if about.is_dir() {
                todo.push(path);
                (about.permissions().mode() & 0o777, Vec::new())
            } else {
                (
                    about.permissions().mode() & 0o777,
                    fs::read(&path).expect("file"),
                )
            };
            all.insert(name, (mode, bytes));
        }
    }
    all
}

#[test]
fn a_newcomer_stores_and_reads_a_file() {
    let cell = Cell::new();
    let hello = cell.local("hello");
    fs::write(&hello, "hello, world\n").expect("file");
    cell.ok(&format!("cp {} /afs/test.cell/scratch/", hello.display()));
    assert_eq!(
        cell.ok("cat /afs/test.cell/scratch/hello"),
        "hello, world\n"
    );
    assert_eq!(cell.ok("ls /afs/test.cell/scratch"), "hello\n");
    assert_eq!(cell.ok("ls /afs/test.cell"), "scratch\n");
    let long = cell.ok("ls -l /afs/test.cell/scratch/hello");
    assert!(
        long.starts_with("-rw-") && long.contains(" anonymous 13 "),
        "{long}"
    );
    let listed = cell.json("ls --json /afs/test.cell");
    assert_eq!(listed[0]["entries"][0]["target"], "#scratch");
    let about = cell.json("stat --json /afs/test.cell/scratch/hello");
    assert_eq!(about[0]["length"], 13);
    assert_eq!(about[0]["volume"], "scratch");
}

#[test]
fn a_tree_comes_back_as_it_was() {
    let cell = Cell::new();
    let tree = cell.local("tree");
    make_tree(&tree);
    cell.ok(&format!(
        "cp -r {} /afs/test.cell/scratch/tree",
        tree.display()
    ));
    // Copies within AFS, and out again.
    cell.ok("cp -r /afs/test.cell/scratch/tree /afs/test.cell/scratch/copy");
    for name in ["tree", "copy"] {
        let back = cell.local(format!("{name}.back"));
        cell.ok(&format!(
            "cp -r /afs/test.cell/scratch/{name} {}",
            back.display()
        ));
        let (wanted, found) = (contents(&tree), contents(&back));
        assert_eq!(
            wanted.keys().collect::<Vec<_>>(),
            found.keys().collect::<Vec<_>>()
        );
        for (path, what) in &wanted {
            assert!(found[path] == *what, "{path} of {name} differs");
        }
    }
    // Over existing files: shorter contents truncate the file.
    fs::write(tree.join("large"), b"short now").expect("file");
    cell.ok(&format!(
        "cp {} /afs/test.cell/scratch/copy/",
        tree.join("large").display()
    ));
    assert_eq!(
        cell.ok("cat /afs/test.cell/scratch/copy/large"),
        "short now"
    );
    cell.fails("rm /afs/test.cell/scratch/tree");
    cell.ok("rm -r /afs/test.cell/scratch/tree /afs/test.cell/scratch/copy");
    assert_eq!(cell.ok("ls /afs/test.cell/scratch"), "");
}

#[test]
fn names_are_made_moved_linked_and_removed() {
    let cell = Cell::new();
    let scratch = "/afs/test.cell/scratch";
    cell.ok(&format!("mkdir -p {scratch}/a/b/c {scratch}/d"));
    cell.fails(&format!("mkdir {scratch}/d"));
    let file = cell.local("f");
    fs::write(&file, "f").expect("file");
    cell.ok(&format!("cp {} {scratch}/a/f", file.display()));
    cell.ok(&format!("ln {scratch}/a/f {scratch}/a/g"));
    assert!(
        cell.fails(&format!("ln {scratch}/a/f {scratch}/d/g"))
            .contains("director")
    );
    cell.ok(&format!("ln -s ../a/g {scratch}/d/s"));
    assert_eq!(cell.ok(&format!("cat {scratch}/d/s")), "f");
    cell.ok(&format!("mv {scratch}/a/g {scratch}/a/h"));
    assert!(
        cell.fails(&format!("cat {scratch}/d/s"))
            .contains("no such file")
    );
    cell.ok(&format!("mv {scratch}/a {scratch}/d"));
    assert_eq!(cell.ok(&format!("ls {scratch}/d/a")), "b\nf\nh\n");
    assert_eq!(cell.ok(&format!("ls {scratch}/d/a/b/..")), "b\nf\nh\n");
    assert!(cell.fails(&format!("rm {scratch}")).contains("mount point"));
    assert!(
        cell.fails(&format!("rm {scratch}/none"))
            .contains("no such file")
    );
    cell.ok(&format!("rm -f {scratch}/none"));
    cell.ok(&format!("rm -r {scratch}/d"));
    assert_eq!(cell.ok(&format!("ls {scratch}")), "");
    let elsewhere = cell.fails("ls /afs/elsewhere.org/x");
    assert!(elsewhere.contains("no cell elsewhere.org"), "{elsewhere}");
    assert!(cell.fails("ls /etc").contains("/afs/CELL"));
}

#[test]
fn commands_that_look_go_on_after_a_path_that_is_not_there() {
    let cell = Cell::new();
    let scratch = "/afs/test.cell/scratch";
    cell.ok(&format!("mkdir {scratch}/a {scratch}/a/inside {scratch}/b"));
    let file = cell.local("f");
    fs::write(&file, "f").expect("file");
    cell.ok(&format!("cp {} {scratch}/f", file.display()));
    let line = |command: &str, names: [&str; 3]| {
        let paths = names.map(|name| format!("{scratch}/{name}"));
        let paths = paths.iter().map(String::as_str);
        let words: Vec<&str> = command.split_whitespace().chain(paths).collect();
        let answer = cell.run(&words);
        assert_eq!(answer.status, 1, "{command}");
        let said = format!("cellar {}: {scratch}/none: ", words[0]);
        assert!(answer.err.starts_with(&said), "{}", answer.err);
        assert_eq!(answer.err.lines().count(), 1, "{}", answer.err);
        answer.out
    };
    assert_eq!(
        line("ls", ["none", "a", "b"]),
        format!("{scratch}/a:\ninside\n\n{scratch}/b:\n")
    );
    let listed: serde_json::Value =
        serde_json::from_str(&line("ls --json", ["a", "none", "b"])).expect("JSON");
    assert_eq!(listed.as_array().map(Vec::len), Some(2));
    assert_eq!(line("cat", ["f", "none", "f"]), "ff");
    assert_eq!(line("stat", ["f", "none", "b"]).matches("File:").count(), 2);
    let figures = cell.json("statistics --json");
    // The counters of the file server are included.
    assert!(
        figures["callbacks"]["promised"].as_u64() > Some(0),
        "{figures}"
    );
    assert!(figures["files"]["looks_at_directories"].as_u64() > Some(0));
    assert!(figures["hosts"]["clients"].is_u64());
}

#[test]
fn volumes_users_and_access_lists_as_the_originals_have_them() {
    let cell = Cell::new();
    let made = cell.ok("vos create 127.0.0.1 a user.ann -maxquota 100");
    assert!(made.starts_with("Volume 5368709"), "{made}");
    assert!(
        made.ends_with(" created on partition /vicepa of 127.0.0.1\n"),
        "{made}"
    );
    assert!(
        cell.fails("vos create 127.0.0.1 a user.ann")
            .contains("exists")
    );
    assert!(cell.fails("vos create 127.0.0.1 b x").contains("partition"));
    assert!(
        cell.fails("vos create 127.0.0.1 a 12345")
            .contains("number")
    );
    let listed = cell.json("vos listvldb --cell test.cell --server 127.0.0.1 --json");
    assert_eq!(listed["total"], 4);
    assert_eq!(listed["entries"][3]["name"], "user.ann");
    assert!(
        cell.ok("vos listvol 127.0.0.1 -noresolve")
            .contains("Total volumes onLine 4 ;")
    );
    let shown = cell.ok("vos examine user.ann -noresolve");
    assert!(shown.contains("    MaxQuota        100 K \n"), "{shown}");
    assert!(
        shown.contains("       server 127.0.0.1 partition /vicepa RW Site \n"),
        "{shown}"
    );
    assert!(cell.fails("vos examine none").contains("no such entry"));

    assert_eq!(cell.ok("pts createuser ann"), "User ann has id 1\n");
    assert_eq!(
        cell.ok("pts cg -name ann:friends -own ann"),
        "group ann:friends has id -206\n"
    );
    assert_eq!(cell.ok("pts adduser ann ann:friends"), "");
    assert_eq!(
        cell.ok("pts membership ann ann:friends"),
        "Groups ann (id: 1) is a member of:\n  ann:friends\n\
         Members of ann:friends (id: -206) are:\n  ann\n"
    );
    assert!(
        cell.fails("pts examine nosuch")
            .contains("couldn't look up id for nosuch")
    );

    cell.ok("fs mkmount /afs/.test.cell/ann user.ann");
    assert_eq!(
        cell.ok("fs lsmount /afs/.test.cell/ann"),
        "'/afs/.test.cell/ann' is a mount point for volume '#user.ann'\n"
    );
    cell.ok("fs setacl -dir /afs/test.cell/ann -acl ann all system:anyuser read");
    assert_eq!(
        cell.ok("fs listacl /afs/test.cell/ann"),
        "Access list for /afs/test.cell/ann is\nNormal rights:\n  \
         system:administrators rlidwka\n  system:anyuser rl\n  ann rlidwka\n"
    );
    // A path that fails does not prevent the output for the others.
    for command in ["listacl", "listquota", "whereis", "whichcell"] {
        let both = format!("fs {command} /afs/test.cell/nosuch /afs/test.cell/ann");
        let said = cell.run(both.split_whitespace());
        assert_ne!(said.status, 0, "{both}");
        assert!(said.err.contains("nosuch"), "{both}: {}", said.err);
        let what = if command == "listquota" {
            "user.ann"
        } else {
            "ann"
        };
        assert!(said.out.contains(what), "{both}: {}", said.out);
    }
    assert!(
        cell.fails("fs sa /afs/test.cell/ann nosuch rl")
            .contains("may not exist")
    );
    let file = cell.local("f");
    fs::write(&file, "f").expect("file");
    let copy = format!("cp {} /afs/test.cell/ann/f", file.display());
    assert!(cell.fails(&copy).contains("permission denied"));
    cell.ok(&format!("{copy} --admin"));
    assert_eq!(cell.ok("cat /afs/test.cell/ann/f"), "f");
    cell.ok("fs setquota /afs/test.cell/ann 5");
    assert!(
        cell.ok("fs listquota /afs/test.cell/ann")
            .contains("user.ann")
    );
    cell.ok("fs rmmount /afs/.test.cell/ann");
    assert!(
        cell.ok("vos remove -id user.ann")
            .contains("/vicepa server ")
    );
    assert!(cell.fails("vos examine user.ann").contains("no such entry"));
    assert!(
        cell.ok("bos status 127.0.0.1")
            .starts_with("Instance fs, currently running normally.")
    );
}

#[test]
fn mistakes_are_said_before_they_do_harm() {
    let cell = Cell::new();
    // The administrator's socket leads to one server. A call to another server must not go to it.
    let elsewhere = cell.fails("vos create 127.0.0.77 a misplaced");
    assert!(elsewhere.contains("127.0.0.77"), "{elsewhere}");
    assert!(
        cell.fails("vos examine misplaced")
            .contains("no such entry")
    );
    assert!(
        cell.fails("bos removekey 127.0.0.77 1")
            .contains("127.0.0.77")
    );
    assert_eq!(cell.json("vos listvldb -json")["total"], 3);
    let nobody = "ls --noauth --encrypt /afs/test.cell";
    assert!(cell.fails(nobody).contains("--encrypt needs a token"));
    let no_key = cell.fails("bos removekey 127.0.0.1 77");
    assert!(
        no_key.contains("There is no key of that version"),
        "{no_key}"
    );
    let secret = cell.fails("key retire 77");
    assert!(!secret.contains("--last"), "{secret}");
    for (wrong, status) in [
        ("fs setquota scratch -5", 1),
        ("vos setfields scratch -maxquota -5", 255),
        ("bos adduser 127.0.0.1 -user", 8),
    ] {
        assert_eq!(cell.run(wrong.split_whitespace()).status, status, "{wrong}");
    }
    // The end of the list of keys is not a refusal.
    cell.ok("bos listkeys 127.0.0.1");
    let log = cell.ok("bos getlog 127.0.0.1 AuditLog");
    let listed = log.lines().filter(|line| line.contains("BOZO_ListKeys"));
    assert_eq!(listed.clone().count(), 1, "one act, one record: {log}");
    assert!(
        listed
            .into_iter()
            .all(|line| line.contains("\"allowed\":true")),
        "{log}"
    );
}

#[test]
fn files_in_a_place_open_to_all_are_not_used() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let bait = home.path().join("cell-data");
    fs::create_dir(&bait).expect("directory");
    fs::set_permissions(&bait, fs::Permissions::from_mode(0o777)).expect("mode");
    for line in [
        "ls /afs/demo.cell",
        "ls --server 127.0.0.1 /afs/demo.cell",
        "vos listvldb",
        "key list",
        "statistics",
        "login",
        "up",
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cellar"));
        command.args(line.split(' ')).current_dir(home.path());
        let said = Answer::of(command).failure(line);
        assert!(
            said.contains("./cell-data belongs to another account"),
            "{said}"
        );
    }
}

#[test]
fn a_cell_that_was_named_comes_before_one_that_lies_here() {
    let cell = Cell::new();
    let here = cell.local("cell-data");
    symlink(cell.directory(), &here).expect("link");
    let list = cell.local("CellServDB");
    fs::write(&list, ">other.cell\n192.0.2.1 #other\n").expect("file");
    let asked = |named: &[(&str, &Path)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cellar"));
        command
            .args(["fs", "wscell", "-json"])
            .current_dir(cell.local(""))
            .env_remove("CELLAR_DIR")
            .env_remove("CELLAR_CELLSERVDB")
            .envs(named.iter().copied());
        Answer::of(command)
    };
    let cell_of = |named: &[(&str, &Path)]| {
        let said = asked(named).ok("fs wscell");
        let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        said["cell"].as_str().expect("a name").to_owned()
    };
    let (by_list, nowhere) = ("CELLAR_CELLSERVDB", Path::new("/nonexistent"));
    assert_eq!(cell_of(&[]), "test.cell", "nothing was named");
    assert_eq!(cell_of(&[(by_list, &list)]), "other.cell");
    assert_eq!(
        cell_of(&[(by_list, &list), ("CELLAR_DIR", &here)]),
        "test.cell"
    );
    assert_eq!(
        cell_of(&[(by_list, nowhere), ("CELLAR_DIR", &here)]),
        "test.cell"
    );
    let said = asked(&[(by_list, nowhere)]).failure("no such list");
    assert!(
        said.contains("/nonexistent, which CELLAR_CELLSERVDB"),
        "{said}"
    );
}

#[test]
fn every_listing_has_a_form_for_programs() {
    let cell = Cell::new();
    assert_eq!(cell.json("fs wscell -json")["cell"], "test.cell");
    let found = cell.json("fs whichcell /afs/test.cell -json");
    assert_eq!(found[0]["cell"], "test.cell");
    let known = cell.json("fs listcells -json");
    assert_eq!(known[0]["database_servers"][0], "127.0.0.1");
    assert_eq!(cell.json("vos lock scratch -json")["locked"], true);
    assert_eq!(cell.json("vos unlock scratch -json")["locked"], false);
}

#[test]
fn anybody_may_look_and_only_the_administrator_may_change() {
    let cell = Cell::new();
    assert!(cell.ok("vos listvldb -noauth").contains("Total entries: 3"));
    let directory = cell.directory();
    let directory = directory.to_str().expect("utf-8");
    for line in [
        "vos listvldb --dir",
        "vos listvldb -dir",
        "fs listacl scratch --dir",
    ] {
        let words = line.split_whitespace().chain([directory]);
        assert_eq!(run(None, words).status, 0, "{line}");
    }
    assert!(
        cell.fails("pts createuser eve -noauth")
            .contains("administrator")
    );
    assert!(
        cell.fails("vos create 127.0.0.1 a eve -noauth")
            .contains("administrator")
    );
    assert!(
        cell.fails("fs setacl scratch eve all -noauth")
            .contains("permission denied")
    );
    assert!(
        cell.fails("mkdir /afs/.test.cell/eve")
            .contains("permission denied")
    );
    // Other accounts of the machine have no access.
    for (name, open) in [("db", 0o700), ("vicepa", 0o700), ("admin.sock", 0o600)] {
        let about = fs::metadata(cell.directory().join(name)).expect(name);
        assert_eq!(about.permissions().mode() & 0o777, open, "{name}");
    }
}

#[test]
fn killed_and_started_again_nothing_is_lost() {
    let mut cell = Cell::new();
    let tree = cell.local("tree");
    make_tree(&tree);
    cell.ok(&format!(
        "cp -r {} /afs/test.cell/scratch/tree",
        tree.display()
    ));
    cell.ok("vos create 127.0.0.1 a kept -maxquota 0");
    cell.ok("pts createuser kept");
    assert_eq!(cell.end("-KILL"), None);
    cell.start();
    let back = cell.local("back");
    cell.ok(&format!(
        "cp -r /afs/test.cell/scratch/tree {}",
        back.display()
    ));
    assert!(
        contents(&tree) == contents(&back),
        "the tree differs after the crash"
    );
    assert!(cell.ok("vos listvol 127.0.0.1").contains("\nkept "));
    assert!(cell.ok("pts examine kept").contains("Name: kept, id: 1,"));
    // The same for a clean stop.
    assert_eq!(cell.end("-INT"), Some(0));
    cell.start();
    assert_eq!(
        cell.ok("cat /afs/test.cell/scratch/tree/a/b/c/d/deep"),
        "deep"
    );
    assert_eq!(cell.end("-TERM"), Some(0));
}

#[test]
fn a_relaxed_cell_says_what_a_power_cut_costs() {
    let mut cell = Cell::with(&["--durability", "relaxed:20"]);
    let warning = "a power cut loses the changes of the last 20 ms";
    assert!(cell.banner.contains(warning), "{}", cell.banner);
    cell.end("-TERM");
    // The later start says it too, since it has the same durability.
    cell.start();
    assert!(cell.banner.contains(warning), "{}", cell.banner);
    cell.end("-TERM");
    cell.start_with(&["--forget", "durability"]);
    assert!(!cell.banner.contains("power cut"), "{}", cell.banner);
}

#[test]
fn a_second_server_on_the_directory_is_refused() {
    let mut cell = Cell::new();
    let directory = cell.directory();
    let up = ["up", "--dir", directory.to_str().expect("utf-8")];
    let second = run(None, up);
    assert_eq!(second.status, 1);
    assert!(
        second.err.contains("is running already (process "),
        "{}",
        second.err
    );
    assert_eq!(cell.end("-INT"), Some(0));
    // A cell cannot be renamed, and an address of another machine changes nothing.
    let renamed = run(None, up.into_iter().chain(["--cell", "other.cell"]));
    assert!(
        renamed.err.contains("holds cell test.cell, not other.cell"),
        "{}",
        renamed.err
    );
    let elsewhere = run(None, up.into_iter().chain(["--bind", "203.0.113.7"]));
    assert!(
        elsewhere.err.contains("has no such address"),
        "{}",
        elsewhere.err
    );
    cell.start();
    assert_eq!(cell.ok("ls /afs/test.cell"), "scratch\n");
}

#[test]
fn a_wrong_command_line_says_what_is_wrong() {
    let nowhere = tempfile::tempdir().expect("directory");
    let ask = |line: &str| {
        let command = line.split_whitespace();
        run(Some(&nowhere.path().join("none")), command)
    };
    let answer = ask("ls /afs/x.org");
    assert_eq!(answer.status, 1);
    assert!(answer.err.contains("holds no cell"), "{}", answer.err);
    for line in [
        "",
        "nosuch",
        "up --durability fast",
        "cp onlyone",
        "ls --nosuch",
    ] {
        let answer = ask(line);
        assert_eq!(answer.status, 2, "{line}: {}", answer.err);
        assert!(!answer.err.is_empty(), "{line}");
    }
    // The exit statuses of OpenAFS's commands of these names.
    for (line, status, said) in [
        ("vos nosuch", 255, "Unrecognized operation 'nosuch'"),
        ("vos create", 255, "Missing required parameter '-server'"),
        ("pts nosuch", 1, "Unrecognized operation 'nosuch'"),
        ("fs nosuch", 5, "Unrecognized operation 'nosuch'"),
        ("fs setacl x", 8, "Missing required parameter '-acl'"),
        ("bos add 127.0.0.1 x", 5, "Ambiguous operation 'add'"),
        (
            "bos status x -nosuch",
            6,
            "Unrecognized or ambiguous switch '-nosuch'",
        ),
        (
            "bos status -server x y",
            2,
            "Too many values after switch -server",
        ),
    ] {
        let answer = ask(line);
        assert_eq!(answer.status, status, "{line}: {}", answer.err);
        assert!(answer.err.contains(said), "{line}: {}", answer.err);
    }
    for line in [
        "--help",
        "vos --help",
        "vos create -help",
        "pts help",
        "fs help setacl",
        "up --help",
    ] {
        let answer = ask(line);
        assert_eq!(answer.status, 0, "{line}: {}", answer.err);
        assert!(answer.out.contains("Usage:"), "{line}: {}", answer.out);
    }
}
