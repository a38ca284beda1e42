//! The VLDB and the other file servers, for a file server that collects garbage objects.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use cellar_client::Error;
use cellar_fileserver::protection::BoxFuture;
use cellar_fileserver::{CellServer, CellServers, Family, FamilySite};
use cellar_rpc::{CallError, Connection};
use cellar_wire::ids::VolumeId;
use cellar_wire::package::Procedure;
use cellar_wire::vl::{self, NvldbEntry};
use cellar_wire::{AbortCode, afsosd};

use super::remote_databases::RemoteDatabases;

/// The largest number of servers. It bounds a database that never reports the end. A server beyond
/// the bound would not be asked for the objects that it needs, so more servers are an error.
const SERVERS_MAX: i32 = 10_000;
/// An address in this network stands for a server with a UUID, which is listed separately.
const STANDS_FOR_UUID: u32 = 255;

impl RemoteDatabases {
    /// Calls the servers of the VLDB, which have the OSD database too.
    pub(super) async fn ask_location_servers<P: Procedure>(
        &self,
        asked: &P,
    ) -> Result<P::Reply, CallError> {
        let answer = self.client().locations().call(self.cell(), asked).await;
        answer.map_err(|error| match error {
            Error::Database { cause, .. } | Error::DatabaseUnreachable { cause, .. } => cause,
            _ => CallError::Dead,
        })
    }

    async fn all_servers(&self) -> Result<Vec<CellServer>, CallError> {
        let asked = vl::GetAddrs {
            handle: 0,
            spare2: 0,
        };
        let plain = self.ask_location_servers(&asked).await?.blkaddr;
        let plain = plain.iter().filter(|word| *word >> 24 != STANDS_FOR_UUID);
        let mut servers: Vec<CellServer> = plain
            .map(|word| CellServer {
                uuid: None,
                addresses: vec![address(*word)],
            })
            .collect();
        for index in 1..=SERVERS_MAX {
            let attributes = vl::ListAddrByAttributes {
                mask: vl::VLADDR_INDEX,
                index,
                ..Default::default()
            };
            let reply = match self
                .ask_location_servers(&vl::GetAddrsU { attributes })
                .await
            {
                Ok(reply) => reply,
                Err(CallError::Aborted(AbortCode::VL_INDEXERANGE)) => return Ok(servers),
                Err(CallError::Aborted(AbortCode::VL_NOENT)) => continue,
                Err(cause) => return Err(cause),
            };
            let addresses: Vec<IpAddr> = reply.blkaddrs.iter().copied().map(address).collect();
            servers.retain(|known| {
                known.uuid.is_some() || known.addresses.iter().all(|own| !addresses.contains(own))
            });
            if !addresses.is_empty() {
                servers.push(CellServer {
                    uuid: Some(reply.uuid),
                    addresses,
                });
            }
        }
        Err(CallError::Aborted(AbortCode::VL_SIZEEXCEEDED))
    }
}

impl CellServers for RemoteDatabases {
    fn servers(&self) -> BoxFuture<'_, Result<Vec<CellServer>, CallError>> {
        Box::pin(self.all_servers())
    }

    fn family(&self, volume: VolumeId) -> BoxFuture<'_, Result<Option<Family>, CallError>> {
        Box::pin(async move {
            let asked = vl::GetEntryByIDN {
                volid: volume,
                voltype: vl::ANYVOL,
            };
            match self.ask_location_servers(&asked).await {
                Ok(reply) => Ok(Some(family(&reply.entry))),
                Err(CallError::Aborted(AbortCode::VL_NOENT)) => Ok(None),
                Err(cause) => Err(cause),
            }
        })
    }

    fn connection(&self, server: IpAddr) -> Connection {
        let cell = self.cell();
        let peer = SocketAddr::new(server, cell.ports.fileserver);
        let servers = self.client().servers();
        servers.connection(&cell.name, peer, &afsosd::PACKAGE)
    }
}

fn address(word: u32) -> IpAddr {
    Ipv4Addr::from(word).into()
}

/// The sites of an entry. A site that was added and not released yet, or that must not be used,
/// need not have the volume.
fn family(entry: &NvldbEntry) -> Family {
    let sites = entry.sites.iter().map(|site| {
        let has = |flag, exists| site.flags & flag != 0 && entry.flags & exists != 0;
        let read_write = has(vl::VLSF_RWVOL, vl::VLF_RWEXISTS);
        let read_only = has(vl::VLSF_ROVOL, vl::VLF_ROEXISTS) && site.flags & vl::VLSF_DONTUSE == 0;
        let wanted = [(read_write, 0), (read_only, 1)];
        let wanted = wanted.into_iter().filter(|(is_there, _)| *is_there);
        FamilySite {
            server: address(site.server),
            volumes: wanted.map(|(_, which)| entry.volume_ids[which]).collect(),
            read_write,
        }
    });
    Family {
        sites: sites.collect(),
        locked: entry.flags & vl::VLOP_ALLOPERS != 0,
    }
}

#[cfg(test)]
mod tests {
    use cellar_wire::List;
    use cellar_wire::vl::Site;

    use super::*;

    #[test]
    fn a_site_that_is_not_released_need_not_have_the_volume() {
        let site = |last: u32, flags| Site {
            server: 0xc000_0200 + last,
            partition: 0,
            flags,
        };
        let mut entry = NvldbEntry {
            sites: List::from_iter_cut([
                site(1, vl::VLSF_RWVOL),
                site(1, vl::VLSF_ROVOL),
                site(2, vl::VLSF_ROVOL | vl::VLSF_DONTUSE),
            ]),
            volume_ids: [VolumeId(10), VolumeId(11), VolumeId(12)],
            flags: vl::VLF_RWEXISTS | vl::VLF_ROEXISTS | vl::VLF_BACKEXISTS,
            ..NvldbEntry::default()
        };
        let volumes = |entry: &NvldbEntry| -> Vec<Vec<u32>> {
            let sites = family(entry).sites.into_iter();
            sites
                .map(|site| site.volumes.iter().map(|volume| volume.0).collect())
                .collect()
        };
        assert_eq!(volumes(&entry), [vec![10], vec![11], vec![]]);
        assert!(!family(&entry).locked);
        entry.flags = vl::VLF_RWEXISTS | vl::VLOP_MOVE;
        assert_eq!(volumes(&entry), [vec![10], vec![], vec![]]);
        assert!(family(&entry).locked);
        let heads = family(&entry).sites.into_iter();
        let heads: Vec<bool> = heads.map(|site| site.read_write).collect();
        assert_eq!(heads, [true, false, false]);
    }
}
