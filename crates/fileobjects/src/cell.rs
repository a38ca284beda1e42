//! The view of the cell that this server needs to collect garbage and to repair objects.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cellar_rpc::{CallError, Connection};
use cellar_wire::ids::{AfsUuid, VolumeId};

/// A future of a call to another server.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A file server that the volume location database knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellServer {
    /// Its UUID; `None` if it has not registered.
    pub uuid: Option<AfsUuid>,
    /// Its addresses; at least one.
    pub addresses: Vec<IpAddr>,
}

/// A site of the volumes of a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FamilySite {
    /// An address of the file server.
    pub server: IpAddr,
    /// Volumes that must be on this site.
    pub volumes: Vec<VolumeId>,
    /// Whether the RW volume is on this site.
    pub read_write: bool,
}

/// The entry of the volume location database for an RW volume, its backup and its read-only
/// volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    /// The sites, in the order of the entry.
    pub sites: Vec<FamilySite>,
    /// Whether an operation is in progress: the volume is moved, released or dumped.
    pub locked: bool,
}

/// The volume location database, and the other file servers.
pub trait CellServers: Send + Sync + 'static {
    /// All file servers of the cell.
    fn servers(&self) -> BoxFuture<'_, Result<Vec<CellServer>, CallError>>;
    /// The sites of the volumes of a family, by the RW volume's id; `None` if there is no entry.
    fn family(&self, volume: VolumeId) -> BoxFuture<'_, Result<Option<Family>, CallError>>;
    /// A connection to the object service (AFSOSD) of the file server at an address, as a
    /// superuser.
    fn connection(&self, server: IpAddr) -> Connection;
}

/// Settings for the maintenance of objects.
#[derive(Clone)]
pub struct Upkeep {
    /// The cell.
    pub servers: Arc<dyn CellServers>,
    /// Least age of garbage at which it is collected, from its last write.
    pub grace: Duration,
    /// Time between two rounds of garbage collection; zero: only on request.
    pub collect_interval: Duration,
    /// How long a device may be missing before its objects are rebuilt elsewhere.
    pub repair_delay: Duration,
    /// Bytes per second that repairs copy; 0: no limit.
    pub repair_rate: u64,
    /// Time between two questions to devices about damaged objects.
    pub damage_interval: Duration,
    /// Time between two examinations of all files.
    pub look_interval: Duration,
}

impl Upkeep {
    /// The default settings: a grace of one day, hourly rounds, ten minutes before a rebuild, and
    /// up to 64 MiB per second.
    #[must_use]
    pub fn new(servers: Arc<dyn CellServers>) -> Self {
        Self {
            servers,
            grace: Duration::from_secs(86_400),
            collect_interval: Duration::from_secs(3600),
            repair_delay: Duration::from_secs(600),
            repair_rate: 64 << 20,
            damage_interval: Duration::from_secs(30),
            look_interval: Duration::from_secs(3600),
        }
    }
}

impl std::fmt::Debug for Upkeep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Upkeep")
    }
}
