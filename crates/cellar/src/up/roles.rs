//! The roles of a cell in one process: the parts, and the order in which they start and stop.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use cellar_auth::capability::CapabilityKeys;
use cellar_fileserver::{Config as FileConfig, FileServer, HsmConfig, Upkeep};
use cellar_osd::OsdServer;
use cellar_rpc::ServerSecurity;
use cellar_rpc::local::Listener;
use cellar_rpc::{Port, PortConfig, Runtime, RuntimeConfig, Service};
use cellar_volume::Partition;
use cellar_wire::ids::{AfsTime, PartitionId};

use super::bozo::{Instance, Overseer};
use super::databases::{DatabaseServices, Databases};
use super::parts::Parts;
use super::probe::Probes;
use super::statistics::Statistics;
use super::trust::Trust;
use super::upkeep::{FileServerUpkeep, Scrubbing};
use super::{Options, banner, bootstrap, osds, partitions, pieces, wall_clock};
use crate::cell_directory::{CellDirectory, Identity, Used};
use crate::failure::{Failure, Outcome};
use crate::metrics::Pages;
use crate::restart::Restart;
use crate::serve::Role;
use crate::stand_in::announce::Watched;

/// The security class of Kerberos tickets, in Rx.
const RXKAD_INDEX: u8 = 2;

/// All parts that are opened before a port is.
pub(super) struct Roles {
    pub(super) databases: Databases,
    pub(super) trust: Trust,
    partitions: Vec<(PartitionId, Arc<Partition>)>,
    osds: Option<OsdServer>,
    keys: Arc<CapabilityKeys>,
    transaction_idle: Duration,
    keeping: FileServerUpkeep,
    scrubbing: Scrubbing,
    /// The addresses that are registered.
    addresses: Vec<IpAddr>,
    /// Requests of superusers for a restart.
    pub(super) restart: Restart,
    runtime: Runtime,
}

/// The cell with its ports open.
pub(super) struct Running {
    runtime: Runtime,
    /// Dropped after all others: that writes the last copy of the databases.
    databases: Databases,
    parts: Parts,
    socket: Listener,
}

impl Roles {
    /// Opens the databases, the partitions and the devices that run here; makes missing ones.
    pub(super) fn open(
        directory: &CellDirectory,
        identity: &Identity,
        addresses: Vec<IpAddr>,
        options: &Options,
    ) -> Outcome<Self> {
        let trust = Trust::open(directory, identity, &options.new)?;
        let mut config = RuntimeConfig {
            name: "cellar".to_owned(),
            open_statistics: options.open_statistics,
            ..RuntimeConfig::default()
        };
        if let Some(shards) = options.shards {
            config.shards = shards.max(1);
        }
        let runtime = Runtime::start(config)
            .map_err(|cause| Failure::new(format!("cannot start network threads: {cause}")))?;
        let databases = Databases::open(
            directory,
            identity,
            &trust,
            &runtime,
            &options.new,
            &options.etcd,
        )?;
        let keys = osds::keys(&trust.authority, &directory.server_etc())?;
        let mut config = osds::config(&trust.authority, keys.clone());
        options.scrubbing.set(&mut config);
        config.addresses.clone_from(&addresses);
        let roles = &options.roles;
        let osds = match roles.is_empty() || roles.contains(&Role::Osds) {
            true => osds::open(
                directory.path(),
                identity,
                config,
                options.durability,
                &options.damaged,
                // The role alone asks for a device.
                options.osds.max(roles.contains(&Role::Osds).into()),
                &databases,
            )?,
            false => {
                osds::warn_of_idle(directory.path())?;
                None
            }
        };
        let partitions = match identity.part.has_fileserver() {
            true => partitions::open(
                directory,
                identity,
                &options.new,
                options.durability,
                &options.damaged,
            )?,
            false => Vec::new(),
        };
        Ok(Self {
            databases,
            osds,
            keys,
            transaction_idle: Duration::from_secs(options.transaction_idle),
            keeping: options.keeping.clone(),
            scrubbing: options.scrubbing,
            trust,
            partitions,
            addresses,
            restart: Restart::default(),
            runtime,
        })
    }

