//! Information from the VLDB: entries, and the addresses of servers.

use std::net::{IpAddr, Ipv4Addr};

use cellar_wire::ids::{AfsUuid, PartitionId, VolumeId};
use cellar_wire::vl;
use serde::Serialize;

use super::entry_list::Pages;
use super::{Entry, Volumes, entry_from_wire};
use crate::error::{Error, Result};

/// The most calls for one list of servers, in case the VLDB never says "end".
const PAGES_MAX: usize = 1_000_000;

/// The entries to list.
#[derive(Clone, Copy, Debug, Default)]
pub struct EntryFilter {
    /// Only entries with a site on this server.
    pub server: Option<IpAddr>,
    /// Only entries with a site on this partition.
    pub partition: Option<PartitionId>,
    /// Only locked entries.
    pub locked: bool,
}

impl EntryFilter {
    /// The filter, as calls have it.
    ///
    /// # Errors
    /// The server has no IPv4 address.
    pub(super) fn attributes(&self) -> Result<vl::VldbListByAttributes> {
        let mut attributes = vl::VldbListByAttributes::default();
        if let Some(server) = self.server {
            let IpAddr::V4(ip) = server else {
                return Err(Error::Usage(format!(
                    "{server}: file servers have IPv4 addresses"
                )));
            };
            attributes.mask |= vl::VLLIST_SERVER;
            attributes.server = u32::from(ip);
        }
        if let Some(partition) = self.partition {
            attributes.mask |= vl::VLLIST_PARTITION;
            attributes.partition = partition.number();
        }
        if self.locked {
            attributes.mask |= vl::VLLIST_FLAG;
            attributes.flag = vl::VLOP_ALLOPERS;
        }
        Ok(attributes)
    }
}

/// The addresses of one file server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServerAddresses {
    /// Its UUID; none for a server that has not registered.
    #[serde(serialize_with = "uuid")]
    pub uuid: Option<AfsUuid>,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
}

fn uuid<S: serde::Serializer>(
    uuid: &Option<AfsUuid>,
    s: S,
) -> std::result::Result<S::Ok, S::Error> {
    match uuid {
        Some(uuid) => s.collect_str(uuid),
        None => s.serialize_none(),
    }
}

impl ServerAddresses {
    /// The UUID, in the form of `vos listaddrs -printuuid`.
    pub fn uuid_line(&self) -> String {
        self.uuid.map(|uuid| uuid.to_string()).unwrap_or_default()
    }
}

impl Volumes<'_> {
    /// The entry of a volume, by name or number.
    ///
    /// # Errors
    /// There is no such entry.
    pub async fn entry(&self, volume: &str) -> Result<Entry> {
        let volumename = vl::VolumeNameArgument::try_from(volume)
            .map_err(|_| Error::NoSuchEntry(volume.to_owned()))?;
        let reply = self.vl(&vl::GetEntryByNameN { volumename }, volume).await?;
        Ok(entry_from_wire(&reply.entry))
    }

    /// The entry of a volume in its wire form, for a change.
    pub(super) async fn raw_entry(&self, volume: VolumeId) -> Result<vl::NvldbEntry> {
        let arguments = vl::GetEntryByIDN {
            volid: volume,
            voltype: vl::ANYVOL,
        };
        Ok(self.vl(&arguments, &volume.to_string()).await?.entry)
    }

    /// All entries that match the filter, sorted by name.
    ///
    /// # Errors
    /// The VLDB does not answer, or knows no such server.
    pub async fn entries(&self, filter: EntryFilter) -> Result<Vec<Entry>> {
        let (mut pages, mut entries) = (Pages::of(filter)?, Vec::new());
        while let Some(page) = pages.next_page(self).await? {
            entries.extend(page.iter().map(entry_from_wire));
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// Calls `each` with the entries of the VLDB, one page after the other.
    ///
    /// # Errors
    /// The VLDB does not answer.
    pub(crate) async fn each_page(&self, mut each: impl FnMut(Vec<Entry>)) -> Result<()> {
        let mut pages = Pages::of(EntryFilter::default())?;
        while let Some(page) = pages.next_page(self).await? {
            each(page.iter().map(entry_from_wire).collect());
        }
        Ok(())
    }

    /// The file servers in the VLDB.
    ///
    /// # Errors
    /// The VLDB does not answer.
    pub async fn addresses(&self) -> Result<Vec<ServerAddresses>> {
        let what = "unable to list servers";
        let reply = self
            .vl(
                &vl::GetAddrs {
                    handle: 0,
                    spare2: 0,
                },
                what,
            )
            .await?;
        // 255.x.y.z stands for a server with a UUID; these follow below.
        let plain = reply.blkaddr.iter().filter(|word| *word >> 24 != 255);
        let mut servers: Vec<_> = plain
            .map(|word| ServerAddresses {
                uuid: None,
                addresses: vec![Ipv4Addr::from(*word).into()],
            })
            .collect();
        // Servers with UUIDs are enumerated by index until the VLDB says that there are no more.
        for index in 1..=PAGES_MAX as i32 {
            let attributes = vl::ListAddrByAttributes {
                mask: vl::VLADDR_INDEX,
                index,
                ..Default::default()
            };
            match self.vl(&vl::GetAddrsU { attributes }, what).await {
                Ok(reply) => {
                    let addresses: Vec<IpAddr> = reply
                        .blkaddrs
                        .iter()
                        .map(|a| Ipv4Addr::from(*a).into())
                        .collect();
                    let known = servers.iter().any(|server: &ServerAddresses| {
                        server.uuid.is_none() && server.addresses == addresses
                    });
                    if !known {
                        servers.push(ServerAddresses {
                            uuid: Some(reply.uuid),
                            addresses,
                        });
                    }
                }
                Err(Error::NoSuchEntry(_)) => continue,
                Err(error) if error.code() == Some(cellar_wire::AbortCode::VL_INDEXERANGE) => {
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(servers)
    }
}
