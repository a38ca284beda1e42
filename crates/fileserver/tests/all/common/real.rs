//! Real object storage devices, on disks in memory, for one or two file servers of a test; and the
//! servers' view of the cell.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cellar_auth::capability::CapabilityKeys;
use cellar_auth::{Authority, Enctype, SecretKey};
use cellar_fileserver::protection::BoxFuture;
use cellar_fileserver::{CellServer, CellServers, Family, FamilySite, ObjectConfig, Upkeep};
use cellar_objects::{Devices, words_of};
use cellar_osd::OsdServer;
use cellar_rpc::{CallError, Connection, Port, PortConfig, Runtime, RuntimeConfig};
use cellar_until::{PATIENCE, until};
use cellar_volume::Options;
use cellar_volume::disk::SimDisk;
use cellar_volume::objects::ObjectStore;
use cellar_wire::ids::{AfsUuid, Fid, VolumeId};
use cellar_wire::object::{CapabilityBody, ObjectId};
use cellar_wire::osd::ObjectInfo;
use cellar_wire::osddb::{OsdEntry, OsdListed, OsdState};
use cellar_wire::{AbortCode, AfsString};
use parking_lot::Mutex;

use super::osds::{Database, THRESHOLD, layout, set_policy};
use super::{Cell, Machine, NOW, OPEN, stated, store_within, uuid};

/// A device and its server.
pub(crate) struct Device {
    pub(crate) id: u32,
    pub(crate) disk: SimDisk,
    store: Option<ObjectStore>,
    running: Option<(OsdServer, Port)>,
    address: SocketAddr,
    flags: u32,
}

/// All devices of a cell.
pub(crate) struct RealOsds {
    runtime: Runtime,
    devices: Mutex<BTreeMap<u32, Device>>,
    authority: Authority,
    keys: Arc<CapabilityKeys>,
    _directory: tempfile::TempDir,
    pub(crate) database: Arc<Database>,
    known: Mutex<Vec<Devices>>,
    /// Databases that receive the heartbeats of devices started from now on. A device with a silent
    /// database keeps removed objects.
    pub(crate) databases: Mutex<Vec<SocketAddr>>,
}

fn clock() -> Duration {
    Duration::from_secs(NOW)
}

