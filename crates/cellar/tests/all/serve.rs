//! `cellar serve`: roles on machines of their own, which are addresses of this one.

use std::net::UdpSocket;
use std::path::Path;

use cellar_until::until_blocking;

use crate::common::ports::Ports;
use crate::common::{Cell, SECOND, run};

/// The address of a third server.
const THIRD: &str = "127.0.0.3";

/// Databases of a cell without a file server.
fn databases(ports: &Ports) -> Cell {
    Cell::serving(ports.first, &["databases", "--cell", "test.cell"])
}

fn etc(cell: &Cell) -> String {
    let etc = cell.directory().join("server-etc");
    etc.to_str().expect("path").to_owned()
}

/// Starts a file server that joins, and waits until the location database knows it.
fn fileserver(databases: &Cell, address: &str, more: &[&str]) -> Cell {
    let etc = etc(databases);
    let mut words = vec!["fileserver", "--join", &*etc, "--bind", address];
    words.extend(more);
    let server = Cell::serving(databases.port, &words);
    until_blocking("registered", || {
        databases.ok("vos listaddrs -noresolve").contains(address)
    });
    server
}

fn names(cell: &Cell) -> Vec<String> {
    let list = cell.json("vos listvldb -json");
    let entries = list["entries"].as_array().expect("entries").iter();
    let mut names: Vec<_> = entries
        .map(|entry| entry["name"].as_str().expect("name").to_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn databases_and_file_servers_on_machines_of_their_own() {
    let ports = Ports::reserve();
    let mut first = databases(&ports);
    assert!(
        first
            .banner
            .contains("The databases of cell test.cell were created"),
        "{}",
        first.banner
    );
    let status = first.ok("bos status 127.0.0.1");
    assert!(
        status.contains("vlserver") && status.contains("ptserver"),
        "{status}"
    );
    assert!(!status.contains("Instance fs"), "{status}");
    assert!(!first.directory().join("vicepa").exists());
    assert!(
        UdpSocket::bind(("127.0.0.1", first.port)).is_ok(),
        "no file server's port"
    );
    assert_eq!(names(&first), Vec::<String>::new());

    let mut second = fileserver(&first, SECOND, &["--first-volumes"]);
    assert_eq!(names(&first), ["root.afs", "root.cell"]);
    let _third = fileserver(&first, THIRD, &["--first-volumes"]);
    assert_eq!(names(&first), ["root.afs", "root.cell"]);
    // An administrator of the databases manages the file servers with the cell's key.
    first.ok(&format!("vos create {THIRD} a data"));
    first.ok("fs setacl data system:anyuser rlidwk");
    first.ok("fs mkmount /afs/.test.cell/data data");
    let file = first.local("file");
    std::fs::write(&file, "over there").expect("file");
    first.ok(&format!("cp {} /afs/test.cell/data/file", file.display()));
    first.ok("pts createuser ann");

    // The later starts name no roles.
    assert_eq!(first.end("-TERM"), Some(0));
    assert_eq!(second.end("-TERM"), Some(0));
    first.start();
    second.start();
    assert!(first.banner.contains("are up"), "{}", first.banner);
    assert!(
        second.banner.contains("is back in cell test.cell"),
        "{}",
        second.banner
    );
    assert_eq!(first.ok("cat /afs/test.cell/data/file"), "over there");
    assert!(first.ok("pts examine ann").contains("Name: ann"));
    let status = second.ok(&format!("bos status {SECOND}"));
    assert!(
        status.contains("Instance fs") && !status.contains("vlserver"),
        "{status}"
    );
}

#[test]
fn databases_get_a_file_server_beside_them() {
    let ports = Ports::reserve();
    let mut cell = databases(&ports);
    assert_eq!(cell.end("-TERM"), Some(0));
    cell.start_with(&["databases", "fileserver", "osds", "--first-volumes"]);
    assert_eq!(names(&cell), ["root.afs", "root.cell"]);
    assert_eq!(
        cell.json("osd list -json").as_array().map(Vec::len),
        Some(2)
    );
    assert_eq!(cell.end("-TERM"), Some(0));
    // The directory has all roles from now on.
    cell.start();
    let status = cell.ok("bos status 127.0.0.1");
    for instance in ["fs", "ptserver", "vlserver", "osd"] {
        assert!(status.contains(&format!("Instance {instance}")), "{status}");
    }
    assert_eq!(cell.end("-TERM"), Some(0));
    let refused = cell.run(["serve", "databases", "--dir", path(&cell.directory())]);
    let refused = refused.failure("serve databases");
    assert!(
        refused.contains("was made for the roles databases and fileserver"),
        "{refused}"
    );
}

fn path(path: &Path) -> &str {
    path.to_str().expect("text")
}

#[test]
fn devices_alone_are_a_role() {
    let ports = Ports::reserve();
    let first = databases(&ports);
    first.ok("osd create disk1 127.0.0.2");
    let etc = etc(&first);
    let words = ["osds", "--id", "2", "--join", &*etc, "--bind", SECOND];
    let mut devices = Cell::serving(first.port, &words);
    assert!(devices.banner.contains("devices [2]"), "{}", devices.banner);
    until_blocking("the device is up", || {
        first.json("osd list -json")[1]["state"] == "up"
    });
    assert!(!devices.directory().join("cell.json").exists());
    assert_eq!(devices.end("-TERM"), Some(0));
    // The roles and the devices are those of the directory.
    devices.start_with(&["--bind", SECOND]);
    assert!(devices.banner.contains("devices [2]"), "{}", devices.banner);
}

#[test]
fn roles_that_cannot_start_say_why() {
    let home = tempfile::tempdir().expect("directory");
    let place = home.path().join("cell");
    let refused = |words: &[&str], said: &str| {
        let line = ["serve", "--dir", path(&place)];
        let answer = run(None, line.iter().chain(words));
        let failure = answer.failure("serve");
        assert!(failure.contains(said), "{words:?}: {failure}");
        assert!(!place.exists(), "{words:?}");
    };
    refused(&[], "has no roles yet");
    refused(
        &["fileserver"],
        "joins a cell at its first start: add --join",
    );
    refused(&["osds"], "has no devices yet");
    refused(&["databases", "--join", "/nonexistent"], "--join");
    refused(&["disks"], "invalid value 'disks'");
}

#[test]
fn a_busy_port_leaves_no_half_made_cell() {
    let ports = Ports::reserve();
    let home = tempfile::tempdir().expect("directory");
    let (place, empty) = (home.path().join("cell"), home.path().join("empty"));
    std::fs::create_dir(&empty).expect("directory");
    let base = ports.first.to_string();
    let refused = |directory: &Path, words: &[&str], busy: u16| {
        let _other = UdpSocket::bind(("127.0.0.1", ports.first + busy)).expect("port");
        let line = ["--fileserver-port", &*base, "--dir", path(directory)];
        let failure = run(None, words.iter().chain(&line)).failure("start");
        let said = format!("127.0.0.1:{}", ports.first + busy);
        assert!(failure.contains(&said), "{words:?}: {failure}");
        assert!(
            failure.contains("another program uses this port"),
            "{failure}"
        );
    };
    for (words, busy) in [
        (&["up"][..], 0),
        (&["up"], 3),
        (&["up", "--osds", "1"], 6),
        (&["serve", "databases"], 7),
        (&["serve", "osds", "--id", "2"], 6),
    ] {
        refused(&place, words, busy);
        assert!(!place.exists(), "{words:?}");
        refused(&empty, words, busy);
        let mut left = std::fs::read_dir(&empty).expect("directory");
        let left = left.find(|entry| {
            entry
                .as_ref()
                .is_ok_and(|entry| entry.file_name() != "lock")
        });
        assert!(left.is_none(), "{words:?}: {left:?}");
    }
    // A port of a role that does not run here may be busy.
    let _file_server = UdpSocket::bind(("127.0.0.1", ports.first)).expect("port");
    let cell = Cell::serving(ports.first, &["databases"]);
    assert!(cell.banner.contains("were created"), "{}", cell.banner);
}

#[test]
fn net_info_names_the_addresses_that_are_registered() {
    let cell = Cell::new();
    let addresses = |count: usize| {
        let mut lines = Vec::new();
        until_blocking("registered", || {
            let all = cell.ok("vos listaddrs -noresolve");
            lines = all
                .split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>();
            lines.sort();
            lines.len() == count
        });
        lines
    };
    let etc = etc(&cell);
    let words = ["--join", &*etc, "--bind", SECOND];
    let mut second = Cell::with_options(cell.port, &words);
    assert_eq!(addresses(2), ["127.0.0.1", SECOND]);
    assert_eq!(second.end("-TERM"), Some(0));
    // A server behind NAT. An address that only its machine can reach is not registered then.
    let files = second.directory().join("server-etc");
    let net_info = format!("f 203.0.113.5\nF 203.0.113.6 outside\n{SECOND}\n192.0.2.77\n");
    std::fs::write(files.join("NetInfo"), net_info).expect("file");
    second.start();
    assert_eq!(addresses(3), ["127.0.0.1", "203.0.113.5", "203.0.113.6"]);
    assert_eq!(second.end("-TERM"), Some(0));
    std::fs::write(files.join("NetRestrict"), "203.0.113.4/31\n").expect("file");
    second.start();
    assert_eq!(addresses(2), ["127.0.0.1", "203.0.113.6"]);
    assert_eq!(second.end("-TERM"), Some(0));
    std::fs::write(files.join("NetRestrict"), "0/0\n").expect("file");
    let failure = run(None, ["up", "--dir", path(&second.directory())]).failure("up");
    assert!(
        failure.contains("leave none of this server's addresses"),
        "{failure}"
    );
}
