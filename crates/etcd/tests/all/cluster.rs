//! Members of etcd on this machine. `dev/etcd` builds one; Debian has `etcd-server`. Without both,
//! the tests are skipped.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use cellar_celldb::{CellDb, Error, Table};
use cellar_etcd::{Etcd, Settings, Tls};

pub(crate) const TABLE: Table = Table::new("test");
pub(crate) const OTHER: Table = Table::new("test.other");

struct Member {
    name: String,
    client: u16,
    peer: u16,
    process: Option<Child>,
}

/// A cluster. Its members are killed when it is dropped.
pub(crate) struct Cluster {
    program: PathBuf,
    home: tempfile::TempDir,
    members: Vec<Member>,
    options: Vec<String>,
    scheme: &'static str,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for at in 0..self.members.len() {
            self.kill(at);
        }
    }
}

fn free_port() -> u16 {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap().port()
}

fn program() -> Option<PathBuf> {
    let found = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../dev/etcd"))
        .arg("--find")
        .output()
        .unwrap();
    if !found.status.success() {
        eprintln!("skipped: no etcd; dev/etcd builds it, Debian's etcd-server has it");
        return None;
    }
    Some(String::from_utf8(found.stdout).unwrap().trim().into())
}

impl Cluster {
    /// Starts members; `None`, with a line, if there is no etcd.
    pub(crate) fn start(members: usize) -> Option<Self> {
        Self::start_with(members, &[])
    }

    pub(crate) fn start_with(members: usize, options: &[&str]) -> Option<Self> {
        let home = tempfile::tempdir().unwrap();
        Self::start_in(home, members, options, "http")
    }

    pub(crate) fn start_in(
        home: tempfile::TempDir,
        members: usize,
        options: &[&str],
        scheme: &'static str,
    ) -> Option<Self> {
        let program = program()?;
        let members = (0..members).map(|number| Member {
            name: format!("m{number}"),
            client: free_port(),
            peer: free_port(),
            process: None,
        });
        let mut cluster = Self {
            program,
            home,
            members: members.collect(),
            options: options.iter().map(|&option| option.to_owned()).collect(),
            scheme,
        };
        for at in 0..cluster.members.len() {
            cluster.run(at);
        }
        for at in 0..cluster.members.len() {
            cluster.wait(at);
        }
        Some(cluster)
    }

    /// Starts a member, over the directory of its earlier process.
    pub(crate) fn run(&mut self, at: usize) {
        let all: Vec<String> = self
            .members
            .iter()
            .map(|member| format!("{}=http://127.0.0.1:{}", member.name, member.peer))
            .collect();
        let scheme = self.scheme;
        let member = &mut self.members[at];
        let own = self.home.path().join(&member.name);
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(own.with_extension("log"))
            .unwrap();
        let client = format!("{scheme}://127.0.0.1:{}", member.client);
        let peer = format!("http://127.0.0.1:{}", member.peer);
        let process = Command::new(&self.program)
            .args(["--name", &member.name, "--data-dir"])
            .arg(&own)
            .args([
                "--listen-client-urls",
                &client,
                "--advertise-client-urls",
                &client,
            ])
            .args([
                "--listen-peer-urls",
                &peer,
                "--initial-advertise-peer-urls",
                &peer,
            ])
            .args(["--initial-cluster", &all.join(",")])
            .args(["--initial-cluster-state", "new", "--logger", "zap"])
            .args(&self.options)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        member.process = Some(process);
    }

    /// Waits until a member takes connections.
    pub(crate) fn wait(&mut self, at: usize) {
        let member = &mut self.members[at];
        let log = self.home.path().join(&member.name).with_extension("log");
        cellar_until::until_blocking("etcd takes connections", || {
            let process = member.process.as_mut().unwrap();
            let ended = process.try_wait().unwrap();
            assert!(
                ended.is_none(),
                "{}",
                std::fs::read_to_string(&log).unwrap()
            );
            TcpStream::connect(("127.0.0.1", member.client)).is_ok()
        });
    }

