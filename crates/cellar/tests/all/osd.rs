//! `cellar osd` on a real cell: devices and policies in the databases.

use crate::common::Cell;
use serde_json::json;

#[test]
fn devices_and_policies() {
    let cell = Cell::new();

    // Devices.
    let listed = cell.ok("osd list");
    assert!(
        listed.starts_with("Id  Name        State  Total"),
        "{listed}"
    );
    assert!(listed.contains(" 1  local_disk  local"), "{listed}");
    let created = cell.ok("osd createosd disk2 192.0.2.14 -lun b -minsize 1m -wrprior 40");
    assert_eq!(created, "Device disk2 has number 2\n");
    cell.ok("osd create far -id 7 -class slow -location hq/r1 -archival");
    let entry = cell.json("osd examine disk2 -json");
    assert_eq!(entry["addresses"], json!(["192.0.2.14"]));
    assert_eq!(
        (&entry["partition"], &entry["port"]),
        (&json!("/vicepb"), &json!(7006))
    );
    assert_eq!(
        (&entry["min_size"], &entry["write_priority"]),
        (&json!(1 << 20), &json!(40))
    );
    assert_eq!(entry["silent_seconds"], json!(null));
    let set = cell.ok("osd setosd 2 -name fast2 -maxsize 4g -class fast -dont_unlink on");
    assert!(
        set.contains("Device 2: fast2") && set.contains("1MiB-4GiB"),
        "{set}"
    );
    let long = cell.ok("osd listosds -long");
    assert!(
        long.contains("192.0.2.14:7006  /vicepb    softdelete"),
        "{long}"
    );
    let marks = cell.ok("osd set fast2 -wipeable on -highwatermark 800 -lowwatermark 700");
    assert!(
        marks.contains("above 800 per mille, down to 700"),
        "{marks}"
    );
    let marks = cell.ok("osd set fast2 -lowwatermark 0");
    assert!(
        marks.contains("above 800 per mille, down to 750"),
        "{marks}"
    );
    cell.ok("osd set fast2 -wipeable off");
    for (line, said) in [
        (
            "osd set fast2 -lowwatermark 800",
            "the low water mark is below the high one",
        ),
        ("osd set fast2 -highwatermark 70000", "up to 1000"),
        ("osd create fast2", "the name or the number is taken"),
        ("osd create x -id 7", "the name or the number is taken"),
        ("osd create 12", "a name is not a number"),
        (
            "osd set fast2 -wipeable on -archival on",
            "archival or wipeable",
        ),
        ("osd set fast2 -minsize x", "is not a size"),
        ("osd set fast2 -wrprior 40", "nothing changes"),
        ("osd set nine -wrprior 1", "there is no device nine"),
        ("osd examine 9", "there is no device 9"),
        ("osd list 9", "there is no device 9"),
        ("osd create y -noauth", "Permission denied"),
        ("osd statistics far", "has no address"),
    ] {
        let error = cell.fails(line);
        assert!(error.contains(said), "{line}: {error}");
    }
    let drained = cell.json("osd drain 2 -json");
    assert_eq!(drained["draining"], json!(true));
    assert_eq!(
        cell.json("osd drain fast2 -stop -json")["draining"],
        json!(false)
    );
    cell.ok("osd remove far -force");
    assert!(!cell.ok("osd list").contains("far"));
    assert!(
        cell.ok("osd list -obsolete")
            .contains("far         obsolete")
    );
    // Its number is not given again; its name is.
    assert_eq!(cell.ok("osd create far"), "Device far has number 8\n");

    // Policies.
    let run = |words: &[&str]| cell.run(words);
    assert_eq!(
        cell.ok("osd policy list"),
        "No policies; volumes use objects by size, or not at all\n"
    );
    let text = "# everything of ROOT\n~'*.root' => location=osd, stop;\n=> local;";
    let added = run(&["osd", "policy", "add", "root", text]).ok("add");
    assert_eq!(added, "Policy 2 is stored\n");
    let file = cell.local("both.policy");
    std::fs::write(&file, "use(2);\n=> class=fast;").expect("a file");
    let file = file.to_string_lossy();
    let shown = cell.ok(&format!("osd addpolicy both -file {file} -noaction"));
    assert_eq!(shown, "use(2);\n=> class=fast;\n");
    cell.ok(&format!("osd addpolicy both -file {file} -id 9"));
    assert_eq!(cell.ok("osd policy show root -text"), format!("{text}\n"));
    assert_eq!(
        cell.ok("osd policies both -unroll -tabular"),
        "# Policy 9 (both)\n~'*.root' => [o,,,] stop;\n=> [l,,,];\n=> [,,,] class=fast;\n"
    );
    let listed = cell.ok("osd policy list");
    assert!(
        listed.contains(" 2  root      2         1  ~'*.root' => location=osd, stop;"),
        "{listed}"
    );
    for (words, said) in [
        (
            &["add", "root", "=> osd;"][..],
            "another policy has that name",
        ),
        (&["add", "x", "=> osd;", "-id", "9"], "policy 9 exists"),
        (
            &["add", "x", "~'*.a' => stripes=33;"],
            "line 1, column 19: expected 1 to 32 stripes, found \"33\"",
        ),
        (
            &["add", "x", "use(3);"],
            "uses policy 3, which does not exist",
        ),
        (&["set", "root", "use(9);"], "in a circle: 2 → 9 → 2"),
        (&["delete", "root"], "policy 9 uses it"),
        (&["show", "z"], "there is no policy z"),
        (&["add", "y", "=> osd;", "-noauth"], "Permission denied"),
    ] {
        let words: Vec<&str> = ["osd", "policy"].iter().chain(words).copied().collect();
        let error = run(&words).failure(&words.join(" "));
        assert!(error.contains(said), "{words:?}: {error}");
    }
    // A mark is below the wrong word.
    let error = run(&["osd", "policy", "add", "x", "=> osd;\n=> tape;"]).failure("tape");
    assert!(error.contains("    => tape;\n       ^"), "{error}");

    // A preview of the layout.
    let tested = cell.ok("osd policy test a.root -size 2g -policy both");
    assert_eq!(
        tested,
        "Policy 2 (root), rule 1: ~'*.root' => location=osd, stop;\n\
         The file goes to objects: one object.\n\
         That fails at the moment: 1 devices are needed, and 0 take new objects of such a file.\n"
    );
    let tested = cell.json("osd policy test a.log -size 2g -policy both -json");
    assert_eq!(tested["in_objects"], json!(false));
    assert_eq!(tested["rules"][0]["rule"], json!(2));
    cell.ok("osd set local_disk -maxsize 4m");
    for (size, place) in [
        (
            "4m",
            "stays on the file server's own disk, for 4 MiB is not more than 4 MiB",
        ),
        ("5m", "goes to objects, for 5 MiB is more than 4 MiB"),
    ] {
        let tested = cell.ok(&format!("osd policy test a -size {size}"));
        assert!(tested.contains(place), "{tested}");
    }
    let rule = "gid=system:administrators => local;";
    let error = run(&["osd", "policy", "test", "a", "-text", rule]).failure("test");
    assert!(error.contains("expected an AFS id"), "{error}");
    cell.ok("pts createuser ann -id 77");
    let words = [
        "osd",
        "policy",
        "test",
        "x/b",
        "-text",
        "uid=77 & dir~'/x' => osd,ec=4+2;",
        "-user",
        "ann",
    ];
    let tested = run(&words).ok("test");
    assert!(
        tested.contains("an erasure code of 4 data and 2 parity objects"),
        "{tested}"
    );

    cell.ok("osd policy set 2 -name renamed");
    let kept = cell.ok("osd policy show renamed -text");
    assert_eq!(kept, format!("{text}\n"));
    cell.ok("osd policy delete both renamed");
    assert_eq!(cell.json("osd policy list -json"), json!([]));
}