impl RealOsds {
    /// Starts `count` devices, with numbers from 2, and sets policies by number and text.
    pub(crate) fn start(count: u32, policies: &[(u32, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::open(directory.path(), "test.cell").unwrap();
        let key = SecretKey::new(Enctype::Aes256Sha1, &[7; 32]).unwrap();
        authority.keys().add(1, &key).unwrap();
        let keys = Arc::new(CapabilityKeys::open(directory.path(), &authority).unwrap());
        let runtime = Runtime::start(RuntimeConfig {
            shards: 1,
            name: "osds".into(),
            ..RuntimeConfig::default()
        });
        let osds = Self {
            runtime: runtime.unwrap(),
            devices: Mutex::default(),
            authority,
            keys,
            _directory: directory,
            database: Arc::new(Database::default()),
            known: Mutex::default(),
            databases: Mutex::default(),
        };
        osds.database.set_policies(policies);
        for id in 2..2 + count {
            osds.add(id);
        }
        osds
    }

    /// One more device.
    pub(crate) fn add(&self, id: u32) {
        let device = Device {
            id,
            disk: SimDisk::new(256 << 20),
            store: None,
            running: None,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            flags: 0,
        };
        self.devices.lock().insert(id, device);
        self.start_device(id);
    }

    /// Starts the server of a device, at a free port.
    pub(crate) fn start_device(&self, id: u32) {
        {
            let mut devices = self.devices.lock();
            let device = devices.get_mut(&id).unwrap();
            let options = Options {
                journal_bytes: 1 << 20,
                reserve_bytes: 1 << 20,
                ..Options::default()
            };
            let store = ObjectStore::open(Arc::new(device.disk.clone()), options).unwrap();
            let mut config =
                cellar_osd::Config::new(self.authority.clone(), self.keys.clone(), clock);
            config.scrub_rate = 0;
            config.databases.clone_from(&self.databases.lock());
            let server = OsdServer::new(config, vec![(id, store.clone())]);
            let at = PortConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
            let at = at.service(server.service());
            let at = at.security(2, self.authority.server_security());
            let port = self.runtime.open(at).unwrap();
            device.address = port.local_address();
            server.start(&self.runtime, &port);
            device.store = Some(store);
            device.running = Some((server, port));
        }
        self.tell();
    }

    /// Stops the server of a device. With `told`, the list says so; otherwise callers wait in vain
    /// for an answer.
    pub(crate) fn stop_device(&self, id: u32, told: bool) {
        {
            let mut devices = self.devices.lock();
            let device = devices.get_mut(&id).unwrap();
            let (server, port) = device.running.take().unwrap();
            port.close();
            server.stop().unwrap();
            device.store = None;
        }
        if told {
            self.tell();
        }
    }

    /// Simulates a power failure of a device's machine, and starts it again.
    pub(crate) fn crash_device(&self, id: u32, seed: u64) {
        {
            let mut devices = self.devices.lock();
            let device = devices.get_mut(&id).unwrap();
            let (server, port) = device.running.take().unwrap();
            port.close();
            let left = device.disk.power_cut(Some(seed));
            server.stop().unwrap();
            device.store = None;
            device.disk = left;
        }
        self.start_device(id);
    }

    /// Sets the flags of a device in the database.
    pub(crate) fn mark(&self, id: u32, flags: u32) {
        self.devices.lock().get_mut(&id).unwrap().flags = flags;
        self.tell();
    }

    /// Updates the list of the database, and the lists of the servers that use it.
    fn tell(&self) {
        let devices = self.devices.lock();
        let mut listed: Vec<OsdListed> = devices.values().map(listed).collect();
        drop(devices);
        listed.push(OsdListed {
            entry: OsdEntry {
                id: 1,
                max_size: THRESHOLD,
                ..OsdEntry::default()
            },
            ..OsdListed::default()
        });
        self.database.listed.lock().clone_from(&listed);
        for known in self.known.lock().iter() {
            known.update(&listed);
        }
    }

    /// Examines the store of a running device.
    pub(crate) fn with<T>(&self, id: u32, look: impl FnOnce(&ObjectStore) -> T) -> T {
        let store = self.devices.lock()[&id].store.clone();
        look(&store.unwrap())
    }

    /// The disk of a device.
    pub(crate) fn disk(&self, id: u32) -> SimDisk {
        self.devices.lock()[&id].disk.clone()
    }

    /// The objects of a running device.
    pub(crate) fn objects(&self, id: u32) -> Vec<ObjectInfo> {
        self.with(id, |store| {
            let (found, more) = store.list(0, ObjectId::default(), 100_000, false).unwrap();
            assert!(!more);
            found
        })
    }

    /// The numbers of the running devices.
    pub(crate) fn ids(&self) -> Vec<u32> {
        let devices = self.devices.lock();
        let running = devices.values().filter(|device| device.running.is_some());
        running.map(|device| device.id).collect()
    }

    /// The numbers of objects and versions on all running devices.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let (mut objects, mut versions) = (0, 0);
        for id in self.ids() {
            for info in self.objects(id) {
                objects += 1;
                versions += info.versions.len();
            }
        }
        (objects, versions)
    }

    /// Makes a file server use these devices.
    pub(crate) fn serve(&self, cell: &Cell) {
        let keys = self.keys.clone();
        let config = ObjectConfig {
            cell: AfsString::new("test.cell").unwrap(),
            devices: self.database.clone(),
            policies: self.database.clone(),
            seal: Arc::new(move |body: &CapabilityBody| keys.seal(body).unwrap()),
            location: String::new(),
            owner: String::new(),
        };
        let devices = cell.server.use_objects(&cell.runtime, &cell.port, config);
        self.known.lock().push(devices);
        self.tell();
    }
}

fn listed(device: &Device) -> OsdListed {
    let mut entry = OsdEntry {
        id: device.id,
        port: u32::from(device.address.port()),
        allocation_priority: 64,
        read_priority: 64,
        flags: device.flags,
        ..OsdEntry::default()
    };
    entry.addresses.push(words_of(device.address.ip())).unwrap();
    let state = OsdState {
        id: device.id,
        total: 1 << 40,
        free: 1 << 39,
        writable: true,
        silence: 0,
        ..OsdState::default()
    };
    OsdListed {
        entry,
        state,
        dead: device.running.is_none(),
    }
}

/// The location database of a test, and connections to its file servers: number n is at 192.0.2.n.
#[derive(Default)]
pub(crate) struct Servers {
    servers: Mutex<Vec<(CellServer, Connection)>>,
    families: Mutex<HashMap<VolumeId, Family>>,
    /// Whether all entries are locked.
    pub(crate) locked: AtomicBool,
}

impl Servers {
    pub(crate) fn address(number: u8) -> IpAddr {
        Ipv4Addr::new(192, 0, 2, number).into()
    }

    /// Adds a file server, by number, with the connection to it.
    pub(crate) fn add(&self, number: u8, uuid: AfsUuid, connection: Connection) {
        let server = CellServer {
            uuid: Some(uuid),
            addresses: vec![Self::address(number)],
        };
        self.servers.lock().push((server, connection));
    }

