//! A file server in this process, on loopback, with a temporary partition; machines that call it
//! and serve its callbacks; and the local administrator.

pub(crate) mod making;
pub(crate) mod osds;
pub(crate) mod real;
pub(crate) mod shared;
pub(crate) mod stated;
pub(crate) mod volser;

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cellar_fileserver::protection::BoxFuture;
use cellar_fileserver::{Config, Cps, FileServer, Protection, ProtectionError};
use cellar_rpc::{
    CallError, CallOptions, Connection, ConnectionOptions, IncomingCall, LocalBoxFuture, Port,
    PortConfig, Runtime, RuntimeConfig, Security, Service, local,
};
use cellar_until::until_some_blocking;
use cellar_volume::disk::SimDisk;
use cellar_volume::{Options, Partition, SnapshotSpec, VolumeKind, VolumeSpec};
use cellar_wire::acl::{AccessList, AclEntry, Rights};
use cellar_wire::host::InterfaceAddr;
use cellar_wire::ids::{AfsTime, AfsUuid, Fid, PartitionId, ViceId, VolumeId};
use cellar_wire::rxafs::{self, AfsStoreStatus};
use cellar_wire::{AbortCode, AfsName, List, Package, Procedure, rxafscb};
use parking_lot::Mutex;

/// The scratch volume: every user has all rights.
pub(crate) const OPEN: VolumeId = VolumeId(536_870_912);
/// Read-only clone of the scratch volume.
pub(crate) const CLONE: VolumeId = VolumeId(536_870_913);
/// A new volume as administrators make it: no other user has a right.
pub(crate) const SHUT: VolumeId = VolumeId(536_870_915);

/// The time of the tests. The clock stands still unless a test moves it.
pub(crate) const NOW: u64 = 1_800_000_000;

/// A protection database of a few names.
#[derive(Default)]
pub(crate) struct Names {
    pub(crate) host_groups: Mutex<Vec<(IpAddr, ViceId)>>,
    /// User and group.
    pub(crate) members: Mutex<Vec<(ViceId, ViceId)>>,
    /// Incremented by [`Names::join`], as by a database in the same process.
    version: AtomicU64,
    pub(crate) unreachable: AtomicBool,
}

impl Names {
    /// Adds a member to a group, and signals the change.
    pub(crate) fn join(&self, user: i32, group: i32) {
        self.join_unseen(user, group);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Adds a member to a group without a signal, as a remote database does.
    pub(crate) fn join_unseen(&self, user: i32, group: i32) {
        self.members.lock().push((ViceId(user), ViceId(group)));
    }
}

pub(crate) const NAMES: &[(&str, i32)] = &[
    ("system:administrators", -204),
    ("system:anyuser", -101),
    ("system:authuser", -102),
    ("anonymous", 32766),
    ("alice", 7),
    ("bob", 8),
    ("carol", 9),
    ("friends", -300),
    ("lab", -400),
];

impl Protection for Names {
    fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    fn cps(&self, id: ViceId) -> BoxFuture<'_, Result<Cps, ProtectionError>> {
        Box::pin(async move {
            if self.unreachable.load(Ordering::Relaxed) {
                return Err(ProtectionError::Unreachable("as the test asked for".into()));
            }
            let members = self.members.lock();
            let groups = members.iter().filter(|(user, _)| *user == id);
            let groups = groups.map(|(_, group)| *group);
            let everybody = [id, ViceId::ANYUSER, ViceId::AUTHUSER];
            Ok(groups.chain(everybody).collect())
        })
    }

