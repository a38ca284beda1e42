//! Simulated volume servers: AFSVol over Rx as OpenAFS's and Cellar's volume servers implement it,
//! with volumes that are a few numbers. A test can crash a server between two calls, which ends its
//! transactions, and restart it. The location server is the real one.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};

use cellar_admin::vos::{CreateOptions, Location, Volumes};
use cellar_celldb::Embedded;
use cellar_client::{Administrator, Cell, CellName, Client, Config, Ports};
use cellar_dbserver::{Vl, VlService};
use cellar_rpc::{
    IncomingCall, LocalBoxFuture, PortConfig, Runtime, RuntimeConfig, Service, local,
};
use cellar_wire::afsvol::{self, *};
use cellar_wire::{
    AbortCode, AfsTime, List, Package, PartitionId, Procedure, VolumeId, WordString, vl,
};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The code that a caller of a crashed server gets.
const GONE: AbortCode = AbortCode::RX_CALL_DEAD;

/// Counter for the ports of this process's worlds; the volume port is the third after the base.
static BASES: AtomicU16 = AtomicU16::new(0);

/// A simulated volume: for each vnode, its version and the time of its last write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PaperVolume {
    pub(crate) name: String,
    pub(crate) volume_type: i32,
    pub(crate) parent: VolumeId,
    pub(crate) clone: VolumeId,
    pub(crate) backup: VolumeId,
    pub(crate) contents: BTreeMap<u32, (u32, u32)>,
    pub(crate) in_service: bool,
    pub(crate) destroy_me: bool,
    pub(crate) created: u32,
    pub(crate) updated: u32,
}

#[derive(Clone, Copy)]
struct Transaction {
    partition: i32,
    volume: VolumeId,
    used: u32,
}

#[derive(Default)]
struct State {
    volumes: BTreeMap<(i32, VolumeId), PaperVolume>,
    transactions: HashMap<i32, Transaction>,
    last: i32,
}

/// A volume server.
pub(crate) struct Paper {
    address: Ipv4Addr,
    world: Arc<Shared>,
    state: Mutex<State>,
    down: AtomicBool,
    /// Behaves as Cellar's server, not as OpenAFS's.
    cellar: bool,
}

#[derive(Default)]
struct Shared {
    clock: AtomicU32,
    /// The size of every volume.
    kib: AtomicU32,
    servers: Mutex<HashMap<Ipv4Addr, Arc<Paper>>>,
    cut: Mutex<Option<Cut>>,
}

/// The death of a client between two of its calls. The server executes `left` more calls. It does
/// not answer the last one, and notifies `dead`. It does not execute later calls.
struct Cut {
    left: usize,
    dead: Arc<Notify>,
}

impl Paper {
    /// Ends all transactions, and answers no calls until the restart.
    pub(crate) fn crash(&self) {
        self.down.store(true, Ordering::SeqCst);
        self.state.lock().transactions.clear();
    }

    pub(crate) fn start(&self) {
        self.down.store(false, Ordering::SeqCst);
    }

    pub(crate) fn volumes(&self) -> BTreeMap<(i32, VolumeId), PaperVolume> {
        self.state.lock().volumes.clone()
    }

    /// The open transactions, as partition and volume.
    pub(crate) fn transactions(&self) -> Vec<(i32, VolumeId)> {
        let state = self.state.lock();
        let open = state.transactions.values();
        open.map(|open| (open.partition, open.volume)).collect()
    }

    /// Adds a volume that the VLDB does not name.
    pub(crate) fn insert(&self, partition: i32, volume: VolumeId, name: &str) {
        let stray = PaperVolume {
            name: name.to_owned(),
            volume_type: afsvol::READWRITE,
            parent: volume,
            in_service: true,
            ..PaperVolume::default()
        };
        let mut state = self.state.lock();
        state.volumes.insert((partition, volume), stray);
    }

    /// Simulates a client's write to a vnode.
    pub(crate) fn write(&self, partition: i32, volume: VolumeId, vnode: u32) {
        let now = self.world.clock.fetch_add(10, Ordering::SeqCst) + 10;
        let mut state = self.state.lock();
        let volume = state.volumes.get_mut(&(partition, volume)).unwrap();
        volume.contents.insert(vnode, (now, now));
        volume.updated = now;
    }

    /// Simulates a restore to an earlier state, with these dates of creation and update.
    pub(crate) fn restore(
        &self,
        partition: i32,
        volume: VolumeId,
        contents: BTreeMap<u32, (u32, u32)>,
        (created, updated): (u32, u32),
    ) {
        let mut state = self.state.lock();
        let volume = state.volumes.get_mut(&(partition, volume)).unwrap();
        (volume.contents, volume.created, volume.updated) = (contents, created, updated);
    }