#[test]
fn directories_have_policies() {
    let cell = Cell::new();
    let path = "/afs/test.cell/scratch/data";
    cell.run(["osd", "policy", "add", "root", "~'*.root' => osd;"])
        .ok("osd policy add");
    cell.ok(&format!("mkdir --admin {path}"));
    let none = cell.json(&format!("fs policy {path} -json"));
    let known = |directory: u64| json!([{ "path": path, "directory": directory, "volume": 0, "volume_name": "scratch" }]);
    assert_eq!(none, known(0));
    let text = cell.ok(&format!("fs policy {path}"));
    assert!(
        text.contains("policy none of its own; volume scratch: policy 0"),
        "{text}"
    );
    let root = cell.json("osd policy show root -json")[0]["id"].as_u64();
    let root = root.expect("a number");
    // The output is the policy in force afterwards.
    let set = cell.json(&format!("fs setpolicy root {path} -json"));
    assert_eq!(set, known(root));
    assert_eq!(cell.json(&format!("fs policy {path} -json")), set);
    let text = cell.ok(&format!("fs policy {path}"));
    let expected = format!("{path}: policy {root} (root); volume scratch: policy 0");
    assert!(text.starts_with(&expected), "{text}");
    assert!(text.contains("does not use objects"), "{text}");
    // A directory made in it inherits the policy.
    cell.ok(&format!("mkdir --admin {path}/sub"));
    let sub = cell.json(&format!("fs policy {path}/sub -json"));
    assert_eq!(sub[0]["directory"], json!(root));
    let error = cell.fails(&format!("fs setpolicy nine {path}"));
    assert!(error.contains("there is no policy nine"), "{error}");
    let line = format!("fs setpolicy 0 {path} {path}/nothing -json");
    let answer = cell.run(line.split(' '));
    assert_eq!(answer.status, 1, "{}", answer.out);
    assert!(answer.err.contains("nothing"), "{}", answer.err);
    let set: serde_json::Value = serde_json::from_str(&answer.out).expect("JSON");
    assert_eq!(set, known(0));
}