    fn host_cps(&self, address: IpAddr) -> BoxFuture<'_, Result<Cps, ProtectionError>> {
        Box::pin(async move {
            let groups = self.host_groups.lock();
            let of_host = groups.iter().filter(|(host, _)| *host == address);
            Ok(Cps::new(of_host.map(|(_, group)| *group).collect()))
        })
    }

    fn ids_of<'a>(
        &'a self,
        names: &'a [Bytes],
    ) -> BoxFuture<'a, Result<Vec<Option<ViceId>>, ProtectionError>> {
        Box::pin(async move {
            if self.unreachable.load(Ordering::Relaxed) {
                return Err(ProtectionError::Unreachable("as the test asked for".into()));
            }
            let id = |name: &Bytes| {
                let known = NAMES.iter().find(|(known, _)| known.as_bytes() == name)?;
                Some(ViceId(known.1))
            };
            Ok(names.iter().map(id).collect())
        })
    }

    fn names_of<'a>(
        &'a self,
        ids: &'a [ViceId],
    ) -> BoxFuture<'a, Result<Vec<Option<Bytes>>, ProtectionError>> {
        Box::pin(async move {
            if self.unreachable.load(Ordering::Relaxed) {
                return Err(ProtectionError::Unreachable("as the test asked for".into()));
            }
            let name = |id: &ViceId| {
                let known = NAMES.iter().find(|(_, known)| *known == id.0)?;
                Some(Bytes::from_static(known.0.as_bytes()))
            };
            Ok(ids.iter().map(name).collect())
        })
    }
}

/// A file server.
pub(crate) struct Cell {
    pub(crate) server: FileServer,
    pub(crate) runtime: Runtime,
    pub(crate) port: Port,
    pub(crate) partition: Arc<Partition>,
    pub(crate) names: Arc<Names>,
    pub(crate) clock: Arc<AtomicU64>,
    pub(crate) config: Config,
    listener: Option<local::Listener>,
    socket: PathBuf,
    dir: tempfile::TempDir,
    pub(crate) disk: Arc<SimDisk>,
}

pub(crate) fn uuid(last: u8) -> AfsUuid {
    AfsUuid([last; 16])
}

/// An access list of names and rights.
pub(crate) fn list(entries: &[(i32, &str)]) -> AccessList {
    let entry = |&(id, rights): &(i32, &str)| AclEntry {
        id: ViceId(id),
        rights: Rights::parse(rights).unwrap(),
    };
    AccessList::new(entries.iter().map(entry).collect(), Vec::new()).unwrap()
}

pub(crate) fn name(text: impl AsRef<[u8]>) -> AfsName {
    AfsName::try_from(text.as_ref()).unwrap()
}

pub(crate) fn mode(mode: u32) -> AfsStoreStatus {
    AfsStoreStatus {
        unix_mode: Some(mode),
        ..AfsStoreStatus::default()
    }
}

/// A call that sets the quota of the scratch volume.
pub(crate) fn quota(blocks: i32) -> rxafs::SetVolumeStatus {
    rxafs::SetVolumeStatus {
        volume: OPEN,
        status: rxafs::StoreVolumeStatus {
            max_quota: Some(blocks),
            ..rxafs::StoreVolumeStatus::default()
        },
        name: AfsName::default(),
        offline_message: rxafs::AfsPath::default(),
        message_of_the_day: rxafs::AfsPath::default(),
    }
}

pub(crate) const ALICE: i32 = 7;
pub(crate) const ANYUSER: i32 = -101;

impl Cell {
    pub(crate) fn start() -> Self {
        Self::start_with(|config| config)
    }