    fn now(&self) -> u32 {
        self.world.clock.load(Ordering::SeqCst)
    }

    fn begin(&self, state: &mut State, partition: i32, volume: VolumeId) -> Result<i32, AbortCode> {
        let busy = |open: &Transaction| open.partition == partition && open.volume == volume;
        if state.transactions.values().any(busy) {
            return Err(AbortCode::VOLSERVOLBUSY);
        }
        state.last += 1;
        let used = self.now();
        state.transactions.insert(
            state.last,
            Transaction {
                partition,
                volume,
                used,
            },
        );
        Ok(state.last)
    }

    /// Runs work on a transaction's volume.
    fn within<T>(
        &self,
        trans: i32,
        work: impl FnOnce(&mut PaperVolume, VolumeId) -> Result<T, AbortCode>,
    ) -> Result<T, AbortCode> {
        let mut state = self.state.lock();
        let open = state.transactions.get_mut(&trans);
        let open = open.ok_or(AbortCode::ENOENT)?;
        open.used += 1;
        let open = *open;
        let volume = state.volumes.get_mut(&(open.partition, open.volume));
        work(volume.ok_or(AbortCode::ENOENT)?, open.volume)
    }

    fn info(&self, state: &State, partition: i32, id: VolumeId) -> Option<afsvol::VolumeInfo> {
        let volume = state.volumes.get(&(partition, id))?;
        // OpenAFS's servers cannot attach a volume that is marked for destruction.
        if volume.destroy_me && !self.cellar {
            return Some(afsvol::VolumeInfo {
                volume: id,
                ..Default::default()
            });
        }
        Some(afsvol::VolumeInfo {
            name: WordString::try_from(volume.name.as_str()).unwrap(),
            volume: id,
            volume_type: volume.volume_type,
            backup: volume.backup,
            parent: volume.parent,
            clone: volume.clone,
            status: STATUS_OK,
            in_use: volume.in_service.into(),
            destroy_me: if volume.destroy_me { DESTROY_ME } else { 0 },
            creation_date: AfsTime(volume.created),
            update_date: AfsTime(volume.updated),
            size: self.world.kib.load(Ordering::SeqCst) as i32,
            ..Default::default()
        })
    }

    /// Applies a dump since a date to another volume.
    fn forward(&self, call: &Forward) -> Result<(), AbortCode> {
        let source = self.within(call.from_trans, |volume, _| Ok(volume.clone()))?;
        let other = self.world.servers.lock();
        let other = other
            .get(&Ipv4Addr::from(call.destination.host))
            .ok_or(GONE)?
            .clone();
        if other.down.load(Ordering::SeqCst) {
            return Err(GONE);
        }
        other.within(call.dest_trans, |volume, _| {
            let since = call.from_date as u32;
            if since == 0 {
                volume.contents.clear();
            }
            for (vnode, (version, written)) in &source.contents {
                if *written >= since {
                    volume.contents.insert(*vnode, (*version, *written));
                }
            }
            volume
                .contents
                .retain(|vnode, _| source.contents.contains_key(vnode));
            // The tests should detect an incremental dump onto a wrong base.
            volume.created = source.created;
            volume.updated = source.updated;
            Ok(())
        })
    }

