//! The state of a whole cell, as `cellar status` shows it.
//!
//! 1. All servers are asked in parallel, over Rx and without waiting for silent ones: each question
//!    has the time limit [`Limits::answer`].
//! 2. Servers answer the questions to every caller, OpenAFS's servers too. A fact that a server
//!    does not report is `None`, and [`CellStatus::not_known`] names it.
//! 3. The volumes of all partitions and the entries of the VLDB are read as streams for at most
//!    [`Limits::listing`]. The program holds counts, the first [`LISTED_MAX`] volumes of each
//!    problem, and a few words for each volume and each site (`places`).

mod databases;
mod judge;
mod places;
mod servers;
mod version;
mod volumes;

use std::net::IpAddr;
use std::time::Duration;

use cellar_client::{Cell, Client};
use cellar_wire::ids::{PartitionId, VolumeId};
use futures_util::future::join3;
use serde::Serialize;

pub use judge::CLOCK_SECONDS_MAX;
pub use version::version_of;
pub use volumes::VolumesStatus;

use crate::error::Error;
use crate::osd::{Device, Osds};
use crate::vos::{PartitionScrub, PartitionSpace, Volumes};

/// The version of the form of [`CellStatus`]. It grows if a field is renamed or removed.
pub const SCHEMA: u32 = 1;

/// The most volumes that are listed for each problem. Their count has no bound.
pub const LISTED_MAX: usize = 100;

/// Time limits of the questions to a cell.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The longest time in which a server may answer a question.
    pub answer: Duration,
    /// The longest time for the lists of volumes of a server, and for the list of the VLDB.
    pub listing: Duration,
    /// Whether the volumes are examined.
    pub volumes: bool,
}

/// The judgement on a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Nothing needs attention.
    Well,
    /// At least one finding needs attention.
    Attention,
    /// No database server answers, so the cell cannot be judged.
    Unknown,
}

/// The kind of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FindingKind {
    /// A database server does not answer.
    DatabaseServerDown,
    /// A file server does not answer.
    FileServerDown,
    /// A volume server does not answer.
    VolumeServerDown,
    /// The clock of a server differs from this machine's by more than ten seconds.
    Clock,
    /// A partition has little room.
    PartitionFull,
    /// A device does not answer.
    DeviceDown,
    /// A device accepts no changes.
    DeviceReadonly,
    /// A device has little room.
    DeviceFull,
    /// Objects of files are missing or damaged, and wait for their repair.
    Degraded,
    /// The last scrub of a partition found damaged files.
    ScrubDamage,
    /// A volume cannot be attached.
    VolumeDamaged,
    /// A volume is off line.
    VolumeOffLine,
    /// A volume uses its whole quota.
    QuotaFull,
    /// A read-only site has an older image than another, or none.
    SiteOutdated,
    /// The VLDB names a volume at a place that does not have it.
    VolumeMissing,
    /// The VLDB does not name a volume of a server.
    VolumeUnlisted,
}

/// A thing that needs attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its kind.
    pub kind: FindingKind,
    /// The server, partition, device or volume.
    pub subject: String,
    /// One sentence.
    pub text: String,
}

/// A database server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DatabaseServer {
    /// Its address.
    pub address: IpAddr,
    /// Its volume location server answers.
    pub location: bool,
    /// Its protection server answers.
    pub protection: bool,
    /// Its version; `None` if it does not report one.
    pub version: Option<String>,
}

/// A file server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileServer {
    /// Its UUID; none for a server that has not registered.
    pub uuid: Option<String>,
    /// Its addresses in the VLDB.
    pub addresses: Vec<IpAddr>,
    /// The address that answered first.
    pub answered: Option<IpAddr>,
    /// The file server answers.
    pub reachable: bool,
    /// The volume server beside it answers.
    pub volume_server: bool,
    /// Its version; `None` if it does not report one.
    pub version: Option<String>,
    /// The time of its last start in seconds since 1970.
    pub started: Option<u64>,
    /// Seconds since its last start.
    pub uptime_seconds: Option<u64>,
    /// Its clock less that of this machine, in seconds.
    pub clock_offset_seconds: Option<i64>,
    /// Its partitions.
    pub partitions: Option<Vec<PartitionSpace>>,
    /// The scrubs of its partitions; empty for a server that does not report them.
    pub scrubs: Vec<PartitionScrub>,
    /// Its repair queue; `None` for a server without object storage.
    pub repairs: Option<Repairs>,
}

