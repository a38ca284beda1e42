//! Tests of the access lists and mount points of `fs`.

use super::*;

#[test]
fn a_mistyped_name_in_a_mount_is_no_volume() {
    let sentence = is_volume("dcos", || true).expect_err("a file's name");
    let sentence = sentence.to_string();
    assert!(
        sentence.starts_with("dcos: no such file or directory. In"),
        "{sentence}"
    );
    assert!(is_volume("dcos", || false).expect("a volume's name"));
    for mounted in [true, false] {
        assert!(!is_volume("/afs/a.cell/docs", || mounted).expect("a path"));
        assert!(is_volume(".", || mounted).is_err());
    }
}

#[test]
fn a_slash_at_the_end_does_not_count() {
    for (path, name) in [
        ("m", Some("m")),
        ("m/", Some("m")),
        ("m//", Some("m")),
        ("..", Some("..")),
        ("./", Some(".")),
        ("d/m/", None),
        ("/m", None),
        ("/", None),
        ("", None),
    ] {
        assert_eq!(last_name(path), name, "{path}");
    }
    assert!(is_from_afs("/afs") && is_from_afs("/afs/a.cell/") && !is_from_afs("/afsx"));
}

#[test]
fn other_directories_are_in_no_mount() {
    assert!(!is_mounted(Path::new("/proc")));
    assert!(!is_mounted(Path::new("/nonexistent")));
}
