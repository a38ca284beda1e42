//! The client with servers that fail as real ones do, over real sockets.
//!
//! One VL server knows a volume on two addresses of this machine. Each address has a file server
//! that answers according to a script. The tests check the calls of the client and their order.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use cellar_client::cell::KnownCells;
use cellar_client::mount_point::MountPoint;
use cellar_client::reach::Reach;
use cellar_client::{Cell, CellName, Client, Config, Ports, Volume};
use cellar_rpc::{IncomingCall, LocalBoxFuture, PortConfig, Runtime, Service};
use cellar_wire::abort::AbortCode;
use cellar_wire::ids::{Fid, VolumeId};
use cellar_wire::package::{Package, Procedure};
use cellar_wire::rxafs::{self, AfsFetchStatus, FileType};
use cellar_wire::vl;
use parking_lot::Mutex;

const FIRST: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
const SECOND: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// A VL server with one volume, `v`, at changeable sites; it knows only the `N` form of the calls.
struct Locations {
    sites: Mutex<Vec<Ipv4Addr>>,
    asked: AtomicUsize,
    has_no_backup: AtomicBool,
    has_no_quorum: AtomicBool,
}

impl Service for Locations {
    fn package(&self) -> &'static Package {
        &vl::PACKAGE
    }

    fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
        Box::pin(async move {
            match call.opcode().await? {
                vl::GetEntryByNameN::OPCODE => {
                    let arguments: vl::GetEntryByNameN = call.arguments().await?;
                    self.asked.fetch_add(1, Ordering::Relaxed);
                    if self.has_no_quorum.load(Ordering::Relaxed) {
                        return Err(AbortCode::UNOQUORUM);
                    }
                    if !matches!(arguments.volumename.as_bytes(), b"v" | b"12") {
                        return Err(AbortCode::VL_NOENT);
                    }
                    let site = |server: &Ipv4Addr| vl::Site {
                        server: u32::from(*server),
                        partition: 0,
                        flags: vl::VLSF_ROVOL,
                    };
                    let backup = match self.has_no_backup.load(Ordering::Relaxed) {
                        true => 0,
                        false => vl::VLF_BACKEXISTS,
                    };
                    let entry = vl::NvldbEntry {
                        name: vl::EntryName::try_from("v").expect("name"),
                        sites: cellar_wire::List::from_iter_cut(self.sites.lock().iter().map(site)),
                        volume_ids: [VolumeId(10), VolumeId(11), VolumeId(12)],
                        flags: vl::VLF_ROEXISTS | backup,
                        ..Default::default()
                    };
                    call.reply(&vl::GetEntryByNameNReply { entry });
                    Ok(())
                }
                vl::DeleteEntry::OPCODE => {
                    let _: vl::DeleteEntry = call.arguments().await?;
                    self.asked.fetch_add(1, Ordering::Relaxed);
                    // Longer than a client waits for a silent server.
                    tokio::time::sleep(Duration::from_secs(4)).await;
                    call.reply(&vl::DeleteEntryReply {});
                    Ok(())
                }
                _ => Err(AbortCode::RXGEN_OPCODE),
            }
        })
    }
}

/// A file server. It answers FetchStatus with the next code of its script, then with success. It
/// answers FetchData64 with its bytes; if `break_after` is set, the next such call fails after that
/// many bytes.
#[derive(Default)]
struct Files {
    script: Mutex<VecDeque<AbortCode>>,
    asked: AtomicUsize,
    bytes: Vec<u8>,
    break_after: Mutex<Option<usize>>,
}

impl Files {
    fn with(script: &[AbortCode]) -> Arc<Self> {
        Arc::new(Self {
            script: Mutex::new(script.iter().copied().collect()),
            ..Self::default()
        })
    }

    async fn fetch(&self, call: &mut IncomingCall) -> Result<(), AbortCode> {
        let arguments: rxafs::FetchData64 = call.arguments().await?;
        let from = (arguments.position as usize).min(self.bytes.len());
        let rest = &self.bytes[from..];
        let rest = &rest[..rest.len().min(arguments.length as usize)];
        call.reply(&(rest.len() as u64));
        let broken = self.break_after.lock().take();
        if let Some(after) = broken {
            call.write(rest[..after].to_vec().into()).await?;
            // The client receives the bytes before the abort.
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            return Err(AbortCode::VOFFLINE);
        }
        call.write(rest.to_vec().into()).await?;
        call.reply(&rxafs::FetchData64Reply {
            status: status(),
            callback: rxafs::Callback::NONE,
            sync: rxafs::VolSync::default(),
        });
        Ok(())
    }
}