    /// Kills a member with SIGKILL.
    pub(crate) fn kill(&mut self, at: usize) {
        if let Some(mut process) = self.members[at].process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Saves a snapshot of the only member. Returns etcd's tool `etcdutl` of the same build, which
    /// restores it; `None`, with a line, if there is none.
    pub(crate) fn save(&mut self) -> Option<PathBuf> {
        let tool = self.program.with_file_name("etcdutl");
        if !tool.exists() {
            eprintln!("skipped: no etcdutl beside etcd; dev/etcd builds both");
            return None;
        }
        self.kill(0);
        let data = self.home.path().join(&self.members[0].name);
        let saved = std::fs::copy(data.join("member/snap/db"), self.snapshot());
        saved.expect("the file of a stopped member is its snapshot");
        self.run(0);
        self.wait(0);
        Some(tool)
    }

    fn snapshot(&self) -> PathBuf {
        self.home.path().join("snapshot")
    }

    /// Replaces the only member by one with the snapshot, whose revision is raised.
    pub(crate) fn restore(&mut self, tool: &Path) {
        self.kill(0);
        let member = &self.members[0];
        let data = self.home.path().join(&member.name);
        std::fs::remove_dir_all(&data).expect("the data are lost");
        let peer = format!("http://127.0.0.1:{}", member.peer);
        let restored = Command::new(tool)
            .args(["snapshot", "restore", "--skip-hash-check", "--name"])
            .args([&member.name, "--data-dir"])
            .arg(data)
            .args(["--initial-cluster", &format!("{}={peer}", member.name)])
            .args(["--initial-advertise-peer-urls", &peer])
            .args(["--bump-revision", "1000000000", "--mark-compacted"])
            .arg(self.snapshot())
            .output()
            .expect("etcdutl runs");
        let said = String::from_utf8_lossy(&restored.stderr);
        assert!(restored.status.success(), "{said}");
        self.run(0);
        self.wait(0);
    }

    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    pub(crate) fn port(&self, at: usize) -> u16 {
        self.members[at].client
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        self.members
            .iter()
            .map(|member| member.name.as_str())
            .collect()
    }

    pub(crate) fn settings(&self, writer: &str) -> Settings {
        let members = self.members.iter();
        let scheme = self.scheme;
        Settings {
            endpoints: members
                .map(|member| format!("{scheme}://127.0.0.1:{}", member.client))
                .collect(),
            tls: Tls::default(),
            prefix: "/cellar/example.org".to_owned(),
            writer: writer.to_owned(),
            create: true,
        }
    }

    pub(crate) fn open(&self, writer: &str) -> Etcd {
        Etcd::open(&self.settings(writer)).unwrap()
    }

    /// Calls etcd's gateway for JSON at the first member.
    pub(crate) fn ask(&self, path: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port(0))).unwrap();
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        answer
    }
}

/// Puts one row.
pub(crate) fn put(db: &dyn CellDb, key: &str, value: &[u8]) -> Result<u64, Error> {
    let written = db.write(|transaction| {
        transaction.put(TABLE, key.as_bytes().to_vec(), value.to_vec());
        Ok::<_, Error>(())
    });
    written.map(|((), revision)| revision.0)
}

/// Reads one row.
pub(crate) fn get(db: &dyn CellDb, key: &str) -> Option<Vec<u8>> {
    let row = db.read(|view, _| view.get(TABLE, key.as_bytes()));
    row.unwrap().map(|value| value.to_vec())
}

/// Reads a number.
pub(crate) fn number(view: &dyn cellar_celldb::View, key: &[u8]) -> u64 {
    let value = view.get(TABLE, key).unwrap();
    value.map_or(0, |value| u64::from_be_bytes(value[..].try_into().unwrap()))
}