    pub(crate) fn start_with(configure: impl FnOnce(Config) -> Config) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let clock = Arc::new(AtomicU64::new(NOW));
        let wall = clock.clone();
        let wall = Arc::new(move || Duration::from_secs(wall.load(Ordering::Relaxed)));
        let mut config = Config::new(uuid(0xfe), wall);
        config.callback_state = Some(dir.path().join("callbacks"));
        let authority = cellar_auth::Authority::open(dir.path(), "test.cell");
        config.authority = Some(authority.unwrap());
        let config = configure(config);
        let disk = Arc::new(SimDisk::new(1 << 30));
        let partition = open_partition(&disk);
        make_volumes(&partition);
        Self::serve(dir, disk, clock, config, partition)
    }

    fn serve(
        dir: tempfile::TempDir,
        disk: Arc<SimDisk>,
        clock: Arc<AtomicU64>,
        config: Config,
        partition: Arc<Partition>,
    ) -> Self {
        let names = Arc::new(Names::default());
        let server = FileServer::new(config.clone(), names.clone());
        server.add_partition(PartitionId::new(0).unwrap(), partition.clone());
        let runtime = Runtime::start(RuntimeConfig {
            shards: 2,
            name: "server".into(),
            ..RuntimeConfig::default()
        })
        .unwrap();
        let at = PortConfig::new("127.0.0.1:0".parse().unwrap())
            .service(server.file_service())
            .security(stated::INDEX, Arc::new(stated::Everybody));
        let port = runtime.open(at).unwrap();
        port.add_service(&server.volume_service());
        port.add_service(&server.object_service());
        server.start(&runtime, &port);
        let socket = dir.path().join("admin.socket");
        let services = vec![
            server.file_service(),
            server.volume_service(),
            server.object_service(),
        ];
        let listener = local::Listener::bind(&runtime, &socket, services).unwrap();
        Self {
            server,
            runtime,
            port,
            partition,
            names,
            clock,
            config,
            listener: Some(listener),
            socket,
            dir,
            disk,
        }
    }

    /// Stops, cleanly or as in a crash, and starts again with the same volumes and address.
    pub(crate) fn restart(mut self, cleanly: bool) -> Self {
        let address = self.address();
        drop(self.listener.take());
        self.port.close();
        self.runtime.shutdown();
        if cleanly {
            self.server.stop();
        }
        let Self {
            dir,
            disk,
            clock,
            config,
            names,
            server,
            partition,
            runtime,
            port,
            ..
        } = self;
        drop((runtime, port));
        drop(server);
        partition.close().unwrap();
        assert_eq!(
            Arc::strong_count(&partition),
            1,
            "nobody uses the partition any more"
        );
        drop(partition);
        let partition = open_partition(&disk);
        let server = FileServer::new(config.clone(), names.clone());
        server.add_partition(PartitionId::new(0).unwrap(), partition.clone());
        let runtime = Runtime::start(RuntimeConfig {
            shards: 2,
            ..RuntimeConfig::default()
        });
        let runtime = runtime.unwrap();
        let at = PortConfig::new(address).service(server.file_service());
        let port = runtime.open(at).unwrap();
        server.start(&runtime, &port);
        let socket = dir.path().join("admin.socket");
        let services = vec![server.file_service(), server.volume_service()];
        let listener = local::Listener::bind(&runtime, &socket, services).unwrap();
        let listener = Some(listener);
        Self {
            server,
            runtime,
            port,
            partition,
            names,
            clock,
            config,
            listener,
            socket,
            dir,
            disk,
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.port.local_address()
    }

    /// Moves the clock.
    pub(crate) fn wait_secs(&self, secs: u64) {
        self.clock.fetch_add(secs, Ordering::Relaxed);
    }

    /// The local administrator.
    pub(crate) async fn admin(&self) -> Connection {
        local::connect(&self.socket).await.unwrap()
    }

    /// Replaces the list of a directory, directly in the store.
    pub(crate) fn set_list(&self, dir: Fid, list: AccessList) {
        let volume = self.partition.volume(dir.volume).unwrap().unwrap();
        let context = cellar_volume::Context {
            author: ViceId(1),
            now: AfsTime(NOW as u32),
        };
        volume.set_acl(dir, list, context).unwrap().wait().unwrap();
    }
}

fn open_partition(disk: &Arc<SimDisk>) -> Arc<Partition> {
    let options = Options {
        journal_bytes: 1 << 20,
        reserve_bytes: 1 << 20,
        ..Options::default()
    };
    Partition::open(disk.clone(), options).unwrap()
}

fn make_volumes(partition: &Partition) {
    let now = AfsTime(NOW as u32 - 1000);
    for (id, title) in [(OPEN, "scratch"), (SHUT, "shut")] {
        let spec = VolumeSpec::new(id, title, ViceId(1), now);
        let volume = partition.create_volume(&spec).unwrap().wait().unwrap();
        if id == OPEN {
            let context = cellar_volume::Context {
                author: ViceId(1),
                now,
            };
            let everybody = list(&[(ANYUSER, "rlidwka")]);
            volume
                .set_acl(volume.root(), everybody, context)
                .unwrap()
                .wait()
                .unwrap();
        }
    }
}