fn status() -> AfsFetchStatus {
    AfsFetchStatus {
        file_type: FileType::File,
        ..AfsFetchStatus::failed(AbortCode(0))
    }
}

impl Service for Files {
    fn package(&self) -> &'static Package {
        &rxafs::PACKAGE
    }

    fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
        Box::pin(async move {
            match call.opcode().await? {
                rxafs::FetchStatus::OPCODE => {
                    let _: rxafs::FetchStatus = call.arguments().await?;
                    self.asked.fetch_add(1, Ordering::Relaxed);
                    if let Some(code) = self.script.lock().pop_front() {
                        return Err(code);
                    }
                    call.reply(&rxafs::FetchStatusReply {
                        status: status(),
                        callback: rxafs::Callback::NONE,
                        sync: rxafs::VolSync::default(),
                    });
                    Ok(())
                }
                rxafs::FetchData64::OPCODE => self.fetch(call).await,
                _ => Err(AbortCode::RXGEN_OPCODE),
            }
        })
    }
}

/// A VL server and two file servers, and a client of them.
struct Bench {
    runtime: Runtime,
    client: Client,
    locations: Arc<Locations>,
}

impl Bench {
    fn new(sites: &[Ipv4Addr], first: Arc<Files>, second: Arc<Files>) -> Self {
        let runtime = Runtime::client_only().expect("runtime");
        let locations = Arc::new(Locations {
            sites: Mutex::new(sites.to_vec()),
            asked: AtomicUsize::new(0),
            has_no_backup: AtomicBool::new(false),
            has_no_quorum: AtomicBool::new(false),
        });
        let open = |ip: Ipv4Addr, port: u16, service: Arc<dyn Service>| {
            let address = SocketAddr::new(IpAddr::V4(ip), port);
            runtime
                .open(PortConfig::new(address).service(service))
                .expect("port")
                .local_address()
        };
        let location = open(FIRST, 0, locations.clone()).port();
        // Both file servers use the same port, as in a cell.
        let fileserver = open(FIRST, 0, first).port();
        open(SECOND, fileserver, second);
        let cell = Cell {
            name: CellName::new("test.cell").expect("name"),
            database_servers: vec![IpAddr::V4(FIRST)],
            ports: Ports {
                fileserver,
                location,
                ..Ports::default()
            },
        };
        let port = runtime.client_port().expect("client port");
        let config = Config {
            cells: vec![cell],
            administrator: None,
            security: Default::default(),
            renewal: None,
        };
        Self {
            client: Client::new(port, config).expect("client"),
            runtime,
            locations,
        }
    }

    async fn volume(&self) -> Arc<Volume> {
        let mount = MountPoint::parse(b"#v.").expect("mount point");
        let cell = self.client.home().expect("home").name.clone();
        self.client
            .mounted(None, &cell, &mount)
            .await
            .expect("volume")
    }

    async fn status(&self) -> Result<AfsFetchStatus, cellar_client::Error> {
        let volume = self.volume().await;
        self.client.status(&volume, Fid::new(11, 2, 2)).await
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.runtime.shutdown();
    }
}

fn asked(files: &Files) -> usize {
    files.asked.load(Ordering::Relaxed)
}

#[tokio::test]
async fn an_offline_site_is_passed_over() {
    let (first, second) = (Files::with(&[AbortCode::VOFFLINE]), Files::with(&[]));
    let bench = Bench::new(&[FIRST, SECOND], first.clone(), second.clone());
    bench.status().await.expect("the second serves");
    assert_eq!((asked(&first), asked(&second)), (1, 1));
}

