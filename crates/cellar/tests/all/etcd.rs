//! Database servers that share an etcd cluster. Without etcd (`dev/etcd`), the tests are skipped.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cellar_until::until_blocking;

use crate::common::ports::Ports;
use crate::common::{Cell, SECOND};

/// One member, which is its own cluster. It is killed when it is dropped.
pub(crate) struct Member {
    program: PathBuf,
    home: tempfile::TempDir,
    ports: [u16; 2],
    process: Option<Child>,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Member {
    /// Starts a member; `None`, with a line, if there is no etcd.
    pub(crate) fn start() -> Option<Self> {
        let found = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../dev/etcd"))
            .arg("--find")
            .output()
            .unwrap();
        if !found.status.success() {
            eprintln!("skipped: no etcd; dev/etcd builds it, Debian's etcd-server has it");
            return None;
        }
        let free = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let mut member = Self {
            program: String::from_utf8(found.stdout).unwrap().trim().into(),
            home: tempfile::tempdir().unwrap(),
            ports: free.map(|free| free.local_addr().unwrap().port()),
            process: None,
        };
        member.run();
        Some(member)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[0])
    }

    fn run(&mut self) {
        let peer = format!("http://127.0.0.1:{}", self.ports[1]);
        let log = std::fs::File::create(self.home.path().join("log")).unwrap();
        let process = Command::new(&self.program)
            .args(["--name", "m0", "--data-dir"])
            .arg(self.home.path().join("data"))
            .args(["--listen-client-urls", &self.url()])
            .args(["--advertise-client-urls", &self.url()])
            .args(["--listen-peer-urls", &peer])
            .args(["--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("m0={peer}")])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.process = Some(process);
        let port = self.ports[0];
        until_blocking("etcd takes connections", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ended = process.kill();
            let _status = process.wait();
        }
    }
}

#[test]
fn two_database_servers_share_users_and_volumes() {
    let Some(mut member) = Member::start() else {
        return;
    };
    let url = member.url();
    let ports = Ports::reserve();
    let roles = ["databases", "fileserver", "--cell", "test.cell"];
    let mut first = Cell::serving(ports.first, &[&roles[..], &["--etcd", &url]].concat());
    let etc = first.directory().join("server-etc");
    let etc = etc.to_str().unwrap();
    let mut second = Cell::serving(
        ports.first,
        &["databases", "--join", etc, "--bind", SECOND, "--etcd", &url],
    );
    let list = std::fs::read_to_string(second.directory().join("client-etc/CellServDB")).unwrap();
    assert!(
        list.contains("127.0.0.1") && list.contains(SECOND),
        "{list}"
    );

    first.ok("pts createuser ann");
    until_blocking("ann is at the second", || {
        second.run(["pts", "examine", "ann"]).status == 0
    });
    first.ok("vos create 127.0.0.1 a data");
    until_blocking("data is at the second", || {
        second.ok("vos listvldb -noresolve").contains("data")
    });
    assert_eq!(first.json("db status --json")["engine"], "etcd");
    let status = second.ok("db status");
    assert!(
        status.contains("member m0") && status.contains("leader"),
        "{status}"
    );
    let export = second.local("export");
    second.ok(&format!("db export {}", export.display()));
    assert!(
        std::fs::read_to_string(&export)
            .unwrap()
            .contains("row vl.")
    );

    // The second one serves while the first one is dead, and the first one learns all of it.
    first.end("-KILL");
    second.ok("pts createuser bob");
    first.start();
    assert!(first.ok("pts examine bob").contains("Name: bob"));

    // Without etcd, reads go on, writes fail soon, and the service resumes by itself.
    member.kill();
    let begun = Instant::now();
    let refused = second.fails("pts createuser carol");
    println!("{refused}");
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "{:?}",
        begun.elapsed()
    );
    assert!(second.ok("pts examine bob").contains("Name: bob"));
    member.run();
    until_blocking("writes are taken again", || {
        second.run(["pts", "createuser", "dave"]).status == 0
    });

    // Back to the file of the first server.
    second.end("-TERM");
    first.end("-TERM");
    let switched = first.ok("db switch file");
    assert!(switched.contains("cell.redb"), "{switched}");
    first.start_with(&["--forget", "etcd"]);
    assert!(first.ok("pts examine dave").contains("Name: dave"));
    assert_eq!(first.json("db status --json")["engine"], "file");
    first.ok("pts createuser eve");
    first.end("-TERM");
    let refused = first.fails(&format!("db switch etcd --etcd {url}"));
    assert!(refused.contains("already"), "{refused}");
    first.start();
    assert!(first.ok("pts examine eve").contains("Name: eve"));
}

#[test]
fn databases_of_a_file_move_to_etcd() {
    let Some(member) = Member::start() else {
        return;
    };
    let url = member.url();
    let mut cell = Cell::new();
    cell.ok("pts createuser ann");
    cell.ok("vos create 127.0.0.1 a data");
    let running = cell.fails(&format!("db switch etcd --etcd {url}"));
    assert!(running.contains("is running already"), "{running}");
    cell.end("-TERM");
    let switched = cell.ok(&format!("db switch etcd --etcd {url}"));
    assert!(switched.contains("etcd:/cellar/test.cell"), "{switched}");
    let again = cell.fails(&format!("db switch etcd --etcd {url}"));
    assert!(again.contains("already"), "{again}");
    assert!(!cell.directory().join("db/switch.export").exists());
    cell.start();
    assert!(cell.ok("pts examine ann").contains("Name: ann"));
    assert!(cell.ok("vos examine data").contains("data"));
    cell.ok("pts createuser bob");
    let status = cell.json("db status --json");
    assert_eq!(status["leader"], "m0", "{status}");
    cell.end("-TERM");
    assert!(cell.ok("db check").contains("undamaged;"));
    let refused = cell.fails("db import /nonexistent");
    assert!(refused.contains("db switch file"), "{refused}");
}