impl Cell {
    /// Makes the read-only clone of the scratch volume.
    pub(crate) fn make_clone(&self) {
        let now = AfsTime(NOW as u32);
        let kind = VolumeKind::ReadOnly;
        let spec = SnapshotSpec::new(OPEN, CLONE, "scratch.readonly", kind, now);
        self.partition.snapshot(&spec).unwrap().wait().unwrap();
    }
}

/// The callback service of a client machine.
pub(crate) struct CacheManager {
    pub(crate) uuid: Mutex<Option<AfsUuid>>,
    /// Answers nothing.
    pub(crate) silent: AtomicBool,
    pub(crate) translates_errors: AtomicBool,
    /// Serves no callback calls.
    pub(crate) deaf: AtomicBool,
    /// Delay of each answer.
    pub(crate) answers_after_millis: AtomicU64,
    pub(crate) asked: AtomicU32,
    pub(crate) forgot: AtomicU32,
    pub(crate) breaks: Mutex<Vec<Fid>>,
    pub(crate) break_calls: AtomicU32,
}

impl CacheManager {
    pub(crate) fn new(uuid: Option<AfsUuid>) -> Arc<Self> {
        Arc::new(Self {
            uuid: Mutex::new(uuid),
            silent: AtomicBool::new(false),
            translates_errors: AtomicBool::new(false),
            deaf: AtomicBool::new(false),
            answers_after_millis: AtomicU64::new(0),
            asked: AtomicU32::new(0),
            forgot: AtomicU32::new(0),
            breaks: Mutex::new(Vec::new()),
            break_calls: AtomicU32::new(0),
        })
    }
}

impl Service for CacheManager {
    fn package(&self) -> &'static Package {
        &rxafscb::PACKAGE
    }

    fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
        Box::pin(async move {
            let opcode = call.opcode().await?;
            if self.silent.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            if self.deaf.load(Ordering::Relaxed) {
                return Err(AbortCode::RXGEN_OPCODE);
            }
            let pause = self.answers_after_millis.load(Ordering::Relaxed);
            if pause > 0 {
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
            match opcode {
                rxafscb::TellMeAboutYourself::OPCODE => {
                    self.asked.fetch_add(1, Ordering::Relaxed);
                    let uuid = self.uuid.lock().ok_or(AbortCode::RXGEN_OPCODE)?;
                    let bits = u32::from(self.translates_errors.load(Ordering::Relaxed));
                    call.reply(&rxafscb::TellMeAboutYourselfReply {
                        address: InterfaceAddr {
                            uuid,
                            interfaces: List::new(),
                        },
                        capabilities: List::from_iter_cut([bits]),
                    });
                }
                rxafscb::InitCallBackState::OPCODE | rxafscb::InitCallBackState3::OPCODE => {
                    self.forgot.fetch_add(1, Ordering::Relaxed);
                }
                rxafscb::CallBack::OPCODE => {
                    let rxafscb::CallBack { fids, callbacks } = call.arguments().await?;
                    assert!(callbacks.is_empty());
                    self.break_calls.fetch_add(1, Ordering::Relaxed);
                    self.breaks.lock().extend(fids.iter().copied());
                }
                rxafscb::ProbeUuid::OPCODE => {
                    let rxafscb::ProbeUuid { client_uuid } = call.arguments().await?;
                    if Some(client_uuid) != *self.uuid.lock() {
                        return Err(AbortCode(1));
                    }
                }
                rxafscb::Probe::OPCODE => {}
                _ => return Err(AbortCode::RXGEN_OPCODE),
            }
            Ok(())
        })
    }
}

/// A client machine.
pub(crate) struct Machine {
    server: SocketAddr,
    pub(crate) service: Arc<CacheManager>,
    _runtime: Runtime,
    pub(crate) port: Port,
    pub(crate) connection: Connection,
}

impl Machine {
    pub(crate) fn new(cell: &Cell, last: u8) -> Self {
        Self::with_uuid(cell, Some(uuid(last)))
    }