    /// Replaces the connection to a file server.
    pub(crate) fn replace(&self, number: u8, connection: Connection) {
        let mut servers = self.servers.lock();
        let address = Self::address(number);
        let known = servers
            .iter_mut()
            .find(|(s, _)| s.addresses.contains(&address));
        known.unwrap().1 = connection;
    }

    /// Sets the sites of the volumes of a family: numbers of servers, and volumes.
    pub(crate) fn place(&self, head: VolumeId, sites: &[(u8, VolumeId)]) {
        let sites = sites.iter().map(|(number, volume)| FamilySite {
            server: Self::address(*number),
            volumes: vec![*volume],
            read_write: *volume == head,
        });
        let family = Family {
            sites: sites.collect(),
            locked: false,
        };
        self.families.lock().insert(head, family);
    }

    /// Removes the entry.
    pub(crate) fn forget(&self, head: VolumeId) {
        self.families.lock().remove(&head);
    }
}

impl CellServers for Servers {
    fn servers(&self) -> BoxFuture<'_, Result<Vec<CellServer>, CallError>> {
        let servers = self.servers.lock();
        let all = servers.iter().map(|(server, _)| server.clone()).collect();
        drop(servers);
        Box::pin(async move { Ok(all) })
    }

    fn family(&self, volume: VolumeId) -> BoxFuture<'_, Result<Option<Family>, CallError>> {
        let mut family = self.families.lock().get(&volume).cloned();
        if let Some(family) = &mut family {
            family.locked = self.locked.load(Ordering::Relaxed);
        }
        Box::pin(async move { Ok(family) })
    }

    fn connection(&self, server: IpAddr) -> Connection {
        let servers = self.servers.lock();
        let known = servers.iter().find(|(s, _)| s.addresses.contains(&server));
        known.unwrap().1.clone()
    }
}

/// Settings without delays, and without work that no test requested.
pub(crate) fn upkeep(servers: &Arc<Servers>) -> Upkeep {
    Upkeep {
        grace: Duration::from_secs(3600),
        collect_interval: Duration::ZERO,
        repair_delay: Duration::ZERO,
        repair_rate: 0,
        damage_interval: Duration::from_millis(100),
        look_interval: Duration::from_secs(3600),
        ..Upkeep::new(servers.clone())
    }
}

/// The connection of another server of the cell to the object service of a file server.
pub(crate) fn superuser(cell: &Cell) -> Connection {
    let server = cellar_auth::Principal {
        key_holder: true,
        ..stated::user("afs")
    };
    let service = cellar_wire::afsosd::PACKAGE.service_id;
    let security = stated::security(server);
    let connection = cell.runtime.connect(cell.address(), service, security);
    connection.unwrap()
}

/// StoreData64; retried while another store is in progress, as clients do.
pub(crate) async fn store_patiently(
    machine: &Machine,
    fid: Fid,
    position: u64,
    bytes: &[u8],
    file_length: u64,
) -> Result<(), CallError> {
    loop {
        match store_within(machine, fid, position, bytes, file_length).await {
            // A client repeats the call after a pause.
            Err(CallError::Aborted(AbortCode::VBUSY)) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            done => return done.map(drop),
        }
    }
}

/// Runs a test's body, which waits for many steps.
pub(crate) fn patiently<T>(body: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        match tokio::time::timeout(PATIENCE * 4, body).await {
            Ok(outcome) => outcome,
            Err(_) => {
                // No panic: a shard that hangs would block the shutdown of the runtime.
                eprintln!("the test hangs");
                std::process::abort();
            }
        }
    })
}

/// A file server that stores the files of [`OPEN`] on these devices, by policy 2, and maintains
/// them; with a client machine and an administrator.
pub(crate) fn keeps_on(
    osds: &RealOsds,
    change: impl FnOnce(&mut Upkeep),
) -> (Cell, Machine, Connection) {
    let cell = Cell::start();
    osds.serve(&cell);
    let servers = Arc::new(Servers::default());
    let admin = superuser(&cell);
    servers.add(1, uuid(0xfe), admin.clone());
    servers.place(OPEN, &[(1, OPEN)]);
    let mut upkeep = upkeep(&servers);
    change(&mut upkeep);
    cell.server.keep_objects(&cell.runtime, upkeep);
    let machine = Machine::new(&cell, 1);
    set_policy(&cell, OPEN, 2);
    (cell, machine, admin)
}

/// Waits until a server has loaded the policies: stores the same small file until it is in objects.
/// Returns the file.
pub(crate) async fn knows_policies(cell: &Cell, machine: &Machine) -> Fid {
    let fid = machine.create(Fid::root(OPEN), "probe").await;
    until("policies are known", async || {
        let stored = store_patiently(machine, fid, 0, b"probe", 0).await;
        stored.unwrap();
        layout(cell, fid).is_some()
    })
    .await;
    fid
}