/// Objects that a file server repairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Repairs {
    /// Objects that wait for their repair.
    pub waiting: u64,
    /// Objects under repair.
    pub running: u64,
    /// Waiting objects whose repair failed more than twice.
    pub failed: u64,
}

/// A volume with a problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VolumeProblem {
    /// Its name; empty if the server does not report it.
    pub name: String,
    /// Its number.
    #[serde(serialize_with = "crate::json::volume_id")]
    pub id: VolumeId,
    /// Its file server.
    pub server: IpAddr,
    /// Its partition.
    #[serde(serialize_with = "crate::json::display")]
    pub partition: PartitionId,
    /// Used space in KiB; 0 if it is not known.
    pub size_kib: u32,
    /// Quota in KiB; 0 for none.
    pub quota_kib: u32,
}

/// A count, and the first of the things that are counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Counted<T> {
    /// The number of things.
    pub count: u64,
    /// At most [`LISTED_MAX`] of them.
    pub listed: Vec<T>,
}

impl<T> Default for Counted<T> {
    fn default() -> Self {
        Self {
            count: 0,
            listed: Vec::new(),
        }
    }
}

impl<T> Counted<T> {
    fn add(&mut self, thing: T) {
        self.count += 1;
        if self.listed.len() < LISTED_MAX {
            self.listed.push(thing);
        }
    }

    fn append(&mut self, other: Self) {
        self.count += other.count;
        let room = LISTED_MAX.saturating_sub(self.listed.len());
        self.listed.extend(other.listed.into_iter().take(room));
    }
}

/// The state of a cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CellStatus {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The cell's name.
    pub cell: String,
    /// The judgement.
    pub verdict: Verdict,
    /// The things that need attention.
    pub findings: Vec<Finding>,
    /// Facts that no server reported, one sentence each.
    pub not_known: Vec<String>,
    /// The database servers.
    pub database_servers: Vec<DatabaseServer>,
    /// The file servers.
    pub file_servers: Vec<FileServer>,
    /// The object storage devices in use; `None` if the cell has no object storage.
    pub devices: Option<Vec<Device>>,
    /// The volumes.
    pub volumes: VolumesStatus,
}

impl CellStatus {
    /// Asks all servers of a cell.
    pub async fn collect(client: &Client, cell: &Cell, limits: Limits) -> Self {
        let mut status = Self {
            schema: SCHEMA,
            cell: cell.name.to_string(),
            verdict: Verdict::Unknown,
            findings: Vec::new(),
            not_known: Vec::new(),
            database_servers: databases::ask(client, cell, limits).await,
            file_servers: Vec::new(),
            devices: None,
            volumes: VolumesStatus::default(),
        };
        if status.database_servers.iter().any(|server| server.location) {
            let volumes = Volumes::new(client, cell);
            let osds = Osds::new(client, cell);
            let (entries, servers, devices) = join3(
                async {
                    match limits.volumes {
                        true => volumes::entries(volumes, limits).await,
                        false => volumes::Entries::default(),
                    }
                },
                servers::ask(client, cell, limits),
                tokio::time::timeout(limits.listing, osds.list()),
            )
            .await;
            match servers {
                Ok(servers) => {
                    let mut found = volumes::Found::default();
                    for (server, volumes) in servers {
                        status.file_servers.push(server);
                        found.append(volumes);
                    }
                    let servers = &status.file_servers;
                    status.volumes = found.compared(servers, entries, volumes, limits).await;
                }
                Err(error) => status.not_known.push(format!("file servers: {error}")),
            }
            match devices {
                Ok(Ok(mut devices)) => {
                    devices.retain(|device| !device.obsolete && device.id != 1);
                    status.devices = Some(devices);
                }
                // The database servers have no object storage.
                Ok(Err(Error::Usage(_))) => {}
                Ok(Err(error)) => {
                    let line = format!("object storage devices: {error}");
                    status.not_known.push(line);
                }
                Err(_) => {
                    let line = "object storage devices: the list takes too long".to_owned();
                    status.not_known.push(line);
                }
            }
        }
        status.judge();
        status
    }
}