    /// The partitions in their order, each with the number of its volumes, counted up to
    /// [`banner::COUNT_MAX`].
    pub(super) fn held(&self) -> Vec<(PartitionId, usize)> {
        let count = |partition: &Partition| {
            let volumes = partition.volumes(None, banner::COUNT_MAX);
            volumes.map_or(0, |volumes| volumes.len())
        };
        let partitions = self.partitions.iter();
        partitions
            .map(|(id, partition)| (*id, count(partition)))
            .collect()
    }

    /// The pieces that are in use from now on.
    pub(super) fn used(&self, directory: &CellDirectory) -> Used {
        let partitions = self.partitions.iter();
        let partitions = partitions.map(|(id, partition)| (*id, partition.id()));
        pieces::used(directory, partitions, self.databases.id())
    }

    /// Makes the missing ones of a new cell's first volumes, on the first partition.
    pub(super) fn first_volumes(&self, identity: &Identity) -> Outcome {
        match (&self.databases, self.partitions.first()) {
            (Databases::Here(_), Some((id, partition))) => bootstrap::first_volumes(
                &self.databases,
                (*id, partition),
                identity,
                &self.addresses,
            ),
            _ => Ok(()),
        }
    }

    /// Makes the missing ones of `root.afs` and `root.cell` for a cell that began with databases
    /// alone.
    pub(super) fn missing_volumes(&self, identity: &Identity) -> Outcome {
        let Some((id, partition)) = self.partitions.first() else {
            return Err(Failure::usage(
                "--first-volumes makes volumes on a file server: give it to one",
            ));
        };
        bootstrap::missing_volumes(&self.databases, (*id, partition), identity, &self.addresses)
    }

    /// The file server with the partitions, before it answers.
    fn file_server(&self, directory: &CellDirectory, identity: &Identity) -> FileServer {
        let mut config = FileConfig::new(bootstrap::uuid(identity), Arc::new(wall_clock));
        config.callback_state = Some(directory.callback_state());
        config.authority = Some(self.trust.authority.clone());
        config.audit = self.trust.audit.clone();
        config.transaction_idle = self.transaction_idle;
        let fileserver = FileServer::new(config, self.databases.protection());
        fileserver.use_locations(self.databases.locations());
        let addresses = self.addresses.iter();
        let own = addresses.map(|own| SocketAddr::new(*own, identity.cell.ports.fileserver));
        fileserver.has_addresses(&own.collect::<Vec<_>>());
        for (id, partition) in &self.partitions {
            fileserver.add_partition(*id, partition.clone());
        }
        fileserver
    }

    /// Opens the ports and the administrator's socket, and registers the server's address.
    /// With `probing`, the partitions' disks are probed for the metrics.
    pub(super) fn start(
        self,
        directory: &CellDirectory,
        identity: &Identity,
        probing: bool,
        watched: Option<&mut Watched>,
    ) -> Outcome<Running> {
        let fileserver = identity.part.has_fileserver();
        let fileserver = fileserver.then(|| self.file_server(directory, identity));
        let services = Services::new(&self, fileserver.as_ref(), directory, identity)?;
        let answering = services
            .open(&self.runtime, identity, watched)
            .and_then(|ports| {
                let disks = self.partitions.iter();
                let disks = disks.map(|(id, _)| (*id, directory.partition(*id)));
                let probes = probing.then(|| Probes::start(disks.collect()));
                let parts = Parts {
                    probes: probes.transpose()?.map(Arc::new),
                    fileserver: fileserver.clone(),
                    partitions: self.partitions.clone(),
                    authority: self.trust.authority.clone(),
                    audit: self.trust.audit.clone(),
                    osds: self.osds.clone(),
                    etcd: self.databases.etcd(),
                    ports,
                };
                let statistics = Arc::new(Statistics(parts.clone()));
                let socket = services.listen(&self.runtime, directory, statistics)?;
                Ok((socket, parts))
            })
            .and_then(|open| {
                if let Some(fileserver) = &fileserver {
                    self.databases.register(
                        &self.runtime,
                        fileserver,
                        identity,
                        &self.addresses,
                    )?;
                }
                Ok(open)
            });
        match answering {
            Ok((socket, parts)) => Ok(Running {
                runtime: self.runtime,
                databases: self.databases,
                parts,
                socket,
            }),
            Err(failure) => {
                // Callback state was taken from its file; it is saved again.
                self.runtime.shutdown();
                if let Some(fileserver) = fileserver {
                    fileserver.stop();
                }
                Err(failure)
            }
        }
    }
}