    pub(crate) fn with_uuid(cell: &Cell, uuid: Option<AfsUuid>) -> Self {
        Self::with_service(cell.address(), CacheManager::new(uuid))
    }

    pub(crate) fn with_service(server: SocketAddr, service: Arc<CacheManager>) -> Self {
        Self::at(server, "127.0.0.1:0".parse().unwrap(), service)
    }

    /// A machine that calls from that address, which another one may have just left.
    pub(crate) fn at(server: SocketAddr, address: SocketAddr, service: Arc<CacheManager>) -> Self {
        let config = RuntimeConfig {
            shards: 1,
            name: "client".into(),
            ..RuntimeConfig::default()
        };
        let runtime = Runtime::start(config).unwrap();
        let open = || runtime.open(PortConfig::new(address).service(service.clone()));
        let port = until_some_blocking("a free address", || open().ok());
        let options = ConnectionOptions {
            call_timeout: Some(Duration::from_secs(30)),
            ..ConnectionOptions::default()
        };
        let connection =
            port.connect_with(server, rxafs::PACKAGE.service_id, Security::null(), options);
        Self {
            server,
            service,
            _runtime: runtime,
            port,
            connection,
        }
    }

    /// A connection of a user of this machine, to the file service.
    pub(crate) fn user(&self, name: &str) -> Connection {
        self.principal(stated::user(name), rxafs::PACKAGE.service_id)
    }

    /// A connection without a user, to any service.
    pub(crate) fn anonymous(&self, service: u16) -> Connection {
        self.port.connect(self.server, service, Security::null())
    }

    /// A connection of any principal, to any service.
    pub(crate) fn principal(&self, who: cellar_auth::Principal, service: u16) -> Connection {
        self.port
            .connect(self.server, service, stated::security(who))
    }

    pub(crate) async fn call<P: Procedure>(&self, call: &P) -> Result<P::Reply, CallError> {
        self.connection.call(call).await
    }

    /// Makes a call that must succeed.
    pub(crate) async fn ok<P: Procedure>(&self, call: &P) -> P::Reply {
        match self.connection.call(call).await {
            Ok(reply) => reply,
            Err(cause) => panic!("{}: {cause:?}", P::NAME),
        }
    }

    /// The code of a call that must fail.
    pub(crate) async fn code<P: Procedure>(&self, call: &P) -> i32 {
        code(self.connection.call(call).await, P::NAME)
    }

    pub(crate) async fn create(&self, dir: Fid, file: &str) -> Fid {
        let call = rxafs::CreateFile {
            dir_fid: dir,
            name: name(file),
            in_status: mode(0o644),
        };
        self.ok(&call).await.fid
    }

    pub(crate) async fn make_dir(&self, dir: Fid, file: &str) -> Fid {
        let call = rxafs::MakeDir {
            dir_fid: dir,
            name: name(file),
            in_status: mode(0o755),
        };
        self.ok(&call).await.fid
    }

    /// The fid of a name, read from the directory's pages.
    pub(crate) async fn lookup(&self, dir: Fid, file: &str) -> Fid {
        let pages = self.fetch(dir, 0, 1 << 20).await.unwrap();
        let (pages, _) = pages.as_chunks();
        let found = cellar_wire::dir::Directory::new(pages.to_vec()).lookup(file.as_bytes());
        let target = found.unwrap().unwrap();
        Fid {
            volume: dir.volume,
            vnode: target.vnode,
            uniquifier: target.uniquifier,
        }
    }

    pub(crate) async fn status(&self, fid: Fid) -> rxafs::FetchStatusReply {
        self.ok(&rxafs::FetchStatus { fid }).await
    }

    pub(crate) async fn store(
        &self,
        fid: Fid,
        position: u64,
        bytes: &[u8],
    ) -> Result<rxafs::AfsFetchStatus, CallError> {
        store(&self.connection, fid, position, bytes).await
    }

