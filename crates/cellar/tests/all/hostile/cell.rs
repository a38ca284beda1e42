//! The cell under attack: the real program on free ports, and an administrator's view of it.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cellar_rpc::{CallError, CallOptions, Connection, Runtime, Security};
use cellar_wire::ids::{Fid, VolumeId};
use cellar_wire::package::Package;
use cellar_wire::rxafs::{self, AfsStoreStatus};
use cellar_wire::{AfsName, afsvol, bozo, pr, vl};

use crate::hostile::ports::Ports;

/// A call without an answer for this long counts as hung, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The ports of a cell, counted from its file server's.
pub(crate) const PORTS: [(&str, u16, &Package); 5] = [
    ("files", 0, &rxafs::PACKAGE),
    ("users", 2, &pr::PACKAGE),
    ("locations", 3, &vl::PACKAGE),
    ("volumes", 5, &afsvol::PACKAGE),
    ("overseer", 7, &bozo::PACKAGE),
];

/// A server to call: the cell of this test, or another AFS server.
#[derive(Clone)]
pub(crate) struct TestedServer {
    pub(crate) address: IpAddr,
    pub(crate) base: u16,
    pub(crate) volume: String,
}

impl TestedServer {
    pub(crate) fn port(&self, offset: u16) -> SocketAddr {
        SocketAddr::new(self.address, self.base + offset)
    }

    /// An anonymous connection to one of the services of [`PORTS`], or to another one on its port.
    pub(crate) fn connect(&self, client: &Runtime, offset: u16, package: &Package) -> Connection {
        client
            .connect(self.port(offset), package.service_id, Security::null())
            .expect("a connection")
    }

    /// The fid of the root directory of the volume.
    pub(crate) async fn root(&self, client: &Runtime) -> Fid {
        let volumename = vl::VolumeNameArgument::new(self.volume.clone()).expect("a name");
        let locations = self.connect(client, 3, &vl::PACKAGE);
        let entry = locations.call(&vl::GetEntryByNameU { volumename }).await;
        Fid::root(VolumeId(
            entry.expect("the volume's entry").entry.volume_ids[0].0,
        ))
    }
}

/// A cell of its own, a client, its connection to the file server, and the root directory of the
/// volume.
pub(crate) async fn begin() -> (Cell, Runtime, Connection, Fid) {
    let cell = Cell::start();
    let client = Runtime::client_only().expect("a client");
    let files = cell.target.connect(&client, 0, &rxafs::PACKAGE);
    let root = cell.target.root(&client).await;
    (cell, client, files, root)
}

/// A cell of its own, which ends when it is dropped.
pub(crate) struct Cell {
    pub(crate) target: TestedServer,
    server: Child,
    home: tempfile::TempDir,
    _ports: Ports,
}

