//! Options that a server keeps for its next starts, in `last-start.toml`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use cellar_until::until_blocking;
use serde_json::Value;

use crate::common::ports::Ports;
use crate::common::{Cell, SECOND, run};

/// The options that the directory keeps, with their values.
fn kept(directory: &Path) -> Vec<String> {
    let text = fs::read_to_string(directory.join("last-start.toml")).unwrap_or_default();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(str::to_owned).collect()
}

#[test]
fn a_cell_keeps_its_options() {
    let mut cell = Cell::new();
    assert_eq!(
        kept(&cell.directory()),
        [""; 0],
        "no option was given but those of cell.json"
    );
    assert_eq!(cell.end("-TERM"), Some(0));
    let socket = cell.local("metrics");
    let place = socket.to_str().expect("path").to_owned();
    cell.start_with(&[
        "--repair-rate",
        "7",
        "--metrics",
        &place,
        "--open-statistics",
    ]);
    let all = [
        "format = 1".to_owned(),
        format!("metrics = \"{place}\""),
        "open-statistics = true".to_owned(),
        "repair-rate = 7".to_owned(),
    ];
    assert_eq!(kept(&cell.directory()), all);
    let file = cell.directory().join("last-start.toml");
    let mode = fs::metadata(&file).expect("file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // A later start gives nothing, and has all.
    assert_eq!(cell.end("-TERM"), Some(0));
    assert!(!socket.exists());
    cell.start();
    assert!(
        UnixStream::connect(&socket).is_ok(),
        "metrics are served again"
    );
    assert_eq!(kept(&cell.directory()), all);
    // A crash keeps them too; the command line overrides.
    cell.end("-KILL");
    cell.start_with(&["--repair-rate", "9", "--forget", "metrics"]);
    assert!(UnixStream::connect(&socket).is_err(), "no metrics");
    let rest = ["format = 1", "open-statistics = true", "repair-rate = 9"];
    assert_eq!(kept(&cell.directory()), rest);
    assert_eq!(cell.end("-TERM"), Some(0));
    cell.start_with(&["--forget", "all"]);
    assert_eq!(kept(&cell.directory()), ["format = 1"]);
}

#[test]
fn a_start_names_each_unusable_option() {
    let mut cell = Cell::with(&["--scrub-rate", "3"]);
    assert_eq!(cell.end("-TERM"), Some(0));
    let file = cell.directory().join("last-start.toml");
    let good = fs::read_to_string(&file).expect("file");
    let start = |words: &[&str], said: &str| {
        let directory = cell.directory();
        let line = ["up", "--dir", directory.to_str().expect("path")];
        let failure = run(None, line.iter().chain(words)).failure("up");
        assert!(failure.contains(said), "{failure}");
    };
    start(
        &["--forget", "osds"],
        "the last start had no such option; it had: scrub-rate",
    );
    start(&["--forget", "bind"], "cell.json keeps this value");
    for (text, said) in [
        (
            good.replace("format = 1", "format = 2"),
            "this release knows 1",
        ),
        (
            good.replace("= 3", "= 0"),
            "last-start.toml:3: scrub-rate: invalid value '0'",
        ),
        (good.replace("= 3", "= "), "last-start.toml:3: "),
    ] {
        fs::write(&file, text).expect("file");
        start(&[], said);
    }
    // A failed start changes nothing.
    fs::write(&file, &good).expect("file");
    start(
        &["--scrub-rate", "4", "--cell", "other.cell"],
        "holds cell test.cell",
    );
    assert_eq!(fs::read_to_string(&file).expect("file"), good);
}

#[test]
fn a_configuration_file_is_kept_and_owns_its_keys() {
    let home = tempfile::tempdir().expect("directory");
    let file = home.path().join("cellar.toml");
    fs::write(&file, "cell = \"test.cell\"\nrepair-rate = 5\n").expect("file");
    let named = file.to_str().expect("text");
    let ports = Ports::reserve();
    let mut cell = Cell::with_options(ports.first, &["--config", named, "--osds", "1"]);
    let all = [
        "format = 1".to_owned(),
        format!("config = \"{named}\""),
        "osds = 1".to_owned(),
    ];
    assert_eq!(kept(&cell.directory()), all);
    assert_eq!(cell.end("-TERM"), Some(0));
    // The file is read at each start, and takes over a key.
    fs::write(&file, "cell = \"test.cell\"\nosds = 2\n").expect("file");
    cell.start();
    let list = cell.json("osd list -json");
    assert_eq!(list.as_array().map(Vec::len), Some(3), "{list}");
    assert_eq!(kept(&cell.directory()), &all[..2]);
    assert_eq!(cell.end("-TERM"), Some(0));
    fs::remove_file(&file).expect("file");
    let directory = cell.directory();
    let up = ["up", "--dir", directory.to_str().expect("path")];
    let failure = run(None, up).failure("up");
    assert!(failure.contains("--forget config drops it"), "{failure}");
}

/// A server of devices; killed when it is dropped.
struct Devices(Child);

impl Devices {
    fn start(directory: &Path, words: &[&str]) -> Self {
        let server = Command::new(env!("CARGO_BIN_EXE_cellar"))
            .args(["osd", "serve", "--dir"])
            .arg(directory)
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        Self(server.expect("the program starts"))
    }

    fn stop(mut self) {
        let pid = self.0.id().to_string();
        let sent = Command::new("kill").arg(&pid).status().expect("kill");
        assert!(sent.success() && self.0.wait().expect("end").success());
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

#[test]
fn devices_keep_their_address_port_and_numbers() {
    let cell = Cell::new();
    for name in ["disk1", "disk2"] {
        cell.ok(&format!("osd create {name} {SECOND}"));
    }
    let devices = || -> Vec<Value> {
        let list = cell.json("osd list -json");
        let list = list.as_array().expect("devices").iter();
        list.filter(|device| device["id"] != 1).cloned().collect()
    };
    let state = |wanted: &str| {
        until_blocking(wanted, || {
            devices().iter().all(|device| device["state"] == wanted)
        });
    };
    let etc = cell.directory().join("server-etc");
    let (directory, etc) = (cell.local("disks"), etc.to_str().expect("path"));
    let (base, port) = (cell.port.to_string(), (cell.port + 20).to_string());
    let words = ["--id", "2,3", "--bind", SECOND, "--port", &*port];
    let first = ["--fileserver-port", &*base, "--join", etc];
    let server = Devices::start(&directory, &[&words[..], &first[..]].concat());
    state("up");
    let before: Vec<_> = devices()
        .iter()
        .map(|device| (device["addresses"].clone(), device["port"].clone()))
        .collect();
    server.stop();
    state("down");
    let _server = Devices::start(&directory, &[]);
    state("up");
    let after: Vec<_> = devices()
        .iter()
        .map(|device| (device["addresses"].clone(), device["port"].clone()))
        .collect();
    assert_eq!(after, before);
    let all = [
        "format = 1".to_owned(),
        format!("bind = \"{SECOND}\""),
        format!("fileserver-port = {base}"),
        "id = [2,3]".to_owned(),
        format!("osd-port = {port}"),
    ];
    assert_eq!(kept(&directory), all);
}