/// The services for the ports.
struct Services {
    /// The services of the file server, if it is in this process.
    files: Option<FileServices>,
    bozo: Arc<dyn Service>,
    osds: Option<(OsdServer, Arc<dyn Service>)>,
    keys: Arc<CapabilityKeys>,
    /// The services of the databases, if they are in this process.
    databases: Option<DatabaseServices>,
    /// The security class that every port accepts beside anonymous calls.
    rxkad: Arc<dyn ServerSecurity>,
}

/// The services of a file server.
struct FileServices {
    server: FileServer,
    files: Arc<dyn Service>,
    objects: Arc<dyn Service>,
    volumes: Arc<dyn Service>,
    /// The background work on objects.
    upkeep: Upkeep,
    /// Copies to archives, and wiping.
    hsm: HsmConfig,
    /// The regular scrubs of the partitions.
    scrubbing: Scrubbing,
}

impl Services {
    fn new(
        roles: &Roles,
        fileserver: Option<&FileServer>,
        directory: &CellDirectory,
        identity: &Identity,
    ) -> Outcome<Self> {
        let ports = &identity.cell.ports;
        // The words of OpenAFS's overseer for a file server with its volume server. Monitors search
        // for them.
        let file_instance = Instance::of_kind("fs", "fs", "file server running", ports.fileserver);
        let mut instances: Vec<_> = fileserver.map(|_| file_instance).into_iter().collect();
        let databases = match &roles.databases {
            Databases::Here(own) => {
                instances.push(Instance::new("ptserver", "", ports.protection));
                instances.push(Instance::new("vlserver", "", ports.location));
                Some(own.services(identity, &roles.trust))
            }
            Databases::RemoteDatabases(_) => None,
        };
        let osds = roles.osds.clone();
        if osds.is_some() {
            instances.push(Instance::new("osd", "", osds::port(ports)));
        }
        let now = AfsTime::after_1970(wall_clock());
        let Trust { authority, audit } = &roles.trust;
        let (cell, trusted) = (identity.cell.clone(), authority.clone());
        let key_file = directory.server_etc().join("KeyFileExt");
        let overseer = Overseer::new(cell, instances, now, trusted, audit.clone(), key_file);
        let (runtime, trust) = (&roles.runtime, &roles.trust);
        let files = fileserver.map(|fileserver| {
            let servers = roles.databases.cell_servers(runtime, identity, trust)?;
            fileserver.set_recall_limits(roles.keeping.recall_limits());
            fileserver.keep_older(roles.keeping.archive_keep());
            Ok::<_, Failure>(FileServices {
                server: fileserver.clone(),
                files: fileserver.file_service(),
                objects: fileserver.object_service(),
                volumes: fileserver.volume_service(),
                upkeep: roles.keeping.upkeep(servers.clone()),
                hsm: roles.keeping.hsm(directory, servers)?,
                scrubbing: roles.scrubbing,
            })
        });
        Ok(Self {
            files: files.transpose()?,
            bozo: Arc::new(
                overseer
                    .with_log("AuditLog", directory.audit_log())
                    .exporting(roles.databases.copier())
                    .restarted_by(roles.restart.clone()),
            ),
            keys: roles.keys.clone(),
            osds: osds.map(|server| (server.clone(), server.service())),
            databases,
            rxkad: authority.server_security(),
        })
    }

