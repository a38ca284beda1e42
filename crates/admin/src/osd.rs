//! Object storage devices and policies: the operations of `osd`.
//!
//! The OSD database has the list of devices and the policies. The server of a device knows its
//! objects; the file servers know which files need them.

mod collect;
mod contents;
mod device;
mod pins;
mod policies;
mod preview;
mod upkeep;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use cellar_client::{Cell, Client};
use cellar_rpc::{CallError, Connection};
use cellar_wire::object::device_only;
use cellar_wire::osddb::{
    CreateOsd, ListOsds, OSD_DRAINING, OSD_OBSOLETE, OsdEntry, OsdListed, SetOsd,
};
use cellar_wire::{AbortCode, Procedure, osd};

pub use collect::{CollectedView, GarbageView};
pub(crate) use contents::object_name;
pub use contents::{Contents, FilesOn, ObjectView, RepairView, VersionView, objects_head};
pub use device::{Device, State, devices_long, devices_table};
pub use pins::PinView;
pub use policies::{PolicyView, policies_table};
pub use preview::{DecidingRule, Preview, Question};
pub use upkeep::{ScrubView, Sums};

use crate::error::{Error, Result, is_unknown_there};

/// The number of attempts of a change, each of which fails if another change came first.
const TRIES: usize = 5;

/// The devices and policies of one cell.
#[derive(Clone, Copy)]
pub struct Osds<'a> {
    client: &'a Client,
    cell: &'a Cell,
}

impl<'a> Osds<'a> {
    /// The devices and policies of `cell`.
    pub fn new(client: &'a Client, cell: &'a Cell) -> Self {
        Self { client, cell }
    }

    /// Calls the OSD database. Its servers are those of the VLDB.
    async fn db<P: Procedure>(&self, arguments: &P, what: &str) -> Result<P::Reply> {
        let called = self.client.locations().call(self.cell, arguments).await;
        called.map_err(|error| match error {
            cellar_client::Error::Database { cause, .. } => match is_unknown_there(cause.code()) {
                true => Error::Usage(format!(
                    "the database servers of cell {} have no object storage",
                    self.cell.name
                )),
                false => Error::refused(what, cause),
            },
            other => other.into(),
        })
    }

    async fn listed(&self) -> Result<(u64, Vec<OsdListed>)> {
        let reply = self
            .db(&ListOsds {}, "cannot list the object storage devices")
            .await?;
        Ok((reply.revision, reply.osds.into_vec()))
    }

    /// All devices, by number.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn list(&self) -> Result<Vec<Device>> {
        let (_, osds) = self.listed().await?;
        Ok(osds.iter().map(Device::of).collect())
    }

    async fn find(&self, name_or_id: &str) -> Result<(u64, OsdListed)> {
        let (revision, osds) = self.listed().await?;
        Ok((revision, pick(osds, name_or_id)?))
    }

    /// Finds a device by name or number.
    ///
    /// # Errors
    /// There is no such device.
    pub async fn device(&self, name_or_id: &str) -> Result<Device> {
        Ok(Device::of(&self.find(name_or_id).await?.1))
    }

    /// Creates a device. With number 0 it gets the next free number.
    ///
    /// # Errors
    /// The name or number is taken, the entry makes no sense, or the caller has no permission.
    pub async fn create(&self, entry: OsdEntry) -> Result<u32> {
        let what = format!("cannot create device {}", entry.name);
        match self.db(&CreateOsd { entry }, &what).await {
            Ok(reply) => Ok(reply.id),
            Err(error) => Err(explained(error, &what)),
        }
    }

    /// Changes the entry of a device. Concurrent changes by other callers are kept.
    ///
    /// # Errors
    /// There is no such device, `change` refuses, or as [`Osds::create`].
    pub async fn change(
        &self,
        name_or_id: &str,
        change: impl Fn(&mut OsdEntry) -> Result<()>,
    ) -> Result<Device> {
        let what = format!("cannot change device {name_or_id}");
        for _ in 1..TRIES {
            match self.try_change(name_or_id, &what, &change).await {
                Err(error) if error.code() == Some(AbortCode::ESTALE) => {}
                other => return other,
            }
        }
        self.try_change(name_or_id, &what, &change).await
    }

    async fn try_change(
        &self,
        name_or_id: &str,
        what: &str,
        change: &impl Fn(&mut OsdEntry) -> Result<()>,
    ) -> Result<Device> {
        let (revision, mut listed) = self.find(name_or_id).await?;
        change(&mut listed.entry)?;
        let entry = listed.entry.clone();
        match self.db(&SetOsd { entry, revision }, what).await {
            Ok(_) => Ok(Device::of(&listed)),
            Err(error) => Err(explained(error, what)),
        }
    }

    /// Starts to drain a device, or ends that and allows its use again.
    ///
    /// # Errors
    /// As [`Osds::change`].
    pub async fn drain(&self, name_or_id: &str, drain: bool) -> Result<Device> {
        self.change(name_or_id, |entry| {
            if entry.flags & OSD_OBSOLETE != 0 {
                let name = entry.name.to_string();
                return Err(Error::Usage(format!(
                    "device {name} is not in use any more"
                )));
            }
            set_flag(entry, OSD_DRAINING, drain);
            Ok(())
        })
        .await
    }

    /// Takes a device out of use. Its number is not used again. Without `force`, no file may have
    /// objects there.
    ///
    /// # Errors
    /// A file has objects there, or a file server does not answer and may know such a file; or as
    /// [`Osds::change`].
    pub async fn remove(&self, name_or_id: &str, force: bool) -> Result<Device> {
        if !force {
            let (_, listed) = self.find(name_or_id).await?;
            let id = listed.entry.id;
            let files = self.files_on(id, 1).await?;
            if !files.files.is_empty() {
                return Err(Error::Usage(format!(
                    "files have objects on device {id}: 'cellar osd drain {id} -wait' moves them away first; \
                     -force abandons these objects"
                )));
            }
            if let Some(silent) = files.silent.first() {
                return Err(Error::Usage(format!(
                    "file server {silent} does not say whether its files have objects on device {id}; \
                     -force removes the device anyway"
                )));
            }
        }
        self.change(name_or_id, |entry| {
            entry.flags |= OSD_OBSOLETE;
            entry.allocation_priority = 0;
            set_flag(entry, OSD_DRAINING, false);
            Ok(())
        })
        .await
    }

    /// The connection to the server of a device. It always uses Rx. The administrator's socket of a
    /// machine stands for the machine's addresses, and the device server may be another process at
    /// one of these.
    fn server(&self, entry: &OsdEntry) -> Result<Connection> {
        let address = entry.addresses.first().copied().map(address_of);
        let (Some(address), Ok(port)) = (address, u16::try_from(entry.port)) else {
            return Err(Error::Usage(format!(
                "device {} ({}) has no address: its server has never reported",
                entry.id, entry.name
            )));
        };
        let peer = SocketAddr::new(address, port);
        let servers = self.client.servers();
        Ok(servers.direct_connection(&self.cell.name, peer, &osd::PACKAGE))
    }

    /// The argument by which a superuser calls the server of a device without a capability.
    fn superuser(entry: &OsdEntry) -> cellar_wire::object::Capability {
        device_only(entry.id)
    }
}

