//! The roles of a cell in one process: which parts there are, in which order they start and stop.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use cellar_celldb::Embedded;
use cellar_dbserver::{
    Clock, Database, DiskService, Identity as Caller, Pr, PrService, Vl, VlService, VoteService,
};
use cellar_fileserver::{Config as FileConfig, FileServer};
use cellar_rpc::ServerSecurity;
use cellar_rpc::local::Listener;
use cellar_rpc::{Port, PortConfig, Runtime, RuntimeConfig, Service};
use cellar_volume::disk::FileDisk;
use cellar_volume::{Options as StoreOptions, Partition};
use cellar_wire::ids::{AfsTime, PartitionId, VolumeId};
use cellar_wire::vl;

use super::bozo::{Instance, Overseer};
use super::protection::{OwnLocations, OwnProtection};
use super::statistics::Statistics;
use super::trust::Trust;
use super::{Options, bootstrap, wall_clock};
use crate::cell_directory::{CellDirectory, Identity};
use crate::failure::{Failure, Outcome};

/// The security class of Kerberos tickets, in Rx.
const RXKAD_INDEX: u8 = 2;

/// Everything that is opened, before any port is.
pub(super) struct Roles {
    pub(super) vl: Arc<Vl>,
    pr: Arc<Pr>,
    pub(super) trust: Trust,
    partitions: Vec<(PartitionId, Arc<Partition>)>,
    runtime: Runtime,
}

/// The cell with its ports open.
pub(super) struct Running {
    runtime: Runtime,
    fileserver: FileServer,
    partitions: Vec<(PartitionId, Arc<Partition>)>,
    socket: Listener,
}

impl Roles {
    /// Opens the databases and the partition, making what is missing.
    pub(super) fn open(
        directory: &CellDirectory,
        identity: &Identity,
        options: &Options,
    ) -> Outcome<Self> {
        let trust = Trust::open(directory, identity)?;
        let databases = directory.databases();
        let at = |cause: &dyn std::fmt::Display| {
            Failure::new(format!("{}: {cause}", databases.display()))
        };
        private_directory(&databases).map_err(|cause| at(&cause))?;
        let db = Embedded::open(&databases.join("cell.redb")).map_err(|cause| at(&cause))?;
        let db = Arc::new(db);
        let vl = Vl::open(db.clone(), clock()).map_err(|cause| at(&cause))?;
        let pr = Pr::open(db, clock(), identity.cell.name.as_str()).map_err(|cause| at(&cause))?;
        let pr = pr.with_realms(trust.authority.clone());
        let partition = open_partition(directory, options)?;
        let mut config = RuntimeConfig {
            name: "cellar".to_owned(),
            ..RuntimeConfig::default()
        };
        if let Some(shards) = options.shards {
            config.shards = shards.max(1);
        }
        let runtime = Runtime::start(config)
            .map_err(|cause| Failure::new(format!("cannot start network threads: {cause}")))?;
        Ok(Self {
            vl: Arc::new(vl),
            pr: Arc::new(pr),
            trust,
            partitions: vec![partition],
            runtime,
        })
    }

    /// The partition on which the first volumes are.
    pub(super) fn first_partition(&self) -> &Partition {
        &self.partitions[0].1
    }

    /// Reserves consecutive volume ids.
    pub(super) fn new_volume_ids(&self, count: u32) -> Outcome<VolumeId> {
        let reply = self
            .vl
            .ask(Caller::Superuser, vl::GetNewVolumeId { bump: count });
        let reply =
            reply.map_err(|code| Failure::new(format!("cannot reserve volume ids: {code}")))?;
        Ok(reply.newvolumid)
    }

    /// Registers the file server's UUID and address in the VLDB.
    pub(super) fn register(&self, identity: &Identity) -> Outcome {
        let addresses = v4_addresses(identity);
        let arguments = vl::RegisterAddrs {
            uuid: bootstrap::uuid(identity),
            spare1: 0,
            addrs: vl::BulkAddrs::from_iter_cut(addresses),
        };
        let registered = self.vl.ask(Caller::Superuser, arguments);
        registered.map(|_| ()).map_err(|code| {
            Failure::new(format!("cannot register the file server's address: {code}"))
        })
    }

