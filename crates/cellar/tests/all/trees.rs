//! `find` and `du` at mount points: they follow them, and end where these form cycles.

use crate::common::Cell;
use crate::common::devices::TOP;

/// A cell with a volume in `scratch`, in which two mount points lead back.
fn with_cycle() -> Cell {
    let cell = Cell::new();
    cell.ok("vos create 127.0.0.1 a inner");
    cell.ok(&format!("fs mkmount {TOP}/inner inner -localauth"));
    cell.ok(&format!("mkdir --admin {TOP}/inner/kept"));
    cell.ok(&format!("fs mkmount {TOP}/inner/back scratch -localauth"));
    cell.ok(&format!("fs mkmount {TOP}/inner/self inner -localauth"));
    let path = cell.local("file");
    std::fs::write(&path, [b'x'; 5000]).expect("a local file");
    cell.ok(&format!("cp --admin {} {TOP}/inner/kept/f", path.display()));
    cell
}

#[test]
fn find_follows_mount_points_and_reports_those_that_lead_back() {
    let cell = with_cycle();
    let all = cell.run(["find", TOP, "--admin"]);
    let lines: Vec<_> = all.out.lines().collect();
    let expected = [
        "",
        "/inner",
        "/inner/back",
        "/inner/kept",
        "/inner/kept/f",
        "/inner/self",
    ];
    assert_eq!(
        lines,
        expected.map(|name| format!("{TOP}{name}")),
        "{}",
        all.err
    );
    assert_eq!(all.status, 1);
    for name in ["back", "self"] {
        let said = format!("{TOP}/inner/{name}: the mount point leads back to volume");
        assert!(all.err.contains(&said), "{}", all.err);
    }
    for stay in ["-x", "--xdev", "--one-file-system"] {
        let line = format!("find {TOP} --admin {stay}");
        assert_eq!(cell.ok(&line), format!("{TOP}\n{TOP}/inner\n"), "{line}");
    }
    // A mount point is a directory too once it is followed.
    let line = format!("find {TOP} --admin --max-depth 1 --type");
    for kind in ["d", "m"] {
        let found = cell.ok(&format!("{line} {kind}"));
        assert!(found.contains(&format!("{TOP}/inner\n")), "{kind}: {found}");
    }
    let only = cell.ok(&format!("find {TOP} -x --admin --type d"));
    assert_eq!(only, format!("{TOP}\n"));
}

#[test]
fn find_reports_a_mount_point_that_leads_nowhere_and_goes_on() {
    let cell = Cell::new();
    cell.ok("vos create 127.0.0.1 a gone");
    cell.ok(&format!("fs mkmount {TOP}/a gone -localauth"));
    cell.ok(&format!("mkdir --admin {TOP}/b"));
    cell.ok("vos remove -id gone");
    let all = cell.run(["find", TOP, "--admin"]);
    assert_eq!(all.out, format!("{TOP}\n{TOP}/a\n{TOP}/b\n"), "{}", all.err);
    assert!(all.err.contains(&format!("{TOP}/a: ")), "{}", all.err);
    assert_ne!(all.status, 0);
}

#[test]
fn du_counts_each_volume_once() {
    let cell = with_cycle();
    cell.ok(&format!("fs mkmount {TOP}/twice inner -localauth"));
    let bytes = |line: &str| {
        let sums = cell.json(line);
        let sum = sums
            .as_array()
            .expect("sums")
            .last()
            .expect("a sum")
            .clone();
        sum["bytes"].as_u64().expect("a number")
    };
    let all = bytes(&format!("du -s --admin --json {TOP}"));
    let stay = bytes(&format!("du -xs --admin --json {TOP}"));
    let inner = bytes(&format!("du -s --admin --json {TOP}/inner"));
    assert!(inner >= 5000, "{inner}");
    assert!(stay < 5000, "{stay}");
    assert!(all > stay && all < stay + 2 * inner, "{all} {stay} {inner}");
    let twice = cell.json(&format!("du --admin --json {TOP}"));
    let paths = twice.as_array().expect("sums").iter();
    let kept = paths.filter(|sum| {
        sum["path"]
            .as_str()
            .is_some_and(|path| path.ends_with("/kept"))
    });
    assert_eq!(kept.count(), 1, "{twice}");
}