/// Sets or clears a flag.
pub fn set_flag(entry: &mut OsdEntry, flag: u32, on: bool) {
    match on {
        true => entry.flags |= flag,
        false => entry.flags &= !flag,
    }
}

/// The device with that number or name. One in use comes before one that is obsolete.
fn pick(osds: Vec<OsdListed>, name_or_id: &str) -> Result<OsdListed> {
    let wanted: Option<u32> = name_or_id.parse().ok();
    let found = osds
        .into_iter()
        .filter(|listed| match wanted {
            Some(id) => listed.entry.id == id,
            None => listed.entry.name.as_bytes() == name_or_id.as_bytes(),
        })
        .min_by_key(|listed| listed.entry.flags & OSD_OBSOLETE);
    found.ok_or_else(|| {
        Error::Usage(format!(
            "there is no device {name_or_id}; 'cellar osd list -obsolete' shows all"
        ))
    })
}

/// A refusal by the server of a device.
fn refused_by_server(entry: &OsdEntry, what: impl Into<String>, cause: CallError) -> Error {
    if cause.code() != AbortCode::ENODEV {
        return Error::refused(what, cause);
    }
    let id = entry.id;
    let reason = match entry.flags & OSD_OBSOLETE {
        0 => "start it with the directory of the device".to_owned(),
        _ => format!("the device was removed; 'cellar osd set {id} -obsolete off' puts it back"),
    };
    Error::Usage(format!(
        "{}: the server does not serve device {id}: {reason}",
        what.into()
    ))
}

/// Turns the error codes of the database into sentences.
fn explained(error: Error, what: &str) -> Error {
    let sentence = match error.code() {
        Some(AbortCode::EEXIST) => "the name or the number is taken",
        Some(AbortCode::EINVAL) => {
            "the entry makes no sense: names, owner, class and location have no blanks, and a name is not a \
             number; the smallest size is not above the largest; a device is archival or wipeable, not \
             both; a mark is at most 1000, and the low water mark is below the high one"
        }
        Some(AbortCode::ENOSPC) => "there are too many",
        _ => return error,
    };
    Error::Usage(format!("{what}: {sentence}"))
}

/// Converts an address from the wire.
pub(crate) fn address_of(words: [u32; 4]) -> IpAddr {
    let mut bytes = [0; 16];
    for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_be_bytes());
    }
    Ipv6Addr::from(bytes).to_canonical()
}

/// Converts an address for the wire; an IPv4 address is mapped into IPv6.
pub fn address_words(address: IpAddr) -> [u32; 4] {
    let bytes = match address {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *word = u32::from_be_bytes(*bytes);
    }
    words
}