    /// Opens the ports and the administrator's socket, and registers where the server is.
    pub(super) fn start(self, directory: &CellDirectory, identity: &Identity) -> Outcome<Running> {
        let mut config = FileConfig::new(bootstrap::uuid(identity), Arc::new(wall_clock));
        config.callback_state = Some(directory.callback_state());
        config.authority = Some(self.trust.authority.clone());
        config.audit = self.trust.audit.clone();
        let fileserver = FileServer::new(config, Arc::new(OwnProtection(self.pr.clone())));
        fileserver.use_locations(Arc::new(OwnLocations(self.vl.clone())));
        for (id, partition) in &self.partitions {
            fileserver.add_partition(*id, partition.clone());
        }
        let services = Services::new(&self, &fileserver, directory, identity);
        let answering = services
            .open(&self.runtime, &fileserver, identity)
            .and_then(|ports| {
                let statistics = Statistics {
                    fileserver: fileserver.clone(),
                    partitions: self.partitions.clone(),
                    authority: self.trust.authority.clone(),
                    audit: self.trust.audit.clone(),
                    ports,
                };
                services.listen(&self.runtime, directory, Arc::new(statistics))
            })
            .and_then(|socket| self.register(identity).map(|()| socket));
        match answering {
            Ok(socket) => Ok(Running {
                runtime: self.runtime,
                fileserver,
                partitions: self.partitions,
                socket,
            }),
            Err(failure) => {
                // Callback state was taken from its file: it goes back there.
                self.runtime.shutdown();
                fileserver.stop();
                Err(failure)
            }
        }
    }
}

/// What answers on the ports.
struct Services {
    files: Arc<dyn Service>,
    volumes: Arc<dyn Service>,
    vl: Arc<dyn Service>,
    vl_votes: Arc<dyn Service>,
    pr: Arc<dyn Service>,
    pr_votes: Arc<dyn Service>,
    disk: Arc<dyn Service>,
    bozo: Arc<dyn Service>,
    /// What every port takes beside anonymous callers.
    rxkad: Arc<dyn ServerSecurity>,
}

impl Services {
    fn new(
        roles: &Roles,
        fileserver: &FileServer,
        directory: &CellDirectory,
        identity: &Identity,
    ) -> Self {
        let ports = &identity.cell.ports;
        let addresses: Vec<u32> = v4_addresses(identity).collect();
        let votes = |database: Arc<dyn Database>| -> Arc<dyn Service> {
            Arc::new(VoteService::new(database, clock(), addresses.clone()))
        };
        let instances = vec![
            Instance::new("fs", "file and volume server", ports.fileserver),
            Instance::new("ptserver", "", ports.protection),
            Instance::new("vlserver", "", ports.location),
        ];
        let now = AfsTime(wall_clock().as_secs() as u32);
        let Trust { authority, audit } = &roles.trust;
        let (cell, trusted) = (identity.cell.clone(), authority.clone());
        let key_file = directory.server_etc().join("KeyFileExt");
        let overseer = Overseer::new(cell, instances, now, trusted, audit.clone(), key_file);
        let vl = VlService::new(roles.vl.clone());
        let pr = PrService::new(roles.pr.clone());
        Self {
            files: fileserver.file_service(),
            volumes: fileserver.volume_service(),
            vl: Arc::new(vl.with_authority(authority.clone(), audit.clone())),
            vl_votes: votes(roles.vl.clone()),
            pr: Arc::new(pr.with_authority(authority.clone(), audit.clone())),
            pr_votes: votes(roles.pr.clone()),
            disk: Arc::new(DiskService),
            bozo: Arc::new(overseer.with_log("AuditLog", directory.audit_log())),
            rxkad: authority.server_security(),
        }
    }

