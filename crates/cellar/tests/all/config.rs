//! The configuration file of `cellar up`, and `cellar config`.

use std::fs;

use crate::common::ports::Ports;
use crate::common::{Cell, run};

#[test]
fn a_file_gives_options_and_the_command_line_overrides_them() {
    let home = tempfile::tempdir().expect("directory");
    let file = home.path().join("cellar.toml");
    let text =
        "cell = \"file.cell\"\nowner = \"physics\"\nlog = \"warn\"\ntransaction-idle = \"5m\"\n";
    fs::write(&file, text).expect("file");
    let file = file.to_str().expect("text");
    let ports = Ports::reserve();
    let cell = Cell::with_options(ports.first, &["--config", file, "--owner", "history"]);
    assert!(
        cell.banner.contains("Cell file.cell was created"),
        "{}",
        cell.banner
    );
    let identity = fs::read_to_string(cell.directory().join("cell.json")).expect("identity");
    assert!(
        identity.contains("history") && !identity.contains("physics"),
        "{identity}"
    );
}

#[test]
fn show_has_the_options_of_the_last_start_and_check_says_what_needs_a_restart() {
    let home = tempfile::tempdir().expect("directory");
    let file = home.path().join("cellar.toml");
    fs::write(&file, "transaction-idle = \"5m\"\n").expect("file");
    let file = file.to_str().expect("text");
    let ports = Ports::reserve();
    let cell = Cell::with_options(ports.first, &["--config", file, "--repair-rate", "7"]);
    let directory = cell.directory().display().to_string();
    let shown = run(None, ["config", "show", "--dir", &directory, "--json"]).ok("config show");
    let all: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    for (key, value, source) in [
        ("repair-rate", serde_json::json!(7), "last start"),
        ("transaction-idle", serde_json::json!("5m"), "line 1"),
        ("cell", serde_json::Value::Null, "cell.json"),
        ("durability", serde_json::json!("strict"), "default"),
    ] {
        assert_eq!(all[key]["value"], value, "{key}: {shown}");
        assert_eq!(all[key]["source"], source, "{key}: {shown}");
    }
    assert_eq!(
        (&all["log"]["reload"], &all["cell"]["reload"]),
        (&true.into(), &false.into())
    );
    let text = run(None, ["config", "show", "--dir", &directory]).ok("config show");
    assert!(text.contains("# last start"), "{text}");
    assert!(text.contains("# kept in cell.json"), "{text}");
    let checked = run(None, ["config", "check", file]).ok("config check");
    assert!(
        checked.contains(
            "A reload applies log, metrics-token, recall-limit; for each other key that changes: restart needed"
        ),
        "{checked}"
    );
}

#[test]
fn a_wrong_line_is_named_before_anything_is_made() {
    let home = tempfile::tempdir().expect("directory");
    let path = |name: &str| home.path().join(name).to_str().expect("text").to_owned();
    let (file, cell) = (path("cellar.toml"), path("cell"));
    fs::write(&file, "cell = \"a.cell\"\nbind = \"here\"\n").expect("file");
    let expected = format!(
        "{file}:2: bind: invalid value 'here' for '--bind <ADDRESS>': invalid IP address syntax"
    );
    for line in [
        vec!["config", "check", &*file],
        vec!["up", "--config", &*file, "--dir", &*cell],
    ] {
        let answer = run(None, &line);
        assert_eq!(answer.status, 2, "{}", answer.err);
        assert!(answer.err.contains(&expected), "{}", answer.err);
    }
    assert!(!home.path().join("cell").exists());
    let missing = run(None, ["up", "--config", &path("missing"), "--dir", &cell]);
    assert!(missing.failure("up").contains("missing: No such file"));
}

#[test]
fn the_shown_values_are_a_file_with_the_same_values() {
    let home = tempfile::tempdir().expect("directory");
    let path = |name: &str| home.path().join(name).to_str().expect("text").to_owned();
    let (first, second) = (path("first"), path("second"));
    let text = "open-statistics = true\nrepair-rate = 7\nmetrics = \"9100\"\n";
    fs::write(&first, text).expect("file");
    let shown = run(None, ["config", "show", &first]).ok("config show");
    assert!(shown.contains("repair-rate = 7 "), "{shown}");
    assert!(shown.contains("# line 2"), "{shown}");
    assert!(shown.contains("durability = \"strict\""), "{shown}");
    fs::write(&second, &shown).expect("file");
    let checked = run(None, ["config", "check", &second]).ok("config check");
    assert!(checked.contains(" keys, all right"), "{checked}");
    let values = |file: &str| {
        let json = run(None, ["config", "show", file, "--json"]).ok("config show");
        let all: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let all = all.as_object().expect("object").clone();
        let all = all.into_iter();
        all.map(|(key, row)| (key, row["value"].clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(values(&first), values(&second));
}