    fn answer(&self, request: Request) -> Result<Reply, AbortCode> {
        if self.down.load(Ordering::SeqCst) {
            return Err(GONE);
        }
        let now = self.now();
        let reply = match request {
            Request::GetCapabilities(_) if self.cellar => Reply::new(&GetCapabilitiesReply {
                version: 1,
                capabilities: 0,
            }),
            Request::TransCreate(call) => {
                let mut state = self.state.lock();
                if !state.volumes.contains_key(&(call.partition, call.volume)) {
                    return Err(AbortCode::VNOVOL);
                }
                let trans = self.begin(&mut state, call.partition, call.volume)?;
                Reply::new(&TransCreateReply { trans })
            }
            Request::CreateVolume(call) => {
                let mut state = self.state.lock();
                if state.volumes.contains_key(&(call.partition, call.volume)) {
                    return Err(AbortCode::EIO);
                }
                let trans = self.begin(&mut state, call.partition, call.volume)?;
                let volume = PaperVolume {
                    name: call.name.to_string(),
                    volume_type: call.volume_type,
                    parent: match call.parent {
                        VolumeId(0) => call.volume,
                        parent => parent,
                    },
                    destroy_me: true,
                    created: now,
                    updated: now,
                    ..PaperVolume::default()
                };
                state.volumes.insert((call.partition, call.volume), volume);
                Reply::new(&CreateVolumeReply {
                    volume: call.volume,
                    trans,
                })
            }
            Request::EndTrans(call) => {
                let ended = self.state.lock().transactions.remove(&call.trans);
                ended.ok_or(AbortCode::ENOENT)?;
                Reply::new(&EndTransReply { rcode: 0 })
            }
            Request::SetFlags(call) => {
                self.within(call.trans, |volume, _| {
                    volume.destroy_me = call.flags & VT_DELETE_ON_SALVAGE != 0;
                    volume.in_service = call.flags & VT_OUT_OF_SERVICE == 0 && !volume.destroy_me;
                    Ok(())
                })?;
                Reply::new(&SetFlagsReply {})
            }
            Request::SetInfo(call) => {
                self.within(call.trans, |_, _| Ok(()))?;
                Reply::new(&SetInfoReply {})
            }
            Request::SetForwarding(call) => {
                self.within(call.trans, |_, _| Ok(()))?;
                Reply::new(&SetForwardingReply {})
            }
            Request::SetIdsTypes(call) => {
                self.within(call.trans, |volume, _| {
                    volume.name = call.name.to_string();
                    volume.volume_type = call.volume_type;
                    volume.parent = call.parent;
                    Ok(())
                })?;
                Reply::new(&SetIdsTypesReply {})
            }
            Request::GetName(call) => {
                let name = self.within(call.trans, |volume, _| Ok(volume.name.clone()))?;
                Reply::new(&GetNameReply {
                    name: name.try_into().unwrap(),
                })
            }
            Request::GetStatus(call) => {
                let status = self.within(call.trans, |volume, id| {
                    Ok(VolserStatus {
                        volume: id,
                        volume_type: volume.volume_type,
                        parent: volume.parent,
                        clone: volume.clone,
                        backup: volume.backup,
                        creation_date: AfsTime(volume.created),
                        update_date: AfsTime(volume.updated),
                        ..Default::default()
                    })
                })?;
                Reply::new(&GetStatusReply { status })
            }
            Request::DeleteVolume(call) => {
                let mut state = self.state.lock();
                let open = *state
                    .transactions
                    .get(&call.trans)
                    .ok_or(AbortCode::ENOENT)?;
                state.volumes.remove(&(open.partition, open.volume));
                Reply::new(&DeleteVolumeReply {})
            }
            Request::Clone(call) => {
                let mut clone = self.within(call.trans, |volume, id| {
                    if call.new_type == READONLY {
                        volume.clone = call.new_volume;
                    }
                    Ok(PaperVolume {
                        name: call.new_name.to_string(),
                        volume_type: call.new_type,
                        parent: id,
                        in_service: false,
                        destroy_me: true,
                        ..volume.clone()
                    })
                })?;
                clone.created = self.world.clock.fetch_add(1, Ordering::SeqCst) + 1;
                let mut state = self.state.lock();
                let partition = state.transactions[&call.trans].partition;
                if state.volumes.contains_key(&(partition, call.new_volume)) {
                    return Err(AbortCode::VVOLEXISTS);
                }
                state.volumes.insert((partition, call.new_volume), clone);
                Reply::new(&CloneReply {
                    new_volume: call.new_volume,
                })
            }
            Request::ReClone(call) => {
                let (contents, updated) = self.within(call.trans, |volume, _| {
                    Ok((volume.contents.clone(), volume.updated))
                })?;
                let created = self.world.clock.fetch_add(1, Ordering::SeqCst) + 1;
                let mut state = self.state.lock();
                let partition = state.transactions[&call.trans].partition;
                let clone = state.volumes.get_mut(&(partition, call.clone));
                let clone = clone.ok_or(AbortCode::VNOVOL)?;
                (clone.contents, clone.updated, clone.created) = (contents, updated, created);
                Reply::new(&ReCloneReply {})
            }
            Request::Forward(call) => {
                self.forward(&call)?;
                Reply::new(&ForwardReply {})
            }
            Request::ListOneVolume(call) => {
                let state = self.state.lock();
                let info = self.info(&state, call.partition, call.volume);
                let info = info.ok_or(AbortCode::ENODEV)?;
                Reply::new(&ListOneVolumeReply {
                    entries: List::from_iter_cut([info]),
                })
            }
            Request::XListPartitions(_) => Reply::new(&XListPartitionsReply {
                partitions: List::from_iter_cut([0, 1]),
            }),
            Request::PartitionInfo64(call) => Reply::new(&PartitionInfo64Reply {
                partition: DiskPartition64 {
                    name: WordString::new(call.name.as_bytes()).unwrap(),
                    free: 1_000_000,
                    min_free: 2_000_000,
                    ..Default::default()
                },
            }),
            Request::Monitor(_) => {
                let state = self.state.lock();
                let entries = state
                    .transactions
                    .iter()
                    .map(|(trans, open)| TransDebugInfo {
                        trans: *trans,
                        time: AfsTime(open.used),
                        volume: open.volume,
                        partition: open.partition,
                        ..Default::default()
                    });
                Reply::new(&MonitorReply {
                    entries: List::from_iter_cut(entries),
                })
            }
            _ => return Err(AbortCode::RXGEN_OPCODE),
        };
        Ok(reply)
    }
}