impl Cell {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts the cell with further options of `cellar up`.
    pub(crate) fn start_with(options: &[&str]) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let ports = Ports::reserve();
        let base = ports.first;
        let file = |name: &str| fs::File::create(home.path().join(name)).expect("a file");
        let server = Command::new(env!("CARGO_BIN_EXE_cellar"))
            .args([
                "up",
                "--cell",
                "hostile.test",
                "--durability",
                "relaxed",
                "--dir",
            ])
            .arg(home.path().join("cell"))
            .args(["--fileserver-port", &base.to_string()])
            .args(options)
            .stdin(Stdio::null())
            .stdout(file("out"))
            .stderr(file("log"))
            .spawn()
            .expect("the program starts");
        let target = TestedServer {
            address: Ipv4Addr::LOCALHOST.into(),
            base,
            volume: "scratch".to_owned(),
        };
        let cell = Self {
            target,
            server,
            home,
            _ports: ports,
        };
        let start = Instant::now();
        while !cell.read("out").contains("Ctrl-C stops it") {
            assert!(start.elapsed() < PATIENCE, "{}", cell.read("log"));
            std::thread::sleep(Duration::from_millis(20));
        }
        cell
    }

    pub(crate) fn directory(&self) -> PathBuf {
        self.home.path().join("cell")
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.home.path().join(name)).unwrap_or_default()
    }

    /// Resident memory of the server, in bytes.
    pub(crate) fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.server.id()));
        let status = status.expect("the server is alive");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next());
        kib.and_then(|kib| kib.parse::<u64>().ok()).expect("VmRSS") * 1024
    }

    /// The output of `cellar statistics`.
    pub(crate) fn statistics(&self) -> serde_json::Value {
        let output = Command::new(env!("CARGO_BIN_EXE_cellar"))
            .args(["statistics", "--json", "--dir"])
            .arg(self.directory())
            .output()
            .expect("the program runs");
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Checks that the server runs, answers on every port, and that no handler has panicked.
    pub(crate) async fn assert_well(&mut self, client: &Runtime) {
        let ended = self.server.try_wait().expect("its state");
        assert!(
            ended.is_none(),
            "the server ended: {ended:?}\n{}",
            self.read("log")
        );
        let target = &self.target;
        let time = target.connect(client, 0, &rxafs::PACKAGE);
        within(time.call(&rxafs::GetTime {})).await.expect("files");
        let users = target.connect(client, 2, &pr::PACKAGE);
        within(users.call(&pr::ListMax {})).await.expect("users");
        let locations = target.connect(client, 3, &vl::PACKAGE);
        within(locations.call(&vl::ProbeServer {}))
            .await
            .expect("locations");
        let volumes = target.connect(client, 5, &afsvol::PACKAGE);
        within(volumes.call(&afsvol::XListPartitions {}))
            .await
            .expect("volumes");
        let overseer = target.connect(client, 7, &bozo::PACKAGE);
        within(overseer.call(&bozo::GetCellName {}))
            .await
            .expect("overseer");
        let log = self.read("log");
        assert!(!log.contains("panic"), "{log}");
        for port in self.statistics()["ports"].as_array().expect("ports") {
            assert_eq!(port["handler_panics"], 0, "{port}");
        }
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        // It may have ended by itself, as the test has checked.
        let _ended = self.server.kill();
        let _status = self.server.wait();
    }
}

/// Fails the test when a call hangs.
pub(crate) async fn within<T>(call: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, call)
        .await
        .expect("an answer in time")
}

/// Runs a test's body.
pub(crate) fn run(body: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(body);
}

/// Makes a call from bytes, opcode first. Returns the code that it ends with; 0 for success.
pub(crate) async fn code_of(
    connection: &Connection,
    package: &'static Package,
    request: Vec<u8>,
) -> i32 {
    let ask = async {
        let mut call = connection.open_raw(package, request.into(), CallOptions::default())?;
        while call.read_chunk().await?.is_some() {}
        Ok::<_, CallError>(())
    };
    code(within(ask).await)
}

/// The result of a call as a number.
pub(crate) fn code<T>(outcome: Result<T, CallError>) -> i32 {
    match outcome {
        Ok(_) => 0,
        Err(CallError::Aborted(code)) => code.0,
        // The server aborts with -1 if it cannot reach us. `Gone` means that no process uses the
        // port.
        Err(CallError::Dead | CallError::Gone) => -1,
        Err(other) => panic!("no answer: {other:?}"),
    }
}

/// A status that sets only the mode.
pub(crate) fn mode(bits: u32) -> AfsStoreStatus {
    AfsStoreStatus {
        unix_mode: Some(bits),
        ..AfsStoreStatus::default()
    }
}

pub(crate) fn name(text: impl AsRef<[u8]>) -> AfsName {
    AfsName::try_from(text.as_ref()).expect("at most 256 bytes")
}

/// Stores a whole file.
pub(crate) async fn store(
    files: &Connection,
    fid: Fid,
    position: u64,
    length: u64,
    data: Bytes,
) -> Result<(), CallError> {
    let file_length = position.saturating_add(length);
    let arguments = rxafs::StoreData64 {
        fid,
        in_status: AfsStoreStatus::default(),
        position,
        length,
        file_length,
    };
    let mut call = files.open(&arguments).await?;
    call.write(data).await?;
    call.results::<rxafs::StoreData64Reply>().await?;
    Ok(())
}

/// A small generator of random numbers, so that a failure can be repeated.
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}
