//! Volumes: the operations of `vos`.
//!
//! Each operation changes a volume server and the VLDB. The order of its steps is the one that
//! leaves the least behind after an interruption (afs-rpcs §11); the error then says what remains.
//! The two long operations, release and move, are jobs ([`job`]): each step leaves a state from
//! which the next run can continue.

mod backup;
mod copying;
mod create;
mod draft;
mod drain;
mod dump;
mod entry;
mod entry_list;
mod entry_page;
pub mod job;
mod listing;
mod location;
mod lock;
mod moving;
mod orphans;
mod refill;
mod release;
mod remove;
mod rename;
mod replace_server;
mod restore;
mod scrub;
mod servers;
mod sites;
mod sync;
mod transaction;
mod traverse;
mod volume_info;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use cellar_client::{Cell, Client};
use cellar_wire::ids::{PartitionId, VolumeId};
use cellar_wire::{afsvol, vl};
use serde::Serialize;

pub use copying::{CloneOptions, CopyOptions, ShadowOptions};
pub use create::CreateOptions;
pub use drain::{DrainAction, DrainPlan, DrainStep, DrainTarget, Remaining};
pub use dump::DumpOptions;
pub use entry::{Entry, Site, entry_flags, site_flags};
pub use entry_list::{EntryList, Order};
pub use entry_page::EntryPage;
pub use listing::{PartitionSpace, Transaction, Transfer};
pub use location::{EntryFilter, ServerAddresses};
pub use lock::{LockInfo, lock_operation};
pub use moving::{MoveOptions, Moved};
pub use refill::Refilled;
pub use release::{ReleaseOptions, Released, SiteOutcome};
pub use replace_server::{ReplaceAction, ReplacePlan};
pub use restore::{DateChoice, RestoreOptions, Restored, check_restored_name};
pub use scrub::{Damage, LastScrub, PartitionScrub, Scrubbed};
pub use servers::Fields;
pub use sync::{Repair, SyncReport};
pub(crate) use transaction::is_missing;
pub use traverse::{PlaceUsage, Scope, SizeClass, Traversable, Traversed};
pub use volume_info::{NamedLocation, Traffic, VolumeInfo, VolumeState, VolumeType};

use crate::error::{Error, Result};

/// The longest name of a read-write volume, so that `.readonly` fits into a volume's header.
pub const VOLUME_NAME_BYTES_MAX: usize = 22;

/// A partition of a server: the present or future place of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Location {
    /// The file server. File servers have IPv4 addresses: the VLDB has room for no other.
    pub server: Ipv4Addr,
    /// Its partition.
    #[serde(serialize_with = "crate::json::display")]
    pub partition: PartitionId,
}

impl Location {
    /// A partition of a server.
    ///
    /// # Errors
    /// The address is not an IPv4 address.
    pub fn new(server: IpAddr, partition: PartitionId) -> Result<Self> {
        match server {
            IpAddr::V4(server) => Ok(Self { server, partition }),
            IpAddr::V6(_) => Err(Error::Usage(format!(
                "{server}: file servers have IPv4 addresses"
            ))),
        }
    }

    /// The location of a site of an entry, if its partition number is valid.
    fn of(site: &vl::Site) -> Option<Self> {
        Some(Self {
            server: site.server.into(),
            partition: PartitionId::new(site.partition)?,
        })
    }

    /// Whether a site of an entry is this location.
    fn is(self, site: &vl::Site) -> bool {
        Self::of(site) == Some(self)
    }
}

impl std::fmt::Display for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.server, self.partition)
    }
}

/// The volumes of one cell: its VLDB and its volume servers.
#[derive(Clone, Copy)]
pub struct Volumes<'a> {
    client: &'a Client,
    cell: &'a Cell,
}

impl<'a> Volumes<'a> {
    /// The volumes of `cell`.
    pub fn new(client: &'a Client, cell: &'a Cell) -> Self {
        Self { client, cell }
    }

    /// Calls the VLDB.
    async fn vl<P: cellar_wire::Procedure>(&self, arguments: &P, what: &str) -> Result<P::Reply> {
        self.client
            .locations()
            .call(self.cell, arguments)
            .await
            .map_err(|error| match error {
                cellar_client::Error::Database { cause, .. } => match cause.code() {
                    cellar_wire::AbortCode::VL_NOENT => Error::NoSuchEntry(what.to_owned()),
                    _ => Error::refused(what, cause),
                },
                other => other.into(),
            })
    }