/// An encoded reply.
struct Reply(bytes::BytesMut);

impl Reply {
    fn new(results: &impl cellar_wire::Encode) -> Self {
        let mut buffer = bytes::BytesMut::new();
        results.encode_to(&mut buffer);
        Self(buffer)
    }
}

macro_rules! requests {
    ($($procedure:ident)*) => {
        enum Request { $($procedure(afsvol::$procedure),)* Other }

        async fn request(opcode: u32, call: &mut IncomingCall) -> Result<Request, AbortCode> {
            $(if opcode == afsvol::$procedure::OPCODE {
                return Ok(Request::$procedure(call.arguments().await?));
            })*
            Ok(Request::Other)
        }
    };
}

requests! {
    GetCapabilities TransCreate CreateVolume EndTrans SetFlags SetInfo SetForwarding SetIdsTypes
    GetName GetStatus DeleteVolume Clone ReClone Forward ListOneVolume XListPartitions PartitionInfo64
    Monitor
}

impl Service for Paper {
    fn package(&self) -> &'static Package {
        &afsvol::PACKAGE
    }

    fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
        Box::pin(async move {
            let opcode = call.opcode().await?;
            let request = request(opcode, call).await?;
            let last = match &mut *self.world.cut.lock() {
                None => None,
                Some(Cut { left, dead }) => {
                    let before = *left;
                    *left = before.saturating_sub(1);
                    (before <= 1).then(|| (before == 1).then(|| dead.clone()))
                }
            };
            match last {
                None => {
                    let reply = self.answer(request)?;
                    call.append(&reply.0);
                    return Ok(());
                }
                Some(Some(dead)) => {
                    let _unheard = self.answer(request);
                    dead.notify_one();
                }
                Some(None) => {}
            }
            std::future::pending().await
        })
    }
}

/// The location server, which a test can make unreachable.
struct Locator {
    service: VlService,
    down: Arc<AtomicBool>,
}

impl Service for Locator {
    fn package(&self) -> &'static Package {
        self.service.package()
    }

    fn call<'a>(&'a self, call: &'a mut IncomingCall) -> LocalBoxFuture<'a, Result<(), AbortCode>> {
        if self.down.load(Ordering::SeqCst) {
            return Box::pin(async { Err(GONE) });
        }
        self.service.call(call)
    }
}

/// Three volume servers, a location server, and a client that is its administrator.
pub(crate) struct World {
    pub(crate) client: Arc<Client>,
    pub(crate) cell: Cell,
    pub(crate) servers: Vec<Arc<Paper>>,
    vldb_down: Arc<AtomicBool>,
    shared: Arc<Shared>,
    _listener: local::Listener,
    _runtimes: [Runtime; 2],
    _directory: tempfile::TempDir,
}

impl World {
    pub(crate) async fn new(cellar: bool) -> Self {
        Self::with(cellar, Vec::new()).await
    }