    pub(crate) async fn fetch(
        &self,
        fid: Fid,
        position: i64,
        length: i64,
    ) -> Result<Vec<u8>, CallError> {
        let mut call = self
            .connection
            .open(&rxafs::FetchData64 {
                fid,
                position,
                length,
            })
            .await?;
        let length: u64 = call.read().await?;
        let mut bytes = Vec::new();
        call.read_exact(length, |chunk| bytes.extend_from_slice(&chunk))
            .await?;
        let reply: rxafs::FetchData64Reply = call.read().await?;
        assert_ne!(reply.status.file_type, rxafs::FileType::Invalid);
        Ok(bytes)
    }

    /// The breaks received since the last call of this function.
    pub(crate) fn take_breaks(&self) -> Vec<Fid> {
        let mut breaks = std::mem::take(&mut *self.service.breaks.lock());
        breaks.sort_unstable();
        breaks
    }

    pub(crate) fn forgot(&self) -> u32 {
        self.service.forgot.swap(0, Ordering::Relaxed)
    }
}

/// StoreData64: bytes at the end of the resulting file.
pub(crate) async fn store(
    connection: &Connection,
    fid: Fid,
    position: u64,
    bytes: &[u8],
) -> Result<rxafs::AfsFetchStatus, CallError> {
    let file_length = position + bytes.len() as u64;
    store_of(connection, fid, position, bytes, file_length).await
}

/// StoreData64: bytes at any position of a file.
pub(crate) async fn store_within(
    machine: &Machine,
    fid: Fid,
    position: u64,
    bytes: &[u8],
    file_length: u64,
) -> Result<rxafs::AfsFetchStatus, CallError> {
    store_of(&machine.connection, fid, position, bytes, file_length).await
}

async fn store_of(
    connection: &Connection,
    fid: Fid,
    position: u64,
    bytes: &[u8],
    file_length: u64,
) -> Result<rxafs::AfsFetchStatus, CallError> {
    let call = rxafs::StoreData64 {
        fid,
        in_status: AfsStoreStatus::default(),
        position,
        length: bytes.len() as u64,
        file_length,
    };
    let mut call = connection.open(&call).await?;
    for piece in bytes.chunks(100_000) {
        call.write(Bytes::copy_from_slice(piece)).await?;
    }
    call.finish();
    let reply: rxafs::StoreData64Reply = call.results().await?;
    Ok(reply.status)
}

/// The code of a call that must fail.
pub(crate) fn code<T: std::fmt::Debug>(outcome: Result<T, CallError>, what: &str) -> i32 {
    match outcome {
        Err(CallError::Aborted(code)) => code.0,
        other => panic!("{what}: {other:?}"),
    }
}

/// The same, for a code that the server may translate for the caller.
pub(crate) fn plain_code(outcome: Result<impl std::fmt::Debug, CallError>) -> i32 {
    match outcome {
        Err(CallError::Aborted(code)) => code.to_plain().0,
        other => panic!("{other:?}"),
    }
}

/// A call given as bytes, opcode first.
pub(crate) async fn raw(connection: &Connection, request: Vec<u8>) -> Result<Vec<u8>, CallError> {
    let call = connection.open_raw(&rxafs::PACKAGE, request.into(), CallOptions::default());
    let mut call = call?;
    let mut reply = Vec::new();
    while let Some(chunk) = call.read_chunk().await? {
        reply.extend_from_slice(&chunk);
    }
    Ok(reply)
}

/// Runs a test's body with a cell, client machines of it, and a file in the scratch volume. The
/// first machine has just created the file.
pub(crate) fn with_file<const N: usize>(body: impl AsyncFnOnce(&Cell, &[Machine; N], Fid)) {
    let cell = Cell::start();
    let machines = std::array::from_fn(|at| Machine::new(&cell, at as u8 + 1));
    run(async {
        let fid = machines[0].create(Fid::root(OPEN), "f").await;
        body(&cell, &machines, fid).await;
    });
}

/// Runs a test's body, which must end within a minute.
pub(crate) fn run<T>(body: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        match tokio::time::timeout(Duration::from_secs(60), body).await {
            Ok(outcome) => outcome,
            Err(_) => {
                // No panic: a shard that hangs would block the shutdown of the runtime.
                eprintln!("the test hangs");
                std::process::abort();
            }
        }
    })
}
