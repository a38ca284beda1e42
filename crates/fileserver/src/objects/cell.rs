//! The cell, as this server needs it for what it does with objects by itself: collecting garbage and
//! repairing.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use cellar_rpc::{CallError, Connection};
use cellar_wire::ids::{AfsUuid, VolumeId};

use crate::protection::BoxFuture;

/// A file server that the volume location database knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellServer {
    /// Its identity; `None`: it has not registered.
    pub uuid: Option<AfsUuid>,
    /// Its addresses, not none.
    pub addresses: Vec<IpAddr>,
}

/// A place of a volume of a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FamilySite {
    /// An address of the file server.
    pub server: IpAddr,
    /// Volumes that must be there.
    pub volumes: Vec<VolumeId>,
    /// The RW volume is there.
    pub read_write: bool,
}

/// What the volume location database says of an RW volume, its backup and its read-only volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    /// Where they are, in the order of the entry.
    pub sites: Vec<FamilySite>,
    /// Somebody works on it: it is moved, released, dumped.
    pub locked: bool,
}

/// The volume location database, and the other file servers.
pub trait CellServers: Send + Sync + 'static {
    /// All file servers of the cell.
    fn servers(&self) -> BoxFuture<'_, Result<Vec<CellServer>, CallError>>;
    /// Where the volumes of a family are, by the RW volume's id; `None`: there is no entry.
    fn family(&self, volume: VolumeId) -> BoxFuture<'_, Result<Option<Family>, CallError>>;
    /// A way to the object service (AFSOSD) of the file server at an address, as a superuser.
    fn connection(&self, server: IpAddr) -> Connection;
}

/// What a file server does with objects by itself, and how fast.
#[derive(Clone)]
pub struct Upkeep {
    /// The cell.
    pub servers: Arc<dyn CellServers>,
    /// Garbage is collected that has not been written for so long.
    pub grace: Duration,
    /// Time between two rounds of collecting; zero: only when somebody asks for it.
    pub collect_interval: Duration,
    /// How long a device may be away before what it had is made anew elsewhere.
    pub repair_delay: Duration,
    /// Bytes a second that repairs copy; 0: no limit.
    pub repair_rate: u64,
    /// Time between two looks at what devices have found damaged.
    pub damage_interval: Duration,
    /// Time between two looks through all files.
    pub look_interval: Duration,
}

impl Upkeep {
    /// The usual settings: a day of grace, hourly rounds; ten minutes before anything is made anew, at up to
    /// 64 MiB a second.
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
