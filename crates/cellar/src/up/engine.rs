//! The engine of a directory's databases: a file, or an etcd cluster that several database servers
//! share.
//!
//! | `db/cell.redb` | `db/etcd.json` | options | databases |
//! | --- | --- | --- | --- |
//! | - | - | without `--etcd` | the file is made |
//! | - | - | `--etcd` | in etcd; `etcd.json` is written |
//! | any | there | any | in etcd; `--etcd` gives new addresses |
//! | there | - | `--etcd` | refused: `cellar db switch etcd` copies them |
//! | there | - | without `--etcd` | in the file |
//!
//! `etcd.json` appears only when the databases in etcd are whole, and its removal makes the file
//! count again. So one step decides.

use std::path::PathBuf;
use std::sync::Arc;

use cellar_celldb::{CellDb, DatabaseId, Embedded, Error as DatabaseError, Opening};
use cellar_etcd::{Etcd, Settings, Tls};
use serde::{Deserialize, Serialize};

use crate::cell_directory::{CellDirectory, Identity};
use crate::failure::{Failure, Outcome};

/// The version of `etcd.json`.
const FORMAT: u32 = 1;

/// Where the databases are, if an etcd cluster has them.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct EtcdOptions {
    /// Keep the databases in this etcd cluster, which several database servers share. Each member
    /// has an address: http://HOST:2379 or https://HOST:2379. Needed once.
    #[arg(long, value_name = "URL,...", value_delimiter = ',')]
    pub(crate) etcd: Vec<String>,
    /// Certificate of the authority that signed those of the etcd cluster (PEM), for https://.
    #[arg(long, value_name = "FILE")]
    etcd_ca: Option<PathBuf>,
    /// Certificate with which this server calls the etcd cluster (PEM).
    #[arg(long, value_name = "FILE")]
    etcd_certificate: Option<PathBuf>,
    /// Private key of that certificate (PEM).
    #[arg(long, value_name = "FILE")]
    etcd_key: Option<PathBuf>,
}

/// The contents of `etcd.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EtcdPlace {
    format: u32,
    pub(crate) endpoints: Vec<String>,
    ca: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    /// The first part of all keys.
    pub(crate) prefix: String,
    /// The name of this server among the writers.
    writer: String,
}

impl EtcdPlace {
    /// The place that options name; `None` if they name no cluster.
    pub(crate) fn of_options(options: &EtcdOptions, identity: &Identity) -> Outcome<Option<Self>> {
        let absolute = |file: &Option<PathBuf>| {
            let path = file.as_ref().map(std::path::absolute).transpose();
            path.map_err(|cause| Failure::new(format!("no working directory: {cause}")))
        };
        let place = Self {
            format: FORMAT,
            endpoints: options.etcd.clone(),
            ca: absolute(&options.etcd_ca)?,
            certificate: absolute(&options.etcd_certificate)?,
            key: absolute(&options.etcd_key)?,
            prefix: format!("/cellar/{}", identity.cell.name),
            writer: uuid::Uuid::from_bytes(identity.server_uuid).to_string(),
        };
        Ok((!place.endpoints.is_empty()).then_some(place))
    }

    /// Reads the place from a directory; `None` if its databases are in a file.
    pub(crate) fn load(directory: &CellDirectory) -> Outcome<Option<Self>> {
        let path = directory.etcd_file();
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(cause) => return Err(Failure::new(format!("{}: {cause}", path.display()))),
        };
        let wrong = |reason: String| Failure::new(format!("{}: {reason}", path.display()));
        let place: Self = serde_json::from_slice(&bytes)
            .map_err(|cause| wrong(format!("{cause}: restore the file from a copy")))?;
        if place.format != FORMAT {
            return Err(wrong(format!(
                "the format is {}, and this release knows {FORMAT}: use a newer one",
                place.format
            )));
        }
        Ok(Some(place))
    }

    /// Writes the place into a directory. From now on its databases are in etcd.
    pub(crate) fn save(&self, directory: &CellDirectory) -> Outcome {
        let path = directory.etcd_file();
        let at =
            |cause: &dyn std::fmt::Display| Failure::new(format!("{}: {cause}", path.display()));
        let text = serde_json::to_string_pretty(self).map_err(|cause| at(&cause))?;
        cellar_private::replace(&path, text.as_bytes()).map_err(|cause| at(&cause))
    }

    /// How the engine is opened.
    pub(crate) fn settings(&self, create: bool) -> Settings {
        Settings {
            endpoints: self.endpoints.clone(),
            tls: Tls {
                ca: self.ca.clone(),
                certificate: self.certificate.clone(),
                key: self.key.clone(),
            },
            prefix: self.prefix.clone(),
            writer: self.writer.clone(),
            create,
        }
    }

    /// Opens databases that must be there.
    pub(crate) fn open(&self) -> Result<Etcd, DatabaseError> {
        Etcd::open(&self.settings(false))
    }
}

/// The open databases of a directory.
pub(super) enum Engine {
    File(Arc<Embedded>),
    Etcd(Arc<Etcd>),
}

impl Engine {
    /// Opens the databases, or makes them if they never existed.
    pub(super) fn open(
        directory: &CellDirectory,
        identity: &Identity,
        options: &EtcdOptions,
        opening: Opening,
    ) -> Outcome<Result<Self, DatabaseError>> {
        let file = directory.database_file();
        let known = EtcdPlace::load(directory)?;
        let named = EtcdPlace::of_options(options, identity)?;
        let place = match (known, named) {
            (None, None) => {
                return Ok(Embedded::open_as(&file, opening)
                    .map(Arc::new)
                    .map(Self::File));
            }
            (None, Some(_)) if file.exists() => {
                return Err(Failure::new(format!(
                    "the databases are in {}: 'cellar db switch etcd' copies them to the cluster. If they shall \
                     stay in the file, start without --etcd ('--forget etcd' drops it)",
                    file.display()
                )));
            }
            (None, Some(named)) => named,
            (Some(known), None) => known,
            (Some(known), Some(named)) => EtcdPlace {
                prefix: known.prefix,
                ..named
            },
        };
        let opened = Etcd::open(&place.settings(opening.create));
        if opened.is_ok() && EtcdPlace::load(directory)?.as_ref() != Some(&place) {
            place.save(directory)?;
        }
        Ok(opened.map(Arc::new).map(Self::Etcd))
    }

    /// The engine, for the servers above it.
    pub(super) fn db(&self) -> Arc<dyn CellDb> {
        match self {
            Self::File(db) => db.clone(),
            Self::Etcd(db) => db.clone(),
        }
    }

    pub(super) fn id(&self) -> DatabaseId {
        match self {
            Self::File(db) => db.id(),
            Self::Etcd(db) => db.id(),
        }
    }

    pub(super) fn etcd(&self) -> Option<&Arc<Etcd>> {
        match self {
            Self::File(_) => None,
            Self::Etcd(db) => Some(db),
        }
    }
}

/// The address of the cluster's leader in the form of AFS, if it is known.
pub(super) fn leader(etcd: &Etcd) -> Option<u32> {
    let status = etcd.status();
    let host: std::net::Ipv4Addr = status.leader_host()?.parse().ok()?;
    Some(u32::from(host))
}