    /// Opens the ports. The file server's port is the last: a client that finds it finds all the
    /// others.
    fn open(
        &self,
        runtime: &Runtime,
        identity: &Identity,
        watched: Option<&mut Watched>,
    ) -> Outcome<Vec<(&'static str, Port)>> {
        let ports = &identity.cell.ports;
        let mut plan = Vec::new();
        if let Some(own) = &self.databases {
            let users = vec![&own.pr, &own.pr_votes, &own.disk];
            let locations = vec![&own.vl, &own.vl_votes, &own.osddb, &own.disk];
            plan.push(("users", ports.protection, users));
            plan.push(("locations", ports.location, locations));
        }
        if let Some((_, service)) = &self.osds {
            plan.push(("objects", osds::port(ports), vec![service]));
        }
        if let Some(files) = &self.files {
            plan.push(("volumes", ports.volume, vec![&files.volumes]));
        }
        plan.push(("overseer", ports.overseer, vec![&self.bozo]));
        if let Some(files) = &self.files {
            let services = vec![&files.files, &files.objects];
            plan.push(("files", ports.fileserver, services));
        }
        let is_watched = watched.is_some();
        let mut sockets = watched.map(Watched::take_sockets).unwrap_or_default();
        let mut opened = Vec::new();
        for (name, number, services) in plan {
            let address = SocketAddr::new(identity.bind, number);
            let files = self.files.as_ref();
            if let Some(files) = files.filter(|_| name == "files") {
                files.server.expect_objects();
            }
            let mut config = PortConfig::new(address);
            config.services = services.into_iter().cloned().collect();
            config = config.security(RXKAD_INDEX, self.rxkad.clone());
            config.log_packets = is_watched && ["users", "locations"].contains(&name);
            let port = runtime
                .open_with(config, &mut sockets)
                .map_err(|cause| Failure::of_port(&cause, address))?;
            if let Some(files) = files.filter(|_| name == "volumes") {
                files.server.serves_volumes_at(&port);
            }
            if let Some(files) = files.filter(|_| name == "files") {
                files.server.start(runtime, &port);
                osds::use_objects(&files.server, runtime, &port, identity, &self.keys);
                files.server.keep_objects(runtime, files.upkeep.clone());
                files.server.keep_archives(runtime, files.hsm.clone());
                files.scrubbing.start(&files.server, runtime);
            }
            if let Some((server, _)) = self.osds.as_ref().filter(|_| name == "objects") {
                server.start(runtime, &port);
            }
            opened.push((name, port));
        }
        Ok(opened)
    }

    /// Opens the administrator's socket, which offers all services.
    fn listen(
        &self,
        runtime: &Runtime,
        directory: &CellDirectory,
        statistics: Arc<dyn Service>,
    ) -> Outcome<Listener> {
        let mut all = vec![&self.bozo, &statistics];
        if let Some(files) = &self.files {
            all.extend([&files.files, &files.objects, &files.volumes]);
        }
        if let Some(own) = &self.databases {
            all.extend([&own.vl, &own.pr, &own.osddb]);
        }
        all.extend(self.osds.iter().map(|(_, service)| service));
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
    /// The open ports.
    pub(super) fn ports(&self) -> Vec<Port> {
        let ports = self.parts.ports.iter();
        ports.map(|(_, port)| port.clone()).collect()
    }

    /// The parts, for the metrics.
    pub(super) fn pages(&self) -> Arc<dyn Pages> {
        Arc::new(self.parts.clone())
    }

    /// The file server, if this process has one.
    pub(super) fn fileserver(&self) -> Option<&FileServer> {
        self.parts.fileserver.as_ref()
    }

    /// Stops answering, saves what is only in memory, and closes the partitions.
    pub(super) fn stop(self) -> Outcome {
        drop(self.socket);
        self.runtime.shutdown();
        if let Some(fileserver) = &self.parts.fileserver {
            fileserver.stop();
        }
        if let Some(osds) = &self.parts.osds {
            osds.stop().map_err(|cause| {
                Failure::new(format!(
                    "an object storage device did not close cleanly: {cause}. Nothing acknowledged is \
                     lost; the next start replays its journal"
                ))
            })?;
        }
        drop(self.databases);
        for (id, partition) in &self.parts.partitions {
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
