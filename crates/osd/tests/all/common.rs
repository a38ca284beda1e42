//! Two servers with one device each, one in memory and one on the machine's disk, and their
//! callers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use cellar_auth::capability::CapabilityKeys;
use cellar_auth::{Authority, Enctype, Level, SecretKey};
use cellar_osd::{Config, OsdServer};
use cellar_rpc::{CallError, Connection, PortConfig, Runtime, RuntimeConfig, Security};
use cellar_volume::Options;
use cellar_volume::disk::{Disk, FileDisk, SimDisk};
use cellar_volume::objects::ObjectStore;
use cellar_wire::ids::{Uniquifier, VnodeId, VolumeId};
use cellar_wire::object::{Capability, CapabilityBody, ObjectId};
use cellar_wire::osd::{self, Read, ReadReply, Write, WriteReply};

pub(crate) struct Cell {
    runtime: Runtime,
    servers: Vec<OsdServer>,
    _directory: tempfile::TempDir,
    pub(crate) keys: CapabilityKeys,
    /// The disk of the first device.
    pub(crate) disk: SimDisk,
    /// Connections to the servers of devices 1 and 2.
    pub(crate) osd: Connection,
    pub(crate) second: Connection,
    /// Connection to the first server, with a ticket.
    pub(crate) superuser: Connection,
}

pub(crate) fn clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

pub(crate) fn id(serial: u32) -> ObjectId {
    ObjectId {
        volume: VolumeId(536_870_912),
        vnode: VnodeId(4),
        uniquifier: Uniquifier(5),
        serial,
    }
}

/// A capability body that permits everything on that object to any caller.
pub(crate) fn body(osd: u32, object: ObjectId, rights: u32) -> CapabilityBody {
    CapabilityBody {
        cell: Default::default(),
        osd,
        object,
        rights,
        base: 0,
        version: 0,
        begin: 0,
        end: u64::MAX,
        expires: clock().as_secs() + 600,
        clients: Default::default(),
        user: 1,
    }
}

pub(crate) fn capability_for(keys: &CapabilityKeys, body: &CapabilityBody) -> Capability {
    keys.seal(body).unwrap()
}

pub(crate) fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length)
        .map(|n| (n / 7) as u8 ^ (n >> 12) as u8 ^ seed)
        .collect()
}

impl Cell {
    pub(crate) fn start() -> Self {
        Self::start_with(Vec::new())
    }

    /// Starts servers that send heartbeats to these databases.
    pub(crate) fn start_with(databases: Vec<SocketAddr>) -> Self {
        Self::start_as(|config| config.databases.clone_from(&databases))
    }

    /// Starts servers with these settings.
    pub(crate) fn start_as(set: impl Fn(&mut Config)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::open(directory.path(), "example.org").unwrap();
        let key = SecretKey::new(Enctype::Aes256Sha1, &[7; 32]).unwrap();
        authority.keys().add(1, &key).unwrap();
        let open_keys = || CapabilityKeys::open(directory.path(), &authority).unwrap();
        let runtime = Runtime::start(RuntimeConfig {
            shards: 1,
            ..RuntimeConfig::default()
        })
        .unwrap();
        let (mut servers, mut connections) = (Vec::new(), Vec::new());
        let memory = SimDisk::new(256 << 20);
        let real = FileDisk::open(directory.path().join("device2")).unwrap();
        let disks: [Arc<dyn Disk>; 2] = [Arc::new(memory.clone()), real];
        for (device, disk) in (1..).zip(disks) {
            let store = ObjectStore::open(disk, Options::default()).unwrap();
            let mut config = Config::new(authority.clone(), Arc::new(open_keys()), clock);
            set(&mut config);
            let server = OsdServer::new(config, vec![(device, store)]);
            let address = SocketAddr::from(([127, 0, 0, 1], 0));
            let port = PortConfig::new(address).service(server.service());
            let port = runtime
                .open(port.security(2, authority.server_security()))
                .unwrap();
            server.start(&runtime, &port);
            let connect = |security| {
                let peer = port.local_address();
                runtime
                    .connect(peer, osd::PACKAGE.service_id, security)
                    .unwrap()
            };
            connections.push(connect(Security::null()));
            connections.push(connect(authority.localauth(Level::Crypt).unwrap()));
            servers.push(server);
        }
        Self {
            keys: open_keys(),
            runtime,
            servers,
            _directory: directory,
            disk: memory,
            osd: connections[0].clone(),
            superuser: connections[1].clone(),
            second: connections[2].clone(),
        }
    }

    /// Runs a test, and stops everything.
    pub(crate) fn run(self, test: impl AsyncFnOnce(&Self)) {
        for stopped in self.run_and_stop(test) {
            stopped.unwrap();
        }
    }

    /// The same for a test after which the first device cannot be closed cleanly.
    pub(crate) fn run_till_a_disk_fails(self, test: impl AsyncFnOnce(&Self)) {
        let stopped = self.run_and_stop(test);
        assert!(stopped[0].is_err(), "the first device's disk did not fail");
        stopped[1].as_ref().unwrap();
    }

    fn run_and_stop(self, test: impl AsyncFnOnce(&Self)) -> Vec<cellar_volume::Result<()>> {
        let threads = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        threads.unwrap().block_on(test(&self));
        self.runtime.shutdown();
        self.servers.iter().map(OsdServer::stop).collect()
    }

    pub(crate) async fn write(
        &self,
        capability: &Capability,
        object: ObjectId,
        base: u64,
        version: u64,
        position: u64,
        bytes: &[u8],
    ) -> Result<(), CallError> {
        write(
            &self.osd,
            capability,
            object,
            (base, version),
            position,
            bytes,
        )
        .await
    }

    pub(crate) async fn read(
        &self,
        capability: &Capability,
        object: ObjectId,
        version: u64,
        position: u64,
        length: u64,
    ) -> Result<Vec<u8>, CallError> {
        read(&self.osd, capability, object, version, position, length).await
    }
}

pub(crate) async fn write(
    connection: &Connection,
    capability: &Capability,
    object: ObjectId,
    (base, version): (u64, u64),
    position: u64,
    bytes: &[u8],
) -> Result<(), CallError> {
    let arguments = Write {
        capability: capability.clone(),
        object,
        base,
        version,
        position,
        length: bytes.len() as u64,
    };
    let mut call = connection.open(&arguments).await?;
    // After the call has failed, the rest is dropped.
    let _failed = call.write(Bytes::copy_from_slice(bytes)).await;
    call.finish();
    let reply: WriteReply = call.results().await?;
    assert_eq!(reply.length, bytes.len() as u64);
    Ok(())
}

pub(crate) async fn read(
    connection: &Connection,
    capability: &Capability,
    object: ObjectId,
    version: u64,
    position: u64,
    length: u64,
) -> Result<Vec<u8>, CallError> {
    let arguments = Read {
        capability: capability.clone(),
        object,
        version,
        position,
        length,
    };
    let mut call = connection.open(&arguments).await?;
    let length: u64 = call.read().await?;
    let mut bytes = Vec::new();
    call.read_exact(length, |piece| bytes.extend_from_slice(&piece))
        .await?;
    call.results::<ReadReply>().await?;
    Ok(bytes)
}