    /// Makes a call to a volume server.
    async fn server<P: cellar_wire::Procedure>(
        &self,
        server: IpAddr,
        arguments: &P,
        what: &str,
    ) -> Result<P::Reply> {
        let connection = self.connection(server);
        connection
            .call(arguments)
            .await
            .map_err(|cause| Error::refused(what, cause))
    }

    /// Refuses a partition that the server does not have, before the operation changes anything
    /// there.
    ///
    /// # Errors
    /// There is no such partition, or the server does not answer.
    pub async fn check_partition(&self, at: Location) -> Result<()> {
        let partitions = self.partitions(at.server.into()).await?;
        if partitions.contains(&at.partition) {
            return Ok(());
        }
        let names: Vec<_> = partitions.iter().map(ToString::to_string).collect();
        Err(Error::Usage(format!(
            "partition {} does not exist on the server {}; it has {}",
            at.partition,
            at.server,
            names.join(", ")
        )))
    }

    /// Finds a volume that the operation is going to use.
    ///
    /// # Errors
    /// It is not there, or the server does not answer.
    pub async fn needed(&self, at: Location, volume: VolumeId) -> Result<VolumeInfo> {
        let found = self.volume_on(at.server.into(), at.partition, volume, false);
        found.await.map_err(|error| match error {
            Error::Refused { .. } => {
                Error::Usage(format!("{error}; cannot access volume {volume} on {at}"))
            }
            other => other,
        })
    }

    /// The connection to a volume server.
    fn connection(&self, server: IpAddr) -> cellar_rpc::Connection {
        let peer = SocketAddr::new(server, self.cell.ports.volume);
        let servers = self.client.servers();
        servers.connection(&self.cell.name, peer, &afsvol::PACKAGE)
    }

    /// Reserves `count` volume ids and returns the first.
    async fn new_volume_ids(&self, count: u32) -> Result<VolumeId> {
        self.new_volume_ids_for(count, "Could not get an Id for the volume")
            .await
    }

    /// [`Volumes::new_volume_ids`], with `what` as the beginning of a refusal.
    async fn new_volume_ids_for(&self, count: u32, what: &str) -> Result<VolumeId> {
        Ok(self
            .vl(&vl::GetNewVolumeId { bump: count }, what)
            .await?
            .newvolumid)
    }
}

/// Refuses a text that cannot be the name of a read-write volume. `what` is the word for the name
/// in a refusal of its length: OpenAFS's commands use several.
pub fn check_volume_name(what: &str, name: &str) -> Result<()> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let problem = if name.len() > VOLUME_NAME_BYTES_MAX {
        format!("{what} {name} exceeds the size limit of {VOLUME_NAME_BYTES_MAX}")
    } else if has_suffix(name) {
        format!("Illegal volume name {name}, should not end in .readonly or .backup")
    } else if is_number(name) {
        format!("Illegal volume name {name}, should not be a number")
    } else if name.is_empty() || !name.chars().all(legal) {
        format!(
            "VOLSER: error in volume name ('{}': use letters, digits, dots, dashes and underscores)",
            name.escape_debug()
        )
    } else {
        return Ok(());
    };
    Err(Error::Usage(problem))
}

/// Whether a name is that of a read-only or backup volume.
pub(crate) fn has_suffix(name: &str) -> bool {
    name.ends_with(".readonly") || name.ends_with(".backup")
}

/// Whether a name would be read as a volume id.
pub(crate) fn is_number(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit())
}

/// The word for the name of a new volume, in a refusal of its length.
pub const NEW_NAME: &str = "the name of the root volume";

/// Converts an entry from the wire. Sites with an invalid partition number are left out.
fn entry_from_wire(entry: &vl::NvldbEntry) -> Entry {
    let site = |site: &vl::Site| {
        Some(Site {
            server: Ipv4Addr::from(site.server).into(),
            partition: PartitionId::new(site.partition)?,
            flags: site.flags,
        })
    };
    let [read_write, read_only, backup] = entry.volume_ids;
    Entry {
        name: entry.name.to_string(),
        read_write,
        read_only,
        backup,
        clone: entry.clone_id,
        flags: entry.flags,
        sites: entry.sites.iter().filter_map(site).collect(),
    }
}