    /// A world with additional services at the address of the location server.
    pub(crate) async fn with(cellar: bool, more: Vec<Arc<dyn Service>>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = RuntimeConfig {
            shards: 1,
            ..RuntimeConfig::default()
        };
        let runtime = Runtime::start(config).unwrap();
        let shared = Arc::new(Shared::default());
        shared.clock.store(1_000_000, Ordering::SeqCst);
        // The number of servers times the number of worlds is small compared with the ports of
        // loopback addresses.
        let (ports, servers) = loop {
            let base = 20_000 + std::process::id() as u16 % 20_000;
            let base = base + 10 * BASES.fetch_add(1, Ordering::SeqCst);
            let ports = Ports::based_at(base).unwrap();
            let servers: Vec<_> = (2..=4)
                .map(|last| {
                    Arc::new(Paper {
                        address: Ipv4Addr::new(127, 0, 0, last),
                        world: shared.clone(),
                        state: Mutex::default(),
                        down: AtomicBool::new(false),
                        cellar,
                    })
                })
                .collect();
            let open = |paper: &Arc<Paper>| {
                let at = SocketAddr::from((paper.address, ports.volume));
                runtime.open(PortConfig::new(at).service(paper.clone()))
            };
            if servers.iter().all(|paper| open(paper).is_ok()) {
                break (ports, servers);
            }
        };
        for paper in &servers {
            shared.servers.lock().insert(paper.address, paper.clone());
        }
        let db = Arc::new(Embedded::open(&directory.path().join("vl")).unwrap());
        let clock: cellar_dbserver::Clock = Arc::new(|| AfsTime(1_000_000));
        let vldb_down = Arc::new(AtomicBool::new(false));
        let locator: Arc<dyn Service> = Arc::new(Locator {
            service: VlService::new(Arc::new(Vl::open(db, clock).unwrap())),
            down: vldb_down.clone(),
        });
        let socket = directory.path().join("admin");
        let listener = {
            let services = std::iter::once(locator).chain(more).collect();
            local::Listener::bind(&runtime, &socket, services).unwrap()
        };
        let name = CellName::new("paper.cell").unwrap();
        let location = IpAddr::from([127, 0, 0, 1]);
        let cell = Cell {
            name: name.clone(),
            database_servers: vec![location],
            ports,
        };
        let calls = Runtime::client_only().unwrap();
        let administrator = Administrator {
            cell: name,
            addresses: vec![location],
            socket: local::connect(&socket).await.unwrap(),
        };
        let client = Client::new(
            calls.client_port().unwrap(),
            Config {
                cells: vec![cell.clone()],
                administrator: Some(administrator),
                security: HashMap::new(),
                renewal: None,
            },
        )
        .unwrap();
        Self {
            client: Arc::new(client),
            cell,
            servers,
            vldb_down,
            shared,
            _listener: listener,
            _runtimes: [runtime, calls],
            _directory: directory,
        }
    }

    pub(crate) fn volumes(&self) -> Volumes<'_> {
        Volumes::new(&self.client, &self.cell)
    }

    pub(crate) fn place(&self, server: usize, partition: i32) -> Location {
        Location {
            server: self.servers[server].address,
            partition: PartitionId::new(partition).unwrap(),
        }
    }

    /// Creates a read-write volume with contents on the first partition of the first server.
    pub(crate) async fn create(&self, name: &str) -> VolumeId {
        let at = self.place(0, 0);
        let options = CreateOptions {
            quota_kib: 0,
            id: None,
            read_only: None,
            policy: 0,
        };
        let id = self
            .volumes()
            .create(at.server.into(), at.partition, name, options)
            .await
            .unwrap();
        for vnode in 1..5 {
            self.servers[0].write(0, id, vnode);
        }
        id
    }

    /// Sets the size that all volumes report.
    pub(crate) fn set_size(&self, kib: u32) {
        self.shared.kib.store(kib, Ordering::SeqCst);
    }

    /// Makes the location server unreachable, or reachable again.
    pub(crate) fn vldb(&self, down: bool) {
        self.vldb_down.store(down, Ordering::SeqCst);
    }

    /// Every volume of every server: server, partition, id and contents.
    pub(crate) fn all(&self) -> Vec<(usize, i32, VolumeId, PaperVolume)> {
        let mut all = Vec::new();
        for (index, server) in self.servers.iter().enumerate() {
            for ((partition, id), volume) in server.volumes() {
                all.push((index, partition, id, volume));
            }
        }
        all
    }

    /// Kills the client after that many more calls to volume servers, at least one.
    pub(crate) fn cut_after(&self, calls: usize, dead: Arc<Notify>) {
        *self.shared.cut.lock() = Some(Cut { left: calls, dead });
    }

    /// Whether the client was killed by [`World::cut_after`].
    pub(crate) fn is_cut(&self) -> bool {
        matches!(&*self.shared.cut.lock(), Some(cut) if cut.left == 0)
    }

    /// Makes all servers reachable again.
    pub(crate) fn heal(&self) {
        *self.shared.cut.lock() = None;
        self.vldb(false);
        for server in &self.servers {
            server.start();
        }
    }

    pub(crate) async fn entry(&self, name: &str) -> cellar_admin::vos::Entry {
        self.volumes().entry(name).await.unwrap()
    }
}

/// Whether an entry has no mark of an unfinished operation.
pub(crate) fn is_finished(entry: &cellar_admin::vos::Entry) -> bool {
    let marks = vl::VLSF_NEWREPSITE | vl::VLSF_DONTUSE;
    !entry.is_locked()
        && entry.clone == VolumeId(0)
        && entry.sites.iter().all(|site| site.flags & marks == 0)
}
