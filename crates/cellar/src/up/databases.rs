//! The databases of the cell for the roles of this process: in this process, or on other machines.

use std::net::IpAddr;
use std::sync::Arc;

use cellar_celldb::{DatabaseId, Error as DatabaseError};
use cellar_client::Cell;
use cellar_dbserver::{
    Answer, Clock, Database, DiskService, Identity as Caller, OsdDb, OsdDbService, Pr, PrService,
    SyncSite, Vl, VlService, VoteService,
};
use cellar_etcd::Etcd;
use cellar_fileserver::{FileServer, Locations, Protection};
use cellar_rpc::{Runtime, Service};
use cellar_wire::ids::AfsTime;
use cellar_wire::osddb::{self, CreateOsd, GetOsd, OsdEntry};
use cellar_wire::package::Procedure;
use cellar_wire::{AbortCode, vl};

use super::bootstrap;
use super::copies::{Copier, Copies};
use super::engine::{self, Engine, EtcdOptions};
use super::osds::OsdTable;
use super::pieces::{self, New};
use super::protection::{OwnLocations, OwnProtection};
use super::remote_databases::RemoteDatabases;
use super::trust::Trust;
use super::wall_clock;
use crate::cell_directory::{CellDirectory, Identity};
use crate::failure::{Failure, Outcome};

/// The place of the databases.
pub(super) enum Databases {
    Here(OwnDatabases),
    RemoteDatabases(Arc<RemoteDatabases>),
}

impl Databases {
    /// Opens the databases if they are here. A file server alone gets a client of the database
    /// servers.
    pub(super) fn open(
        directory: &CellDirectory,
        identity: &Identity,
        trust: &Trust,
        runtime: &Runtime,
        new: &New,
        etcd: &EtcdOptions,
    ) -> Outcome<Self> {
        match identity.part.has_databases() {
            true => OwnDatabases::open(directory, identity, trust, new, etcd).map(Self::Here),
            false => {
                let cell: &Cell = &identity.cell;
                let etc = directory.server_etc();
                let elsewhere = RemoteDatabases::new(runtime, cell, &trust.authority, Some(&etc))?;
                Ok(Self::RemoteDatabases(Arc::new(elsewhere)))
            }
        }
    }

    /// The id of the databases in this process.
    pub(super) fn id(&self) -> Option<DatabaseId> {
        match self {
            Self::Here(own) => Some(own.id),
            Self::RemoteDatabases(_) => None,
        }
    }

    /// The engine over etcd, if the databases in this process are there.
    pub(super) fn etcd(&self) -> Option<Arc<Etcd>> {
        match self {
            Self::Here(own) => own.engine.etcd().cloned(),
            Self::RemoteDatabases(_) => None,
        }
    }

    /// Makes copies of the databases, if this process has them in a file.
    pub(super) fn copier(&self) -> Option<Copier> {
        match self {
            Self::Here(own) => own.copies.as_ref().map(Copies::copier),
            Self::RemoteDatabases(_) => None,
        }
    }

    /// Users and groups, for the file server.
    pub(super) fn protection(&self) -> Arc<dyn Protection> {
        match self {
            Self::Here(own) => Arc::new(OwnProtection(own.pr.clone())),
            Self::RemoteDatabases(elsewhere) => elsewhere.clone(),
        }
    }

    /// Locations of volumes, for the file server.
    pub(super) fn locations(&self) -> Arc<dyn Locations> {
        match self {
            Self::Here(own) => Arc::new(OwnLocations(own.vl.clone())),
            Self::RemoteDatabases(elsewhere) => elsewhere.clone(),
        }
    }

    /// The cell's file servers and the VLDB's entries, for the collection of garbage objects. The
    /// databases are called over the network even if they are in this process.
    pub(super) fn cell_servers(
        &self,
        runtime: &Runtime,
        identity: &Identity,
        trust: &Trust,
    ) -> Outcome<Arc<RemoteDatabases>> {
        Ok(match self {
            Self::Here(_) => {
                let cell: &Cell = &identity.cell;
                Arc::new(RemoteDatabases::new(runtime, cell, &trust.authority, None)?)
            }
            Self::RemoteDatabases(elsewhere) => elsewhere.clone(),
        })
    }

    /// Calls the location database as a superuser. If the databases are elsewhere, this blocks; it
    /// is for the start, before anything is served.
    pub(super) fn ask_locations<P: Procedure + Answer<Vl>>(
        &self,
        arguments: P,
    ) -> Result<P::Reply, AbortCode> {
        match self {
            Self::Here(own) => own.vl.ask(Caller::Superuser, arguments),
            Self::RemoteDatabases(elsewhere) => elsewhere.ask_now(&vl::PACKAGE, &arguments),
        }
    }

    /// Registers the file server's UUID and addresses. If the databases are elsewhere, this goes on
    /// in the background until one of their servers accepts. Files are served meanwhile.
    pub(super) fn register(
        &self,
        runtime: &Runtime,
        fileserver: &FileServer,
        identity: &Identity,
        addresses: &[IpAddr],
    ) -> Outcome {
        match self {
            Self::Here(_) => bootstrap::register(self, identity, addresses),
            Self::RemoteDatabases(elsewhere) => {
                elsewhere.register(runtime, fileserver, identity, addresses);
                Ok(())
            }
        }
    }
}