    /// Opens the ports. The file server's is the last: who finds that finds everything.
    fn open(
        &self,
        runtime: &Runtime,
        fileserver: &FileServer,
        identity: &Identity,
    ) -> Outcome<Vec<(&'static str, Port)>> {
        let ports = &identity.cell.ports;
        let plan = [
            (
                "users",
                ports.protection,
                vec![&self.pr, &self.pr_votes, &self.disk],
            ),
            (
                "locations",
                ports.location,
                vec![&self.vl, &self.vl_votes, &self.disk],
            ),
            ("volumes", ports.volume, vec![&self.volumes]),
            ("overseer", ports.overseer, vec![&self.bozo]),
            ("files", ports.fileserver, vec![&self.files]),
        ];
        let mut opened = Vec::new();
        for (name, number, services) in plan {
            let address = SocketAddr::new(identity.bind, number);
            let mut config = PortConfig::new(address);
            config.services = services.into_iter().cloned().collect();
            config = config.security(RXKAD_INDEX, self.rxkad.clone());
            let port = runtime
                .open(config)
                .map_err(|cause| port_failure(&cause, address))?;
            if number == ports.fileserver {
                fileserver.start(runtime, &port);
            }
            opened.push((name, port));
        }
        Ok(opened)
    }

    /// Opens the administrator's socket, on which everything answers.
    fn listen(
        &self,
        runtime: &Runtime,
        directory: &CellDirectory,
        statistics: Arc<dyn Service>,
    ) -> Outcome<Listener> {
        let all = [
            &self.files,
            &self.volumes,
            &self.vl,
            &self.pr,
            &self.bozo,
            &statistics,
        ];
        let path = directory.admin_socket();
        let services = all.into_iter().cloned().collect();
        Listener::bind(runtime, &path, services).map_err(|cause| {
            Failure::new(format!(
                "administrator's socket {}: {cause}",
                path.display()
            ))
        })
    }
}

impl Running {
    /// Stops answering, saves what is only in memory, and closes the partitions.
    pub(super) fn stop(self) -> Outcome {
        drop(self.socket);
        self.runtime.shutdown();
        self.fileserver.stop();
        for (id, partition) in &self.partitions {
            partition.close().map_err(|cause| {
                Failure::new(format!(
                    "partition {id} did not close cleanly: {cause}. Nothing acknowledged is lost; \
                     the next start replays its journal"
                ))
            })?;
        }
        Ok(())
    }
}

/// The time, for the databases.
fn clock() -> Clock {
    Arc::new(|| AfsTime(wall_clock().as_secs() as u32))
}

/// The server's addresses as AFS writes them.
fn v4_addresses(identity: &Identity) -> impl Iterator<Item = u32> + '_ {
    identity
        .cell
        .database_servers
        .iter()
        .filter_map(|ip| match ip {
            IpAddr::V4(ip) => Some(u32::from(*ip)),
            IpAddr::V6(_) => None,
        })
}

/// Makes a directory that only its owner may look into: access lists decide about what is in it, not
/// who has an account on this machine.
pub(super) fn private_directory(path: &std::path::Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
}

fn open_partition(
    directory: &CellDirectory,
    options: &Options,
) -> Outcome<(PartitionId, Arc<Partition>)> {
    let path = directory.partition('a');
    let at = |cause: &dyn std::fmt::Display| {
        Failure::new(format!("partition {}: {cause}", path.display()))
    };
    private_directory(&path).map_err(|cause| at(&cause))?;
    let disk = FileDisk::open(&path).map_err(|cause| at(&cause))?;
    let store = StoreOptions {
        durability: options.durability,
        ..StoreOptions::default()
    };
    let partition = Partition::open(disk, store).map_err(|cause| at(&cause))?;
    let id = PartitionId::new(0).ok_or_else(|| at(&"there is no partition 0"))?;
    Ok((id, partition))
}

fn port_failure(cause: &std::io::Error, address: SocketAddr) -> Failure {
    let hint = match cause.kind() {
        std::io::ErrorKind::AddrInUse => {
            "another program answers there (an AFS server or client, another cell?); stop it, or \
             give another --bind or --fileserver-port"
        }
        std::io::ErrorKind::AddrNotAvailable => {
            "this machine has no such address; 'ip address' lists those it has"
        }
        std::io::ErrorKind::PermissionDenied => "ports below 1024 need root",
        _ => "choose another with --bind or --fileserver-port",
    };
    let address_text = cause.to_string();
    let address_text = if address_text.contains(&address.to_string()) {
        address_text
    } else {
        format!("UDP {address}: {address_text}")
    };
    Failure::new(format!("{address_text}: {hint}"))
}