#[tokio::test]
async fn a_moved_volume_is_found_where_it_went() {
    let (first, second) = (Files::with(&[AbortCode::VMOVED]), Files::with(&[]));
    let bench = Bench::new(&[FIRST], first.clone(), second.clone());
    bench.volume().await;
    *bench.locations.sites.lock() = vec![SECOND];
    bench.status().await.expect("found again");
    assert_eq!((asked(&first), asked(&second)), (1, 1));
    assert_eq!(bench.locations.asked.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_busy_server_is_asked_again_after_a_while() {
    let (first, second) = (Files::with(&[AbortCode::VBUSY]), Files::with(&[]));
    let bench = Bench::new(&[FIRST], first.clone(), second.clone());
    let start = std::time::Instant::now();
    bench.status().await.expect("the second try");
    assert!(start.elapsed().as_millis() >= 1000);
    assert_eq!((asked(&first), asked(&second)), (2, 0));
}

#[tokio::test]
async fn an_answer_about_the_file_is_not_asked_twice() {
    let (first, second) = (Files::with(&[AbortCode::EACCES]), Files::with(&[]));
    let bench = Bench::new(&[FIRST, SECOND], first.clone(), second.clone());
    let error = bench.status().await.expect_err("refused");
    assert_eq!(error.code(), Some(AbortCode::EACCES));
    assert_eq!((asked(&first), asked(&second)), (1, 0));
}

#[tokio::test]
async fn a_volume_that_is_not_listed() {
    let (first, second) = (Files::with(&[]), Files::with(&[]));
    let bench = Bench::new(&[FIRST], first, second);
    let mount = MountPoint::parse(b"#other.").expect("mount point");
    let cell = CellName::new("test.cell").expect("cell");
    let error = bench
        .client
        .mounted(None, &cell, &mount)
        .await
        .expect_err("none");
    assert!(
        matches!(error, cellar_client::Error::NoSuchVolume { .. }),
        "{error}"
    );
}

#[tokio::test]
async fn a_mount_asks_once_about_a_volume_and_once_about_a_missing_one() {
    let bench = Bench::new(&[FIRST], Files::with(&[]), Files::with(&[]));
    let cell = CellName::new("test.cell").expect("cell");
    let look = async |text: &str| {
        let mount = MountPoint::parse(text.as_bytes()).expect("mount point");
        bench.client.mounted(None, &cell, &mount).await.is_ok()
    };
    let asked = || bench.locations.asked.load(Ordering::Relaxed);
    assert!(!look("#other.").await && !look("#other.").await);
    assert_eq!(asked(), 2, "a command asks again");
    let reach = Arc::new(Reach::default());
    reach.set_patience(Duration::from_secs(1));
    let cells = KnownCells::new(vec![bench.client.home().expect("home").clone()]);
    let config = Config {
        cells: Vec::new(),
        administrator: None,
        security: Default::default(),
        renewal: None,
    };
    let port = bench.runtime.client_port().expect("client port");
    let client = Client::without_callbacks(port, cells, config, reach);
    let look = async |text: &str| {
        let mount = MountPoint::parse(text.as_bytes()).expect("mount point");
        client.mounted(None, &cell, &mount).await.is_ok()
    };
    for _ in 0..10 {
        assert!(!look("#other.").await);
        assert!(look("#v.").await);
    }
    assert_eq!(asked(), 4);
    client.locations().forget_all();
    assert!(!look("#other.").await);
    assert_eq!(asked(), 5);
}

#[tokio::test]
async fn a_backup_volume_has_no_way_into_a_backup_volume() {
    let bench = Bench::new(&[FIRST], Files::with(&[]), Files::with(&[]));
    let cell = CellName::new("test.cell").expect("cell");
    let mounted = async |from: Option<&Volume>, text: &str| {
        let mount = MountPoint::parse(text.as_bytes()).expect("mount point");
        bench.client.mounted(from, &cell, &mount).await
    };
    let read_only = bench.volume().await;
    let backup = mounted(Some(&*read_only), "#v.backup.").await;
    let backup = backup.expect("from another volume");
    assert_eq!(backup.id, VolumeId(12));
    for text in ["#v.backup.", "%v.backup.", "#12."] {
        let error = mounted(Some(&*backup), text).await.expect_err(text);
        // ELOOP
        assert_eq!(cellar_client::errno(&error), 40, "{error}");
    }
    let back = mounted(Some(&*backup), "#v.").await.expect("out of it");
    assert_eq!(back.id, VolumeId(11));
    let top = mounted(None, "#v.backup.").await.expect("from the top");
    assert_eq!(top.id, VolumeId(12));
}

#[tokio::test]
async fn a_silent_database_server_is_not_waited_for_where_another_answers() {
    let bench = Bench::new(&[FIRST], Files::with(&[]), Files::with(&[]));
    let mut cell = bench.client.home().expect("home").clone();
    let silent = SocketAddr::new([127, 0, 0, 3].into(), cell.ports.location);
    let socket = std::net::UdpSocket::bind(silent).expect("socket");
    socket.set_nonblocking(true).expect("socket");
    cell.database_servers.insert(0, silent.ip());
    let config = Config {
        cells: vec![cell.clone()],
        administrator: None,
        security: Default::default(),
        renewal: None,
    };
    let port = bench.runtime.client_port().expect("client port");
    let client = Client::new(port, config).expect("client");
    let start = std::time::Instant::now();
    let family = client.locations().family(&cell, "v").await;
    family.expect("the second answers");
    // The server counts as dead after 30 s.
    assert!(start.elapsed().as_secs() < 20);
    assert!(socket.recv(&mut [0; 2_000]).is_ok(), "it was not asked");
    // From then on the silent server is tried last.
    assert!(client.servers().is_down(silent));
}

#[tokio::test]
async fn a_silent_database_server_does_not_delay_the_refusal_of_the_others() {
    let bench = Bench::new(&[FIRST], Files::with(&[]), Files::with(&[]));
    bench.locations.has_no_quorum.store(true, Ordering::Relaxed);
    let mut cell = bench.client.home().expect("home").clone();
    let silent = SocketAddr::new([127, 0, 0, 4].into(), cell.ports.location);
    let _socket = std::net::UdpSocket::bind(silent).expect("socket");
    cell.database_servers.push(silent.ip());
    let start = std::time::Instant::now();
    let refused = bench.client.locations().family(&cell, "v").await;
    let refused = refused.expect_err("there is no quorum");
    assert_eq!(refused.code(), Some(AbortCode::UNOQUORUM));
    assert!(refused.to_string().contains("takes changes"), "{refused}");
    // The server counts as dead after 30 s.
    assert!(start.elapsed().as_secs() < 20);
    assert!(bench.client.servers().is_down(silent));
}

#[tokio::test]
async fn a_change_that_takes_long_is_made_by_one_server_only() {
    let bench = Bench::new(&[FIRST], Files::with(&[]), Files::with(&[]));
    let mut cell = bench.client.home().expect("home").clone();
    let address = SocketAddr::new(SECOND.into(), cell.ports.location);
    let second = PortConfig::new(address).service(bench.locations.clone());
    bench.runtime.open(second).expect("port");
    let silent = SocketAddr::new([127, 0, 0, 5].into(), cell.ports.location);
    let socket = std::net::UdpSocket::bind(silent).expect("socket");
    socket.set_nonblocking(true).expect("socket");
    // The silent server is given up, the one that works is not.
    cell.database_servers = vec![silent.ip(), FIRST.into(), SECOND.into()];
    let change = vl::DeleteEntry {
        volid: VolumeId(10),
        voltype: 0,
    };
    let made = bench.client.locations().call(&cell, &change).await;
    made.expect("the second server makes it");
    assert!(socket.recv(&mut [0; 2_000]).is_ok(), "it was not asked");
    assert_eq!(bench.locations.asked.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_volume_that_was_made_since_is_found() {
    let bench = Bench::new(&[FIRST], Files::with(&[]), Files::with(&[]));
    let cell = CellName::new("test.cell").expect("cell");
    let mount = MountPoint::parse(b"#v.backup.").expect("mount point");
    let none = &bench.locations.has_no_backup;
    none.store(true, Ordering::Relaxed);
    let mounted = async || bench.client.mounted(None, &cell, &mount).await;
    let missing = mounted().await.expect_err("there is none");
    assert!(
        matches!(missing, cellar_client::Error::NoSuchSite { .. }),
        "{missing}"
    );
    none.store(false, Ordering::Relaxed);
    assert_eq!(mounted().await.expect("made").id, VolumeId(12));
}

#[tokio::test]
async fn a_read_that_breaks_off_goes_on_elsewhere_without_a_byte_twice() {
    let bytes: Vec<u8> = (0..700_001u32).map(|n| (n * 7 + (n >> 10)) as u8).collect();
    let broken = Files {
        bytes: bytes.clone(),
        break_after: Mutex::new(Some(300_000)),
        ..Files::default()
    };
    let whole = Files {
        bytes: bytes.clone(),
        ..Files::default()
    };
    let bench = Bench::new(&[FIRST, SECOND], Arc::new(broken), Arc::new(whole));
    let volume = bench.volume().await;
    let node = bench
        .client
        .node(&volume, Fid::new(11, 2, 2))
        .await
        .expect("node");
    let mut fetch = bench.client.fetch(&node, 0, u64::MAX).await.expect("fetch");
    let mut read = Vec::new();
    while let Some(piece) = fetch.next().await.expect("the rest from the second") {
        read.extend_from_slice(&piece);
    }
    assert!(read == bytes, "{} bytes of {}", read.len(), bytes.len());
}