impl OsdTable for Databases {
    fn get(&self, asked: GetOsd) -> Result<OsdEntry, AbortCode> {
        match self {
            Self::Here(own) => own.osddb.ask(Caller::Superuser, asked),
            Self::RemoteDatabases(elsewhere) => elsewhere.ask_now(&osddb::PACKAGE, &asked),
        }
        .map(|reply| reply.osd.entry)
    }

    fn create(&self, entry: OsdEntry) -> Result<u32, AbortCode> {
        let asked = CreateOsd { entry };
        match self {
            Self::Here(own) => own.osddb.ask(Caller::Superuser, asked),
            Self::RemoteDatabases(elsewhere) => elsewhere.ask_now(&osddb::PACKAGE, &asked),
        }
        .map(|reply| reply.id)
    }
}

/// The databases in this process.
pub(super) struct OwnDatabases {
    id: DatabaseId,
    engine: Engine,
    /// The copy of a file. etcd has copies of its own.
    copies: Option<Copies>,
    vl: Arc<Vl>,
    pr: Arc<Pr>,
    osddb: Arc<OsdDb>,
}

/// The services of the databases.
pub(super) struct DatabaseServices {
    pub(super) vl: Arc<dyn Service>,
    pub(super) vl_votes: Arc<dyn Service>,
    /// On the port of the location database.
    pub(super) osddb: Arc<dyn Service>,
    pub(super) pr: Arc<dyn Service>,
    pub(super) pr_votes: Arc<dyn Service>,
    pub(super) disk: Arc<dyn Service>,
}

impl OwnDatabases {
    fn open(
        directory: &CellDirectory,
        identity: &Identity,
        trust: &Trust,
        new: &New,
        etcd: &EtcdOptions,
    ) -> Outcome<Self> {
        let databases = directory.databases();
        let at = |cause: &dyn std::fmt::Display| {
            Failure::new(format!("{}: {cause}", databases.display()))
        };
        cellar_private::directory(&databases).map_err(|cause| at(&cause))?;
        let opened = Engine::open(directory, identity, etcd, pieces::opening(identity, new))?;
        let engine = opened.map_err(|cause| match cause {
            DatabaseError::Missing(_) => at(&format!(
                "{cause}, but the cell has been used: restore it from a copy. 'cellar up --new-database' makes empty \
                 databases, without the users, groups and locations of volumes of the old ones"
            )),
            cause => crate::db::failure(&cause),
        })?;
        let id = engine.id();
        pieces::check_database(identity, new, id).map_err(|cause| at(&cause))?;
        let db = engine.db();
        let vl = Vl::open(db.clone(), clock()).map_err(|cause| at(&cause))?;
        let osddb = OsdDb::open(db.clone(), clock()).map_err(|cause| at(&cause))?;
        let pr = Pr::open(db, clock(), identity.cell.name.as_str()).map_err(|cause| at(&cause))?;
        let pr = pr.with_realms(trust.authority.clone());
        let copies = match &engine {
            Engine::File(db) => Some(Copies::start(db.clone(), directory.database_copy())),
            Engine::Etcd(_) => None,
        };
        Ok(Self {
            id,
            copies: copies.transpose().map_err(|cause| at(&cause))?,
            engine,
            vl: Arc::new(vl),
            pr: Arc::new(pr),
            osddb: Arc::new(osddb),
        })
    }

    /// The services for the ports of the databases.
    pub(super) fn services(&self, identity: &Identity, trust: &Trust) -> DatabaseServices {
        let Trust { authority, audit } = trust;
        let addresses: Vec<u32> = identity.v4_address().into_iter().collect();
        let votes = |database: Arc<dyn Database>| -> Arc<dyn Service> {
            let sync_site: SyncSite = match self.engine.etcd().cloned() {
                Some(etcd) => Arc::new(move || engine::leader(&etcd)),
                None => Arc::new(|| None),
            };
            let addresses = addresses.clone();
            Arc::new(VoteService::with_sync_site(
                database,
                clock(),
                addresses,
                sync_site,
            ))
        };
        let vl = VlService::new(self.vl.clone());
        let pr = PrService::new(self.pr.clone());
        let osddb = OsdDbService::new(self.osddb.clone());
        DatabaseServices {
            vl: Arc::new(vl.with_authority(authority.clone(), audit.clone())),
            vl_votes: votes(self.vl.clone()),
            osddb: Arc::new(osddb.with_authority(authority.clone(), audit.clone())),
            pr: Arc::new(pr.with_authority(authority.clone(), audit.clone())),
            pr_votes: votes(self.pr.clone()),
            disk: Arc::new(DiskService),
        }
    }
}

/// The clock of the databases.
fn clock() -> Clock {
    Arc::new(|| AfsTime::after_1970(wall_clock()))
}
